"""Faults of the process: SIGKILL at any moment, SIGTERM at any moment, forks."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from bls_agent.keys import PROJECT_STATUS
from bls_agent.testing.chaos import History
from tests.chaos.stage import Stage
from tests.chaos.table import fault

AHEAD = 12  # commands that wait for each process
LIFE = 0.15  # seconds, at most, until the signal
ROOT = Path(__file__).parents[2]


class Nursery:
    """The other end of ``nursery.py``."""

    def __init__(self, process: Process, path: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.path = path
        self._said = BufferedByteReceiveStream(process.stdout)
        self._words = process.stdin

    async def go(self, seed: int) -> int:
        """Fork an agent; give its process id."""
        return await self._ask(f"go {seed}")

    async def wait(self) -> int:
        """Wait for its end; give its exit code."""
        return await self._ask("wait")

    async def _ask(self, words: str) -> int:
        await self._words.send(f"{words}\n".encode())
        return int(await self._said.receive_until(b"\n", 100))

    def has_started(self, before: int) -> bool:
        """Whether any handler began since then."""
        return self.path.exists() and self.path.stat().st_size > before

    def size(self) -> int:
        """Bytes of the common history."""
        return self.path.stat().st_size if self.path.exists() else 0


@asynccontextmanager
async def nursery(stage: Stage, **settings: Any) -> AsyncGenerator[Nursery]:
    """Start the process that forks agents; bring their history home at the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "history.jsonl")
        options = {
            "url": stage.server.url,
            "project": stage.project,
            "history": str(path),
            "settings": {**stage.mode.settings, "shutdown_timeout": 5.0, **settings},
        }
        words = [sys.executable, "-m", "tests.chaos.nursery"]
        async with await anyio.open_process(
            [*words, orjson.dumps(options).decode()], stderr=None, cwd=ROOT
        ) as process:
            try:
                yield Nursery(process, path)
            finally:
                assert process.stdin is not None
                await process.stdin.aclose()
        if path.exists():
            stage.history.merge(History.load(path))


@fault("F16", "SIGKILL in a handler, at moments all over its life")
async def killed_process(stage: Stage) -> None:
    async with nursery(stage, **stage.mode.after_death) as children:
        for _ in range(stage.pick(3, 200)):
            await ahead(stage)
            before = children.size()
            pid = await children.go(stage.rng.randrange(2**32))
            await stage.wait(lambda before=before: children.has_started(before), 10)  # type: ignore[misc]
            await anyio.sleep(stage.rng.uniform(0, 0.04))
            os.kill(pid, signal.SIGKILL)
            await children.wait()
            stage.damage.killed += 1
    await survivor(stage, "SIGKILL")


@fault("F17", "SIGTERM at any moment, now and then a second one")
async def told_to_stop(stage: Stage) -> None:
    async with nursery(stage) as children:
        for number in range(stage.pick(3, 100)):
            await ahead(stage)
            pid = await children.go(stage.rng.randrange(2**32))
            # Before the signals are listened to a process simply dies of one.
            status = PROJECT_STATUS.build(project=stage.project)
            await online(stage, status)
            await anyio.sleep(stage.rng.uniform(0, LIFE))
            os.kill(pid, signal.SIGTERM)
            if number % 4 == 3:
                await anyio.sleep(stage.rng.uniform(0, 0.01))
                os.kill(pid, signal.SIGTERM)
            if code := await children.wait():
                stage.complain(f"SIGTERM ended with exit code {code}")
            if await stage.redis.get(status) != "离线".encode():
                stage.complain("SIGTERM left another status than 离线")
    await survivor(stage, "SIGTERM")


@fault("F19", "a handler forks; the child ends")
async def forked(stage: Stage) -> None:
    async with nursery(stage) as children:
        pid = await children.go(stage.seed)
        for _ in range(stage.pick(2, 40)):
            await ahead(stage)
            await stage.push("fork")
        await stage.wait(lambda: empty(stage), 20)
        os.kill(pid, signal.SIGTERM)
        if code := await children.wait():
            stage.complain(f"SIGTERM ended with exit code {code}")
    await survivor(stage, "forks")


async def ahead(stage: Stage) -> None:
    """Push so many commands that a process is busy when it is told to end."""
    for _ in range(AHEAD):
        await stage.push()


def empty(stage: Stage) -> bool:
    return stage.server.ask("LLEN", stage.control) == 0


async def online(stage: Stage, status: str) -> None:
    with anyio.fail_after(10):
        while await stage.redis.get(status) != "在线".encode():
            await anyio.sleep(0.002)


async def survivor(stage: Stage, fault: str) -> None:
    """Let one agent run what the others left behind."""
    stage.agent = agent = stage.make_agent(**stage.mode.after_death)
    stage.healed_at = time.monotonic()
    async with agent:
        await stage.push()
        await stage.recovered(fault)
        await stage.drain()
    stage.count_logs(agent, final=True)
    await stage.take_stock()
