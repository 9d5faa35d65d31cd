"""An event loop in which waiting takes no time: for machines of thousands of steps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Impatient(selectors.DefaultSelector):
    """Never waits; says how long it should have."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.waited += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock runs as fast as its tasks wait, and stands still while they work."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._impatient = _Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        """Seconds since the beginning, as the tasks see it."""
        return self._impatient.waited

    def turn(self, cycles: int = 12) -> None:
        """Let everything happen that can happen without waiting."""

        async def cycle() -> None:
            for _ in range(cycles):
                await asyncio.sleep(0)

        self.run_until_complete(cycle())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Bring one piece of work to its end."""
        return self.run_until_complete(work)

    def advance(self, seconds: float) -> None:
        """Let time pass for the tasks that wait."""
        self.run_until_complete(asyncio.sleep(seconds))
        self.turn()
