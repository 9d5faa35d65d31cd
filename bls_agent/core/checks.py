"""Checks of arguments that are not settings. No I/O.

Each function raises ConfigurationError with the name of the argument, its value and the
rule.
"""

from __future__ import annotations

import math
from typing import Final, TypeGuard

from bls_agent.core.errors import ConfigurationError

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
