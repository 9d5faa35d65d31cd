"""What the followers of one run share in one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import anyio

from bls_agent.errors import BlsError, RedisUnavailableError
from bls_agent.runs.event_ids import EventId, order
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.following.gaps import continues, sequence_of
from bls_agent.runs.following.presence import Presence
from bls_agent.runs.following.ring import Ring
from bls_agent.runs.reading import RunKeys

__all__ = ["Arrivals", "Channel"]

LINGER: Final = 5.0  # seconds that a run is followed on after the last who waited


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
        rewinds: How often the server had forgotten the head.
        rewound_to: Where it ended then.
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
        self.rewinds = 0
        self.rewound_to: EventId = head
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
        """Wake all who wait."""
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
        self.ring_bell()

    def check(self, head: EventId, last: EventId | None) -> bool:
        """Hear what a server knows as the last id, when we had read up to a head.

        Returns:
            Whether the server had forgotten the head.
        """
        self.unchecked = False
        is_behind = last is not None and order(last) < order(head)
        if is_behind and last is not None:
            self._rewind(last)
        return is_behind

    def _rewind(self, last: EventId) -> None:
        """Go back to the end that a server knows which has forgotten the head."""
        self.ring.restart(last)
        self.known = None
        self.rewinds += 1
        self.rewound_to = last
        self.ring_bell()

    def fail(self, failure: BlsError) -> None:
        """Have every follower raise an error: the run cannot be read."""
        self.failure = failure
        self.close()

    def close(self) -> None:
        """Be followed no longer; who waits finds out what to do."""
        self.is_open = False
        self.ring_bell()
