"""An event of a run, its id and its frame; no I/O.

Entries are read tolerantly: one that breaks the contract is an event all the same, and
its ``faults`` name what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeAlias

from bls_agent.core.codec import JSONObject, decode_object, encode
from bls_agent.core.errors import ConfigurationError, DecodeError

BEGINNING: Final = "0-0"  # before every event
END: Final = "$"  # behind the last one, wherever that is
_LARGEST: Final = 2**64 - 1  # of either number
_LARGEST_RUN: Final = 2**63 - 1  # what a column of type BIGINT holds
_ID: Final = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")

DAY: Final = 86_400  # seconds: how long the contract keeps a run
LARGEST: Final = 100_000_000


EventId = str  # as it stands in a StreamEvent


def order(event_id: EventId) -> tuple[int, int]:
    """Return two numbers that compare as the ids do."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


def next_id(event_id: EventId) -> EventId | None:
    """Return the least id behind another; ``None`` behind the largest."""
    milliseconds, number = order(event_id)
    if number < _LARGEST:
        return f"{milliseconds}-{number + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < _LARGEST else None


def previous_id(event_id: EventId) -> EventId | None:
    """Return the greatest id before another; ``None`` before all of them."""
    milliseconds, number = order(event_id)
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{_LARGEST}" if milliseconds else None


def find_id(text: object) -> EventId | None:
    """Return the full form of an id, also of milliseconds alone; else ``None``."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    milliseconds, number = int(found[1]), int(found[2] or 0)
    if max(milliseconds, number) > _LARGEST:
        return None
    return f"{milliseconds}-{number}"


def read_id(value: object) -> EventId | None:
    """Read an id as Redis gives it; ``None`` for what is none."""
    return (
        find_id(value.decode("ascii", "replace")) if isinstance(value, bytes) else None
    )


def check_id(name: str, value: object) -> EventId:
    """Return the full form of an id, or refuse it."""
    found = find_id(value)
    if found is None:
        rule = "an id of an event is '<milliseconds>-<number>'"
        remedy = "Pass the id of the last event that you have, or '0-0' for all."
        raise ConfigurationError(name, value, rule, remedy)
    return found


def check_bound(name: str, value: object) -> str:
    """Check an end of a range: an id, ``-`` for the first event, ``+`` for the last."""
    if value in ("-", "+"):
        return str(value)
    if find_id(value) is None:
        rule = "an end of a range is the id of an event, '-' or '+'"
        raise ConfigurationError(name, value, rule)
    return str(value)  # milliseconds alone mean their first or last event


def check_run_id(value: object) -> int:
    """Refuse what is no id of a run."""
    return check_count("run_id", value, least=0, most=_LARGEST_RUN)


def check_count(
    name: str, value: object, *, least: int = 1, most: int = LARGEST
) -> int:
    """Refuse what is no whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        remedy = "Convert it with int()." if isinstance(value, str) else ""
        raise ConfigurationError(name, value, "it must be an integer", remedy)
    if not least <= value <= most:
        raise ConfigurationError(name, value, f"it must be from {least:,} to {most:,}")
    return value


# What ends a line for the standard (CR, LF), what makes browsers ignore an id (NUL),
# what ends a line for readers that know Unicode (as Python's splitlines), and what has
# no UTF-8.
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# The same within JSON, where JSON itself does not escape it.
_LINE_ENDS: Final = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def write_frame(event: str, data: bytes, event_id: str = "") -> bytes:
    r"""Write one server-sent event.

    In the name and the id, control characters, U+2028 and U+2029 are written as JSON
    escapes (``\u000a``); in the data so are the three line ends that JSON leaves as
    they are, which is the same JSON.
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
    """The known categories; others are allowed."""

    LIFECYCLE = "lifecycle"
    LLM = "llm"
    DISPATCH = "dispatch"
    SYSTEM = "system"
    AGENT = "agent"


class EventAction(StrEnum):
    """The known actions; others are allowed."""

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


_DIGITS: Final = 20  # of a number of 64 bit


@dataclass(frozen=True)
class StreamEvent:
    """One event of a run.

    The same object may be given to many followers: take ``source``, ``event`` and
    ``data`` as read-only.

    Attributes:
        id: ``<milliseconds>-<number>``, growing within a run.
        timestamp: When it happened: ISO 8601, as its writer wrote it.
        sequence: Its number within the run, from 1; 0 where none can be read.
        source: ``agent_id``, ``agent_type``, ``agent_name`` and ``team_name``; ``None``
            if all of them are empty.
        event: ``category`` and ``action``.
        data: Its content; ``{}`` where that cannot be read.
        raw: All fields as Redis has them where the entry breaks the contract, else
            ``None``.
        faults: Names of the fields that are wrong then.
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
        """Whether its writer has ended the run with it: ``system.close``."""
        return (
            self.event["category"] == EventCategory.SYSTEM
            and self.event["action"] == EventAction.CLOSE
        )

    def to_dict(self) -> JSONObject:
        """Return the event as a JSON object, as the protocol lays it out."""
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
        """The event as JSON: UTF-8, on one line; made once."""
        return encode(self.to_dict())

    @cached_property
    def sse(self) -> bytes:
        """The event as a server-sent event; made once for all followers."""
        return write_frame(self.name, encode(self.to_dict()), self.id)

    @classmethod
    def decode(
        cls, run_id: int, entry_id: bytes, fields: Sequence[bytes]
    ) -> StreamEvent:
        """Read an entry of the stream; never raises.

        Args:
            run_id: The run.
            entry_id: Its id, as Redis gives it.
            fields: Names and values by turns, as Redis gives them.
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
        TRIMMED: They were the oldest of more than the run keeps.
        EXPIRED: The whole run is gone.
        LOST: The server was restarted or replaced, and lacks them.
    """

    TRIMMED = "trimmed"
    EXPIRED = "expired"
    LOST = "lost"


@dataclass(frozen=True)
class Gap:
    """Stands among the events of a run where some are missing.

    Attributes:
        after: Id of the event behind which they are missing; ``"0-0"`` for the
            beginning.
        before: Id of the next event that is there; ``None`` if there is none.
        missing: How many, if that is known.
    """

    run_id: int
    reason: GapReason
    after: str
    before: str | None = None
    missing: int | None = None

    def to_dict(self) -> JSONObject:
        """Return the fields as browsers get them."""
        return {
            "run_id": self.run_id,
            "reason": self.reason.value,
            "after": self.after,
            "before": self.before,
            "missing": self.missing,
        }


@dataclass(frozen=True)
class WriterLost:
    """Stands among the events of a run: its writer fell silent without ending the run.

    The writer died, or froze, or lost its link; it may come back, and is followed on
    then. This stands in no stream: readers write nothing.

    Attributes:
        after: Id of the last event that is there.
    """

    run_id: int
    after: str

    def to_dict(self) -> JSONObject:
        """Return the fields as browsers get them."""
        return {"run_id": self.run_id, "after": self.after}


Followed: TypeAlias = StreamEvent | Gap | WriterLost  # what a follower is given


class FollowEnd(StrEnum):
    """Why a follower has ended.

    Attributes:
        CLOSED: The run's writer has ended it: ``system.close``.
        GONE: The run was deleted, or has expired.
        LEFT: The follower or its store was closed here; the run may go on.
    """

    CLOSED = "closed"
    GONE = "gone"
    LEFT = "left"
