"""Which records a search through a log finds, and how far it goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, Console, Level, LogEntry, LogFilter
from bls_agent.project.console.search import read_moment
from bls_agent.project.log.reading import gap_entry

TIME = datetime(2026, 1, 12, 12, tzinfo=UTC)


def entry(
    message: str = "", level: Level = Level.INFO, *, minutes: int = 0, **metadata: Any
) -> LogEntry:
    moment = TIME + timedelta(minutes=minutes)
    return LogEntry(
        timestamp=moment.isoformat(), level=level, message=message, metadata=metadata
    )


@pytest.mark.parametrize(
    ("wanted", "found", "passed_over"),
    [
        ({"level": Level.WARN}, entry(level=Level.ERROR), entry()),
        ({"text": "ORDER 1"}, entry("order 10"), entry("order 2")),
        ({"text": "单号"}, entry(单号=3), entry("单")),
        ({"text": "order=7"}, entry(order=7), entry(order=8)),
        ({"text": "reason=null"}, entry(reason=None), entry(reason="None")),
        ({"text": 'codes=["a"'}, entry(codes=["a"]), entry(codes=["b"])),
        ({"text": "a.c"}, entry("a.c"), entry("abc")),
        ({"since": TIME}, entry(minutes=0), entry(minutes=-1)),
        ({"until": TIME}, entry(minutes=0), entry(minutes=1)),
        ({"replica": "web-1"}, entry(agent="web-1#4"), entry(agent="web-2#4")),
        ({"replica": "web-1"}, entry(agent="web-1-ab#4"), entry()),
        ({"replica": "web-1#"}, entry(agent="web-1#4"), entry(agent="web-10#4")),
        ({"replica": "web-1"}, entry(agent="web-1"), entry(agent=["web-1"])),
        ({"logger": "pay"}, entry(logger="pay.card"), entry(logger="payment")),
    ],
)
def test_what_is_wanted(
    wanted: dict[str, Any], found: LogEntry, passed_over: LogEntry
) -> None:
    """Each condition lets a record pass that has it, and no other one; gaps always."""
    assert LogFilter(**wanted).wants(found)
    assert not LogFilter(**wanted).wants(passed_over)
    assert LogFilter(**wanted).wants(gap_entry(3))


@pytest.mark.parametrize("name", ["since", "until"])
def test_a_time_without_a_zone(name: str) -> None:
    """It cannot be compared with the times of records."""
    with pytest.raises(ConfigurationError, match=name):
        LogFilter(**{name: TIME.replace(tzinfo=None)})  # type: ignore[arg-type]


def test_a_moment() -> None:
    """A span before now, or a timestamp; anything else is no moment."""
    ago = datetime.now(UTC) - (read_moment("1d2h3m4s") or TIME)
    assert abs(ago - timedelta(days=1, hours=2, minutes=3, seconds=4)) < timedelta(
        seconds=5
    )
    assert read_moment("2026-01-12T12:00:00Z") == TIME
    assert (read_moment("yesterday"), read_moment("")) == (None, None)


async def fill(redis: Redis, project: str, count: int) -> None:
    """Write records with their numbers, one each second, newest last."""
    key = f"{project}_项目控制台"
    records = [
        {
            "timestamp": (TIME + timedelta(seconds=number)).isoformat(),
            "level": "info",
            "message": f"number {number}",
        }
        for number in range(count)
    ]
    await redis.rpush(key, *map(orjson.dumps, records))


async def test_a_record_far_back_is_found(
    redis: Redis, console: Console, project: str
) -> None:
    """One search looks at ten thousand records, the next one goes on before them."""
    await fill(redis, project, 12_000)
    wanted = LogFilter(text="number 7")
    first = await console.search_logs(project, wanted, limit=10_000)
    assert (first.searched, first.back_to) == (
        10_000,
        (TIME + timedelta(seconds=2_000)).isoformat(),
    )
    second = await console.search_logs(project, wanted, before=first.before)
    assert (second.searched, second.before) == (2_000, "")
    numbers = [int(one.message[7:]) for one in (*second.entries, *first.entries)]
    assert numbers == [n for n in range(12_000) if str(n).startswith("7")]


async def test_a_search_ends_early(
    redis: Redis, console: Console, project: str
) -> None:
    """Where enough records fit, and where all older ones are too old."""
    await fill(redis, project, 3_000)
    found: list[int] = []
    before, wanted = "", LogFilter(text="9")
    while not found or before:
        some = await console.search_logs(project, wanted, before=before, limit=60)
        assert len(some.entries) <= 60
        found[:0] = [int(one.message[7:]) for one in some.entries]
        before = some.before
    assert found == [number for number in range(3_000) if "9" in str(number)]
    since = LogFilter(since=TIME + timedelta(seconds=2_950))
    late = await console.search_logs(project, since)
    assert len(late.entries) == 50
    assert (late.searched <= 1_000, late.before) == (True, "")
    with pytest.raises(ConfigurationError, match="limit"):
        await console.search_logs(project, since, limit=0)
    assert (await console.search_logs(f"{project}-x", since)).searched == 0


async def test_records_that_were_trimmed_meanwhile(
    redis: Redis, console: Console, project: str
) -> None:
    """A search that cannot go on says so, and does not look like one that has ended."""
    await fill(redis, project, 2_000)
    wanted = LogFilter(text="number")
    some = await console.search_logs(project, wanted, limit=10)
    assert not some.trimmed
    await redis.ltrim(f"{project}_项目控制台", -5, -1)
    none = await console.search_logs(project, wanted, before=some.before)
    assert (none.trimmed, none.entries, none.before) == (True, [], "")
