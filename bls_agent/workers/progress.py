"""Progress of work: the days whose data are synced, and running backtests."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, Final, TypeAlias, cast

from bls_agent.connection.access import WritingStore
from bls_agent.connection.endpoint import Argument
from bls_agent.connection.scripts import ADD_MEMBERS
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError
from bls_agent.core.keys import KEYS, KeyTemplate, checked_reply, encode_key
from bls_agent.workers.tasks import Task, TaskKeys, read_key

Day: TypeAlias = "date | str"  # "2026-01-12"

MANY: Final = 500  # members in one command, which takes the server about 1 ms
_DAY: Final = timedelta(days=1)
_RULE: Final = "days: date objects, or text such as 2026-01-12"


@dataclass(frozen=True, kw_only=True)
class SyncSummary:
    """How many days of a calendar are synced.

    Attributes:
        total: Number of days in the calendar.
        synced: Number of days in the calendar that are synced.
        missing: Days in the calendar that are not synced, in order.
        foreign: Number of members of the set that are not dates.
    """

    total: int
    synced: int
    missing: tuple[date, ...]
    foreign: int = 0

    @property
    def first_missing(self) -> date | None:
        """The first day that is not synced; ``None`` if no day is missing."""
        return self.missing[0] if self.missing else None

    @property
    def completion(self) -> float:
        """The synced part of the calendar, from 0 to 1; 1 if the calendar is empty."""
        return self.synced / self.total if self.total else 1.0


def read_days(members: Iterable[bytes]) -> tuple[set[date], int]:
    """Return the days in a set, and the number of members that are not days."""
    days: set[date] = set()
    foreign = 0
    for member in members:
        with suppress(ValueError):
            text = member.decode("ascii")
            day = date.fromisoformat(text)
            if day.isoformat() == text:  # fromisoformat() accepts shorter forms, too
                days.add(day)
                continue
        foreign += 1
    return days, foreign


def list_days(name: str, days: Iterable[Day] | Day) -> set[date]:
    """Return one or many days as dates. An error contains the argument's ``name``."""
    if isinstance(days, str | date):
        return {_check_day(name, days)}
    try:
        return {_check_day(name, day) for day in days}
    except TypeError:  # a caller without a type checker may pass anything
        raise ConfigurationError(name, days, _RULE) from None


def days_of(calendar: Iterable[Day]) -> set[date]:
    """Return the days of a calendar; see :meth:`SyncProgress.summary`."""
    if not isinstance(calendar, tuple):
        return list_days("calendar", calendar)
    if len(calendar) != 2:  # noqa: PLR2004 - a tuple has a start and an end
        rule = "a tuple is (start, end); give a list for single days"
        raise ConfigurationError("calendar", calendar, rule)
    start, end = (_check_day("calendar", day) for day in calendar)
    if end < start:
        raise ConfigurationError("calendar", calendar, "it begins before it ends")
    return {start + number * _DAY for number in range((end - start).days + 1)}


def _check_day(name: str, day: object) -> date:
    if isinstance(day, datetime):
        return day.date()
    if isinstance(day, date):
        return day
    try:
        return date.fromisoformat(cast("str", day))
    except (TypeError, ValueError):
        raise ConfigurationError(name, day, _RULE) from None


class BacktestProgress(TaskKeys):
    """Writes the progress of backtests: ``backtest:task:{task_id}:progress``.

    The value expires two hours after the last :meth:`set`. The value has the same form
    as in :class:`~bls_agent.workers.TaskStatus`, but always has ``progress``. The
    methods raise the same exceptions as those of that class.
    """

    row: ClassVar[KeyTemplate] = KEYS["backtest_task_progress"]

    async def set(
        self, task_id: str, progress: float, status: str = "running", **fields: Any
    ) -> Task | None:
        """Write the progress of a backtest, and overwrite the former value.

        Args:
            task_id: The id of the backtest.
            progress: Percent, from 0 to 100.
            status: Any text.
            fields: Further fields; see :meth:`TaskStatus.set`.

        Returns:
            The task as it was written. If Redis could not answer and
            ``on_error="none"``, ``None``.

        Raises:
            ConfigurationError: The id cannot be part of a key, or a field cannot be
                written.
        """
        if cast("object", progress) is None:  # a caller without a type checker
            raise ConfigurationError("progress", progress, "percent, from 0 to 100")
        return await self._put(task_id, status, {"progress": progress, **fields})


class SyncProgress(WritingStore):
    """The days for which data is synced: a set of dates, ``{type}_update_{code}``.

    The set expires thirty days after the last :meth:`add`. The object works in any
    event loop, with and without ``async with``. If you do not use ``async with``, call
    :meth:`aclose` at the end.

    Every method raises these exceptions:

    * :class:`~bls_agent.ConfigurationError`: a name cannot be part of a key, or a value
      is not a date.
    * :class:`~bls_agent.WrongTypeError`: the key is not a set. The key is not changed.
    * :class:`~bls_agent.RedisUnavailableError`: Redis cannot answer. If
      ``error.ambiguous`` is true, Redis may have executed the write. With
      ``on_error="none"``, a write does not raise this exception. The write is counted
      in ``failed_writes`` and returns 0 or ``False``, and a warning is logged at most
      once a minute.

    The key ``a_update_b_update_c`` could have the type ``a`` or the type
    ``a_update_b``. The longer type is refused, so that two different names never share
    a set.
    """

    client_name: ClassVar[str] = "bls-progress"

    async def add(self, type: str, code: str, dates: Iterable[Day] | Day) -> int:  # noqa: A002 - the schema has this name
        """Mark days as synced. The set then expires thirty days from now.

        Up to 500 days are added in one atomic step. After an error, some of the days
        may be missing, but the set always has a TTL. Call this method again with all
        days.

        Args:
            type: The kind of data that is synced, such as ``tick``.
            code: The instrument whose data is synced, such as ``000001.SZ``.
            dates: Date objects or ISO text, one or many. Without any date nothing
                changes.

        Returns:
            How many of the days are new in the set.
        """
        key, ttl = _key(type, code), KEYS["sync_progress"].ttl
        runs = [([key], (cast("int", ttl), *part)) for part in _portions(dates)]
        try:
            replies = await ADD_MEMBERS.run_many(self._access.pool, runs)
            return sum(checked_reply(reply, key) for reply in replies)
        except RedisUnavailableError as error:
            self._absorb(error)
            return 0

    async def remove(self, type: str, code: str, dates: Iterable[Day] | Day) -> int:  # noqa: A002 - the schema has this name
        """Remove days, so that they count as missing. The TTL of the set is unchanged.

        Returns:
            How many of the days were in the set.
        """
        key = _key(type, code)
        requests = [("SREM", encode_key(key), *part) for part in _portions(dates)]
        try:
            replies = await self._access.pool.call_many(requests)
            return sum(checked_reply(reply, key) for reply in replies)
        except RedisUnavailableError as error:
            self._absorb(error)
            return 0

    async def clear(self, type: str, code: str) -> bool:  # noqa: A002 - the schema has this name
        """Remove all days with UNLINK. Return whether the set had any days."""
        key = _key(type, code)
        try:
            if await read_key(self._access.pool, "SCARD", key):
                return bool(await self._access.pool.call(key, "UNLINK"))
        except RedisUnavailableError as error:
            self._absorb(error)
        return False

    async def contains(self, type: str, code: str, day: Day) -> bool:  # noqa: A002 - the schema has this name
        """Return whether a day is synced."""
        key, (only,) = _key(type, code), list_days("day", day)
        request = ("SISMEMBER", encode_key(key), only.isoformat())
        (found,) = await self._access.pool.read_many([request])
        return bool(checked_reply(found, key))

    async def dates(self, type: str, code: str) -> set[date]:  # noqa: A002 - the schema has this name
        """Return every synced day. Return an empty set if the key is absent or expired.

        Members that are not dates are left out; :meth:`summary` counts such members.
        """
        return (await self._read(_key(type, code)))[0]

    async def summary(
        self,
        type: str,  # noqa: A002 - the schema has this name
        code: str,
        calendar: Iterable[Day],
    ) -> SyncSummary:
        """Compare the synced days with a calendar.

        Args:
            type: The kind of data that is synced, such as ``tick``.
            code: The instrument whose data is synced, such as ``000001.SZ``.
            calendar: A tuple ``(start, end)`` for every day from start to end, both
                included; or any other iterable of days, such as trading days.
        """
        key, wanted = _key(type, code), days_of(calendar)
        days, foreign = await self._read(key)
        return SyncSummary(
            total=len(wanted),
            synced=len(wanted & days),
            missing=tuple(sorted(wanted - days)),
            foreign=foreign,
        )

    async def _read(self, key: str) -> tuple[set[date], int]:
        # SMEMBERS is fast enough: the days of a century take the server 2.5 ms.
        return read_days(await read_key(self._access.pool, "SMEMBERS", key))


def _key(type: str, code: str) -> str:  # noqa: A002 - the schema has this name
    """Build a key. Refuse a type if another type and code have the same key."""
    row = KEYS["sync_progress"]
    key = row.build(type=type, code=code)
    first = row.readings(key)[0]
    if first["type"] != type:
        rule = f"the key would also be that of {first['type']!r} and {first['code']!r}"
        remedy = "Choose a type without '_update'."
        raise ConfigurationError("type", type, rule, remedy)
    return key


def _portions(dates: Iterable[Day] | Day) -> list[list[Argument]]:
    days: list[Argument] = [
        day.isoformat() for day in sorted(list_days("dates", dates))
    ]
    return [days[begin : begin + MANY] for begin in range(0, len(days), MANY)]
