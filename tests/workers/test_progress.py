"""SyncProgress and BacktestProgress: dates in a set, percent in an object."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, RedisUnavailableError, WrongTypeError
from bls_agent.devserver import DevServer
from bls_agent.workers import (
    BacktestProgress,
    RedisKeyBuilder,
    SyncProgress,
    SyncSummary,
)
from bls_agent.workers.progress import (
    days_of,
    read_days,
)

MONDAY = date(2026, 1, 12)


@pytest.fixture
async def progress(redis_url: str) -> AsyncIterator[SyncProgress]:
    async with SyncProgress(redis_url) as opened:
        yield opened


@pytest.fixture
async def code(redis: Redis) -> AsyncIterator[str]:
    """A fresh code; its keys are removed."""
    name = f"平安银行.{secrets.token_hex(4)}"
    yield name
    await redis.delete(f"tick_update_{name}", f"backtest:task:{name}:progress")


def week(count: int, start: date = MONDAY) -> list[date]:
    return [start + timedelta(number) for number in range(count)]


async def test_a_summary(progress: SyncProgress, code: str) -> None:
    """Total, synced, missing, the first of them, and which part is there."""
    days = {*week(2), MONDAY + timedelta(3), MONDAY - timedelta(9)}
    await progress.add("tick", code, days)
    found = await progress.summary("tick", code, week(5))
    assert found == SyncSummary(total=5, synced=3, missing=(week(5)[2], week(5)[4]))
    assert found.first_missing == week(5)[2]
    assert found.completion == pytest.approx(0.6)


async def test_a_summary_of_nothing(progress: SyncProgress, code: str) -> None:
    """Of no days at all nothing is missing; with no days there, all."""
    nothing = await progress.summary("tick", code, [])
    assert (nothing.completion, nothing.first_missing) == (1, None)
    assert (await progress.summary("tick", code, week(2))).completion == 0


@pytest.mark.parametrize(
    ("calendar", "expected"),
    [
        ((MONDAY, "2026-01-14"), week(3)),
        ((MONDAY, MONDAY), week(1)),
        (["2026-01-13", MONDAY, MONDAY], week(2)),
        (iter(week(2)), week(2)),
        ([], []),
        (("2024-02-28", "2024-03-01"), week(3, date(2024, 2, 28))),
        ([datetime(2026, 1, 12, 15, tzinfo=UTC)], week(1)),
    ],
    ids=["range", "one-day", "list", "iterator", "nothing", "leap-year", "datetime"],
)
def test_a_calendar(calendar: object, expected: list[date]) -> None:
    """A tuple is a range with both ends, anything else its days."""
    assert sorted(days_of(calendar)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "calendar",
    [("2026-01-14", MONDAY), (MONDAY,), (MONDAY,) * 3, ["2026-02-30"], [5], 5, ["x"]],
    ids=str,
)
def test_no_calendar(calendar: object) -> None:
    """What is no day, or ends before it begins, is named."""
    with pytest.raises(ConfigurationError, match="calendar"):
        days_of(calendar)  # type: ignore[arg-type]


def test_foreign_members_are_counted() -> None:
    """Whatever somebody else put into the set hides no date."""
    members = [
        b"2026-01-12", b"2026-02-30", b"20260112", b"", b"\xff\xfe", b"2026-01-12 ",
        "2026-01-1二".encode(), b"2026-W03-1", b'{"a":1}',
    ]  # fmt: skip
    assert read_days(members) == ({MONDAY}, 8)


async def test_add(progress: SyncProgress, code: str, redis: Redis) -> None:
    """The set holds YYYY-MM-DD and lives for thirty days from the last add."""
    key = f"tick_update_{code}"
    assert await progress.add("tick", code, [MONDAY, "2026-01-13", MONDAY]) == 2
    assert await redis.smembers(key) == {b"2026-01-12", b"2026-01-13"}
    assert await redis.ttl(key) == 2592000
    await redis.expire(key, 100)
    assert await progress.add("tick", code, MONDAY) == 0
    assert await redis.ttl(key) == 2592000
    assert await progress.dates("tick", code) == set(week(2))
    assert await progress.contains("tick", code, "2026-01-13")
    assert not await progress.contains("tick", code, date(2026, 1, 14))


async def test_many_dates_at_once(
    progress: SyncProgress, code: str, redis: Redis
) -> None:
    """More than fit into one command."""
    days = week(9_001, date(2000, 1, 1))
    assert await progress.add("tick", code, days) == 9_001
    await redis.sadd(f"tick_update_{code}", b"junk", b"\xff")
    assert await progress.dates("tick", code) == set(days)
    found = await progress.summary("tick", code, (days[0], days[-1] + timedelta(2)))
    assert (found.total, found.synced, found.foreign) == (9_003, 9_001, 2)
    assert found.first_missing == days[-1] + timedelta(1)
    assert await progress.remove("tick", code, days[:5_000]) == 5_000
    assert await redis.scard(f"tick_update_{code}") == 4_003
    assert await progress.clear("tick", code)
    assert not await progress.clear("tick", code)
    assert await progress.dates("tick", code) == set()


async def test_removing_keeps_the_ttl(
    progress: SyncProgress, code: str, redis: Redis
) -> None:
    """What is left lives on as before."""
    await progress.add("tick", code, week(3))
    await redis.expire(f"tick_update_{code}", 100)
    assert await progress.remove("tick", code, [MONDAY, "1999-01-01"]) == 1
    assert 90 < await redis.ttl(f"tick_update_{code}") <= 100


async def test_no_dates(progress: SyncProgress, code: str, redis: Redis) -> None:
    """Adding none makes no key."""
    assert await progress.add("tick", code, []) == 0
    assert not await redis.exists(f"tick_update_{code}")


@pytest.mark.parametrize(
    ("type_", "code", "accepted"),
    [
        ("tick", "a_update_b", True),  # read as it was written: at the first place
        ("tick_update_a", "b", False),
        ("a_update", "x", False),  # as the type a
        ("a_update_", "x", False),
        ("_update_", "x", True),
    ],
)
async def test_no_two_names_share_a_set(
    progress: SyncProgress, type_: str, code: str, accepted: bool
) -> None:
    """Whoever would use another one's key is refused, reading and writing."""
    if accepted:
        assert await progress.dates(type_, code) == set()
        return
    for call in (
        progress.add(type_, code, MONDAY), progress.dates(type_, code),
        progress.contains(type_, code, MONDAY), progress.clear(type_, code),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match="_update"):
            await call


async def test_another_type_is_left_alone(
    progress: SyncProgress, code: str, redis: Redis
) -> None:
    """Nothing reads, changes or deletes a key that is no set."""
    await redis.set(f"tick_update_{code}", b"x")
    await redis.script_flush()  # the first time a script is told it fails otherwise
    for call in (
        progress.add("tick", code, MONDAY),
        progress.add("tick", code, MONDAY), progress.remove("tick", code, MONDAY),
        progress.dates("tick", code), progress.clear("tick", code),
        progress.contains("tick", code, MONDAY),
        progress.summary("tick", code, [MONDAY]),
    ):  # fmt: skip
        with pytest.raises(WrongTypeError):
            await call
    assert await redis.get(f"tick_update_{code}") == b"x"


async def test_an_outage_is_no_answer(own_server: DevServer) -> None:
    """Everything raises while Redis is away."""
    progress, backtests = SyncProgress(own_server.url), BacktestProgress(own_server.url)
    own_server.kill()
    for call in (
        progress.add("tick", "a", MONDAY), progress.remove("tick", "a", MONDAY),
        progress.dates("tick", "a"), progress.clear("tick", "a"),
        progress.summary("tick", "a", [MONDAY]), backtests.set("a", 1),
        backtests.list(),
    ):  # fmt: skip
        with pytest.raises(RedisUnavailableError):
            await call
    await progress.aclose()
    await backtests.aclose()


async def test_a_backtest(redis_url: str, code: str, redis: Redis) -> None:
    """An object with its progress in percent, for two hours from the last word."""
    key = f"backtest:task:{code}:progress"
    assert key == RedisKeyBuilder.backtest_task_progress(code)
    async with BacktestProgress(redis_url) as backtests:
        await backtests.set(code, 12.5, 策略="均线")
        assert await redis.ttl(key) == 7200
        written = orjson.loads(await redis.get(key) or b"")
        assert list(written) == ["task_id", "status", "timestamp", "progress", "策略"]
        found = await backtests.get(code)
        assert found is not None
        assert (found.progress, found.status) == (12.5, "running")
        assert found in await backtests.list("running")
        wrong: Any
        for wrong in (101, None):
            with pytest.raises(ConfigurationError, match="progress"):
                await backtests.set(code, wrong)
        assert await backtests.delete(code)
