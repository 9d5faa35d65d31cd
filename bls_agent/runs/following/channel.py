"""What the followers of one run share in one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import anyio

from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.runs.event_ids import EventId, order
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.following.gaps import continues, sequence_of
from bls_agent.runs.following.presence import Presence
from bls_agent.runs.following.ring import Ring
from bls_agent.runs.reading import RunKeys

__all__ = ["Arrivals", "Channel"]

LINGER: Final = 5.0  # seconds that a run is followed on after the last who waited
TRAIL: Final = 100  # ids that are remembered of a page


class Arrivals(NamedTuple):
    """What one reply has brought for one run.

    Attributes:
        events: Oldest first, at least one.
        sizes: Of each in bytes.
    """

    events: list[StreamEvent]
    sizes: list[int]


class Channel:
    """The newest events of one run, and what wakes those who wait for more.

    It is not told who follows: it lives as long as somebody waits, and some seconds
    longer. Who comes back later reads from Redis and makes a new one.

    Attributes:
        keys: Of the run.
        ring: Its newest events, up to where it was read.
        known: The sequence at the head, if it is known.
        reach: The furthest place that somebody has read up to: the head or behind it.
        trail: Ids of the last events of a page, up to where the ring began or behind it.
        origin: Id of the run's oldest event when we looked last; ``None`` if unknown.
        length: How many events there were when we looked last, and the head then.
        news: How often something has happened besides events that have come.
        rewinds: How often the server had forgotten what was read.
        rewound_to: The newest place then that it knew, too.
        presence: What is known of the run and its writer.
        outage: Why Redis cannot be asked now.
        failure: Why it cannot be read, for good.
        is_open: Whether it is still followed.
        unchecked: Whether the server has to be asked if it still knows the head.
    """

    def __init__(
        self, keys: RunKeys, head: EventId, known: int | None, *, seen: bool
    ) -> None:
        """Begin at a place behind which nothing stood a moment ago."""
        now = anyio.current_time()
        self.keys = keys
        self.ring = Ring(head)
        self.known = known
        self.reach: EventId = head
        self.trail: list[EventId] = []
        self.origin: EventId | None = None
        self.length: tuple[int, EventId] | None = None
        self.news = 0
        self.rewinds = 0
        self.rewound_to = self._rewound_from = head
        self._lost_ring = False
        self.presence = Presence(now, existed=seen)
        self.outage: RedisUnavailableError | None = None
        self.failure: BlsError | None = None
        self.is_open = True
        self.unchecked = True
        self._bell = anyio.Event()
        self._waiting = 0
        self._left_at = now

    def is_wanted(self, now: float) -> bool:
        """Tell whether somebody waits, or has waited a moment ago."""
        return self._waiting > 0 or now - self._left_at < LINGER

    async def wait(self) -> None:
        """Wait until something has happened."""
        self._waiting += 1
        try:
            await self._bell.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._left_at = anyio.current_time()

    def ring_bell(self) -> None:
        """Wake all who wait: they have to look what has happened."""
        self.news += 1
        self.wake()

    def wake(self) -> None:
        """Wake all who wait; who finds nothing new waits again."""
        if self._waiting:
            self._bell.set()
            self._bell = anyio.Event()

    def continues(self, events: Sequence[StreamEvent]) -> bool:
        """Tell whether events surely stand right behind the head."""
        return continues(self.known, events[0])

    def take(self, come: Arrivals) -> None:
        """Take events that stand right behind the head, and wake all who wait."""
        self.ring.add(come.events, come.sizes)
        self._note_last(come)

    def skip(self, come: Arrivals) -> None:
        """Go on behind events; followers have to find out what stands before them."""
        self.ring.restart(come.events[-1].id)
        self._note_last(come)

    def _note_last(self, come: Arrivals) -> None:
        last = come.events[-1]
        self.known = sequence_of(last)
        self.wake()

    def note_page(self, events: Sequence[StreamEvent]) -> None:
        """Hear what somebody has read from Redis, if it goes as far as the ring."""
        if events and order(events[-1].id) >= order(self.furthest):
            self.reach = events[-1].id
            self.trail = [event.id for event in events[-TRAIL:]]

    def note_length(self, length: int) -> None:
        """Hear how many events there are.

        If others came than have come over the waiting connection, they may stand before
        the place behind which it waits.
        """
        before, self.length = self.length, (length, self.ring.head)
        if before is not None and before[1] == self.ring.head:
            self.unchecked |= length not in (0, before[0])

    @property
    def furthest(self) -> EventId:
        """The last place that somebody has read up to."""
        return max(self.ring.head, self.reach, key=order)

    @property
    def past(self) -> list[list[EventId]]:
        """What is known of the ids that were read, the newest first."""
        known = [ids for ids in (self.ring.ids, self.trail) if ids]
        return sorted(known, key=lambda ids: order(ids[-1]), reverse=True)

    def rewind(self, place: EventId, last: EventId) -> None:
        """Go back to a place behind which all is new on a server that has forgotten.

        Args:
            place: The newest event that is known and still there.
            last: The last id that the server knows. If the head stands behind it, the
                ring is no more; else only those have to go back who have read further.
        """
        self.rewound_to, self._rewound_from = place, last
        self.reach, self.trail = place, []
        self.rewinds += 1
        self._lost_ring = order(last) < order(self.ring.head)
        if self._lost_ring:
            self.ring.restart(place)
            self.known = self.length = None
        self.ring_bell()

    def has_lost(self, place: EventId, *, in_ring: bool) -> bool:
        """Tell whether who has read up to a place has to go back, after a rewind.

        What is new may already stand before that place, and be given to others.

        Args:
            place: Up to where.
            in_ring: Whether the ring stood there, too.
        """
        if order(place) > order(self._rewound_from):
            return True
        is_behind = order(place) > order(self.rewound_to)
        return self._lost_ring and in_ring and is_behind

    def fail(self, failure: BlsError) -> None:
        """Have every follower raise an error: the run cannot be read."""
        self.failure = failure
        self.close()

    def close(self) -> None:
        """Be followed no longer; who waits finds out what to do."""
        self.forsake()
        self.wake()

    def forsake(self) -> None:
        """Be followed no longer: whoever waits does so in a loop that is not ours."""
        self.is_open = False
        self.news += 1
