"""Many idle projects in one process, written by hand: a client and two tasks each."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.resident import be_idle, rss


async def run(options: Options) -> dict[str, float]:
    """Begin one project, then all others at once, and be idle with them."""
    before = rss()
    from redis.asyncio import Redis  # noqa: PLC0415 - its memory is measured

    async def refresh(redis: Redis, key: str, written: asyncio.Event) -> None:
        while True:
            await redis.set(key, "在线", ex=60)
            written.set()
            await asyncio.sleep(10)

    async def take(redis: Redis, key: str) -> None:
        while True:
            await redis.blpop([key], timeout=2)

    tasks: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:

        async def live(number: int) -> None:
            project = f"{options['project']}_{number}"
            redis = await stack.enter_async_context(Redis.from_url(options["url"]))
            written = asyncio.Event()
            tasks.append(asyncio.create_task(take(redis, f"{project}_控制")))
            refreshing = refresh(redis, f"{project}_项目状态", written)
            tasks.append(asyncio.create_task(refreshing))
            await written.wait()

        found = await be_idle(live, before, options)
        if any(task.done() for task in tasks):
            raise RuntimeError("a project has ended before its time")
        for task in tasks:
            task.cancel()
        # A read may keep its cancellation to itself, and its task goes on.
        await asyncio.wait(tasks, timeout=5)
    return found


if __name__ == "__main__":
    act(run)
