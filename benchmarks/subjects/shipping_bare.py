"""Variadic RPUSH and LTRIM over bytes that are prepared when the clock starts."""

from __future__ import annotations

import time

from redis.asyncio import Redis

from benchmarks.subjects.acting import Options, act, on_cue


async def run(options: Options) -> dict[str, float]:
    """Write the elements of one list to another, ``batch`` at once; on each cue."""
    batch, limit, key = options["batch"], options["limit"], options["console"]
    async with Redis.from_url(options["url"]) as redis:
        records = await redis.lrange(options["prepared"], -options["count"], -1)

        async def wave() -> float:
            began = time.perf_counter()
            for start in range(0, len(records), batch):
                async with redis.pipeline(transaction=False) as pipe:
                    _ = pipe.rpush(key, *records[start : start + batch])
                    _ = pipe.ltrim(key, -limit, -1)
                    await pipe.execute()
            return time.perf_counter() - began

        return {"seconds": sum(await on_cue(wave, options["waves"]))}


if __name__ == "__main__":
    act(run)
