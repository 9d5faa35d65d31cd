"""The command line as somebody uses it: in this process, over a pipe, at a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from unittest.mock import patch

import bls_agent
from bls_agent.devserver import DevServer
from bls_agent.ops.cli import main

ROOT = Path(bls_agent.__file__).parents[1]
SGR = re.compile(r"\x1b\[[0-9;]*m")
# Drawn and removed by a command that waits for over a second, on a busy machine.
PROGRESS = re.compile(r"\r(?:waiting for|正在等待)[^\r\n]*\r *\r")
NOT_OURS = (
    "PYTHON",
    "COVERAGE",
    "COV_",
    "BLS_",
    "NO_COLOR",
    "FORCE_COLOR",
    "LC_",
    "LANG",
    "TERM",
    "COLUMNS",
    "LINES",
)


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    code: int
    out: bytes
    err: bytes = b""

    @property
    def text(self) -> str:
        return self.out.decode("utf-8")

    @property
    def said(self) -> str:
        return self.err.decode("utf-8")


def environment(**more: str) -> dict[str, str]:
    """The environment of a user who has set nothing."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)}
    plain = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "0", "LANG": "C.UTF-8"}
    return kept | plain | {"TERM": "xterm-256color"} | more


def run_piped(
    *arguments: str, directory: Path | None = None, stdin: bytes = b"", **env: str
) -> Ran:
    """Run a command whose output is read by a program."""
    ran = subprocess.run(
        [sys.executable, "-m", "bls_agent", *arguments],
        env=environment(**env), cwd=directory, input=stdin, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def open_terminal(columns: int, lines: int = 24) -> tuple[int, int]:
    """Make a terminal: the end of its user, and the end of a program."""
    user, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    return user, program


def start_at_terminal(
    arguments: Sequence[str], columns: int, env: Mapping[str, str], *, err: bool = True
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command at a terminal; its user's end is given."""
    user, program = open_terminal(columns)
    process = subprocess.Popen(
        [sys.executable, "-m", "bls_agent", *arguments],
        env=environment(**env), stdin=program, stdout=program, start_new_session=True,
        stderr=program if err else subprocess.DEVNULL,
    )  # fmt: skip
    os.close(program)
    return watched(process), user


def start_piped(
    *arguments: str, directory: Path | None = None, **env: str
) -> subprocess.Popen[bytes]:
    """Start a command whose output is read by a program; the test's end ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bls_agent", *arguments],
        env=environment(**env), cwd=directory, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    return watched(process)


_STARTED: list[subprocess.Popen[bytes]] = []


def watched(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Keep a process in mind, so that a test that fails leaves nothing running."""
    _STARTED.append(process)
    return process


def end_all() -> None:
    """End what a test has left running."""
    while _STARTED:
        process = _STARTED.pop()
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_at_terminal(
    *arguments: str, columns: int = 80, err: bool = True, **env: str
) -> Ran:
    """Run a command at a terminal of so many columns; everything that it shows."""
    process, user = start_at_terminal(arguments, columns, env, err=err)
    shown = b"".join(read_all(user))
    os.close(user)
    return Ran(process.wait(30), shown)


def show(
    *arguments: str, columns: int = 80, encoding: str = "utf-8", **env: str
) -> Ran:
    """Run a command in this process, at a terminal: quicker than a process of its own.

    Not for two at once: streams and environment belong to the process.
    """
    user, program = open_terminal(columns)
    with ThreadPoolExecutor(1) as reading, _stream_to(program, encoding) as stream:
        shown = reading.submit(read_all, user)
        settings = {"TERM": "xterm", "COLUMNS": str(columns)} | env
        with (
            patch.dict(os.environ, settings),
            patch.object(sys, "stdout", stream),
            patch.object(sys, "stderr", stream),
        ):
            code = main(arguments)
        stream.close()
        out = b"".join(shown.result(30))
    os.close(user)
    return Ran(code, out)


@contextmanager
def _stream_to(program: int, encoding: str) -> Iterator[TextIO]:
    with open(program, "w", encoding=encoding) as stream:
        yield stream


def read_all(user: int) -> list[bytes]:
    """What a terminal shows until the program has gone."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(user, 65_536)
        except OSError:  # EIO: nobody holds the other end any more
            return parts
        if not part:
            return parts
        parts.append(part)


def obeyed(shown: str) -> set[str]:
    """What a terminal would obey, beyond colours, ends of lines, and a line of progress."""
    plain = PROGRESS.sub("", SGR.sub("", shown)).replace("\r\n", "").replace("\n", "")
    return {
        letter
        for letter in plain
        if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp", "Cs")
    }


class Seen:
    """What a terminal has shown so far."""

    def __init__(self, user: int) -> None:
        self._user = user
        self._bytes = b""

    @property
    def text(self) -> str:
        return self._bytes.decode("utf-8", "replace")

    def until(self, wanted: str, after: str = "") -> None:
        """Read until a text is shown, behind the last place of another one."""
        self.read_until(
            lambda text: wanted in (text.rpartition(after)[2] if after else text)
        )

    def until_back(self, server: DevServer, wanted: str) -> None:
        """Kill and restart the server; wait until the outage and then a text are shown."""
        server.kill()
        self.until("没有应答")
        server.restart()
        self.until(wanted, after="没有应答")

    def read_until(self, is_enough: Callable[[str], bool]) -> None:
        end = time.monotonic() + 30
        while not is_enough(self.text):
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self._user], [], [], left)
            assert ready, self.text
            self._bytes += os.read(self._user, 65_536)


@contextmanager
def live_table(*words: str, url: str) -> Iterator[Seen]:
    """A live table in Chinese; q leaves it, and the screen and the cursor are given back."""
    env = {"BLS_REDIS_URL": url, "BLS_LANG": "zh"}
    process, user = start_at_terminal(words, 120, env)
    yield Seen(user)
    os.write(user, b"q")
    rest = b"".join(read_all(user)).decode()
    os.close(user)
    assert process.wait(20) == 0
    assert "\x1b[?1049l" in rest
    assert "\x1b[?25h" in rest
