"""What each field of a heartbeat may hold, by its annotation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast

from bls_agent.codec import JSONObject, encode_strictly
from bls_agent.errors import ConfigurationError

__all__ = ["WorkerStatus", "check_count", "check_field"]

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
    if isinstance(value, str):
        return value
    if type(value) is int:  # ids and ports are numbers to some
        return str(value)
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
