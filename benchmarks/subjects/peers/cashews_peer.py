"""cashews: its decorator on Redis, with JSON and a pool for fifty tasks."""

from __future__ import annotations

from typing import Any

from cashews import cache

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.cached_calls import day_bars, measure


async def run(options: Options) -> dict[str, Any]:
    """Measure hits."""
    cache.setup(options["url"], pickle_type="json", max_connections=50)
    result = await measure(cache(ttl=600)(day_bars), options)
    await cache.close()
    return result


if __name__ == "__main__":
    act(run)
