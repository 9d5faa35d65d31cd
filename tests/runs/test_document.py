"""docs/runs.md and its Chinese sister: their code and commands run, their tables are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from bls_agent import EventStore
from bls_agent.core.keys import OWNER, RUN_BOOKS, RUN_EVENTS
from tests.documents import blocks, run_block, run_commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/runs.md", ROOT / "docs/runs.zh-CN.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_both_pages_show_the_same() -> None:
    """The same code, comments aside, and the same commands."""
    for language, comment in (
        ("python", r"\s+#.*"),
        ("js", r"\s+//.*"),
        ("console", "$^"),
    ):
        shown = [
            [re.sub(comment, "", block) for block in blocks(page, language)]
            for page in PAGES
        ]
        assert shown[0] == shown[1]
        assert shown[0]


@each_page
async def test_the_code_runs(
    page: Path, redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks run as they stand, one after the other."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    async with EventStore(redis_url) as store:
        await store.delete(1)
        await store.delete(2)
    names: dict[str, Any] = {"__name__": "document"}
    for block in blocks(page, "python"):
        await run_block(block, names)
    async with names["store"] as store:
        assert 0 < await redis.ttl("run:1:events") <= store.ttl
        assert (await store.get_events(1))[-1].closes
        assert await store.get_length(2) == 4


async def test_the_commands_run(
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Each ends as a command does that has looked."""
    await write(redis_url)
    assert await run_commands(PAGES[0], redis_url, monkeypatch) >= 5
    assert b"Traceback" not in capfdbinary.readouterr().err


async def write(url: str) -> None:
    async with EventStore(url) as store:
        await store.delete(1)
        await store.add_many(1, [("lifecycle", "started"), ("system", "close")])


@each_page
def test_the_table_of_keys(page: Path) -> None:
    """Form and type are those of the table of keys."""
    text = page.read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| ([A-Z]+) \|", text, re.MULTILINE)
    place = "{run:1:events}"
    assert rows == [
        (RUN_EVENTS.template, "STREAM"),
        (RUN_BOOKS.locate(place=place), "HASH"),
        (OWNER.locate(place=place), "STRING"),
    ]
