"""What is new in one console list, seen in bounded windows of its tail: no I/O.

Most looks read the length and the newest record alone. A window is read when these have
changed, as long as the growth asks for and never longer than the caller allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bls_agent.core.codec import parse_timestamp
from bls_agent.project.log.reading import find_end
from bls_agent.project.messages import LogEntry

SEEN: Final = 16  # records that are remembered to find the place again
OVERLAP: Final = 4  # of them that a window is to show again
FIRST: Final = 64  # records of the first window
MOST: Final = 512  # records of any window


@dataclass(frozen=True)
class News:
    """The new records of a window."""

    entries: Sequence[LogEntry]  # oldest first
    complete: bool  # the window shows every record since the look before


class LogTail:
    """Remembers the tail of one list as hashes: a few hundred bytes for any list."""

    def __init__(self) -> None:
        self.started = False  # a first window was seen
        self.most = 0  # records that may be read in this look
        self._length = 0
        self._seen: list[int] = []
        self._mean = 0.0  # bytes of a record
        self._usual = 0  # records of a window that reaches back, as a rule

    def wants(self, length: int, last: bytes | None, room: int) -> int:
        """Decide how many records of the tail to read in ``room`` bytes; 0: no news."""
        if last is None or not length:
            self._seen, self._length, self.started = [], 0, True
            return 0
        same = bool(self._seen) and self._seen[-1] == hash(last)
        grown = length - self._length
        if self.started and same and grown <= 0:
            self._length = length  # trimmed from the front, perhaps
            return 0
        fit = int(room / max(self._mean, len(last), 1.0))
        self.most = min(max(OVERLAP, fit), length, MOST)
        wish = max(grown, self._usual) + OVERLAP if self.started else FIRST
        return min(wish, self.most)

    def take(self, window: Sequence[bytes], length: int) -> News | None:
        """Pick what is new in a window of the tail.

        Returns ``None`` if the window does not reach back to the look before, and a
        longer one, of :attr:`most` records, may.
        """
        marks = [hash(payload) for payload in window]
        grown = length - self._length
        # As many records follow the place of the look before as the list has grown.
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
