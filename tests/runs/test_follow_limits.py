"""What following asks for and holds: short waits, bounded replies, no busy polling."""

from __future__ import annotations

from collections import deque
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError
from bls_agent.devserver import DevServer
from bls_agent.runs import EventStore, Followed, StreamEvent, hub
from bls_agent.runs.hub import COUNT, StreamReader
from bls_agent.runs.reading import RunReader
from bls_agent.runs.sse import _write_chunks, event_frames
from bls_agent.runs.topic import MOST, RunTopic
from bls_agent.testing import Delay, FaultProxy
from tests.harness import eventually


async def test_waits_shorter_than_a_read(own_server: DevServer) -> None:
    """What is there is given, and the connection that others use stays open."""
    async with EventStore(own_server.url) as writer, FaultProxy(own_server.url) as link:
        await writer.add_many(1, [("a", "b")] * 5)
        link.start(Delay(0.05))
        async with EventStore(link.url) as reader:
            for _ in range(3):
                assert len(await reader.subscribe(1, "0-0", block_ms=1)) == 5
            assert link.accepted <= 2  # one for requests, one that waits
            assert len(await reader.follow(1).batch(0)) == 5
            frames = event_frames(reader, 1, heartbeat=0.01)
            found = [await anext(frames) for _ in range(2)]
            assert found[1].count(b"event: a.b") == 5
            await frames.aclose()
        async with EventStore(own_server.url) as reader:
            follower = reader.follow(2)
            with anyio.fail_after(10):
                assert [await follower.batch(0) for _ in range(50)] == [[]] * 50


@pytest.mark.parametrize("timeout", [float("nan"), -1, "5", True])
async def test_a_time_that_is_none_is_refused(timeout: Any) -> None:
    """At once, and not by a wait without an end."""
    follower = EventStore("redis://127.0.0.1:1").follow(1)
    with anyio.fail_after(10), pytest.raises(ConfigurationError, match="timeout"):
        await follower.batch(timeout)


async def test_no_wait_for_who_has_fallen_behind_the_ring(
    store: EventStore, run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with 0 all is given that is there: what others have no more is read."""
    append, taken = RunTopic.append, list[str]()

    def note(self: RunTopic, events: Any, sizes: Any) -> None:
        append(self, events, sizes)
        taken.append(self.buffer.base)

    monkeypatch.setattr(RunTopic, "append", note)
    follower = store.follow(run_id)
    first = await store.add(run_id, "a", "b")
    assert len(await follower.batch()) == 1
    assert await follower.batch(0.1) == []  # it waits with the others
    await store.add_many(run_id, [("a", "b")] * (MOST + 1))
    await eventually(lambda: bool(taken) and taken[-1] != first)
    assert await follower.batch(0) != []


async def test_a_long_heartbeat_does_not_hold_the_end(
    store: EventStore, run_id: int
) -> None:
    frames = event_frames(store, run_id, heartbeat=3_600)
    await anext(frames)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                with pytest.raises(StopAsyncIteration):
                    await anext(frames)

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            frames.end()


async def test_a_deleted_tail_is_not_polled_for(
    store: EventStore, run_id: int, bare: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits before it reads once; what comes wakes him."""
    ids = await store.add_many(run_id, [("a", "b")] * 2)
    await bare.xdel(f"run:{run_id}:events", ids[-1])
    at_end = store.follow(run_id, ids[-1])
    assert await at_end.batch(0.1) == []
    reads: list[float] = []
    read = RunReader.read

    async def count(self: RunReader, *args: Any, **named: Any) -> Any:
        reads.append(anyio.current_time())
        return await read(self, *args, **named)

    monkeypatch.setattr(RunReader, "read", count)
    before = store.follow(run_id, ids[0])
    assert await before.batch(2.0) == []
    assert len(reads) <= 2
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def take() -> None:
                assert len(await before.batch()) == 1

            tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            await store.add(run_id, "a", "b")


async def test_many_runs_share_the_first_reply(
    store: EventStore, run_id: int, bare: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply of which nobody knows the sizes is short; a close at its end is heard."""
    runs = [run_id + number for number in range(COUNT)]
    followers = [store.follow(one, "$") for one in runs]
    asked: list[int] = []
    take = StreamReader._deliver

    async def note(self: StreamReader, reply: Any) -> None:
        if reply:
            asked.append(self._posted.count * len(self._posted.runs))
        await take(self, reply)

    monkeypatch.setattr(StreamReader, "_deliver", note)

    async def follow(number: int) -> None:
        async for _ in followers[number]:
            pass

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(COUNT):
                assert await followers[number].batch(0) == []
                tasks.start_soon(follow, number)
            await anyio.wait_all_tasks_blocked()
            for one in runs:
                await store.add(one, "system", "close")
    assert asked
    assert asked[0] <= COUNT
    for one in runs:
        await store.delete(one)


def test_frames_that_are_written_are_let_go_of() -> None:
    fields = [b"event_category", b"a", b"event_action", b"b"]
    data = [b"data", b'{"x":"' + b"y" * 100_000 + b'"}']
    items: deque[Followed] = deque(
        StreamEvent.decode(1, b"%d-0" % number, [*fields, *data]) for number in range(9)
    )
    chunks = _write_chunks(items)
    next(chunks)
    assert len(items) == 6  # two were written, and the one that did not fit
    assert all("sse" not in vars(item) for item in items)


async def test_a_late_answer_is_not_taken_for_none(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that has become slow is not given up at the end of each silent read."""
    monkeypatch.setattr(hub, "BLOCK", 0.2)

    async def reads() -> int:
        stats: Any = await admin.info("commandstats")
        return int(stats.get("cmdstat_xread", {"calls": 0})["calls"])

    async with FaultProxy(own_server.url) as link, EventStore(link.url) as store:
        follower = store.follow(1)
        assert await follower.batch(0.1) == []
        async with anyio.create_task_group() as tasks, link.during(Delay(0.1)):
            tasks.start_soon(follower.batch)
            opened, enough = link.accepted, await reads() + 4

            async def have_read() -> bool:
                return await reads() >= enough

            await eventually(have_read)
            assert link.accepted == opened
            assert follower.unavailable is None
            tasks.cancel_scope.cancel()
