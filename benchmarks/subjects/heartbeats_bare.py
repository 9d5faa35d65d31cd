"""Many workers of one process, as contract 001 shows it: a task and a SETEX each."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.resident import be_idle, rss


async def run(options: Options) -> dict[str, float]:
    """Begin one worker, then all others at once, over one client."""
    before = rss()
    from redis.asyncio import Redis  # noqa: PLC0415 - its memory is measured

    def say(name: str) -> str:
        now = datetime.now(UTC).isoformat()
        said = {
            "status": "running", "timestamp": now, "worker_id": name,
            "running_tasks": 0, "max_tasks": 5, "started_at": now,
            "last_heartbeat": now, "task_uuids": [],
        }  # fmt: skip
        return json.dumps(said)

    async def refresh(redis: Redis, name: str, written: asyncio.Event) -> None:
        while True:
            await redis.set(f"backtest:worker:{name}", say(name), ex=30)
            written.set()
            await asyncio.sleep(10)

    tasks: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        client = Redis.from_url(options["url"], single_connection_client=True)
        redis = await stack.enter_async_context(client)

        async def live(number: int) -> None:
            written = asyncio.Event()
            name = f"{options['project']}_{number}"
            tasks.append(asyncio.create_task(refresh(redis, name, written)))
            await written.wait()

        found = await be_idle(live, before, options)
        if any(task.done() for task in tasks):
            raise RuntimeError("a worker has ended before its time")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return found


if __name__ == "__main__":
    act(run)
