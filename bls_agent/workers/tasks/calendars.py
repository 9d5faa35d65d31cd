"""Days and how many of them are done: pure, no Redis, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TypeAlias, cast

from bls_agent.errors import ConfigurationError

__all__ = ["Day", "SyncSummary", "days_of", "list_days", "read_days", "summarize"]

Day: TypeAlias = "date | str"  # "2026-01-12"

_DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class SyncSummary:
    """How far a synchronisation is, over a range of days.

    Attributes:
        total: Days that there should be.
        synced: How many of them are there.
        missing: Those that are not, in order.
        foreign: Members of the set that are no dates.
    """

    total: int
    synced: int
    missing: tuple[date, ...]
    foreign: int = 0

    @property
    def first_missing(self) -> date | None:
        """Where to go on; ``None`` if nothing is missing."""
        return self.missing[0] if self.missing else None

    @property
    def completion(self) -> float:
        """Which part is there, from 0 to 1; of no days at all, all."""
        return self.synced / self.total if self.total else 1.0


def summarize(
    members: AbstractSet[date], calendar: AbstractSet[date], *, foreign: int = 0
) -> SyncSummary:
    """Compare the days that are there with those that should be."""
    missing = tuple(sorted(calendar - members))
    total = len(calendar)
    return SyncSummary(
        total=total, synced=total - len(missing), missing=missing, foreign=foreign
    )


def read_days(members: Iterable[bytes]) -> tuple[set[date], int]:
    """Read the members of a set of days: the days, and how many are none."""
    days: set[date] = set()
    foreign = 0
    for member in members:
        day = _read_day(member)
        if day is None:
            foreign += 1
        else:
            days.add(day)
    return days, foreign


def _read_day(member: bytes) -> date | None:
    try:
        text = member.decode("ascii")
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if day.isoformat() == text else None  # there are shorter ways to say it


def list_days(name: str, days: Iterable[Day] | Day) -> set[date]:
    """Give the days that somebody names, one or many.

    Args:
        name: The argument, for the error.
        days: Dates, or text in ISO form. Of a ``datetime``, the day that it says.

    Raises:
        ConfigurationError: One is no day.
    """
    if isinstance(days, str | date):
        return {_check_day(name, days)}
    try:
        return {_check_day(name, day) for day in days}
    except TypeError:  # from a caller without a type checker
        raise ConfigurationError(name, days, _RULE) from None


def days_of(calendar: Iterable[Day]) -> set[date]:
    """Give the days of a calendar.

    Args:
        calendar: A tuple ``(start, end)`` for every day from one to the other, both
            included; any other iterable for just the days in it, such as the trading
            days of an exchange.

    Raises:
        ConfigurationError: One is no day, or the end is before the start.
    """
    if not isinstance(calendar, tuple):
        return list_days("calendar", calendar)
    if len(calendar) != 2:  # noqa: PLR2004 - a start and an end
        rule = "a tuple is (start, end); give a list for single days"
        raise ConfigurationError("calendar", calendar, rule)
    start, end = (_check_day("calendar", day) for day in calendar)
    if end < start:
        raise ConfigurationError("calendar", calendar, "it begins before it ends")
    return {start + number * _DAY for number in range((end - start).days + 1)}


_RULE = "days: date objects, or text such as 2026-01-12"


def _check_day(name: str, day: object) -> date:
    if isinstance(day, datetime):
        return day.date()
    if isinstance(day, date):
        return day
    try:
        return date.fromisoformat(cast("str", day))
    except (TypeError, ValueError):
        raise ConfigurationError(name, day, _RULE) from None
