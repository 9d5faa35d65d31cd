"""How a cached function is measured, whoever caches it.

Nothing but the standard library: it also runs where only a peer is installed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.subjects.acting import Options, on_cue

__all__ = ["day_bars", "measure"]

CODES = 50
Call = Callable[[str, str], Awaitable[dict[str, Any]]]


async def day_bars(code: str, day: str) -> dict[str, Any]:
    """What is cached: a small answer of a service."""
    bars = [{"open": 10.5, "close": 11.25, "volume": 120_000 + n} for n in range(5)]
    return {"code": code, "day": day, "bars": bars, "adjusted": True}


async def measure(call: Call, options: Options) -> dict[str, Any]:
    """Call a cached function, on each cue one by one and then by fifty tasks.

    Returns:
        Nanoseconds of each single call; and of the tasks together, in seconds.
    """
    codes = [f"{options['namespace']}{number:06}.SZ" for number in range(CODES)]
    expected = [await day_bars(code, "2026-01-12") for code in codes]
    noted: list[int] = []

    async def check() -> None:
        got = [await call(code, "2026-01-12") for code in codes]
        if got != expected:
            raise ValueError(got)

    async def part() -> float:
        for code in itertools.islice(itertools.cycle(codes), options["singles"]):
            began = time.perf_counter_ns()
            await call(code, "2026-01-12")
            noted.append(time.perf_counter_ns() - began)
        began = time.perf_counter_ns()
        await asyncio.gather(*(repeat(code) for code in codes))
        return (time.perf_counter_ns() - began) / 1e9

    async def repeat(code: str) -> None:
        for _ in range(options["each"]):
            await call(code, "2026-01-12")

    for _ in range(2):
        await check()  # computed, and then as it comes back
    seconds = await on_cue(part, options["pieces"])
    return {"nanoseconds": noted, "seconds": sum(seconds)}
