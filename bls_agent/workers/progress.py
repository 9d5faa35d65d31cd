"""The progress of a fleet's work: days that are synced, backtests."""

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

MANY: Final = 500  # members in one command: about a millisecond of the server's
_DAY: Final = timedelta(days=1)
_RULE: Final = "days: date objects, or text such as 2026-01-12"


@dataclass(frozen=True, kw_only=True)
class SyncSummary:
    """How far a synchronisation is, over a range of days.

    Attributes:
        total: Days that there should be.
        synced: Days of these that are there.
        missing: Days that are not, in order.
        foreign: Members of the set that are no dates.
    """

    total: int
    synced: int
    missing: tuple[date, ...]
    foreign: int = 0

    @property
    def first_missing(self) -> date | None:
        """The day to go on with; ``None`` if nothing is missing."""
        return self.missing[0] if self.missing else None

    @property
    def completion(self) -> float:
        """The part that is there, from 0 to 1; of no days at all 1."""
        return self.synced / self.total if self.total else 1.0


def read_days(members: Iterable[bytes]) -> tuple[set[date], int]:
    """Read the members of a set of days: the days, and how many members are none."""
    days: set[date] = set()
    foreign = 0
    for member in members:
        with suppress(ValueError):
            text = member.decode("ascii")
            day = date.fromisoformat(text)
            if day.isoformat() == text:  # there are shorter forms
                days.add(day)
                continue
        foreign += 1
    return days, foreign


def list_days(name: str, days: Iterable[Day] | Day) -> set[date]:
    """Return days as dates, one or many; ``name`` is the argument's, for the error."""
    if isinstance(days, str | date):
        return {_check_day(name, days)}
    try:
        return {_check_day(name, day) for day in days}
    except TypeError:  # from a caller without a type checker
        raise ConfigurationError(name, days, _RULE) from None


def days_of(calendar: Iterable[Day]) -> set[date]:
    """Return the days of a calendar, see :meth:`SyncProgress.summary`."""
    if not isinstance(calendar, tuple):
        return list_days("calendar", calendar)
    if len(calendar) != 2:  # noqa: PLR2004 - a start and an end
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
    """Writes how far a backtest is: ``backtest:task:{task_id}:progress``.

    The value lives for two hours from the last :meth:`set`. It is laid out like that of
    :class:`~bls_agent.workers.TaskStatus`, with ``progress`` always there, and the
    methods raise what they raise there.
    """

    row: ClassVar[KeyTemplate] = KEYS["backtest_task_progress"]

    async def set(
        self, task_id: str, progress: float, status: str = "running", **fields: Any
    ) -> Task | None:
        """Write how far it is, over whatever was written before.

        Args:
            task_id: Which backtest.
            progress: Percent, from 0 to 100.
            status: Any text.
            fields: Further fields; see :meth:`TaskStatus.set`.

        Returns:
            As :meth:`TaskStatus.set`.

        Raises:
            ConfigurationError: The id cannot be part of a key, or a field cannot be
                written.
        """
        return await self._put(task_id, status, {"progress": progress, **fields})


class SyncProgress(WritingStore):
    """Which days of something are synced: a set of dates, ``{type}_update_{code}``.

    The set lives for thirty days from the last :meth:`add`. Works with and without
    ``async with``, in any event loop; close it with :meth:`aclose` when it was used
    without. Every method raises :class:`~bls_agent.ConfigurationError` for a name that
    cannot be part of a key and for what is no date,
    :class:`~bls_agent.WrongTypeError` for a key that is no set, which is left alone,
    and :class:`~bls_agent.RedisUnavailableError` if Redis cannot answer; a write was
    then perhaps executed if ``error.ambiguous``. With ``on_error="none"`` a write counts
    in ``failed_writes`` instead, logs a warning, once a minute at most, and returns 0 or
    ``False``.

    ``a_update_b_update_c`` may be the type ``a`` or the type ``a_update_b``: a type that
    runs into ``_update_`` is refused, so that no two names share a set.
    """

    client_name: ClassVar[str] = "bls-progress"

    async def add(self, type: str, code: str, dates: Iterable[Day] | Day) -> int:  # noqa: A002 - the schema's name
        """Mark days as synced; the set lives for thirty days from now.

        Five hundred days in one step. An error leaves a part of them at most, never a
        set without an end; all of them may be added again.

        Args:
            type: What is synced, such as ``tick``.
            code: Of what, such as ``000001.SZ``.
            dates: Date objects or ISO text, one or many; none changes nothing.

        Returns:
            How many of them are new.
        """
        key, ttl = _key(type, code), KEYS["sync_progress"].ttl
        runs = [([key], (cast("int", ttl), *part)) for part in _portions(dates)]
        try:
            replies = await ADD_MEMBERS.run_many(self._access.pool, runs)
            return sum(checked_reply(reply, key) for reply in replies)
        except RedisUnavailableError as error:
            self._absorb(error)
            return 0

    async def remove(self, type: str, code: str, dates: Iterable[Day] | Day) -> int:  # noqa: A002 - the schema's name
        """Take days out, so that they count as missing; the others live on as before.

        Returns:
            How many of them were there.
        """
        key = _key(type, code)
        requests = [("SREM", encode_key(key), *part) for part in _portions(dates)]
        try:
            replies = await self._access.pool.call_many(requests)
            return sum(checked_reply(reply, key) for reply in replies)
        except RedisUnavailableError as error:
            self._absorb(error)
            return 0

    async def clear(self, type: str, code: str) -> bool:  # noqa: A002 - the schema's name
        """Drop all days, without holding up the server; return whether there were any."""
        key = _key(type, code)
        try:
            if await read_key(self._access.pool, "SCARD", key):
                return bool(await self._access.pool.call(key, "UNLINK"))
        except RedisUnavailableError as error:
            self._absorb(error)
        return False

    async def contains(self, type: str, code: str, day: Day) -> bool:  # noqa: A002 - the schema's name
        """Return whether a day is synced."""
        key, (only,) = _key(type, code), list_days("day", day)
        request = ("SISMEMBER", encode_key(key), only.isoformat())
        (found,) = await self._access.pool.read_many([request])
        return bool(checked_reply(found, key))

    async def dates(self, type: str, code: str) -> set[date]:  # noqa: A002 - the schema's name
        """Return every day that is synced; empty if there is none, or no more.

        Members that are no dates are left out; :meth:`summary` counts them.
        """
        return (await self._read(_key(type, code)))[0]

    async def summary(
        self,
        type: str,  # noqa: A002 - the schema's name
        code: str,
        calendar: Iterable[Day],
    ) -> SyncSummary:
        """Compare what is synced with a calendar.

        Args:
            type: What is synced.
            code: Of what.
            calendar: A tuple ``(start, end)`` for every day between, both included; any
                other iterable for just the days in it, such as an exchange's.
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
        # One step, whatever its size: a century of days takes the server 2.5 ms.
        return read_days(await read_key(self._access.pool, "SMEMBERS", key))


def _key(type: str, code: str) -> str:  # noqa: A002 - the schema's name
    """Build a key that no other type and code share."""
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
