"""Places in a list that is cut from its front while it grows: found again, without I/O.

A position means nothing a moment later: cutting moves every record towards the front. A
place therefore remembers how the records there look, and where they stood: they can only
stand there or further in front.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from bls_agent.errors import ConfigurationError
from bls_agent.project.messages import LogEntry

__all__ = ["LogPage", "LogPlace", "cut_page"]

ALIKE: Final = 8  # records in a row by which a place is known
_FORM: Final = struct.Struct(">IB4s8s")


@dataclass(frozen=True, kw_only=True)
class LogPage:
    """Some records in a row.

    Attributes:
        entries: The records, newest last.
        before: What to ask with for the page before this one; ``""``: there is none,
            the list begins here.
        trimmed: Whether the place that was asked for is not there any more: what stood
            before it was cut off the list, too.
    """

    entries: Sequence[LogEntry]
    before: str = ""
    trimmed: bool = False


@dataclass(frozen=True)
class LogPlace:
    """Where a record stood, and how it and those behind it look.

    Equal records in a row, without ids, are taken for one another.

    Attributes:
        index: Its position from the front; later it stands there or further in front.
        count: How many records are known: up to 8.
    """

    index: int
    count: int
    _first: bytes
    _all: bytes

    @classmethod
    def of(cls, window: Sequence[bytes], index: int) -> LogPlace:
        """Remember the place of a window's first record.

        Args:
            window: Records in a row, oldest first; at least one.
            index: Position of the first one.
        """
        known = window[:ALIKE]
        return cls(index, len(known), _mark(known[:1], 4), _mark(known, 8))

    @classmethod
    def decode(cls, text: str) -> LogPlace:
        """Read a place back.

        Raises:
            ConfigurationError: That is no place.
        """
        with suppress(ValueError, struct.error):
            place = cls(*_FORM.unpack(urlsafe_b64decode(f"{text}=")))
            if 1 <= place.count <= ALIKE and place.encode() == text:
                return place
        rule = "it is what an earlier page gave as 'before'"
        raise ConfigurationError("before", text, rule)

    def encode(self) -> str:
        """Write the place as text of 23 characters that a URL may hold."""
        fields = _FORM.pack(self.index, self.count, self._first, self._all)
        return urlsafe_b64encode(fields).decode().rstrip("=")

    def find_in(self, window: Sequence[bytes]) -> int | None:
        """Find the record in a window: the last place at which all that is known fits."""
        for at in reversed(range(len(window) - self.count + 1)):
            known = window[at : at + self.count]
            if _mark(known[:1], 4) == self._first and _mark(known, 8) == self._all:
                return at
        return None


def cut_page(window: Sequence[bytes], index: int, end: int, limit: int) -> LogPage:
    """Make a page of the records before a place.

    Args:
        window: Records in a row, oldest first.
        index: Position of the first one.
        end: Where in the window the page ends.
        limit: Records at most.
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
