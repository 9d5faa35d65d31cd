"""BLPOP, JSON, handler, in a loop that notes how long each command was on its way."""

from __future__ import annotations

import time

import orjson
from redis.asyncio import Redis

from benchmarks.subjects.acting import Options, act, say


async def run(options: Options) -> dict[str, list[int]]:
    """Handle ``count`` commands; gives nanoseconds from push to handler."""
    taken: list[int] = []

    async def note(at: int) -> None:
        taken.append(time.monotonic_ns() - at)

    handlers = {"note": note}
    async with Redis.from_url(options["url"]) as redis:
        await redis.ping()
        say(ready=True)
        while len(taken) < options["count"]:
            popped = await redis.blpop([options["control"]], timeout=2)
            if popped is None:
                continue
            command = orjson.loads(popped[1])
            await handlers[command["command"]](**command.get("args", {}))
    return {"nanoseconds": taken}


if __name__ == "__main__":
    act(run)
