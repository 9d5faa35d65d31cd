"""docs/workers.md and its Chinese sister: their code and commands run, their table is true."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from bls_agent.workers import TaskStatus, WorkerRegistry
from bls_agent.workers.schema import ROWS
from tests.documents import (
    blocks,
    run_alone,
    run_block,
    run_commands,
)
from tests.harness import eventually

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/workers.md", ROOT / "docs/workers.zh-CN.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
async def test_each_block_runs_alone(
    page: Path, redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block runs as it stands, also the program that the page begins with."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    await redis.set("backtest:worker:对端", '{"status":"running"}', ex=30)
    for block in blocks(page):
        await run_alone(block.replace("anyio.sleep(1)", "anyio.sleep(0)"))
    async with TaskStatus(redis_url) as tasks:
        task = await tasks.get("新闻-7")
        assert task is not None
        assert task.status == "done"
    assert not [key async for key in redis.scan_iter("heartbeat:下载:*")]
    assert not await redis.exists("backtest:worker:回测-1")


async def test_the_commands_run(
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Each ends as a command does that has looked."""
    assert await run_commands(PAGES[0], redis_url, monkeypatch) >= 3
    assert b"Traceback" not in capfdbinary.readouterr().err


@each_page
def test_the_table_of_keys(page: Path) -> None:
    """Form, type and TTL are those of the table of keys; none is missing."""
    text = page.read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| (\d+) \|", text, re.MULTILINE)
    known = {
        (row.template.replace("!", ""), str(row.type), str(row.ttl))
        for row in ROWS.values()
        if row.ttl is not None
    }
    assert set(rows) == known


async def test_the_worker_of_the_page_outlives_redis(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop and its heartbeat go on through a restart, and what failed is counted."""
    monkeypatch.setenv("BLS_REDIS_URL", own_server.url)
    (block,) = [one for one in blocks(PAGES[0]) if "async def work(" in one]
    names: dict[str, Any] = {"__name__": "document"}
    await run_block(block, names)

    async def give_codes() -> AsyncIterator[str]:
        yield "茶-1"
        await anyio.to_thread.run_sync(own_server.kill)
        yield "茶-2"
        await anyio.to_thread.run_sync(own_server.restart)
        yield "茶-3"
        async with WorkerRegistry() as registry:
            await eventually(lambda: beats(registry))

    async def beats(registry: WorkerRegistry) -> bool:
        return [one.id for one in await registry.alive("回测")] == ["上海-1"]

    with anyio.fail_after(20):
        assert await names["work"](give_codes()) == 4
    async with TaskStatus() as tasks:
        task = await tasks.get("茶-3")
        assert task is not None
        assert task.status == "done"
