"""A bounded buffer that decides what to drop when it is full. No I/O.

Count and bytes are bounded, items in flight included. When the buffer is full, the
lowest rank is dropped first and, within a rank, the oldest item.

========== ================== ==========================================================
an item is it stands in       the next state, and who moves the item there
========== ================== ==========================================================
new        ``_intake``        waiting: ``_drain``
refused    ``_refused``       dropped: ``_drain``
waiting    ``_waiting[rank]`` in flight: ``take``; dropped: ``_evict``, ``empty``
in flight  ``_in_flight``     delivered: ``done``; dropped: ``give_up``
delivered  ``_delivered``     none, it is only counted
dropped    ``_dropped``       none, it is only counted
========== ================== ==========================================================

``put`` may be called in any thread, and by a signal handler or a finaliser in the middle
of any other call. It makes an item new (or refused) without a lock. All other moves are
made by the thread that holds the lock.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Sequence
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
        self._lock = threading.RLock()  # a signal handler must not wait for its thread
        self._changing = threading.Lock()  # held inside of a change, never waited for
        self._intake: deque[T] = deque()
        self._refused: deque[None] = deque()  # a count that needs no lock
        self._waiting: tuple[deque[tuple[int, T]], ...] = tuple(
            deque() for _ in range(ranks)
        )  # with the number of each item, from 1
        self._in_flight: deque[int] = deque()  # their numbers
        self._accepted = 0  # the number of the newest item that is not new
        self._queued = 0  # waiting or in flight
        self._queued_bytes = 0
        self._delivered = 0
        self._dropped: Counter[str] = Counter()

    def reset_after_fork(self) -> None:
        """In a forked child: begin afresh and count what was there as dropped."""
        left = len(self._intake) + sum(map(len, self._waiting)) + len(self._in_flight)
        left += len(self._refused)
        self._begin(len(self._waiting))
        self._accepted = left
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
        length = len(self._intake)
        share = 1 + (item.rank + 1) / len(self._waiting) / SPARE
        coming = length * (item.size + OVERHEAD_BYTES)
        return length > DRAIN_LIMIT and (
            self._queued + length > self.max_items * share
            or self._queued_bytes + coming > self.max_bytes * share
        )

    def __len__(self) -> int:
        """Items waiting or in flight."""
        return self._queued + len(self._intake)

    def take(self, max_items: int, max_bytes: int) -> list[T]:
        """Move the oldest items to "in flight", in the order in which they came.

        More may be taken while others are in flight; they end in that order. A single
        item larger than ``max_bytes`` is taken alone.
        """
        with self._lock, self._changing:
            self._drain(max_items - self._queued + len(self._in_flight) + DRAIN_LIMIT)
            taken: list[T] = []
            size = 0
            for number, item in merge(*self._waiting):  # no two numbers are equal
                size += item.size
                if len(taken) == max_items or (taken and size > max_bytes):
                    break
                self._in_flight.append(number)
                taken.append(item)
            for item in taken:
                self._waiting[item.rank].popleft()
            return taken

    def done(self, items: Sequence[T]) -> None:
        """Count items in flight as delivered."""
        with self._lock, self._changing:
            self._leave(items)
            self._delivered += len(items)

    def give_up(self, items: Sequence[T], reason: str) -> None:
        """Count items in flight as dropped."""
        with self._lock, self._changing:
            self._leave(items)
            self._dropped[reason] += len(items)

    def empty(self, reason: str) -> int:
        """Drop the waiting items and return their number; items in flight stay."""
        with self._lock, self._changing:
            self._drain()
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

    def count_accepted(self) -> int:
        """Count the items that were ever put; waits for a change in another thread."""
        with self._lock, self._changing:
            return self._accepted + len(self._intake) + len(self._refused)

    def settled_to(self, number: int) -> bool:
        """Return whether the first so many items have all been delivered or dropped."""
        with self._lock, self._changing:
            self._drain()
            left = [rank[0][0] for rank in self._waiting if rank]
            if self._in_flight:
                left.append(self._in_flight[0])
            return min(left, default=self._accepted + 1) > number

    def stats(self) -> BufferStats:
        """Return a consistent snapshot, from anywhere; waits for a change in another thread.

        In a signal handler that has interrupted a change it may be one item off.
        """
        with self._lock:
            if not self._changing.locked():  # else this thread was interrupted inside
                with self._changing:
                    self._drain()
            refused, dropped = len(self._refused), dict(self._dropped)
            accepted = self._accepted + len(self._intake) + refused
            if refused:
                dropped["buffer_full"] = dropped.get("buffer_full", 0) + refused
            queued = accepted - self._delivered - sum(dropped.values())
            return BufferStats(
                accepted, self._delivered, dropped, queued, self._queued_bytes
            )

    def _try_drain(self) -> None:
        """Drain at most so many items; never waits.

        There are three cases:

        1. No other thread holds the lock, and no change is under way: drain, also what
           comes meanwhile.
        2. Another thread holds the lock: return. A later call drains.
        3. This thread is inside of a change, which a signal handler or a finaliser
           interrupts: return, because the change must end first.
        """
        left = DRAIN_LIMIT
        while left > 0 and (self._intake or self._refused):
            if self._changing.locked():
                return
            try:  # around acquire, too: a signal's exception may come right behind it
                if not self._lock.acquire(blocking=False):
                    return
                with self._changing:
                    left -= self._drain(left)
            finally:
                try:  # noqa: SIM105 - each call more would be a place to be interrupted
                    self._lock.release()
                except RuntimeError:  # another thread's
                    pass

    def _drain(self, most: float = math.inf) -> int:
        """Move at most so many items out of the intake and return their number."""
        count = 0
        while count < most and self._intake:
            count += 1
            item = self._intake.popleft()
            self._accepted += 1
            self._queued += 1
            self._queued_bytes += item.size + OVERHEAD_BYTES
            self._waiting[item.rank].append((self._accepted, item))
            while self._queued > self.max_items or self._queued_bytes > self.max_bytes:
                if not self._evict():
                    break  # all of it is in flight
        while count < most and self._refused:
            count += 1
            self._refused.popleft()
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
        for item in items:
            self._in_flight.popleft()
            self._queued -= 1
            self._queued_bytes -= item.size + OVERHEAD_BYTES
