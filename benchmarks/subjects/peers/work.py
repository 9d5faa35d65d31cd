"""What the handlers of every peer do, and what the clients that feed them do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.subjects.acting import cued, say

__all__ = ["Tally", "feed", "feed_on_cue"]

AT_ONCE = 100  # pushes under way at the same time while a queue is filled


class Tally:
    """Counts commands and times them: from first to last, and each on its way.

    Attributes:
        complete: Set when all have been handled.
    """

    def __init__(self, count: int) -> None:
        """Remember how many commands there will be."""
        self._count = count
        self._handled = 0
        self._began = self._ended = 0.0
        self._taken: list[int] = []
        self.complete = asyncio.Event()

    def handle(self, at: int = 0) -> None:
        """Count one command, pushed at ``at`` nanoseconds or long ago."""
        if at:
            self._taken.append(time.monotonic_ns() - at)
        if not self._handled:
            self._began = time.perf_counter()
        self._handled += 1
        if self._handled == self._count:
            self._ended = time.perf_counter()
            self.complete.set()

    def result(self) -> dict[str, object]:
        """Give what was measured."""
        return {"seconds": self._ended - self._began, "nanoseconds": self._taken}


async def feed(push: Callable[[], Awaitable[object]], count: int) -> None:
    """Fill a queue, quickly."""
    for start in range(0, count, AT_ONCE):
        number = min(AT_ONCE, count - start)
        await asyncio.gather(*(push() for _ in range(number)))


async def feed_on_cue(push: Callable[[int], Awaitable[object]], count: int) -> None:
    """Push one command on each cue, with the time of its push."""
    say(ready=True)
    for _ in range(count):
        await cued()
        await push(time.monotonic_ns())
