"""A bounded buffer that decides what to drop when it is full. No I/O.

The number of items and their bytes are bounded, including items in flight. When the
buffer is full, the lowest rank is dropped first and, within a rank, the oldest item.

========== ================== ==========================================================
state      attribute          next state, and the method that moves the item there
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

OVERHEAD_BYTES: Final = 64  # estimated memory of an item beside its payload
DRAIN_LIMIT: Final = 16  # items that one put() drains, from any thread
SPARE: Final = 4  # the intake may exceed the limits by 1/4


class Sized(Protocol):
    """An item of a buffer, with its size and its rank."""

    @property
    def size(self) -> int:
        """Length of the encoded item in bytes, which the limits of the buffer count."""
        ...

    @property
    def rank(self) -> int:
        """The rank; items of rank 0 are dropped first when the buffer is full."""
        ...


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True)
class BufferStats:
    """Counts of a buffer; ``accepted == delivered + sum(dropped) + queued``."""

    accepted: int  # items ever put
    delivered: int  # items that were written
    dropped: dict[str, int]  # reason → number of dropped items
    queued: int  # items waiting or in flight
    queued_bytes: int  # bytes of the queued items


class BoundedBuffer(Generic[T]):
    """Keeps items in order until they are delivered; limits count and bytes."""

    def __init__(self, max_items: int, max_bytes: int, ranks: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self._begin(ranks)

    def _begin(self, ranks: int) -> None:
        self._lock = threading.RLock()  # reentrant, for signal handlers
        self._changing = threading.Lock()  # held during a change
        self._intake: deque[T] = deque()
        self._refused: deque[None] = deque()  # its length is a count that needs no lock
        self._waiting: tuple[deque[tuple[int, T]], ...] = tuple(
            deque() for _ in range(ranks)
        )  # for each rank, the items with their numbers, from 1
        self._in_flight: deque[int] = deque()  # numbers of the items in flight
        self._accepted = 0  # number of the newest item that has left the intake
        self._queued = 0  # number of items waiting or in flight
        self._queued_bytes = 0
        self._delivered = 0
        self._dropped: Counter[str] = Counter()

    def reset_after_fork(self) -> None:
        """In a forked child, empty the buffer and count its items as dropped."""
        left = len(self._intake) + sum(map(len, self._waiting)) + len(self._in_flight)
        left += len(self._refused)
        self._begin(len(self._waiting))
        self._accepted = left
        if left:
            self._dropped["forked"] = left

    def put(self, item: T) -> None:
        """Add an item without waiting or raising; a full buffer drops an item."""
        if len(self._intake) > DRAIN_LIMIT and self._is_overfull(item):
            self._try_drain()
            if self._is_overfull(item):
                self._refused.append(None)
                return
        self._intake.append(item)
        self._try_drain()

    def _is_overfull(self, item: T) -> bool:
        """Estimate whether the intake is full; its limit is higher for higher ranks."""
        length = len(self._intake)
        share = 1 + (item.rank + 1) / len(self._waiting) / SPARE
        coming = length * (item.size + OVERHEAD_BYTES)
        return length > DRAIN_LIMIT and (
            self._queued + length > self.max_items * share
            or self._queued_bytes + coming > self.max_bytes * share
        )

    def __len__(self) -> int:
        """Return the number of items that are new, waiting or in flight."""
        return self._queued + len(self._intake)

    def take(self, max_items: int, max_bytes: int) -> list[T]:
        """Move the oldest items to "in flight", and return them in order of arrival.

        More items may be taken while others are in flight. Items must be delivered or
        dropped in the order in which they were taken. An item larger than ``max_bytes``
        is taken alone.
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
        with self._lock, self._changing:
            self._leave(items)
            self._delivered += len(items)

    def give_up(self, items: Sequence[T], reason: str) -> None:
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

    def settled_to(self, number: int) -> bool:
        """Return whether the first ``number`` items were all delivered or dropped."""
        with self._lock, self._changing:
            self._drain()
            left = [rank[0][0] for rank in self._waiting if rank]
            if self._in_flight:
                left.append(self._in_flight[0])
            return min(left, default=self._accepted + 1) > number

    def stats(self) -> BufferStats:
        """Return consistent counts; waits for another thread that changes the buffer.

        In a signal handler that has interrupted a change, the counts may be wrong by
        one.
        """
        with self._lock:
            if self._changing.locked():  # this thread was interrupted inside a change
                intake, refused = len(self._intake), len(self._refused)
            else:
                with self._changing:
                    self._drain()
                intake = refused = 0  # items that were put since then count later
            dropped = dict(self._dropped)
            accepted = self._accepted + intake + refused
            if refused:
                dropped["buffer_full"] = dropped.get("buffer_full", 0) + refused
            queued = accepted - self._delivered - sum(dropped.values())
            return BufferStats(
                accepted, self._delivered, dropped, queued, self._queued_bytes
            )

    def _try_drain(self) -> None:
        """Move at most ``DRAIN_LIMIT`` items out of the intake, without waiting.

        There are three cases:

        1. No other thread holds the lock, and no change is under way: drain, also items
           that arrive meanwhile.
        2. Another thread holds the lock: return. A later call drains.
        3. This thread is inside of a change, which a signal handler or a finaliser
           interrupts: return, because the change must end first.
        """
        left = DRAIN_LIMIT
        while left > 0 and (self._intake or self._refused):
            if self._changing.locked():
                return
            try:  # around acquire, too: a signal may raise right after it
                if not self._lock.acquire(blocking=False):
                    return
                with self._changing:
                    left -= self._drain(left)
            finally:
                try:  # noqa: SIM105 - each further call could be interrupted
                    self._lock.release()
                except RuntimeError:  # another thread holds the lock
                    pass

    def _drain(self, most: float = math.inf) -> int:
        """Move at most ``most`` items out of the intake and return their number."""
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
                    break  # all items are in flight
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
