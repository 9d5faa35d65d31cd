"""docs/crawl.md and its Chinese sister: their code works as it stands."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from bls_agent.crawl import CrawlRequest, RedisKeyManager, RequestQueue
from bls_agent.devserver import DevServer
from tests.documents import blocks, is_program, run_alone
from tests.harness import eventually

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/crawl.md", ROOT / "docs/crawl.zh-CN.md"]
PROGRAM, SETTINGS = "# worker.py\n", "# settings.py\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_each_block_runs_alone(
    page: Path,
    own_server: DevServer,
    admin: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A queue, its duplicates, what failed, a cleanup, an old queue with pickles."""
    monkeypatch.setenv("BLS_REDIS_URL", own_server.url)
    old = RedisKeyManager("旧新闻")
    await admin.zadd(old.get_requests_queue_key(), {"-7": 3})
    body = pickle.dumps({"url": "https://example.org/旧闻"})
    await admin.hset(old.get_requests_data_key(), "-7", body)
    said: list[str] = []
    for block in blocks(page):
        if not is_program(block):
            await run_alone(block)
            said.append(capsys.readouterr().out)
    first = said[0].splitlines()
    assert first[:3] == ["True", "False", "https://example.org/头条 1 0.0"]
    assert "acknowledged=1" in first[3]
    assert "[True, True, False]" in "".join(said)
    assert "this item was here before" in "".join(said)
    assert "crawlo:新闻:每日:filter:fingerprint" in "".join(said)
    found, removed = re.findall(
        r"^(\d+) keys, 0 requests .*\n(\d+)$", "".join(said), re.MULTILINE
    )[0]
    assert int(removed) == int(found) > 3
    async with RequestQueue(own_server.url, "新闻") as queue:
        assert (await queue.stats()).waiting == 1
        async with queue.take() as taken:
            assert taken is not None
            assert taken.request == CrawlRequest("https://example.org/旧闻")
            assert taken.priority == 3
    assert [key async for key in admin.scan_iter("*旧新闻*")] == []


@pytest.mark.parametrize("stop", [signal.SIGTERM, None])
async def test_the_worker(
    own_server: DevServer, tmp_path: Path, stop: signal.Signals | None
) -> None:
    """It ends in order at SIGTERM, gives back what it holds, and ends with the crawl."""
    (program,) = [text for text in blocks(PAGES[0]) if text.startswith(PROGRAM)]
    slow = "await anyio.sleep(60)\n    return []"
    assert "return []" in program
    if stop:
        program = program.replace("return []", slow)
    (tmp_path / "worker.py").write_text(program.replace("timeout=10", "timeout=0.1"))
    async with RequestQueue(own_server.url, "新闻") as queue:
        await queue.push_many([CrawlRequest(f"https://a.b/{n}") for n in range(12)])
        environment = {"PYTHONPATH": str(ROOT), "BLS_REDIS_URL": own_server.url}
        async with await anyio.open_process(
            [sys.executable, str(tmp_path / "worker.py")],
            env={**os.environ, **environment},
        ) as worker:
            if stop:

                async def is_busy() -> bool:
                    return (await queue.stats()).in_flight == 10

                await eventually(is_busy)
                worker.send_signal(stop)
            with anyio.fail_after(20):
                assert await worker.wait() == 0
        stats = await queue.stats()
        done = 0 if stop else 12
        assert (stats.waiting, stats.acknowledged) == (12 - done, done)
        assert stats.in_flight == stats.expired == 0
