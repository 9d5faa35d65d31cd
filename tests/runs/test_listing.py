"""Which runs there are, and how each stands: decided, and found among other keys."""

from __future__ import annotations

import secrets
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.core.errors import (
    ConfigurationError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.devserver import DevServer
from bls_agent.runs import EventStore, RunState
from bls_agent.runs.listing import (
    RunFacts,
    summarise,
)
from bls_agent.runs.reading import RunKeys, run_id_of
from tests.harness import execute, next_millisecond
from tests.kit import FaultProxy, Rate

NO_KEY = -2


def entry(name: str, at: int = 1, /, **data: Any) -> tuple[bytes, list[bytes]]:
    """An event as Redis tells it."""
    category, _, action = name.partition(".")
    fields = [
        b"timestamp", b"2026-01-01T00:00:00.000Z", b"sequence", b"%d" % at,
        b"source_agent_name", "协调者".encode(),
        b"event_category", category.encode(), b"event_action", action.encode(),
        b"data", orjson.dumps(data),
    ]  # fmt: skip
    return b"%d-0" % (at * 1000), fields


def look(*names: str, **more: Any) -> RunFacts:
    """What Redis says of a run with such events, and nobody who writes."""
    entries = [entry(name, place) for place, name in enumerate(names, 1)]
    told: dict[str, Any] = {
        "length": len(entries),
        "ttl": 60_000,
        "first": entries[:1],
        "last": entries[::-1][:2],
        "lease": NO_KEY,
        "owner": None,
    }
    return RunFacts(**(told | more))


@pytest.mark.parametrize(
    ("names", "more", "state"),
    [
        (["lifecycle.started"], {"lease": 900, "owner": b"t"}, "running"),
        (["lifecycle.started"], {"lease": -1, "owner": b"t"}, "running"),
        (["lifecycle.started", "system.close"], {"lease": 900}, "running"),
        (["lifecycle.started", "llm.stream"], {"owner": b"t"}, "lost"),
        (["lifecycle.completed"], {"owner": b"t"}, "lost"),
        (["lifecycle.started", "llm.stream"], {}, "open"),
        ([], {}, "open"),
        ([], {"owner": b"t"}, "lost"),
        (["a.b", "lifecycle.completed", "system.close"], {}, "completed"),
        (["a.b", "lifecycle.failed", "system.close"], {"owner": b"t"}, "failed"),
        (["a.b", "lifecycle.cancelled", "system.close"], {}, "cancelled"),
        (["a.b", "lifecycle.completed"], {}, "completed"),
        (["lifecycle.failed", "a.b", "system.close"], {}, "closed"),
        (["lifecycle.completed", "a.b"], {}, "open"),
        (["lifecycle.started", "system.close"], {}, "closed"),
        (["system.close"], {}, "closed"),
        (["system.close", "llm.stream"], {}, "open"),
        (["system.close", "llm.stream"], {"closed": True}, "closed"),
        (["system.close", "llm.stream"], {"closed": True, "lease": 900}, "running"),
        (["system.close", "llm.stream"], {"closed": True, "owner": b"t"}, "lost"),
    ],
)
def test_state(names: list[str], more: dict[str, Any], state: str) -> None:
    """A living writer counts most, then the end, then whether a writer was there."""
    found = summarise(7, look(*names, **more))
    assert found is not None
    assert found.state == state
    assert found.ended == (state in ("completed", "failed", "cancelled", "closed"))


def test_summary() -> None:
    """Times by the server's clock, what it is about, and why it failed."""
    first = entry("lifecycle.started", 5, task="分析" * 300)
    failed = entry("lifecycle.failed", 9, error={"type": "E", "message": "坏" * 900})
    last = [entry("system.close", 10), failed]
    found = summarise(7, look(first=[first], last=last, length=6))
    assert found is not None
    assert (found.first_id, found.last_id) == ("5000-0", "10000-0")
    assert (found.started_at, found.last_at) == (5.0, 10.0)
    assert (found.length, found.sequence, found.ttl) == (6, 10, 60.0)
    assert found.task.startswith("分析")
    assert len(found.task.encode()) <= 400
    assert (found.error, found.last) == ("E: " + "坏" * 900, "system.close")
    assert found.source is not None
    assert found.source["agent_name"] == "协调者"
    assert orjson.loads(orjson.dumps(found.to_dict()))["state"] == "failed"
    assert summarise(7, look("a.b", ttl=NO_KEY)) is None
    forever = summarise(7, look("a.b", ttl=-1))
    assert forever is not None
    assert forever.ttl is None


@pytest.mark.parametrize("error", [None, "", {}])
def test_a_reason_beside_an_empty_error(error: object) -> None:
    """The message counts, as where there is no error at all."""
    failed = entry("lifecycle.failed", 9, error=error, message="boom")
    found = summarise(7, look(first=[failed], last=[failed]))
    assert found is not None
    assert found.error == "boom"


def test_what_is_no_event_has_a_summary() -> None:
    """Bytes, no fields, data of any kind: nothing keeps a run from the list."""
    for fields in (
        [],
        [b"\xff", b"\xff"],
        [b"data", b"[1]"],
        [b"data", b'{"task":[1]}'],
    ):
        odd: Any = [(b"18446744073709551615-0", fields)]
        found = summarise(7, look(first=odd, last=odd))
        assert found is not None
        assert found.state is RunState.OPEN
        assert found.last_at == 18446744073709551.615


def test_keys_of_runs() -> None:
    """An id has one way to be written."""
    assert run_id_of(b"run:0:events") == 0
    assert run_id_of(b"run:9223372036854775807:events") == 2**63 - 1
    for odd in ("9223372036854775808", "x", "-1", "01", "1:2", "٣", " 1", "1" * 5_000):
        assert run_id_of(f"run:{odd}:events".encode()) is None, odd
    assert run_id_of(b"run:\xff:events") is None


async def test_runs_are_found(own_server: DevServer, admin: Redis) -> None:
    """Newest first, as many as wanted; the others are counted."""
    async with EventStore(own_server.url) as store:
        assert (await store.runs()).runs == []
        for run_id in (5, 3, 9):
            await store.add(run_id, "lifecycle", "started", {"task": f"t{run_id}"})
        await next_millisecond()
        await admin.xadd("run:4:events", {"data": "x"})  # somebody else's
        await next_millisecond()
        await store.add(3, "lifecycle", "completed")
        await store.add(3, "system", "close")
        await next_millisecond()
        await admin.xadd("run:5:events", {"event_category": "a"})  # behind ours
        found = await store.runs()
        assert [(one.run_id, one.state, one.length) for one in found] == [
            (5, "open", 2),
            (3, "completed", 3),
            (4, "open", 1),
            (9, "open", 1),
        ]
        assert (found.total, len(found), found.left_out) == (4, 4, {})
        few = await store.runs(limit=2)
        assert ([one.run_id for one in few], few.total) == ([5, 3], 4)
        for limit in (0, 10_001, True):
            with pytest.raises(ConfigurationError):
                await store.runs(limit)


async def test_who_writes(own_server: DevServer, admin: Redis) -> None:
    """The lease says that a writer lives, the books that one was there."""
    keys = RunKeys(1)
    async with EventStore(own_server.url) as store:
        await store.add(1, "lifecycle", "started")
        await admin.hset(keys.books, "owner", "token")
        await admin.set(keys.owner, "token", px=60_000)
        assert (await described(store, 1)).state is RunState.RUNNING
        await admin.delete(keys.owner)
        assert (await described(store, 1)).state is RunState.LOST
        await admin.hdel(keys.books, "owner")
        assert (await described(store, 1)).state is RunState.OPEN
        await admin.delete(keys.books)
        assert [one.run_id for one in await store.runs()] == [1]
        assert await store.describe(2) is None
        for odd in ("1", -1, 2**63):
            with pytest.raises(ConfigurationError):
                await store.describe(odd)  # type: ignore[arg-type]


async def test_late_events_do_not_open_a_run(
    own_server: DevServer, admin: Redis
) -> None:
    """It has ended, however many come; who begins it anew opens it."""
    async with EventStore(own_server.url) as store:
        with pytest.raises(ValueError, match="茶"):
            async with store.run(1):
                raise ValueError("茶")
        for _ in range(3):
            await store.add(1, "llm", "stream", {"text": "late"})
            found = await described(store, 1)
            assert found.state is RunState.CLOSED
            assert found.last == "llm.stream"
        async with store.run(1, lifecycle=False) as late:
            late.emit("a", "b")
        assert (await described(store, 1)).state is RunState.CLOSED
        await admin.xadd("run:1:events", {"event_category": "a"})  # who knows by whom
        assert (await described(store, 1)).state is RunState.OPEN
        await store.add(1, "a", "b")
        assert (await described(store, 1)).state is RunState.CLOSED
        await store.add(1, "lifecycle", "started")
        assert (await described(store, 1)).state is RunState.OPEN
        async with store.run(1):
            assert (await described(store, 1)).state is RunState.RUNNING
        await store.add(1, "a", "b")
        assert (await described(store, 1)).state is RunState.CLOSED


async def test_late_events_in_one_portion(own_server: DevServer) -> None:
    """The end and what comes late in one step; an end of many and a new beginning, too."""
    late = ("a", "late")
    end = [("lifecycle", "cancelled"), ("system", "close")]
    async with EventStore(own_server.url) as store:
        await store.add_many(1, [("lifecycle", "started"), *end, late, late])
        assert (await described(store, 1)).state is RunState.CLOSED
        await store.add_many(2, [*end, ("lifecycle", "started"), late])
        assert (await described(store, 2)).state is RunState.OPEN
        await store.add_many(2, [*end, late])
        assert (await described(store, 2)).state is RunState.CLOSED
        await store.delete(2)
        await store.add(2, *late)
        assert (await described(store, 2)).state is RunState.OPEN


async def described(store: EventStore, run_id: int) -> Any:
    found = await store.describe(run_id)
    assert found is not None
    assert (await store.runs()).runs == [found] or found.ttl
    return found


async def test_what_is_no_run_hides_none(own_server: DevServer, admin: Redis) -> None:
    """Other types, other names, and what may not be read are counted."""
    async with EventStore(own_server.url) as store:
        await store.add(1, "lifecycle", "started")
        await store.add(2, "lifecycle", "started")
        await admin.rpush("run:7:events", "x")
        await admin.xadd("run:8:events", {"a": "b"}, id="1-1")
        await admin.xdel("run:8:events", "1-1")  # empty, and there
        await admin.set(RunKeys(2).books, "no hash")
        for name in ("x", "1:2", "01", "\x1b[2J"):
            await admin.xadd(f"run:{name}:events", {"a": "b"})
        found = await store.runs()
        assert [one.run_id for one in found] == [2, 1, 8]
        assert found.runs[2].last_at is None
        assert found.left_out == {"wrong_type": 1, "wrong_name": 4}
        with pytest.raises(WrongTypeError):
            await store.describe(7)
    await execute(
        admin, "ACL", "SETUSER", "op", "on", ">geheim", "+@all", "~run:1:events"
    )
    url = own_server.url.replace("redis://", "redis://op:geheim@")
    async with EventStore(url) as store:
        found = await store.runs()
        assert [(one.run_id, one.state) for one in found] == [(1, "open")]
        assert found.left_out["no_permission"] == 3
        with pytest.raises(RedisRefusedError):
            await store.describe(2)
        await execute(admin, "ACL", "SETUSER", "op", "resetkeys", "~other")
        with pytest.raises(RedisRefusedError):
            await store.runs()


async def test_large_events_cost_little(own_server: DevServer) -> None:
    """A portion shrinks so that no reply takes all memory; the list is whole."""
    async with EventStore(own_server.url) as store:
        for run_id in range(60):
            await store.add(run_id, "llm", "stream", {"text": "x" * 300_000})
        found = await store.runs()
        assert [one.run_id for one in found] == [*range(59, -1, -1)]


async def test_a_narrow_link(own_server: DevServer) -> None:
    """What does not come through in time comes in smaller portions."""
    async with EventStore(own_server.url) as store:
        for run_id in range(24):
            await store.add(run_id, "llm", "stream", {"text": "x" * 30_000})
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        EventStore(proxy.url, timeout=1.0) as store,
        proxy.during(Rate(500_000)),
    ):
        found = await store.runs()
    assert [one.run_id for one in found] == [*range(23, -1, -1)]


async def test_down_is_not_empty() -> None:
    """Nobody there is an error, and no empty list."""
    async with EventStore("redis://127.0.0.1:1") as store:
        with pytest.raises(RedisUnavailableError):
            await store.runs()
        with pytest.raises(RedisUnavailableError):
            await store.describe(1)


async def test_pages_backwards(redis_url: str) -> None:
    """Each event on one page, from the newest to the oldest."""
    run_id = secrets.randbits(50)
    async with EventStore(redis_url) as store:
        assert (await store.page_back(run_id)).events == []
        ids = await store.add_many(run_id, [("a", "b")] * 7)
        seen: list[str] = []
        before: str | None = None
        while True:
            page = await store.page_back(run_id, before=before, limit=3)
            seen = [event.id for event in page.events] + seen
            before = page.next
            if before is None:
                break
        assert seen == ids
        assert (await store.page_back(run_id, before="0-0")).events == []
        assert len((await store.page_back(run_id, before=ids[3])).events) == 3
        with pytest.raises(ConfigurationError):
            await store.page_back(run_id, before="x")
        await store.delete(run_id)
