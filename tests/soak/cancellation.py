"""Outside cancellations at random moments: nothing is lost, nothing is swallowed.

The host cancels the agent in each way that it has, while it opens, lives and closes.
Every command is handled once or still waits, every cancellation comes out where it must,
and no task, thread or descriptor is left.

``python -m tests.soak.cancellation [rounds [seed]] [reliable] [uvloop]``
"""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import anyio
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.devserver import DevServer
from tests.harness import History, eventually, producing, status_of


def held() -> tuple[int, int, int]:
    """Count tasks, threads and descriptors of this process."""
    gc.collect()
    folder = Path("/proc/self/fd")
    descriptors = len(list(folder.iterdir())) if folder.exists() else 0
    return (len(asyncio.all_tasks()), threading.active_count(), descriptors)


async def _live(agent: ProjectAgent) -> None:
    async with agent:
        await asyncio.sleep(3_600)


async def _by_task(agent: ProjectAgent, delay: float) -> None:
    await _cancel(_live(agent), delay)


async def _by_run(agent: ProjectAgent, delay: float) -> None:
    await _cancel(agent.run(handle_signals=False), delay)


async def _cancel(life: Coroutine[Any, Any, object], delay: float) -> None:
    """Cancel a task of this life from outside; that has to come out of it."""
    task = asyncio.create_task(life)
    await asyncio.sleep(delay)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
    raise AssertionError("a cancellation was swallowed")


async def _twice(agent: ProjectAgent, delay: float) -> None:
    task = asyncio.create_task(_live(agent))
    await asyncio.sleep(delay)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(delay / 20)
    try:
        await task
    except asyncio.CancelledError:
        return
    raise AssertionError("a cancellation was swallowed")


async def _by_group(agent: ProjectAgent, delay: float) -> None:
    async def fail() -> None:
        await asyncio.sleep(delay)
        raise LookupError

    async def live_beside() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_live(agent))
            group.create_task(fail())

    # In a task of its own: Python 3.11 forgets to take back its cancellation.
    task = asyncio.create_task(live_beside())
    await asyncio.wait([task])
    error = task.exception()
    assert isinstance(error, BaseExceptionGroup)
    assert [type(one) for one in error.exceptions] == [LookupError]


async def _by_scope(agent: ProjectAgent, delay: float) -> None:
    with anyio.move_on_after(delay) as scope:
        await _live(agent)
    assert scope.cancelled_caught


async def _by_timeout(agent: ProjectAgent, delay: float) -> None:
    try:
        async with asyncio.timeout(delay):
            await _live(agent)
    except TimeoutError:
        return
    raise AssertionError("a timeout was swallowed")


async def _by_wait_for(agent: ProjectAgent, delay: float) -> None:
    try:
        await asyncio.wait_for(_live(agent), delay)
    except TimeoutError:
        return
    raise AssertionError("a timeout was swallowed")


WAYS: tuple[Callable[[ProjectAgent, float], Awaitable[None]], ...] = (
    _by_task, _by_run, _twice, _by_group, _by_scope, _by_timeout, _by_wait_for
)  # fmt: skip


async def cancel_outside(
    url: str, rounds: int, seed: int, mode: Literal["blocking", "reliable"] = "blocking"
) -> int:
    """Cancel an agent so many times; return the number of commands that it handled.

    Args:
        url: Where Redis is.
        rounds: How often.
        seed: Of the moments and the ways.
        mode: How the agent receives.
    """
    rng = random.Random(seed)
    project = f"取消_{secrets.token_hex(4)}"
    history = History()
    agent = ProjectAgent(project, redis=url, mode=mode, prefetch=rng.choice([1, 8]))
    history.attach(agent)
    async with Redis.from_url(url, protocol=2) as redis:
        await redis.ping()
        await _by_task(agent, 0.05)
        before = held()
        async with producing(history, redis, project, 0.002):
            for number in range(rounds):
                # Half of them while it opens, which takes a few milliseconds.
                delay = rng.uniform(0, rng.choice([0.0005, 0.004, 0.012]))
                await rng.choice(WAYS)(agent, delay)
                if number % 50 == 0:  # let it work, too
                    await _by_scope(agent, 0.05)
        await history.check(redis, project)
        assert not await redis.exists(f"bls_agent:{{{project}_控制}}:deliveries")
        await eventually(lambda: held() <= before)
        stats = agent.stats()
        assert not stats.faults
        settled = stats.logs_delivered + sum(stats.logs_dropped.values())
        assert stats.logs_accepted == settled + stats.logs_queued
        async with agent:
            await agent.ready(5)
            await eventually(lambda: len(history.handled) == len(history.pushed))
        assert await status_of(redis, project) == "离线"
        for suffix in ("项目状态", "项目控制台", "控制"):
            await redis.delete(f"{project}_{suffix}")
    return len(history.handled)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    count = numbers[0] if numbers else 10_000
    seed = numbers[1] if len(numbers) > 1 else secrets.randbits(32)
    print(f"seed {seed}", flush=True)
    mode: Literal["blocking", "reliable"]
    mode = "reliable" if "reliable" in sys.argv else "blocking"
    with DevServer() as server:
        handled = anyio.run(
            cancel_outside, server.url, count, seed, mode,
            backend_options={"use_uvloop": "uvloop" in sys.argv},
        )  # fmt: skip
    print(f"{count} cancellations, {handled} commands handled, 0 lost")
