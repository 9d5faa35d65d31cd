"""Going over what is followed, one by one or in batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Self

import anyio

from bls_agent.runs.event_ids import EventId
from bls_agent.runs.events import Followed, StreamEvent

__all__ = ["Iteration"]


class Iteration(ABC):
    """Hands out what was found, and asks for more when nothing is left.

    Attributes:
        place: Id of the event that was given last; the iteration goes on behind it.
    """

    def __init__(self, place: EventId) -> None:
        """Begin behind a place."""
        self.place: EventId = place
        self._is_over = False
        self._ready: list[Followed] = []
        self._at = 0

    @abstractmethod
    async def _next(self, until: float = math.inf) -> list[Followed]:
        """Give what comes next, at least one; empty at the end, or when time is up."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._is_over and self._at == len(self._ready)

    def __aiter__(self) -> Self:
        """Give itself."""
        return self

    async def __anext__(self) -> Followed:
        """Give what comes next; wait for it."""
        if self._at == len(self._ready):
            self._ready, self._at = await self._next(), 0
            if not self._ready:
                raise StopAsyncIteration
        item = self._ready[self._at]
        self._at += 1
        if isinstance(item, StreamEvent):
            self.place = item.id
        return item

    async def batch(self, timeout: float | None = None) -> list[Followed]:
        """Give all that is there; wait for it if nothing is.

        Args:
            timeout: Seconds to wait at most for something new; default: as long as it
                takes. A request that is under way then is finished (the store's
                ``timeout`` bounds it): even with 0 all is given that is there.

        Returns:
            Empty if nothing has come in time, or if nothing more will (``ended``).

        Raises:
            WrongTypeError: The key is no stream.
            RedisRefusedError: Redis refuses for good.
            RedisUnavailableError: The end could not be found (``last_id="$"``).
        """
        items: list[Followed] = self._ready[self._at :]
        self._ready, self._at = [], 0
        if not items:
            until = math.inf if timeout is None else anyio.current_time() + timeout
            items = await self._next(until)
        for item in reversed(items):
            if isinstance(item, StreamEvent):
                self.place = item.id
                break
        return items
