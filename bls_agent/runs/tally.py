"""Counts the events of all runs that one store writes in this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bls_agent.connection.after_fork import register


@dataclass(frozen=True, kw_only=True)
class EventStoreStats:
    """The counters of a store in this process. They include runs that have ended.

    Attributes:
        open_runs: Number of open writers, which :meth:`EventStore.run` has returned.
        written: Number of events of these writers that are in Redis. Each piece of a
            merged event is counted.
        dropped: Number of events that these writers dropped, by reason.
            :class:`RunWriterStats` lists the reasons. Events that were emitted before
            the writer was opened are not included.
        queued: Number of events that wait or are being written.
        failed_writes: Number of failed calls of the store's own methods, such as
            ``add``, that raised no error because of ``on_error="none"``.
    """

    open_runs: int
    written: int
    dropped: Mapping[str, int]
    queued: int
    failed_writes: int


@dataclass
class EventCounts:
    """Numbers of events: written, dropped (by reason) and waiting."""

    written: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    queued: int = 0

    def add(self, other: EventCounts) -> None:
        self.written += other.written
        self.dropped += other.dropped
        self.queued += other.queued


class Writing(Protocol):
    """A task that writes one run."""

    @property
    def loop_is_closed(self) -> bool: ...

    def count_events(self) -> EventCounts: ...


class RunTally:
    """Holds the runs that a store writes now, and the counts of the ended runs.

    A run counts as ended when its task has ended, or when the event loop of the task
    was closed.
    """

    def __init__(self) -> None:
        self.reset_after_fork()
        register(self)

    def reset_after_fork(self) -> None:
        """Count from zero in a forked child, because the parent writes the runs."""
        self._lock = threading.RLock()  # reentrant, as finalisers may call refuse()
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
        """Count an event that was dropped before the task of its run received it."""
        with self._lock:
            self._ended.dropped[reason] += 1

    def show(self, failed_writes: int) -> EventStoreStats:
        for writing in [one for one in self._open.copy() if one.loop_is_closed]:
            self.end(writing)
        total = EventCounts()
        with self._lock:
            total.add(self._ended)
            writing_now = [*self._open]
        # Without the lock, because a thread with a buffer's lock may call refuse().
        for writing in writing_now:
            total.add(writing.count_events())
        return EventStoreStats(
            open_runs=len(writing_now),
            written=total.written,
            dropped=dict(total.dropped),
            queued=total.queued,
            failed_writes=failed_writes,
        )
