"""Finds new records at the end of the console list, and the pages of the list.

The list is trimmed at its front, so the index of a record changes with each write. A
follower therefore recognises its position by the records that it has read last. The
position of a page contains digests of records. This module does no I/O.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from bls_agent.core.errors import ConfigurationError
from bls_agent.project.messages import Level, LogEntry

ANCHOR: Final = 64  # newest records that a follower keeps and finds in the next read
ALIKE: Final = 8  # consecutive records by which the position of a page is recognised
# Processes whose last record a follower remembers. A restarted process has a new name.
MOST_INSTANCES: Final = 1_000
_FORM: Final = struct.Struct(">IB4s8s")


def gap_entry(missing: int | None) -> LogEntry:
    return LogEntry(
        timestamp="",
        level=Level.WARN,
        message=f"records missing here: {missing or 'some'}",
        metadata={"gap": {"missing": missing}},
    )


def find_end(
    seen: Sequence[Hashable], window: Sequence[Hashable], grown: int
) -> int | None:
    """Return the index in the window behind the records that were seen last.

    Return ``None`` if the window does not contain them. ``grown`` is the growth of the
    list since the last read. The index that fits ``grown`` is tried first, because
    equal records may be at several indexes.
    """
    for index in [len(window) - 1 - grown, *reversed(range(len(window)))]:
        if 0 <= index < len(window):
            known = min(index + 1, len(seen))
            if list(window[index + 1 - known : index + 1]) == list(seen[-known:]):
                return index + 1
    return None


@dataclass
class Follower:
    """Keeps the records that were read last, and finds the new records in a window.

    A window is the newest records of the list, which one request has read.
    """

    started: bool = False  # whether start() was called
    window_bytes: int = 0  # bytes of the window that was read last
    window_records: int = 0  # number of records in this window
    _length: int = 0
    _anchor: list[bytes] = field(default_factory=list[bytes])
    _latest: dict[str, tuple[int, str]] = field(
        default_factory=dict[str, tuple[int, str]]
    )

    def start(self, window: Sequence[bytes], length: int) -> None:
        """Begin to follow at the end of this window."""
        self.started = True
        self._remember(window, length)
        for payload in window:
            self._record(LogEntry.decode(payload))

    def find_new(
        self, window: Sequence[bytes], length: int, *, longest: bool = False
    ) -> list[LogEntry] | None:
        """Return the new records, with an entry for each gap of missing records.

        Return ``None`` if the caller must read a longer window, because this window
        does not contain the records that were seen last. ``longest`` means that no
        longer window can be read.
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
                continue  # the agent has written the record twice
            if lost_place and self._is_old(payload, entry):
                continue
            recent.add(payload)
            began_again = self._began_again(entry)
            if began_blank and self._lacks_its_first(entry):
                found.append(gap_entry(None))
            missing = self._record(entry)
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
        """Return whether a record was already read.

        A smaller number alone does not prove this, because a process starts again at 1
        after a restart. Therefore the timestamps are compared, too.
        """
        if payload in self._anchor:
            return True
        number, timestamp = self._latest.get(entry.instance, (0, ""))
        return (entry.number or number + 1) <= number and entry.timestamp < timestamp

    def _find_place(self, window: Sequence[bytes], length: int) -> int | None:
        if not self._anchor:
            return 0 if len(window) == length else None
        return find_end(self._anchor, window, length - self._length)

    def _remember(self, window: Sequence[bytes], length: int) -> None:
        self._anchor = list(window[-ANCHOR:])
        self.window_bytes = sum(map(len, window))
        self.window_records = len(window)
        self._length = length

    def _lacks_its_first(self, entry: LogEntry) -> bool:
        """Return whether a process is new here, and its record has a number above 1.

        If so, earlier records of the process are missing.
        """
        unknown = entry.instance not in self._latest
        return unknown and entry.number is not None and entry.number > 1

    def _began_again(self, entry: LogEntry) -> bool:
        before = self._latest.get(entry.instance)
        return bool(before and entry.number and entry.number <= before[0])

    def _record(self, entry: LogEntry) -> int | None:
        """Return how many records of the same process are missing before this record.

        Return ``None`` if this is unknown.
        """
        number = entry.number
        if number is None:
            return None
        before = self._latest.get(entry.instance)
        self._latest.pop(entry.instance, None)  # the newest instance is the last one
        self._latest[entry.instance] = (number, entry.timestamp)
        if len(self._latest) > MOST_INSTANCES:
            del self._latest[next(iter(self._latest))]
        if before is None:
            return None
        if number > before[0]:
            return number - 1 - before[0]
        return 0 if number == 1 else None


@dataclass(frozen=True, kw_only=True)
class LogPage:
    """A page of consecutive records of a log.

    Attributes:
        entries: The records, newest last.
        before: The argument that reads the next older page. ``""`` if there are no
            older records.
        trimmed: Whether the requested position and all older records were trimmed from
            the list.
    """

    entries: Sequence[LogEntry]
    before: str = ""
    trimmed: bool = False


@dataclass(frozen=True)
class LogPlace:
    """The position of a record, with digests of this and the following records."""

    index: int  # from the front of the list; trimming makes the index smaller
    count: int  # number of records in the digest of all records, up to 8
    _first: bytes
    _all: bytes

    @classmethod
    def of(cls, window: Sequence[bytes], index: int) -> LogPlace:
        known = window[:ALIKE]
        return cls(index, len(known), _mark(known[:1], 4), _mark(known, 8))

    @classmethod
    def decode(cls, text: str) -> LogPlace:
        with suppress(ValueError, struct.error):
            place = cls(*_FORM.unpack(urlsafe_b64decode(f"{text}=")))
            if 1 <= place.count <= ALIKE and place.encode() == text:
                return place
        rule = "it is what an earlier page gave as 'before'"
        raise ConfigurationError("before", text, rule)

    def encode(self) -> str:
        """Return the position as a text of 23 characters that a URL may contain."""
        fields = _FORM.pack(self.index, self.count, self._first, self._all)
        return urlsafe_b64encode(fields).decode().rstrip("=")

    def find_in(self, window: Sequence[bytes]) -> int | None:
        """Return the last index in a window at which both digests match."""
        for at in reversed(range(len(window) - self.count + 1)):
            known = window[at : at + self.count]
            if _mark(known[:1], 4) == self._first and _mark(known, 8) == self._all:
                return at
        return None


def cut_page(window: Sequence[bytes], index: int, end: int, limit: int) -> LogPage:
    """Return the page of the ``limit`` records before ``end`` in a window.

    ``index`` is the position of the window in the list.
    """
    begin = max(0, end - limit)
    older = index + begin > 0 and begin < len(window)
    place = LogPlace.of(window[begin:], index + begin).encode() if older else ""
    entries = [LogEntry.decode(payload) for payload in window[begin:end]]
    return LogPage(entries=entries, before=place)


def _mark(records: Sequence[bytes], size: int) -> bytes:
    mark = blake2b(digest_size=size)
    for record in records:
        mark.update(b"%d:" % len(record))
        mark.update(record)
    return mark.digest()
