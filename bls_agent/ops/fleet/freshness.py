"""How old a status is, judged from the time that it has left: no I/O.

From outside only the TTL is seen. How much of it had been given is known once a refresh
was seen; until then it is taken for what the contract suggests. Where more is left than
that, nobody can tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from bls_agent.core.keys import PROJECT_STATUS

__all__ = ["Freshness"]

SUGGESTED: Final = float(PROJECT_STATUS.ttl or 0)
NEW: Final = 10.0  # seconds: what was not there then was written since
CLOSE: Final = 1.0  # seconds between two looks that leave no doubt: TTLs are whole ones


@dataclass
class Freshness:
    """Follows the TTL of one status.

    Attributes:
        exact: Whether a refresh was seen, so that the age is known.
    """

    exact: bool = False
    _given: float = 0.0  # the TTL with which the status was written, as far as known
    _left: float | None = None
    _at: float = -math.inf

    def note(self, left: float | None, now: float) -> None:
        """Take what a look has found.

        Args:
            left: Seconds until the status expires; ``None`` if it does not, or is absent.
            now: Seconds of any clock that does not jump.
        """
        before, gap = self._left, now - self._at
        self._left, self._at = left, now
        if left is None:
            self.exact, self._given = False, 0.0
        elif before is None and gap <= NEW:
            self._given, self.exact = float(math.ceil(left)), gap <= CLOSE
        elif before is None:
            self._given = _guess(left)
        elif left > before:  # what is left never grows by itself
            self._refreshed(left, gap)

    def _refreshed(self, left: float, gap: float) -> None:
        if gap <= CLOSE:
            self._given, self.exact = float(math.ceil(left)), True
        elif not left <= self._given <= left + gap:
            self._given, self.exact = _guess(left), False

    @property
    def timed(self) -> bool:
        """Whether the status expires."""
        return self._left is not None

    def left(self, now: float) -> float | None:
        """Say how many seconds the status has left; ``None`` if it does not expire."""
        return None if self._left is None else max(0.0, self._left - (now - self._at))

    def age(self, now: float) -> float | None:
        """Say how many seconds ago the status was written; ``None`` if nobody can tell."""
        left = self.left(now)
        if left is None or math.isinf(self._given):
            return None
        return max(0.0, self._given - left)


def _guess(left: float) -> float:
    return SUGGESTED if left <= SUGGESTED else math.inf
