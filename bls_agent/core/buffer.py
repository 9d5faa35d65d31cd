"""A bounded buffer that decides what to drop when it is full. No I/O.

Count and bytes are bounded, items in flight included. When it is full, the lowest rank
is dropped first and, within a rank, the oldest item.

``put`` may be called from any thread, signal handler or finaliser: it appends to a
lock-free intake, and a thread that gets the lock drains a few items of it, so that no
thread ever waits for another one. ``take`` drains the rest.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from typing import Final, Generic, Protocol, TypeVar

OVERHEAD_BYTES: Final = 64  # what an item costs beside its payload, about
DRAIN_LIMIT: Final = 16  # items that one put() drains, its own and those of others
SPARE: Final = 4  # a quarter beyond the bounds: room while the lock is held


class Sized(Protocol):
    """An item of a buffer: it knows its size and its rank."""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        ...

    @property
    def rank(self) -> int:
        """0 goes first when the buffer is full."""
        ...


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True)
class BufferStats:
    """Counts of a buffer; ``accepted == delivered + sum(dropped) + queued``."""

    accepted: int  # items ever put
    delivered: int  # items that were written
    dropped: dict[str, int]  # reason → items given up
    queued: int  # items waiting or in flight
    queued_bytes: int  # their bytes


class BoundedBuffer(Generic[T]):
    """Keeps items in order until they are delivered, within a count and a size."""

    def __init__(self, max_items: int, max_bytes: int, ranks: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self._begin(ranks)

    def _begin(self, ranks: int) -> None:
        self._intake: deque[T] = deque()
        self._refused: deque[None] = deque()  # as many as had no room in the intake
        # A signal handler may interrupt this very thread inside: it must not wait for
        # itself, so the lock is reentrant, and must not change what is half changed.
        self._lock = threading.RLock()
        self._inside = False
        self._waiting: tuple[deque[tuple[int, T]], ...] = tuple(
            deque() for _ in range(ranks)
        )
        self._sequence = 0
        self._queued = 0
        self._queued_bytes = 0
        self._in_flight: deque[int] = deque()  # their sequences
        self._accepted = 0
        self._delivered = 0
        self._dropped: Counter[str] = Counter()

    def reset_after_fork(self) -> None:
        """In a forked child: begin afresh and count what was there as dropped."""
        left = len(self._intake) + sum(map(len, self._waiting)) + len(self._in_flight)
        left += len(self._refused)
        self._begin(len(self._waiting))
        self._accepted = self._sequence = left
        if left:
            self._dropped["forked"] = left

    def put(self, item: T) -> None:
        """Add an item; never waits, never raises. Evicts when full."""
        if len(self._intake) > DRAIN_LIMIT and self._is_overfull(item):
            self._try_drain()
            if self._is_overfull(item):
                self._refused.append(None)
                return
        self._intake.append(item)
        self._try_drain()

    def _is_overfull(self, item: T) -> bool:
        """Guess whether the intake has no room for an item; higher ranks have more."""
        length, ranks = len(self._intake), len(self._waiting)
        items = self.max_items // SPARE * (item.rank + 1) // ranks
        size = self.max_bytes // SPARE * (item.rank + 1) // ranks
        coming = length * (item.size + OVERHEAD_BYTES)
        return length > DRAIN_LIMIT and (
            self._queued + length > self.max_items + items
            or self._queued_bytes + coming > self.max_bytes + size
        )

    def __len__(self) -> int:
        """Items waiting or in flight."""
        return self._queued + len(self._intake)

    def take(self, max_items: int, max_bytes: int) -> list[T]:
        """Move the oldest items to "in flight", in the order in which they came.

        More may be taken while others are in flight; they end in that order. A single
        item larger than ``max_bytes`` is taken alone.
        """
        with self._holding():
            self._drain(max_items - self._queued + len(self._in_flight) + DRAIN_LIMIT)
            taken: list[T] = []
            size = 0
            for sequence, item in merge(*self._waiting):  # no two sequences are equal
                size += item.size
                if len(taken) == max_items or (taken and size > max_bytes):
                    break
                self._in_flight.append(sequence)
                taken.append(item)
            for item in taken:
                self._waiting[item.rank].popleft()
            return taken

    def done(self, items: Sequence[T]) -> None:
        """Count items in flight as delivered."""
        with self._holding():
            self._leave(items)
            self._delivered += len(items)

    def give_up(self, items: Sequence[T], reason: str) -> None:
        """Count items in flight as dropped."""
        with self._holding():
            self._leave(items)
            self._dropped[reason] += len(items)

    def empty(self, reason: str) -> int:
        """Drop all that waits (not what is in flight) and give the number of items."""
        with self._holding():
            self._drain_all()
            count = 0
            for rank in self._waiting:
                for _, item in rank:
                    self._queued_bytes -= item.size + OVERHEAD_BYTES
                count += len(rank)
                rank.clear()
            self._queued -= count
            if count:
                self._dropped[reason] += count
            return count

    def settled_to(self, sequence: int) -> bool:
        """Return whether the first so many items have all been delivered or dropped."""
        with self._holding():
            self._drain_all()
            left = [rank[0][0] for rank in self._waiting if rank]
            if self._in_flight:
                left.append(self._in_flight[0])
            return min(left, default=self._sequence + 1) > sequence

    def stats(self) -> BufferStats:
        """Return a consistent snapshot, from anywhere.

        In a signal handler that has interrupted a change it may be one item off.
        """
        with self._lock:
            if self._inside:
                return self._snapshot()
            with self._holding():
                self._drain_all()
                return self._snapshot()

    def _snapshot(self) -> BufferStats:
        refused = len(self._refused)
        accepted = self._accepted + len(self._intake) + refused
        dropped = dict(self._dropped)
        if refused:
            dropped["buffer_full"] = dropped.get("buffer_full", 0) + refused
        queued = accepted - self._delivered - sum(dropped.values())
        return BufferStats(
            accepted, self._delivered, dropped, queued, self._queued_bytes
        )

    @contextmanager
    def _holding(self) -> Generator[None]:
        """Keep out other threads, and the signal handlers of this one."""
        with self._lock:
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def _try_drain(self) -> None:
        """Drain a few items, unless the holder of the lock does so.

        There are four cases:

        1. No thread holds the lock: drain.
        2. Another thread holds it: return, because that thread or the next call drains.
        3. This thread holds it and was interrupted inside of a change, by a signal
           handler or a finaliser: return, because the change must end first.
        4. This thread holds it and was interrupted outside of a change: drain.
        """
        left = DRAIN_LIMIT
        while left > 0 and (self._intake or self._refused):
            try:  # around acquire, too: a signal's exception may come right behind it
                if not self._lock.acquire(blocking=False):
                    return
                if self._inside:
                    return  # this thread was interrupted there, and goes on afterwards
                self._inside = True
                try:
                    left -= self._drain(left)
                finally:
                    self._inside = False
            finally:
                try:  # noqa: SIM105 - each call more would be a place to be interrupted
                    self._lock.release()
                except RuntimeError:  # not ours
                    pass

    def _drain_all(self) -> None:
        while self._intake or self._refused:
            self._drain(self.max_items)

    def _drain(self, most: int) -> int:
        """Move at most so many items out of the intake and give their number."""
        count = 0
        while count < most and self._intake:
            count += 1
            item = self._intake.popleft()
            self._sequence += 1
            self._accepted += 1
            self._queued += 1
            self._queued_bytes += item.size + OVERHEAD_BYTES
            self._waiting[item.rank].append((self._sequence, item))
            while self._queued > self.max_items or self._queued_bytes > self.max_bytes:
                if not self._evict():
                    break  # all of it is in flight
        while count < most and self._refused:
            count += 1
            self._refused.popleft()
            self._sequence += 1
            self._accepted += 1
            self._dropped["buffer_full"] += 1
        return count

    def _evict(self) -> bool:
        for rank in self._waiting:
            if rank:
                _, item = rank.popleft()
                self._queued -= 1
                self._queued_bytes -= item.size + OVERHEAD_BYTES
                self._dropped["buffer_full"] += 1
                return True
        return False

    def _leave(self, items: Sequence[T]) -> None:
        size = sum(item.size for item in items)
        for _ in items:
            self._in_flight.popleft()
        self._queued -= len(items)
        self._queued_bytes -= size + OVERHEAD_BYTES * len(items)
