"""Text that comes from Redis is shown, never obeyed; and every terminal can show it."""

from __future__ import annotations

import unicodedata
from functools import partial
from typing import Any

import anyio.to_thread
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.core.keys import PROJECT_STATUS
from bls_agent.devserver import DevServer
from tests.corpus.hostile_texts import HOSTILE_TEXTS, TERMINAL
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import SGR, Ran, obeyed, run_piped, show

NAMES = [text for text in HOSTILE_TEXTS.values() if len(text.encode()) < 400]


async def plant(redis: Redis) -> None:
    """Every text as a name, a status, a message, metadata; in an error, too."""
    for text in NAMES:
        name = text.encode("utf-8", "surrogatepass")
        await redis.set(name + "_项目状态".encode(), "故障")
        await redis.rpush(
            name + "_项目控制台".encode(),
            orjson.dumps({"level": "error", "message": text}),
        )
    for number, text in enumerate(HOSTILE_TEXTS.values()):
        await redis.set(f"状态{number}_项目状态", text)
        entry = {
            "timestamp": text,
            "level": text,
            "message": text,
            "metadata": {text: text, "结": {text: [text]}},
        }
        await redis.rpush("订单系统_项目控制台", orjson.dumps(entry))
        await redis.rpush("订单系统_项目控制台", text)
        outcome = {
            "level": "warn", "message": text,
            "metadata": {"command": text, "commandId": text, "outcome": "failed", "durationMs": 1, "error": {text: text}},
        }  # fmt: skip
        await redis.rpush("订单系统_项目控制台", orjson.dumps(outcome))


async def at_terminal(
    *words: str, columns: int = 80, encoding: str = "utf-8", **env: Any
) -> Ran:
    run = partial(show, *words, columns=columns, encoding=encoding, **env)
    return await anyio.to_thread.run_sync(run)


def shows(shown: str, text: str) -> bool:
    """Whether something of a text is shown: its longest run of plain letters."""
    plain = "".join(x if x.isprintable() else "\0" for x in text)
    return max(plain.split("\0"), key=len)[:12] in shown


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
async def test_nothing_is_obeyed_by_a_terminal(
    own_server: DevServer, admin: Redis, columns: int
) -> None:
    """No command lets a control character, an escape or a bidi mark through."""
    await plant(admin)
    env: dict[str, Any] = {"BLS_REDIS_URL": own_server.url}
    clear = TERMINAL["clear-screen"]
    for words in (
        ["projects"], ["logs", "订单系统", "-n", "1000"], ["top", "--once"],
        ["status", "状态0"], ["logs", clear.replace("\x1b", "x")], ["projects", "--json"],
        ["logs", "订单系统", "--json"], ["keys", "explain", f"{clear}\u202e\x9b_控制"],
        ["keys", "explain", f"{clear}\u202e\x9b"],
    ):  # fmt: skip
        ran = await at_terminal(*words, columns=columns, **env)
        shown = ran.out.decode("utf-8")
        assert obeyed(shown) == set(), words
        assert "Traceback" not in shown
        if columns == 200 and words in (
            ["projects"],
            ["logs", "订单系统", "-n", "1000"],
        ):
            assert [t for t in NAMES if not shows(SGR.sub("", shown), t)] == [], words


async def test_a_record_is_a_line(
    bls: Bls, own_server: DevServer, admin: Redis
) -> None:
    """In a pipe as many lines as records, and four fields on each."""
    await plant(admin)
    ran = await bls("logs", "订单系统", "-n", "1000", url=own_server.url)
    lines = ran.out.split(b"\n")[:-1]
    assert len(lines) == 3 * len(HOSTILE_TEXTS)
    assert {line.count(b"\t") for line in lines} == {3}
    assert obeyed(ran.text.replace("\t", "")) == set()
    for line in lines:
        assert isinstance(orjson.loads(line.split(b"\t")[3] or b"{}"), dict)
    ran = await bls("logs", "订单系统", "-n", "1000", "--json", url=own_server.url)
    texts = {orjson.loads(line)["message"] for line in ran.out.splitlines()}
    assert texts == set(HOSTILE_TEXTS.values())  # the values are not changed


async def test_names_and_commands_of_the_user(
    bls: Bls, redis_url: str, project: str
) -> None:
    """Hostile commands and arguments come back from an agent as text."""
    async with ProjectAgent(project, redis=redis_url) as agent:

        @agent.command
        async def echo(text: str) -> str:
            return text

        await agent.ready(5)
        for text in HOSTILE_TEXTS.values():
            if "\0" in text:
                continue
            ran = await bls("call", project, text, "--arg", f"a={text}")
            assert ran.code in (1, 2)
            assert obeyed(ran.text.replace("\t", "") + ran.said) == set()
            args = orjson.dumps({"text": text}).decode()
            ran = await bls("call", project, "echo", "--args", args)
            assert ran.code == 0
            assert orjson.loads(ran.text.split("\t")[2]) == text
            assert obeyed(ran.text.replace("\t", "")) == set()


@pytest.mark.parametrize("encoding", ["gbk", "cp936", "ascii", "latin-1", "utf-8"])
async def test_terminals_that_know_less(
    own_server: DevServer, admin: Redis, encoding: str
) -> None:
    """Whatever the encoding: no failure; what it cannot show stands there as an escape."""
    await plant(admin)
    env: dict[str, Any] = {"BLS_REDIS_URL": own_server.url, "BLS_LANG": "zh"}
    for words in (
        ["projects"],
        ["top", "--once"],
        ["status", "没有"],
        ["--help"],
        ["status", "--help"],
    ):
        ran = await at_terminal(*words, encoding=encoding, **env)
        shown = ran.out.decode(encoding)
        assert "Traceback" not in shown
        assert shown
        if encoding in ("gbk", "cp936", "utf-8") and words == ["projects"]:
            assert "故障" in shown
    ran = await at_terminal("projects", "--json", encoding=encoding, **env)
    told = [orjson.loads(line) for line in ran.out.decode(encoding).splitlines()]
    assert set(NAMES) <= {view["projectName"] for view in told}


def test_pipes_in_another_encoding(own_server: DevServer) -> None:
    """Words are written in it; JSON is UTF-8, whatever the words are in."""
    encoding = "gbk"
    env: dict[str, Any] = {
        "BLS_REDIS_URL": own_server.url,
        "PYTHONIOENCODING": encoding,
    }
    assert run_piped("send", "订单系统", "x", "--force", BLS_LANG="zh", **env).code == 0
    ran = run_piped("top", **env)
    assert ran.out.startswith("订单系统\t".encode(encoding, "backslashreplace"))
    ran = run_piped("top", "--json", **env)
    assert orjson.loads(ran.out)["projectName"] == "订单系统"


async def test_colours(own_server: DevServer, admin: Redis) -> None:
    """A terminal gets them, unless it or its user says no; a pipe if it is asked for."""
    await admin.set(PROJECT_STATUS.build(project="订单系统"), "故障")
    url: dict[str, Any] = {"BLS_REDIS_URL": own_server.url}
    assert b"\x1b[1;31m" in (await at_terminal("projects", **url)).out
    shown = await at_terminal("projects", **url, NO_COLOR="")
    assert b"\x1b[1;31m" in shown.out
    settings: list[dict[str, Any]] = [
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1"},
    ]
    for env in settings:
        assert b"\x1b" not in (await at_terminal("projects", **url, **env)).out
    assert b"\x1b" not in (await at_terminal("top", **url, TERM="dumb")).out
    assert b"\x1b" not in run_piped("projects", **url).out
    assert b"\x1b[1;31m" in run_piped("projects", **url, FORCE_COLOR="1").out


async def test_keys_that_are_no_text(
    bls: Bls, own_server: DevServer, admin: Redis
) -> None:
    """Names in GBK are listed, as escapes, and do not end a command."""
    await admin.set("订单系统_项目状态".encode(), "在线")
    name = "订单".encode("gbk")
    await admin.set(name + "_项目状态".encode(), "在线")
    ran = await bls("projects", url=own_server.url)
    assert "\\udcb6\\udca9" in ran.text
    for words in (["top"], ["projects", "--json"], ["top", "--json"]):
        ran = await bls(*words, url=own_server.url)
        assert ran.code == 0
        assert "udcb6" in ran.text


def test_what_is_printable_is_left_alone() -> None:
    """The test's own measure: Chinese, emoji and accents are no controls."""
    assert obeyed("订单 😀 é\r\n") == set()
    assert obeyed("\u202e") == {"\u202e"}
    assert unicodedata.category("\x9b") == "Cc"
