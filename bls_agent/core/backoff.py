"""Computes the delay before the next try; the caller sleeps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

# Seconds. The delay is long, because nobody corrects a wrong password sooner.
PERMANENT_DELAY: Final = (30.0, 60.0)


def jittered(interval: float, rng: random.Random) -> float:
    """Return 80 % to 100 % of a period at random, to spread the load of processes."""
    return interval * rng.uniform(0.8, 1.0)


@dataclass
class Backoff:
    """Computes a random delay from 0 to a ceiling that doubles up to ``cap``.

    After a permanent fault (wrong password, missing right) the delay is 30 to 60 s.
    """

    base: float = 0.1  # first ceiling in seconds
    cap: float = 2.0  # last ceiling in seconds (``reconnect_max``)
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0  # failures in a row

    def failed(self, *, permanent: bool = False, longest: bool = False) -> float:
        """Record a failure and return the seconds to wait.

        If the failure is permanent and ``longest`` is true, return 60 seconds.
        """
        ceiling = min(self.cap, self.base * 2 ** min(self.failures, 30))
        self.failures += 1
        if permanent:
            shortest, most = PERMANENT_DELAY
            return most if longest else self.rng.uniform(shortest, most)
        return self.rng.uniform(0.0, ceiling)

    def succeeded(self) -> None:
        """Set the ceiling back to ``base``."""
        self.failures = 0
