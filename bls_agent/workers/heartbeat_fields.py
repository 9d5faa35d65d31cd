"""What each field of a heartbeat may hold, by its annotation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast

from bls_agent.codec import (
    JSONObject,
    encode_strictly,
    format_timestamp,
    parse_timestamp,
)
from bls_agent.errors import ConfigurationError
from bls_agent.names import name_of

__all__ = ["WorkerStatus", "check_count", "check_field", "check_moment"]

DIGITS: Final = 20  # of a number as text: int() itself refuses thousands


class WorkerStatus(StrEnum):
    """How a worker is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ERROR = "error"


def _check_status(name: str, value: object) -> WorkerStatus:
    known = ", ".join(WorkerStatus)
    try:
        return WorkerStatus(str(value).lower())
    except ValueError:
        raise ConfigurationError(name, value, f"one of {known}") from None


def _check_text(name: str, value: object) -> str:
    text = name_of(value)  # ids are numbers or UUIDs to some
    if isinstance(text, str):
        return text
    raise ConfigurationError(name, value, "text")


def check_count(name: str, value: object) -> int:
    """Give a count: a whole number, also one that was written as text.

    Raises:
        ConfigurationError: It is none.
    """
    text = str(value).removesuffix(".0") if isinstance(value, str | float) else ""
    short = len(text) <= DIGITS and text.isascii() and text.isdecimal()
    number = int(text) if short else value
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    raise ConfigurationError(name, value, "a whole number, 0 or more")


def _check_object(name: str, value: object) -> JSONObject:
    if not isinstance(value, Mapping):
        raise ConfigurationError(name, value, "a dict with text as keys")
    plain = dict(cast("Mapping[str, Any]", value))
    encode_strictly(name, plain)
    return plain


def _check_texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ConfigurationError(name, value, "a list of texts")
    return [_check_text(name, item) for item in cast("list[object]", value)]


def check_moment(name: str, value: object) -> str:
    """Give a moment as it is written: text as it is, a datetime as ISO-8601.

    Raises:
        ConfigurationError: It is neither a datetime nor text that tells one.
    """
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return format_timestamp(aware.timestamp())
    if isinstance(value, str) and parse_timestamp(value) is not None:
        return value
    raise ConfigurationError(name, value, "ISO-8601 or a datetime")


_CHECKS: Final[Mapping[str, Callable[[str, object], object]]] = MappingProxyType(
    {
        "WorkerStatus": _check_status,
        "str": _check_text,
        "int": check_count,
        "JSONObject": _check_object,
        "list[str]": _check_texts,
    }
)


def check_field(annotation: str, name: str, value: object) -> object:
    """Give a field's value as it is written.

    Args:
        annotation: What the dataclass says of the field.
        name: The field.
        value: What it shall hold; a number may be text, a status in capitals.

    Raises:
        ConfigurationError: It cannot hold that.
    """
    return _CHECKS[annotation](name, value)
