"""One run of one command: what it was given, and where it writes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bls_agent.ops.cli.progress import Progress, waiting
from bls_agent.ops.cli.screen import Cell, Screen
from bls_agent.ops.texts import Texts

if TYPE_CHECKING:
    from bls_agent.console import Console

__all__ = ["Invocation"]


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """What every command is given first.

    Attributes:
        redis: URL of Redis, or ``None``: ``BLS_REDIS_URL``, or the default.
        json: Whether results are wanted as JSON, one value on each line.
        language: ``zh`` or ``en``.
        texts: The catalogue ``cli`` in that language.
        out: Standard output: results, and nothing else.
        err: Standard error: progress, hints, errors.
    """

    redis: str | None
    json: bool
    language: str
    texts: Texts
    out: Screen
    err: Screen

    def say(self, text: str, /, **values: object) -> str:
        """Give a sentence of the catalogue."""
        return self.texts[text].format(**values)

    def hint(self, text: str, /, **values: object) -> None:
        """Tell people something beside the results, on standard error."""
        self.err.paragraph(self.say(text, **values), "dim")

    def warn(self, text: str, /, **values: object) -> None:
        """Warn on standard error; the command goes on."""
        self.err.paragraph(self.say(text, **values), "yellow")

    def result(self, value: object, *pieces: Cell) -> None:
        """Give a result: the value as JSON, or a line for people."""
        if self.json:
            self.out.json(value)
        else:
            self.out.line(*pieces)

    @contextmanager
    def waiting(self, text: str, /, **values: object) -> Generator[Progress]:
        """Say on a terminal what is waited for, if it takes longer than a second."""
        with waiting(self.err, self.say(text, **values)) as progress:
            yield progress

    @asynccontextmanager
    async def console(self, timeout: float = 5.0) -> AsyncGenerator[Console]:
        """Open the other end of contract 002."""
        from bls_agent.console import Console

        async with Console(self.redis, timeout=timeout) as console:
            yield console

    def export_redis(self) -> None:
        """Let ``--redis`` count for code that reads the environment."""
        if self.redis is not None:
            os.environ["BLS_REDIS_URL"] = self.redis
