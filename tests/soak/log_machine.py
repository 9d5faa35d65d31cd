"""A state machine for the log: buffer and delivery before a sink that fails in every way.

The model is the list at the server and the ids that were put. Whatever happens: the
account is exact, the order is kept, the bounds hold, and nothing stands in the list
twice unless it was counted.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from bls_agent.core.backoff import Backoff
from bls_agent.core.buffer import BoundedBuffer
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runtime.batch_writer import BatchWriter, Written
from tests.soak import try_histories
from tests.soak.virtual_time import VirtualLoop

BATCH = 3  # items; the real number would make every example a long one
LOOP = VirtualLoop()


@dataclass(frozen=True)
class Item:
    """Something to write."""

    number: int
    rank: int
    size: int


class Server:
    """A list, and a link to it on which anything may happen to a batch."""

    def __init__(self) -> None:
        """Begin empty, with a link that works."""
        self.list: list[int] = []
        self.under_way: list[int] | None = None
        self.answer: asyncio.Future[None] | None = None
        self.faulty = False
        self.can_look = True
        self.looks_fail = 0

    def prepare(self, items: Sequence[Item]) -> Sequence[Item]:
        """Make a batch."""
        if self.faulty:
            raise LookupError
        return items

    async def write(self, batch: Sequence[Item]) -> None:
        """Send a batch and wait for what the machine makes of it."""
        self.under_way = [item.number for item in batch]
        self.answer = LOOP.create_future()
        try:
            await self.answer
        finally:
            self.under_way = self.answer = None

    async def check_written(self, batch: Sequence[Item]) -> Written:
        """Look whether a batch stands in the list."""
        await asyncio.sleep(0)
        if self.looks_fail:
            self.looks_fail -= 1
            raise RedisUnavailableError("connection", "gone again")
        if not self.can_look:
            return Written.UNKNOWN
        return Written.YES if batch[-1].number in self.list else Written.NO

    def arrive(self) -> None:
        """Let the batch that is under way reach the list."""
        if self.under_way is not None:
            self.list += self.under_way
            self.under_way = []

    def reply(self, error: Exception | None = None) -> None:
        """Answer the write that waits."""
        if self.answer is not None and not self.answer.done():
            if error is None:
                self.answer.set_result(None)
            else:
                self.answer.set_exception(error)
        LOOP.turn()


class LogMachine(RuleBasedStateMachine):
    """Everything that can happen to records between ``put`` and the list."""

    def __init__(self) -> None:
        """Begin with a running delivery and bounds that are soon met."""
        super().__init__()
        self._patch = patch("bls_agent.runtime.batch_writer.BATCH_ITEMS", BATCH)
        self._patch.start()
        buffer: BoundedBuffer[Item] = BoundedBuffer(4 * BATCH, 2_000, 3)
        self.delivery = BatchWriter(buffer)
        self.server = Server()
        self.numbers = 0
        self.accepted = 0  # by this process: a child counts what it inherits
        self.writer: asyncio.Task[None] | None = None
        self.start()

    def start(self) -> None:
        """Let somebody write, again after a fault of ours as the agent does."""

        async def keep_running() -> None:
            while True:
                with suppress(LookupError):
                    await self.delivery.run(self.server, Backoff())
                await asyncio.sleep(1.0)

        self.writer = LOOP.create_task(keep_running())
        LOOP.turn()

    def cancel(self) -> None:
        """End the writer at whatever it awaits."""
        if self.writer is not None:
            self.writer.cancel()
            with suppress(asyncio.CancelledError):
                LOOP.run(self.writer)  # type: ignore[arg-type]
        self.writer = None

    @rule(count=st.integers(1, 8), rank=st.integers(0, 2), size=st.integers(0, 300))
    def put(self, count: int, rank: int, size: int) -> None:
        """Put some items."""
        for _ in range(count):
            self.numbers += 1
            self.accepted += 1
            self.delivery.put(Item(self.numbers, rank, size))
        LOOP.turn()

    @rule()
    def answers(self) -> None:
        """The batch arrives, and so does its answer."""
        self.server.arrive()
        self.server.reply()

    @rule()
    def is_refused(self) -> None:
        """The batch is surely not written."""
        self.server.reply(RedisUnavailableError("loading", "busy"))

    @rule(arrives=st.booleans(), can_look=st.booleans(), looks_fail=st.integers(0, 1))
    def is_cut(self, arrives: bool, can_look: bool, looks_fail: int) -> None:
        """The link is cut before or after the batch arrives."""
        self.server.can_look, self.server.looks_fail = can_look, looks_fail
        if arrives:
            self.server.arrive()
        self.server.reply(RedisUnavailableError("connection", "cut", ambiguous=True))

    @precondition(lambda self: self.writer is not None)
    @rule(arrives=st.booleans())
    def is_cancelled(self, arrives: bool) -> None:
        """The writer is cancelled in the middle."""
        if arrives:
            self.server.arrive()
        self.cancel()

    @precondition(lambda self: self.writer is None)
    @rule()
    def starts_again(self) -> None:
        """The next writer goes on with what was under way."""
        self.start()

    @rule(seconds=st.sampled_from([0.005, 3.0]))
    def time_passes(self, seconds: float) -> None:
        """Pauses and backoffs end."""
        LOOP.advance(seconds)

    @rule(faulty=st.booleans())
    def has_a_fault(self, faulty: bool) -> None:
        """Batches cannot be made, for a while."""
        self.server.faulty = faulty

    @rule()
    def is_emptied(self) -> None:
        """What waits is dropped."""
        self.delivery.buffer.empty("closed")

    @rule(items=st.integers(1, 8 * BATCH), size=st.integers(200, 4_000))
    def is_resized(self, items: int, size: int) -> None:
        """The bounds change, as they do when an agent is opened."""
        self.delivery.buffer.max_items = items
        self.delivery.buffer.max_bytes = size

    @precondition(lambda self: self.writer is None)
    @rule()
    def is_forked(self) -> None:
        """Go on as the child, which ships nothing of its parent's."""
        self.accepted = self.delivery.buffer.stats().queued
        self.delivery.reset_after_fork()
        self.server.list.clear()

    @rule(timeout=st.sampled_from([0.0, 0.1]))
    def is_flushed(self, timeout: float) -> None:
        """Whoever waits is told the truth."""
        flushed = LOOP.run(self.delivery.flush(timeout))
        assert bool(flushed) is self.delivery.buffer.settled_to(self.accepted)

    @invariant()
    def account_is_exact(self) -> None:
        """Counters and deques say the same, and the counters add up."""
        buffer = self.delivery.buffer
        stats = buffer.stats()
        waiting = sum(map(len, buffer._waiting))
        assert stats.queued == waiting + len(buffer._in_flight) + len(buffer._intake)
        assert stats.accepted == self.accepted
        settled = stats.delivered + sum(stats.dropped.values())
        assert settled + stats.queued == self.accepted

    @invariant()
    def nothing_stands_twice_uncounted(self) -> None:
        """Order is kept; what stands there again was counted, and is a whole batch."""
        counts = Counter(self.server.list)
        repeated = sum(counts.values()) - len(counts)
        assert repeated <= self.delivery.maybe_repeated <= self.delivery.resent
        firsts = list(dict.fromkeys(self.server.list))
        assert firsts == sorted(firsts)
        stats = self.delivery.buffer.stats()
        in_flight = len(self.delivery.buffer._in_flight)
        assert (
            stats.delivered
            <= len(counts)
            <= stats.delivered + in_flight + (stats.dropped.get("fault", 0))
        )

    def teardown(self) -> None:
        """When all is well again everything that was kept arrives."""
        try:
            self.server.faulty = False
            self.server.can_look, self.server.looks_fail = True, 0
            if self.writer is None:
                self.start()
            for _ in range(200):
                if self.delivery.buffer.settled_to(self.accepted):
                    break
                self.answers()
                LOOP.advance(1.0)
            self.account_is_exact()
            self.nothing_stands_twice_uncounted()
            stats = self.delivery.buffer.stats()
            assert stats.queued == stats.queued_bytes == 0
        finally:
            self.cancel()
            self._patch.stop()


def run(examples: int) -> None:
    """Try so many histories of up to 30 steps."""
    try_histories(LogMachine, examples, 30, shrink=True)


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 6_000)
