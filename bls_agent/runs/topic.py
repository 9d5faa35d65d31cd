"""Keeps the newest events of a run in memory, for all followers of one event loop."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.runs.events import EventId, StreamEvent, order
from bls_agent.runs.gaps import WriterLiveness, sequence_of
from bls_agent.runs.reading import RunKeys

if TYPE_CHECKING:
    import asyncio

MOST: Final = 1_000  # largest number of events in a buffer
MOST_BYTES: Final = 2 * 1024 * 1024  # largest number of bytes in a buffer

LINGER: Final = 5.0  # seconds for which a run is read after its last follower waited


class EventBuffer:
    """All events between two ids. Each event has a number, and numbers grow by one.

    ``base`` is the id after which the buffer begins. ``head`` is the id of the newest
    event. ::

        base   events[0]   events[1]   …   events[-1] = head
                 first      first + 1                          end

    The number of events and their bytes are limited. The newest event stays even if it
    is larger than the limit, because otherwise each follower would read this event from
    Redis.
    """

    def __init__(
        self, head: EventId, *, most: int = MOST, most_bytes: int = MOST_BYTES
    ) -> None:
        self.base: EventId = head
        self.head: EventId = head
        self.first: int = 0  # number of the oldest event
        self._most, self._most_bytes = most, most_bytes
        self._events: list[StreamEvent] = []
        self._sizes: list[int] = []
        self._bytes = 0

    @property
    def end(self) -> int:
        """The number that the next event will have."""
        return self.first + len(self._events)

    def add(self, events: Sequence[StreamEvent], sizes: Sequence[int]) -> None:
        """Append events that directly follow the head.

        Drop the oldest events if the buffer exceeds its limits.
        """
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
        """Empty the buffer and begin after an id. Old numbers become invalid."""
        self.first = self.end + 1
        self._events, self._sizes, self._bytes = [], [], 0
        self.base = self.head = head

    def after(self, number: int, most: int) -> list[StreamEvent] | None:
        """Return events from a number on, or ``None`` if the first was dropped."""
        at = number - self.first
        if at < 0:
            return None
        return self._events[at : at + most]

    def locate(self, place: EventId) -> int | None:
        """Return the number of the event after an id.

        Return ``None`` if the buffer does not contain the id.
        """
        if place == self.head:
            return self.end
        if place == self.base:
            return self.first
        at = bisect_left(self._events, order(place), key=_order_of)
        if at < len(self._events) and self._events[at].id == place:
            return self.first + at + 1
        return None


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _order_of(event: StreamEvent) -> tuple[int, int]:
    return order(event.id)


class RunTopic:
    """Holds the newest events of one run, and wakes followers that wait for more.

    The topic has no list of its followers. The stream reader closes the topic when no
    follower has waited for 5 seconds. A follower that continues later makes a new
    topic.
    """

    def __init__(
        self, keys: RunKeys, head: EventId, known: int | None, *, seen: bool
    ) -> None:
        import asyncio  # noqa: PLC0415 - this import takes 20 ms

        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.keys = keys
        self.buffer: EventBuffer = EventBuffer(head)
        self.known = known  # sequence number of the head; ``None`` if unknown
        self.version: int = 0  # grows with each change other than new events
        self.liveness: WriterLiveness = WriterLiveness(now, existed=seen)
        self.outage: RedisUnavailableError | None = None  # why Redis is unavailable now
        self.failure: BlsError | None = None  # why Redis refuses to read the run
        self.is_open: bool = True  # whether new events of the run are read
        self.needs_check = True  # whether the server may have lost the head
        self._waiters: set[asyncio.Future[None]] = set()
        self._left_at = now

    @property
    def due_at(self) -> float:
        """When to ask Redis again whether the run exists and its writer is alive."""
        return 0.0 if self.needs_check else self.liveness.probe_at

    def is_wanted(self, now: float) -> bool:
        """Return whether a follower waits, or has waited in the last 5 seconds."""
        return bool(self._waiters) or now - self._left_at < LINGER

    async def wait(self, until: float = math.inf) -> None:
        """Wait for new events or another change of the run.

        The wait ends at ``until`` at the latest, a time of the event loop's clock.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        timer = None
        if until < math.inf:  # call_at() costs less than a cancel scope
            timer = self._loop.call_at(until, _resolve, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiters.discard(waiter)
            if not self._waiters:
                self._left_at = anyio.current_time()

    def notify(self) -> None:
        """Record a change other than new events, and wake all followers."""
        self.version += 1
        self.wake()

    def wake(self) -> None:
        """Wake all followers. A follower that finds nothing new waits again."""
        waiters, self._waiters = self._waiters, set()
        if waiters:
            self._left_at = anyio.current_time()
        for waiter in waiters:
            _resolve(waiter)

    def append(self, events: Sequence[StreamEvent], sizes: Sequence[int]) -> None:
        """Append events that directly follow the head, and wake all followers."""
        self.buffer.add(events, sizes)
        self.known = sequence_of(events[-1])
        self.wake()

    def skip(self, events: Sequence[StreamEvent]) -> None:
        """Empty the buffer, and make the last of these events the head.

        Call this if other events may be missing before the first of these events. Each
        follower then reads the events from Redis, and checks which are missing.
        """
        self.buffer.restart(events[-1].id)
        self.known = sequence_of(events[-1])
        self.wake()

    def compare(self, head: EventId, last: EventId) -> bool:
        """Return whether the server has lost the event at the head.

        ``head`` is the head at the time of the request, and ``last`` is the last id of
        the run on the server. The event is lost if ``last`` is smaller than ``head``.
        All followers are woken in any case, because a follower that has read more
        events than the topic must check its position.
        """
        is_lost = order(last) < order(head) and head == self.buffer.head
        if is_lost:
            self.liveness.note_outage(anyio.current_time())
            self.buffer.restart(last)
            self.known = None
        self.notify()
        return is_lost

    def close(self) -> None:
        """End the topic and wake its followers, which find another topic or end."""
        self.detach()
        self.wake()

    def detach(self) -> None:
        """End the topic without waking followers."""
        self.is_open = False
        self.version += 1
