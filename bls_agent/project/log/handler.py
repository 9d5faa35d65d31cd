"""A handler that sends the records of Python's ``logging`` into the project's log.

:class:`BLSHandler` and the code that it calls use no lock. A signal handler, a
finaliser or the garbage collector may interrupt this code and log a record itself, and
would then wait for the lock forever.
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

# The attributes that each record has. All other attributes come from ``extra``.
_PLAIN: Final = frozenset(
    {
        *logging.LogRecord("", 0, "", 0, "", (), None).__dict__,
        *("message", "asctime"),
    }
)

_Passed: TypeAlias = bool | logging.LogRecord  # what filter() returns since Python 3.12


class BLSHandler(logging.Handler):
    """Sends the records of Python's ``logging`` into the project's log in Redis.

    Add this handler to a logger, usually the root logger, or name it in a
    ``dictConfig``::

        {
            "()": "bls_agent.BLSHandler",
            "agent": "ext://myservice.agent",
            "level": "INFO",
        }

    The handler never waits and never raises. A program may log from any thread, signal
    handler or finaliser, also before the agent is opened and after it was closed. The
    agent's ``log_level`` applies, too. A record that is logged while a command runs has
    the id of this command.

    If a formatter is set, the message is the text of the formatter. Otherwise it is the
    message of the record. The metadata has the fields of ``extra``, the name of the
    logger, ``exception`` and ``stack``. If an ``extra`` field has a name that this
    package uses, an underscore is appended to its name, as in ``logger_``.

    Records of the loggers ``bls_agent`` and ``redis`` are not sent. If no other handler
    takes their warnings, the warnings are written to standard error. Code that formats
    a record, such as a ``__repr__``, may itself log a record. Such nested records are
    sent up to two levels deep. Deeper records are not sent, but counted in
    ``stats().logs_not_encoded``.

    Args:
        agent: The agent that writes the records.
        level: The lowest level of records that are sent, as a number or a name of
            ``logging``.

    Raises:
        ConfigurationError: ``agent`` has no log, or ``level`` is no level of
            ``logging``.
    """

    # ``nobody_listens`` in ``connection/reconnect.py`` does not count this handler.
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

    def createLock(self) -> None:  # noqa: N802 - a method of logging
        """Use no lock, because the thread that logs could wait for itself."""
        self.lock: Any = None  # checkers disagree about the type of logging's lock

    def handle(self, record: logging.LogRecord) -> bool:
        """Send a record unless it is ignored or filtered. Never waits, never raises.

        If a filter raises an exception, the record is not sent, because the filter may
        remove secrets.

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
        """Write a record into the agent's log, without calling the filters.

        Programs call :meth:`handle` instead.
        """
        level = level_of(record.levelno)
        if not self._log.is_enabled_for(level):
            return
        metadata = _metadata_of(record)
        try:
            message: object = self.format(record)
        except Exception:  # noqa: BLE001 - wrong arguments, a formatter or a __str__
            message = _plain_message(record, metadata)
        self._log.write(level, strip_colours(message), metadata, at=record.created)

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatter's text, or without a formatter the record's message."""
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
    """Return the message without the formatter.

    If the arguments do not fit the message, put them into the metadata.
    """
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
