"""Another server answers, which has forgotten something and whose clock is behind.

What is written then gets ids below those that followers have read: nobody may wait for
ever behind them, or miss what is there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from bls_agent.runs import EventStore, Gap, GapReason
from bls_agent.runs.reading import RunKeys
from bls_agent.runs.topic import RunTopic
from tests.engines import LOOPBACK, ask, until
from tests.failovers import Told
from tests.harness import eventually
from tests.kit import Cut, Direction, FaultProxy

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
    proxy._server_port = server.port
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


async def write(server: DevServer, count: int) -> list[str]:
    """Add events as a writer that knows nothing of what was before."""
    async with EventStore(server.url) as store:
        return await store.add_many(RUN, [("llm", "stream")] * count)


@pytest.mark.parametrize("when", ["before", "afterwards"])
@pytest.mark.parametrize("kept", [KEPT, 0], ids=["a replica", "an empty server"])
@pytest.mark.parametrize("reads", ["the buffer", "pages"])
async def test_a_server_that_is_behind(
    own_server: DevServer, other_server: DevServer, proxy: FaultProxy,
    reads: str, kept: int, when: str,
) -> None:  # fmt: skip
    """Told that something is lost, and then given all that is new there, once.

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
        new = await write(other_server, 2) if when == "before" else []
        fail_over(proxy, other_server)
        await proxy.heal()
        async with anyio.create_task_group() as tasks:
            for one in followers:
                tasks.start_soon(one.take, len(one.ids) + 4)
            if when == "afterwards":
                await until(lambda: waiting.follower.unavailable is None)
                new = await write(other_server, 2)
            new += await write(other_server, 2)
        ahead = followers[-1]
        assert ahead.gaps == [Gap(RUN, GapReason.LOST, lost[-1], new[0])]
        assert ahead.ids == [*ids, *lost, *new]
        if waiting is not ahead:
            assert waiting.gaps == (
                [] if kept else [Gap(RUN, GapReason.LOST, ids[-1], new[0])]
            )
            assert waiting.ids == [*ids, *new]


async def test_a_server_that_is_emptied(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLUSHALL, and a writer whose clock is behind, while all connections live on."""
    monkeypatch.setattr("bls_agent.runs.gaps.LOOK", 1.0)
    async with EventStore(own_server.url) as store:
        ids = await plant(own_server, 1, 3)
        one = Told(store.follow(RUN))
        await one.take(3)
        assert await one.follower.batch(0.1) == []
        ask(own_server.port, "FLUSHALL")
        new = await write(own_server, 2)
        await one.take(5)
        assert one.gaps == [Gap(RUN, GapReason.LOST, ids[-1], new[0])]
        assert one.ids == [*ids, *new]


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
        first = await write(other_server, 2)
        fail_over(proxy, other_server)
        back = Told(store.follow(RUN, lost[-1]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(back.take, 2)
            await until(lambda: bool(back.gaps))
            tasks.start_soon(here.take, KEPT + 4 + 4)
            second = await write(other_server, 2)
        assert back.gaps == [Gap(RUN, GapReason.LOST, lost[-1])]
        assert back.ids == second
        assert len(here.gaps) == 1
        assert here.ids == [*ids, *lost, *first, *second]


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
        await eventually(lambda: not store._hubs.here._topics)
        fail_over(proxy, other_server)
        await write(other_server, 2)
        back = Told(store.follow(RUN, "0-0"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(back.take, 4)
            await until(lambda: len(back.ids) == 2)
            tasks.start_soon(here.take, KEPT + 1)
            await until(lambda: here.follower._cursor.gap_pending)
            new = await write(other_server, 2)
        assert back.gaps == []
        assert here.gaps == [Gap(RUN, GapReason.LOST, ids[-1], new[0])]
        assert here.ids == [*ids, *new]


async def test_who_has_read_what_is_new_does_not_go_back() -> None:
    """The buffer stands as long as the server knows its head; else who took from it, too."""
    topic = RunTopic(RunKeys(RUN), "7-0", None, seen=True)
    topic.rewind("5-0", "8-0")
    assert topic.buffer.locate("7-0") is not None
    assert topic.must_go_back("9-0", in_ring=False)
    assert not topic.must_go_back("7-0", in_ring=True)
    topic.rewind("5-0", "6-0")
    assert topic.buffer.head == "5-0"
    assert topic.must_go_back("6-0", in_ring=True)
    assert not topic.must_go_back("6-0", in_ring=False)  # it may be what is new
    assert not topic.must_go_back("5-0", in_ring=True)
