"""The newest events of a run, shared by all who follow it; no I/O here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from bls_agent.runs.event_ids import EventId, order
from bls_agent.runs.events import StreamEvent

__all__ = ["Ring"]

MOST: Final = 1_000  # events
MOST_BYTES: Final = 2 * 1024 * 1024


class Ring:
    """All events between two places, each with a number that grows by one.

    It is bounded by count and bytes; the newest event always stays, however large, so
    that a thousand followers need not fetch it a thousand times.

    Attributes:
        base: Behind this place all events up to the head are here.
        head: The place of the newest one.
        first: Number of the oldest one.
    """

    def __init__(
        self, head: EventId, *, most: int = MOST, most_bytes: int = MOST_BYTES
    ) -> None:
        """Begin empty, at a place."""
        self.base = self.head = head
        self.first = 0
        self._most, self._most_bytes = most, most_bytes
        self._events: list[StreamEvent] = []
        self._sizes: list[int] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def end(self) -> int:
        """Number of the event that comes next."""
        return self.first + len(self._events)

    @property
    def ids(self) -> list[EventId]:
        """The base, and behind it the ids of all events."""
        return [self.base, *(event.id for event in self._events)]

    def add(self, events: Sequence[StreamEvent], sizes: Sequence[int]) -> None:
        """Take events that stand right behind the head; the oldest ones may go."""
        self._events += events
        self._sizes += sizes
        self._bytes += sum(sizes)
        self.head = events[-1].id
        drop, left = max(0, len(self._events) - self._most), self._bytes
        left -= sum(self._sizes[:drop])
        while left > self._most_bytes and drop < len(self._events) - 1:
            left -= self._sizes[drop]
            drop += 1
        if drop:
            self.base = self._events[drop - 1].id
            self._bytes = left
            self.first += drop
            del self._events[:drop], self._sizes[:drop]

    def restart(self, head: EventId) -> None:
        """Begin empty at another place; no number of before is valid any more."""
        self.first = self.end + 1
        self._events, self._sizes, self._bytes = [], [], 0
        self.base = self.head = head

    def after(self, number: int, most: int) -> list[StreamEvent] | None:
        """Give events from a number on.

        Returns:
            ``None`` if some of them are gone.
        """
        at = number - self.first
        if at < 0:
            return None
        return self._events[at : at + most]

    def locate(self, place: EventId) -> int | None:
        """Give the number of the event right behind a place.

        Returns:
            ``None`` if not all that stands behind it is here, or if it is no place of
            an event that is here: nobody knows then what stood between.
        """
        if place == self.head:
            return self.end
        if place == self.base:
            return self.first
        at = bisect_left(self._events, order(place), key=_order_of)
        if at < len(self._events) and self._events[at].id == place:
            return self.first + at + 1
        return None


def _order_of(event: StreamEvent) -> tuple[int, int]:
    return order(event.id)
