"""Encodes one record of the console list as JSON. This module does no I/O.

A record is stored in one bytes object, which has two pieces of JSON. The id of the
record is inserted between them when the record is written:

    {"timestamp":"…","level":"info","message":"…"       the head
    ,"metadata":{                                       _OPENS; the id is inserted here
    ,"module":"redis"}}                                 the rest; ``}}`` without metadata

The id looks like ``"agent":"order-1#7"``. If a record gets no id, the comma at the
start of the rest is left out. If it also has no metadata, all of ``,"metadata":{}`` is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, NoneType
from typing import Final, TypeAlias, cast

from bls_agent.core.codec import (
    cut_text,
    decode,
    decode_object,
    encode,
    encode_within,
    format_timestamp,
)
from bls_agent.core.redaction import DEFAULT, Redactor
from bls_agent.project.messages import Level, Outcome, OutcomeKind

RECORD_LIMIT: Final = 65_535  # bytes; the console protocol asks for less than 64 KB
MESSAGE_LIMIT: Final = 32_768  # bytes of the message in a record that is too long
_OPENS: Final = b',"metadata":{'


class LogRecord:
    """A record, which the constructor encodes and redacts in the caller's thread."""

    __slots__ = (
        "_body", "_payload", "_place", "has_id", "rank", "size"
    )  # fmt: skip

    OUTCOME_RANK: Final = 4
    MARK: Final = 150  # bytes that the id adds, for names of up to 100 bytes
    NUMBER_ROOM: Final = 20  # bytes of an id behind its prefix
    ID_ROOM: Final = 1_100  # bytes of the longest id: a name of 512 bytes, escaped

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
            if not tail.startswith(b"{"):  # a stand-in, because the mapping has raised
                tail = encode({"metadata": decode(tail)})
            # The encoded form is checked, because the metadata may have any type.
            if redactor.suspects(tail):
                tail = encode(redactor.tree(decode(tail)))
        room = RECORD_LIMIT - id_room - len(_OPENS)
        if len(head) + len(tail) > room:
            lost = max(0, len(message) - len(text))
            head, tail = _shorten(head, tail, len(head) + len(tail) + lost, room)
        # The body is a copy of exact size, because a bytes object from orjson uses more
        # memory than its length. The id will be inserted before the comma.
        rest = b"}}" if tail == b"{}" else b",%b}" % tail[1:]
        self._body = b"%b%b%b" % (head, _OPENS, rest)
        self._place = len(head) + len(_OPENS)
        # Whether :meth:`number` adds an id. The metadata may have its own ``agent``.
        self.has_id: bool = "agent" not in metadata
        self._payload: bytes | None = None
        # From 0 for debug to 3 for error, and 4 for outcome records. A full buffer
        # drops records of the lowest rank first.
        self.rank: int = level.rank if rank is None else rank
        # Largest number of bytes that are sent for this record, if the name of the
        # process has up to 100 bytes.
        self.size: int = len(self._body) + self.MARK

    def number(self, prefix: bytes, number: int = 0) -> None:
        """Set the id of the record, ``<instance>#<number>``.

        ``prefix`` is the result of :func:`id_prefix`. Without a prefix, the record gets
        no id.
        """
        body, place = self._body, self._place
        if prefix and self.has_id:
            self._payload = b'%b%b%d"%b' % (body[:place], prefix, number, body[place:])
        elif len(body) - place == len(b"}}"):
            self._payload = body[: place - len(_OPENS)] + b"}"
        else:
            self._payload = body[:place] + body[place + 1 :]

    @property
    def payload(self) -> bytes:
        if self._payload is None:
            self.number(b"")
        return cast("bytes", self._payload)


class SuccessRecord:
    """The outcome record of a succeeded command, which is encoded when it is written.

    Encoding a batch of such records takes a third less time than encoding one record
    after each handler. Later encoding is safe, because the result is ``None``, a bool
    or a float, which the program cannot change. The buffer can limit its bytes, because
    the largest size of the record is known in advance.
    """

    __slots__ = ("_now", "_outcome", "_record", "_redactor", "_trace", "rank", "size")

    # Largest number of characters of the command's name, id and source together.
    SMALL: Final = 200
    FRAME: Final = 234  # largest number of bytes of the rest of the record
    PLAIN: Final = frozenset({NoneType, bool, float})  # allowed types of the result

    def __init__(
        self,
        outcome: Outcome,
        now: float,
        size: int,
        redactor: Redactor,
        trace: Mapping[str, str],
    ) -> None:
        self._outcome = outcome
        self._trace = trace  # ``trace_id`` and ``span_id``, or empty
        self._now = now
        self._redactor = redactor
        self._record: LogRecord | None = None
        self.rank: int = LogRecord.OUTCOME_RANK
        self.size: int = size  # largest number of bytes that are sent for this record

    @classmethod
    def of(
        cls,
        outcome: Outcome,
        now: float,
        redactor: Redactor = DEFAULT,
        trace: Mapping[str, str] = MappingProxyType({}),
    ) -> SuccessRecord | None:
        """Return the record of an outcome.

        Return ``None`` if the outcome must be encoded now, as a ``LogRecord``.
        """
        if outcome.kind is not OutcomeKind.SUCCEEDED:
            return None
        text = outcome.command + outcome.command_id
        words = text + outcome.source.replace(" ", "")
        is_plain = words.replace("-", "").replace("_", "").replace(".", "").isalnum()
        # The source is counted twice, because redaction may almost double its length.
        text += 2 * outcome.source
        is_small = len(text) <= cls.SMALL and type(outcome.result) in cls.PLAIN
        if not (is_plain and is_small):
            return None
        # The record contains the name of the command twice.
        letters = len(outcome.command) + len(text)
        letters = letters if text.isascii() else 4 * letters
        letters += sum(map(len, (*trace.keys(), *trace.values()))) + 6 * len(trace)
        size = LogRecord.MARK + cls.FRAME + letters
        return cls(outcome, now, size, redactor, trace)

    def number(self, prefix: bytes, number: int = 0) -> None:
        """Encode the record if it is not encoded yet, and set its id."""
        self._encoded.number(prefix, number)

    @property
    def has_id(self) -> bool:
        return self._encoded.has_id

    @property
    def payload(self) -> bytes:
        return self._encoded.payload

    @property
    def _encoded(self) -> LogRecord:
        if self._record is None:
            self._record = LogRecord(
                Level.INFO,
                self._outcome.message,
                {**self._trace, **self._outcome.metadata},
                now=self._now,
                redactor=self._redactor,
            )
        return self._record


# The type of the records in a buffer.
AnyRecord: TypeAlias = LogRecord | SuccessRecord


def id_prefix(instance: str) -> bytes:
    """Return the encoded beginning of all ids of a process.

    ``b""`` if ``instance`` is empty.
    """
    return b'"agent":' + encode(f"{instance}#")[:-1] if instance else b""


def _shorten(head: bytes, tail: bytes, size: int, room: int) -> tuple[bytes, bytes]:
    fields = decode_object(head + b"}")
    fields["message"] = _cut_encoded(fields["message"], MESSAGE_LIMIT)
    head = encode(fields)[:-1]
    fitting = {"truncated": size, **decode_object(tail)}
    return head, encode_within(fitting, room - len(head))[0]


def _cut_encoded(text: str, limit: int) -> str:
    """Shorten a text until its JSON form has at most ``limit`` bytes.

    The JSON form may be longer than the text, because a control character takes six
    bytes.
    """
    size = limit - 2  # the quotes
    while len(encode(text)) > limit:
        text = cut_text(text, size)
        size //= 2
    return text
