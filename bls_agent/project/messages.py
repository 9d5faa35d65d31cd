"""The values in the three keys of the console protocol: status, log record, command.

Writing produces exactly the documented form. Reading also accepts other forms, because
other programs may write these keys. This module does no I/O.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from bls_agent.core.codec import (
    JSONObject,
    JSONValue,
    cut_text,
    decode_object,
    encode_strictly,
    format_timestamp,
    json_or_text,
    parse_timestamp,
)
from bls_agent.core.errors import ConfigurationError, DecodeError
from bls_agent.core.keys import name_of

if TYPE_CHECKING:
    from bls_agent.core.redaction import Redactor

CONSOLE_SOURCE: Final = "BLS Project Console"
COMMAND_LIMIT: Final = 65_535  # bytes; the console protocol asks for less than 64 KB
# The metadata field with the reason of the current status, in the log record of a
# change of the status. The field is empty if the reason is not known.
STATUS_REASON: Final = "statusReason"
PEEKED: Final = 1024 * 1024  # bytes; Command.peek() does not parse a longer message


class Status(StrEnum):
    """The status of a project, as the console shows it.

    The Chinese words are the values in Redis: ``ONLINE`` is 在线, ``OFFLINE`` is 离线,
    ``FAULT`` is 故障 and ``ERROR`` is 报错.
    """

    ONLINE = "在线"
    OFFLINE = "离线"
    FAULT = "故障"
    ERROR = "报错"

    @property
    def severity(self) -> int:
        """A number that is higher for a worse status.

        The order from the worst status is 故障, 报错, 在线, 离线.
        """
        return _SEVERITY.index(self)

    @classmethod
    def worst(cls, *states: Status) -> Status:
        """Return the status with the highest :attr:`severity`."""
        return max(states, key=lambda status: status.severity)

    @classmethod
    def of(cls, value: object) -> Status:
        """Return the status with this value or name, such as ``在线`` or ``online``.

        A name may have upper or lower case letters.

        Raises:
            ConfigurationError: ``value`` is none of the four values and names.
        """
        word = value.strip() if isinstance(value, str) else ""
        with suppress(ValueError):
            return cls(word)
        with suppress(KeyError):
            return cls[word.upper()]
        known = ", ".join(f"{status} ({status.name.lower()})" for status in cls)
        raise ConfigurationError("status", value, f"one of: {known}")

    @classmethod
    def decode(cls, payload: bytes) -> Status:
        """Return the status whose value Redis has returned.

        Raises:
            DecodeError: The reason is ``bad_status``, because the value is none of the
                four values.
        """
        try:
            return cls(payload.decode("utf-8", "replace").strip())
        except ValueError:
            raise DecodeError("bad_status", payload) from None


_SEVERITY: Final = (Status.OFFLINE, Status.ONLINE, Status.ERROR, Status.FAULT)


class IntakeState(StrEnum):
    """Whether an agent takes commands from Redis."""

    OPEN = "open"
    """The agent takes commands."""
    PAUSED = "paused"
    """Until it is resumed, the agent takes only built-in commands."""
    DRAINING = "draining"
    """The agent is paused, and some commands that it has taken have not ended."""
    DRAINED = "drained"
    """The agent is paused, and all commands that it has taken have ended."""


class Level(StrEnum):
    """The level of a log record."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"

    @cached_property  # because each log call compares ranks
    def rank(self) -> int:
        """A number for comparisons, from 0 for debug to 3 for error."""
        return _RANKS[self]

    @classmethod
    def parse(cls, value: object) -> Level:
        """Return the level for a word such as ``warning`` or ``fatal``, in any case.

        An unknown word counts as info.
        """
        # Not str(value), which is "Kind.WARN" for a member of an Enum.
        word = str.strip(value).lower() if isinstance(value, str) else ""
        return _SPELLINGS.get(word, cls.INFO)


_RANKS: Final = {level: rank for rank, level in enumerate(Level)}
_SPELLINGS: Final[Mapping[str, Level]] = {
    **{level.value: level for level in Level},
    **dict.fromkeys(("trace", "verbose", "fine"), Level.DEBUG),
    **dict.fromkeys(("notice", "log", "success"), Level.INFO),
    **dict.fromkeys(("warning",), Level.WARN),
    **dict.fromkeys(("err", "critical", "fatal", "severe", "panic"), Level.ERROR),
}


class OutcomeKind(StrEnum):
    """How a command ended.

    The page about the console protocol (``docs/protocol.md``) describes each value.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"
    ABANDONED = "abandoned"
    DEAD_LETTERED = "dead_lettered"

    @property
    def level(self) -> Level:
        """The level of the outcome record.

        ``ERROR`` if an operator must act, ``INFO`` for a success, otherwise ``WARN``.
        """
        if self is OutcomeKind.SUCCEEDED:
            return Level.INFO
        return Level.ERROR if self in _GRAVE else Level.WARN


_KINDS: Final = frozenset(kind.value for kind in OutcomeKind)
_GRAVE: Final = frozenset(
    {
        OutcomeKind.FAILED,
        OutcomeKind.TIMED_OUT,
        OutcomeKind.DISCARDED,
        OutcomeKind.ABANDONED,
        OutcomeKind.DEAD_LETTERED,
    }
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended. The agent writes each outcome as a record into the log.

    Attributes:
        kind: How the command ended.
        command: The name of the command. ``""`` if the message has no name.
        command_id: The id of the command. ``""`` if the message has no id.
        source: The name of the sender, or ``""``.
        duration_ms: Milliseconds from the start of the command to its end.
        result: The value that the handler returned, if the command succeeded.
        error: A dictionary with ``type``, ``message`` and other fields, if the command
            did not succeed.
        truncated: The size of the record in bytes before it was shortened to the limit
            of 65,535 bytes. 0 if the record was not shortened.
    """

    kind: OutcomeKind
    command: str
    command_id: str
    source: str = ""
    duration_ms: float = 0.0
    result: Any = None
    error: JSONObject = field(default_factory=dict[str, Any])
    truncated: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether the handler returned."""
        return self.kind is OutcomeKind.SUCCEEDED

    @property
    def message(self) -> str:
        """The message of the outcome record, in English."""
        name = f" {cut_text(self.command, 100)!r}" if self.command else ""
        if self.succeeded:
            return f"command{name} succeeded"
        ending = self.kind.value.replace("_", " ")
        reason = self.error.get("message") or self.error.get("reason") or ""
        return cut_text(f"command{name} {ending}: {reason}".rstrip(": "), 2_000)

    @property
    def metadata(self) -> JSONObject:
        """The metadata of the outcome record.

        The field ``agent`` is not included, because it is added when the record is
        written.
        """
        fields: JSONObject = {
            "commandId": self.command_id,
            "command": cut_text(self.command, 1_000),
            **({"source": cut_text(self.source, 1_000)} if self.source else {}),
            "outcome": self.kind.value,
            "durationMs": round(self.duration_ms, 3),
        }
        if self.succeeded:
            fields["result"] = self.result
        else:
            fields["error"] = self.error
        return {"truncated": self.truncated, **fields} if self.truncated else fields


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One record that was read from a project's log.

    Attributes:
        timestamp: The time of the record, as ISO-8601 text from its writer, or ``""``.
        level: The level. An unknown level is read as info.
        message: The message. If the value in Redis is no JSON object, the message is
            the whole value.
        metadata: The additional fields. ``{}`` if there are none.
        valid: Whether the value in Redis is a JSON object.
    """

    timestamp: str
    level: Level
    message: str
    metadata: JSONObject = field(default_factory=dict[str, Any])
    valid: bool = True

    @classmethod
    def decode(cls, payload: bytes) -> LogEntry:
        """Read a record, also if another program has written it. Never raises."""
        try:
            fields = decode_object(payload)
        except DecodeError as error:
            text = payload.decode("utf-8", "backslashreplace")
            return cls(
                timestamp="",
                level=Level.INFO,
                message=text,
                metadata={"invalid": error.reason},
                valid=False,
            )
        metadata: JSONValue = fields.get("metadata") or {}
        return cls(
            timestamp=_text(fields.get("timestamp")),
            level=Level.parse(fields.get("level")),
            message=_text(fields.get("message")),
            metadata=metadata if isinstance(metadata, dict) else {"metadata": metadata},
        )

    @property
    def instance(self) -> str:
        """The name of the process that wrote the record.

        ``""`` if the record has no id. The id is the metadata field ``agent``, such as
        ``order-1#7``.
        """
        return self._agent()[0]

    @property
    def number(self) -> int | None:
        """The number of the record among the records of its process.

        ``None`` if the record has no id.
        """
        return self._agent()[1]

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of a command, if this entry is an outcome record, else ``None``.

        A record of your program with a metadata field ``outcome`` is no outcome record,
        unless it also has the fields ``command`` and ``durationMs``.
        """
        kind = self.metadata.get("outcome")
        if not isinstance(kind, str) or kind not in _KINDS:
            return None
        if not {"command", "durationMs"} <= self.metadata.keys():
            return None
        duration = self.metadata.get("durationMs")
        error: JSONValue = self.metadata.get("error")
        truncated = self.metadata.get("truncated")
        return Outcome(
            kind=OutcomeKind(kind),
            command=_text(self.metadata.get("command")),
            command_id=_text(self.metadata.get("commandId")),
            source=_text(self.metadata.get("source")),
            duration_ms=float(duration) if isinstance(duration, int | float) else 0.0,
            result=self.metadata.get("result"),
            error=error if isinstance(error, dict) else {},
            truncated=truncated if type(truncated) is int else 0,
        )

    @property
    def is_gap(self) -> bool:
        """Whether this entry is no record, but marks that records are missing here.

        ``Console.follow_logs`` yields such entries.
        """
        return "gap" in self.metadata and not self.timestamp

    def _agent(self) -> tuple[str, int | None]:
        found = _AGENT.fullmatch(_text(self.metadata.get("agent")))
        return (found[1], int(found[2])) if found else ("", None)


_AGENT: Final = re.compile(r"(.{1,512})#([0-9]{1,18})", re.DOTALL)


def _text(value: JSONValue) -> str:
    return "" if value is None else json_or_text(value)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command, as it is stored in the control list.

    Attributes:
        id: The id. If the message has no id, :meth:`decode` makes a new id.
        timestamp: The time when the command was sent, as text from the sender, or
            ``""``.
        source: The name of the sender, or ``""``.
        command: The name of the command.
        args: The arguments of the command.
        broadcast: Whether every replica runs the command. This field is an addition of
            this package to the console protocol.
    """

    id: str
    timestamp: str
    source: str
    command: str
    args: JSONObject = field(default_factory=dict[str, Any], repr=False)  # secrets
    broadcast: bool = False

    @classmethod
    def create(
        cls,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        now: float,
        id: str | None = None,  # noqa: A002 - name in the protocol
        source: str = CONSOLE_SOURCE,
        timestamp: str = "",
        broadcast: bool = False,
    ) -> Command:
        """Make a command in the form that the console uses.

        Args:
            command: The name of the command.
            args: The arguments, which must be encodable as JSON.
            now: The current time in Unix seconds.
            id: The id. Default: a new id.
            source: The name of the sender.
            timestamp: The time of sending in ISO-8601. Default: ``now``.
            broadcast: Whether every replica runs the command.

        Raises:
            ConfigurationError: An argument does not fit the console protocol.
        """
        if type(command) is not str or not command.strip():
            raise ConfigurationError("command", command, "a text that is not blank")
        if not isinstance(args, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped code
            raise ConfigurationError("args", args, "a mapping of names to values")
        if type(source) is not str:
            raise ConfigurationError("source", source, "a text")
        own_id = name_of(new_command_id(now) if id in (None, "") else id)
        if not isinstance(own_id, str):
            raise ConfigurationError("id", id, "a text, an integer or a UUID")
        if timestamp and parse_timestamp(timestamp) is None:
            rule = "a time in ISO-8601, like 2026-01-12T12:35:00.000Z"
            raise ConfigurationError("timestamp", timestamp, rule)
        encode_strictly("command", command)
        args = dict(args or {})
        encode_strictly("args", args)
        return cls(
            id=own_id,
            timestamp=timestamp or format_timestamp(now),
            source=source,
            command=command,
            args=args,
            broadcast=broadcast,
        )

    def describe(self, redactor: Redactor) -> JSONObject:
        """Return the fields for people to read, without secrets in the arguments."""
        return {
            "id": self.id,
            "timestamp": self.timestamp,
            "source": self.source,
            "command": self.command,
            "args": redactor.tree(self.args),
        }

    def encode(self, trace: Mapping[str, str] | None = None) -> bytes:
        """Return the command as JSON, with its fields in the order of the protocol.

        Args:
            trace: The fields ``traceparent`` and ``tracestate``, which are added.
        """
        fields: dict[str, object] = {
            "id": self.id,
            "timestamp": self.timestamp,
            "source": self.source,
            "command": self.command,
        }
        if self.args:
            fields["args"] = self.args
        if self.broadcast:
            fields["broadcast"] = True
        fields |= trace or {}
        return encode_strictly("command", fields)

    @classmethod
    def decode(cls, payload: bytes, *, now: float, limit: int) -> Command:
        """Read a command. A command without an id gets a new id.

        Args:
            payload: The element of the control list.
            now: The current time in Unix seconds, which becomes part of a new id.
            limit: The longest allowed message in bytes.

        Raises:
            DecodeError: ``too_large``, ``not_utf8``, ``not_json``, ``too_deep``,
                ``not_an_object``, ``no_command`` or ``bad_args``.
        """
        return cls.from_fields(decode_object(payload, limit=limit), payload, now=now)

    @classmethod
    def from_fields(cls, fields: JSONObject, payload: bytes, *, now: float) -> Command:
        """Make a command from the decoded fields of its payload.

        Raises:
            DecodeError: ``no_command`` or ``bad_args``.
        """
        name = fields.get("command")
        if not isinstance(name, str) or not name.strip():
            raise DecodeError("no_command", payload, "'command' must be a text")
        args: JSONValue = fields.get("args")
        if args is not None and not isinstance(args, dict):
            raise DecodeError("bad_args", payload, "'args' must be an object")
        return cls._of(fields, id_of(fields) or new_command_id(now))

    @classmethod
    def peek(cls, payload: bytes) -> Command:
        """Read the valid fields of a message, even if it is no command. Never raises.

        Missing and invalid fields are empty. If a message is too long or no JSON, only
        the id is read, and only if it is the first field.
        """
        try:
            fields = decode_object(payload, limit=PEEKED)
        except DecodeError:
            return cls._of({}, leading_id(payload))
        return cls._of(fields, id_of(fields))

    @classmethod
    def _of(cls, fields: JSONObject, id: str) -> Command:  # noqa: A002 - name in the protocol
        timestamp, source = fields.get("timestamp"), fields.get("source")
        command: JSONValue = fields.get("command")
        args: JSONValue = fields.get("args")
        return cls(
            id=id,
            timestamp=timestamp if isinstance(timestamp, str) else "",
            source=source if isinstance(source, str) else "",
            command=command if isinstance(command, str) else "",
            args=args if isinstance(args, dict) else {},
            broadcast=fields.get("broadcast") is True,
        )


_FIRST_ID: Final = re.compile(
    rb'(\s{0,99}\{\s{0,99}"id"\s{0,99}:\s{0,99}(?:"[^"\\]{1,800}"|[0-9]{1,18}))\s{0,99}[,}]'
)


def leading_id(payload: bytes) -> str:
    """Return the id of a message that cannot be parsed, if it is the first field."""
    leading = _FIRST_ID.match(payload)
    try:
        return id_of(decode_object(leading[1] + b"}")) if leading else ""
    except DecodeError:
        return ""


def id_of(fields: JSONObject) -> str:
    """Return the id that the sender has set, or ``""`` if the id is missing or invalid.

    An integer is accepted as an id, too.
    """
    value = fields.get("id")
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else ""


def new_command_id(now: float) -> str:
    """Return a new id in the form of the protocol: ``cmd-<milliseconds>-<6 digits>``.

    The digits are hexadecimal and random.
    """
    return f"cmd-{int(now * 1000)}-{secrets.token_hex(3)}"
