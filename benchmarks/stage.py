"""Where subjects perform: one real server, a fresh project each, a process each."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

from redis import Redis

from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS

__all__ = ["PEERS", "BenchmarkError", "Performance", "Stage"]

ROOT: Final = Path(__file__).parents[1]
PEERS: Final = ROOT / ".venv" / "peers"
PATIENCE: Final = 120.0  # seconds that a subject gets
PUSHED_AT_ONCE: Final = 5_000


class BenchmarkError(Exception):
    """A run that does not count, because the work was not done."""


class Performance:
    """One subject at work, in a process of its own.

    It is told what to do as one JSON object on its command line and says what it has
    to say as one JSON object a line.
    """

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        """Remember the process."""
        self._process = process
        self._name = name

    @property
    def busy(self) -> float:
        """Seconds of processor time that it has used, as the kernel counts them."""
        told = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8")
        used = told.rpartition(")")[2].split()[11:13]
        return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")

    def hear(self, word: str) -> dict[str, Any]:
        """Wait for the line that holds this key.

        Raises:
            BenchmarkError: The process ended before.
        """
        for line in cast("IO[str]", self._process.stdout):
            said: dict[str, Any] = json.loads(line)
            if word in said:
                return said
        self._process.wait(PATIENCE)
        message = f"{self._name} ended with {self._process.returncode}, without {word}"
        raise BenchmarkError(message)

    def cue(self) -> None:
        """Let a subject that waits for cues do one more thing."""
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write("\n")
        stdin.flush()

    def take_turn(self) -> None:
        """Let it do its thing once, and wait until it is done."""
        self.cue()
        self.hear("done")

    def result(self) -> dict[str, Any]:
        """Wait for the end and give what was measured."""
        found: dict[str, Any] = self.hear("result")["result"]
        self._process.wait(PATIENCE)
        return found


class Stage:
    """The server, a client that looks at it from outside, and how long to measure.

    Attributes:
        url: Where the server is.
        redis: The client.
        quick: Whether a short look is enough.
        loop: The event loop of every subject: ``asyncio`` or ``uvloop``.
    """

    def __init__(
        self,
        url: str,
        *,
        quick: bool = False,
        loop: str = "asyncio",
        peers: Path = PEERS,
    ) -> None:
        """Connect to a server.

        Args:
            url: Where it is.
            quick: As the attribute.
            loop: As the attribute.
            peers: Folder with one virtual environment for each peer.
        """
        self._peers = peers
        self.url = url
        self.quick = quick
        self.loop = loop
        self.redis: Redis = Redis.from_url(url, protocol=2)

    def close(self) -> None:
        """Let the server go."""
        self.redis.close()

    def python_of(self, peer: str) -> str | None:
        """Give the interpreter of a peer's environment, if there is one."""
        python = self._peers / peer / "bin" / "python"
        return str(python.absolute()) if python.exists() else None

    @contextmanager
    def project(self) -> Generator[str]:
        """Give a fresh project, whose keys are removed afterwards."""
        name = f"压测系统_{secrets.token_hex(4)}"
        try:
            yield name
        finally:
            keys = (CONTROL, PROJECT_CONSOLE, PROJECT_STATUS)
            self.redis.delete(*(key.build(project=name) for key in keys))

    def push(self, project: str, commands: Sequence[bytes]) -> None:
        """Put commands into a control list."""
        key = CONTROL.build(project=project)
        for start in range(0, len(commands), PUSHED_AT_ONCE):
            self.redis.rpush(key, *commands[start : start + PUSHED_AT_ONCE])

    def records(self, project: str) -> list[bytes]:
        """Give the console list."""
        key = PROJECT_CONSOLE.build(project=project)
        return cast("list[bytes]", self.redis.lrange(key, 0, -1))

    @contextmanager
    def perform(
        self, subject: str, *, python: str = sys.executable, **options: Any
    ) -> Generator[Performance]:
        """Start a subject; it ends with the context, or when it takes far too long."""
        told = {"url": self.url, "loop": self.loop, **options}
        with subprocess.Popen(
            [python, "-m", f"benchmarks.subjects.{subject}", json.dumps(told)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            patience = threading.Timer(PATIENCE, process.kill)
            patience.start()
            try:
                yield Performance(process, subject)
            finally:
                patience.cancel()
                process.kill()

    def measure(
        self, subject: str, *, python: str = sys.executable, **options: Any
    ) -> dict[str, Any]:
        """Let a subject perform and give what it measured."""
        with self.perform(subject, python=python, **options) as performance:
            return performance.result()
