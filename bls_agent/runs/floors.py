"""What a process knows of the runs that it has written: decisions only.

A server that was restarted or replaced may have forgotten how far a run had come. Who
wrote it remembers, so that no sequence is given twice and no id that readers have
passed already.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import Final

from bls_agent.connection.after_fork import register
from bls_agent.runs.event_ids import BEGINNING, order

__all__ = ["Floors"]

MOST: Final = 10_000  # runs; those written longest ago are forgotten

_UNKNOWN: Final = (0, BEGINNING, float("-inf"))


class Floors:
    """Sequence and id of the last event that was written, for each run that lives."""

    def __init__(self) -> None:
        """Know of no run."""
        self._floors: OrderedDict[int, tuple[int, str, float]] = OrderedDict()
        self._lock = threading.Lock()
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: a thread that is not here may hold the lock."""
        self._lock = threading.Lock()

    def of(self, run_id: int, now: float) -> tuple[int, str]:
        """Give what the next event has to come after: a sequence and an id.

        A run that has expired is not forgotten by an accident: it begins anew.

        Args:
            run_id: The run.
            now: By :func:`~bls_agent.runtime.lease.boot_seconds`.
        """
        sequence, event_id, until = self._floors.get(run_id, _UNKNOWN)
        return (sequence, event_id) if now < until else (0, BEGINNING)

    def raise_to(self, run_id: int, sequence: int, event_id: str, until: float) -> None:
        """Note what was written; what is older than what is known changes nothing.

        Args:
            run_id: The run.
            sequence: Of the last event.
            event_id: Its id.
            until: When the run expires if nothing more is written; it may do so later
                if somebody has told it to.
        """
        with self._lock:  # event loops in several threads may share a store
            known_sequence, known_id, known = self._floors.pop(run_id, _UNKNOWN)
            highest = max(known_id, event_id, key=order)
            until = max(until, known) if known < math.inf else until
            self._floors[run_id] = max(known_sequence, sequence), highest, until
            if len(self._floors) > MOST:
                self._floors.popitem(last=False)

    def expire(self, run_id: int, until: float) -> None:
        """Note that a run was told when to expire."""
        with self._lock:
            if run_id in self._floors:
                self._floors[run_id] = (*self._floors[run_id][:2], until)

    def forget(self, run_id: int) -> None:
        """Know nothing more of a run: it was deleted, and begins anew."""
        with self._lock:
            self._floors.pop(run_id, None)
