"""A handler that sends the records of Python's logging into the console list.

:class:`BLSHandler` and the code that it calls use no lock, because a signal handler, a
finaliser or the garbage collector may log while it interrupts this very code.
"""

from __future__ import annotations

import logging
from typing import Any, Final, TypeAlias, cast

from bls_agent.connection.reconnect import nobody_listens
from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import ConfigurationError
from bls_agent.project.log.bridge import (
    HasLog,
    call_guarded,
    clean_fields,
    cut_beginning,
    describe_exception,
    find_log,
    is_ignored,
    level_of,
    strip_colours,
)

# The attributes of a record without `extra`, formatted or not.
_PLAIN: Final = frozenset(
    {
        *logging.LogRecord("", 0, "", 0, "", (), None).__dict__,
        *("message", "asctime"),
    }
)

_Passed: TypeAlias = bool | logging.LogRecord  # what a filter returns since 3.12


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
        remedy = 'A dictConfig names it as "ext://package.module.agent".'
        log = find_log(agent, remedy)
        try:
            super().__init__(level)
        except (TypeError, ValueError):
            raise ConfigurationError(
                "level", level, "it must be a level of logging, such as 20 or 'INFO'"
            ) from None
        self._log = log

    def createLock(self) -> None:  # noqa: N802 - the name is logging's
        """Set no lock, for the reason in the docstring of the module."""
        self.lock: Any = None  # checkers disagree about the type of logging's lock

    def handle(self, record: logging.LogRecord) -> bool:
        """Send a record unless it is ignored or filtered. Never waits, never raises.

        If a filter raises, the record is not sent, because the filter may be there to
        keep a secret.

        Returns:
            Whether the record passed the filters.
        """
        if is_ignored(record.name):
            _tell_last_resort(record)
            return False
        return bool(call_guarded(self._log, self._send, record))

    def _send(self, record: logging.LogRecord) -> _Passed:
        passed = cast("_Passed", self.filter(record))
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return passed

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record into the agent's log; call :meth:`handle` instead."""
        level = level_of(record.levelno)
        if not self._log.is_enabled_for(level):
            return
        metadata = _metadata_of(record)
        try:
            message: object = self.format(record)
        except Exception:  # noqa: BLE001 - arguments, a formatter or a __str__
            message = _plain_message(record, metadata)
        self._log.write(level, strip_colours(message), metadata, at=record.created)

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatter's text; without a formatter the record's own message."""
        if self.formatter is None:
            return record.getMessage()
        return self.formatter.format(record)


def _tell_last_resort(record: logging.LogRecord) -> None:
    """Write a warning to standard error if no other handler takes it."""
    last = logging.lastResort
    if last is None or record.levelno < last.level:
        return
    if nobody_listens(str(record.name)):
        last.handle(record)


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
    return clean_fields({n: value for n, value in fields.items() if n not in _PLAIN})


def _traces_of(record: logging.LogRecord) -> JSONObject:
    traces = describe_exception(record.exc_info, record.exc_text)
    if record.stack_info:
        traces["stack"] = cut_beginning(record.stack_info)
    return traces
