"""How a cache has done: counted per function and for all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import RLock

__all__ = ["CacheStats", "Counts"]


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """What has happened in this process so far.

    Each call is either a hit or a miss.

    Attributes:
        hits: Calls that got a stored value.
        misses: Calls that found none, or none that could be believed.
        computed: How often functions were run.
        waited: Misses that got what another call, here or elsewhere, has computed.
        refreshed_early: Runs in the background before a value's end.
        stale_served: Calls that got an expired value because the function raised.
        not_stored: Results that were given and not stored, by reason: ``type``,
            ``not_finite``, ``not_unicode``, ``too_deep``, ``too_large``, ``dump``.
        discarded: Stored values that were not believed, by reason: ``not_json``,
            ``no_entry``, ``other_function``, ``wrong_type``, ``load``.
        redis_failures: Reads and writes that Redis did not answer, or refused.
    """

    hits: int = 0
    misses: int = 0
    computed: int = 0
    waited: int = 0
    refreshed_early: int = 0
    stale_served: int = 0
    not_stored: Mapping[str, int] = field(default_factory=dict[str, int])
    discarded: Mapping[str, int] = field(default_factory=dict[str, int])
    redis_failures: int = 0


class Counts:
    """Counts for one function and, through its parent, for the whole cache."""

    def __init__(self, parent: Counts | None = None) -> None:
        """Begin at zero."""
        self._parent = parent
        self._lock = RLock()  # a signal handler may call a cached function, too
        self._plain: Counter[str] = Counter()
        self._not_stored: Counter[str] = Counter()
        self._discarded: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Count one more of a field of :class:`CacheStats`."""
        with self._lock:
            self._plain[name] += 1
        if self._parent is not None:
            self._parent.add(name)

    def add_not_stored(self, reason: str) -> None:
        """Count a result that was not stored."""
        with self._lock:
            self._not_stored[reason] += 1
        if self._parent is not None:
            self._parent.add_not_stored(reason)

    def add_discarded(self, reason: str) -> None:
        """Count a stored value that was not believed."""
        with self._lock:
            self._discarded[reason] += 1
        if self._parent is not None:
            self._parent.add_discarded(reason)

    def forget_parent(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = RLock()

    def show(self) -> CacheStats:
        """Give all of it as it is now."""
        with self._lock:
            return CacheStats(
                **self._plain,
                not_stored=dict(self._not_stored),
                discarded=dict(self._discarded),
            )
