"""What is sent to many followers, kept once: a bounded ring that each reads at his pace.

A follower is a number, his place. Who is so slow that his place was overwritten learns
how many he missed; he costs the others nothing, and no memory grows for him.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice

import anyio

__all__ = ["Item", "Ring"]


@dataclass(frozen=True)
class Item:
    """One thing that was sent.

    Attributes:
        payload: Its bytes.
        kind: What it is, one word.
    """

    payload: bytes
    kind: str = ""


class Ring:
    """The latest items, and who waits for more.

    Args:
        most: Items that are kept.
        size: Bytes that are kept; the newest item always is.
    """

    def __init__(self, *, most: int, size: int) -> None:
        """Begin empty."""
        self._most = most
        self._size = size
        self._items: deque[Item] = deque()
        self._held = 0
        self._more = anyio.Event()
        self.end = 0  # the place behind the newest item

    @property
    def begin(self) -> int:
        """The place of the oldest item that is kept."""
        return self.end - len(self._items)

    def add(self, *items: Item) -> None:
        """Append, forget what is too much, and wake who waits."""
        for item in items:
            # A copy: what orjson has just written holds on to 4 KiB, however short.
            kept = Item(bytes(memoryview(item.payload)), item.kind)
            self._items.append(kept)
            self._held += len(item.payload)
            self.end += 1
        while len(self._items) > 1 and self._is_too_much():
            self._held -= len(self._items.popleft().payload)
        self._more.set()
        self._more = anyio.Event()

    def _is_too_much(self) -> bool:
        return len(self._items) > self._most or self._held > self._size

    def since(self, place: int, size: float = math.inf) -> tuple[list[Item], int]:
        """Give the items from a place on, and how many before them are forgotten.

        Args:
            place: The follower's.
            size: Bytes that he takes at once; an item that is longer comes alone.
        """
        missed = max(0, self.begin - place)
        found: list[Item] = []
        held = 0
        for item in islice(self._items, place + missed - self.begin, None):
            held += len(item.payload)
            if found and held > size:
                break
            found.append(item)
        return found, missed

    async def wait(self, place: int, timeout: float) -> None:
        """Wait until there is something at a place, but not longer than this."""
        if self.end > place:
            return
        with anyio.move_on_after(timeout):
            await self._more.wait()

    def wake(self) -> None:
        """Let everybody look."""
        self._more.set()
        self._more = anyio.Event()
