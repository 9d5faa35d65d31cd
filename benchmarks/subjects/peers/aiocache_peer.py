"""aiocache: its decorator on Redis, with JSON and a pool for fifty tasks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from aiocache import Cache, cached
from aiocache.serializers import JsonSerializer

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.cached_calls import day_bars, measure


async def run(options: Options) -> dict[str, Any]:
    """Measure hits."""
    where = urlsplit(options["url"])
    decorate = cached(
        ttl=600,
        cache=Cache.REDIS,
        endpoint=where.hostname,
        port=where.port,
        serializer=JsonSerializer(),
        namespace=options["namespace"],
        pool_max_size=50,
    )
    result = await measure(decorate(day_bars), options)
    await decorate.cache.close()
    return result


if __name__ == "__main__":
    act(run)
