"""BLPOP, JSON, handler, in a loop: what a service writes without an SDK.

``outcomes`` adds what an agent does besides: a record of each command's end in the
console list, which is capped in the same round trip.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import orjson
from redis.asyncio import Redis

from benchmarks.subjects.acting import Options, act, on_cue


async def run(options: Options) -> dict[str, float]:
    """Run ``pieces`` times ``count`` commands.

    The clock of each piece runs from its first handler until the last reply.
    """
    count, handled, began = options["count"], 0, 0.0

    async def nothing() -> None:
        nonlocal handled, began
        if not handled % count:
            began = time.perf_counter()
        handled += 1

    handlers = {"nothing": nothing}
    async with Redis.from_url(options["url"]) as redis:

        async def piece() -> float:
            end = handled + count
            while handled < end:
                popped = await redis.blpop([options["control"]], timeout=2)
                if popped is None:
                    continue
                command = orjson.loads(popped[1])
                await handlers[command["command"]](**command.get("args", {}))
                if options["outcomes"]:
                    await write_outcome(redis, options["console"], command)
            return time.perf_counter() - began

        await redis.ping()
        return {"seconds": sum(await on_cue(piece, options["pieces"]))}


async def write_outcome(redis: Redis, key: str, command: dict[str, Any]) -> None:
    """Append an outcome record and cap the list, in one round trip."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    record = {
        "timestamp": now.replace("+00:00", "Z"),
        "level": "info",
        "message": f"command {command['command']!r} succeeded",
        "metadata": {
            "commandId": command["id"],
            "command": command["command"],
            "outcome": "succeeded",
            "durationMs": 0.0,
            "result": None,
        },
    }
    async with redis.pipeline(transaction=False) as pipe:
        _ = pipe.rpush(key, orjson.dumps(record))
        _ = pipe.ltrim(key, -10_000, -1)
        await pipe.execute()


if __name__ == "__main__":
    act(run)
