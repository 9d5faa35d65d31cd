"""The agent's log: writes records into the console list without making callers wait.

The console list is the list in Redis with the log of a project. :class:`Log` encodes a
record in the calling thread and puts it into a buffer of limited size. Only a
``SuccessRecord`` is encoded later, when it is written. :class:`LogSink` writes batches
of records, and limits the length of the list in the same round trip.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bls_agent.core.buffer import BoundedBuffer
from bls_agent.core.codec import (
    cut_text,
)
from bls_agent.core.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.redaction import DEFAULT, Redactor
from bls_agent.project.log.record import (
    AnyRecord,
    LogRecord,
    SuccessRecord,
    id_prefix,
)
from bls_agent.project.messages import Level, Outcome
from bls_agent.runtime.batch_writer import BatchWriter, Written

if TYPE_CHECKING:
    from bls_agent.connection.agent_connections import AgentConnections


class CurrentCommand(NamedTuple):
    """The command whose handler, or a task that it has started, runs in a context."""

    id: str = ""  # log records of the handler have this id
    # The command's message, behind those of the handlers that have invoked the command.
    messages: tuple[object, ...] = ()


NO_COMMAND: Final = CurrentCommand()
CURRENT_COMMAND: Final = ContextVar("bls_agent_command", default=NO_COMMAND)
NESTED: Final = 2  # levels of log calls inside a log call, such as a __repr__ that logs
NEWEST: Final = 10  # newest records that the first search for a batch reads
SEARCH_MARGIN: Final = 200  # records of other writers that may follow a batch


class LogStream:
    """Encodes records and puts them into the buffer. All logs of an agent share it."""

    def __init__(
        self, clock: Callable[[], float], *, max_records: int, max_bytes: int
    ) -> None:
        ranks = LogRecord.OUTCOME_RANK + 1
        buffer: BoundedBuffer[AnyRecord] = BoundedBuffer(max_records, max_bytes, ranks)
        self.delivery: BatchWriter[AnyRecord] = BatchWriter(buffer)
        # Called with each record. ``invocation.py`` replaces this function, to collect
        # the records of commands that run without a server.
        self.put: Callable[[AnyRecord], None] = self.delivery.put
        self.failures: Counter[str] = Counter()  # records not encoded, for each reason
        self.redactor: Redactor = DEFAULT
        self.id_room = LogRecord.ID_ROOM  # bytes of a record that are kept for its id
        # Set by tracing. Returns ``trace_id`` and ``span_id`` of the caller's span.
        self.trace_of_caller: Callable[[], Mapping[str, str]] | None = None
        # Called after each error record, in the thread that logged the record.
        self.on_error: Callable[[], None] | None = None
        self.now = clock
        self._nesting = threading.local()
        self._reported: dict[str, int] = {}  # the drops that a record has reported
        self._level = Level.DEBUG
        self._revert: tuple[float, Level] | None = None

    def reset_after_fork(self) -> None:
        """Reset in a forked child. The parent process writes the waiting records."""
        self.delivery.reset_after_fork()
        self.failures = Counter()
        self.on_error = None
        self._nesting = threading.local()
        self._reported = self.delivery.buffer.stats().dropped
        CURRENT_COMMAND.set(NO_COMMAND)  # the parent reports the command's outcome

    @property
    def level(self) -> Level:
        revert = self._revert  # read once, because another thread may change it
        if revert is not None and time.monotonic() >= revert[0]:
            self._level, self._revert = revert[1], None
        return self._level

    def set_level(self, level: Level, seconds: float | None = None) -> None:
        revert = self._revert  # read once, because another thread may change it
        former = self._level if revert is None else revert[1]
        self._level = level
        self._revert = None if seconds is None else (time.monotonic() + seconds, former)

    def report_drops(self) -> list[LogRecord]:
        """Return a record about the records that were dropped since the last call.

        The result is empty if no record was dropped.
        """
        dropped = self.delivery.buffer.stats().dropped
        if dropped == self._reported:
            return []
        fresh = Counter(dropped) - Counter(self._reported)
        self._reported = dropped
        text = f"{fresh.total()} log records were dropped before this one"
        metadata = {"dropped": dict(fresh)}
        now, redactor = self.now(), self.redactor
        return [LogRecord(Level.WARN, text, metadata, now=now, redactor=redactor)]

    def emit(
        self,
        level: Level,
        message: object,
        metadata: Mapping[str, Any],
        rank: int | None = None,
        at: float | None = None,
        *,
        values: tuple[object, ...] = (),
        is_alarm: bool = False,
    ) -> None:
        """Put one record into the buffer. Never waits, never raises."""
        depth = getattr(self._nesting, "depth", 0)
        if depth > NESTED:
            self.failures["recursion"] += 1
            return
        self._nesting.depth = depth + 1
        try:
            text = message if type(message) is str else as_text(message)
            if values:
                text, metadata = _fill_in(text, values, metadata)
            if self.trace_of_caller is not None:
                metadata = {**self.trace_of_caller(), **metadata}
            now = self.now() if at is None else at
            record = LogRecord(
                level,
                text,
                metadata,
                now=now,
                rank=rank,
                redactor=self.redactor,
                id_room=self.id_room,
            )
            self.put(record)
            grave = level is Level.ERROR and not is_alarm
            if grave and (on_error := self.on_error):
                on_error()
        except Exception as error:  # noqa: BLE001 - logging must never raise
            self.failures[type(error).__name__] += 1
        finally:
            self._nesting.depth = depth

    def report(self, outcome: Outcome) -> None:
        """Put an outcome record into the buffer.

        A full buffer drops outcome records only if it has no other records.
        """
        now = self.now()
        trace = None if self.trace_of_caller is None else self.trace_of_caller()
        record = SuccessRecord.of(outcome, now, self.redactor, trace or {})
        if record is not None:
            self.put(record)
            return
        self.emit(
            outcome.kind.level,
            outcome.message,
            outcome.metadata,
            LogRecord.OUTCOME_RANK,
            now,
        )


class Log:
    """Writes records into the project's log, which the console shows.

    All methods are synchronous and may be called from any thread. They never wait and
    never raise, even if the metadata cannot be encoded. Records below the agent's
    ``log_level`` are ignored. A record that a handler logs has the field ``commandId``.

    A message may have placeholders with ``%``, as in ``log.info("%d left", 3)``. If the
    values do not fit the placeholders, the message stays unformatted, and the values
    are put into the metadata field ``arguments``.
    """

    def __init__(
        self, stream: LogStream, bound: Mapping[str, Any] | None = None
    ) -> None:
        self._stream = stream
        self._bound = dict(bound or {})

    def debug(self, message: object, /, *values: object, **metadata: Any) -> None:
        """Write a debug record."""
        self._write(Level.DEBUG, message, metadata, values)

    def info(self, message: object, /, *values: object, **metadata: Any) -> None:
        """Write an info record."""
        self._write(Level.INFO, message, metadata, values)

    def warn(self, message: object, /, *values: object, **metadata: Any) -> None:
        """Write a warn record."""
        self._write(Level.WARN, message, metadata, values)

    warning = warn

    def error(self, message: object, /, *values: object, **metadata: Any) -> None:
        """Write an error record."""
        self._write(Level.ERROR, message, metadata, values)

    def critical(self, message: object, /, *values: object, **metadata: Any) -> None:
        """Write an error record with the metadata field ``severity``: ``CRITICAL``.

        The console protocol has no level above error.
        """
        metadata = {"severity": "CRITICAL", **metadata}
        self._write(Level.ERROR, message, metadata, values)

    def exception(self, message: object, /, *values: object, **metadata: Any) -> None:
        """Write an error record with the exception that is being handled.

        Outside of an ``except`` block, pass the exception as ``exception=error``.
        """
        error = metadata.get("exception", sys.exc_info()[1])
        if isinstance(error, BaseException):
            metadata = {**metadata, "exception": describe_error(error)}
        self._write(Level.ERROR, message, metadata, values)

    def bind(self, /, **metadata: Any) -> Log:
        """Return a log that adds this metadata to each of its records."""
        return Log(self._stream, {**self._bound, **metadata})

    def is_enabled_for(self, level: Level) -> bool:
        """Return whether records of this level are sent, according to ``log_level``."""
        return level.rank >= self._stream.level.rank

    def count_failure(self, reason: str) -> None:
        """Count a record that could not be encoded, in ``stats().logs_not_encoded``."""
        self._stream.failures[reason] += 1

    def write(
        self,
        level: Level | str,
        message: object,
        metadata: Mapping[str, Any] | None,
        *,
        at: float | None = None,
    ) -> None:
        """Write a record that comes from another logging library.

        Args:
            level: The level. A word such as ``"WARNING"`` is accepted, too.
            message: The text, or any object, which is converted with ``str``.
            metadata: Additional fields, or ``None``. They replace fields of the same
                name that :meth:`bind` has added.
            at: The time of the record in Unix seconds. Default: now.
        """
        if not isinstance(level, Level):
            level = Level.parse(level)
        self._write(level, message, {} if metadata is None else metadata, at=at)

    def _write(
        self,
        level: Level,
        message: object,
        metadata: Mapping[str, Any],
        values: tuple[object, ...] = (),
        at: float | None = None,
    ) -> None:
        if level.rank < self._stream.level.rank:
            return
        command_id = CURRENT_COMMAND.get().id
        if self._bound or command_id:
            running = {"commandId": command_id} if command_id else {}
            try:
                metadata = {**running, **self._bound, **metadata}
            except Exception:  # noqa: BLE001 - no mapping, or a mapping that raised
                metadata = {**running, **self._bound, "metadata": metadata}
        self._stream.emit(level, message, metadata, at=at, values=values)


def _fill_in(
    text: str, values: tuple[object, ...], metadata: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """Format a text as ``logging`` does.

    If the values do not fit the text, put them into the metadata.
    """
    filling: object = values
    if len(values) == 1 and isinstance(values[0], Mapping) and values[0]:
        filling = values[0]  # pyright: ignore[reportUnknownVariableType] - any mapping
    try:
        return text % filling, metadata
    except (Exception, SystemExit):  # noqa: BLE001 - wrong values, or a __str__ raised
        return text, {"arguments": values, **metadata}


def as_text(message: object) -> str:
    try:
        return str(message)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's __str__ raised
        return f"<{type(message).__name__}, whose str raised {type(error).__name__}>"


def describe_error(error: BaseException, *, frames: int = 20) -> dict[str, str]:
    """Return the type, message and traceback of an exception. Never raises.

    The traceback has only the last ``frames`` frames.
    """
    fields = {"type": type(error).__name__, "message": cut_text(as_text(error), 2_000)}
    try:
        lines = traceback.format_exception(
            type(error), error, error.__traceback__, limit=-frames, chain=True
        )
        fields["traceback"] = cut_text("".join(lines), 16_000)
    except Exception as failure:  # noqa: BLE001 - a __str__ raised, or cyclic causes
        fields["traceback"] = f"<not available: {type(failure).__name__}>"
    return fields


class LogSink:
    """Writes batches of records into one console list."""

    def __init__(
        self,
        connections: AgentConnections,
        stream: LogStream,
        *,
        key: str,
        identity: str,
        list_limit: int,
        numbers: itertools.count[int],
    ) -> None:
        self._connections = connections
        self._stream = stream
        self._key = key
        self._id_prefix = id_prefix(identity)
        stream.id_room = len(self._id_prefix) + LogRecord.NUMBER_ROOM
        self._list_limit = list_limit
        self._numbers = numbers
        self._last = b""

    def prepare(self, items: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
        """Number the records. If records were dropped, put a record about it first.

        A record without an id uses no number, because readers count each number that
        is missing as a missing record.
        """
        batch = [*self._stream.report_drops(), *items]
        for record in batch:
            number = next(self._numbers) if record.has_id else 0
            record.number(self._id_prefix, number)
        return batch

    async def write(self, batch: Sequence[AnyRecord]) -> None:
        """Append the batch and limit the length of the list, in one round trip."""
        complain = self._connections.throttled_log.warn
        values = [record.payload for record in batch]
        pushed, trimmed = await self._connections.data.call_many(
            [
                ("RPUSH", self._key, *values),
                ("LTRIM", self._key, -self._list_limit, -1),
            ]
        )
        if isinstance(pushed, RedisUnavailableError):
            is_wrong = pushed.kind == "wrong_type"
            error = WrongTypeError(self._key, "list") if is_wrong else pushed
            complain("records cannot be written", error)
            raise pushed
        self._last = values[-1]
        if isinstance(trimmed, RedisUnavailableError):
            complain("the console list is not capped", trimmed)

    async def check_written(self, batch: Sequence[AnyRecord]) -> Written:
        """Return whether the list contains the batch.

        The server first closes the lost connection. Otherwise a request that was sent
        over this connection could still arrive after the list was read.
        """
        killed = await self._connections.kill_orphans(self._connections.data, kill=True)
        if not self._id_prefix:
            return Written.UNKNOWN  # without ids, equal bytes may be another record
        known = [record.payload for record in batch if record.has_id]
        if not known:
            return Written.UNKNOWN
        window = len(batch) + SEARCH_MARGIN
        tail: list[bytes] = []
        # The first read asks for few records, because the link may be slow.
        for count in (NEWEST, window):
            try:
                tail = await self._connections.data.call(
                    "LRANGE", self._key, -count, -1
                )
            except RedisRefusedError:
                return Written.UNKNOWN
            if known[-1] in tail:
                return Written.YES
            if self._last in tail:
                break
        # The batch is surely missing if the records that were read begin before the
        # place of the batch. This is so in two cases: they contain the last record of
        # the previous batch, or they are the whole list and it was never trimmed.
        reaches_back = self._last in tail or len(tail) < min(window, self._list_limit)
        return Written.NO if killed and reaches_back else Written.UNKNOWN
