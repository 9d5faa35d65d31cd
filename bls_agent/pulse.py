"""Whether an event loop moves: a timer that counts in it, and one who looks from outside."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - a loop of asyncio is what beats

__all__ = ["Beat", "StallCounts", "Stillness"]

SHORTEST: Final = 0.02  # seconds between two beats, and two looks
LONGEST: Final = 1.0

W = TypeVar("W")


@dataclass
class StallCounts:
    """How often an event loop stood still, and how long the longest time, in seconds."""

    stalls: int = 0
    longest: float = 0.0


@dataclass
class Stillness:
    """How long a loop has stood still, for one who looks again and again.

    Time that the looker itself did not live through is not counted: after a suspend or
    a debugger both have stood still, and the loop gets its time to move.

    Attributes:
        seen: The count of the loop's beat at the last look.
        seconds: How long it has been so.
    """

    seen: int = -1
    seconds: float = 0.0

    def look(self, count: int, elapsed: float, asked: float, longest: float) -> None:
        """Look once more.

        Args:
            count: The beat's count now.
            elapsed: Seconds since the last look.
            asked: Seconds that were to pass between the two.
            longest: Seconds beyond that which may pass on a busy machine.
        """
        if count != self.seen:
            self.seen, self.seconds = count, 0.0
        else:
            self.seconds += min(elapsed, asked + longest)


class Beat(Generic[W]):
    """The pulse of one event loop: counts as long as the loop moves.

    Attributes:
        loop: Whose.
        count: How often it has beaten.
        at: Monotonic seconds of the last time.
        thread: Where the loop runs.
        period: Seconds between two beats.
        watches: For whom; it ends with the last of them.
        stillness: What the looker has seen of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remember the loop; :meth:`add` begins."""
        self.loop = loop
        self.count = 0
        self.at = time.monotonic()
        self.thread = 0
        self.period = LONGEST
        self.watches: dict[int, W] = {}
        self.stillness = Stillness()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watch: W, shortest: float) -> None:
        """Beat for one more, who wants to know of so many seconds; in the loop's thread."""
        self.period = min(self.period, max(SHORTEST, shortest / 10))
        self.watches[id(watch)] = watch
        if self._timer is not None:
            self._timer.cancel()
        self._tick()

    def _tick(self) -> None:
        self.count += 1
        self.at = time.monotonic()
        self.thread = threading.get_ident()
        self._timer = None
        if self.watches:
            self._timer = self.loop.call_later(self.period, self._tick)

    def stands(self, seconds: float) -> bool:
        """Tell whether the loop has been late for so long, its own pace allowed for."""
        return self.stillness.seconds >= seconds + self.period
