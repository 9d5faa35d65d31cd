"""A log record on its way out: encoded at once, shortened to fit, numbered when sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from bls_agent.codec import (
    JSONObject,
    cut_text,
    encode,
    encode_within,
    format_timestamp,
)
from bls_agent.project.messages import Level

__all__ = ["LogRecord"]

RECORD_LIMIT: Final = 65_535  # bytes; the contract asks for less than 64 KB
MESSAGE_LIMIT: Final = 32_768


class LogRecord:
    """One record on its way out: encoded in the calling thread, numbered when sent.

    Attributes:
        rank: What a full buffer gives up first: 0 debug … 3 error, 4 outcomes.
        size: Bytes on the wire, at most (for names of up to 100 bytes).
    """

    __slots__ = ("_body", "_has_agent", "_head_size", "_payload", "rank", "size")

    OUTCOME_RANK: Final = 4
    MARK: Final = 160  # bytes that metadata and id add, at most for usual names
    ID_ROOM: Final = 1_100  # bytes for the id: a name of 512 bytes, escaped

    def __init__(
        self,
        level: Level,
        message: str,
        metadata: Mapping[str, object],
        *,
        now: float,
        rank: int | None = None,
    ) -> None:
        """Encode a record; never raises, whatever the metadata holds.

        Args:
            level: Level of the record.
            message: The text.
            metadata: Additional fields; ``{}`` for none.
            now: Unix seconds.
            rank: Other than the level's.
        """
        fields = {
            "timestamp": format_timestamp(now),
            "level": level.value,
            "message": message,
        }
        head = encode(fields)[:-1]
        tail = encode(metadata) if metadata else b"{}"
        if len(head) + len(tail) > RECORD_LIMIT - self.ID_ROOM:
            head, tail = _shorten(fields, metadata, len(head) + len(tail))
        # One copy of exact size: what orjson returns holds more memory than it shows.
        self._body = head + tail
        self._head_size = len(head)
        self._has_agent = "agent" in metadata
        self._payload: bytes | None = None
        self.rank = level.rank if rank is None else rank
        self.size = len(self._body) + self.MARK

    def number(self, identity: str) -> None:
        """Give the record its id; ``""`` for none. A user's own ``agent`` key wins."""
        head, tail = self._body[: self._head_size], self._body[self._head_size :]
        if identity and not self._has_agent:
            mark = encode({"agent": identity})[:-1]
            tail = mark + (b"}" if tail == b"{}" else b"," + tail[1:])
        end = b"}" if tail == b"{}" else b',"metadata":' + tail + b"}"
        self._payload = head + end

    @property
    def has_id(self) -> bool:
        """Whether the record can be told from every other one."""
        return not self._has_agent

    @property
    def payload(self) -> bytes:
        """The bytes for RPUSH."""
        if self._payload is None:
            self.number("")
        return cast("bytes", self._payload)


def _shorten(
    fields: dict[str, str], metadata: Mapping[str, object], size: int
) -> tuple[bytes, bytes]:
    """Cut message and metadata until both fit, and say so in the metadata."""
    message = _cut_encoded(fields["message"], MESSAGE_LIMIT)
    head = encode({**fields, "message": message})[:-1]
    room = RECORD_LIMIT - LogRecord.ID_ROOM - len(head)
    told = cast("JSONObject", {"truncated": size, **metadata})
    return head, encode_within(told, room)[0]


def _cut_encoded(text: str, limit: int) -> str:
    """Shorten a text until its JSON form fits; control characters take six bytes."""
    size = limit - 2  # the quotes
    while len(encode(text)) > limit:
        text = cut_text(text, size)
        size //= 2
    return text
