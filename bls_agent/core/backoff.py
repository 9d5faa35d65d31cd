"""How long to wait before trying again: decisions only, no sleeping."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

PERMANENT_DELAY: Final = (30.0, 60.0)  # a password is not repaired within seconds


def jittered(interval: float, rng: random.Random) -> float:
    """Spread a period: between 80 % and 100 % of it, so that a fleet drifts apart."""
    return interval * rng.uniform(0.8, 1.0)


@dataclass
class Backoff:
    """Full jitter: a delay between 0 and a ceiling that doubles up to ``cap``.

    A permanent fault (wrong password, missing right) waits 30 to 60 seconds instead.
    """

    base: float = 0.1  # first ceiling in seconds
    cap: float = 2.0  # last ceiling in seconds (``reconnect_max``)
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0  # failures in a row

    def failed(self, *, permanent: bool = False, longest: bool = False) -> float:
        """Record a failure and return the seconds to wait; ``longest``: 60, if permanent."""
        ceiling = min(self.cap, self.base * 2 ** min(self.failures, 30))
        self.failures += 1
        if permanent:
            shortest, most = PERMANENT_DELAY
            return most if longest else self.rng.uniform(shortest, most)
        return self.rng.uniform(0.0, ceiling)

    def succeeded(self) -> None:
        """Start again from the first ceiling."""
        self.failures = 0
