"""The bounded buffer: what it keeps, what it gives up first, and that it counts right."""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bls_agent.core.buffer import DRAIN_LIMIT, SPARE, BoundedBuffer, BufferStats

OVERHEAD = 64  # bytes that an item counts beside its size
PLENTY = 1_000_000


@dataclass(frozen=True)
class Item:
    """What a buffer holds, with a name to recognise it."""

    name: object
    rank: int = 0
    size: int = 10


def make(
    max_items: int = PLENTY, max_bytes: int = PLENTY, ranks: int = 5
) -> BoundedBuffer[Item]:
    """Make a buffer that is bounded only where a test says so."""
    return BoundedBuffer(max_items, max_bytes, ranks)


def names(items: list[Item]) -> str:
    """Show items by their names."""
    return "".join(str(item.name) for item in items)


def take_all(buffer: BoundedBuffer[Item]) -> str:
    """Take everything and show it."""
    return names(buffer.take(PLENTY, PLENTY))


def test_a_snapshot_stays_as_it_was() -> None:
    """Later drops do not change the numbers that somebody was given."""
    buffer = make(max_items=1)
    buffer.put(Item("a"))
    buffer.put(Item("b"))
    before = buffer.stats()
    buffer.put(Item("c"))
    assert before.dropped == {"buffer_full": 1}


class Interrupting(Item):
    """An item at whose inspection the buffer is used again, as a finaliser might."""

    def __init__(self, at: str, interrupt: Callable[[], None]) -> None:
        """Remember at which look to interrupt, once."""
        super().__init__("a", rank=1)
        object.__setattr__(self, "pending", {at: interrupt})

    def __getattribute__(self, name: str) -> object:
        """Interrupt at the first look at one attribute."""
        pending: dict[str, Callable[[], None]] = object.__getattribute__(
            self, "pending"
        )
        if interrupt := pending.pop(name, None):
            interrupt()
        return object.__getattribute__(self, name)


def without_waiting(action: Callable[[], object]) -> None:
    """Do something in a thread, and fail if it waits for itself."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()


@pytest.mark.parametrize("at", ["size", "rank"])
def test_put_interrupts_put(at: str) -> None:
    """A put inside of a put, as in a signal handler, neither waits nor is lost."""
    buffer = make()
    item = Interrupting(at, lambda: buffer.put(Item("b")))
    without_waiting(lambda: buffer.put(item))
    assert len(buffer) == 2
    assert take_all(buffer) == "ab"


def test_put_interrupts_take() -> None:
    """A put while items are being taken neither waits nor is lost."""
    buffer = make()
    buffer.put(item := Interrupting("never", lambda: None))
    object.__setattr__(item, "pending", {"size": lambda: buffer.put(Item("b"))})
    taken: list[Item] = []
    without_waiting(lambda: taken.extend(buffer.take(PLENTY, PLENTY)))
    assert names(taken) == "a"
    assert len(buffer) == 2
    assert take_all(buffer) == "b"


def check_account(buffer: BoundedBuffer[Item]) -> BufferStats:
    """Hold the counters against what really lies in the buffer, at this very moment.

    Other threads go on putting: what they put while we look makes two counts differ.
    """
    with buffer._lock, buffer._changing:  # the intake may grow, nothing else changes
        sorted_in = sum(map(len, buffer._waiting)) + len(buffer._in_flight)
        at_least = sorted_in + len(buffer._intake)
        stats = buffer.stats()  # as a signal handler would ask: nothing is sorted in
        at_most = sorted_in + len(buffer._intake)
    assert at_least <= stats.queued <= at_most
    assert (
        stats.accepted == stats.delivered + sum(stats.dropped.values()) + stats.queued
    )
    return stats


def test_many_threads_lose_nothing() -> None:
    """Under eight threads the account is exact and each thread's order is kept."""
    buffer = make(max_items=2_000)
    threads, count = 8, 4_000
    written: list[Item] = []
    closing = threading.Event()

    def produce(thread: int) -> None:
        for number in range(count):
            buffer.put(Item((thread, number), rank=number % 5))

    def consume() -> None:
        # Asked in this order: len() is exact once the producers have ended.
        while not closing.is_set() or len(buffer):
            if batch := buffer.take(100, PLENTY):
                written.extend(batch)
                buffer.done(batch)
            check_account(buffer)
            # What came while the account was made stands in the intake, which has some
            # room of its own.
            assert buffer.stats().queued <= 2_000 + 2_000 // SPARE + threads

    producers = [threading.Thread(target=produce, args=(n,)) for n in range(threads)]
    consumer = threading.Thread(target=consume)
    for thread in (consumer, *producers):
        thread.start()
    for thread in producers:
        thread.join()
    closing.set()
    consumer.join()

    dropped = buffer.stats().dropped.get("buffer_full", 0)
    assert buffer.stats() == BufferStats(
        threads * count,
        len(written),
        {"buffer_full": dropped} if dropped else {},
        0,
        0,
    )
    assert len(written) + dropped == threads * count
    seen: dict[int, int] = {}
    for item in written:
        assert isinstance(item.name, tuple)
        thread, number = item.name
        assert seen.get(thread, -1) < number
        seen[thread] = number


def interrupt_everywhere(work: Callable[[], None], do: Callable[[], None]) -> bool:
    """Run work of the buffer and do something between any two of its instructions.

    That is what a signal handler can do to the thread in which it runs.

    Returns:
        Whether it came to an end: who waits for itself does not.
    """

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "buffer" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event in ("opcode", "line"):  # early releases of 3.12 give lines alone
            do()
        return trace

    def run() -> None:
        sys.settrace(trace)
        work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def use_everything(buffer: BoundedBuffer[Item]) -> None:
    """Put, evict, deliver, give up and drop."""
    for number in range(5):
        buffer.put(Item(number, number % 2))
    flying = buffer.take(2, PLENTY)
    buffer.settled_to(3)
    buffer.done(flying)
    buffer.put(Item("more"))
    buffer.give_up(buffer.take(1, PLENTY), "refused")
    buffer.stats()
    buffer.empty("closed")


def test_a_snapshot_in_the_middle_of_anything() -> None:
    """A signal handler may ask for the counters at any moment: they add up."""
    buffer = make(max_items=4)
    seen: list[BufferStats] = []
    assert interrupt_everywhere(
        lambda: use_everything(buffer), lambda: seen.append(buffer.stats())
    )
    assert len(seen) > 100
    for stats in seen:
        settled = stats.delivered + sum(stats.dropped.values())
        assert stats.accepted == settled + stats.queued
        assert 0 <= stats.queued <= 5
    assert buffer.stats() == BufferStats(
        6, 2, {"buffer_full": 1, "refused": 1, "closed": 2}, 0, 0
    )


def test_an_item_in_the_middle_of_anything() -> None:
    """A signal handler may log and look at any moment: nothing is lost or counted twice."""
    total = 0
    for first in range(0, 200, 2):
        buffer = make()
        moments = count = 0

        def interrupt(buffer: BoundedBuffer[Item] = buffer, first: int = first) -> None:
            nonlocal moments, count
            moments += 1
            if moments % 200 == first:  # not faster than items can be sorted in
                count += 1
                buffer.put(Item(f"signal {count}"))
                buffer.stats()

        assert interrupt_everywhere(partial(use_everything, buffer), interrupt)
        total += count
        assert buffer.stats().accepted == 6 + count
        buffer.empty("closed")
        assert buffer.stats().queued == buffer.stats().queued_bytes == 0
    assert total > 500  # the first one may be interrupted at lines alone


def test_what_a_forked_child_inherits() -> None:
    """It is given up and counted, whatever another thread was doing at that moment."""
    buffer = make()
    for name in "abcd":
        buffer.put(Item(name))
    buffer.done(buffer.take(1, PLENTY))
    buffer.take(1, PLENTY)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with buffer._lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    buffer.put(Item("e"))
    buffer.reset_after_fork()
    assert buffer.stats() == BufferStats(4, 0, {"forked": 4}, 0, 0)
    assert buffer.settled_to(4)
    buffer.put(Item("f"))
    assert not buffer.settled_to(5)
    assert take_all(buffer) == "f"
    done.set()
    holder.join()


class BufferModel(RuleBasedStateMachine):
    """The buffer beside a list that is searched from one end to the other."""

    def __init__(self) -> None:
        """Begin empty, with bounds that are soon met."""
        super().__init__()
        self.max_items, self.max_bytes = 5, 5 * 100
        self.buffer = make(self.max_items, self.max_bytes, ranks=3)
        self.waiting: list[Item] = []
        self.flying: deque[Item] = deque()
        self.accepted = self.delivered = 0
        self.dropped: Counter[str] = Counter()

    def cost(self) -> int:
        """Bytes that wait or are in flight, as the buffer counts them."""
        return sum(item.size + OVERHEAD for item in (*self.waiting, *self.flying))

    def is_full(self) -> bool:
        """Whether a bound is exceeded."""
        count = len(self.waiting) + len(self.flying)
        return count > self.max_items or self.cost() > self.max_bytes

    @rule(rank=st.integers(0, 2), size=st.integers(0, 200))
    def put(self, rank: int, size: int) -> None:
        """Put an item and give up, one by one, what has no room."""
        self.accepted += 1
        item = Item(self.accepted, rank, size)
        self.buffer.put(item)
        self.waiting.append(item)
        while self.is_full() and self.waiting:
            self.waiting.remove(min(self.waiting, key=lambda one: one.rank))
            self.dropped["buffer_full"] += 1

    @rule(max_items=st.integers(1, 4), max_bytes=st.integers(1, 300))
    def take(self, max_items: int, max_bytes: int) -> None:
        """Take a batch."""
        count, size = 0, 0
        for item in self.waiting[:max_items]:
            size += item.size
            if count and size > max_bytes:
                break
            count += 1
        expected, self.waiting = self.waiting[:count], self.waiting[count:]
        assert self.buffer.take(max_items, max_bytes) == expected
        self.flying.extend(expected)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), delivered=st.booleans())
    def settle(self, data: st.DataObject, delivered: bool) -> None:
        """Settle the first of what is in flight."""
        count = data.draw(st.integers(1, len(self.flying)))
        items = [self.flying.popleft() for _ in range(count)]
        if delivered:
            self.buffer.done(items)
            self.delivered += count
        else:
            self.buffer.give_up(items, "refused")
            self.dropped["refused"] += count

    @rule()
    def empty(self) -> None:
        """Drop all that waits."""
        assert self.buffer.empty("closed") == len(self.waiting)
        self.dropped["closed"] += len(self.waiting)
        self.waiting.clear()

    @invariant()
    def account_is_exact(self) -> None:
        """The counters, the length and the bounds agree with the model."""
        queued = len(self.waiting) + len(self.flying)
        assert self.buffer.stats() == BufferStats(
            self.accepted, self.delivered, dict(+self.dropped), queued, self.cost()
        )
        assert self.accepted == self.delivered + self.dropped.total() + queued
        assert len(self.buffer) == queued <= self.max_items
        assert self.cost() <= self.max_bytes
        assert len(self.buffer._in_flight) == len(self.flying)
        check_account(self.buffer)


TestBufferModel = BufferModel.TestCase
TestBufferModel.settings = settings()


@contextmanager
def held_up(buffer: BoundedBuffer[Item]) -> Iterator[None]:
    """Have another thread hold the lock, as one that lost the processor inside."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with buffer._lock:
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        yield
    finally:
        release.set()
        thread.join()


@pytest.mark.parametrize("bounds", [(1_000, PLENTY), (PLENTY, 1_000 * (10 + OVERHEAD))])
def test_what_nobody_can_try_drain_is_bounded_too(bounds: tuple[int, int]) -> None:
    """A quarter more than the bounds at most, higher ranks have more room, all counts."""
    buffer = make(*bounds, ranks=5)
    with held_up(buffer):
        for rank, most in enumerate((1_050, 1_100, 1_150, 1_200, 1_250)):
            for number in range(2_000):
                buffer.put(Item(number, rank))
            assert most - 1 <= len(buffer) <= most + 1
        assert len(buffer) <= 1_251
    after = buffer.stats()
    assert after.accepted == 10_000
    assert after.queued == 1_000
    assert after.dropped == {"buffer_full": 9_000}
    assert buffer.empty("closed") == 1_000
    assert buffer.settled_to(10_000)


def test_who_puts_sorts_in_a_few() -> None:
    """What has gathered while somebody was held up is not paid for by the next put."""
    buffer = make()
    with held_up(buffer):
        for number in range(1_000):
            buffer.put(Item(number))
    buffer.put(Item("next"))
    assert len(buffer._intake) == 1_001 - DRAIN_LIMIT
    assert names(buffer.take(20, PLENTY)) == "".join(map(str, range(20)))
    assert len(buffer._intake) > 900, "who takes sorts in what it takes, about"
    assert take_all(buffer).endswith("998999next")
