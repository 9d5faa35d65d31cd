"""Whether Redis is worth asking: known for all loops and threads of a cache together."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Final

from bls_agent.connection.complaints import Complaints
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError

__all__ = ["Availability"]

PROBE: Final = 6.0  # seconds after which a probe of which nothing was heard is given up
CONSEQUENCE: Final = "a function's result is not cached"


class Availability:
    """Remembers a failure, so that only one caller has to find it out.

    While Redis is away nobody asks it but one probe at a time, for which no caller waits.

    Attributes:
        away: Whether the last that was heard of Redis is that it is away.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take it for there until something else is known.

        Args:
            clock: Gives seconds that only grow.
        """
        self._clock = clock
        self._backoff = Backoff()
        self._complaints = Complaints(clock)
        self._lock = RLock()
        self._probe_at = 0.0
        self.away = False

    def probe_is_due(self) -> bool:
        """Say whether the caller shall see to a probe; then nobody else is told so."""
        with self._lock:
            now = self._clock()
            if not self.away or now < self._probe_at:
                return False
            self._probe_at = now + PROBE
            return True

    def failed(self, error: RedisUnavailableError) -> None:
        """Note that Redis did not answer."""
        with self._lock:
            permanent = isinstance(error, RedisRefusedError)
            delay = self._backoff.failed(permanent=permanent)
            self._probe_at = self._clock() + delay
            self.away = True
        self._complaints.say(CONSEQUENCE, error)

    def refused(self, error: BlsError) -> None:
        """Note that Redis did answer, but not with what was asked for."""
        self._complaints.say(CONSEQUENCE, error)

    def succeeded(self) -> None:
        """Note that Redis answered."""
        if self.away:
            with self._lock:
                self.away = False
                self._backoff.succeeded()

    def forget_parent(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = RLock()
