"""What is being computed in one event loop: each value once, for all who want it.

The computing has a task of its own, with the first caller's context variables. So a
caller that is cancelled harms nobody else, and when the last one is, so is the task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio

from bls_agent.background import start_background
from bls_agent.workers.caching.outcome import Outcome

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see background.py

__all__ = ["COMPUTING", "Flight", "Flights"]

# The flights inside of which the running code is: who waited for one of those would
# wait for himself.
COMPUTING: Final[ContextVar[tuple[object, ...]]] = ContextVar("computing", default=())


class Flight:
    """One value on its way.

    Attributes:
        waiting: Who would be disappointed if it was cancelled.
    """

    def __init__(self, key: str, waiting: int) -> None:
        """Nobody computes yet."""
        self.key = key
        self.waiting = waiting
        self.outcome: Outcome | None = None
        self.task: asyncio.Task[None] | None = None


class Flights:
    """The flights of one event loop; each is removed when it lands."""

    def __init__(self) -> None:
        """Begin with an empty sky."""
        self._by_key: dict[str, Flight] = {}

    def get(self, key: str) -> Flight | None:
        """Give the flight for a key, if there is one."""
        return self._by_key.get(key)

    def begin(
        self,
        key: str,
        compute: Callable[[], Coroutine[Any, Any, Outcome | None]],
        *,
        waiting: int = 0,
    ) -> Flight:
        """Start one; ``waiting=1`` if it shall go on although nobody joins it."""
        flight = self._by_key[key] = Flight(key, waiting)

        async def fly() -> None:
            COMPUTING.set((*COMPUTING.get(), flight))
            try:
                flight.outcome = await compute()
            finally:
                self._land(flight)

        flight.task = start_background(fly, f"bls-agent-cache {key}")
        return flight

    async def join(self, flight: Flight) -> Outcome | None:
        """Wait for a flight's end.

        Returns:
            What became of it; ``None`` if it was given up: ask anew.
        """
        import asyncio  # noqa: PLC0415, TID251 - waits for a task without owning it

        task = flight.task
        assert task is not None
        flight.waiting += 1
        try:
            if not task.done():
                await asyncio.wait([task])
        except BaseException:
            if flight.waiting == 1:
                await self._abandon(flight, task)
            raise
        finally:
            flight.waiting -= 1
        if not task.cancelled():
            task.result()  # raises what ends a program
        return flight.outcome

    async def _abandon(self, flight: Flight, task: asyncio.Task[None]) -> None:
        """Cancel what nobody wants any more, and wait until it has cleaned up."""
        import asyncio  # noqa: PLC0415, TID251 - as above

        self._land(flight)
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])

    def _land(self, flight: Flight) -> None:
        if self._by_key.get(flight.key) is flight:
            del self._by_key[flight.key]
