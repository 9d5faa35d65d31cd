"""bls-agent doctor: what people and programs see, and the exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from redis import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.cli import main
from bls_agent.ops.doctor.rules.table import KEY_RULES
from bls_agent.ops.doctor.server import SERVER_RULES
from bls_agent.ops.terminal import count_columns
from bls_agent.ops.texts import load_texts
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.harness import needs_selectors
from tests.ops.cli.terminal import show

STATUS, CONTROL = "订单系统_项目状态", "订单系统_控制"
# Findings that no rule of the two tables makes.
OTHERS = {
    "project-absent",
    "keys-unread",
    "scan-refused",
    "scan-broken",
}


@pytest.fixture(scope="module")
def own() -> Iterator[DevServer]:
    with DevServer(options=("--save", "3600", "1")) as server:
        yield server


@pytest.fixture
def client(own: DevServer) -> Iterator[Redis]:
    with Redis.from_url(own.url) as client:
        client.flushdb()  # FLUSHALL would save an empty file first
        yield client


def run(own: DevServer, *words: str) -> int:
    return main(["doctor", "--redis", own.url, *words])


def spoil(client: Redis) -> None:
    client.set(STATUS, "在线")
    client.rpush(CONTROL, "reload")
    for number in range(25):
        client.hset(f"heartbeat:node:{number}", "a", "b")


@needs_selectors
def test_healthy(own: DevServer, client: Redis, capsys: Any) -> None:
    """Exit code 0, nothing on standard output of a pipe, a sentence beside it."""
    client.set(STATUS, "在线", ex=60)
    assert run(own, "--lang", "zh") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "没有发现问题。" in err


@needs_selectors
def test_notes_are_no_fault(own: DevServer, client: Redis, capsys: Any) -> None:
    """They are told, and the exit code is 0."""
    client.set(STATUS, "在线")
    assert run(own, "--lang", "en") == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"note\tstatus-untimed\t{STATUS}\t")
    assert "Nothing is wrong. Notes: 1." in err


@needs_selectors
@pytest.mark.parametrize("language", ["zh", "en"])
def test_a_pipe_gets_a_line_for_each_finding(
    language: str, own: DevServer, client: Redis, capsys: Any
) -> None:
    """With tabs: severity, rule, key, what is wrong, contract and section, its words, remedy."""
    spoil(client)
    assert run(own, "--lang", language) == 3
    out, _ = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert {len(row) for row in rows} == {7}
    assert [row[1] for row in rows].count("wrong-type") == 21
    more = [row for row in rows if row[1:3] == ["wrong-type", ""]]
    assert "5" in more[0][3]
    assert rows[-1][:3] == ["note", "status-untimed", STATUS]
    assert all(all(row[:2]) and row[3] for row in rows)


@needs_selectors
def test_json(own: DevServer, client: Redis, capsys: Any) -> None:
    """One object: what was found, counted and in words, and what was looked at."""
    spoil(client)
    client.set("别的", "x")
    assert run(own, "--json", "--lang", "zh") == 3
    told = orjson.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert told["counts"] == {"error": 26, "warning": 0, "note": 1}
    groups = {group["rule"]: group for group in told["findings"]}
    assert (groups["wrong-type"]["count"], len(groups["wrong-type"]["shown"])) == (
        25,
        20,
    )
    shown = groups["command-not-json"]["shown"][0]
    assert (shown["key"], shown["source"]) == (CONTROL, "protocol.md#commands")
    assert shown["wrong"] == "1 条命令中有 1 条不是 JSON 对象：reload"
    assert shown["contract"]
    assert shown["remedy"]
    assert told["keys"]["foreign"] == 1
    assert told["keys"]["seen"] == 28


def test_one_project(own: DevServer, client: Redis, capsys: Any) -> None:
    """The others are left out."""
    spoil(client)
    client.set("库存系统_项目状态", "?")
    assert run(own, "--project", "库存系统") == 3
    out, _ = capsys.readouterr()
    assert out.splitlines()[0].split("\t")[1:3] == [
        "status-unknown", "库存系统_项目状态"
    ]  # fmt: skip
    assert "订单系统" not in out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["doctor", "--redis", "redis://127.0.0.1:1/0"], 4),
        (["doctor", "--redis", "http://nirgends"], 2),
        (["doctor", "--project", " x", "--redis", "redis://127.0.0.1:1/0"], 2),
        (["doctor", "--nonsense"], 2),
    ],
    ids=["away", "url", "name", "option"],
)
def test_what_goes_wrong_has_its_exit_code(
    words: list[str], code: int, capsys: Any
) -> None:
    """A sentence and no traceback."""
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("language", ["zh", "en"])
def test_at_a_terminal(
    columns: int, language: str, own: DevServer, client: Redis
) -> None:
    """Within its width, with hostile text made visible; nothing is obeyed."""
    spoil(client)
    for number, text in enumerate(HOSTILE_TEXTS.values()):
        client.set(f"{text}_{number}_项目状态", text)
        client.rpush(f"{number}_项目控制台", text)
    words = ["doctor", "--redis", own.url, "--lang", language]
    ran = show(*words, columns=columns, NO_COLOR="1", TERM="dumb")
    shown = ran.text
    assert ran.code == 3
    lines = [
        line.rpartition("\r")[2] for line in shown.replace("\r\n", "\n").split("\n")
    ]
    assert all(line.isprintable() for line in lines)
    assert max(map(count_columns, lines)) <= columns
    assert CONTROL in shown
    assert "wrong-type" in shown


def test_the_catalogue_has_three_texts_for_every_rule() -> None:
    """And none of a rule that is gone."""
    english = load_texts("doctor", "en")
    codes = (
        {rule.code for rule in KEY_RULES}
        | {rule.code for rule in SERVER_RULES}
        | OTHERS
    )
    parts = ("wrong", "contract", "remedy")
    of_rules = {name for name in english if name.rpartition("_")[2] in parts}
    assert of_rules == {f"{code}_{part}" for code in codes for part in parts}
