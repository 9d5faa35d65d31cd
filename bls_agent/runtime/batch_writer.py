"""Bounded, ordered, batched writing in the background.

Items are put from any thread and written by one task: at once when it is idle, in
batches while a write is under way. The buffer decides what is dropped when it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import anyio

from bls_agent.core.backoff import Backoff
from bls_agent.core.buffer import BoundedBuffer, Sized
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.runtime.tasks import ThreadSafeEvent

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 128 * 1024
LEAST_BYTES: Final = 8 * 1024  # of a batch over the narrowest link
SLOW: Final = 2.0  # seconds that a write may take until the next batch is smaller
PACE: Final = 0.005  # seconds from one write to the next, unless a batch is full
FAULTS: Final = 3  # of ours until a batch is given up: other batches wait behind it

T = TypeVar("T", bound=Sized)


class Sink(Protocol[T]):
    """The destination of batches."""

    def prepare(self, items: Sequence[T]) -> Sequence[T]:
        """Make a batch of the items, once, before the first try to write it."""
        ...

    async def write(self, batch: Sequence[T]) -> None:
        """Write the whole batch, or raise RedisUnavailableError to be called again."""
        ...

    async def was_written(self, batch: Sequence[T]) -> bool | None:
        """Find out whether an earlier write of the batch was executed after all.

        ``None`` if that cannot be known: it is written again and counted.
        """
        ...


@dataclass(frozen=True)
class Flushed:
    """What a flush achieved.

    Attributes:
        complete: Everything that was accepted before the call is written or given up.
        delivered: Items written since the call.
        dropped: Items given up since the call.
        queued: Items that still wait.
    """

    complete: bool
    delivered: int
    dropped: int
    queued: int

    def __bool__(self) -> bool:
        return self.complete


@dataclass(eq=False)
class _Batch(Generic[T]):
    items: Sequence[T]  # as they were put
    prepared: Sequence[T] | None = None  # made by the sink, to be written
    faults: int = 0  # failures of ours, no failure of Redis, that it has met
    is_ambiguous: bool = False  # it may be written already
    is_carried: bool = False  # another run has begun it, with another sink


class BatchWriter(Generic[T]):
    """Takes items from any thread and writes them in order, from one task.

    Nothing is written twice, except where :meth:`Sink.was_written` cannot find out.
    """

    def __init__(self, buffer: BoundedBuffer[T], *, pace: float = PACE) -> None:
        self.buffer = buffer
        self._most = BATCH_BYTES
        self._pace = pace
        self.resent = 0  # items written again after an ambiguous failure
        self.maybe_repeated = 0  # of these, items that may have been written twice
        self._wakeup = ThreadSafeEvent()
        self._settled = anyio.Event()
        self._batch: _Batch[T] | None = None
        self._next: _Batch[T] | None = None
        self._paced_until = 0.0
        self._flushing = 0  # callers that wait: no batch grows then
        self._hurried = anyio.Event()
        self._run: object = None  # the run that is at work
        # Whether Redis refuses the batch for good; it is tried again slowly.
        self.refused = False

    @property
    def running(self) -> bool:
        return self._run is not None

    def put(self, item: T) -> None:
        """Take an item; never waits, never raises, from any thread."""
        self.buffer.put(item)
        self._wakeup.set()

    async def run(self, sink: Sink[T], backoff: Backoff) -> None:
        """Write until cancelled; what was under way is finished by the next run."""
        this_run = self._run = object()
        self._wakeup.bind()
        if self._batch is not None:
            self._batch.is_carried = True
        try:
            while True:
                if self._batch is None:
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
            if this_run is self._run:  # else collected with a loop that was closed
                self._run = None
                self._wakeup.unbind()
                self._announce()

    def detach(self) -> None:
        """Reset what belonged to a closed loop, in which :meth:`run` was."""
        self._run = None
        self._paced_until = 0.0
        self._flushing, self._hurried = 0, anyio.Event()
        self.refused = False
        self._wakeup.unbind()
        self._settled = anyio.Event()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: what waits is written by the parent."""
        self.detach()
        self.buffer.reset_after_fork()
        self._batch = self._next = None
        self.resent = self.maybe_repeated = 0

    def give_up(self, reason: str) -> int:
        """Drop what waits and what is under way, while none is written; return the number."""
        batches = [one for one in (self._batch, self._next) if one is not None]
        self._batch = self._next = None
        for batch in batches:
            self.buffer.give_up(batch.items, reason)
        return sum(len(batch.items) for batch in batches) + self.buffer.empty(reason)

    async def _gather(self) -> None:
        """Let a batch grow while the one before has only just left."""
        pause = self._paced_until - anyio.current_time()
        if pause > 0 and 0 < len(self.buffer) < BATCH_ITEMS and not self._flushing:
            await self._wait_for_flush(pause)

    async def _wait_for_flush(self, seconds: float) -> None:
        self._hurried = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._hurried.wait()

    def _take(self) -> _Batch[T] | None:
        items = self.buffer.take(BATCH_ITEMS, self._most)
        return _Batch(items) if items else None

    async def _settle(self, sink: Sink[T], backoff: Backoff, batch: _Batch[T]) -> None:
        """Write a batch; after a few faults of ours drop it: other batches wait."""
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
        """Make the next batch, if it will be full, while the server is at this one."""
        roomy = self.buffer.max_items >= 4 * BATCH_ITEMS  # else too much is fixed
        waiting = len(self.buffer) - under_way
        if roomy and self._next is None and waiting > BATCH_ITEMS:
            self._next = self._take()
            if self._next is not None:
                with suppress(Exception):  # a fault is raised when its turn has come
                    self._next.prepared = sink.prepare(self._next.items)

    async def _write(
        self, sink: Sink[T], backoff: Backoff, batch: _Batch[T], prepared: Sequence[T]
    ) -> None:
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        loop = asyncio.get_running_loop()
        while True:
            try:
                if batch.is_ambiguous and await self._was_written(
                    sink, batch, prepared
                ):
                    return
                # Until the answer is there, a cancelled write may have been executed.
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
                if not error.connecting:  # the gate has paced those
                    await self._pause(delay, refused=permanent)
            else:
                backoff.succeeded()
                self._fit(anyio.current_time() - began)
                return

    def _fit(self, took: float) -> None:
        """Make the next batch smaller after a slow write: other requests wait."""
        change = self._most // 2 if took > SLOW else self._most * 2
        self._most = min(max(change, LEAST_BYTES), BATCH_BYTES)

    async def _pause(self, delay: float, *, refused: bool) -> None:
        if not refused:
            await anyio.sleep(delay)
            return
        self.refused = True
        self._announce()  # no flush waits for what is refused for good
        await self._wait_for_flush(delay)
        self.refused = False

    async def _was_written(
        self, sink: Sink[T], batch: _Batch[T], prepared: Sequence[T]
    ) -> bool:
        try:
            written = await sink.was_written(prepared)
        except RedisUnavailableError as error:
            error.ambiguous = True  # of the write before, still
            raise
        if written:
            return True
        self.resent += len(prepared)
        if written is None or batch.is_carried:
            self.maybe_repeated += len(prepared)
        return False

    def _announce(self) -> None:
        event, self._settled = self._settled, anyio.Event()
        event.set()

    async def flush(self, timeout: float) -> Flushed:
        """Wait until all that was accepted is written or given up, or time is over.

        A batch that Redis has refused is tried once more at once, and not waited for
        when it is refused again.
        """
        target = self.buffer.count_accepted()
        before = self.buffer.stats()
        dropped_before = sum(before.dropped.values())
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
