"""Many loops around XREAD BLOCK in one process, a connection each."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.resident import follow_all, rss


async def run(options: Options) -> dict[str, float]:
    """Read with ``count`` loops until each has read ``events`` entries."""
    before = rss()
    from redis.asyncio import Redis  # noqa: PLC0415 - its memory is measured

    key = f"run:{options['run']}:events"

    async def follow(waiting: asyncio.Event) -> int:
        given, last = 0, "0-0"
        async with Redis.from_url(options["url"], socket_timeout=None) as redis:
            await redis.ping()
            waiting.set()
            while given < options["events"]:
                found: Any = await redis.xread({key: last}, block=5_000)
                for _, entries in found:
                    given, last = given + len(entries), entries[-1][0]
            return given

    return await follow_all(follow, before, options)


if __name__ == "__main__":
    act(run)
