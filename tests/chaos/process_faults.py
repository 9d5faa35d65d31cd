"""Faults of the process: SIGKILL at any moment, SIGTERM at any moment, forks."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from bls_agent.core.keys import PROJECT_STATUS
from tests.chaos.stage import Stage
from tests.chaos.table import fault
from tests.kit import History

AHEAD = 12  # commands that wait for each process
LIFE = 0.15  # seconds, at most, until the signal


class Children:
    """The agents of one row, each in a process of its own, with one history."""

    def __init__(self, stage: Stage, path: Path, settings: dict[str, Any]) -> None:
        self._stage = stage
        self._path = path
        self._living: set[int] = set()
        self._settings = {**stage.mode.settings, "shutdown_timeout": 5.0, **settings}

    async def go(self, **others: Any) -> int:
        """Start one, with other options for :func:`~tests.chaos.nursery.live`."""
        options = {
            "seed": self._stage.rng.randrange(2**32),
            "url": self._stage.server.url,
            "project": self._stage.project,
            "history": str(self._path),
            "settings": self._settings,
        }
        pid = await self._stage.nursery.go(**options | others)
        self._living.add(pid)
        return pid

    async def wait(self, pid: int) -> int:
        """Wait for its end; give its exit code."""
        code = await self._stage.nursery.wait(pid)
        self._living.discard(pid)
        return code

    def end(self) -> None:
        """Kill those that a row which failed has left alive."""
        for pid in self._living:
            os.kill(pid, signal.SIGKILL)

    def has_begun(self, pid: int) -> bool:
        """Whether a crawler has written something into the history."""
        return self.size() > 0 and f'"{pid}.' in self._path.read_text("utf-8")

    def size(self) -> int:
        """Bytes of the history."""
        return self._path.stat().st_size if self._path.exists() else 0


@asynccontextmanager
async def children_of(stage: Stage, **settings: Any) -> AsyncGenerator[Children]:
    """Have a place for the history of processes; bring it home at the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "history.jsonl")
        children = Children(stage, path, settings)
        try:
            yield children
        finally:
            children.end()
        if path.exists():
            stage.history.merge(History.load(path))


@fault("F16", "SIGKILL in a handler, at moments all over its life")
async def killed_process(stage: Stage) -> None:
    async with children_of(stage, **stage.mode.after_death) as children:
        for _ in range(stage.pick(3, 200)):
            await ahead(stage)
            before = children.size()
            pid = await children.go()
            await stage.wait(lambda before=before: children.size() > before, 10)  # type: ignore[misc]
            await anyio.sleep(stage.rng.uniform(0, 0.04))
            os.kill(pid, signal.SIGKILL)
            await children.wait(pid)
            stage.damage.killed += 1
    await survivor(stage, "SIGKILL")


@fault("F17", "SIGTERM at any moment, now and then a second one")
async def told_to_stop(stage: Stage) -> None:
    async with children_of(stage) as children:
        for number in range(stage.pick(3, 60)):
            await ahead(stage)
            pid = await children.go()
            # Before the signals are listened to a process simply dies of one.
            status = PROJECT_STATUS.build(project=stage.project)
            await online(stage, status)
            await anyio.sleep(stage.rng.uniform(0, LIFE))
            os.kill(pid, signal.SIGTERM)
            twice = number % 4 == 3
            if twice:
                await anyio.sleep(stage.rng.uniform(0, 0.01))
                os.kill(pid, signal.SIGTERM)
                stage.damage.forced += 1
            # A second signal may meet an interpreter that has done all and is leaving.
            code = await children.wait(pid)
            if code and not (twice and code == -signal.SIGTERM):
                stage.complain(f"SIGTERM ended with exit code {code}")
            if await stage.redis.get(status) != "离线".encode():
                stage.complain("SIGTERM left another status than 离线")
    await survivor(stage, "SIGTERM")


@fault("F19", "a handler forks; the child ends")
async def forked(stage: Stage) -> None:
    async with children_of(stage) as children:
        pid = await children.go()
        for _ in range(stage.pick(2, 40)):
            await ahead(stage)
            await stage.push("fork")
        await stage.wait(lambda: empty(stage), 20)
        os.kill(pid, signal.SIGTERM)
        if code := await children.wait(pid):
            stage.complain(f"SIGTERM ended with exit code {code}")
    await survivor(stage, "forks")


async def ahead(stage: Stage) -> None:
    """Push so many commands that a process is busy when it is told to end."""
    for _ in range(AHEAD):
        await stage.push()


def empty(stage: Stage) -> bool:
    return bool(stage.server.ask("LLEN", stage.control) == 0)


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
