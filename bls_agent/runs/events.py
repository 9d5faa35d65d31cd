"""Run events: their ids, their fields and their form as server-sent events. No I/O.

An entry that breaks the run event format is decoded, too. ``faults`` of the event
contains the names of the wrong fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeAlias

from bls_agent.core.checks import check_count
from bls_agent.core.codec import JSONObject, decode_object, encode, encode_strictly
from bls_agent.core.errors import ConfigurationError, DecodeError

BEGINNING: Final = "0-0"  # the position before every event
END: Final = "$"  # the position after the last event at the time of the request
_LARGEST: Final = 2**64 - 1  # the largest value of each of the two numbers of an id
_LARGEST_RUN: Final = 2**63 - 1  # run ids must fit into a BIGINT column
_ID: Final = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")

DAY: Final = 86_400  # TTL of a run in seconds, as the run event format defines


EventId = str  # of the form ``<milliseconds>-<number>``


def order(event_id: EventId) -> tuple[int, int]:
    """Return the two numbers of an id, by which Redis sorts ids."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


def next_id(event_id: EventId) -> EventId | None:
    """Return the least id after an id; ``None`` after the largest id."""
    milliseconds, number = order(event_id)
    if number < _LARGEST:
        return f"{milliseconds}-{number + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < _LARGEST else None


def previous_id(event_id: EventId) -> EventId | None:
    """Return the greatest id before an id; ``None`` before the smallest id."""
    milliseconds, number = order(event_id)
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{_LARGEST}" if milliseconds else None


def find_id(text: object) -> EventId | None:
    """Return an id in its full form, such as ``5-0`` for ``5``, or ``None``."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    milliseconds, number = int(found[1]), int(found[2] or 0)
    if max(milliseconds, number) > _LARGEST:
        return None
    return f"{milliseconds}-{number}"


def check_id(name: str, value: object) -> EventId:
    """Return the full form of an id. Raise ConfigurationError for any other value."""
    found = find_id(value)
    if found is None:
        rule = "an id of an event is '<milliseconds>-<number>'"
        remedy = "Pass the id of the last event that you have, or '0-0' for all."
        raise ConfigurationError(name, value, rule, remedy)
    return found


def check_bound(name: str, value: object) -> str:
    """Return a valid start or end of a range: an id, ``-`` (first) or ``+`` (last)."""
    if value in ("-", "+"):
        return str(value)
    if find_id(value) is None:
        rule = "an end of a range is the id of an event, '-' or '+'"
        raise ConfigurationError(name, value, rule)
    return str(value)  # Redis also accepts milliseconds without a number


def check_run_id(value: object) -> int:
    """Return the id of a run. Raise ConfigurationError for any other value."""
    return check_count("run_id", value, least=0, most=_LARGEST_RUN)


# Characters that must not be in a name or an id:
# - control characters, as CR and LF end a line and NUL makes a browser ignore an id
# - U+2028 and U+2029, which end a line for some readers, such as Python's splitlines()
# - surrogates, which UTF-8 cannot encode
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Line ends that JSON does not escape, and their JSON escapes.
_LINE_ENDS: Final = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def write_frame(event: str, data: bytes, event_id: str = "") -> bytes:
    r"""Return one server-sent event.

    Control characters, U+2028 and U+2029 in the name and the id are written as JSON
    escapes (``\u000a``). Three line ends that JSON does not escape are also escaped in
    the data. This does not change the value of the JSON.
    """
    for end, escaped in _LINE_ENDS:
        if end in data:
            data = data.replace(end, escaped)
    name = _on_one_line(event)
    if not event_id:
        return b"event: %s\ndata: %s\n\n" % (name, data)
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (_on_one_line(event_id), name, data)


def _on_one_line(text: str) -> bytes:
    if text.isascii() and text.isprintable():
        return text.encode()
    return _UNSAFE.sub(_escape, text).encode()


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class EventCategory(StrEnum):
    """The categories that the protocol names. Any other text is allowed, too."""

    LIFECYCLE = "lifecycle"
    LLM = "llm"
    DISPATCH = "dispatch"
    SYSTEM = "system"
    AGENT = "agent"


class EventAction(StrEnum):
    """The actions that the protocol names. Any other text is allowed, too."""

    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STREAM = "stream"
    ASSIGNED = "assigned"
    CLOSE = "close"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    TEAM = "team"
    WORKER = "worker"
    TOPOLOGY = "topology"
    WARNING = "warning"
    ERROR = "error"


_SOURCE_FIELDS: Final = (
    (b"source_agent_id", "agent_id"),
    (b"source_agent_type", "agent_type"),
    (b"source_agent_name", "agent_name"),
    (b"source_team_name", "team_name"),
)


_DIGITS: Final = 20  # decimal digits of the largest number of 64 bits
# Turns digits into 0 and other bytes into blanks. A search for zeros is fast.
_ZEROS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))  # noqa: PLR2004 - "0" to "9"
_LONG_NUMBER: Final = b"0" * 19  # an integer over 64 bits has at least 19 digits


@dataclass(frozen=True)
class StreamEvent:
    """One event of a run.

    Do not change ``source``, ``event`` and ``data``, because many followers may share
    the same object.

    Attributes:
        id: ``<milliseconds>-<number>``; each event of a run has a larger id than the
            event before it.
        timestamp: Time of the event in ISO 8601, as its writer wrote it.
        sequence: Number of the event within the run, from 1; 0 if no number can be
            read.
        source: ``agent_id``, ``agent_type``, ``agent_name`` and ``team_name``; ``None``
            if all of them are empty.
        event: ``category`` and ``action``.
        data: Content of the event; ``{}`` if the content cannot be read.
        raw: All fields as bytes if the entry breaks the run event format, otherwise
            ``None``.
        faults: Names of the fields that break the format.
    """

    id: str
    run_id: int
    timestamp: str
    sequence: int
    source: Mapping[str, str] | None
    event: Mapping[str, str]
    data: Mapping[str, Any]
    raw: Mapping[bytes, bytes] | None = field(default=None, repr=False)
    faults: tuple[str, ...] = ()

    @property
    def category(self) -> str:
        """The kind of event, such as ``llm``; see :class:`EventCategory`."""
        return self.event["category"]

    @property
    def action(self) -> str:
        """What happened, such as ``stream``; see :class:`EventAction`."""
        return self.event["action"]

    @property
    def name(self) -> str:
        """Category and action: ``llm.stream``."""
        return f"{self.event['category']}.{self.event['action']}"

    @property
    def closes(self) -> bool:
        """Whether the event is ``system.close``, with which a writer ends a run."""
        return (
            self.event["category"] == EventCategory.SYSTEM
            and self.event["action"] == EventAction.CLOSE
        )

    def to_dict(self) -> JSONObject:
        """Return the event as a JSON object, in the form that the protocol defines."""
        return {
            "id": self.id,
            "run_id": self.run_id,
            "timestamp": self.timestamp,
            "sequence": self.sequence,
            "source": self.source,
            "event": self.event,
            "data": self.data,
        }

    @cached_property
    def json(self) -> bytes:
        """The event as one line of JSON in UTF-8. The event is encoded only once."""
        return self._encode()

    @cached_property
    def sse(self) -> bytes:
        """The event as a server-sent event. All followers share the encoded bytes."""
        return write_frame(self.name, self._encode(), self.id)

    def _encode(self) -> bytes:
        """Encode the event, also integers over 64 bits, which a writer may write.

        Without such integers :func:`encode` is enough, and up to 60 times as fast.
        """
        fields = self.to_dict()
        payload = encode(fields)
        if _LONG_NUMBER not in payload.translate(_ZEROS):
            return payload
        try:
            return encode_strictly("event", fields)
        except ConfigurationError:
            return payload

    @classmethod
    def decode(
        cls, run_id: int, entry_id: bytes, fields: Sequence[bytes]
    ) -> StreamEvent:
        """Decode an entry of the stream. Never raise, whatever the entry contains.

        Args:
            run_id: The run.
            entry_id: Id of the entry, as Redis returned it.
            fields: Names and values alternately, as Redis returned them.
        """
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        faults: list[str] = []
        sequence = _read_sequence(named, faults)
        data = _read_data(named, faults)
        category = _read_text(named, b"event_category", faults)
        action = _read_text(named, b"event_action", faults)
        timestamp = _read_text(named, b"timestamp", faults)
        return cls(
            entry_id.decode("ascii", "replace"),
            run_id,
            timestamp,
            sequence,
            _read_source(named),
            {"category": category, "action": action},
            data,
            named if faults else None,
            tuple(faults),
        )


def _read_text(named: Mapping[bytes, bytes], name: bytes, faults: list[str]) -> str:
    value = named.get(name)
    if value is None:
        faults.append(name.decode())
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        faults.append(name.decode())
        return value.decode("utf-8", "backslashreplace")


def _read_sequence(named: Mapping[bytes, bytes], faults: list[str]) -> int:
    value = named.get(b"sequence", b"")
    if value.isdigit() and len(value) <= _DIGITS:
        return int(value)
    faults.append("sequence")
    return 0


def _read_data(named: Mapping[bytes, bytes], faults: list[str]) -> JSONObject:
    try:
        return decode_object(named.get(b"data", b""))
    except DecodeError:
        faults.append("data")
        return {}


def _read_source(named: Mapping[bytes, bytes]) -> dict[str, str] | None:
    value = {
        name: named.get(stands, b"").decode("utf-8", "backslashreplace")
        for stands, name in _SOURCE_FIELDS
    }
    return value if any(value.values()) else None


class GapReason(StrEnum):
    """Why events are missing.

    Attributes:
        TRIMMED: Redis removed the oldest events, because the run had more events than
            ``maxlen``.
        EXPIRED: The run that had the events no longer exists.
        LOST: The server was restarted or replaced, and does not have the events.
    """

    TRIMMED = "trimmed"
    EXPIRED = "expired"
    LOST = "lost"


@dataclass(frozen=True)
class Gap:
    """An item that a follower returns in place of missing events of a run.

    Attributes:
        after: Id of the event after which events are missing; ``"0-0"`` for the
            beginning.
        before: Id of the next event in Redis; ``None`` if Redis has no later event.
        missing: Number of missing events; ``None`` if the number is unknown.
    """

    run_id: int
    reason: GapReason
    after: str
    before: str | None = None
    missing: int | None = None

    def to_dict(self) -> JSONObject:
        """Return the fields as the JSON object that browsers receive."""
        return {
            "run_id": self.run_id,
            "reason": self.reason.value,
            "after": self.after,
            "before": self.before,
            "missing": self.missing,
        }


@dataclass(frozen=True)
class WriterLost:
    """An item that a follower returns if a writer stops without ending the run.

    The writer died, froze or lost its connection. If the writer continues later, the
    follower returns the new events. The stream in Redis has no entry for the loss,
    because followers write nothing.

    Attributes:
        after: Id of the last event in Redis.
    """

    run_id: int
    after: str

    def to_dict(self) -> JSONObject:
        """Return the fields as the JSON object that browsers receive."""
        return {"run_id": self.run_id, "after": self.after}


Followed: TypeAlias = StreamEvent | Gap | WriterLost  # what a follower returns


class FollowEnd(StrEnum):
    """Why a follower has ended.

    Attributes:
        CLOSED: The writer has ended the run with ``system.close``.
        GONE: The run was deleted, or has expired.
        LEFT: The follower or its store was closed in this process. The run may
            continue.
    """

    CLOSED = "closed"
    GONE = "gone"
    LEFT = "left"
