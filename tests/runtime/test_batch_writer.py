"""How batches are made, seen by a sink that only writes down what it is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain

import anyio
import anyio.lowlevel
import pytest

from bls_agent.core.backoff import Backoff
from bls_agent.core.buffer import BoundedBuffer
from bls_agent.runtime.batch_writer import (
    BATCH_ITEMS,
    FAULTS,
    LEAST_BYTES,
    BatchWriter,
    Written,
)
from tests.harness import eventually


@dataclass(frozen=True)
class Item:
    """Something to deliver."""

    number: int
    size: int = 100
    rank: int = 0


@dataclass
class Notebook:
    """A sink that remembers its batches."""

    batches: list[list[int]] = field(default_factory=list)
    prepared: int = 0
    answer: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint

    def prepare(self, items: Sequence[Item]) -> Sequence[Item]:
        self.prepared += 1
        return items

    async def write(self, batch: Sequence[Item]) -> None:
        self.batches.append([item.number for item in batch])
        await self.answer()

    def numbers(self) -> list[int]:
        return list(chain.from_iterable(self.batches))

    async def check_written(self, _: Sequence[Item]) -> Written:
        return Written.NO


@asynccontextmanager
async def delivering() -> AsyncIterator[tuple[BatchWriter[Item], Notebook]]:
    buffer: BoundedBuffer[Item] = BoundedBuffer(100_000, 100_000_000, 1)
    delivery, notebook = BatchWriter(buffer), Notebook()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, notebook, Backoff())
        await anyio.wait_all_tasks_blocked()
        yield delivery, notebook
        tasks.cancel_scope.cancel()


async def a_few_cycles() -> None:
    """Let the loop turn, which takes much less time than any pause."""
    for _ in range(8):
        await anyio.sleep(0)


async def test_one_item_leaves_at_once_when_nothing_went_before() -> None:
    async with delivering() as (delivery, notebook):
        delivery.put(Item(1))
        await a_few_cycles()
        assert notebook.batches == [[1]]


async def test_items_that_come_one_by_one_leave_together() -> None:
    """Each write costs more than a record: behind one that just left they gather."""
    async with delivering() as (delivery, notebook):
        for number in range(200):
            delivery.put(Item(number))
            await anyio.sleep(0)
        assert await delivery.flush(5.0)
        assert notebook.numbers() == list(range(200))
        assert len(notebook.batches) < 60


async def test_a_full_batch_does_not_wait() -> None:
    async with delivering() as (delivery, notebook):
        delivery.put(Item(0))
        await a_few_cycles()
        for number in range(1, 3 * BATCH_ITEMS + 1):
            delivery.put(Item(number))
        await anyio.wait_all_tasks_blocked()
        assert [len(batch) for batch in notebook.batches[:3]] == [
            1,
            BATCH_ITEMS,
            BATCH_ITEMS,
        ]
        assert await delivery.flush(5.0)
        assert notebook.numbers() == list(range(3 * BATCH_ITEMS + 1))


async def test_a_slow_write_makes_the_next_batch_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a narrow link others wait behind a batch; behind a quick write it grows again."""
    monkeypatch.setattr(
        "bls_agent.runtime.batch_writer.SLOW", -1.0
    )  # seconds: each is slow
    async with delivering() as (delivery, notebook):
        for number in range(400):
            delivery.put(Item(number, size=1_000))
        assert await delivery.flush(5.0)
        lengths = [len(batch) for batch in notebook.batches]
        assert lengths[0] > 100
        assert lengths[-2] == LEAST_BYTES // 1_000
        monkeypatch.setattr("bls_agent.runtime.batch_writer.SLOW", 60.0)
        for number in range(400, 800):
            delivery.put(Item(number, size=1_000))
        assert await delivery.flush(5.0)
        assert max(map(len, notebook.batches[len(lengths) :])) > 100
        assert notebook.numbers() == list(range(800))


def unanswered(
    most: int, *, items: int
) -> tuple[BoundedBuffer[Item], BatchWriter[Item], Notebook]:
    """Make a writer with items in its buffer, and a sink whose writes do not end."""
    buffer: BoundedBuffer[Item] = BoundedBuffer(most, 100_000_000, 1)
    delivery = BatchWriter(buffer)
    for number in range(items):
        delivery.put(Item(number))
    return buffer, delivery, Notebook(answer=anyio.sleep_forever)


async def test_the_next_full_batch_is_made_while_the_answer_is_awaited() -> None:
    """What is made ahead counts as in flight, keeps its place, and survives a break."""
    buffer, delivery, notebook = unanswered(100_000, items=3 * BATCH_ITEMS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, notebook, Backoff())
        await a_few_cycles()
        assert len(notebook.batches) == 1
        assert notebook.prepared == 2
        assert buffer.stats().queued == 3 * BATCH_ITEMS
        assert not buffer.settled_to(1)
        tasks.cancel_scope.cancel()

    second = Notebook()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, second, Backoff())
        await a_few_cycles()
        assert await delivery.flush(5.0)
        tasks.cancel_scope.cancel()
    assert second.numbers() == list(range(3 * BATCH_ITEMS))
    assert buffer.stats().delivered == 3 * BATCH_ITEMS


async def test_a_small_buffer_keeps_what_may_be_dropped() -> None:
    """The next batch is not made ahead, because its items could not be dropped."""
    _, delivery, notebook = unanswered(3 * BATCH_ITEMS, items=3 * BATCH_ITEMS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, notebook, Backoff())
        await a_few_cycles()
        assert (len(notebook.batches), notebook.prepared) == (1, 1)
        tasks.cancel_scope.cancel()


async def test_a_batch_that_a_later_run_sends_again_may_be_there_twice() -> None:
    """The first write may still be executed, although the batch was not found."""
    _, delivery, notebook = unanswered(100, items=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, notebook, Backoff())
        await a_few_cycles()
        tasks.cancel_scope.cancel()
    notebook.answer = anyio.lowlevel.checkpoint
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, notebook, Backoff())
        await a_few_cycles()
        assert await delivery.flush(5.0)
        tasks.cancel_scope.cancel()
    assert notebook.batches == [[0], [0]]
    assert (delivery.resent, delivery.maybe_repeated) == (1, 1)


@dataclass
class Faulty(Notebook):
    """A sink with a fault of ours: it cannot cope with some of the numbers."""

    fails_at: str = "prepare"
    hard: frozenset[int] = frozenset({1, 1_200})

    def prepare(self, items: Sequence[Item]) -> Sequence[Item]:
        if self.fails_at == "prepare":
            self._check(items)
        return super().prepare(items)

    async def write(self, batch: Sequence[Item]) -> None:
        if self.fails_at == "write":
            self._check(batch)
        await super().write(batch)

    def _check(self, items: Sequence[Item]) -> None:
        if not self.hard.isdisjoint(item.number for item in items):
            raise LookupError


@pytest.mark.parametrize("fails_at", ["prepare", "write"])
async def test_a_fault_of_ours_costs_its_own_batch_only(fails_at: str) -> None:
    """What cannot be written is tried again, then counted as dropped; the rest arrives."""
    buffer: BoundedBuffer[Item] = BoundedBuffer(100_000, 100_000_000, 1)
    delivery, sink = BatchWriter(buffer), Faulty(fails_at=fails_at)
    for number in range(2_400):
        delivery.put(Item(number))
    faults = 0

    async def keep_running() -> None:
        nonlocal faults
        while True:
            try:
                await delivery.run(sink, Backoff())
            except LookupError:
                faults += 1
                stats = buffer.stats()
                settled = stats.delivered + sum(stats.dropped.values())
                assert settled + len(buffer) == stats.accepted

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_running)
        await eventually(lambda: buffer.settled_to(2_400))
        delivery.put(Item(9_999))
        await eventually(lambda: buffer.settled_to(2_401))
        tasks.cancel_scope.cancel()
    assert faults == 2 * FAULTS
    stats = buffer.stats()
    assert stats.dropped == {"fault": 2 * BATCH_ITEMS}
    assert stats.queued == 0
    expected = [n for n in range(2_400) if n // BATCH_ITEMS not in (0, 2)]
    assert sink.numbers() == [*expected, 9_999]


async def test_who_flushes_does_not_wait_for_more_to_gather() -> None:
    """Whatever the pace; also what already gathers leaves at once."""
    buffer: BoundedBuffer[Item] = BoundedBuffer(100_000, 100_000_000, 1)
    delivery, notebook = BatchWriter(buffer, pace=3_600.0), Notebook()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, notebook, Backoff())
        delivery.put(Item(1))
        await anyio.wait_all_tasks_blocked()
        for number in (2, 3):
            delivery.put(Item(number))
            await anyio.wait_all_tasks_blocked()
        assert notebook.batches == [[1]]
        assert await delivery.flush(5.0)
        assert notebook.batches == [[1], [2, 3]]
        delivery.put(Item(4))
        await anyio.wait_all_tasks_blocked()
        assert notebook.batches == [[1], [2, 3]]
        tasks.cancel_scope.cancel()


async def test_everything_can_be_given_up() -> None:
    """What waits, what is made ahead and what is under way; each is counted once."""
    buffer: BoundedBuffer[Item] = BoundedBuffer(100_000, 100_000_000, 1)
    delivery, notebook = BatchWriter(buffer), Notebook()
    notebook.answer = anyio.sleep_forever
    for number in range(3 * BATCH_ITEMS):
        delivery.put(Item(number))
    with anyio.move_on_after(0.05):
        await delivery.run(notebook, Backoff())
    assert delivery.give_up("shutdown") == 3 * BATCH_ITEMS
    stats = buffer.stats()
    assert stats.dropped == {"shutdown": 3 * BATCH_ITEMS}
    assert stats.queued == stats.queued_bytes == 0
