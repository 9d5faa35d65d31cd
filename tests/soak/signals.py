"""A signal at every moment around the pop: nothing is lost, the farewell is written."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import orjson
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from tests.harness import records, status_of

SERVICE = """
import os, sys, time, anyio
from functools import partial
from redis.asyncio import Redis
from bls_agent import ProjectAgent
from tests.harness import command_bytes

project, url, name, delay, number = sys.argv[1:]
agent = ProjectAgent(project, redis=url, mode="blocking", prefetch=4, shutdown_timeout=3)
number = int(number)

@agent.command
async def mark(number: int) -> None:
    await anyio.sleep(0)

async def main():
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(agent.run, banner=False))
        async with Redis.from_url(url, protocol=2) as redis:
            await redis.rpush(f"{project}_控制", *map(command_bytes, range(3)))
        # They are on their way now, or a little later.
        end = time.perf_counter() + float(delay)
        while time.perf_counter() < end:
            await anyio.sleep(0)
        for _ in range(number):
            os.kill(os.getpid(), int(name))

anyio.run(main)
print("returned", flush=True)
"""


async def _one(url: str, redis: Redis, number: int, delay: float, times: int) -> None:
    project = f"信号_{secrets.token_hex(4)}"
    words = [project, url, str(number), str(delay), str(times)]
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            out, errors = await anyio.to_thread.run_sync(
                lambda: process.communicate(timeout=20)
            )
        finally:
            process.kill()
    assert (process.returncode, out, errors) == (0, "returned\n", "")
    assert await status_of(redis, project) == "离线"
    left = await redis.lrange(f"{project}_控制", 0, -1)
    told = [r["metadata"] for r in await records(redis, project)]
    ended = [one["commandId"] for one in told if "outcome" in one]
    waiting = [orjson.loads(value)["id"] for value in left]
    assert sorted([*ended, *waiting]) == ["cmd-0", "cmd-1", "cmd-2"]
    assert ended == sorted(ended)
    for suffix in ("项目状态", "项目控制台", "控制"):
        await redis.delete(f"{project}_{suffix}")


async def sweep(url: str, moments: int, last: float = 0.002) -> int:
    """Send a signal at so many moments from the push on; give the number of lost: 0.

    SIGTERM, SIGINT, and each of them twice, take turns.

    Args:
        url: Where Redis is.
        moments: How many.
        last: Seconds from the push to the latest of them.
    """
    kinds = [
        (number, times)
        for times in (1, 2)
        for number in (signal.SIGTERM, signal.SIGINT)
    ]
    async with Redis.from_url(url, protocol=2) as redis:
        for moment in range(moments):
            number, times = kinds[moment % len(kinds)]
            await _one(url, redis, number, last * moment / moments, times)
    return 0


if __name__ == "__main__":
    with DevServer() as server:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
        anyio.run(sweep, server.url, count)
    print(f"{count} moments, 0 lost, 0 run twice, every farewell was written")
