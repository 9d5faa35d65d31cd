"""The live table: what stands in it, in which order, and at a terminal."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from bls_agent import LogEntry, Status
from bls_agent.core.codec import format_timestamp
from bls_agent.devserver import DevServer
from bls_agent.ops.cli.commands.projects import (
    TOP,
    arrange,
    describe_view,
    freshness,
    is_healthy,
    project_cells,
    summary,
)
from bls_agent.ops.cli.output import span
from bls_agent.ops.fleet import Presence, ProjectView
from bls_agent.ops.texts import load_texts
from bls_agent.project.messages import IntakeState, Level
from bls_agent.project.status.intake import IntakeReport
from tests.harness import url_with_rights
from tests.ops.cli.terminal import Seen, live_table, read_all, start_at_terminal

TEXTS = load_texts("cli", "en")
PAUSED = {
    name: IntakeReport(state=IntakeState(state), since=1.0, in_hand=0)
    for name, state in (("一", "paused"), ("二", "paused"), ("三", "drained"))
}


def view(project: str, status: Status | None = None, **more: Any) -> ProjectView:
    presence = Presence.FRESH if status else Presence.STALE
    more = {"presence": presence, **more}
    return ProjectView(project=project, status=status, **more)


def test_the_worst_comes_first() -> None:
    """As on the wallboard: bad statuses, dead letters, errors, the others; then by queue, name."""
    views = [
        view("离", Status.OFFLINE), view("乙", Status.ONLINE), view("甲", Status.ONLINE), view("在", Status.ONLINE, errors=2),
        view("无"), view("新", presence=Presence.NEVER), view("报", Status.ERROR), view("故", Status.FAULT),
        view("死", Status.ONLINE, dead_letters=1), view("等", Status.ONLINE, queue=3),
    ]  # fmt: skip
    assert [one.project for one in arrange(views)] == [*"故报死在无离等乙甲新"]
    told = "Projects: 10, with a fault or error: 2, without a status: 2"
    assert summary(views, TEXTS) == told


def test_narrow_terminals_drop_what_matters_least() -> None:
    """The name and the status stay at any width."""
    assert TOP.fitting(20) == ["project", "status"]
    assert TOP.fitting(59) == ["project", "status", "age", "queue"]
    assert TOP.fitting(200) == list(TOP.fields)


def test_the_cells() -> None:
    """Lower bounds are marked, what nobody knows is said."""
    error = LogEntry(timestamp="", level=Level.ERROR, message="坏了")
    shown = project_cells(
        view("甲", Status.FAULT, age=65.0, queue=3, dead_letters=2, intake=PAUSED, rate=0.25, records=9, errors=2, last_error=error, at_least=True),
        TEXTS,
    )  # fmt: skip
    assert [*shown] == list(TOP.fields)
    unknown = project_cells(view("丙", records=9, at_least=True), TEXTS)
    assert (unknown["rate"], unknown["errors"]) == ("?/s", ("?", ""))
    assert [*shown.values()] == [
        "甲", ("故障 fault", "bold red"), ("2 paused, drained", "yellow"), "~1m05s", ("3", "yellow"), ("2", "red"), "≥ 0.2/s", ("≥ 2", "red"), "坏了",
    ]  # fmt: skip
    other = project_cells(
        view(
            "乙", queue=None, dead_letters=None, records=None, status_text="WRONGTYPE"
        ),
        TEXTS,
    )
    assert [*other.values()] == [
        "乙",
        ("invalid: WRONGTYPE", "bold red"),
        ("", "yellow"),
        ("-", "dim"),
        "?",
        "?",
        "-",
        ("0", ""),
        "",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-1, "0s"), (0.9, "0s"), (59.9, "59s"), (60, "1m00s"), (3_599, "59m59s"), (3_600, "1h00m"), (90_000, "1d01h")],
)  # fmt: skip
def test_spans(seconds: float | None, text: str) -> None:
    """Two units at most."""
    assert span(seconds) == text


def test_freshness_in_words() -> None:
    """About, unless a refresh was seen; each presence has a sentence."""
    one = view("甲", Status.ONLINE, age=3.0, ttl=57.0)
    assert freshness(one, TEXTS) == "refreshed about 3s ago, expires in 57s"
    unknown = replace(one, age=None, ttl=3_000.0)
    assert freshness(unknown, TEXTS).startswith("expires in 50m00s; the time")
    exact = view("甲", Status.ONLINE, age=3.0, ttl=57.0, age_exact=True)
    assert freshness(exact, TEXTS) == "refreshed 3s ago, expires in 57s"
    said = {freshness(view("甲", presence=one, queue=1), TEXTS) for one in Presence}
    assert len(said) == 4
    absent = view("甲", presence=Presence.NEVER)
    assert freshness(absent, TEXTS) == "it has no key"


def test_who_is_well() -> None:
    """在线, and 离线 as a last word."""
    assert [is_healthy(view("甲", status)) for status in [*Status, None]] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert describe_view(view("甲", Status.FAULT))["healthy"] is False


async def test_at_a_terminal(own_server: DevServer, admin: Redis) -> None:
    """It follows changes and outages, more projects than lines are counted, q leaves with 0."""
    for number in range(40):
        await admin.set(f"系统{number:02}_项目状态", "在线", ex=600)
    await admin.set("a\x1b]0;x\x07_项目状态", "故障")
    with live_table("top", url=own_server.url) as shown:
        shown.until("系统00")
        shown.until("a\\x1b]0;x\\x07")
        assert "\x1b]" not in shown.text  # of all that is written nothing sets a title
        shown.until("另有")
        shown.until("41 个项目，1 个故障或报错")
        await admin.set("系统39_项目状态", "报错", ex=600)
        shown.until("系统39")
        shown.until_back(own_server, "41 个项目")


async def test_ages_grow(own_server: DevServer, admin: Redis) -> None:
    """Also while the fleet has no change to report."""
    await admin.set("甲_项目状态", "离线")
    old = format_timestamp(time.time() - 400)
    await admin.rpush("甲_项目控制台", f'{{"timestamp":"{old}","level":"info"}}')
    with live_table("top", url=own_server.url) as shown:
        ages = re.compile(r"[67]m\d\ds")
        shown.read_until(lambda text: len({*ages.findall(text)}) >= 3)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_at_a_terminal(
    own_server: DevServer, number: signal.Signals, code: int
) -> None:
    """The terminal is as it was."""
    process, user = start_at_terminal(["top"], 20, {"BLS_REDIS_URL": own_server.url})
    shown = Seen(user)
    shown.until("Projects: ")
    process.send_signal(number)
    rest = b"".join(read_all(user)).decode()
    os.close(user)
    assert process.wait(20) == code
    assert "\x1b[?1049l" in rest
    assert "Traceback" not in shown.text + rest


async def test_a_server_that_lets_nobody_in(
    own_server: DevServer, admin: Redis
) -> None:
    """The terminal is given back before it is said why; exit code 4."""
    await url_with_rights(admin, own_server, "+@all", "~*")
    url = f"redis://agent:wrong@127.0.0.1:{own_server.port}/0"
    process, user = start_at_terminal(["top"], 80, {"BLS_REDIS_URL": url})
    shown = b"".join(read_all(user)).decode()
    os.close(user)
    assert process.wait(20) == 4
    assert "password or user name" in shown.rpartition("\x1b[?1049l")[2]
    assert "Traceback" not in shown


def test_a_terminal_that_goes_away(own_server: DevServer) -> None:
    """Nothing is left running for nobody."""
    process, user = start_at_terminal(["top"], 80, {"BLS_REDIS_URL": own_server.url})
    Seen(user).until("Projects: ")
    os.close(user)
    process.wait(20)
