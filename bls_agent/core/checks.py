"""Checks of arguments that are not settings. No I/O.

Each function raises ConfigurationError with the name of the argument, its value and the
rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeGuard, TypeVar

from bls_agent.core.errors import ConfigurationError

N = TypeVar("N", int, float)

LARGEST: Final = 100_000_000  # limit of a count, or of seconds, without its own limit


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_seconds(name: str, value: object, rule: str = "more than 0 seconds") -> float:
    """Return a time limit: a number above 0, and at most ``LARGEST``."""
    if not _is_number(value) or not value > 0:  # not "value <= 0", because of NaN
        raise ConfigurationError(name, value, rule)
    if value > LARGEST:  # an operating system or Redis would refuse the time later
        rule = f"{rule}, and at most {LARGEST:,}"
        raise ConfigurationError(name, value, rule, "Pass fewer seconds.")
    return value


def check_wait(name: str, value: object) -> float:
    """Return a time to wait: a number from 0 to ``LARGEST``, or infinity."""
    if not _is_number(value) or not value >= 0:  # not "value < 0", because of NaN
        raise ConfigurationError(name, value, "0 seconds or more")
    if LARGEST < value < math.inf:
        rule = f"at most {LARGEST:,} seconds"
        raise ConfigurationError(name, value, rule, "Pass math.inf for no limit.")
    return value


def check_count(
    name: str, value: object, *, least: int = 1, most: int = LARGEST
) -> int:
    """Return an integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        remedy = "Convert it with int()." if isinstance(value, str) else ""
        raise ConfigurationError(name, value, "it must be an integer", remedy)
    if not least <= value <= most:
        raise ConfigurationError(name, value, f"it must be from {least:,} to {most:,}")
    return value


def to_number(name: str, value: object, kind: Callable[[Any], N]) -> N:
    """Convert the value of a setting with ``int`` or ``float``."""
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(name, value, "it is a number") from None


def check_text(name: str, value: object) -> str:
    """Return a value that is a text."""
    if not isinstance(value, str):
        raise ConfigurationError(name, value, "a text")
    return value


def refuse_text(name: str, value: object) -> None:
    """Refuse one text where several texts are expected."""
    if isinstance(value, str | bytes):
        remedy = f"Pass [{value!r}]."
        raise ConfigurationError(name, value, "several texts, not a single one", remedy)
