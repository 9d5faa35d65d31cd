"""Adds up the events of all runs that one store writes in this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bls_agent.connection.after_fork import register


@dataclass(frozen=True, kw_only=True)
class EventStoreStats:
    """The counters of a store in this process; runs that have ended are included.

    Attributes:
        open_runs: Runs that are written now, by :meth:`EventStore.run`.
        written: Events of runs that are in Redis; each merged event is counted.
        dropped: Reason → events of runs that were dropped; the reasons are those of
            :class:`RunWriterStats`. Events for a run that was never opened are not
            included.
        queued: Events of runs that wait or are being written.
        failed_writes: The store's own writes that failed without raising an error.
    """

    open_runs: int
    written: int
    dropped: Mapping[str, int]
    queued: int
    failed_writes: int


@dataclass
class EventCounts:
    """Events that were written, dropped (by reason), and wait."""

    written: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    queued: int = 0

    def add(self, other: EventCounts) -> None:
        self.written += other.written
        self.dropped += other.dropped
        self.queued += other.queued


class Writing(Protocol):
    """The task that writes a run."""

    @property
    def loop_is_closed(self) -> bool: ...

    def count_events(self) -> EventCounts: ...


class RunTally:
    """The runs of a store that are written now, and the counts of those that ended.

    A run counts as ended when its task has ended, or when its event loop was closed
    without ending the task.
    """

    def __init__(self) -> None:
        self.reset_after_fork()
        register(self)

    def reset_after_fork(self) -> None:
        """Count from zero in a forked child, because the runs are the parent's."""
        self._lock = threading.RLock()  # reentrant: a finaliser may drop an event
        self._open: set[Writing] = set()
        self._ended = EventCounts()

    def begin(self, writing: Writing) -> None:
        with self._lock:
            self._open.add(writing)

    def end(self, writing: Writing) -> None:
        counts = writing.count_events()
        with self._lock:
            if writing in self._open:
                self._open.remove(writing)
                self._ended.add(counts)

    def refuse(self, reason: str) -> None:
        """Count an event that no task of a run has got."""
        with self._lock:
            self._ended.dropped[reason] += 1

    def show(self, failed_writes: int) -> EventStoreStats:
        for writing in [one for one in self._open.copy() if one.loop_is_closed]:
            self.end(writing)
        total = EventCounts()
        with self._lock:
            total.add(self._ended)
            writing_now = [*self._open]
        # Not under the lock: a thread that holds a buffer's lock may call refuse().
        for writing in writing_now:
            total.add(writing.count_events())
        return EventStoreStats(
            open_runs=len(writing_now),
            written=total.written,
            dropped=dict(total.dropped),
            queued=total.queued,
            failed_writes=failed_writes,
        )
