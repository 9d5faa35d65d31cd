"""Writes a run from a program: ``async with store.run(id) as run: run.emit(…)``."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from bls_agent.connection.access import Access
from bls_agent.connection.after_fork import never_finalize, register
from bls_agent.core.buffer import BoundedBuffer
from bls_agent.core.checks import check_count, check_seconds, check_wait
from bls_agent.core.errors import BlsError, ConfigurationError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.new_events import (
    RANKS,
    PendingEvent,
    capture,
    check_data,
    check_source,
    describe_end,
    sanitize_source,
    sanitize_word,
)
from bls_agent.runs.reading import RunKeys
from bls_agent.runs.writer_task import (
    CLOSED,
    RunLease,
    RunWriterTask,
    WriterCounts,
    WriterPool,
)
from bls_agent.runtime.batch_writer import BatchWriter, Flushed
from bls_agent.runtime.loop_thread import (
    LoopThread,
    SharedThread,
    refuse_in_event_loop,
    wait_for,
)
from bls_agent.runtime.tasks import call_in, start_background

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

logger: logging.Logger = logging.getLogger(__name__)

SHORTEST: Final = 0.1  # seconds of the shortest lease
LONGEST: Final = 10.0  # longest time in seconds to collect pieces of a text
PACE: Final = 0.005  # seconds between two writes if nothing is merged
LEAST: Final = 1_000  # smallest allowed ``buffer``, which one batch cannot fill
LEAST_BYTES: Final = 1024 * 1024  # smallest allowed ``buffer_bytes``
LONGEST_EVENTS: Final = 4  # number of the largest events that any buffer can hold

LEAVE_GRACE: Final = 1.0  # seconds after a timeout to wait for another event loop
AT_EXIT: Final = 1.5  # longest wait in seconds when the interpreter exits
THREAD: Final = SharedThread("bls-agent runs", at_exit=AT_EXIT)


class WriterState(Enum):
    """The states of a writer. The values are also the reasons of dropped events."""

    NEW = "not_open"
    OPEN = "open"
    CLOSED = CLOSED
    FORKED = "forked"  # the parent process has opened the writer


@dataclass(frozen=True)
class WriterOptions:
    """Checks and holds the options of ``EventStore.run``."""

    lifecycle: bool  # whether this writer begins, owns and ends the run
    lease: float  # seconds without a renewal after which the writer counts as lost
    coalesce: float  # seconds for which pieces of a text are collected; 0: no merging
    buffer: int  # largest number of events in memory
    buffer_bytes: int  # largest number of bytes of the events in memory
    shutdown_timeout: float  # longest time in seconds for the last writes
    event_size_limit: int  # largest number of bytes of the data of an event

    def __post_init__(self) -> None:
        if not isinstance(self.lifecycle, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise ConfigurationError("lifecycle", self.lifecycle, "True or False")
        rule = f"at least {SHORTEST:g} s"
        if check_seconds("lease", self.lease, rule) < SHORTEST:
            raise ConfigurationError("lease", self.lease, rule)
        never = self.coalesce == 0 and not isinstance(self.coalesce, bool)
        rule = f"from 0, for never, to {LONGEST:g} s"
        if not never and check_seconds("coalesce", self.coalesce, rule) > LONGEST:
            raise ConfigurationError("coalesce", self.coalesce, rule)
        check_count("buffer", self.buffer, least=LEAST)
        check_count("buffer_bytes", self.buffer_bytes, least=LEAST_BYTES, most=2**40)
        check_seconds("shutdown_timeout", self.shutdown_timeout)
        least = LONGEST_EVENTS * self.event_size_limit
        if self.buffer_bytes < least:
            rule = f"room for {LONGEST_EVENTS} of the longest events ({least:,} bytes)"
            remedy = "Raise it, or lower event_size_limit."
            raise ConfigurationError("buffer_bytes", self.buffer_bytes, rule, remedy)

    @property
    def pace(self) -> float:
        return self.coalesce or PACE

    @property
    def merges(self) -> bool:
        return self.coalesce > 0


@dataclass(frozen=True, kw_only=True)
class RunWriterStats:
    """Every counter and state of a :class:`~bls_agent.runs.RunWriter` at one moment.

    ``accepted == written + sum(dropped.values()) + queued``. The counts include the
    writer's own events, such as ``lifecycle.started``.

    Attributes:
        open: Whether the writer accepts events.
        is_owner: Whether it is certain that this writer owns the run. Only the owner
            can end the run.
        accepted: Number of all emitted events.
        written: Number of emitted events that are in Redis. Each piece of a merged
            event is counted.
        dropped: Number of dropped events, by reason. ``buffer_full``: the buffer was
            full. ``shutdown``: the time for the last writes was too short.
            ``not_open``: the event was emitted before the writer was opened.
            ``closed``: the event came after the end of the run. ``forked``: the event
            was emitted in a forked child. ``fault``: an unexpected error.
        queued: Number of events that wait or are being written.
        queued_bytes: Approximate bytes of the queued events.
        cut: Number of events whose data were shortened to ``event_size_limit``.
        merged: Number of pieces of a text that were written within another event.
        resent: Number of events that were sent again because no reply had arrived.
            Redis ignores an event that it has added before.
    """

    run_id: int
    open: bool
    is_owner: bool
    accepted: int
    written: int
    dropped: Mapping[str, int]
    queued: int
    queued_bytes: int
    cut: int
    merged: int
    resent: int


class RunWriter:
    """Writes one run, from ``lifecycle.started`` to ``system.close``.

    :meth:`EventStore.run` makes the writer, which can be opened once. Open the writer
    by ``async with``, or by ``with`` in a program without an event loop. Opening the
    writer and leaving the block may wait and may raise exceptions. :meth:`emit` never
    waits and never raises. If Redis is unavailable, also at the start, the buffer keeps
    the emitted events up to its limits. When Redis is available again, the writer
    writes each of these events once and in order.

    An open writer owns the run, unless ``lifecycle=False``. The owner has a lease: a
    key with a TTL, which shows that the writer is alive. The writer renews the lease
    and the TTL of the run, even if no event is emitted. If the process dies, the lease
    expires, and each follower returns a :class:`~bls_agent.runs.WriterLost`.

    One daemon thread writes all runs that were opened by ``with``. Runs of the same
    store share a connection. The thread and the connection end with the last of these
    runs.

    Attributes:
        result: Data of ``lifecycle.completed``.
    """

    def __init__(
        self,
        run_id: int,
        *,
        access: Access,
        get_pool: Callable[[], WriterPool],
        source: Mapping[str, str | None] | None,
        data: Mapping[str, Any] | None,
        options: WriterOptions,
    ) -> None:
        self.run_id = run_id
        self.result: Mapping[str, Any] | None = None
        self._source = check_source(source)
        self._data = check_data(data)
        self._options = options
        self._access = access
        self._get_pool = get_pool  # returns the pool of the running event loop
        buffer: BoundedBuffer[PendingEvent] = BoundedBuffer(
            options.buffer, options.buffer_bytes, RANKS
        )
        self._delivery = BatchWriter(buffer, pace=options.pace)
        self._state = WriterState.NEW
        self._outside = Counter[str]()  # reason → events dropped outside the buffer
        self._lock = threading.RLock()  # protects ``_outside``
        self._run_lease: RunLease | None = None
        self._writing: RunWriterTask | None = None
        # Without this reference, the task could be garbage-collected before its end.
        self._withdrawing: asyncio.Task[None] | None = None
        self._thread: LoopThread | None = None  # set if the run was opened by ``with``
        register(self)

    def reset_after_fork(self) -> None:
        """Stop writing in a forked child, because the run belongs to the parent."""
        self._lock = threading.RLock()
        if self._state is WriterState.OPEN:
            self._state = WriterState.FORKED
        never_finalize((self._writing, self._run_lease))
        self._writing = self._run_lease = self._thread = None
        self._delivery.reset_after_fork()

    def __repr__(self) -> str:
        state = self._state.value
        if self._state is WriterState.OPEN and self._options.lifecycle:
            state = "owned" if self.is_owner else "not owned"
        return f"<RunWriter {self.run_id} {state} at {self._access.shown}>"

    @property
    def is_owner(self) -> bool:
        """Whether it is certain that this writer owns the run and so can end it."""
        lease = self._run_lease
        return lease is not None and lease.valid

    def complete(self, data: Mapping[str, Any] | None = None) -> None:
        """Set the data of ``lifecycle.completed``, written when the block is left.

        Args:
            data: Content of the event, as a JSON object.
        """
        self.result = data

    def emit(
        self,
        category: str,
        action: str,
        data: Mapping[str, Any] | None = None,
        *,
        source: Mapping[str, str | None] | None = None,
    ) -> None:
        """Queue an event, which the writer's task writes soon.

        Any thread may call this method. The method never waits and never raises. The
        data are copied, so that the caller may change them afterwards. Values that JSON
        cannot hold are replaced by readable text. Data that are longer than the store's
        ``event_size_limit`` are shortened. If the writer is not open, the event is
        dropped and counted.

        Args:
            category: Any text, such as ``llm``.
            action: Any text, such as ``stream``.
            data: Content of the event, as a JSON object; default: ``{}``.
            source: Source of the event; default: the source of the run.
        """
        try:
            writing = self._writing
            if self._state is not WriterState.OPEN:
                self._refuse(self._state.value)
                return
            if writing is None or writing.loop_is_closed:
                self._refuse(WriterState.CLOSED.value)
                return
            event = capture(
                sanitize_word(category) or "unknown",
                sanitize_word(action) or "unknown",
                data,
                self._source if source is None else sanitize_source(source),
                at=time.time(),  # noqa: TID251 - the time of the call
                limit=self._options.event_size_limit,
                merges=self._options.merges,
            )
            self._delivery.put(event)
        except Exception:  # noqa: BLE001 - objects of the caller may raise anything
            self._refuse("fault")

    def _refuse(self, reason: str) -> None:
        with self._lock:
            self._outside[reason] += 1
            first = self._outside[reason] == 1
        if self._writing is not None:
            self._writing.refuse(reason)
        if first:
            text = "an event of run %d was dropped (%s), and those that follow it are"
            logger.warning(text, self.run_id, reason)

    def stats(self) -> RunWriterStats:
        """Return every counter and state. Any thread may call this method."""
        buffered, writing = self._delivery.buffer.stats(), self._writing
        with self._lock:
            outside = Counter(self._outside)
        counts = writing.counts if writing is not None else WriterCounts()
        behind_end = counts.behind_end
        outside[CLOSED] += behind_end
        dropped = Counter(buffered.dropped) + outside
        return RunWriterStats(
            run_id=self.run_id,
            open=self._state is WriterState.OPEN,
            is_owner=self.is_owner,
            accepted=buffered.accepted + outside.total() - behind_end,
            written=buffered.delivered - behind_end,
            dropped=dict(dropped),
            queued=buffered.queued,
            queued_bytes=buffered.queued_bytes,
            cut=counts.cut,
            merged=counts.merged,
            resent=self._delivery.resent,
        )

    async def flush(self, timeout: float = 5.0) -> Flushed:
        """Wait until all events emitted so far are written or dropped.

        Args:
            timeout: Longest wait in seconds.

        Returns:
            The counts, whose ``bool()`` is true if none of these events is left. Errors
            of Redis are not raised.
        """
        writing = self._writing
        check_wait("timeout", timeout)
        if writing is not None and not writing.loop_is_closed:
            flush = partial(writing.flush, timeout)
            flushed = await call_in(writing.loop, flush, timeout + LEAVE_GRACE)
            if flushed is not None:
                return flushed
        return self._unflushed()

    def _unflushed(self) -> Flushed:
        queued = self._delivery.buffer.stats().queued
        return Flushed(complete=False, delivered=0, dropped=0, queued=queued)

    async def __aenter__(self) -> Self:
        """Open the writer. ``lifecycle.started`` is written when Redis is available.

        Wait for a reply of Redis, at most the store's ``timeout``. If no reply arrives,
        the writer is open all the same.

        Raises:
            LeaseHeldError: Another writer owns the run. Nothing was written.
            WrongTypeError: The key is no stream. Nothing was written.
            ConfigurationError: The writer was opened before, or ``BLS_REDIS_URL`` is
                wrong.
        """
        if self._state is not WriterState.NEW:
            rule = "a writer is opened once"
            remedy = "Call store.run() again."
            raise ConfigurationError("run", self.run_id, rule, remedy)
        _ = self._access.endpoint  # raises an error if BLS_REDIS_URL is wrong
        until = anyio.current_time() + self._access.timeout
        pool, keys = self._get_pool(), RunKeys(self.run_id)
        pool.users += 1
        try:
            if self._options.lifecycle:
                await self._acquire(pool, keys)
        except BaseException:
            withdraw = partial(self._withdraw, pool)
            self._withdrawing = start_background(withdraw, "bls-agent run")
            raise
        # The task does not refer to this writer. Otherwise a writer that the program
        # forgets to close would never be garbage-collected.
        self._writing = writing = RunWriterTask(
            self._delivery, pool, keys, self._run_lease, merges=self._options.merges
        )
        if self._options.lifecycle:
            self._put("lifecycle", "started", self._data)
        self._state = WriterState.OPEN
        if self.is_owner:  # other writers add events only after ``started``
            try:
                await writing.flush(until - anyio.current_time())
            except BaseException as error:
                await self.__aexit__(type(error), error, None)
                raise
        return self

    async def _withdraw(self, pool: WriterPool) -> None:
        """End the lease, which Redis may have granted although the opening failed."""
        lease = self._run_lease
        if lease is not None:
            lease.finish()
            if lease.refusal is None:
                with anyio.move_on_after(self._access.timeout), suppress(BlsError):
                    await lease.give_back()
        pool.users -= 1

    async def _acquire(self, pool: WriterPool, keys: RunKeys) -> None:
        self._run_lease = lease = RunLease(pool, keys, self._options.lease)
        with anyio.move_on_after(self._access.timeout):
            await lease.answered.wait()
        lease.answered.set()  # later errors are logged, not raised
        refusal: BlsError | None = lease.refusal
        if refusal is not None:
            raise refusal

    def _put(
        self, category: str, action: str, data: object, *, ends: bool = False
    ) -> None:
        if self._writing is not None:
            event = self._writing.own_event(category, action, data, self._source)
            event.ends = ends
            self._delivery.put(event)

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        """Write the end of the run and ``system.close``. Suppress no exception.

        This takes at most about ``shutdown_timeout`` seconds, also if Redis does not
        answer or the task is cancelled. Events that cannot be written in this time are
        dropped and counted. The lease then expires at the end of its TTL.
        """
        writing = self._writing
        if self._state is not WriterState.OPEN or writing is None:
            return
        self._state = WriterState.CLOSED
        if writing.loop_is_closed:
            self._delivery.detach()
            return
        self._put_end(writing, error)
        within = self._options.shutdown_timeout
        await call_in(writing.loop, partial(writing.end, within), within + LEAVE_GRACE)

    def _put_end(self, writing: RunWriterTask, error: BaseException | None) -> None:
        if self._options.lifecycle:
            self._put("lifecycle", *describe_end(error, self.result), ends=True)
            self._put("system", "close", None, ends=True)
            return
        for event in writing.report_drops():
            self._delivery.put(event)

    def wait_flushed(self, timeout: float = 5.0) -> Flushed:
        """Wait like :meth:`flush`, in a program without an event loop.

        Args:
            timeout: Longest wait in seconds.

        Returns:
            The counts, whose ``bool()`` is true if no event emitted before the call is
            left. Errors of Redis are not raised.

        Raises:
            ConfigurationError: The writer is not open, it was opened by ``async with``,
                or an event loop runs in this thread.
        """
        refuse_in_event_loop("wait_flushed", "'await run.flush()'")
        thread = self._thread
        if thread is None:
            rule = "it must be open, and opened by 'with'; in an event loop there is flush()"
            raise ConfigurationError("run", self.run_id, rule)
        check_wait("timeout", timeout)
        flushing = thread.begin(self.flush, timeout)
        try:
            wait_for(flushing, timeout + LEAVE_GRACE)
        finally:
            unanswered = flushing.cancel() or flushing.cancelled()
        return self._unflushed() if unanswered else flushing.result()

    def __enter__(self) -> Self:
        """Do the same as ``async with``, in a program without an event loop."""
        refuse_in_event_loop("with store.run(...)", "'async with store.run(...)'")
        self._thread = THREAD.open(self._open_there)
        return self

    async def _open_there(self) -> None:
        try:
            await self.__aenter__()
        except BaseException:
            if self._withdrawing is not None:
                await self._withdrawing
            await self._close_unused()
            raise

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        """Write the end of the run as ``async with`` does, within the same time.

        If a signal handler raises an exception during the wait, such as a second
        Ctrl-C, the wait ends. Events that are not written yet may then be lost.
        """
        thread = self._thread
        if thread is None:  # in a forked child
            return
        self._thread = None
        leaving = thread.begin(self._leave_there, error)
        try:
            wait_for(leaving, self._options.shutdown_timeout + LEAVE_GRACE)
        finally:
            THREAD.leave()
            _log_failure(leaving)

    async def _leave_there(self, error: BaseException | None) -> None:
        try:
            kind = None if error is None else type(error)
            await self.__aexit__(kind, error, None)
        finally:
            await self._close_unused()

    async def _close_unused(self) -> None:
        """Close the connections of this event loop if no run is open in the loop."""
        if not self._get_pool().users:
            await self._access.aclose()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_state", WriterState.NEW) is not WriterState.OPEN:
            return
        writing = self._writing
        if writing is not None and not writing.loop_is_closed:
            writing.loop.call_soon_threadsafe(writing.abandon)
        text = f"the writer of run {self.run_id} was never left"
        _warn(text, ResourceWarning, stacklevel=2, source=self)


def _log_failure(leaving: Future[None]) -> None:
    if leaving.done() and not leaving.cancelled():
        error = leaving.exception()
        if error is not None:
            logger.error("leaving a run failed\n%s", redact_traceback(error))
