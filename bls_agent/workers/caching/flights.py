"""What is being computed in one event loop: each value once, for all who want it.

The computing has a task of its own, with the first caller's context variables. So a
caller that is cancelled harms nobody else, and when the last one is, so is the task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio

from bls_agent.tasks import start_background
from bls_agent.workers.caching.outcome import Outcome

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see tasks.py

__all__ = ["COMPUTING", "Errand", "Flight", "Flights", "closes_circle"]


class Errand:
    """A value on its way, whoever computes it.

    Attributes:
        awaits: The errands for which the code inside of this one waits.
    """

    def __init__(self) -> None:
        """Wait for nobody."""
        self.awaits: list[Errand] = []


# The errands inside of which the running code is, the innermost last.
COMPUTING: Final[ContextVar[tuple[Errand, ...]]] = ContextVar("computing", default=())


def closes_circle(errand: Errand) -> bool:
    """Tell whether who waited here for this one would wait for himself."""
    inside, seen, left = COMPUTING.get(), set[int](), [errand]
    while left:
        one = left.pop()
        if one in inside:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            left += one.awaits
    return False


class Flight(Errand):
    """One value on its way: first looked for in Redis, then computed.

    Attributes:
        key: Where it will stand.
        waiting: Who would be disappointed if it was cancelled.
        outcome: What became of it; ``None`` if it was given up: ask anew.
    """

    def __init__(self, key: str, waiting: int) -> None:
        """Nobody computes yet."""
        super().__init__()
        self.key = key
        self.waiting = waiting
        self.outcome: Outcome | None = None
        self.task: asyncio.Task[None] | None = None
        self.landed: asyncio.Future[None] | None = None  # for those who wait


class Flights:
    """The flights of one event loop; each is removed when it lands."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with an empty sky."""
        self._loop = loop
        self._by_key: dict[str, Flight] = {}
        self.early: dict[str, Flight] = {}  # nobody waits for these: there is a value

    def get(self, key: str) -> Flight | None:
        """Give the flight for a key, if there is one."""
        return self._by_key.get(key)

    def announce(self, key: str) -> Flight:
        """Say that a value is looked for."""
        flight = self._by_key[key] = Flight(key, 0)
        return flight

    def announce_early(self, key: str) -> Flight | None:
        """Say that a new value is to come before the old one's end, whoever waits.

        Returns:
            The flight; ``None`` if there is one already.
        """
        if key in self.early:
            return None
        flight = self.early[key] = Flight(key, 1)
        return flight

    def begin(
        self, flight: Flight, compute: Callable[[], Coroutine[Any, Any, Outcome | None]]
    ) -> None:
        """Compute the value in a task of its own."""

        async def fly() -> None:
            COMPUTING.set((*COMPUTING.get(), flight))
            try:
                flight.outcome = await compute()
            finally:
                self.land(flight)

        flight.task = start_background(fly, "bls-agent-cache-flight")

    async def join(self, flight: Flight) -> Outcome | None:
        """Wait for a flight's end.

        Returns:
            What became of it; ``None`` if it was given up: ask anew.
        """
        import asyncio  # noqa: PLC0415, TID251 - waits for a future without owning it

        if flight.landed is None:
            flight.landed = self._loop.create_future()
        flight.waiting += 1
        inside = COMPUTING.get()[-1:]
        for one in inside:
            one.awaits.append(flight)
        try:
            await asyncio.wait([flight.landed])
        except BaseException:
            if flight.waiting == 1 and flight.task is not None:
                await self._abandon(flight, flight.task)
            raise
        finally:
            flight.waiting -= 1
            for one in inside:
                one.awaits.remove(flight)
        return flight.outcome

    async def aclose(self) -> None:
        """Cancel what nobody waits for."""
        for flight in list(self.early.values()):
            if flight.task is not None and flight.waiting == 1:
                await self._abandon(flight, flight.task)

    async def _abandon(self, flight: Flight, task: asyncio.Task[None]) -> None:
        """Cancel what nobody wants any more, and wait until it has cleaned up."""
        import asyncio  # noqa: PLC0415, TID251 - as above

        self.land(flight)
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])

    def land(self, flight: Flight) -> None:
        """Wake all who wait for it."""
        for flights in (self._by_key, self.early):
            if flights.get(flight.key) is flight:
                del flights[flight.key]
        if flight.landed is not None and not flight.landed.done():
            flight.landed.set_result(None)
