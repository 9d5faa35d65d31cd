"""Many followers over one waiting connection: connections, memory, loops, forks."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from bls_agent.runs import (
    EventStore,
    Followed,
    FollowEnd,
    StreamEvent,
    topic,
)
from bls_agent.runs.topic import RunTopic
from tests.harness import (
    eventually,
)
from tests.programs import run_python
from tests.runs.writing import take, write


async def names(redis: Redis) -> list[str]:
    """The connections of stores, by name."""
    clients = await redis.client_list()
    return sorted(c["name"] for c in clients if c["name"].startswith("bls-runs"))


async def test_two_connections_for_any_number(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 followers of 50 runs wait on one connection, and ask over another one."""
    monkeypatch.setattr(topic, "LINGER", 1.0)
    async with EventStore(own_server.url) as store:
        followers = [store.follow(number % 50) for number in range(200)]
        found: list[list[int]] = []

        async def follow(follower: Any) -> None:
            found.append(await take(follower, 3))

        async with anyio.create_task_group() as tasks:
            for follower in followers:
                tasks.start_soon(follow, follower)
            for _ in range(3):
                for run_id in range(50):
                    await write(store, run_id)
            await eventually(lambda: len(found) == 200)
            assert await names(admin) == ["bls-runs", "bls-runs:blocking"]
        assert found == [[1, 2, 3]] * 200
        await eventually(lambda: _has_lingered(store), 20)
        await eventually(lambda: _are_gone(admin, "bls-runs:blocking"))


def _has_lingered(store: EventStore) -> bool:
    return not store._hub()._topics


async def _are_gone(redis: Redis, name: str) -> bool:
    return name not in await names(redis)


async def test_one_who_comes_later_does_not_wait_for_the_others(
    store: EventStore, run_id: int
) -> None:
    """The read that is parked is released for him: he need not wait for its end."""
    quiet, other = store.follow(run_id), run_id + 10**5
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(quiet.batch)
        assert await store.follow(other).batch(0.1) == []
        late = store.follow(other + 1)
        assert await late.batch(0.1) == []
        began = time.monotonic()
        await write(store, other + 1)
        assert await take(late, 1) == [1]
        assert time.monotonic() - began < 2.5  # its end would come after 3 s
        await write(store, run_id)


async def test_a_follower_that_never_reads(store: EventStore, run_id: int) -> None:
    """8,000 events pass: neither he nor the others keep them, and he gets them all."""
    store.maxlen = 100_000
    idle, quick = store.follow(run_id), store.follow(run_id)
    await write(store, run_id)
    assert await take(idle, 1) == [1]
    assert await take(quick, 1) == [1]
    for _ in range(16):
        await write(store, run_id, 500)
        await take(quick, 500)
    gc.collect()
    held = [o for o in gc.get_objects() if type(o) is StreamEvent]
    # The buffer, four pages that are shared for a second, and one batch.
    assert len([one for one in held if one.run_id == run_id]) <= 1_000 + 5 * 500
    del held
    assert await take(idle, 8_000) == list(range(2, 8_002))


@pytest.mark.parametrize("count", [99, 100, 101])
async def test_a_close_that_fills_a_reply(
    store: EventStore, run_id: int, count: int
) -> None:
    """Whoever has read the end ends, also where the reply had no room for more."""
    await write(store, run_id)
    follower = store.follow(run_id)
    assert await take(follower, 1) == [1]
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_follow_to_the_end, follower, count + 1)
            await eventually(lambda: bool(store._hub()._topics))
            close = ("system", "close")
            await store.add_many(run_id, [("llm", "stream")] * (count - 1) + [close])
    assert follower.end is FollowEnd.CLOSED


async def _follow_to_the_end(follower: Any, count: int) -> None:
    found = [one.sequence async for one in follower]
    assert found == list(range(2, count + 1))


async def test_large_events_do_not_pile_up(store: EventStore, run_id: int) -> None:
    """Pages and replies become shorter when the events are large."""
    text = "x" * 1_000_000
    assert await store.follow(run_id).batch(0.05) == []
    for _ in range(40):
        await store.add(run_id, "llm", "stream", {"text": text})
    follower = store.follow(run_id)
    assert await take(follower, 40) == list(range(1, 41))
    assert follower._seat is not None
    topic = follower._seat.topic
    assert sum(len(one.data["text"]) for one in topic.buffer._events) < 4_000_000


async def test_who_always_has_something_lets_the_loop_breathe(
    store: EventStore, run_id: int
) -> None:
    """Also where nothing has to be waited for."""
    await write(store, run_id)
    follower = store.follow(run_id)
    assert await take(follower, 1) == [1]
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.lowlevel.checkpoint()
            beats += 1

    assert await store.follow(run_id).batch(0.2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        await write(store, run_id, 900)
        other = store.follow(run_id)
        await take(other, 901)
        seat = follower._seat
        assert seat is not None
        topic = seat.topic
        before, batches = beats, 0
        number = topic.buffer.first
        while True:
            seat.number, follower._cursor.id = number, topic.buffer.base
            assert await follower.batch()
            batches += 1
            if batches == 50:
                break
        assert beats - before >= 40
        tasks.cancel_scope.cancel()


# -- cancellation, closing, loops, forks


async def test_a_storm_of_cancellations(store: EventStore, run_id: int) -> None:
    """Followers that come and go by the hundred do nothing to one who stays."""
    found: list[int] = []

    async def stay() -> None:
        found.extend(await take(store.follow(run_id), 200))

    async def come_and_go(number: int) -> None:
        for turn in range(20):
            follower = store.follow(run_id, "$" if turn % 2 else "0-0")
            with anyio.move_on_after(0.001 * (number % 7)):
                async for _ in follower:
                    pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stay)
        for number in range(30):
            tasks.start_soon(come_and_go, number)
        for _ in range(200):
            await write(store, run_id)
    assert found == list(range(1, 201))


async def test_nothing_is_lost_by_a_cancellation(
    store: EventStore, run_id: int
) -> None:
    """A batch whose time is over takes nothing with it."""
    follower = store.follow(run_id)
    found: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def produce() -> None:
            for _ in range(300):
                await write(store, run_id)

        tasks.start_soon(produce)
        with anyio.fail_after(30):
            while len(found) < 300:
                for one in await follower.batch(0.0005):
                    assert isinstance(one, StreamEvent)
                    found.append(one.sequence)
    assert found == list(range(1, 301))


async def test_abandoned_followers_leave_nothing(
    store: EventStore, run_id: int
) -> None:
    await write(store, run_id, 2)
    for _ in range(100):
        async for _one in store.follow(run_id):
            break
    gc.collect()
    followers = [o for o in gc.get_objects() if type(o).__name__ == "Follower"]
    assert [f for f in followers if f.run_id == run_id] == []


async def test_closing_the_store_ends_its_followers(
    redis_url: str, run_id: int, bare: Redis
) -> None:
    """Those that wait, and those that do not yet; the store can be used again."""
    store = EventStore(redis_url)
    waiting, later = store.follow(run_id), store.follow(run_id)
    assert await later.batch(0.05) == []
    async with anyio.create_task_group() as tasks:
        found: list[list[Followed]] = []

        async def follow() -> None:
            found.append([one async for one in waiting])

        tasks.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await store.aclose()
    assert found == [[]]
    assert waiting.ended
    assert await later.batch() == []
    assert later.ended
    await write(store, run_id)
    assert await take(store.follow(run_id), 1) == [1]
    await store.aclose()


async def test_closing_the_store_ends_a_follower_that_reads(
    own_server: DevServer,
) -> None:
    """The page that it reads meanwhile does not lead it to a task of its own."""
    store = EventStore(own_server.url)
    assert not await store.exists(1)
    own_server.freeze()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            follower = store.follow(1)
            tasks.start_soon(follower.batch)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(store.aclose)
            await anyio.wait_all_tasks_blocked()
            own_server.thaw()
    assert follower.end is FollowEnd.LEFT
    async with Redis.from_url(own_server.url, protocol=2) as admin:
        names = [client["name"] for client in await admin.client_list()]
    assert names == [""]  # the administrator alone


async def test_one_who_left_is_closed_without_waking_the_others(
    store: EventStore, run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of a thousand clients that leave would wake all the others."""
    follower, other = store.follow(run_id), store.follow(run_id)
    assert await other.batch(0.05) == []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.batch)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    woken: list[RunTopic] = []
    monkeypatch.setattr(RunTopic, "wake", woken.append)
    await follower.aclose()
    assert (follower.end, woken) == (FollowEnd.LEFT, [])


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_closed_while_somebody_waits_with_it(
    store: EventStore, run_id: int, timeout: float | None
) -> None:
    """Whoever waits is told; those who wait with another one wait on."""
    follower, other = store.follow(run_id), store.follow(run_id)
    assert await follower.batch(0.05) == await other.batch(0.05) == []
    found: list[Followed] = []

    async def wait() -> None:
        found.extend(await other.batch(timeout))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            async with anyio.create_task_group() as inner:
                inner.start_soon(follower.batch, timeout)
                await anyio.wait_all_tasks_blocked()
                await follower.aclose()
            assert follower.end is FollowEnd.LEFT
            assert found == []
            await write(store, run_id)
    assert len(found) == 1


def test_one_store_in_two_loops(redis_url: str, run_id: int) -> None:
    """Also where the first one was closed under it, and a follower waits in it."""
    store = EventStore(redis_url)
    left: list[Any] = []

    async def follow(expected: int, *, closes: bool = False) -> None:
        await write(store, run_id)
        follower = store.follow(run_id)
        assert await take(follower, expected) == list(range(1, expected + 1))
        left.append(asyncio.create_task(follower.batch()))
        await asyncio.sleep(0.02)
        if closes:
            await store.aclose()

    for expected in (1, 2, 3):
        asyncio.run(follow(expected, closes=expected == 3))


CHILD = """
import asyncio, os, sys
from bls_agent.runs import EventStore
url, run_id = sys.argv[1], int(sys.argv[2])
store = EventStore(url)

async def parent():
    follower = store.follow(run_id)
    await store.add(run_id, "a", "b")
    assert [e.sequence for e in await follower.batch()] == [1]
    waiting = asyncio.ensure_future(follower.batch())
    await asyncio.sleep(0.1)
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.events._set_running_loop(None)
            asyncio.run(child(follower))
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
        os._exit(0)
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        await asyncio.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert [e.sequence for e in await asyncio.wait_for(waiting, 10)] == [2]
    await store.add(run_id, "system", "close")
    assert [e.sequence for e in await follower.batch()] == [3]
    await store.aclose()

async def child(inherited):
    assert await asyncio.wait_for(inherited.batch(), 10) == []
    assert inherited.end == "left"
    follower = store.follow(run_id)
    assert [e.sequence for e in await follower.batch()] == [1]
    await store.add(run_id, "a", "b")
    assert [e.sequence for e in await follower.batch()] == [2]
    await store.aclose()

asyncio.run(parent())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_follows_on_its_own(redis_url: str, run_id: int) -> None:
    """It opens its own connections; the parent goes on to wait on his."""
    assert run_python("-c", CHILD, redis_url, str(run_id), timeout=60).code == 0
