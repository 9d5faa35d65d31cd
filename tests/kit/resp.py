"""Where requests and replies begin and end in a stream of bytes (RESP2 and RESP3).

Pure and incremental: bytes in, pieces out, whatever the size of the reads. Values are
not decoded; all that is wanted is which byte belongs to which request or reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bls_agent.testing.link import Direction

WORD_LIMIT: Final = 64  # bytes of a command's name that are kept
LENGTHS: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}  # values per element
BULKS: Final = frozenset({b"$", b"=", b"!"})


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that lie within one request or one reply.

    Attributes:
        direction: Which way they go.
        data: The bytes, never empty.
        command: The request's command word in upper case; of a reply, that of the
            request which it answers; ``""`` for what answers nothing.
        offset: Place of the first byte within the request or reply.
        ends: Whether the last byte is its last one.
    """

    direction: Direction
    data: bytes
    command: str
    offset: int
    ends: bool


class Scanner:
    """Cuts a stream into frames: requests, or replies.

    Attributes:
        kind: The first byte of the frame that is being read, ``b""`` before it.
        word: The first text of the frame that is being read: of a request its command.
    """

    def __init__(self) -> None:
        self.kind = b""
        self.word = b""
        self._values = 1  # still to come in this frame
        self._bulk = 0  # bytes still to come of a text, its line end counted in
        self._line = b""
        self._word_left = 0

    @property
    def has_word(self) -> bool:
        """Whether the first text of the frame is there in full."""
        return bool(self.word) and not self._word_left

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Take bytes; give them back in order, cut where a frame ends.

        Yields:
            Bytes of one frame, and whether they end it. :attr:`kind` and :attr:`word`
            are those of that frame until the next one is asked for.
        """
        start = at = 0
        while at < len(data):
            at = self._advance(data, at)
            if self._values == 0:
                yield data[start:at], True
                start = at
                self.kind = self.word = b""
                self._values, self._word_left = 1, 0
        if start < at:
            yield data[start:], False

    def _advance(self, data: bytes, at: int) -> int:
        if self._bulk:
            return self._skip(data, at)
        end = data.find(b"\n", at) + 1
        if not end:
            self._line += data[at:]
            self.kind = self.kind or self._line[:1]
            return len(data)
        line, self._line = self._line + data[at:end], b""
        self.kind = self.kind or line[:1]
        self._understand(line)
        return end

    def _skip(self, data: bytes, at: int) -> int:
        taken = min(self._bulk, len(data) - at)
        if self._word_left:
            word = data[at : at + min(taken, self._word_left)]
            self._word_left -= len(word)
            self.word += word[: WORD_LIMIT - len(self.word)]
        self._bulk -= taken
        if not self._bulk:
            self._values -= 1
        return at + taken

    def _understand(self, line: bytes) -> None:
        kind = line[:1]
        size = _number(line)
        if kind in LENGTHS and size is not None:
            self._values += max(size, 0) * LENGTHS[kind]
            # An attribute stands before a value and is none itself.
            self._values -= kind != b"|"
        elif kind in BULKS and size is not None and size >= 0:
            self._bulk = size + 2
            if not self.word:
                self._word_left = size
        else:
            self.word = self.word or b" ".join(line.split()[:1])[:WORD_LIMIT]
            self._values -= 1


def _number(line: bytes) -> int | None:
    try:
        return int(line[1:])
    except ValueError:
        return None


class Conversation:
    """One connection: its requests, and which reply answers which of them."""

    def __init__(self) -> None:
        self._scanners = {direction: Scanner() for direction in Direction}
        self._offsets = dict.fromkeys(Direction, 0)
        self._kept = b""  # of a request whose command word has not come yet
        self._unanswered: deque[str] = deque()

    def feed(self, direction: Direction, data: bytes) -> list[Piece]:
        """Take what was read from one side; give what may go to the other one.

        The first bytes of a request are kept until its command word is known.
        """
        if direction is Direction.REQUESTS:
            return list(self._requests(data))
        return list(self._replies(data))

    def _requests(self, data: bytes) -> Iterator[Piece]:
        scanner = self._scanners[Direction.REQUESTS]
        for part, ends in scanner.feed(data):
            known, self._kept = self._kept + part, b""
            if not ends and not scanner.has_word:
                self._kept = known
                return
            command = scanner.word.decode("utf-8", "replace").upper()
            if ends:
                self._unanswered.append(command)
            yield self._piece(Direction.REQUESTS, known, command, ends=ends)

    def _replies(self, data: bytes) -> Iterator[Piece]:
        scanner = self._scanners[Direction.REPLIES]
        for part, ends in scanner.feed(data):
            pushed = scanner.kind == b">"  # RESP3: answers nothing
            waiting = not pushed and bool(self._unanswered)
            command = self._unanswered[0] if waiting else ""
            if ends and waiting:
                self._unanswered.popleft()
            yield self._piece(Direction.REPLIES, part, command, ends=ends)

    def _piece(
        self, direction: Direction, data: bytes, command: str, *, ends: bool
    ) -> Piece:
        offset = self._offsets[direction]
        self._offsets[direction] = 0 if ends else offset + len(data)
        return Piece(direction, data, command, offset, ends)
