"""Finds the new records of a console list (the log of a project), without I/O.

The caller usually reads only the length and the newest record of the list. If these have
changed, the caller also reads a window, which is a number of the last records. A window
has as many records as the list has grown by, up to a limit of the caller. The first
window is read again with more records until it reaches back to a given time.
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
FIRST: Final = 64  # records of the first window before it grows
GROWTH: Final = 8  # factor by which a window grows
# A longer window is read only if it has at least this many times the records.
WORTH: Final = 1.2
MOST: Final = 512  # largest number of records of a window after the first one
MOST_FIRST: Final = 10_000  # largest number of records of the first window


@dataclass(frozen=True)
class News:
    """The records of a window that no earlier window contained."""

    entries: Sequence[LogEntry]  # oldest first
    complete: bool  # whether the window has every record since the previous window
    first: bool  # whether there was no earlier window of this list


class LogTail:
    """Remembers the last records of one list as hashes, in a few hundred bytes."""

    def __init__(self) -> None:
        self.started: bool = False  # whether a first window was read
        self.size: int = 0  # number of records of the next window
        self._room = 0  # approximate bytes that a window may have
        self._length = 0
        self._seen: list[int] = []
        self._mean = 0.0  # average bytes of a record
        self._usual = 0  # records that usually reach back to the last window

    def wants(self, length: int, last: bytes | None, room: int) -> int:
        """Return how many of the last records to read within about ``room`` bytes."""
        if last is None or not length:
            self._seen, self._length, self.started = [], 0, True
            return 0
        same = bool(self._seen) and self._seen[-1] == hash(last)
        grown = length - self._length
        if self.started and same and grown <= 0:
            self._length = length  # the list may have been trimmed
            return 0
        self._room, self._mean = room, max(self._mean, len(last), 1.0)
        wish = max(grown, self._usual) + OVERLAP if self.started else FIRST
        self.size = min(wish, self._most(length))
        return self.size

    def _most(self, length: int) -> int:
        most = MOST if self.started else MOST_FIRST
        return min(max(OVERLAP, int(self._room / self._mean)), length, most)

    def take(self, window: Sequence[bytes], length: int, since: float) -> News | None:
        """Return the new records, or ``None`` if the caller has to read :attr:`size` ones.

        1. The window is the first one, or the first one of a new list, which is shorter
           and has none of the known records. The window is complete if it reaches back to
           the Unix time ``since``.
        2. Any later window is complete if it reaches back to the previous window.

        If the window is not complete and cannot grow, its records are returned anyway.
        """
        marks = [hash(payload) for payload in window]
        grown = length - self._length
        # The list has grown at its end, so the newest known record is before these records.
        before = marks[: len(marks) - max(grown, 0)] if grown < len(marks) else ()
        place = find_end(self._seen, before, 0) if self._seen and before else None
        whole = len(window) >= length
        first = place is None and (not self.started or grown < 0)
        if first:
            complete = whole or _reaches(window, since)
        else:
            complete = place is not None or (whole and not self._seen)
        if window:
            self._mean = max(1.0, sum(map(len, window)) / len(window))
        self.started = not first
        self.size = min(len(window) * GROWTH, self._most(length))
        enough = length if self.size == length else len(window) * WORTH
        if not complete and len(window) < self.size >= enough:
            return None
        entries = [LogEntry.decode(payload) for payload in window[place or 0 :]]
        if not first:
            self._usual = 2 * len(entries)
        self.started, self._seen, self._length = True, marks[-SEEN:], length
        return News(entries, complete, first)


def _reaches(window: Sequence[bytes], since: float) -> bool:
    """Return whether the oldest record with a time was written before ``since``."""
    times = (written_at(LogEntry.decode(payload)) for payload in window)
    return next((time <= since for time in times if time is not None), False)


def written_at(entry: LogEntry) -> float | None:
    moment = parse_timestamp(entry.timestamp)
    return None if moment is None else moment.timestamp()
