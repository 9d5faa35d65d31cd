"""Paging back through a log on a real server, while it grows and is cut from its front."""

from __future__ import annotations

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, Console, SyncConsole, WrongTypeError
from bls_agent.project.log.reading import LogPage


def line(number: int) -> str:
    """A record as another program writes it, without an id."""
    return f'{{"level":"info","message":"{number}"}}'


async def push(redis: Redis, project: str, first: int, last: int, cap: int = 0) -> None:
    """Append records, and cut the list if there is a cap."""
    key = f"{project}_项目控制台"
    await redis.rpush(key, *map(line, range(first, last + 1)))
    if cap:
        await redis.ltrim(key, -cap, -1)


def show(page: LogPage) -> list[int]:
    """A page by its messages."""
    return [int(entry.message) for entry in page.entries]


async def test_a_log_page_by_page(redis: Redis, console: Console, project: str) -> None:
    """From the newest to the first record, each once; then there is no page before."""
    await push(redis, project, 1, 25)
    page = await console.log_page(project, limit=10)
    assert show(page) == list(range(16, 26))
    page = await console.log_page(project, before=page.before, limit=10)
    assert show(page) == list(range(6, 16))
    page = await console.log_page(project, before=page.before, limit=10)
    assert show(page) == list(range(1, 6))
    assert (page.before, page.trimmed) == ("", False)
    whole = await console.log_page(project, limit=25)
    assert (len(whole.entries), whole.before) == (25, "")
    assert await console.log_page(f"{project}-x") == LogPage(entries=[])


@pytest.mark.parametrize(
    ("grown", "cap", "expected"),
    [
        (0, 0, range(2_981, 2_991)),
        (500, 0, range(2_981, 2_991)),
        (5, 3_000, range(2_981, 2_991)),
        (500, 3_000, range(2_981, 2_991)),
        (2_985, 3_000, range(2_986, 2_991)),
        (2_990, 3_000, range(0)),
    ],
    ids=["at rest", "grown", "cut a little", "cut", "cut into the page", "at its end"],
)
async def test_a_place_moves(
    redis: Redis,
    console: Console,
    project: str,
    grown: int,
    cap: int,
    expected: range,
) -> None:
    """The page before is the same records, however far they have moved."""
    await push(redis, project, 1, 3_000)
    page = await console.log_page(project, limit=10)
    if grown:
        await push(redis, project, 3_001, 3_000 + grown, cap)
    older = await console.log_page(project, before=page.before, limit=10)
    assert show(older) == list(expected)
    assert not older.trimmed
    assert bool(older.before) == (len(expected) == 10)


async def test_a_place_that_was_cut_off(
    redis: Redis, console: Console, project: str
) -> None:
    """What stood before it is gone, too: an empty page that says so; as for another list."""
    await push(redis, project, 1, 300)
    page = await console.log_page(project, limit=10)
    await push(redis, project, 301, 600, cap=300)
    for name in (project, f"{project}-x"):
        older = await console.log_page(name, before=page.before, limit=10)
        assert (show(older), older.before, older.trimmed) == ([], "", True)


async def test_paging_while_it_grows_and_is_cut(
    redis: Redis, console: Console, project: str
) -> None:
    """Thousands of records come and go meanwhile: each page joins the one behind it."""
    await push(redis, project, 1, 2_000)
    last = 2_000

    async def write() -> None:
        nonlocal last
        while True:
            await push(redis, project, last + 1, last + 7, cap=2_000)
            last += 7

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        for limit in (1, 30, 200):
            page = await console.log_page(project, limit=limit)
            shown = show(page)
            while page.before:
                page = await console.log_page(
                    project, before=page.before, limit=limit * 7
                )
                shown = show(page) + shown
            assert shown == list(range(shown[0], shown[-1] + 1))
            assert len(shown) > limit
        tasks.cancel_scope.cancel()


async def test_what_cannot_be_paged(
    redis: Redis, console: Console, project: str
) -> None:
    """A limit or cursor without sense, and a key of another type, are clear errors."""
    with pytest.raises(ConfigurationError, match="limit"):
        await console.log_page(project, limit=0)
    with pytest.raises(ConfigurationError, match="before"):
        await console.log_page(project, before="nonsense")
    await redis.set(f"{project}_项目控制台", "no list")
    with pytest.raises(WrongTypeError):
        await console.log_page(project)


def test_from_plain_code(redis_url: str, project: str) -> None:
    """The synchronous console pages, too."""
    with SyncConsole(redis_url) as console:
        console.send(project, "x", sent_by="值班员", record=True, create=True)
        page = console.log_page(project, limit=1)
        assert [e.message for e in page.entries] == ["command 'x' sent by 值班员"]
