"""What the followers of a run share in one event loop."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

import anyio

from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.runs.events import EventId, StreamEvent, next_id, order
from bls_agent.runs.gaps import WriterLiveness, sequence_of
from bls_agent.runs.reading import Page, RunKeys, RunReader

MOST: Final = 1_000  # events
MOST_BYTES: Final = 2 * 1024 * 1024

KEPT: Final = 4  # pages
FRESH: Final = 1.0  # seconds for which a page is given to others

LINGER: Final = 5.0  # seconds that a run is followed on after the last wait


class EventBuffer:
    """All events between two places, each with a number that grows by one.

    It is bounded by count and bytes; the newest event always stays, however large, so
    that a thousand followers need not fetch it a thousand times.
    """

    def __init__(
        self, head: EventId, *, most: int = MOST, most_bytes: int = MOST_BYTES
    ) -> None:
        self.base = self.head = head  # the place of the newest one
        self.first = 0  # number of the oldest one
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

    def add(self, events: Sequence[StreamEvent], sizes: Sequence[int]) -> None:
        """Append events that stand right behind the head; the oldest ones may go."""
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
        """Begin empty at another place; earlier numbers are not valid any more."""
        self.first = self.end + 1
        self._events, self._sizes, self._bytes = [], [], 0
        self.base = self.head = head

    def after(self, number: int, most: int) -> list[StreamEvent] | None:
        """Return events from a number on; ``None`` if some of them are gone."""
        at = number - self.first
        if at < 0:
            return None
        return self._events[at : at + most]

    def locate(self, place: EventId) -> int | None:
        """Return the number of the event right behind a place; ``None`` if unknown."""
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


class SharedPages:
    """Lets followers that go through a run side by side read each page once.

    Without it a thousand followers that fall behind together would request a thousand
    pages each time, and never catch up. At most four pages are kept, for a second.
    """

    def __init__(self) -> None:
        # run and place → a page, and when it was requested
        self._kept: dict[tuple[int, EventId], tuple[Page, float]] = {}
        # of each run, as long as a follower holds or awaits it
        self._locks: WeakValueDictionary[int, anyio.Lock] = WeakValueDictionary()

    async def read(self, reader: RunReader, place: EventId, portion: int) -> Page:
        """Read behind a place."""
        key, came_at = (reader.keys.run_id, place), anyio.current_time()
        lock = self._locks.setdefault(reader.keys.run_id, anyio.Lock())
        async with lock:
            page, asked_at = self._kept.pop(key, (None, 0.0))
            if page is None or asked_at < came_at - (0 if page.is_last else FRESH):
                # A last page says nothing about what was added after it was requested.
                asked_at = anyio.current_time()
                page = await reader.read(next_id(place), "+", portion)
            self._kept[key] = page, asked_at
            for oldest in list(self._kept)[:-KEPT]:
                del self._kept[oldest]
            return page

    def forget(self) -> None:
        """Drop all pages."""
        self._kept.clear()


class RunTopic:
    """The newest events of one run, and what wakes the followers that wait for more.

    It does not know its followers: it lives as long as one waits, and some seconds
    longer. A follower that comes back later reads from Redis and makes a new topic.
    """

    def __init__(
        self, keys: RunKeys, head: EventId, known: int | None, *, seen: bool
    ) -> None:
        now = anyio.current_time()
        self.keys = keys
        self.buffer = EventBuffer(head)  # its newest events, up to where it was read
        self.known = known  # the sequence at the head, if it is known
        # the place of a follower that has waited for the head to get there
        self.reach: EventId = head
        self.news = 0  # how often something has happened besides events that have come
        self.rewinds = 0  # how often the server had lost what was read
        self.rewound_to = head  # the last id that it knew then
        self.liveness = WriterLiveness(now, existed=seen)
        # why Redis cannot be asked now
        self.outage: RedisUnavailableError | None = None
        self.failure: BlsError | None = None  # why it cannot be read, for good
        self.is_open = True  # whether it is still followed
        # whether to ask the server if it still has the head
        self.needs_check = True
        self._changed = anyio.Event()
        self._waiting = 0
        self._left_at = now

    @property
    def due_at(self) -> float:
        """When to probe the run again."""
        return 0.0 if self.needs_check else self.liveness.probe_at

    def is_wanted(self, now: float) -> bool:
        """Return whether a follower waits, or has waited within the last seconds."""
        return self._waiting > 0 or now - self._left_at < LINGER

    async def wait(self) -> None:
        """Wait for the next change."""
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._left_at = anyio.current_time()

    def notify(self) -> None:
        """Wake all followers to a change other than new events."""
        self.news += 1
        self.wake()

    def wake(self) -> None:
        """Wake all followers; one that finds nothing new waits again."""
        if self._waiting:
            self._changed.set()
            self._changed = anyio.Event()

    def append(self, events: Sequence[StreamEvent], sizes: Sequence[int]) -> None:
        """Append events that stand right behind the head, and wake all followers."""
        self.buffer.add(events, sizes)
        self._go_behind(events[-1])

    def skip(self, events: Sequence[StreamEvent]) -> None:
        """Go on behind events; each follower finds out what stands before them."""
        self.buffer.restart(events[-1].id)
        self._go_behind(events[-1])

    def _go_behind(self, last: StreamEvent) -> None:
        self.known = sequence_of(last)
        self.wake()

    @property
    def furthest(self) -> EventId:
        """The last place up to which the server has to know the run."""
        return max(self.buffer.head, self.reach, key=order)

    def rewind(self, last: EventId) -> None:
        """Go back to the last id of a server that has lost what was read behind it."""
        self.rewound_to = self.reach = last
        self.rewinds += 1
        self.liveness.note_outage(anyio.current_time())
        if order(last) < order(self.buffer.head):
            self.buffer.restart(last)
            self.known = None
        self.notify()

    def close(self) -> None:
        """End; waiting followers find another topic, or end."""
        self.detach()
        self.wake()

    def detach(self) -> None:
        """End without waking: followers wait in a closed loop, or in the parent."""
        self.is_open = False
        self.news += 1
