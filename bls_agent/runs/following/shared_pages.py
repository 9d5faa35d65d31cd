"""Pages of a run that several followers want at the same time: read and decoded once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import anyio

from bls_agent.runs.event_ids import EventId, next_id
from bls_agent.runs.reading import Page, RunReader

__all__ = ["SharedPages"]

KEPT: Final = 4  # pages
PAGE_BYTES: Final = 1024 * 1024  # of a page, about: each of many followers may hold one
FRESH: Final = 1.0  # seconds for which a page is given to others


@dataclass
class _Kept:
    """A page, and when it was asked for."""

    page: Page
    asked_at: float


@dataclass
class _Turn:
    """Those who want to read the same run: one after the other."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0


class SharedPages:
    """Lets followers that go through a run side by side read each page once.

    Else a thousand that fall behind together would ask for a thousand pages each time,
    and never catch up again. What is kept is bounded, and given for a second only.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._kept: OrderedDict[tuple[int, EventId], _Kept] = OrderedDict()
        self._turns: dict[int, _Turn] = {}

    async def read(self, reader: RunReader, place: EventId, portion: int) -> Page:
        """Read behind a place.

        Args:
            reader: Of the run.
            place: Behind which event.
            portion: How many at most, if nobody has read there a moment ago.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        run_id, came_at = reader.keys.run_id, anyio.current_time()
        turn = self._turns.setdefault(run_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                page = self._find(run_id, place, came_at)
                if page is None:
                    asked_at = anyio.current_time()
                    page = await reader.read(
                        next_id(place), "+", portion, most_bytes=PAGE_BYTES
                    )
                    self._keep(run_id, place, _Kept(page, asked_at))
                return page
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[run_id]

    def _find(self, run_id: int, place: EventId, came_at: float) -> Page | None:
        kept = self._kept.get((run_id, place))
        if kept is None:
            return None
        # What stood behind the last one when others asked, they do not know.
        oldest = came_at if kept.page.is_last else came_at - FRESH
        return kept.page if kept.asked_at >= oldest else None

    def _keep(self, run_id: int, place: EventId, kept: _Kept) -> None:
        for key, other in list(self._kept.items()):
            if other.asked_at < kept.asked_at - FRESH:
                del self._kept[key]
        self._kept[run_id, place] = kept
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def forget(self) -> None:
        """Keep nothing any more."""
        self._kept.clear()
