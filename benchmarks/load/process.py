"""The console in a process of its own, and what it takes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Watched:
    """A process that is looked at from outside (Linux).

    Attributes:
        pid: Its id.
        memory: Seconds since the beginning, and resident bytes.
    """

    pid: int
    memory: list[tuple[float, int]] = field(default_factory=list)

    def cpu_seconds(self) -> float:
        """Give the seconds of CPU that it has taken."""
        text = Path(f"/proc/{self.pid}/stat").read_text("utf-8")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self) -> int:
        """Give the bytes that it holds."""
        return int(Path(f"/proc/{self.pid}/statm").read_text("utf-8").split()[1]) * PAGE

    async def sample(self, interval: float) -> None:
        """Note the memory again and again until cancelled."""
        began = time.monotonic()
        while True:
            self.memory.append((time.monotonic() - began, self.resident()))
            await asyncio.sleep(interval)

    def growth(self) -> float:
        """Give the slope of the memory's later half, in bytes a minute.

        The fleet's view of the last five minutes has to be full by then.
        """
        later = self.memory[len(self.memory) // 2 :]
        return slope(later) * 60


def slope(points: list[tuple[float, int]]) -> float:
    """Fit a line by least squares."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


@contextmanager
def console_process(redis_url: str) -> Generator[tuple[Watched, str]]:
    """Run the console as an operator does; gives the process and its URL."""
    command = [sys.executable, "-m", "bls_agent", "console", "--json", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--redis", redis_url], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        told = orjson.loads(process.stdout.readline())
        yield Watched(process.pid), told["urls"][0]
    finally:
        process.terminate()
        process.wait()
