"""The ids of events, ``<milliseconds>-<number>``; checks of arguments. No I/O."""

from __future__ import annotations

import re
from typing import Final

from bls_agent.core.errors import ConfigurationError

__all__ = [
    "BEGINNING",
    "DAY",
    "END",
    "EventId",
    "check_bound",
    "check_count",
    "check_id",
    "check_run_id",
    "find_id",
    "next_id",
    "order",
    "previous_id",
]

BEGINNING: Final = "0-0"  # before every event
END: Final = "$"  # behind the last one, wherever that is
_LARGEST: Final = 2**64 - 1  # of either number
_LARGEST_RUN: Final = 2**63 - 1  # what a column of type BIGINT holds
_ID: Final = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")

DAY: Final = 86_400  # seconds: how long the contract keeps a run
LARGEST: Final = 100_000_000


EventId = str  # as it stands in a StreamEvent


def order(event_id: EventId) -> tuple[int, int]:
    """Give two numbers that compare as the ids do."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


def next_id(event_id: EventId) -> EventId | None:
    """Give the least id behind another, where a range that excludes it begins.

    ``None`` behind the largest.
    """
    milliseconds, number = order(event_id)
    if number < _LARGEST:
        return f"{milliseconds}-{number + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < _LARGEST else None


def previous_id(event_id: EventId) -> EventId | None:
    """Give the greatest id before another; ``None`` before all of them."""
    milliseconds, number = order(event_id)
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{_LARGEST}" if milliseconds else None


def find_id(text: object) -> EventId | None:
    """Give the full form of an id, also of milliseconds alone; else ``None``."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    milliseconds, number = int(found[1]), int(found[2] or 0)
    if max(milliseconds, number) > _LARGEST:
        return None
    return f"{milliseconds}-{number}"


def check_id(name: str, value: object) -> EventId:
    """Give the full form of an id, or refuse it."""
    found = find_id(value)
    if found is None:
        rule = "an id of an event is '<milliseconds>-<number>'"
        remedy = "Pass the id of the last event that you have, or '0-0' for all."
        raise ConfigurationError(name, value, rule, remedy)
    return found


def check_bound(name: str, value: object) -> str:
    """Check an end of a range: an id, ``-`` for the first event, ``+`` for the last."""
    if value in ("-", "+"):
        return str(value)
    if find_id(value) is None:
        rule = "an end of a range is the id of an event, '-' or '+'"
        raise ConfigurationError(name, value, rule)
    return str(value)  # milliseconds alone mean their first or last event


def check_run_id(value: object) -> int:
    """Refuse what is no id of a run."""
    if isinstance(value, bool) or not isinstance(value, int):
        remedy = "Convert it with int()." if isinstance(value, str) else ""
        raise ConfigurationError("run_id", value, "it must be an integer", remedy)
    if not 0 <= value <= _LARGEST_RUN:
        raise ConfigurationError("run_id", value, "it must be from 0 to 2^63 - 1")
    return value


def check_count(
    name: str, value: object, *, least: int = 1, most: int = LARGEST
) -> int:
    """Refuse what is no whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(name, value, "it must be an integer")
    if not least <= value <= most:
        raise ConfigurationError(name, value, f"it must be from {least:,} to {most:,}")
    return value
