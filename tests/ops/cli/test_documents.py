"""The operator's guide: its examples run as they stand, in both languages."""

from __future__ import annotations

import re
import shlex
import stat
import sys
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.crawl import CrawlRequest, RequestQueue
from bls_agent.devserver import DevServer
from bls_agent.ops.cli.errors import Exit
from bls_agent.runs import EventStore
from bls_agent.workers import BacktestWorkerHeartbeat
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import environment

ROOT = Path(__file__).parents[3]
GUIDES = [ROOT / "docs/cli.md", ROOT / "docs/cli.zh-CN.md"]


def examples(guide: Path) -> list[str]:
    """The commands of the guide."""
    blocks = re.findall(
        r"^```console\n(.*?)^```", guide.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def test_both_guides_show_the_same() -> None:
    """The same examples, codes and options."""
    english, chinese = GUIDES
    assert examples(english) == examples(chinese)
    assert len(examples(english)) > 20
    for pattern in (r"^## ", r"^\| (\d+)", r"`--[\w-]+"):
        found = [
            len(re.findall(pattern, guide.read_text("utf-8"), re.MULTILINE))
            for guide in GUIDES
        ]
        assert found[0] == found[1], pattern


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_every_exit_code_is_in_the_guide(guide: Path) -> None:
    """Those of the program, no more and no less."""
    cells = re.findall(r"^\| (\d[\d、, ]*) \|", guide.read_text("utf-8"), re.MULTILINE)
    codes = {int(code) for cell in cells for code in re.findall(r"\d+", cell)}
    assert codes == {int(code) for code in Exit}


async def test_the_examples_run(
    bls: Bls, own_server: DevServer, admin: Redis, tmp_path: Path
) -> None:
    """One after the other against an agent, in a shell where they need one."""
    program = tmp_path / "bls-agent"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bls_agent "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    env = environment(BLS_REDIS_URL=own_server.url)
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    agent = ProjectAgent("订单系统", redis=own_server.url, replicas=True)
    beat = BacktestWorkerHeartbeat.create("回测-1")
    await admin.set(beat.key, beat.to_json(), ex=30)
    await admin.set("ginkgo:task_status:均线-7", "running", ex=60)

    @agent.command
    async def reload(force: bool = False, n: int = 0) -> None:
        agent.log.warn("configuration reloaded", force=force, n=n, order_id=1024)

    async with EventStore(own_server.url) as store:  # a run that has an end
        await store.add_many(42, [("lifecycle", "started"), ("system", "close")])
    async with RequestQueue(own_server.url, "news", max_retries=0) as queue:
        await queue.push(CrawlRequest("https://news.example/1"))
        async with queue.take(5) as taken:  # something has failed
            assert taken is not None
            await taken.fail("HTTP 503")
    async with agent:
        await agent.ready(5)
        await bls("call", "订单系统", "reload", url=own_server.url)  # something to show
        for example in examples(GUIDES[0]):
            words = shlex.split(example)
            if "|" in words:
                await anyio.run_process(
                    ["bash", "-o", "pipefail", "-c", example], env=env
                )
            elif words[-1] != "&":  # that one has a test of its own
                ran = await bls(*words[1:], url=own_server.url)
                assert (ran.code, ran.out != b"") == (0, True), example
