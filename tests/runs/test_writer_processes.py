"""Writers as processes: killed, frozen, forked, ended without a word."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from bls_agent import (
    EventStore,
    LeaseHeldError,
)
from bls_agent.runs.reading import RunKeys
from tests.harness import eventually, is_gone
from tests.programs import Program
from tests.runs.writing import take_over, written

# Older redis-py complains of a connection that a closed loop has left; nothing of ours does.
OURS = "bls_agent/"
LEASE = 1.0  # seconds

WRITER = """
import logging, os, sys, anyio
from bls_agent import EventStore

async def main(url, run_id, lease):
    async with EventStore(url, ttl=60) as store:
        async with store.run(run_id, lease=lease) as run:
            run.emit("a", "b", {"pid": os.getpid()})
            await run.flush()
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            run.emit("a", "c")
        print("left", run.stats().dropped, flush=True)

logging.basicConfig()
anyio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
"""

FORKS = """
import os, sys, anyio
from bls_agent import EventStore

async def main(url, run_id):
    async with EventStore(url) as store:
        async with store.run(run_id) as run:
            run.emit("a", "parent")
            child = os.fork()
            if child == 0:
                run.emit("a", "child")
                stats = run.stats()
                await run.__aexit__(None, None, None)
                ours = stats.dropped == {"forked": 2} and not stats.open
                os._exit(0 if ours and not run.is_owner else 1)
            status = os.waitpid(child, 0)[1]
            run.emit("a", "parent")
            assert await run.flush()
        print(status, run.stats().dropped, flush=True)

anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""

ENDS = """
import asyncio, sys
from bls_agent import EventStore

store = EventStore(sys.argv[1])
run = store.run(int(sys.argv[2]), lease=0.5)

async def main():
    await run.__aenter__()
    for n in range(1_000):
        run.emit("a", "b", {"n": n})

async def host(inside):
    async with run:
        for n in range(1_000):
            run.emit("a", "b", {"n": n})
        inside.set()
        await asyncio.Event().wait()

async def main_with_a_task():
    inside = asyncio.Event()
    task = asyncio.create_task(host(inside))
    await inside.wait()

if sys.argv[3] == "loop":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    run.emit("a", "b")
else:
    asyncio.run(main() if sys.argv[3] == "run" else main_with_a_task())
"""


class Processes:
    """Writers of one run."""

    def __init__(self, url: str, run_id: int, stack: ExitStack) -> None:
        self._words = (url, str(run_id))
        self._stack = stack

    def start(self, code: str, *words: str) -> Program:
        """Start one more."""
        return self._stack.enter_context(Program("-c", code, *self._words, *words))

    def writer(self, lease: float = LEASE) -> Program:
        """Start one that is ready."""
        writer = self.start(WRITER, str(lease))
        assert writer.line() == "ready"
        return writer


@pytest.fixture
def processes(redis_url: str, run_id: int) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(redis_url, run_id, stack)


async def names(store: EventStore, run_id: int) -> list[str]:
    events = await store.get_events(run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return [event.name for event in events]


async def test_killed(
    processes: Processes, store: EventStore, bare: Redis, run_id: int
) -> None:
    """The lease runs out, the books tell that nobody has ended the run, and it expires."""
    keys = RunKeys(run_id)
    writer = processes.writer()
    writer.kill()
    writer.wait()
    killed = time.monotonic()
    assert await bare.exists(keys.owner) == 1
    await eventually(lambda: is_gone(bare, keys.owner), LEASE + 1)
    assert time.monotonic() - killed <= LEASE + 1
    assert await bare.hget(keys.books, "owner") is not None
    assert 0 < await bare.ttl(keys.events) <= 60
    assert 0 < await bare.ttl(keys.books) <= 60
    assert await names(store, run_id) == ["lifecycle.started", "a.b"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
async def test_started_again_at_once(
    processes: Processes, store: EventStore, run_id: int
) -> None:
    """Who is started again on the same machine waits for no lease: the former one is dead."""
    first = processes.writer(60.0)
    with pytest.raises(LeaseHeldError):
        await store.run(run_id).__aenter__()
    first.kill()
    first.wait()
    async with store.run(run_id) as run:
        assert run.is_owner
    assert await names(store, run_id) == [
        "lifecycle.started", "a.b",
        "lifecycle.started", "lifecycle.completed", "system.close",
    ]  # fmt: skip


async def test_frozen_and_taken_over(
    processes: Processes, store: EventStore, bare: Redis, run_id: int
) -> None:
    """The frozen one comes back: it writes on, and does not end what is another's."""
    first = processes.writer()
    first.send_signal(signal.SIGSTOP)
    await eventually(lambda: is_gone(bare, RunKeys(run_id).owner), LEASE + 1)
    async with store.run(run_id) as run:
        first.send_signal(signal.SIGCONT)
        first.send()
        ended = first.end()
        assert (ended.code, ended.out) == (0, "left {}\n")
        assert run.is_owner
        run.emit("a", "d")
    assert await names(store, run_id) == [
        "lifecycle.started", "a.b",
        "lifecycle.started", "a.c", "lifecycle.completed",
        "a.d", "lifecycle.completed", "system.close",
    ]  # fmt: skip
    assert "belongs to another writer" in ended.err


async def test_frozen_and_back(
    processes: Processes, store: EventStore, bare: Redis, run_id: int
) -> None:
    """Nobody has taken the run meanwhile: it is held and ended by its writer."""
    writer = processes.writer()
    writer.send_signal(signal.SIGSTOP)
    await eventually(lambda: is_gone(bare, RunKeys(run_id).owner), LEASE + 1)
    writer.send_signal(signal.SIGCONT)

    async def back() -> bool:
        return await bare.exists(RunKeys(run_id).owner) == 1

    await eventually(back, LEASE + 1)
    writer.send()
    assert writer.line() == "left {}"
    assert (await names(store, run_id))[-2:] == ["lifecycle.completed", "system.close"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no children")
async def test_forked(processes: Processes, store: EventStore, run_id: int) -> None:
    """A child writes nothing, ends nothing and disturbs nobody; its parent goes on."""
    assert processes.start(FORKS).end().out == "0 {}\n"
    assert await names(store, run_id) == [
        "lifecycle.started", "a.parent", "a.parent",
        "lifecycle.completed", "system.close",
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["run", "loop"])
async def test_the_interpreter_exits(
    processes: Processes, store: EventStore, bare: Redis, run_id: int, how: str
) -> None:
    """Nobody has left the run: no hang, no end that nobody told; the lease ends by itself."""
    ended = processes.start(ENDS, how).end()
    assert ended.code == 0
    assert OURS not in ended.err
    found = await names(store, run_id)
    assert found[0] == "lifecycle.started"
    assert "system.close" not in found
    if how == "run":
        assert len(found) == 1_001
    await eventually(lambda: is_gone(bare, RunKeys(run_id).owner), 3.0)
    assert await bare.hget(RunKeys(run_id).books, "owner") is not None


async def test_the_program_ends_inside(
    processes: Processes, store: EventStore, run_id: int
) -> None:
    """A task stands in the block when asyncio.run() ends: the run is cancelled in order."""
    ended = processes.start(ENDS, "inside").end()
    assert ended.code == 0
    assert OURS not in ended.err
    found = await names(store, run_id)
    assert len(found) == 1_003
    assert found[-2:] == ["lifecycle.cancelled", "system.close"]


async def test_taken_over(
    store: EventStore, bare: Redis, run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else has the run: said once; events are written on, its end is not."""
    keys = RunKeys(run_id)
    async with store.run(run_id, lease=0.3) as run:
        await take_over(run, bare, keys)
        await eventually(lambda: "belongs to another writer" in caplog.text)
        run.emit("agent", "worker")
    assert await written(store, run_id) == [
        "lifecycle.started", "agent.worker", "lifecycle.completed",
    ]  # fmt: skip
    assert await bare.get(keys.owner) == b"somebody"
    assert await bare.hget(keys.books, "owner") == b"somebody"
    told = [r for r in caplog.records if "another writer" in r.message]
    assert len(told) == 1


async def test_an_end_alone_in_its_batch(
    store: EventStore, bare: Redis, run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a run that is another's: nothing is left to write, and that is no fault."""
    async with store.run(run_id, coalesce=0, buffer=2_000) as run:
        await bare.set(RunKeys(run_id).owner, "somebody", px=60_000)
        delivery: Any = run._delivery
        for n in range(499):  # with the last word but one a full batch
            run.emit("a", "b", {"n": n})
        assert len(delivery.buffer) == 499
    found = await written(store, run_id)
    assert len(found) == 501
    assert found[-1] == "lifecycle.completed"
    assert "belongs to another writer" in caplog.text
    assert run.stats().dropped == {}


async def test_taken_over_and_ended(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """The other one has ended the run: it is neither opened nor closed once more."""
    keys = RunKeys(run_id)
    async with store.run(run_id, lease=0.3) as run:
        await take_over(run, bare, keys)
        await bare.hdel(keys.books, "owner")
        await bare.delete(keys.owner)
        lease: Any = run._run_lease
        await eventually(lambda: lease.due == float("inf"))
        assert await bare.exists(keys.owner) == 0
    assert await written(store, run_id) == ["lifecycle.started", "lifecycle.completed"]


async def test_the_other_one_died(store: EventStore, bare: Redis, run_id: int) -> None:
    """It had taken the run over and did not end it: then it is ours again, with its end."""
    keys = RunKeys(run_id)
    async with store.run(run_id, lease=0.3) as run:
        await take_over(run, bare, keys)
        await bare.delete(keys.owner)
        await eventually(lambda: run.is_owner)
    assert (await written(store, run_id))[-1] == "system.close"
    assert await bare.hget(keys.books, "owner") is None


async def test_a_late_request_opens_nothing(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """A renewal that arrives behind the end of the run does nothing."""
    async with store.run(run_id) as run:
        lease: Any = run._run_lease
    await lease._renew()
    assert await bare.exists(RunKeys(run_id).owner) == 0
    assert await bare.hget(RunKeys(run_id).books, "owner") is None
