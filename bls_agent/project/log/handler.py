"""A handler that sends the records of Python's logging into the console list.

:class:`BLSHandler` and the code that it calls use no lock, because a signal handler, a
finaliser or the garbage collector may log while it interrupts this very code.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Final, Protocol, TypeAlias, cast

from bls_agent.connection.reconnect import nobody_listens
from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import ConfigurationError
from bls_agent.project.log.log import NESTED, Log, describe_error
from bls_agent.project.messages import Level

TRACE_LIMIT: Final = 16_000  # characters of a traceback, as in describe_error()

# Sending a record of these loggers would make them log again, without end.
_IGNORED: Final = frozenset({"bls_agent", "redis"})
# The attributes of a record without `extra`, formatted or not.
_PLAIN: Final = frozenset(
    {
        *logging.LogRecord("", 0, "", 0, "", (), None).__dict__,
        *("message", "asctime"),
    }
)
# Metadata fields with a meaning in this package; an extra of that name is renamed.
_RESERVED: Final = frozenset(
    {
        *("logger", "severity", "exception", "stack", "arguments"),
        *("agent", "outcome", "truncated"),
    }
)

# Colours for a terminal; werkzeug and uvicorn write them.
_SGR: Final = re.compile(r"\x1b\[[0-9;:]*m")

_Passed: TypeAlias = bool | logging.LogRecord  # what a filter returns since 3.12
_nesting = threading.local()  # shared, because two handlers may call each other


class HasLog(Protocol):
    """A :class:`~bls_agent.ProjectAgent`, or another object with a log."""

    @property
    def log(self) -> Log:
        """Where the handler puts the records."""
        ...


class BLSHandler(logging.Handler):
    """Sends the records of Python's logging into the console list.

    Add it to a logger, as a rule to the root logger, or name it in a ``dictConfig``::

        {
            "()": "bls_agent.BLSHandler",
            "agent": "ext://myservice.agent",
            "level": "INFO",
        }

    Like ``agent.log`` it never waits and never raises, and may be used from any thread,
    signal handler or finaliser, before the agent is opened and after it was closed. The
    agent's ``log_level`` applies, too. A record that is logged while a command runs has
    the id of that command.

    The message is the formatter's text if a formatter is set, else the record's own
    message. The metadata holds the ``extra`` fields, the logger's name, ``exception``
    and ``stack``. An ``extra`` field whose name this package uses gets an underscore at
    its end, like ``logger_``.

    Records of the loggers ``bls_agent`` and ``redis`` are not sent. If no other handler
    takes them, their warnings go to standard error. Records that are logged while a
    record is being made are sent up to two levels deep. Deeper ones are ignored and
    counted in ``stats().logs_not_encoded``.

    Args:
        agent: The agent into whose console list the records go.
        level: Records below this level are ignored; a number or a name, as in logging.

    Raises:
        ConfigurationError: ``agent`` has no log, or ``level`` is no level of logging.
    """

    # Read by :func:`~bls_agent.connection.reconnect.nobody_listens`.
    ships_away: Final = True

    def __init__(self, agent: HasLog, level: int | str = logging.NOTSET) -> None:
        log = getattr(agent, "log", None)
        if not isinstance(log, Log):
            raise ConfigurationError(
                "agent",
                agent,
                "it must be a ProjectAgent",
                'A dictConfig names it as "ext://package.module.agent".',
            )
        try:
            super().__init__(level)
        except (TypeError, ValueError):
            raise ConfigurationError(
                "level", level, "it must be a level of logging, such as 20 or 'INFO'"
            ) from None
        self._log = log

    def createLock(self) -> None:  # noqa: N802 - the name is logging's
        """Set no lock, for the reason in the docstring of the module."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Send a record unless it is ignored or filtered. Never waits, never raises.

        If a filter raises, the record is not sent, because the filter may be there to
        keep a secret.

        Returns:
            Whether the record passed the filters.
        """
        if str(record.name).partition(".")[0] in _IGNORED:
            _tell_last_resort(record)
            return False
        depth = getattr(_nesting, "depth", 0)
        if depth > NESTED:
            self._log.count_failure("recursion")
            return False
        try:
            _nesting.depth = depth + 1
            passed = cast("_Passed", self.filter(record))
            if isinstance(passed, logging.LogRecord):
                record = passed
            if passed:
                self.emit(record)
        except Exception as error:  # noqa: BLE001 - the host's log call never raises
            self._log.count_failure(type(error).__name__)
            return False
        finally:
            _nesting.depth = depth
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record into the agent's log; call :meth:`handle` instead."""
        level = _level_of(record.levelno)
        if not self._log.is_enabled_for(level):
            return
        metadata = _metadata_of(record)
        try:
            message: object = self.format(record)
        except Exception:  # noqa: BLE001 - arguments, a formatter or a __str__
            message = _plain_message(record, metadata)
        if isinstance(message, str):
            message = _without_colours(message)
        self._log.write(level, message, metadata, at=record.created)

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatter's text; without a formatter the record's own message."""
        if self.formatter is None:
            return record.getMessage()
        return self.formatter.format(record)


def _without_colours(text: str) -> str:
    return _SGR.sub("", text) if "\x1b" in text else text


def _tell_last_resort(record: logging.LogRecord) -> None:
    """Write a warning to standard error if no other handler takes it."""
    last = logging.lastResort
    if last is None or record.levelno < last.level:
        return
    if nobody_listens(str(record.name)):
        last.handle(record)


def _level_of(number: int) -> Level:
    if number >= logging.ERROR:
        return Level.ERROR
    if number >= logging.WARNING:
        return Level.WARN
    return Level.INFO if number >= logging.INFO else Level.DEBUG


def _plain_message(record: logging.LogRecord, metadata: JSONObject) -> object:
    """Return the message without a formatter; if that fails, keep its arguments."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - wrong arguments, or a __str__ raised
        metadata["arguments"] = record.args
        return record.msg


def _metadata_of(record: logging.LogRecord) -> JSONObject:
    metadata: JSONObject = {"logger": record.name}
    if record.levelno >= logging.CRITICAL:
        metadata["severity"] = record.levelname
    if not record.__dict__.keys() <= _PLAIN:
        metadata.update(_extras_of(record))
    if record.exc_info or record.exc_text or record.stack_info:
        metadata.update(_traces_of(record))
    return metadata


def _extras_of(record: logging.LogRecord) -> JSONObject:
    fields = record.__dict__.copy()  # another thread may be formatting the record
    extras = {
        name: _without_colours(value) if isinstance(value, str) else value
        for name, value in fields.items()
        if name not in _PLAIN
    }
    return extras if _RESERVED.isdisjoint(extras) else _beside_ours(extras)


def _beside_ours(extras: JSONObject) -> JSONObject:
    """Rename extras whose names are reserved, so that no two names are equal."""
    moved: JSONObject = {}
    for given, value in extras.items():
        name = given
        while name in _RESERVED or (name != given and name in extras):
            name += "_"
        moved[name] = value
    return moved


def _traces_of(record: logging.LogRecord) -> JSONObject:
    traces: JSONObject = {}
    if record.exc_info:
        error = _error_of(record.exc_info)
        if error is not None:
            traces["exception"] = describe_error(error)
    elif record.exc_text:  # the exception object exists in another process only
        traces["exception"] = {"traceback": _end_of(record.exc_text)}
    if record.stack_info:
        traces["stack"] = _end_of(record.stack_info)
    return traces


def _error_of(given: object) -> BaseException | None:
    """Return the exception in ``exc_info``; ``None`` outside of an except block."""
    if isinstance(given, tuple):
        given = cast("tuple[object, ...]", given)[1]
    return given if isinstance(given, BaseException) else None


def _end_of(text: str) -> str:
    """Remove the beginning of a long traceback, because the end matters more."""
    return text if len(text) <= TRACE_LIMIT else f"…{text[-TRACE_LIMIT:]}"
