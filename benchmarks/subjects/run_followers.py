"""Many followers of one run in one process."""

from __future__ import annotations

import asyncio

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.resident import follow_all, rss


async def run(options: Options) -> dict[str, float]:
    """Follow with ``count`` tasks until each has been given ``events`` events."""
    before = rss()
    from bls_agent import EventStore  # noqa: PLC0415 - its memory is measured

    async with EventStore(options["url"]) as store:

        async def follow(waiting: asyncio.Event) -> int:
            given = 0
            follower = store.follow(options["run"])
            waiting.set()
            async for _ in follower:
                given += 1
                if given == options["events"]:
                    break
            return given

        return await follow_all(follow, before, options)


if __name__ == "__main__":
    act(run)
