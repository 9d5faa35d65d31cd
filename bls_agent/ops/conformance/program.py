"""Starts and ends the program that is judged."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Final, Self

import anyio
from anyio.abc import TaskGroup

KEPT: Final = 4_096  # bytes of the output that a report quotes
END: Final = 10.0  # seconds that a program may take to end
LOOK: Final = 0.02  # seconds between two looks at a program that should end


class Program:
    """The program of ``--cmd``, which may be started several times.

    At the end of an ``async with`` block the program is killed.

    Args:
        command: The command line, with the placeholders ``{redis}``, ``{project}``.
        values: The values of the placeholders, which the program also gets as
            variables of its environment: ``BLS_REDIS_URL`` and ``BLS_PROJECT``.
    """

    def __init__(self, command: str, values: Mapping[str, str]) -> None:
        self._words = [_fill(word, values) for word in shlex.split(command)]
        self._environ = {
            **os.environ,
            "BLS_REDIS_URL": values["redis"],
            "BLS_PROJECT": values["project"],
            "PYTHONUNBUFFERED": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._group: int | None = None  # the process group, until it gets SIGKILL
        self._output = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.kill()

    @property
    def exit_code(self) -> int | None:
        """The exit code; ``None`` while the program runs or before it was started."""
        return self._process.poll() if self._process else None

    @property
    def output(self) -> str:
        """The end of the program's output."""
        return self._output.decode("utf-8", "replace").strip()

    def start(self, tasks: TaskGroup) -> None:
        """Start the program, and a task that reads its output.

        asyncio's own start is not used: when Ctrl-C cancels it, asyncio kills the program,
        but not the processes that the program has started.

        Raises OSError if the program cannot be started.
        """
        self._process = subprocess.Popen(  # noqa: S603 - the command line of the user
            self._words, env=self._environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._group = self._process.pid
        if self._process.stdout is not None:
            tasks.start_soon(self._read, self._process.stdout)

    async def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while True:
                await anyio.wait_readable(stream.fileno())
                data = os.read(stream.fileno(), KEPT)
                if not data:
                    return
                self._output = (self._output + data)[-KEPT:]

    async def wait(self) -> int | None:
        """Return the exit code when the program ends, or ``None`` after ten seconds."""
        if self._process is not None:
            with anyio.move_on_after(END):
                while self._process.poll() is None:  # noqa: ASYNC110 - no event tells it
                    await anyio.sleep(LOOK)
        return self.exit_code

    async def stop(self) -> int | None:
        """Send SIGTERM, and return the exit code, or ``None`` if SIGKILL was needed."""
        self._signal(signal.SIGTERM)
        ended = await self.wait()
        if ended is None:
            await self.kill()
        return ended

    async def kill(self) -> None:
        """Kill the program, and what it has started, even if the program has ended."""
        self._signal(signal.SIGKILL)
        self._group = None
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the program and to the processes that it has started."""
        if self._group is not None:
            # PermissionError: macOS, when all processes of the group have ended
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
