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
        size: Bytes on the wire, at most.
    """

    __slots__ = ("_has_agent", "_head", "_payload", "_tail", "rank", "size")

    OUTCOME_RANK: Final = 4
    ID_ROOM: Final = 600  # bytes kept free for the record's id

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
        self._head = encode(fields)[:-1]
        self._tail = encode(metadata) if metadata else b"{}"
        if len(self._head) + len(self._tail) > RECORD_LIMIT - self.ID_ROOM:
            self._shorten(fields, metadata)
        self._has_agent = "agent" in metadata
        self._payload: bytes | None = None
        self.rank = level.rank if rank is None else rank
        self.size = len(self._head) + len(self._tail) + 16

    def _shorten(self, fields: dict[str, str], metadata: Mapping[str, object]) -> None:
        whole = len(self._head) + len(self._tail)
        cut: dict[str, object] = {"truncated": {"bytes": whole}}
        fields["message"] = _cut_encoded(fields["message"], MESSAGE_LIMIT)
        self._head = encode(fields)[:-1]
        room = RECORD_LIMIT - self.ID_ROOM - len(self._head)
        plain = cast("JSONObject", {**cut, **metadata})
        self._tail = encode_within(plain, room)[0]

    def number(self, identity: str) -> None:
        """Give the record its id; ``""`` for none. A user's own ``agent`` key wins."""
        tail = self._tail
        if identity and not self._has_agent:
            mark = encode({"agent": identity})[:-1]
            tail = mark + (b"}" if tail == b"{}" else b"," + tail[1:])
        end = b"}" if tail == b"{}" else b',"metadata":' + tail + b"}"
        self._payload = self._head + end

    @property
    def payload(self) -> bytes:
        """The bytes for RPUSH."""
        if self._payload is None:
            self.number("")
        return cast("bytes", self._payload)


def _cut_encoded(text: str, limit: int) -> str:
    """Shorten a text until its JSON form fits; control characters take six bytes."""
    size = limit
    while len(encode(text)) > limit:
        text = cut_text(text, size)
        size //= 2
    return text
