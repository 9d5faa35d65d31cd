"""Writes items in the background: in order, in batches, from a buffer with a limit.

Any thread puts items, and one task writes them. An idle task writes an item at once.
Items that arrive during a write become the next batch. A full buffer drops items.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar

import anyio

from bls_agent.core.backoff import Backoff
from bls_agent.core.buffer import BoundedBuffer, Sized
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.runtime.tasks import ThreadSafeEvent

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 128 * 1024
LEAST_BYTES: Final = 8 * 1024  # smallest size limit of a batch, after slow writes
SLOW: Final = 2.0  # seconds of a write after which the next batch is made smaller
PACE: Final = 0.005  # seconds between two writes, unless a batch is full
FAULTS: Final = 3  # failures of the sink's own code after which a batch is dropped

T = TypeVar("T", bound=Sized)


class Written(Enum):
    """Whether an earlier write of a batch was executed."""

    YES = auto()
    NO = auto()
    UNKNOWN = auto()  # the batch is written again and counted in ``maybe_repeated``


class Sink(Protocol[T]):
    """Where batches are written, such as one list in Redis."""

    def prepare(self, items: Sequence[T]) -> Sequence[T]:
        """Return the batch for these items; called once, before the first write."""
        ...

    async def write(self, batch: Sequence[T]) -> None:
        """Write the whole batch; called again after RedisUnavailableError."""
        ...

    async def check_written(self, batch: Sequence[T]) -> Written:
        """Return whether an earlier write of the batch was executed."""
        ...


@dataclass(frozen=True)
class Flushed:
    """The result of a flush.

    Attributes:
        complete: Whether all items accepted before the call are written or dropped.
        delivered: Number of items written since the call.
        dropped: Number of items dropped since the call.
        queued: Number of items that still wait.
    """

    complete: bool
    delivered: int
    dropped: int
    queued: int

    def __bool__(self) -> bool:
        return self.complete


@dataclass(eq=False)
class _Batch(Generic[T]):
    items: Sequence[T]  # as put() received them
    prepared: Sequence[T] | None = None  # the form that the sink writes
    faults: int = 0  # failures of the sink's code, not of Redis, with this batch
    is_ambiguous: bool = False  # whether the batch may be written already
    is_carried: bool = False  # whether an earlier run() has begun to write the batch


class BatchWriter(Generic[T]):
    """Takes items from any thread and writes them in order, in one task.

    An item may be written twice only if :meth:`Sink.check_written` returns ``UNKNOWN``,
    or if a later :meth:`run` continues a batch.
    """

    def __init__(self, buffer: BoundedBuffer[T], *, pace: float = PACE) -> None:
        self.buffer = buffer
        self._most = BATCH_BYTES
        self._pace = pace
        self.resent: int = 0  # items written again after an ambiguous failure
        self.maybe_repeated: int = 0  # resent items that may have been written twice
        self._wakeup = ThreadSafeEvent()
        self._settled = anyio.Event()
        self._batch: _Batch[T] | None = None
        self._next: _Batch[T] | None = None
        self._paced_until = 0.0
        # Number of callers that wait in flush(). If there are any, a batch is written
        # without waiting for more items.
        self._flushing = 0
        self._hurried = anyio.Event()
        self._run: object = None  # identifies the current call of run()
        # Whether Redis refuses the batch permanently; the pauses are then longer.
        self.refused: bool = False

    @property
    def running(self) -> bool:
        return self._run is not None

    def put(self, item: T) -> None:
        """Add an item to the buffer; callable in any thread, never waits or raises."""
        self.buffer.put(item)
        self._wakeup.set()

    async def run(self, sink: Sink[T], backoff: Backoff) -> None:
        """Write until cancelled; the next run finishes a batch that was interrupted."""
        this_run = self._run = object()
        self._wakeup.bind()
        if self._batch is not None:
            self._batch.is_carried = True
        try:
            while True:
                if self._batch is None:
                    if self.buffer:
                        await self._gather()
                        self._batch, self._next = self._next or self._take(), None
                    if self._batch is None:
                        await self._wakeup.wait()
                        continue
                    self._paced_until = anyio.current_time() + self._pace
                await self._settle(sink, backoff, self._batch)
                self._batch = None
                self._announce()
        finally:
            # A run of a closed loop may end later, when it is collected as garbage.
            if this_run is self._run:
                self._run = None
                self._wakeup.unbind()
                self._announce()

    def detach(self) -> None:
        """Reset the state that :meth:`run` has left, because its loop was closed."""
        self._run = None
        self._paced_until = 0.0
        self._flushing, self._hurried = 0, anyio.Event()
        self.refused = False
        self._wakeup.unbind()
        self._settled = anyio.Event()

    def reset_after_fork(self) -> None:
        """Drop all items in a forked child, because the parent writes them."""
        self.detach()
        self.buffer.reset_after_fork()
        self._batch = self._next = None
        self.resent = self.maybe_repeated = 0

    def give_up(self, reason: str) -> int:
        """Drop all items and return their number; only call it while no run is active."""
        batches = [one for one in (self._batch, self._next) if one is not None]
        self._batch = self._next = None
        for batch in batches:
            self.buffer.give_up(batch.items, reason)
        return sum(len(batch.items) for batch in batches) + self.buffer.empty(reason)

    async def _gather(self) -> None:
        """Wait until the pace allows the next write, so that its batch grows."""
        pause = self._paced_until - anyio.current_time()
        if pause > 0 and len(self.buffer) < BATCH_ITEMS and not self._flushing:
            await self._wait_for_flush(pause)

    async def _wait_for_flush(self, seconds: float) -> None:
        self._hurried = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._hurried.wait()

    def _take(self) -> _Batch[T] | None:
        items = self.buffer.take(BATCH_ITEMS, self._most)
        return _Batch(items) if items else None

    async def _settle(self, sink: Sink[T], backoff: Backoff, batch: _Batch[T]) -> None:
        """Write a batch; after 3 failures of the sink's own code drop the batch."""
        try:
            if batch.prepared is None:
                batch.prepared = sink.prepare(batch.items)
            await self._write(sink, backoff, batch, batch.prepared)
        except Exception:
            batch.faults += 1
            if batch.faults == FAULTS:
                self._batch = None
                self.buffer.give_up(batch.items, "fault")
                self._announce()
            raise
        self.buffer.done(batch.items)

    def _prepare_next(self, sink: Sink[T], under_way: int) -> None:
        """During the write of a batch, prepare the next batch if it will be full."""
        # In a small buffer, too few items would be left that may be dropped.
        roomy = self.buffer.max_items >= 4 * BATCH_ITEMS
        waiting = len(self.buffer) - under_way
        if roomy and self._next is None and waiting > BATCH_ITEMS:
            self._next = self._take()
            if self._next is not None:
                with suppress(Exception):  # _settle() prepares again and raises
                    self._next.prepared = sink.prepare(self._next.items)

    async def _write(
        self, sink: Sink[T], backoff: Backoff, batch: _Batch[T], prepared: Sequence[T]
    ) -> None:
        import asyncio  # noqa: PLC0415 - the import takes 20 ms

        loop = asyncio.get_running_loop()
        while True:
            try:
                if batch.is_ambiguous and await self._was_written(
                    sink, batch, prepared
                ):
                    return
                # If the write is cancelled before its reply, Redis may have executed it.
                batch.is_ambiguous = True
                began = anyio.current_time()
                soon = loop.call_soon(self._prepare_next, sink, len(batch.items))
                try:
                    await sink.write(prepared)
                finally:
                    soon.cancel()
            except RedisUnavailableError as error:
                batch.is_ambiguous = error.ambiguous
                permanent = isinstance(error, RedisRefusedError)
                delay = backoff.failed(permanent=permanent)
                if not error.connecting:  # else the gate delays the next try
                    await self._pause(delay, refused=permanent)
            else:
                if backoff.failures:
                    backoff.succeeded()
                self._fit(anyio.current_time() - began)
                return

    def _fit(self, took: float) -> None:
        """Make the next batch smaller after a slow write, to keep the link free."""
        change = self._most // 2 if took > SLOW else self._most * 2
        self._most = min(max(change, LEAST_BYTES), BATCH_BYTES)

    async def _pause(self, delay: float, *, refused: bool) -> None:
        if not refused:
            await anyio.sleep(delay)
            return
        self.refused = True
        self._announce()  # a caller of flush() does not wait for a refused batch
        await self._wait_for_flush(delay)
        self.refused = False

    async def _was_written(
        self, sink: Sink[T], batch: _Batch[T], prepared: Sequence[T]
    ) -> bool:
        try:
            written = await sink.check_written(prepared)
        except RedisUnavailableError as error:
            error.ambiguous = True  # the earlier write may still be executed
            raise
        if written is Written.YES:
            return True
        self.resent += len(prepared)
        if written is Written.UNKNOWN or batch.is_carried:
            self.maybe_repeated += len(prepared)
        return False

    def _announce(self) -> None:
        event, self._settled = self._settled, anyio.Event()
        event.set()

    async def flush(self, timeout: float) -> Flushed:
        """Wait until all accepted items are written or dropped, or until the timeout.

        A batch that Redis has refused is written once more at once. If Redis refuses
        the batch again, this call returns.
        """
        before = self.buffer.stats()
        target, dropped_before = before.accepted, sum(before.dropped.values())
        self._flushing += 1
        self._hurried.set()
        self.refused = False
        try:
            with anyio.move_on_after(timeout):
                while (
                    self.running
                    and not self.refused
                    and not self.buffer.settled_to(target)
                ):
                    await self._settled.wait()
        finally:
            self._flushing = max(0, self._flushing - 1)
        after = self.buffer.stats()
        dropped = sum(after.dropped.values())
        return Flushed(
            complete=self.buffer.settled_to(target),
            delivered=after.delivered - before.delivered,
            dropped=dropped - dropped_before,
            queued=after.queued,
        )
