"""``bls-agent runs``: which there are, and what happens in one, for people and programs."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio.to_thread
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.cli.commands.runs import (
    RUNS,
    STATE_STYLES,
    count_runs,
    for_people,
    for_pipe,
    is_well,
    run_cells,
    text_of,
)
from bls_agent.ops.terminal import visible_lines
from bls_agent.ops.texts import load_texts
from bls_agent.runs import (
    EventStore,
    Gap,
    GapReason,
    RunList,
    RunState,
    RunSummary,
    StreamEvent,
    WriterLost,
)
from bls_agent.runs.reading import RunKeys
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.harness import next_millisecond
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import (
    SGR,
    live_table,
    obeyed,
    show,
    start_piped,
)

TEXTS = load_texts("cli", "en")
SOURCE = {"agent_id": "a-1", "agent_name": "分析师"}


def event(name: str = "llm.stream", number: int = 1, /, **data: Any) -> StreamEvent:
    """An event as a follower gives it."""
    category, _, action = name.partition(".")
    fields: list[bytes] = [
        b"timestamp", b"2026-01-01T00:00:00.123Z", b"sequence", b"%d" % number,
        b"source_agent_name", "分析师".encode(), b"event_category", category.encode(),
        b"event_action", action.encode(), b"data", orjson.dumps(data),
    ]  # fmt: skip
    return StreamEvent.decode(7, b"%d-0" % number, fields)


RUN = RunSummary(
    7, RunState.FAILED, 12, 12, "1000-0", "61000-0", 3_600.0, "分析", "坏", None, "a.b"
)


# --- in words


def test_the_cells() -> None:
    """In words and ages for people; whole times and plain words for programs."""
    assert [*run_cells(RUN, TEXTS, 125.0)] == [*RUNS.fields]
    cells = [*run_cells(RUN, TEXTS, 125.0).values()]
    assert cells[:4] == ["7", ("failed", "bold red"), "12", "1m04s"]
    assert cells[5:] == ["1h00m", "a.b", "分析: 坏"]
    cells = [*run_cells(RUN, TEXTS, 125.0, people=False).values()]
    assert cells == [
        "7", ("failed", "bold red"), "12", "1970-01-01T00:01:01.000Z",
        "1970-01-01T00:00:01.000Z", "3600", "a.b", "分析: 坏",
    ]  # fmt: skip
    odd = RunSummary(8, RunState.OPEN, 1, 0, "9" * 20 + "-0", "9" * 20 + "-0")
    shown = run_cells(odd, TEXTS, 0.0)
    assert [shown[name] for name in ("age", "started", "ttl")] == ["-", "-", "-"]
    assert RUNS.fitting(20) == ["id", "state", "age"]
    assert RUNS.fitting(200) == [*RUNS.fields]


def test_every_state_has_a_word_and_a_look() -> None:
    """And only who has lost its writer is not well."""
    assert STATE_STYLES.keys() == set(RunState)
    assert {f"run_state_{state}" for state in RunState} <= TEXTS.keys()
    assert {f"run_gap_{reason}" for reason in GapReason} <= TEXTS.keys()
    unwell = [s for s in RunState if not is_well(RunSummary(1, s, 1))]
    assert unwell == [RunState.LOST]
    found = RunList([RUN, RUN], 5, {})
    assert count_runs(found, TEXTS).endswith("2 failed · 3 more: see --limit")


def test_the_lines() -> None:
    """One for each event, gap and loss; data as JSON in which nothing is obeyed."""
    line = "".join(
        cell if isinstance(cell, str) else cell[0]
        for cell in for_people(event("a.b", 3, x="\x1b\n"), TEXTS)
    )
    assert line.endswith('   3 a.b 分析师  {"x":"\\u001b\\n"}')
    gap = Gap(7, GapReason.TRIMMED, "1-0", "5-0", 3)
    assert for_people(gap, TEXTS) == [
        ("── events missing here: 3 (trimmed away) ──", "yellow")
    ]
    unknown = for_people(Gap(7, GapReason.LOST, "1-0"), TEXTS)[0][0]
    assert "events are missing here: the server" in unknown
    assert "writer has stopped" in for_people(WriterLost(7, "1-0"), TEXTS)[0][0]
    assert for_pipe(event("a.b", 3, x=1)) == [
        "3-0", "2026-01-01T00:00:00.123Z", "3", "分析师", "a.b", '{"x":1}',
    ]  # fmt: skip
    assert for_pipe(gap)[0::4] == ["1-0", "gap"]
    assert for_pipe(WriterLost(7, "9-0"))[0::4] == ["9-0", "writer_lost"]


def test_streamed_text() -> None:
    """Whatever its field is called; its lines stay, and nothing else is obeyed."""
    for name in ("content", "delta", "text", "token", "chunk"):
        assert text_of(event(**{name: "市场"})) == "市场"
    assert text_of(event(content=1, text="x")) == "x"
    assert text_of(event(content=["x"])) is None
    assert text_of(event("llm.completed", content="x")) is None
    assert visible_lines("a\r\nb\x1b[2J\u202e") == "a\nb\\x1b[2J\\u202e"


# --- the list


async def plant(store: EventStore) -> None:
    """A run that has failed, and one that has no end."""
    await store.add(1, "lifecycle", "started", {"task": "分析市场数据"}, SOURCE)
    for word in ("市场 ", "安静\n", "ok"):
        await store.add(1, "llm", "stream", {"content": word}, SOURCE)
    await store.add(1, "lifecycle", "failed", {"error": {"message": "坏"}})
    await store.add(1, "system", "close")
    await next_millisecond()
    await store.add(2, "a", "b")


async def test_exit_codes(bls: Bls, own_server: DevServer, admin: Redis) -> None:
    """0 for no run and for any; 3 if one has lost its writer; 2 and 4 as everywhere."""
    url = own_server.url
    ran = await bls("runs", "list", url=url)
    assert (ran.code, ran.out) == (0, b"")
    assert "No run" in ran.said
    async with EventStore(url) as store:
        await plant(store)
    ran = await bls("runs", "list", url=url)
    lines = [line.split("\t") for line in ran.text.splitlines()]
    assert ran.code == 0
    assert [line[:3] for line in lines] == [["2", "open", "1"], ["1", "failed", "6"]]
    assert lines[1][-1] == "分析市场数据: 坏"
    again = await bls("runs", url=url)
    assert [line.split("\t")[:3] for line in again.text.splitlines()] == [
        line[:3] for line in lines
    ]
    assert (await bls("runs", "list", "-n", "1", url=url)).text.count("\n") == 1
    await admin.hset(RunKeys(2).books, "owner", "dead")
    await admin.set("run:x:events", "")
    ran = await bls("runs", "list", "--json", url=url)
    assert ran.code == 3
    assert "1 whose id is no number" in ran.said
    told = [orjson.loads(line) for line in ran.out.splitlines()]
    assert [(one["run_id"], one["state"], one["healthy"]) for one in told] == [
        (2, "lost", False),
        (1, "failed", True),
    ]
    for words in (["-n", "0"], ["-n", "10001"]):
        assert (await bls("runs", "list", *words, url=url)).code == 2
    own_server.kill()
    assert (await bls("runs", "list", url=url)).code == 4


async def test_a_live_table(own_server: DevServer) -> None:
    """It begins with nothing, follows what comes, and tells of outages."""
    with live_table("runs", "list", "--watch", url=own_server.url) as shown:
        shown.until("共 0 个运行")
        async with EventStore(own_server.url) as store:
            await plant(store)
            shown.until("共 2 个运行；所列中 0 个进行中，0 个失联，1 个失败")
        shown.until_back(own_server, "共 2 个运行")


# --- following


async def test_a_run_in_a_pipe(bls: Bls, own_server: DevServer) -> None:
    """Line by line, from any place, until its end; then 0."""
    url = own_server.url
    async with EventStore(url) as store:
        await plant(store)
        events = await store.get_events(1)
    ran = await bls("runs", "follow", "1", url=url)
    assert (ran.code, ran.said.strip()) == (0, "The run has ended.")
    lines = [line.split("\t") for line in ran.text.splitlines()]
    assert [line[0] for line in lines] == [one.id for one in events]
    assert [line[2] for line in lines] == list("123456")
    assert lines[1][4:] == ["llm.stream", '{"content":"市场 "}']
    ran = await bls("runs", "follow", "1", "--from", events[3].id, "--json", url=url)
    told = [orjson.loads(line) for line in ran.out.splitlines()]
    assert told == [one.to_dict() for one in events[4:]]
    for place in ("now", events[-1].id):  # nothing is to come, and the run is there
        ran = await bls("runs", "follow", "1", "--from", place, url=url)
        assert (ran.code, ran.text) == (0, "")
        assert ran.said.strip() == "The run has ended."
    for words in (["x"], ["-1"], ["1", "--from", "y"], [str(2**63)]):
        assert (await bls("runs", "follow", *words, url=url)).code == 2
    ran = await bls("runs", "follow", "1", "--from", "y", url=url)
    assert "--from y" in ran.said


async def test_what_is_no_run(bls: Bls, own_server: DevServer, admin: Redis) -> None:
    """A key of another type is told, and no page of a traceback."""
    await admin.rpush("run:5:events", "x")
    ran = await bls("runs", "follow", "5", url=own_server.url)
    assert ran.code == 1
    assert "run:5:events" in ran.said
    ran = await bls("runs", "follow", "1", "--from", "now", url="redis://127.0.0.1:1")
    assert ran.code == 4


async def test_at_a_terminal(own_server: DevServer) -> None:
    """Streamed text runs on below a line that says whose it is; --raw keeps lines."""
    async with EventStore(own_server.url) as store:
        await plant(store)
    env: dict[str, Any] = {"BLS_REDIS_URL": own_server.url}
    run = partial(show, "runs", "follow", "1", columns=100, **env)
    ran = await anyio.to_thread.run_sync(run)
    plain = SGR.sub("", ran.out.decode()).replace("\r\n", "\n")
    assert "llm.stream 分析师\n市场 安静\nok\n" in plain
    assert plain.count("llm.stream") == 1
    run = partial(show, "runs", "follow", "1", "--raw", columns=100, **env)
    ran = await anyio.to_thread.run_sync(run)
    assert ran.out.count(b"llm.stream") == 3


async def test_a_run_that_is_awaited(own_server: DevServer) -> None:
    """It is told that there is none yet, an outage is told once, and nothing is lost."""
    process = start_piped(
        "runs", "follow", "3", "--json", "--redis", own_server.url, "--lang", "en"
    )
    assert process.stdout is not None
    assert process.stderr is not None
    wait = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
    say, read = (
        partial(wait, one.readline) for one in (process.stderr, process.stdout)
    )
    with anyio.fail_after(60):
        assert b"no run 3 yet" in await say()
        async with EventStore(own_server.url) as store:
            await store.add(3, "a", "b", {"n": 1})
            assert orjson.loads(await read())["data"] == {"n": 1}
            own_server.kill()
            assert b"does not answer" in await say()
            own_server.restart()
            assert b"answers again" in await say()
            await store.add(3, "a", "b", {"n": 2})
            assert orjson.loads(await read())["data"] == {"n": 2}
            await store.delete(3)
        assert b"no longer exists" in await say() or b"no longer exists" in await say()
        assert process.wait(20) == 0


async def plant_hostile(store: EventStore, admin: Redis) -> None:
    """Every text in every place that an event has."""
    for number, text in enumerate(HOSTILE_TEXTS.values()):
        fields: dict[Any, Any] = dict.fromkeys(
            (
                "timestamp", "sequence", "source_agent_name", "event_category",
                "event_action",
            ),
            text.encode("utf-8", "surrogatepass"),
        )  # fmt: skip
        data = orjson.dumps({"task": text, text: [text], "error": text})
        await admin.xadd(f"run:{number}:events", fields | {"data": data})
        await admin.xadd("run:900:events", fields | {"data": data})
        await store.add(900, "llm", "stream", {"content": text}, {"agent_name": "x"})
        await store.add(900, "lifecycle", "failed", {"error": text})
    await store.add(900, "system", "close")


@pytest.mark.parametrize(("columns", "encoding"), [(20, "ascii"), (120, "utf-8")])
async def test_nothing_is_obeyed(
    own_server: DevServer, admin: Redis, columns: int, encoding: str
) -> None:
    """No control character, no markup, in the list and in the timeline."""
    async with EventStore(own_server.url) as store:
        await plant_hostile(store, admin)
    env = {"BLS_REDIS_URL": own_server.url, "BLS_LANG": "zh"}
    for words in (["runs", "list"], ["runs", "follow", "900"]):
        run = partial(show, *words, columns=columns, encoding=encoding, **env)
        ran = await anyio.to_thread.run_sync(run)
        shown = ran.out.decode(encoding)
        assert ran.code == 0
        assert obeyed(shown) == set(), words
        assert "Traceback" not in shown


async def test_one_event_is_one_line(
    bls: Bls, own_server: DevServer, admin: Redis
) -> None:
    """In a pipe, with as many fields on each."""
    async with EventStore(own_server.url) as store:
        await plant_hostile(store, admin)
    ran = await bls("runs", "list", url=own_server.url)
    lines = ran.text.splitlines()
    assert len(lines) == len(HOSTILE_TEXTS) + 1
    assert {line.count("\t") for line in lines} == {len(RUNS.fields) - 1}
    ran = await bls("runs", "follow", "900", url=own_server.url)
    lines = ran.text.splitlines()
    assert len(lines) == 3 * len(HOSTILE_TEXTS) + 1
    assert {line.count("\t") for line in lines} == {5}
    assert obeyed(ran.text.replace("\t", "")) == set()
