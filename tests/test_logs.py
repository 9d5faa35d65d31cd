"""The console list: bytes, order, cap, size, whatever the metadata holds."""

from __future__ import annotations

import re
import threading
import time
from collections import UserDict
from datetime import datetime
from typing import Any, cast

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import Level, LogEntry, ProjectAgent, Settings
from bls_agent.project.log.log import LogStream
from tests.harness import eventually, records

FORM = re.compile(
    rb'\{"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z","level":"(info|warn|error|debug)"'
    rb',"message":"[^"]*"(,"metadata":\{.*\})?\}'
)


async def test_bytes_of_the_contract(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Field order, lower-case level, Z timestamp with milliseconds, UTF-8 as is."""
    agent = ProjectAgent(project, redis=redis_url, instance="节点-1")
    async with agent:
        agent.log.debug("调试")
        agent.log.info("连接成功", module="redis", host="127.0.0.1")
        agent.log.warn("慢")
        agent.log.error("坏了")
        assert await agent.flush()
    found = await redis.lrange(f"{project}_项目控制台", 0, -1)
    items = cast("list[bytes]", found)
    assert all(FORM.fullmatch(item) for item in items)
    head, _, tail = items[1].partition(b'"level"')
    assert head.startswith(b'{"timestamp":"20')
    assert '"message":"连接成功"'.encode() in tail
    assert tail.endswith(
        '"metadata":{"agent":"节点-1#2","module":"redis","host":"127.0.0.1"}}'.encode()
    )
    assert datetime.fromisoformat(orjson.loads(items[0])["timestamp"]).tzinfo


class Talkative:
    """Its text is told in the agent's own log, too."""

    def __init__(self, agent: ProjectAgent) -> None:
        self.agent = agent

    def __str__(self) -> str:
        self.agent.log.info("%s", self)
        return "talkative"


FILLED: dict[str, tuple[str, tuple[object, ...], str, dict[str, object]]] = {
    "values": ("%s 还有 %d 件", ("茶", 3), "茶 还有 3 件", {}),
    "names": ("%(n)d left", ({"n": 3},), "3 left", {}),
    "a lone dictionary": ("got %s", ({},), "got {}", {}),
    "no values": ("100 %", (), "100 %", {}),
    "too many": ("paid", (1, 2), "paid", {"arguments": [1, 2]}),
    "too few": ("%d of %d", (1,), "%d of %d", {"arguments": [1]}),
    "of another type": ("%d", ("x",), "%d", {"arguments": ["x"]}),
    "a secret": ("password=%s", ("hunter2",), "password=[redacted]", {}),
}


@pytest.mark.parametrize("name", FILLED)
async def test_values_are_put_into_the_text(
    redis_url: str, redis: Redis, project: str, name: str
) -> None:
    """As in logging; values that do not fit stand beside it, and nothing raises."""
    given, values, text, beside = FILLED[name]
    async with ProjectAgent(project, redis=redis_url, record_ids=False) as agent:
        log = agent.log
        for write in (log.debug, log.info, log.warn, log.warning, log.error):
            write(given, *values, order=7)
        log.exception(given, *values, order=7)  # noqa: LOG004 - none is handled
        log.critical(given, *values, order=7)
        log.bind(self=1).info("bound to a word of ours")
        assert await agent.flush()
    *found, critical, _ = await records(redis, project)
    levels = [record["level"] for record in found]
    assert levels == ["debug", "info", "warn", "warn", "error", "error"]
    for record in found:
        assert (record["message"], record["metadata"]) == (text, {**beside, "order": 7})
    assert (critical["level"], critical["metadata"]["severity"]) == (
        "error",
        "CRITICAL",
    )


async def test_a_value_that_logs(redis_url: str, redis: Redis, project: str) -> None:
    """A value whose text logs itself is served a few times, and does not recurse."""
    async with ProjectAgent(project, redis=redis_url) as agent:
        agent.log.info("%s", Talkative(agent))
        assert await agent.flush()
        assert agent.stats().logs_not_encoded == {"recursion": 1}
    assert [r["message"] for r in await records(redis, project)] == ["talkative"] * 3


async def test_without_ids(redis_url: str, redis: Redis, project: str) -> None:
    """record_ids=False leaves metadata to the host alone."""
    async with ProjectAgent(project, redis=redis_url, record_ids=False) as agent:
        agent.log.info("plain")
        agent.log.info("own", agent="mine")
        await agent.flush()
    plain, own = await records(redis, project)
    assert "metadata" not in plain
    assert own["metadata"] == {"agent": "mine"}


async def test_order_from_many_threads(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Each thread's records stand in its order; ids grow by one without a hole."""
    agent = ProjectAgent(
        project, redis=redis_url, log_list_limit=100_000, log_buffer=100_000
    )

    def log(t: int) -> None:
        for i in range(500):
            agent.log.info("x", t=t, i=i)

    async with agent:
        threads = [threading.Thread(target=log, args=(t,)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert await agent.flush(10)
    found = await records(redis, project)
    for t in range(8):
        assert [r["metadata"]["i"] for r in found if r["metadata"]["t"] == t] == list(
            range(500)
        )
    ids = [int(r["metadata"]["agent"].rpartition("#")[2]) for r in found]
    assert ids == list(range(1, 4_001))


async def test_the_list_is_capped(redis_url: str, redis: Redis, project: str) -> None:
    """The list keeps the newest log_list_limit records."""
    agent = ProjectAgent(project, redis=redis_url, log_list_limit=100)
    async with agent:
        for i in range(1_000):
            agent.log.info("x", i=i)
        await agent.flush()
        assert await redis.llen(f"{project}_项目控制台") == 100
    assert (await records(redis, project))[-1]["metadata"]["i"] == 999


class Nasty:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


def nasty_values() -> dict[str, object]:
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    return {
        "cycle": cycle,
        "deep": deep,
        "raises": Nasty(),
        "raises_inside": [{"x": Nasty()}],
        "bytes": b"\xff\x00",
        "nan": float("nan"),
        "surrogate": "\ud800",
        "surrogate_key": {"\ud800": 1},
        "set": {1, 2},
        "int_keys": {1: "a", None: "b", (1, 2): "c"},
        "huge_integer": 10**100,
        "very_huge_integer": 10**100_000,
        "ten_megabytes": "x" * 10_000_000,
        "controls": "\x00" * 60_000,
        "many": {str(i): "y" * 100 for i in range(10_000)},
        "wide": [["z" * 50] * 100] * 100,
        "exception": ValueError("订单"),
        "type": int,
        "object": object(),
    }


@pytest.mark.parametrize("name", list(nasty_values()))
async def test_whatever_the_metadata_holds(
    redis_url: str, redis: Redis, project: str, name: str
) -> None:
    """Nothing raises; each record is valid JSON under 65,536 bytes and says if cut."""
    value = nasty_values()[name]
    async with ProjectAgent(
        project, redis=redis_url, log_buffer_bytes=64 << 20
    ) as agent:
        agent.log.info("message", before=1, value=value)
        agent.log.info(value)
        agent.log.bind(value=value).error("bound")
        assert await agent.flush()
        assert not agent.stats().logs_not_encoded
    items = await redis.lrange(f"{project}_项目控制台", 0, -1)
    assert len(items) == 3
    for item in items:
        assert len(item) < 65_536
        told = orjson.loads(item)
        assert list(told)[:3] == ["timestamp", "level", "message"]
        assert told["metadata"]["agent"]
    first = orjson.loads(items[0])["metadata"]
    big = name in ("ten_megabytes", "controls", "many", "wide")
    assert ("truncated" in first) is big
    assert first["before"] == 1


class Unreadable(UserDict[str, object]):
    """A mapping that raises when it is read."""

    def __getitem__(self, name: str) -> object:
        raise ValueError(name)


async def test_metadata_of_another_library_that_is_no_mapping(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The record is written all the same, also if other fields are added to it."""
    odd: list[Any] = [None, ["a"], Unreadable({"order": 7})]
    async with ProjectAgent(project, redis=redis_url) as agent:
        for log in (agent.log, agent.log.bind(shop="茶")):
            for metadata in odd:
                log.write("info", "x", metadata)
        assert await agent.flush()
        assert not agent.stats().logs_not_encoded
    found = [record["metadata"] for record in await records(redis, project)]
    assert ["metadata" in one for one in found] == [False, True, True] * 2
    assert [one.get("shop") for one in found] == [None] * 3 + ["茶"] * 3


async def test_a_repr_that_logs(redis_url: str, redis: Redis, project: str) -> None:
    """An object whose repr logs itself neither recurses for ever nor hangs."""
    agent = ProjectAgent(project, redis=redis_url)

    class Chatty:
        def __repr__(self) -> str:
            agent.log.info("inside repr", me=self)
            return "chatty"

    async with agent:
        agent.log.info("outside", me=Chatty())
        await agent.flush()
        assert agent.stats().logs_not_encoded == {"recursion": 1}
    assert (await records(redis, project))[-1]["message"] == "outside"


async def test_exceptions_are_told(redis_url: str, redis: Redis, project: str) -> None:
    """log.exception carries type, message and traceback, also of a cyclic cause."""
    async with ProjectAgent(project, redis=redis_url) as agent:
        try:
            error = ValueError("库存不足")
            error.__cause__ = error
            raise error
        except ValueError:
            agent.log.exception("下单失败", order=7)
        await agent.flush()
    (record,) = await records(redis, project)
    assert record["level"] == "error"
    assert record["metadata"]["order"] == 7
    assert record["metadata"]["exception"]["type"] == "ValueError"
    assert "库存不足" in record["metadata"]["exception"]["traceback"]


async def test_the_level_is_a_threshold(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Records below log_level never leave the process."""
    async with ProjectAgent(project, redis=redis_url, log_level="warn") as agent:
        agent.log.info("no")
        agent.log.warn("yes")
        await agent.flush()
        assert agent.stats().logs_accepted == 1
    assert [r["message"] for r in await records(redis, project)] == ["yes"]


def test_the_level_may_be_reverted_while_it_is_set() -> None:
    """Another thread that logs ends the time of the former level at this moment."""

    class Reverted(LogStream):
        reads = 0

        @property
        def _revert(self) -> tuple[float, Level] | None:
            self.reads += 1
            return (0.0, Level.INFO) if self.reads == 1 else None

        @_revert.setter
        def _revert(self, value: tuple[float, Level] | None) -> None:
            self.kept = value

    stream = Reverted(time.time, max_records=1, max_bytes=100_000)
    stream.set_level(Level.ERROR, 60)
    assert stream.kept is not None
    assert stream.kept[1] is Level.INFO


async def test_another_type_is_left_alone(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A string under the console key stays; records wait, the agent lives."""
    key = f"{project}_项目控制台"
    await redis.set(key, "somebody's data")
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=0)
    async with agent:
        await agent.ready(5)
        agent.log.info("waits")
        assert not await agent.flush(0.3)
        assert agent.stats().logs_queued == 1
    assert await redis.get(key) == b"somebody's data"


async def test_records_that_were_refused_are_tried_at_the_end(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A refused batch waits half a minute; the end of the agent tries it once more."""
    await redis.set(f"{project}_项目控制台", "theirs")
    agent = ProjectAgent(project, redis=redis_url)
    async with agent:
        agent.log.info("refused at first")

        async def is_refused() -> bool:
            return agent._state.stream.delivery.refused

        await eventually(is_refused)
        await redis.delete(f"{project}_项目控制台")
    (record,) = await records(redis, project)
    assert record["message"] == "refused at first"


async def test_a_flush_tries_what_was_refused(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Each flush is one more try, which ends it as soon as it was refused again."""
    await redis.set(f"{project}_项目控制台", "theirs")
    async with ProjectAgent(project, redis=redis_url) as agent:
        agent.log.info("refused at first")
        assert not await agent.flush(10)
        assert not await agent.flush(10)
        await redis.delete(f"{project}_项目控制台")
        assert await agent.flush(10)


async def test_what_is_left_goes_out_when_it_opens_again(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Records put while the agent is closed are shipped at the next opening."""
    agent = ProjectAgent(project, redis=redis_url)
    agent.log.info("before", n=1)
    async with agent:
        await agent.flush()
    agent.log.info("between", n=2)
    async with agent:
        await agent.flush()
    assert [r["metadata"]["n"] for r in await records(redis, project)] == [1, 2]


def test_reading_is_tolerant() -> None:
    """Other spellings, unknown fields and what is no JSON are all shown."""
    entry = LogEntry.decode(
        '{"id":7,"level":"WARNING","message":"慢","timestamp":null}'.encode()
    )
    assert (entry.level, entry.message, entry.timestamp) == (Level.WARN, "慢", "")
    assert LogEntry.decode(b'{"level":"CRITICAL","message":1}').level is Level.ERROR
    broken = LogEntry.decode(b"\xff not json")
    assert (broken.valid, broken.message) == (False, "\\xff not json")


def test_logging_costs_little_when_closed() -> None:
    """A log call on an agent that was never opened is kept, bounded, and silent."""
    agent = ProjectAgent("订单系统", log_buffer=10)
    for i in range(100):
        agent.log.info("x", i=i)
    stats = agent.stats()
    assert (stats.logs_queued, sum(stats.logs_dropped.values())) == (10, 90)


def test_given_settings_hold_before_the_agent_is_opened() -> None:
    """Level and bounds of the buffer."""
    quiet = ProjectAgent("订单系统", settings=Settings(log_level="warn"))
    quiet.log.info("nothing")
    assert quiet.stats().logs_accepted == 0
    small = ProjectAgent("订单系统", settings=Settings(log_buffer=10))
    for number in range(20):
        small.log.info(str(number))
    assert small.stats().logs_queued == 10
