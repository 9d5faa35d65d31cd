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

Any thread may call ``put``. A signal handler or a finaliser may call ``put`` in the
middle of any other call, because ``put`` makes an item new (or refused) without a lock.
Only the thread that holds the lock makes the other moves.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final, Generic, Protocol, TypeVar

OVERHEAD_BYTES: Final = 64  # estimated memory of an item without its payload
DRAIN_LIMIT: Final = 16  # most items that one put() moves out of the intake
SPARE: Final = 4  # the intake may exceed the limits by at most 1/4


class Sized(Protocol):
    """An item of a buffer, with its size and its rank."""

    @property
    def size(self) -> int:
        """Length of the encoded item in bytes; the buffer limits the sum of lengths."""
        ...

    @property
    def rank(self) -> int:
        """The rank; a full buffer drops items of rank 0 first."""
        ...


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True)
class BufferStats:
    """Counts of a buffer; ``accepted == delivered + sum(dropped) + queued``."""

    accepted: int  # all calls of put(), also those that dropped their item
    delivered: int  # items that were written
    dropped: dict[str, int]  # reason → number of dropped items
    queued: int  # items waiting or in flight
    queued_bytes: int  # bytes of the queued items


class BoundedBuffer(Generic[T]):
    """Keeps items in order until they are delivered; has limits of count and bytes."""

    def __init__(self, max_items: int, max_bytes: int, ranks: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self._begin(ranks)

    def _begin(self, ranks: int) -> None:
        self._lock = threading.RLock()  # reentrant, for signal handlers
        self._changing = threading.Lock()  # locked while a method changes the buffer
        self._intake: deque[T] = deque()
        self._refused: deque[None] = deque()  # counts refused items without a lock
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
        """Add an item without waiting or raising; if the buffer is full, drop one."""
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

        The caller may take more items while others are in flight. The caller then
        reports the items by ``done`` or ``give_up``, in the order in which they were
        taken. An item larger than ``max_bytes`` is taken alone.
        """
        with self._lock, self._changing:
            self._drain(max_items - self._queued + len(self._in_flight) + DRAIN_LIMIT)
            taken: list[T] = []
            size = 0
            # merge() never compares two items, because no two numbers are equal.
            for number, item in merge(*self._waiting):
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
        """Drop the waiting items, but none in flight; return the number dropped."""
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
        """Return whether the first ``number`` items are all delivered or dropped."""
        with self._lock, self._changing:
            self._drain()
            left = [rank[0][0] for rank in self._waiting if rank]
            if self._in_flight:
                left.append(self._in_flight[0])
            return min(left, default=self._accepted + 1) > number

    def stats(self) -> BufferStats:
        """Return consistent counts; if another thread changes the buffer, wait for it.

        In a signal handler that has interrupted a change, the counts may be wrong by
        one.
        """
        with self._lock:
            if self._changing.locked():  # called by a signal handler during a change
                intake, refused = len(self._intake), len(self._refused)
            else:
                with self._changing:
                    self._drain()
                intake = refused = 0  # ignores items that were put after the drain
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

        1. No other thread holds the lock, and no change is going on: drain. Items that
           other threads put meanwhile are drained, too.
        2. Another thread holds the lock: return. A later call drains.
        3. A signal handler or a finaliser has interrupted a change in this thread:
           return, because the change must end first.
        """
        left = DRAIN_LIMIT
        while left > 0 and (self._intake or self._refused):
            if self._changing.locked():
                return
            try:  # includes acquire(), because a signal may raise right after acquire()
                if not self._lock.acquire(blocking=False):
                    return
                with self._changing:
                    left -= self._drain(left)
            finally:
                try:  # noqa: SIM105 - a signal may interrupt the calls of suppress()
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
                    break  # all items are in flight, so that none can be dropped
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
