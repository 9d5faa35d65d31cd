"""A run as its host writes it: ``async with store.run(id) as run: run.emit(…)``."""

from __future__ import annotations

import logging
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import anyio

from bls_agent.connection.after_fork import keep, register
from bls_agent.core.buffer import BoundedBuffer
from bls_agent.core.errors import BlsError, ConfigurationError
from bls_agent.runs.floors import Floors
from bls_agent.runs.new_events import check_data, check_source, tame_source, tame_word
from bls_agent.runs.reading import RunKeys
from bls_agent.runs.writing.course import Course, call_in, wait_through
from bls_agent.runs.writing.emitted import RANKS, Emitted, take
from bls_agent.runs.writing.ending import tell_end
from bls_agent.runs.writing.hold import Hold
from bls_agent.runs.writing.options import WriterOptions
from bls_agent.runs.writing.plain import LEAVE_GRACE, PlainFace
from bls_agent.runs.writing.pool import WriterPool, WriterPools
from bls_agent.runs.writing.sink import Bounds, RunSink
from bls_agent.runs.writing.stats import RunWriterStats
from bls_agent.runtime.batch_writer import BatchWriter, Flushed
from bls_agent.runtime.lease import belongs_to_dead, make_token
from bls_agent.runtime.tasks import start_background

__all__ = ["RunWriter"]

logger = logging.getLogger(__name__)

_RNG: Final = random.SystemRandom()  # has no state that forked children would share
BATCH_BYTES: Final = 128 * 1024  # all writers of a store wait for each other's batches
NEW, OPEN, CLOSED, FORKED = "not_open", "open", "closed", "forked"


class RunWriter(PlainFace):
    """Writes one run, from ``lifecycle.started`` to ``system.close``; works once.

    Made by :meth:`EventStore.run`, and opened by ``async with``, or by ``with`` in a
    program without an event loop. Nothing in it raises into the host or makes it wait,
    but opening and leaving: Redis may be away at the start and at any time; what is
    emitted meanwhile is kept, as far as the buffer goes, and written when Redis is back:
    each event once, in order.

    While it is open it owns the run: its lease is renewed, and with it the time for
    which the run is kept, however long nothing is emitted. When the process dies without
    leaving, the lease ends, and followers are told that the writer is lost.

    Attributes:
        run_id: The run.
        result: Data of ``lifecycle.completed``.
    """

    def __init__(
        self,
        run_id: int,
        *,
        pools: WriterPools,
        floors: Floors,
        bounds: Bounds,
        timeout: float,
        shown: str,
        source: Mapping[str, str | None] | None,
        data: Mapping[str, Any] | None,
        options: WriterOptions,
    ) -> None:
        """Remember everything; :meth:`EventStore.run` tells of the arguments.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        self.run_id = run_id
        self.result: Mapping[str, Any] | None = None
        self._keys = RunKeys(run_id)
        self._source = check_source(source)
        self._data = check_data(data)
        self._options = options
        self._pools = pools
        self._floors = floors
        self._bounds = bounds
        self._timeout = timeout
        self._shown = shown
        self._merges = options.coalesce > 0
        buffer: BoundedBuffer[Emitted] = BoundedBuffer(
            options.buffer, options.buffer_bytes, RANKS
        )
        self._delivery = BatchWriter(buffer, pace=options.pace, batch_bytes=BATCH_BYTES)
        self._state = NEW
        self._outside = Counter[str]()  # dropped before they reached the buffer
        self._cut = 0
        self._lock = threading.RLock()  # of the two above
        self._hold: Hold | None = None
        self._sink: RunSink | None = None
        self._pool: WriterPool | None = None
        self._course: Course | None = None
        self._withdrawing = None  # a task that somebody has to hold
        self._thread = None
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: the run is the parent's, and so is what waits."""
        self._lock = threading.RLock()
        if self._state == OPEN:
            self._state = FORKED
        keep((self._course, self._pool))
        self._course = self._pool = self._hold = self._thread = None
        self._delivery.forget_parent()

    def __repr__(self) -> str:
        state = self._state
        if state == OPEN and self._options.lifecycle:
            state = "owned" if self.is_owner else "not owned"
        return f"<RunWriter {self.run_id} {state} at {self._shown}>"

    @property
    def is_owner(self) -> bool:
        """Whether the run is surely ours, to be ended by us."""
        hold = self._hold
        return hold is not None and hold.is_valid

    def complete(self, data: Mapping[str, Any] | None = None) -> None:
        """Set the data of ``lifecycle.completed``, which is written on leaving.

        Args:
            data: What a JSON object can hold.
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
        """Write an event, soon; from any thread, never waits, never raises.

        Whatever the data hold is taken as it is now: they may be changed afterwards.
        What JSON cannot hold appears as a readable stand-in, what is longer than the
        store's ``event_size_limit`` is cut. Before opening and after leaving, the event
        is dropped and counted.

        Args:
            category: Such as ``llm``; any text.
            action: Such as ``stream``; any text.
            data: What it says.
            source: Who it comes from; default: that of the run.
        """
        try:
            course = self._course
            if self._state != OPEN or course is None or course.is_gone:
                self._refuse(CLOSED if self._state == OPEN else self._state)
                return
            event, cut = take(
                tame_word(category) or "unknown",
                tame_word(action) or "unknown",
                data,
                self._source if source is None else tame_source(source),
                at=time.time(),  # noqa: TID251 - the outermost place
                limit=self._bounds.event_size_limit,
                merges=self._merges,
            )
            if cut:
                self._count_cut()
            self._delivery.put(event)
        except Exception:  # noqa: BLE001 - whatever the host's objects raise
            self._refuse("fault")

    def _count_cut(self) -> None:
        with self._lock:
            self._cut += 1
            first = self._cut == 1
        if first:
            text = "data of run %d exceed event_size_limit and are cut, now and later"
            logger.warning(text, self.run_id)

    def _refuse(self, reason: str) -> None:
        with self._lock:
            self._outside[reason] += 1
            first = self._outside[reason] == 1
        if first:
            text = "an event of run %d was dropped (%s), and those that follow it are"
            logger.warning(text, self.run_id, reason)

    def stats(self) -> RunWriterStats:
        """Give a snapshot of every counter and state; from any thread."""
        buffered, sink = self._delivery.buffer.stats(), self._sink
        with self._lock:
            outside, cut = Counter(self._outside), self._cut
        late = sink.late if sink is not None else 0
        outside[CLOSED] += late
        dropped = Counter(buffered.dropped) + outside
        return RunWriterStats(
            run_id=self.run_id,
            open=self._state == OPEN,
            is_owner=self.is_owner,
            accepted=buffered.accepted + outside.total() - late,
            written=buffered.delivered - late,
            dropped=dict(dropped),
            queued=buffered.queued,
            queued_bytes=buffered.queued_bytes,
            cut=cut + (sink.cut if sink is not None else 0),
            merged=sink.merged if sink is not None else 0,
            resent=self._delivery.resent,
        )

    async def flush(self, timeout: float = 5.0) -> Flushed:
        """Wait until what was emitted so far is written or given up.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether all of it is settled; never raises for Redis.
        """
        course = self._course
        if course is not None and not course.is_gone:
            if not course.is_elsewhere:
                return await course.flush(timeout)
            within = timeout + LEAVE_GRACE
            found = await call_in(course, partial(course.flush, timeout), within)
            if found is not None:
                return found
        return self._tell_unflushed()

    def _tell_unflushed(self) -> Flushed:
        queued = self._delivery.buffer.stats().queued
        return Flushed(complete=False, delivered=0, dropped=0, queued=queued)

    async def __aenter__(self) -> Self:
        """Open: ``lifecycle.started`` is written, or will be when Redis is there.

        Waits for Redis to answer, at most the store's ``timeout``, and not at all where
        Redis cannot be reached.

        Raises:
            LeaseHeldError: A living writer has the run; nothing was written.
            WrongTypeError: The key is no stream; nothing was written.
            ConfigurationError: It was opened before, or ``BLS_REDIS_URL`` does not fit.
        """
        if self._state != NEW:
            rule = "a writer is opened once"
            remedy = "Call store.run() again."
            raise ConfigurationError("run", self.run_id, rule, remedy)
        until = anyio.current_time() + self._timeout
        pool = self._pools.enter()
        token = make_token(self._options.lease)
        try:
            if self._options.lifecycle:
                self._hold = await self._take(pool, token)
        except BaseException:
            self._withdraw(pool)
            raise
        course = self._begin(pool, token)
        if self.is_owner:  # others who write this run from now on come behind its start
            try:
                await course.flush(until - anyio.current_time())
            except BaseException as error:
                await self.__aexit__(type(error), error, None)
                raise
        return self

    def _withdraw(self, pool: WriterPool) -> None:
        """Let go of what was perhaps given, where nobody has opened the run after all."""
        hold = self._hold

        async def withdraw() -> None:
            if hold is not None and hold.verdict is None:
                with anyio.move_on_after(self._timeout), suppress(BlsError):
                    await pool.give_back(hold)
            await self._leave(pool)

        self._withdrawing = start_background(withdraw, "bls-agent run")

    async def _take(self, pool: WriterPool, token: str) -> Hold:
        """Ask for the run, and wait for the first answer."""
        hold = self._hold = Hold(
            self._keys,
            token,
            lease=self._options.lease,
            ttl=self._bounds.ttl,
            rng=_RNG,
            is_dead=belongs_to_dead,
        )
        pool.add(hold)
        with anyio.move_on_after(self._timeout):
            await hold.judged.wait()
        hold.judged.set()  # what is heard later goes to the log
        verdict: BlsError | None = hold.verdict
        if verdict is not None:
            raise verdict
        return hold

    def _begin(self, pool: WriterPool, token: str) -> Course:
        buffer = self._delivery.buffer  # not self: whoever forgets to leave is told
        self._sink = sink = RunSink(
            pool,
            self._keys,
            token,
            hold=self._hold,
            floors=self._floors,
            bounds=self._bounds,
            merges=self._merges,
            count_drops=lambda: Counter(buffer.stats().dropped),
            now=time.time,  # noqa: TID251 - the outermost place
        )
        self._pool = pool
        name = f"bls-agent run {self.run_id}"
        self._course = course = Course(self._delivery, sink, name=name)
        if self._options.lifecycle:
            self._put("lifecycle", "started", self._data)
        self._state = OPEN
        return course

    def _put(
        self, category: str, action: str, data: object, *, ends: bool = False
    ) -> None:
        assert self._sink is not None  # noqa: S101 - for the type checker
        event = self._sink.own_event(category, action, data, self._source)
        event.ends = ends
        self._delivery.put(event)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write how the run ended, and ``system.close``; the exception goes on unchanged.

        Takes at most ``shutdown_timeout``, whatever Redis does and whoever cancels
        meanwhile. What cannot be written by then is dropped and counted, and the
        lease ends by itself.
        """
        course, pool = self._course, self._pool
        if self._state != OPEN or course is None or pool is None:
            return
        self._state = CLOSED
        if course.is_gone:
            self._delivery.forget_loop()
            return
        self._say_end(error)
        end = partial(self._end, course, pool)
        if course.is_elsewhere:
            await call_in(course, end, self._options.shutdown_timeout + LEAVE_GRACE)
        else:
            await end()

    async def _end(self, course: Course, pool: WriterPool) -> None:
        course.end(self._options.shutdown_timeout)
        try:
            await wait_through(course.ended)
        finally:
            await self._leave(pool)
            if self._sink is not None:
                self._sink.say_losses(course.lost)

    def _say_end(self, error: BaseException | None) -> None:
        assert self._sink is not None  # noqa: S101 - for the type checker
        if self._options.lifecycle:
            action, data = tell_end(error, self.result)
            self._put("lifecycle", action, data)
            self._put("system", "close", None, ends=True)
            return
        for event in self._sink.tell_drops():
            self._delivery.put(event)

    async def _leave(self, pool: WriterPool) -> None:
        """Let go of the lease, without a word to Redis, and of what others use, too."""
        if self._hold is not None:
            pool.remove(self._hold)
            self._hold.finish()
        with anyio.CancelScope(shield=True):
            await self._pools.leave(pool)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_state", NEW) != OPEN:
            return
        course = self._course
        if course is not None and not course.is_gone:
            course.loop.call_soon_threadsafe(course.forsake, self._hold)
        text = f"the writer of run {self.run_id} was never left"
        _warn(text, ResourceWarning, stacklevel=2, source=self)
