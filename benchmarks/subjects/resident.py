"""Measures memory and processor time of this process."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.subjects.acting import Options, say

__all__ = ["be_idle", "rss"]

SETTLING = 2.0  # seconds until what follows the opening is over


def rss() -> int:
    """Give the resident memory in bytes, as the kernel counts it."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def be_idle(
    live: Callable[[int], Awaitable[None]], before: int, options: Options
) -> dict[str, float]:
    """Open the first one, then the other ones together, and look at the process.

    Args:
        live: Opens the one with this number.
        before: Resident memory before anything was imported.
        options: ``count`` of those to open, ``seconds`` to be idle.
    """
    await live(0)
    await _settle()
    one = rss()
    began = time.perf_counter()
    await asyncio.gather(*(live(number) for number in range(1, options["count"])))
    opening = time.perf_counter() - began
    await _settle()
    all_of_them = rss()
    say(idle=True)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(options["seconds"])
    share = (time.process_time() - used) / (time.perf_counter() - began)
    gc.collect()
    return {
        "first": one - before,
        "next": (all_of_them - one) / (options["count"] - 1),
        "grown": rss() - all_of_them,
        "opening": opening,
        "share": share,
    }


async def _settle() -> None:
    await asyncio.sleep(SETTLING)
    gc.collect()
