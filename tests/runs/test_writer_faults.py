"""A run's writer while Redis, the link to it or its rights fail: each event once, in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import EventStore, LeaseHeldError, WrongTypeError
from bls_agent.connection.scripts import ADD_EVENTS, Script
from bls_agent.devserver import DevServer
from bls_agent.runs import RunWriter
from bls_agent.runs.reading import RunKeys
from tests.harness import cut_connections, eventually, execute, is_gone, url_with_rights
from tests.kit import Cut, Direction, FaultProxy, Late, Lose, Rate, Rule

KEYS = RunKeys(1)
ENDS = ["lifecycle.completed", "system.close"]
REQUESTS, REPLIES = Direction.REQUESTS, Direction.REPLIES


@pytest.fixture
async def proxy(own_server: DevServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(own_server.url, seed=7) as opened:
        yield opened


async def numbers(admin: Redis) -> list[int]:
    """Check what must be true of any run, and give the numbers of its events."""
    async with EventStore(admin_url(admin)) as store:
        events = await store.get_events(1)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    names = [event.name for event in events]
    assert names[0] == "lifecycle.started"
    assert names[-2:] == ENDS
    assert len([name for name in names if name in ("lifecycle.started", *ENDS)]) == 3
    assert await admin.exists(KEYS.owner) == 0
    return [event.data["n"] for event in events if event.name == "a.b"]


def admin_url(admin: Redis) -> str:
    port = admin.connection_pool.connection_kwargs["port"]
    return f"redis://127.0.0.1:{port}"


def emit(run: RunWriter, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        run.emit("a", "b", {"n": n})


async def test_redis_away_at_the_start(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The host goes on at once; one complaint; all is written when Redis is there."""
    own_server.kill()
    began = time.monotonic()
    async with EventStore(own_server.url) as store, store.run(1) as run:
        assert time.monotonic() - began < 2.0
        emit(run, 1_200)
        assert not run.is_owner
        assert not await run.flush(0.3)
        complaints = [r for r in caplog.records if "again until" in r.message]
        assert len(complaints) == 1
        own_server.restart()
        assert await run.flush(20)
        await eventually(lambda: run.is_owner)
    assert await numbers(admin) == list(range(1_200))


async def test_redis_frozen_at_the_start(own_server: DevServer, admin: Redis) -> None:
    """The host waits about one timeout, and the end no longer than it may take."""
    await admin.ping()
    own_server.freeze()
    began = time.monotonic()
    try:
        async with EventStore(own_server.url, timeout=0.5) as store:
            async with store.run(1, shutdown_timeout=0.5) as run:
                assert 0.4 < time.monotonic() - began < 4.0
                emit(run, 10)
                began = time.monotonic()
            assert 0.4 < time.monotonic() - began < 4.0
    finally:
        own_server.thaw()
    assert run.stats().dropped == {"shutdown": 13}


async def test_who_is_cancelled_while_opening_has_no_lease(
    own_server: DevServer, admin: Redis
) -> None:
    """What is given to him afterwards is given back; nothing of a run is there."""
    await admin.ping()
    async with EventStore(own_server.url) as store:
        async with store.run(2):
            pass  # from now on the server knows the scripts
        own_server.freeze()
        opening = asyncio.create_task(store.run(1).__aenter__())
        connection = store._access.pool.pick()
        await eventually(lambda: connection.waiting_since is not None)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        own_server.thaw()
        await eventually(lambda: not getattr(store._pools.find(), "users", 0))
        assert await admin.exists(KEYS.owner, KEYS.events) == 0
        assert await admin.hget(KEYS.books, "owner") is None
        async with store.run(1):
            pass
    assert await numbers(admin) == []


async def test_left_while_redis_is_away(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Bounded; what could not be written is counted and said; the lease ends by itself.

    The next run waits for Redis again, and learns that another writer owns it.
    """
    async with EventStore(own_server.url) as store:
        async with store.run(1, lease=1.0, shutdown_timeout=0.3) as run:
            await run.flush()
            own_server.kill()
            await eventually(lambda: "again until" in caplog.text)  # the lease noticed
            emit(run, 5)
            began = time.monotonic()
        assert time.monotonic() - began < 3.0
        stats = run.stats()
        assert stats.dropped == {"shutdown": 7}
        assert stats.accepted == 8
        assert stats.queued == 0
        told = [r for r in caplog.records if "could not be written before" in r.message]
        assert len(told) == 1
        own_server.restart()
        await eventually(lambda: is_gone(admin, KEYS.owner))
        assert await admin.hget(KEYS.books, "owner") is not None
        async with EventStore(own_server.url) as other, other.run(2):
            with pytest.raises(LeaseHeldError):
                await store.run(2).__aenter__()
        async with store.run(1):
            pass
        assert await admin.hget(KEYS.books, "owner") is None


PHASES: dict[str, Rule] = {
    "request-lost": Lose(direction=REQUESTS, command="EVALSHA"),
    "request-not-sent": Cut(direction=REQUESTS, command="EVALSHA", at=0),
    "request-half-sent": Cut(direction=REQUESTS, command="EVALSHA", at=900),
    "request-sent": Cut(direction=REQUESTS, command="EVALSHA", at=10**9),
    "reply-lost": Lose(direction=REPLIES, command="EVALSHA"),
    "reply-cut": Cut(direction=REPLIES, command="EVALSHA", at=0),
    "reply-half": Cut(direction=REPLIES, command="EVALSHA", at=30),
    "reply-end": Cut(direction=REPLIES, command="EVALSHA", at=10**9),
}


@pytest.mark.parametrize("phase", PHASES)
async def test_a_link_that_breaks_in_a_batch(
    proxy: FaultProxy, admin: Redis, phase: str
) -> None:
    """Wherever it breaks: what was executed is recognised, what was not is sent again."""
    async with (
        EventStore(proxy.url, timeout=0.3) as store,
        store.run(1, coalesce=0, lease=30) as run,
    ):
        emit(run, 700)
        await run.flush()
        for turn in range(2):
            armed = proxy.arm(PHASES[phase])
            emit(run, 1_400, 700 + turn * 1_400)
            assert await run.flush(20)
            assert armed.fired == 1
    assert await numbers(admin) == list(range(3_500))
    assert run.stats().resent > 0
    assert run.stats().dropped == {}


async def test_a_reused_run_whose_first_reply_is_lost(
    proxy: FaultProxy, admin: Redis
) -> None:
    """It begins at 1, and what the process knows of the run before makes no jump."""
    async with EventStore(proxy.url, timeout=0.3) as store:
        async with store.run(1) as run:
            emit(run, 100)
        await admin.delete(*KEYS.all)
        proxy.arm(Late(command="EVALSHA", seconds=0))  # the lease
        lost = proxy.arm(PHASES["reply-lost"])
        async with store.run(1) as run:
            assert await run.flush(20)
            assert lost.fired == 1
            emit(run, 3)
    assert await numbers(admin) == [0, 1, 2]


async def test_a_link_that_breaks_at_the_end(proxy: FaultProxy, admin: Redis) -> None:
    """The last words come once, too."""
    async with EventStore(proxy.url, timeout=0.3) as store, store.run(1) as run:
        await run.flush()
        for rule in (PHASES["reply-lost"], PHASES["reply-cut"]):
            proxy.arm(rule)
    assert await numbers(admin) == []
    assert await admin.hget(KEYS.books, "owner") is None


async def cut_runs(admin: Redis) -> None:
    """Kill the connection of the writer at the server."""
    for client in await admin.client_list():
        if client["name"].startswith("bls-runs"):
            await execute(admin, "CLIENT", "KILL", "ID", client["id"])


async def test_redis_comes_back_empty() -> None:
    """What it forgot is gone; what follows is counted on, with its owner and its end."""
    with DevServer() as server:
        async with (
            Redis.from_url(server.url, protocol=2) as admin,
            EventStore(server.url) as store,
        ):
            async with store.run(1) as run:
                emit(run, 600)
                await run.flush()
                last = (await store.get_events(1))[-1]
                server.kill()
                server.restart()
                emit(run, 600, 600)
                assert await run.flush(20)
                owner = await admin.get(KEYS.owner)
                assert owner is not None
                assert await admin.hget(KEYS.books, "owner") == owner
            events = await store.get_events(1)
            assert [event.sequence for event in events] == list(range(602, 1_204))
            assert [event.data["n"] for event in events[:-2]] == list(range(600, 1_200))
            assert [event.name for event in events[-2:]] == ENDS
            assert store_order(events[0].id) > store_order(last.id)


def store_order(event_id: str) -> tuple[int, ...]:
    return tuple(map(int, event_id.split("-")))


async def test_redis_forgets_under_the_writer(
    own_server: DevServer, admin: Redis
) -> None:
    """FLUSHALL: with the next batch the books tell whose the run is, and the lease is back."""
    async with EventStore(own_server.url) as store, store.run(1, lease=30) as run:
        emit(run, 3)
        await run.flush()
        await admin.flushall()
        emit(run, 1, 3)
        await run.flush()
        owner = await admin.get(KEYS.owner)
        assert owner is not None
        assert await admin.hget(KEYS.books, "owner") == owner
        assert 25_000 < await admin.pttl(KEYS.owner) <= 30_000
        await admin.flushall()
    async with EventStore(own_server.url) as store:
        events = await store.get_events(1)
        assert [event.name for event in events] == ENDS
        assert [event.sequence for event in events] == [6, 7]
    assert await admin.exists(KEYS.owner) == 0


async def test_a_frozen_server_that_executes_late(
    own_server: DevServer, admin: Redis
) -> None:
    """Requests that were given up wait in the server and are executed: each once."""
    await admin.ping()
    async with (
        EventStore(own_server.url, timeout=0.2) as store,
        store.run(1, coalesce=0, lease=30) as run,
    ):
        emit(run, 600)
        await run.flush()
        for turn in range(1, 4):
            resent = run.stats().resent
            own_server.freeze()
            emit(run, 600, turn * 600)
            await eventually(lambda than=resent: run.stats().resent > than)  # type: ignore[misc]
            own_server.thaw()
            assert await run.flush(20)
    assert await numbers(admin) == list(range(2_400))


async def test_a_late_batch_behind_later_ones(proxy: FaultProxy, admin: Redis) -> None:
    """The old request arrives when the writer is batches further: it is recognised."""
    bare = Redis.from_url(admin_url(admin), protocol=2)
    async with EventStore(proxy.url) as store, store.run(1, coalesce=0) as run:
        emit(run, 3)
        await run.flush()
        sent: list[Any] = []
        pool: Any = store._pools.find()
        run_script = pool.run_script

        async def remember(script: Script, keys: RunKeys, arguments: Any) -> Any:
            sent.append(arguments)
            return await run_script(script, keys, arguments)

        pool.run_script = remember
        emit(run, 3, 3)
        await run.flush()
        emit(run, 3, 6)
        await run.flush()
        for arguments in sent:
            again: Any = await run_script(ADD_EVENTS, KEYS, arguments)
            assert again[2:] == [b"again", 3, b"ours"]
        pool.run_script = run_script
    assert await numbers(admin) == list(range(9))
    await bare.aclose()


@pytest.mark.parametrize(("count", "length"), [(12, 12_000), (1, 100_000)])
async def test_a_narrow_link(
    proxy: FaultProxy, admin: Redis, count: int, length: int
) -> None:
    """A batch, or one long event, has the time that its bytes need; none is cut."""
    async with (
        EventStore(proxy.url, timeout=0.2) as store,
        store.run(1, shutdown_timeout=30) as run,
    ):
        await run.flush()
        async with proxy.during(Rate(200_000)):
            for n in range(count):
                run.emit("a", "b", {"n": n, "long": "x" * length})
            assert await run.flush(30)
        assert run.is_owner
    assert await numbers(admin) == list(range(count))
    assert run.stats().dropped == {}
    assert run.stats().cut == 0
    async with EventStore(admin_url(admin)) as store:
        events = [one for one in await store.get_events(1) if one.name == "a.b"]
    assert {len(one.data["long"]) for one in events} == {length}


async def test_a_flood_while_redis_is_away(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory is bounded; pieces of texts go first; readers and log are told of the loss."""
    async with EventStore(own_server.url) as store:
        async with store.run(1, coalesce=0, buffer=1_000) as run:
            await run.flush()
            own_server.kill()
            for n in range(5_000):
                run.emit("llm", "stream", {"content": f"{n}"})
                if n % 100 == 0:
                    run.emit("a", "b", {"n": n // 100})
                if n == 2_500:
                    await anyio.sleep(0.05)
            stats = run.stats()
            assert stats.queued <= 1_300
            assert stats.queued_bytes <= 8 * 1024 * 1024
            assert stats.dropped["buffer_full"] > 3_500
            own_server.restart()
            assert await run.flush(20)
            assert "events of run 1 were dropped" in caplog.text
        events = await store.get_events(1)
    assert [e.data["n"] for e in events if e.name == "a.b"] == list(range(50))
    told = [event.data for event in events if event.name == "system.warning"]
    dropped = run.stats().dropped["buffer_full"]
    assert sum(data["dropped"] for data in told) == dropped
    assert {data["reason"] for data in told} == {"buffer_full"}
    said = [r.message for r in caplog.records if "run 1 were dropped" in r.message]
    assert len(said) == 1
    assert said[0].endswith("(buffer_full); stats() counts on")
    texts = [int(e.data["content"]) for e in events if e.name == "llm.stream"]
    assert texts == sorted(texts)
    assert len(texts) == 5_000 - dropped
    assert [event.name for event in events[-2:]] == ENDS
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_a_flood_that_nobody_hears_of(
    own_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis does not come back: the log is told at the end."""
    async with (
        EventStore(own_server.url) as store,
        store.run(1, buffer=1_000, shutdown_timeout=0.1) as run,
    ):
        await run.flush()
        own_server.kill()
        emit(run, 1)
        await eventually(lambda: "trying again until" in caplog.text)
        emit(run, 3_000, 1)
        assert "were dropped" not in caplog.text
    dropped = run.stats().dropped
    assert dropped["buffer_full"] > 1_000
    assert f"run 1 were dropped: so far {dropped['buffer_full']:,} (buf" in caplog.text
    assert f"run 1: {dropped['shutdown']} events could not be written" in caplog.text


async def test_a_contributor_tells_what_was_dropped(
    own_server: DevServer, admin: Redis
) -> None:
    """Also what was lost last, behind which nothing more is emitted."""
    own_server.kill()
    async with (
        EventStore(own_server.url) as store,
        store.run(1, lifecycle=False, coalesce=0, buffer=1_000) as run,
    ):
        emit(run, 3_000)
        own_server.restart()
    async with EventStore(own_server.url) as store:
        events = await store.get_events(1)
    told = [event.data["dropped"] for event in events if event.category == "system"]
    assert sum(told) == run.stats().dropped["buffer_full"] > 1_000
    assert len(events) - len(told) == 3_000 - sum(told)


async def test_no_memory(own_server: DevServer, admin: Redis) -> None:
    """Refused for a while: written when there is room, in order, once."""
    async with EventStore(own_server.url) as store, store.run(1) as run:
        await run.flush()
        await admin.config_set("maxmemory", "1mb")
        emit(run, 1_200)
        assert not await run.flush(0.3)
        assert run.stats().dropped == {}
        await admin.config_set("maxmemory", "0")
        assert await run.flush(20)
    assert await numbers(admin) == list(range(1_200))


async def test_no_rights(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused for good: said, nobody waits, everything is counted as dropped."""
    url = await url_with_rights(admin, own_server, "+@all", "-eval", "-evalsha", "~*")
    began = time.monotonic()
    async with EventStore(url) as store, store.run(1) as run:
        emit(run, 10)
        buffer = run._delivery.buffer
        await eventually(lambda: len(buffer) == len(buffer._in_flight))
        assert not await run.flush(20)
    assert time.monotonic() - began < 10.0
    assert run.stats().dropped == {"shutdown": 13}
    assert "cannot be written" in caplog.text
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)


async def test_another_type_comes_meanwhile(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody puts a string in the stream's place: left alone, said, nothing raised."""
    async with EventStore(own_server.url) as store:
        async with store.run(1) as run:
            await admin.set(KEYS.events, "precious")
            emit(run, 3)
            await eventually(lambda: run._delivery.refused)
        assert await admin.get(KEYS.events) == b"precious"
        assert "another type" in caplog.text
        assert run.stats().dropped == {"shutdown": 5}
        with pytest.raises(WrongTypeError):
            await store.run(1).__aenter__()


async def test_a_lease_that_ended_meanwhile_is_renewed(
    own_server: DevServer, admin: Redis
) -> None:
    """Nobody has taken the run: it is ours again, as if nothing had been."""
    async with (
        EventStore(own_server.url, timeout=0.2) as store,
        store.run(1, lease=0.5) as run,
    ):
        await run.flush()
        own_server.freeze()
        await eventually(lambda: not run.is_owner)
        own_server.thaw()
        await eventually(lambda: run.is_owner)
        with pytest.raises(LeaseHeldError):
            await store.run(1).__aenter__()
    assert await numbers(admin) == []


async def test_a_fault_of_ours(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the run goes on, and the host notices nothing."""
    async with EventStore(own_server.url) as store, store.run(1) as run:
        await run.flush()
        pool: Any = store._pools.find()
        run_script = pool.run_script

        async def fail(*_: Any) -> Any:
            pool.run_script = run_script
            message = "ours"
            raise RuntimeError(message)

        pool.run_script = fail
        emit(run, 3)
        assert await run.flush(20)
    assert await numbers(admin) == [0, 1, 2]
    assert "writing the events of a run failed" in caplog.text


async def test_cut_connections_do_not_end_a_run(
    own_server: DevServer, admin: Redis
) -> None:
    """The lease is renewed at once over the next connection."""
    async with EventStore(own_server.url) as store, store.run(1, lease=0.6) as run:
        for _ in range(3):
            await cut_connections(admin)
            await cut_runs(admin)
            await anyio.sleep(0.3)
            await eventually(lambda: run.is_owner)
    assert await numbers(admin) == []


async def test_a_run_begins_with_its_first_event_also_after_drops(
    own_server: DevServer,
) -> None:
    """Events are dropped before the first write; the warning comes second."""
    own_server.kill()
    async with (
        EventStore(own_server.url, timeout=0.2) as store,
        store.run(1, buffer=1_000, data={"task": "分析"}) as run,
    ):
        for number in range(3_000):
            run.emit("agent", "row", {"n": number})
        own_server.restart()
        assert await run.flush(20)
        first, second = await store.get_events(1, count=2)
        assert (first.name, first.sequence) == ("lifecycle.started", 1)
        assert second.name == "system.warning"
        summary = await store.describe(1)
        assert summary is not None
        assert summary.task == "分析"
