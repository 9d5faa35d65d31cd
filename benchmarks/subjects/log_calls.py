"""Measures single log calls; what is called is told by the modules that use it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from benchmarks.subjects.acting import Options, on_cue

__all__ = ["time_calls"]

BURST = 20  # calls in a row, as a host makes them between two waits
PAUSE = 0.001  # seconds in which the consumer gets its turn


async def time_calls(
    call: Callable[[int], None], options: Options
) -> dict[str, list[int]]:
    """Time ``count`` calls from the loop and as many from a thread, on each cue.

    Gives nanoseconds of each call, from ``loop`` and from ``thread``.
    """
    found: dict[str, list[int]] = {"loop": [], "thread": []}

    async def piece() -> None:
        found["loop"] += await from_the_loop(call, options["count"])
        found["thread"] += await from_another_thread(call, options["count"])

    await on_cue(piece, options["pieces"])
    return found


async def from_the_loop(call: Callable[[int], None], count: int) -> list[int]:
    """Time calls made by a coroutine; gives nanoseconds."""
    clock, taken = time.perf_counter_ns, []
    for start in range(0, count, BURST):
        for number in range(start, start + BURST):
            began = clock()
            call(number)
            taken.append(clock() - began)
        await asyncio.sleep(PAUSE)
    return taken


async def from_another_thread(call: Callable[[int], None], count: int) -> list[int]:
    """Time calls made by a thread while the loop is free; gives nanoseconds."""
    clock, taken = time.perf_counter_ns, []
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def work() -> None:
        for start in range(0, count, BURST):
            for number in range(start, start + BURST):
                began = clock()
                call(number)
                taken.append(clock() - began)
            time.sleep(PAUSE)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=work).start()
    await over.wait()
    return taken
