"""Which records of a list are new since the last look: decided here, without I/O.

The console list is capped from its front, so positions mean nothing. What is
recognised again is the tail that was seen last. Records that carry an id tell in
addition whether any are missing between two of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bls_agent.project.messages import Level, LogEntry

__all__ = ["Follower", "find_end", "gap_entry"]

ANCHOR: Final = 64  # records remembered to find the place again


def gap_entry(missing: int | None) -> LogEntry:
    """Make the entry that stands for missing records.

    Args:
        missing: How many, if that is known.
    """
    said = f"{missing}" if missing else "some"
    return LogEntry(
        timestamp="",
        level=Level.WARN,
        message=f"{said} records are missing here",
        metadata={"gap": {"missing": missing}},
    )


def find_end(
    seen: Sequence[Hashable], window: Sequence[Hashable], grown: int
) -> int | None:
    """Find where in a window of the tail what was seen last ends.

    Equal records may stand in several places: the one that fits the growth of the list
    goes first.

    Args:
        seen: The last records that were seen, or what stands for each; not empty.
        window: The tail of the list now, oldest first.
        grown: By how much the list is longer than it was.

    Returns:
        Index of the first record behind it; ``None`` if it is not in the window.
    """
    for index in [len(window) - 1 - grown, *reversed(range(len(window)))]:
        if 0 <= index < len(window):
            known = min(index + 1, len(seen))
            if list(window[index + 1 - known : index + 1]) == list(seen[-known:]):
                return index + 1
    return None


@dataclass
class Follower:
    """Remembers what was seen and picks what is new from each window of the tail.

    Attributes:
        started: Whether a first look has fixed the place to follow from.
        window_bytes: Bytes of the window that was seen last.
        window_records: Records in it.
    """

    started: bool = False
    window_bytes: int = 0
    window_records: int = 0
    _length: int = 0
    _anchor: list[bytes] = field(default_factory=list[bytes])
    _latest: dict[str, tuple[int, str]] = field(
        default_factory=dict[str, tuple[int, str]]
    )

    def start(self, window: Sequence[bytes], length: int) -> None:
        """Fix the place: everything in this window counts as seen.

        Args:
            window: The tail of the list, oldest first.
            length: Length of the whole list at the same moment.
        """
        self.started = True
        self._remember(window, length)
        for payload in window:
            self._note(LogEntry.decode(payload))

    def find_new(
        self, window: Sequence[bytes], length: int, *, longest: bool = False
    ) -> list[LogEntry] | None:
        """Pick what is new.

        Args:
            window: The tail of the list, oldest first.
            length: Length of the whole list at the same moment.
            longest: No longer window can be had: what is not in it is a gap.

        Returns:
            New entries in order, gaps included; ``None`` if the window is too short
            to find the place again: look at a longer one.
        """
        place = self._find_place(window, length)
        cut = len(window) < length
        if place is None and cut and not longest:
            return None
        lost_place = place is None and bool(self._anchor or (cut and window))
        found: list[LogEntry] = []
        blind = not window and lost_place and not self._last_had_number()
        recent = set(self._anchor)
        began_blank = not self._anchor
        for payload in window[place or 0 :]:
            entry = LogEntry.decode(payload)
            if entry.number is not None and payload in recent:
                continue  # sent again after an ambiguous failure
            if lost_place and self._is_old(payload, entry):
                continue
            recent.add(payload)
            began_again = self._began_again(entry)
            if began_blank and self._lacks_its_first(entry):
                found.append(gap_entry(None))
            missing = self._note(entry)
            blind |= lost_place and missing is None and not began_again
            if missing or (began_again and missing is None):
                found.append(gap_entry(missing))
            found.append(entry)
        if blind:
            found.insert(0, gap_entry(None))
        self._remember(window, length)
        return found

    def _last_had_number(self) -> bool:
        return LogEntry.decode(self._anchor[-1]).number is not None

    def _is_old(self, payload: bytes, entry: LogEntry) -> bool:
        """Tell a record of before from one of a process that counts from 1 again."""
        if payload in self._anchor:
            return True
        number, timestamp = self._latest.get(entry.instance, (0, ""))
        return (entry.number or number + 1) <= number and entry.timestamp < timestamp

    def _find_place(self, window: Sequence[bytes], length: int) -> int | None:
        """Find the end of what was seen: where the remembered tail stands.

        Equal records may stand in several places: the one that fits the growth of the
        list goes first.
        """
        if not self._anchor:
            return 0 if len(window) == length else None
        return find_end(self._anchor, window, length - self._length)

    def _remember(self, window: Sequence[bytes], length: int) -> None:
        self._anchor = list(window[-ANCHOR:])
        self.window_bytes = sum(map(len, window))
        self.window_records = len(window)
        self._length = length

    def _lacks_its_first(self, entry: LogEntry) -> bool:
        """Tell a process that began to write unseen, in a list that was empty."""
        unknown = entry.instance not in self._latest
        return unknown and entry.number is not None and entry.number > 1

    def _began_again(self, entry: LogEntry) -> bool:
        before = self._latest.get(entry.instance)
        return bool(before and entry.number and entry.number <= before[0])

    def _note(self, entry: LogEntry) -> int | None:
        """Say how many records of its process are missing before it; None: unknown."""
        number = entry.number
        if number is None:
            return None
        before = self._latest.get(entry.instance)
        self._latest[entry.instance] = (number, entry.timestamp)
        if before is None:
            return None
        if number > before[0]:
            return number - 1 - before[0]
        return 0 if number == 1 else None
