"""Programs that tests run in an interpreter of their own: read, told, ended, killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DEADLINE = 30.0  # seconds, also on a busy machine


class Ended(NamedTuple):
    """What came of a program."""

    code: int
    out: str  # what was not read as a line before
    err: str


class Program(subprocess.Popen[bytes]):
    """A program that is gone at the end of its block, with the children that it has forked.

    Each wait has a deadline. What the program printed is shown if the test fails.
    """

    def __init__(self, *words: str, env: Mapping[str, str] | None = None) -> None:
        """Start an interpreter.

        Args:
            words: What stands behind ``python`` on a command line.
            env: Variables beside those of the tests. Of those for the package it has
                only the one that names the server.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if name == "BLS_SERVER_BINARY" or not name.startswith("BLS_")
        }
        super().__init__(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=ROOT,
            env={**kept, "PYTHONIOENCODING": "utf-8", **(env or {})},
            start_new_session=True,
        )
        self._unread = b""

    def line(self, timeout: float = DEADLINE) -> str:
        """Wait for the next line that it prints."""
        assert self.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.stdout], [], [], left)
            assert ready, "the program printed no line in time"
            part = os.read(self.stdout.fileno(), 65_536)
            assert part, "the program ended without another line"
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def send(self, line: str = "") -> None:
        """Let it read a line from its standard input."""
        assert self.stdin is not None
        self.stdin.write(f"{line}\n".encode())

    def end(self, timeout: float = DEADLINE) -> Ended:
        """Wait until it ends by itself."""
        out, err = self.communicate(timeout=timeout)
        return Ended(self.returncode, (self._unread + out).decode(), err.decode())

    def __exit__(self, *_: object) -> None:
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        ended = self.end()
        sys.stdout.write(ended.out)
        sys.stderr.write(ended.err)


def sockets_to(url: str) -> list[str]:
    """Find the sockets of this process that lead to a Redis; a program imports it."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    held: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            held.add(str(descriptor.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(f":{port:04X}")}
    return sorted(held & there)


def run_python(
    *words: str, env: Mapping[str, str] | None = None, timeout: float = DEADLINE
) -> Ended:
    """Run a program to its end, as ``python`` with these words does."""
    with Program(*words, env=env) as program:
        return program.end(timeout)
