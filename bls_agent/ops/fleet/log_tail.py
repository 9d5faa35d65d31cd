"""What is new in one console list, seen in bounded windows of its tail: no I/O.

Most looks read the length and the newest record alone. A window is read when these have
changed, as long as the growth asks for and never longer than the caller allows. Records
before it are counted by their numbers or by the growth of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bls_agent.core.codec import parse_timestamp
from bls_agent.project.log.reading import find_end
from bls_agent.project.messages import LogEntry

__all__ = ["LogTail", "News", "written_at"]

SEEN: Final = 16  # records that are remembered to find the place again
OVERLAP: Final = 4  # of them that a window is to show again
FIRST: Final = 64  # records of the first window
MOST: Final = 512  # records of any window
PROCESSES: Final = 64  # of one project whose numbers are remembered


@dataclass(frozen=True)
class News:
    """The new records of a window."""

    entries: Sequence[LogEntry]  # the new records in it, oldest first
    count: int  # how many there are, those that the window does not show included
    counted: bool  # whether `count` is exact

    @property
    def complete(self) -> bool:
        """Whether every new record is among the entries."""
        return self.counted and len(self.entries) == self.count


class LogTail:
    """Remembers the tail of one list as hashes: a few hundred bytes for any list."""

    def __init__(self) -> None:
        self.started = False  # a first window was seen
        self.most = 0  # records that may be read in this look
        self._length = 0
        self._seen: list[int] = []
        # By process, the one that wrote last at the end.
        self._numbers: dict[str, int] = {}
        self._mean = 0.0  # bytes of a record
        self._usual = FIRST

    def wants(self, length: int, last: bytes | None, room: int) -> int:
        """Decide how many records of the tail to read in ``room`` bytes; 0: no news."""
        if last is None or not length:
            self._seen, self._length, self.started = [], 0, True
            return 0
        same = bool(self._seen) and self._seen[-1] == hash(last)
        if self.started and same and length <= self._length:
            self._length = length  # trimmed from the front, perhaps
            return 0
        fit = int(room / max(self._mean, len(last), 1.0))
        self.most = min(max(OVERLAP, fit), length, MOST)
        return min(self._wish(length, last), self.most)

    def _wish(self, length: int, last: bytes) -> int:
        if not self.started:
            return FIRST
        entry = LogEntry.decode(last)
        before = self._numbers.get(entry.instance)
        grown = length - self._length
        if entry.number is not None and before is not None:
            grown = max(grown, entry.number - before)
        if grown > 0 and len(self._numbers) <= 1:
            return grown + OVERLAP
        return max(grown, self._usual) + OVERLAP

    def take(self, window: Sequence[bytes], length: int) -> News | None:
        """Pick what is new in a window of the tail, and count all that is new.

        ``None``: the window does not reach back to the look before, and a longer one,
        of :attr:`most` records, may.
        """
        marks = [hash(payload) for payload in window]
        grown = length - self._length
        place = self._find_place(marks, grown)
        whole = len(window) >= length
        if self._seen and place is None and not whole and len(window) < self.most:
            return None
        entries = [LogEntry.decode(payload) for payload in window[place or 0 :]]
        numbered = self._record_numbers(entries)
        if not self.started:
            news = News(entries, len(entries), whole)
        elif place is not None or (whole and not self._seen):
            news = News(entries, len(entries), counted=True)
        else:
            count = grown if numbered is None else numbered
            news = News(entries, max(count, len(entries)), numbered is not None)
        self._remember(window, marks, length, len(entries))
        return news

    def _find_place(self, marks: Sequence[int], grown: int) -> int | None:
        """Find the end of what was seen; as many follow it as the list has grown."""
        before = marks[: len(marks) - max(grown, 0)] if grown < len(marks) else ()
        return find_end(self._seen, before, 0) if self._seen and before else None

    def _record_numbers(self, entries: Sequence[LogEntry]) -> int | None:
        """Count by the records' numbers; ``None`` if they do not cover all."""
        total = 0
        whole = True
        for entry in entries:
            number = entry.number
            if number is None:
                whole = False
                continue
            before = self._numbers.pop(entry.instance, None)
            if before is None:
                whole &= number == 1 or not self.started
                total += 1
            elif number > before:
                total += number - before
            elif number < before - MOST:  # it has begun anew, from 1
                total += number
            else:  # perhaps sent twice
                number = before
            self._numbers[entry.instance] = number
        for process in list(self._numbers)[:-PROCESSES]:
            del self._numbers[process]
        return total if whole else None

    def _remember(
        self,
        window: Sequence[bytes],
        marks: Sequence[int],
        length: int,
        new: int,
    ) -> None:
        self.started = True
        self._seen = list(marks[-SEEN:])
        self._length = length
        self._usual = max(OVERLAP, 2 * new)
        if window:
            self._mean = sum(map(len, window)) / len(window)


def written_at(entry: LogEntry) -> float | None:
    """Give the Unix seconds of a record's timestamp."""
    moment = parse_timestamp(entry.timestamp)
    return None if moment is None else moment.timestamp()
