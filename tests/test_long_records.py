"""Logs of very long records are read in bounded pieces, whoever wrote them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from bls_agent import Console
from bls_agent.project.console.log import LONGEST
from bls_agent.project.messages import LogEntry

LONG = 1024 * 1024
COUNT = 40  # of them: far more than may be read at once


@pytest.fixture
async def listed(redis: Redis, project: str) -> AsyncIterator[list[str]]:
    """Give the beginnings of the records of a long log."""
    names = [f"<{number}>" for number in range(COUNT)]
    for name in names:
        await redis.rpush(f"{project}_项目控制台", name + "x" * LONG)
    yield names
    await redis.delete(f"{project}_项目控制台")


def begin(entries: list[LogEntry]) -> list[str]:
    return [entry.message.partition("x")[0] for entry in entries]


async def test_pages_are_shorter_and_leave_nothing_out(
    console: Console, project: str, listed: list[str]
) -> None:
    """Page by page everything is read, none of them with more than some bytes."""
    found: list[str] = []
    before = ""
    while True:
        page = await console.log_page(project, before=before, limit=1_000)
        held = sum(len(entry.message) for entry in page.entries)
        assert 0 < held <= LONGEST
        found[:0] = begin(list(page.entries))
        before = page.before
        if not before:
            break
    assert found == listed


async def test_the_newest_are_fewer(
    console: Console, project: str, listed: list[str]
) -> None:
    """They are the newest, as many as fit."""
    found = begin(await console.logs(project, 1_000))
    assert 4 <= len(found) <= LONGEST // LONG
    assert found == listed[-len(found) :]


async def test_who_follows_gets_a_gap(
    console: Console, redis: Redis, project: str, listed: list[str]
) -> None:
    """What came in between is not read in one piece, however long: a gap says so."""
    follows = console.follow_logs(project, last=1)
    assert begin([await anext(follows)]) == listed[-1:]
    for name in listed:
        await redis.rpush(f"{project}_项目控制台", f"{name}again" + "x" * LONG)
    first = await anext(follows)
    assert first.is_gap
    last = f"{listed[-1]}again"
    found = 0
    while begin([await anext(follows)]) != [last]:
        found += 1
    assert found < LONGEST // LONG
