"""Finds the new records of a console list, without I/O.

A check usually reads only the length and the newest record of the list. If these have
changed, it also reads a window, that is the last records of the list. The window is as
long as the list has grown, but never longer than the caller allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bls_agent.core.codec import parse_timestamp
from bls_agent.project.log.reading import find_end
from bls_agent.project.messages import LogEntry

SEEN: Final = 16  # records that are remembered to find the last position again
OVERLAP: Final = 4  # remembered records that the next window should contain
FIRST: Final = 64  # records of the first window
MOST: Final = 512  # largest number of records of a window


@dataclass(frozen=True)
class News:
    """The new records of a window."""

    entries: Sequence[LogEntry]  # oldest first
    complete: bool  # whether the window has every record since the last check


class LogTail:
    """Remembers the last records of one list as hashes, in a few hundred bytes."""

    def __init__(self) -> None:
        self.started = False  # whether a first window was read
        self.most = 0  # largest number of records that may be read in this check
        self._length = 0
        self._seen: list[int] = []
        self._mean = 0.0  # average bytes of a record
        self._usual = 0  # records that mostly reach back to the last check

    def wants(self, length: int, last: bytes | None, room: int) -> int:
        """Return how many of the last records to read in ``room`` bytes; 0 for none."""
        if last is None or not length:
            self._seen, self._length, self.started = [], 0, True
            return 0
        same = bool(self._seen) and self._seen[-1] == hash(last)
        grown = length - self._length
        if self.started and same and grown <= 0:
            self._length = length  # the list may have been trimmed
            return 0
        fit = int(room / max(self._mean, len(last), 1.0))
        self.most = min(max(OVERLAP, fit), length, MOST)
        wish = max(grown, self._usual) + OVERLAP if self.started else FIRST
        return min(wish, self.most)

    def take(self, window: Sequence[bytes], length: int) -> News | None:
        """Return the new records of a window.

        Returns ``None`` if the window does not reach back to the last check, but a longer
        window of :attr:`most` records may.
        """
        marks = [hash(payload) for payload in window]
        grown = length - self._length
        # The records that the list has grown by follow the position of the last check.
        before = marks[: len(marks) - max(grown, 0)] if grown < len(marks) else ()
        place = find_end(self._seen, before, 0) if self._seen and before else None
        whole = len(window) >= length
        if self._seen and place is None and not whole and len(window) < self.most:
            return None
        entries = [LogEntry.decode(payload) for payload in window[place or 0 :]]
        complete = place is not None or (whole and not self._seen)
        if self.started:
            self._usual = 2 * len(entries)
        self.started, self._seen, self._length = True, marks[-SEEN:], length
        if window:
            self._mean = sum(map(len, window)) / len(window)
        return News(entries, complete)


def written_at(entry: LogEntry) -> float | None:
    moment = parse_timestamp(entry.timestamp)
    return None if moment is None else moment.timestamp()
