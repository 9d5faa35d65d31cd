"""What all bridges share that send another library's records into the agent's log.

No function here uses a lock, because a signal handler, a finaliser or the garbage
collector may log while it interrupts this very code.
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

# Sending a record of these loggers would make them log again, without end.
_IGNORED: Final = frozenset({"bls_agent", "redis"})
# Metadata fields with a meaning in this package; a user's field of that name is renamed.
_RESERVED: Final = frozenset(
    {
        *("logger", "severity", "exception", "stack", "arguments"),
        *("agent", "outcome", "truncated"),
    }
)
# Colours for a terminal; werkzeug and uvicorn write them.
_SGR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_nesting = threading.local()  # shared, because two bridges may call each other


class HasLog(Protocol):
    """A :class:`~bls_agent.ProjectAgent`, or another object with a log."""

    @property
    def log(self) -> Log:
        """Where the bridge puts the records."""
        ...


def find_log(agent: object, remedy: str = "") -> Log:
    """Return the agent's log; raise ConfigurationError if there is none."""
    log = getattr(agent, "log", None)
    if isinstance(log, Log):
        return log
    raise ConfigurationError("agent", agent, "it must be a ProjectAgent", remedy)


def call_guarded(
    log: Log, send: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R | None:
    """Call a function that sends a record; return its result.

    An exception, and records that are logged while a record is being made, more than
    two levels deep, are counted, and ``None`` is returned.
    """
    depth = getattr(_nesting, "depth", 0)
    if depth > NESTED:
        log.count_failure("recursion")
        return None
    try:
        _nesting.depth = depth + 1
        return send(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the host's log call never raises
        log.count_failure(type(error).__name__)
        return None
    finally:
        _nesting.depth = depth


def is_ignored(logger: object) -> bool:
    """Return whether a logger belongs to this package or to redis-py."""
    return str(logger).partition(".")[0] in _IGNORED


def level_of(number: int) -> Level:
    """Return the level of a number of Python's logging, which loguru uses, too."""
    if number >= logging.ERROR:
        return Level.ERROR
    if number >= logging.WARNING:
        return Level.WARN
    return Level.INFO if number >= logging.INFO else Level.DEBUG


def strip_colours(value: object) -> object:
    """Remove the colours for a terminal (SGR) from a text."""
    if isinstance(value, str) and "\x1b" in value:
        return _SGR.sub("", value)
    return value


def clean_fields(fields: Mapping[str, object]) -> JSONObject:
    """Return a user's fields without colours; rename those with a reserved name."""
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
    """Return the metadata of an exception, or of its traceback as a text.

    ``exc_info`` may be what ``logging`` takes: an exception, a tuple, or ``True``.
    """
    if not exc_info:  # a text without the object comes from another process
        return {"exception": {"traceback": cut_beginning(str(text))}} if text else {}
    error = sys.exc_info()[1] if exc_info is True else exc_info
    if isinstance(error, tuple):
        error = cast("tuple[object, ...]", error)[1]
    if not isinstance(error, BaseException):
        return {}  # outside of an except block
    return {"exception": describe_error(error)}


def cut_beginning(text: str) -> str:
    """Remove the beginning of a long traceback, because the end matters more."""
    return text if len(text) <= TRACE_LIMIT else f"…{text[-TRACE_LIMIT:]}"
