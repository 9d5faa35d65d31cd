"""Measures memory and processor time of this process."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.subjects.acting import Options, say

__all__ = ["be_idle", "follow_all", "rss"]

AT_ONCE = 50
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


async def follow_all(
    follow: Callable[[asyncio.Event], Coroutine[Any, Any, int]],
    before: int,
    options: Options,
) -> dict[str, float]:
    """Begin to follow with many tasks, say that they wait, and measure what it costs.

    Args:
        follow: Sets the event when it waits; gives how many events it was given.
        before: Resident memory before anything was imported.
        options: ``count`` of the tasks.
    """

    async def begin(count: int) -> list[asyncio.Task[int]]:
        tasks: list[asyncio.Task[int]] = []
        while len(tasks) < count:  # a server takes only so many connections at once
            waiting = [asyncio.Event() for _ in range(min(AT_ONCE, count - len(tasks)))]
            tasks += [asyncio.create_task(follow(one)) for one in waiting]
            for one in waiting:
                await one.wait()
        await _settle()
        return tasks

    tasks = await begin(1)
    one = rss()
    tasks += await begin(options["count"] - 1)
    all_of_them = rss()
    used = time.process_time()
    say(ready=True)
    done = await asyncio.gather(*tasks)
    busy = time.process_time() - used
    return {
        "first": one - before,
        "next": (all_of_them - one) / (options["count"] - 1),
        "busy": busy,
        "events": sum(done),
    }
