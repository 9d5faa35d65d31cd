"""A log record before it is written: encoded at once, without secrets, short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from bls_agent.core.codec import (
    cut_text,
    decode,
    decode_object,
    encode,
    encode_within,
    format_timestamp,
)
from bls_agent.core.redaction import DEFAULT, Redactor
from bls_agent.project.messages import Level

__all__ = ["LogRecord", "id_prefix"]

RECORD_LIMIT: Final = 65_535  # bytes; the console protocol asks for less than 64 KB
MESSAGE_LIMIT: Final = 32_768
_OPENS: Final = b',"metadata":{'


class LogRecord:
    """One record: encoded in the calling thread, numbered when it is written."""

    __slots__ = (
        "_body", "_has_agent", "_id_room", "_payload", "_place", "_redactor", "rank",
        "size"
    )  # fmt: skip

    OUTCOME_RANK: Final = 4
    MARK: Final = 150  # bytes that an id adds, at most for usual names
    NUMBER_ROOM: Final = 20  # bytes of an id after its prefix
    ID_ROOM: Final = 1_100  # bytes for the id: a name of 512 bytes, escaped

    def __init__(
        self,
        level: Level,
        message: str,
        metadata: Mapping[str, object],
        *,
        now: float,
        rank: int | None = None,
        redactor: Redactor = DEFAULT,
        id_room: int = ID_ROOM,
    ) -> None:
        text = redactor.text(message)
        head = encode(
            {
                "timestamp": format_timestamp(now),
                "level": level.value,
                "message": text,
            }
        )[:-1]
        tail = b"{}"
        if metadata:
            tail = encode(metadata)
            if not redactor.finds_nothing_in(metadata):
                tail = _redact(tail, redactor)
        self._redactor = redactor
        self._id_room = id_room
        self._has_agent = "agent" in metadata
        self._payload: bytes | None = None
        self._keep(head, tail, max(0, len(message) - len(text)))
        # A full buffer drops the lowest first: 0 debug … 3 error, 4 outcomes.
        self.rank = level.rank if rank is None else rank
        # Bytes on the wire, at most (for names of up to 100 bytes).
        self.size = len(self._body) + self.MARK

    def _keep(self, head: bytes, tail: bytes, lost: int = 0) -> None:
        room = RECORD_LIMIT - self._id_room - len(_OPENS)
        if len(head) + len(tail) > room:
            head, tail = _shorten(head, tail, len(head) + len(tail) + lost, room)
        # One copy of exact size: what orjson returns holds more memory than it shows.
        # It has room for the id where "metadata" opens; the comma is for what follows.
        rest = b"}}" if tail == b"{}" else b",%b}" % tail[1:]
        self._body = b"%b%b%b" % (head, _OPENS, rest)
        self._place = len(head) + len(_OPENS)

    def redact(self, redactor: Redactor) -> None:
        """Redact again with other names: those of the environment come later."""
        if redactor is self._redactor or redactor.extra == self._redactor.extra:
            return
        self._redactor = redactor
        fields = decode_object(self._body[: self._place - len(_OPENS)] + b"}")
        fields["message"] = redactor.text(fields["message"])
        tail = b"{" + (self._body[self._place + 1 : -1] or b"}")
        tail = _redact(tail, redactor)
        self._keep(encode(fields)[:-1], tail)

    def number(self, prefix: bytes, number: int = 0) -> None:
        """Set the record's id, ``<instance>#<number>``."""
        body, place = self._body, self._place
        if prefix and not self._has_agent:
            self._payload = b'%b%b%d"%b' % (body[:place], prefix, number, body[place:])
        elif len(body) - place == len(b"}}"):
            self._payload = body[: place - len(_OPENS)] + b"}"
        else:
            self._payload = body[:place] + body[place + 1 :]

    @property
    def has_id(self) -> bool:
        """Whether its id distinguishes the record from every other one."""
        return not self._has_agent

    @property
    def payload(self) -> bytes:
        """The bytes for RPUSH."""
        if self._payload is None:
            self.number(b"")
        return cast("bytes", self._payload)


def id_prefix(instance: str) -> bytes:
    """Encode what the ids of a process have in common; ``b""`` for no instance."""
    return b'"agent":' + encode(f"{instance}#")[:-1] if instance else b""


def _redact(payload: bytes, redactor: Redactor) -> bytes:
    """Redact the encoded JSON, whatever objects it was made from."""
    if not redactor.suspects(payload):
        return payload
    return encode(redactor.tree(decode(payload)))


def _shorten(head: bytes, tail: bytes, size: int, room: int) -> tuple[bytes, bytes]:
    fields = decode_object(head + b"}")
    fields["message"] = _cut_encoded(fields["message"], MESSAGE_LIMIT)
    head = encode(fields)[:-1]
    fitting = {"truncated": size, **decode_object(tail)}
    return head, encode_within(fitting, room - len(head))[0]


def _cut_encoded(text: str, limit: int) -> str:
    """Shorten a text until its JSON form fits; control characters take six bytes."""
    size = limit - 2  # the quotes
    while len(encode(text)) > limit:
        text = cut_text(text, size)
        size //= 2
    return text
