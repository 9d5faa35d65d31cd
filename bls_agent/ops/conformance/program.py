"""Starts and ends the program that is judged."""

from __future__ import annotations

import os
import shlex
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup

KEPT: Final = 4_096  # bytes of the output that a report quotes
END: Final = 10.0  # seconds that a program may take to end


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
        self._process: Process | None = None
        self._output: deque[bytes] = deque(maxlen=64)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.kill()

    @property
    def exit_code(self) -> int | None:
        """The exit code; ``None`` while the program runs or before it was started."""
        return self._process.returncode if self._process else None

    @property
    def output(self) -> str:
        """The end of the program's output."""
        return b"".join(self._output)[-KEPT:].decode("utf-8", "replace").strip()

    async def start(self, tasks: TaskGroup) -> None:
        """Start the program, and a task for each stream of its output.

        Raises OSError if the program cannot be started.
        """
        with anyio.CancelScope(shield=True):  # else nobody would kill a begun process
            process = self._process = await anyio.open_process(
                self._words, env=self._environ, start_new_session=True
            )
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    tasks.start_soon(self._read, stream)

    async def _read(self, stream: ByteReceiveStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for data in stream:
                self._output.append(data)

    async def wait(self) -> int | None:
        """Return the exit code when the program ends, or ``None`` after ten seconds."""
        if self._process is not None:
            with anyio.move_on_after(END):
                return await self._process.wait()
        return None

    async def stop(self) -> int | None:
        """Send SIGTERM, and return the exit code, or ``None`` if SIGKILL was needed."""
        self._signal(signal.SIGTERM)
        ended = await self.wait()
        if ended is None:
            await self.kill()
        return ended

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the program and to the processes that it has started."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
