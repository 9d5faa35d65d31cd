"""When each of many things is due: decisions only, nobody sleeps here."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

__all__ = ["Schedule"]

T = TypeVar("T")


class Schedule(Generic[T]):
    """Due times of many things, each with one of them; time is whatever the caller says."""

    def __init__(self) -> None:
        """Nothing is due."""
        self._at: dict[int, tuple[float, T]] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._at)

    def put(self, thing: T, at: float) -> None:
        """Have a thing due at a time, instead of at its former one."""
        self._at[id(thing)] = (at, thing)
        heapq.heappush(self._heap, (at, id(thing)))
        if len(self._heap) > 2 * len(self._at) + 64:  # former times
            self._heap = [(when, number) for number, (when, _) in self._at.items()]
            heapq.heapify(self._heap)

    def hasten(self, thing: T, at: float) -> None:
        """Have a thing due at a time, unless it is due earlier."""
        known = self._at.get(id(thing))
        if known is None or at < known[0]:
            self.put(thing, at)

    def remove(self, thing: T) -> None:
        """Have a thing not due at all."""
        self._at.pop(id(thing), None)

    def take(self, until: float, most: int) -> list[T]:
        """Take out what is due by a time, the earliest first.

        Args:
            until: What is due later stays.
            most: How many at most.
        """
        taken: list[T] = []
        while len(taken) < most and (first := self.next()) is not None:
            if first > until:
                break
            _, number = heapq.heappop(self._heap)
            taken.append(self._at.pop(number)[1])
        return taken

    def next(self) -> float | None:
        """Give the earliest due time; ``None`` if nothing is due ever."""
        while self._heap:
            at, number = self._heap[0]
            known = self._at.get(number)
            if known is not None and known[0] == at:
                return at
            heapq.heappop(self._heap)
        return None
