"""Followers while links are cut, servers stop, and other servers answer in their place.

A server that takes over may have lost events, and its clock may be behind: what is
written then gets ids below those that followers have read. No follower may wait for ever
behind them. What was written there before it has looked stands behind a gap.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import RedisRefusedError, RedisUnavailableError, WrongTypeError
from bls_agent.devserver import DevServer
from bls_agent.runs import (
    EventStore,
    Followed,
    Gap,
    GapReason,
    WriterLost,
    gaps,
    hub,
)
from bls_agent.runs.reading import RunKeys
from tests.engines import LOOPBACK, ask, until
from tests.failovers import Told
from tests.harness import (
    PASSWORD,
    eventually,
    execute,
    needs_selectors,
    url_with_rights,
)
from tests.kit import Cut, Direction, FaultProxy, Swallow
from tests.programs import Program
from tests.runs.writing import take, write

RUN = 1
KEPT = 5  # events that the other server has, too
AHEAD = 600_000  # milliseconds that the first server's clock is ahead
TOLD = 15.0  # seconds: a look comes every five


@pytest.fixture
def other_server() -> Iterator[DevServer]:
    """A second server, empty as long as nobody makes it a replica."""
    with DevServer() as server:
        yield server


@pytest.fixture
async def proxy(own_server: DevServer) -> AsyncIterator[FaultProxy]:
    """An address that leads to the first server, and can lead to another one."""
    async with FaultProxy(own_server.url, seed=7) as opened:
        yield opened


def fail_over(proxy: FaultProxy, server: DevServer) -> None:
    """Let the address lead to another server; whoever is connected has to come back."""
    proxy.server = (proxy.server[0], server.port)
    proxy.break_all()


async def copy(source: DevServer, target: DevServer) -> None:
    """Make a server a replica, and take it away when it has all that is there."""
    ask(source.port, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    ask(target.port, "REPLICAOF", LOOPBACK, source.port)
    await until(lambda: ask(target.port, "ROLE")[3] == b"connected")
    await until(lambda: ask(source.port, "WAIT", 1, 1_000) == 1)
    ask(target.port, "REPLICAOF", "NO", "ONE")


async def plant(server: DevServer, first: int, count: int) -> list[str]:
    """Add events as a server gives ids to whose clock is ahead."""
    now = int(time.time() * 1000) + AHEAD
    ids = [f"{now + number}-0" for number in range(first, first + count)]
    async with Redis.from_url(server.url, protocol=2) as client:
        for number, event_id in enumerate(ids, first):
            await client.xadd(
                f"run:{RUN}:events", {"sequence": number}, id=event_id
            )  # what a server of its own clock would have done
    return ids


async def write_at(server: DevServer, count: int) -> list[str]:
    """Add events as a writer that knows nothing of what was before."""
    async with EventStore(server.url) as store:
        return await store.add_many(RUN, [("llm", "stream")] * count)


async def goes_back(one: Told) -> None:
    """Wait until a follower was told that the server has lost what it read."""
    await until(lambda: bool(one.gaps))


@pytest.mark.parametrize("when", ["before", "afterwards"])
@pytest.mark.parametrize("kept", [KEPT, 0], ids=["a replica", "an empty server"])
@pytest.mark.parametrize("reads", ["the buffer", "pages"])
async def test_a_server_that_is_behind(
    own_server: DevServer, other_server: DevServer, proxy: FaultProxy,
    reads: str, kept: int, when: str,
) -> None:  # fmt: skip
    """Told that something is lost, and then given what is new there, once.

    By the buffer: who waits on the shared connection. By pages: who has read from Redis
    what those who wait have not heard of yet.
    """
    async with EventStore(proxy.url, timeout=2.0) as store:
        ids = await plant(own_server, 1, KEPT)
        if kept:
            await copy(own_server, other_server)
        waiting = Told(store.follow(RUN))
        await waiting.take(KEPT)
        assert await waiting.follower.batch(0.1) == []
        followers = [waiting]
        cut = Cut(command="XREAD", times=None, direction=Direction.REQUESTS)
        if reads == "pages":
            proxy.arm(cut)
            proxy.break_all()
            followers.append(Told(store.follow(RUN)))
        lost = await plant(own_server, KEPT + 1, 4)
        await followers[-1].take(KEPT + 4)
        before = await write_at(other_server, 2) if when == "before" else []
        fail_over(proxy, other_server)
        await proxy.heal()
        ahead = followers[-1]
        async with anyio.create_task_group() as tasks:
            for one in followers:
                told = before if kept and one is not ahead else []
                tasks.start_soon(one.take, len(one.ids) + len(told) + 2)
            for one in followers:
                if one is ahead or not kept:
                    await goes_back(one)
            new = await write_at(other_server, 2)
        assert ahead.gaps == [Gap(RUN, GapReason.LOST, lost[-1])]
        assert ahead.ids == [*ids, *lost, *new]
        if waiting is not ahead and kept:
            assert waiting.gaps == []
            assert waiting.ids == [*ids, *before, *new]
        elif waiting is not ahead:
            assert waiting.gaps == [Gap(RUN, GapReason.LOST, ids[-1])]
            assert waiting.ids == [*ids, *new]


async def test_a_place_that_the_server_has_forgotten(
    own_server: DevServer, other_server: DevServer, proxy: FaultProxy
) -> None:
    """Who comes back with it later, and who stands there while nobody waits."""
    async with EventStore(proxy.url, timeout=2.0) as store:
        ids = await plant(own_server, 1, KEPT)
        await copy(own_server, other_server)
        lost = await plant(own_server, KEPT + 1, 4)
        here = Told(store.follow(RUN))
        await here.take(KEPT + 4)
        await write_at(other_server, 2)
        fail_over(proxy, other_server)
        back = Told(store.follow(RUN, lost[-1]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(back.take, 2)
            await until(lambda: bool(back.gaps))
            tasks.start_soon(here.take, KEPT + 4 + 2)
            await goes_back(here)
            new = await write_at(other_server, 2)
        assert back.gaps == [Gap(RUN, GapReason.LOST, lost[-1])]
        assert back.ids == new
        assert len(here.gaps) == 1
        assert here.ids == [*ids, *lost, *new]


async def test_a_place_that_nobody_remembers(
    own_server: DevServer, other_server: DevServer, proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where others have gone on meanwhile: told all the same, and followed on."""
    monkeypatch.setattr("bls_agent.runs.topic.LINGER", 0.0)
    async with EventStore(proxy.url, timeout=2.0) as store:
        ids = await plant(own_server, 1, KEPT)
        here = Told(store.follow(RUN))
        await here.take(KEPT)
        await eventually(lambda: not store._hub()._topics)
        fail_over(proxy, other_server)
        await write_at(other_server, 2)
        back = Told(store.follow(RUN, "0-0"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(back.take, 4)
            await until(lambda: len(back.ids) == 2)
            tasks.start_soon(here.take, KEPT + 1)
            await goes_back(here)
            new = await write_at(other_server, 2)
        assert back.gaps == []
        assert here.gaps == [Gap(RUN, GapReason.LOST, ids[-1])]
        assert here.ids == [*ids, *new]


# -- faults


async def test_a_dead_link(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes over the waiting connection any more, and nobody says so."""
    monkeypatch.setattr(hub, "BLOCK", 1.0)
    async with (
        FaultProxy(own_server.url) as proxy,
        EventStore(proxy.url, timeout=1.0) as store,
        EventStore(own_server.url) as writer,
    ):
        follower = store.follow(1)
        await write(writer, 1)
        assert await take(follower, 1) == [1]
        assert await follower.batch(0.1) == []
        async with proxy.during(Swallow()):
            await write(writer, 1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follower.batch, 0.5)
                await eventually(lambda: _is_away(follower))
        assert await take(follower, 1) == [2]
        assert follower.unavailable is None


def _is_away(follower: Any) -> bool:
    return follower.unavailable is not None


async def test_a_frozen_server(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers wait, are told why, and no living writer is called dead."""
    monkeypatch.setattr(hub, "BLOCK", 1.0)
    async with EventStore(own_server.url, timeout=0.5) as store:
        await write(store, 1)
        await execute(admin, "HSET", "bls_agent:{run:1:events}:books", "owner", "a")
        await execute(admin, "SET", "bls_agent:{run:1:events}:owner", "a", "PX", 1500)
        follower = store.follow(1)
        assert await take(follower, 1) == [1]
        assert await follower.batch(0.2) == []
        own_server.freeze()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follower.batch, 6)
                await eventually(lambda: _is_away(follower))
                tasks.cancel_scope.cancel()
        finally:
            own_server.thaw()
        assert await follower.batch(0.5) == []
        await execute(admin, "SET", "bls_agent:{run:1:events}:owner", "a", "PX", 60_000)
        await write(store, 1)
        assert await take(follower, 1) == [2]
        assert follower.unavailable is None


async def test_a_wrong_key_disturbs_no_other(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """Only who follows it hears of it, at once or when it becomes one."""
    good, bad = store.follow(run_id), store.follow(run_id + 10**5)
    await write(store, run_id + 10**5)
    assert await take(bad, 1) == [1]
    key = f"run:{run_id + 10**5}:events"
    await bare.set(key, "no stream")
    assert await good.batch(0.05) == []
    with pytest.raises(WrongTypeError), anyio.fail_after(20):
        await bad.batch()
    with pytest.raises(WrongTypeError):
        await store.follow(run_id + 10**5).batch()
    with pytest.raises(WrongTypeError):
        await store.follow(run_id + 10**5, "5-0").batch()
    await write(store, run_id)
    assert await take(good, 1) == [1]
    await bare.delete(key)
    await write(store, run_id + 10**5)


@needs_selectors
async def test_a_run_that_may_not_be_read_disturbs_no_other(
    own_server: DevServer, admin: Redis
) -> None:
    url = await url_with_rights(
        admin, own_server, "+@all", "~run:1:*", "~bls_agent:*", "%W~run:2:*"
    )
    async with EventStore(url) as store, EventStore(own_server.url) as writer:
        good = store.follow(1)
        assert await good.batch(0.05) == []
        with pytest.raises(RedisRefusedError):
            await store.follow(2).batch()
        await write(writer, 1)
        assert await take(good, 1) == [1]
        await execute(admin, "ACL", "SETUSER", "agent", "~run:3:*")
        other = store.follow(3)
        assert await other.batch(0.05) == []
        await execute(
            admin, "ACL", "SETUSER", "agent", "resetkeys", "~run:1:*", "~bls_agent:*"
        )
        with pytest.raises(RedisRefusedError), anyio.fail_after(20):
            await other.batch()
        await write(writer, 1)
        assert await take(good, 1) == [2]
        await write(writer, 3)
        await execute(admin, "ACL", "SETUSER", "agent", "~run:3:*")
        assert await take(other, 1) == [1]  # mended: the same one goes on


@needs_selectors
async def test_a_password_that_is_wrong_now_ends_the_iteration(
    own_server: DevServer, admin: Redis
) -> None:
    """Who follows is told, decides, and may go on with the same follower: nothing lost."""
    url = await url_with_rights(admin, own_server, "+@all", "~*")
    async with EventStore(url) as store, EventStore(own_server.url) as writer:
        follower = store.follow(1)
        await write(writer, 1)
        assert await take(follower, 1) == [1]
        await execute(admin, "ACL", "SETUSER", "agent", "resetpass", ">other")
        await execute(admin, "CLIENT", "KILL", "USER", "agent")
        with pytest.raises(RedisRefusedError, match="auth"), anyio.fail_after(20):
            await follower.batch()
        await write(writer, 1)
        await execute(admin, "ACL", "SETUSER", "agent", f">{PASSWORD}")
        assert await take(follower, 1) == [2]


async def test_a_server_that_forgets_everything(
    run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is gone, and so is what was not read: said, and the end."""
    monkeypatch.setattr(gaps, "UNOWNED", 0.5)
    with DevServer() as server:
        async with EventStore(server.url) as store:
            follower = store.follow(run_id)
            ids = await write(store, run_id, 3)
            assert await take(follower, 3) == [1, 2, 3]
            found: list[Followed] = []

            async def go_on() -> None:
                found.extend([one async for one in follower])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(go_on)
                await anyio.wait_all_tasks_blocked()
                server.restart()
                with anyio.fail_after(20):
                    await eventually(lambda: follower.ended)
            assert found == [Gap(run_id, GapReason.LOST, ids[-1])]


async def test_a_run_deleted_under_its_writer_during_a_cut(
    own_server: DevServer, run_id: int
) -> None:
    """It looks like a loss, but nobody ends, and the next event is no second gap."""
    async with (
        FaultProxy(own_server.url) as proxy,
        EventStore(proxy.url) as store,
        EventStore(own_server.url) as writer,
        writer.run(run_id) as run,
    ):
        follower = store.follow(run_id)
        assert await take(follower, 1) == [1]
        place = follower.place
        assert await follower.batch(0.1) == []
        await eventually(lambda: proxy.accepted == 2)  # one of them waits
        assert await writer.delete(run_id)
        proxy.break_all()
        with anyio.fail_after(30):
            while not (found := await follower.batch(0.1)):
                pass
        assert found == [Gap(run_id, GapReason.LOST, place)]
        run.emit("a", "b")
        assert await take(follower, 1) == [2]


async def test_a_living_writer_brings_its_run_back(run_id: int) -> None:
    """A server that forgets everything, under a writer that goes on: nobody ends."""
    with DevServer() as server:
        async with EventStore(server.url) as store, Redis.from_url(server.url) as bare:
            place = f"bls_agent:{{run:{run_id}:events}}"
            await bare.hset(f"{place}:books", "owner", "a")
            await bare.set(f"{place}:owner", "a", px=4_000)
            follower = store.follow(run_id)
            last = (await write(store, run_id, 3))[-1]
            assert await take(follower, 3) == [1, 2, 3]
            assert await follower.batch(0.1) == []
            server.restart()
            assert await follower.batch(10.0) == [Gap(run_id, GapReason.LOST, last)]
            assert not follower.ended
            await write(store, run_id, 2)
            assert await take(follower, 2) == [4, 5]


WRITER = """
import asyncio, sys
from bls_agent.runs import EventStore
from bls_agent.runs.reading import RunKeys
from bls_agent.connection.scripts import HOLD_RUN
async def main(url, run_id, lease):
    store = EventStore(url)
    keys = RunKeys(run_id).all
    await store.add(run_id, "lifecycle", "started")
    while True:
        async with store._access.pool.to(keys[0]) as connection:
            await HOLD_RUN.run(connection, keys, ("token", int(lease * 1000), "", 1000))
        print("held", flush=True)
        await store.add(run_id, "llm", "stream")
        await asyncio.sleep(lease / 3)
asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
"""


async def test_a_writer_that_is_killed(redis_url: str, run_id: int) -> None:
    """Followers are told within its lease and a second, and go on."""
    lease = 1.5
    with Program("-c", WRITER, redis_url, str(run_id), str(lease)) as writer:
        async with EventStore(redis_url) as store:
            follower = store.follow(run_id)
            await take(follower, 4)  # its lease was renewed meanwhile
            writer.kill()
            killed_at = time.monotonic()
            found: list[Followed] = []
            with anyio.fail_after(20):
                while not any(isinstance(one, WriterLost) for one in found):
                    found += await follower.batch()
            told_at = time.monotonic()
            assert isinstance(found[-1], WriterLost)
            assert not follower.ended
            await write(store, run_id)
            assert len(await take(follower, 1)) == 1
    assert told_at - killed_at < lease + 1.5  # goal: 1 s; a busy machine is late


async def test_an_outage_is_over_for_who_comes_later(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have left during it: the next follower finds no outage of that time."""
    async with EventStore(own_server.url) as store:
        assert await store.follow(1).batch(0.1) == []
        (reader,) = store._hub()._streams.values()
        own_server.kill()
        await eventually(lambda: reader._outage is not None)
        monkeypatch.setattr("bls_agent.runs.topic.LINGER", 0.0)
        await eventually(lambda: not reader.runs)
        own_server.restart()
        topic = store._hub().join(RunKeys(2), "0-0", None, seen=False)
        assert topic.outage is None


async def test_redis_away(own_server: DevServer) -> None:
    """A follower with a place waits; one that asks for the end is told."""
    async with EventStore(own_server.url, timeout=0.5) as store:
        own_server.kill()
        follower = store.follow(1)
        assert await follower.batch(0.3) == []
        assert isinstance(follower.unavailable, RedisUnavailableError)
        with pytest.raises(RedisUnavailableError):
            await store.follow(1, "$").batch()
        own_server.restart()
        await write(store, 1)
        assert await take(follower, 1) == [1]
        assert follower.unavailable is None
