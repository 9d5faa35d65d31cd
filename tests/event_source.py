"""Server-sent events read as the HTML standard says, by somebody who knows nothing else."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["EventSourceParser", "Message", "parse"]


class Message(NamedTuple):
    """What a page is given."""

    type: str
    data: str
    last_event_id: str


@dataclass
class EventSourceParser:
    """Section 9.2.6, "Interpreting an event stream", fed piece by piece.

    Attributes:
        last_event_id: What the client would come back with.
        retry: Milliseconds until it would, if that was said.
        comments: How many lines were for nobody.
    """

    last_event_id: str = ""
    retry: int | None = None
    comments: int = 0
    _id: str = ""
    _type: str = ""
    _data: list[str] = field(default_factory=list[str])
    _rest: str = ""
    _begun: bool = False
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def feed(self, piece: bytes) -> list[Message]:
        """Read a piece; give what was dispatched."""
        text = self._rest + self._decoder.decode(piece)
        if not self._begun and text:
            self._begun, text = True, text.removeprefix("\ufeff")
        # A CR at the end may be half of a CRLF.
        held = "\r" if text.endswith("\r") else ""
        *lines, rest = re.split(r"\r\n|\n|\r", text.removesuffix("\r"))
        self._rest = rest + held
        return [found for line in lines if (found := self._read(line)) is not None]

    def _read(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            self.comments += 1
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and re.fullmatch("[0-9]+", value):
            self.retry = int(value)
        return None

    def _dispatch(self) -> Message | None:
        self.last_event_id = self._id
        kind, data = self._type or "message", self._data
        self._type, self._data = "", []
        return Message(kind, "\n".join(data), self._id) if data else None


def parse(stream: bytes) -> list[Message]:
    """Read a whole stream."""
    return EventSourceParser().feed(stream)
