"""The function cache of this package."""

from __future__ import annotations

from typing import Any

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.cached_calls import day_bars, measure
from bls_agent.workers import FunctionCache


async def run(options: Options) -> dict[str, Any]:
    """Measure hits."""
    async with FunctionCache(options["url"]) as cache:
        cached = cache.cached(ttl=600)(day_bars)
        result = await measure(cached, options)
        stats = cache.stats(cached)
        if stats.misses != stats.computed or stats.redis_failures:
            raise ValueError(stats)
        return result


if __name__ == "__main__":
    act(run)
