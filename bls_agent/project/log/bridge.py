"""Functions for all bridges. A bridge sends another library's records to the agent.

No function here uses a lock. A signal handler, a finaliser or the garbage collector may
interrupt this code and log a record itself, and would then wait for the lock forever.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, ParamSpec, Protocol, TypeVar, cast

from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import ConfigurationError
from bls_agent.project.log.log import NESTED, Log, describe_error
from bls_agent.project.messages import Level

P = ParamSpec("P")
R = TypeVar("R")

TRACE_LIMIT: Final = 16_000  # characters of a traceback, as in describe_error()

# Records of these loggers are not sent, because sending makes these loggers log again.
_IGNORED: Final = frozenset({"bls_agent", "redis"})
# Names of metadata fields that this package writes. A user's field of this name is
# renamed.
_RESERVED: Final = frozenset(
    {
        *("logger", "severity", "exception", "stack", "arguments"),
        *("agent", "outcome", "truncated"),
    }
)
# Codes for colours in a terminal. werkzeug and uvicorn write them into log messages.
_SGR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_nesting = threading.local()  # for all bridges, because one bridge may call another


class HasLog(Protocol):
    """A :class:`~bls_agent.ProjectAgent`, or another object with a log."""

    @property
    def log(self) -> Log:
        """The log to which the bridge sends the records."""
        ...


def find_log(agent: object, remedy: str = "") -> Log:
    """Return the agent's log. Raises ConfigurationError if ``agent`` has no log."""
    log = getattr(agent, "log", None)
    if isinstance(log, Log):
        return log
    raise ConfigurationError("agent", agent, "it must be a ProjectAgent", remedy)


def call_guarded(
    log: Log, send: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R | None:
    """Call a function that sends a record, and return its result.

    If the function raises an exception, count the failure and return ``None``. A
    function that makes a record may itself log, for example in a ``__repr__``. Such
    nested records are sent up to two levels deep. Deeper records are not sent, but
    counted.
    """
    depth = getattr(_nesting, "depth", 0)
    if depth > NESTED:
        log.count_failure("recursion")
        return None
    try:
        _nesting.depth = depth + 1
        return send(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - logging must never raise
        log.count_failure(type(error).__name__)
        return None
    finally:
        _nesting.depth = depth


def is_ignored(logger: object) -> bool:
    """Return whether a logger belongs to this package or to redis-py."""
    return str(logger).partition(".")[0] in _IGNORED


def level_of(number: int) -> Level:
    """Return the level for a number of ``logging``. loguru uses the same numbers."""
    if number >= logging.ERROR:
        return Level.ERROR
    if number >= logging.WARNING:
        return Level.WARN
    return Level.INFO if number >= logging.INFO else Level.DEBUG


def strip_colours(value: object) -> object:
    """Return a text without terminal colours. Return other values unchanged."""
    if isinstance(value, str) and "\x1b" in value:
        return _SGR.sub("", value)
    return value


def clean_fields(fields: Mapping[str, object]) -> JSONObject:
    """Return a user's fields without colours, with reserved names renamed."""
    cleaned = {name: strip_colours(value) for name, value in fields.items()}
    if _RESERVED.isdisjoint(cleaned):
        return cleaned
    moved: JSONObject = {}
    for given, value in cleaned.items():
        name = given
        while name in _RESERVED or (name != given and name in cleaned):
            name += "_"
        moved[name] = value
    return moved


def describe_exception(exc_info: object, text: object = None) -> JSONObject:
    """Return the metadata of an exception.

    ``exc_info`` has one of the forms that ``logging`` accepts: an exception, a tuple,
    or any other true value for the exception that is being handled. Without
    ``exc_info``, ``text`` may be a formatted traceback.
    """
    if not exc_info:  # a record from another process has only the formatted traceback
        return {"exception": {"traceback": cut_beginning(str(text))}} if text else {}
    error = exc_info
    if isinstance(error, tuple):
        error = cast("tuple[object, ...]", error)[1]
    elif not isinstance(error, BaseException):
        error = sys.exc_info()[1]
    if not isinstance(error, BaseException):
        return {}  # outside of an except block
    return {"exception": describe_error(error)}


def cut_beginning(text: str) -> str:
    """Remove the beginning of a long traceback, because its end shows the error."""
    return text if len(text) <= TRACE_LIMIT else f"…{text[-TRACE_LIMIT:]}"
