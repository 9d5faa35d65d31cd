"""docs/runs.md and its Chinese sister: their code and commands run, their tables are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bls_agent import EventStore
from bls_agent.core.keys import OWNER, RUN_BOOKS, RUN_EVENTS
from tests.documents import (
    blocks,
    run_alone,
    run_commands,
)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/runs.md", ROOT / "docs/runs.zh-CN.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
async def test_each_block_runs_alone(
    page: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block runs as it stands; the first one is a program that writes a run."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    runs = range(1, 5)
    async with EventStore(redis_url) as store:
        for run_id in runs:
            await store.delete(run_id)
        for block in blocks(page):
            await run_alone(block.replace("anyio.sleep(1)", "anyio.sleep(0)"))
        found = [await store.describe(run_id) for run_id in runs]
    states = [run and run.state for run in found]
    assert states == ["completed", "completed", "completed", "closed"]
    assert found[0] is not None
    assert found[0].task == "分析茶价"


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
