"""docs/workers.md and its Chinese sister: their code and commands run, their table is true."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from datetime import date
from decimal import Decimal
from inspect import isawaitable
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent.workers.schema import ROWS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/workers.md", ROOT / "docs/workers.zh-CN.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_both_pages_show_the_same() -> None:
    """The same code, comments aside, and the same commands."""
    code = [
        [re.sub(r"\s+#.*", "", block) for block in blocks(page, "python")]
        for page in PAGES
    ]
    assert code[0] == code[1]
    assert len(code[0]) > 6
    assert blocks(PAGES[0], "console") == blocks(PAGES[1], "console")


@each_page
async def test_the_code_runs(
    page: Path, redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks run as they stand, one after the other; what they began has ended."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    await redis.set("backtest:worker:对端", '{"status":"running"}', ex=30)
    names: dict[str, Any] = {
        "__name__": "document", "fetch_bars": fetch_bars, "Path": Path, "Decimal": Decimal,
    }  # fmt: skip
    for block in blocks(page, "python"):
        mode = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        result = eval(compile(block, page.name, "exec", flags=mode), names)
        if isawaitable(result):
            with anyio.fail_after(20):
                await result
        if main := names.pop("main", None):
            with anyio.fail_after(20):
                await main()
            await names["cache"].aclose()
    assert not await redis.exists(
        "backtest:worker:回测-1", "heartbeat:scheduler:主调度"
    )


async def fetch_bars(code: str, day: date, adjust: bool) -> list[float]:
    """What the page takes for granted."""
    return [1.5, 2.5]


def test_the_commands_run(redis_url: str) -> None:
    """Each ends as a command does that has looked."""
    (block,) = blocks(PAGES[0], "console")
    kept = {name: text for name, text in os.environ.items() if name[:4] != "BLS_"}
    for line in block.splitlines():
        program, *words = line.removeprefix("$ ").split()
        assert program == "bls-agent"
        ran = subprocess.run(
            [sys.executable, "-m", "bls_agent", *words],
            env={**kept, "BLS_REDIS_URL": redis_url, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ran.returncode in (0, 3), (line, ran.stderr)
        assert "Traceback" not in ran.stderr


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
