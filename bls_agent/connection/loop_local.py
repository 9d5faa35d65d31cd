"""One object for each event loop, fetched from all threads in which loops run."""

from __future__ import annotations

from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio

__all__ = ["LoopLocal"]

T = TypeVar("T")


class LoopLocal(Generic[T]):
    """Keeps what belongs to an event loop until that loop is closed.

    A kept object mostly refers to its loop, so a weak reference would never end.
    Objects of closed loops are released when the next loop comes.
    """

    def __init__(self) -> None:
        self.forget_parent()

    def forget_parent(self) -> None:
        """In a forked child: drop the parent's loops, and the lock it may hold."""
        self._lock = RLock()  # reentrant: a finaliser may run inside keep()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T]
        self._by_loop = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._by_loop)

    def find(self) -> T | None:
        """Give what belongs to the running event loop, if anything does."""
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        return self._by_loop.get(asyncio.get_running_loop())

    def keep(self, thing: T) -> list[T]:
        """Keep an object for the running event loop; give those of closed loops."""
        import asyncio  # noqa: PLC0415 - as above

        # Other threads' loops come and go: without the lock the dictionary would change
        # while this thread iterates over it.
        with self._lock:
            closed = [loop for loop in list(self._by_loop) if loop.is_closed()]
            left = [self._by_loop.pop(loop) for loop in closed]
            self._by_loop[asyncio.get_running_loop()] = thing
        return left

    def pop(self) -> T | None:
        """Give what belongs to the running event loop, and keep it no longer.

        In a forked child that leaves its parent's block no loop runs, so nothing
        belongs to it.
        """
        import asyncio  # noqa: PLC0415 - as above

        with self._lock, suppress(RuntimeError):
            return self._by_loop.pop(asyncio.get_running_loop(), None)
        return None

    def values(self) -> list[T]:
        """Give what belongs to any event loop."""
        with self._lock:
            return list(self._by_loop.values())
