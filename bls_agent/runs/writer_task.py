"""Writes the events of an open run in batches, and renews the lease of the run."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.lowlevel

from bls_agent.connection.access import Access
from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.reconnect import ReconnectGate, ThrottledLog
from bls_agent.connection.scripts import ADD_EVENTS, HOLD_RUN, Script
from bls_agent.core.backoff import Backoff
from bls_agent.core.codec import format_timestamp
from bls_agent.core.errors import (
    BlsError,
    LeaseHeldError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.events import BEGINNING, order
from bls_agent.runs.new_events import (
    NO_SOURCE,
    PendingEvent,
    Prepared,
    Source,
    add_arguments,
    capture,
    merge,
)
from bls_agent.runs.reading import RunKeys, find_wrong_run_key
from bls_agent.runs.tally import EventCounts, RunTally
from bls_agent.runtime.batch_writer import BatchWriter, Flushed, Written
from bls_agent.runtime.lease import (
    RENEWALS,
    LeaseReply,
    LeaseState,
    Ownership,
    boot_seconds,
    make_token,
)
from bls_agent.runtime.tasks import cancel, start_background

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

MOST: Final = 10_000  # runs to remember; the run written longest ago is forgotten first
_UNKNOWN: Final = (0, BEGINNING, float("-inf"))

CLOSED: Final = "closed"  # reason of drops: the event came after the end of the run
REPORTED: Final = (
    "buffer_full",
    "fault",
)  # reasons of drops that ``system.warning`` reports
REMEDY: Final = "Give the run another id, or contribute to it with lifecycle=False."

CAP: Final = 2.0  # longest pause in seconds while Redis is unavailable
AGAIN: Final = 0.1  # shortest pause in seconds between two tries on a cluster
RETRY: Final = 1.0  # seconds between two tries after an unexpected error
FINAL_WRITE: Final = 1.0  # seconds for the last write when the event loop ends
GLANCE: Final = 0.01  # seconds between two checks in flush()


class HighWaterMarks:
    """Remembers the last sequence number and id that this process wrote to each run.

    If the server loses events, new events continue after these values, so that no
    number is used twice. The values of a run are no longer used after it has expired.
    """

    def __init__(self) -> None:
        self._marks: OrderedDict[int, tuple[int, str, float]] = OrderedDict()
        self._lock = threading.Lock()
        register(self)

    def reset_after_fork(self) -> None:
        """Make a new lock in a forked child, because the parent may hold the lock."""
        self._lock = threading.Lock()

    def of(self, run_id: int, now: float) -> tuple[int, str]:
        """Return the last sequence and id, or zeros for an unknown or expired run."""
        with self._lock:  # because raise_to() removes the values for a moment
            sequence, event_id, until = self._marks.get(run_id, _UNKNOWN)
        return (sequence, event_id) if now < until else (0, BEGINNING)

    def raise_to(
        self,
        run_id: int,
        sequence: int,
        event_id: str,
        until: float,
        *,
        is_new: bool = False,
    ) -> None:
        """Record the last event that was written. An older event changes nothing.

        ``until`` is the time when the run expires. If ``is_new``, the server has begun
        a new run, whose sequence begins at 1.
        """
        with self._lock:  # because several threads may share a store
            known_sequence, known_id, known = self._marks.pop(run_id, _UNKNOWN)
            if is_new:
                known_sequence = 0
            highest = max(known_id, event_id, key=order)
            until = max(until, known) if known < math.inf else until
            self._marks[run_id] = max(known_sequence, sequence), highest, until
            if len(self._marks) > MOST:
                self._marks.popitem(last=False)

    def expire(self, run_id: int, until: float) -> None:
        """Set the time when a run expires and its values are forgotten."""
        with self._lock:
            if run_id in self._marks:
                self._marks[run_id] = (*self._marks[run_id][:2], until)

    def forget(self, run_id: int) -> None:
        """Forget a run that was deleted, because its sequence begins at 1 again."""
        with self._lock:
            self._marks.pop(run_id, None)


class Bounds(Protocol):
    """The limits that a store sets for each of its runs."""

    maxlen: int
    ttl: int
    event_size_limit: int


class WriterPool:
    """The access to Redis that the open runs of a store share in one event loop."""

    def __init__(
        self, access: Access, marks: HighWaterMarks, bounds: Bounds, tally: RunTally
    ) -> None:
        self.marks = marks
        self.tally = tally
        self.bounds = bounds
        self._access = access
        self._gate = ReconnectGate(Backoff(cap=CAP))
        self._gate.outage.quiet = True  # the connection logs the end of an outage
        self.users = 0  # number of open runs

    async def open(self) -> None:
        """Connect to Redis. While Redis is unavailable, one run at a time tries."""
        pool = self._access.pool
        if not pool.is_cluster and not pool.pick().connected:
            async with pool.to("") as connection:
                await self._gate.enter(connection.open)

    async def run_script(
        self, script: Script, keys: RunKeys, arguments: Sequence[Argument]
    ) -> Reply:
        """Run a script on the keys of a run. Log an error before raising it.

        If a key has a wrong type, the log and ``__cause__`` of the error name the key.
        """
        pool = self._access.pool
        try:
            await self.open()
            reply = await script.run(pool, keys.all, arguments)
        except RedisUnavailableError as error:
            shown: BlsError = error
            if error.kind == "wrong_type":
                shown = error.__cause__ = await find_wrong_run_key(pool, keys)
            if not error.connecting:
                self._gate.throttled_log.warn("events of runs cannot be written", shown)
            elif pool.is_cluster:  # because open() does not wait on a cluster
                await anyio.sleep(AGAIN + Backoff(cap=CAP, failures=4).failed())
            raise
        return reply

    async def remove_batch(self, keys: RunKeys, token: str, within: float) -> None:
        """Remove the number of a writer's last batch. If Redis is away, it stays."""
        with suppress(RedisUnavailableError), anyio.move_on_after(within):
            await self._access.pool.call(keys.books, "HDEL", f"batch:{token}")


class RunLease(LeaseState):
    """The lease of one writer on its run. A task renews the lease.

    Each renewal also restarts the TTL of the run, even if no event is written.
    """

    def __init__(self, pool: WriterPool, keys: RunKeys, lease: float) -> None:
        super().__init__(keys.events, lease, make_token(lease))
        # When to send the next request, by the event loop's clock.
        self.due: float = 0.0
        # Set when the first request has a reply or has failed. Opening the writer waits
        # for this event.
        self.answered: anyio.Event = anyio.Event()
        # The error that opening the run raises.
        self.refusal: BlsError | None = None
        self._pool = pool
        self._keys = keys
        self._logged_lost = False
        self._backoff = Backoff(cap=CAP)
        # Seconds between two renewals. A renewal also extends the TTL of the run.
        self._pause = min(lease, pool.bounds.ttl) / RENEWALS
        self._task = start_background(self._keep, "bls-agent run lease")

    async def _keep(self) -> None:
        while self.due < math.inf:
            if (pause := self.due - anyio.current_time()) > 0:
                # anyio keeps a reference to a task in a cancel scope. Therefore asyncio
                # logs no warning if the event loop is closed while the task waits.
                with anyio.move_on_after(pause):
                    await anyio.sleep_forever()
                continue  # a batch may have renewed the lease during the pause
            try:
                self.due = anyio.current_time() + await self._renew()
            except Exception as error:  # noqa: BLE001 - logged, and the run goes on
                text = "a renewal of the lease of run %d failed\n%s"
                trace = redact_traceback(error)
                logger.error(text, self._keys.run_id, trace)  # noqa: TRY400 - redacted
                self.due = anyio.current_time() + RETRY

    async def _renew(self) -> float:
        """Take or renew the lease. Return the seconds until the next request."""
        arguments = (*self.arguments, self._pool.bounds.ttl)
        try:
            await self._pool.open()
            sent_at = boot_seconds()
            reply = await self._pool.run_script(HOLD_RUN, self._keys, arguments)
        except RedisUnavailableError as error:
            if isinstance(error.__cause__, WrongTypeError):
                self.refusal = error.__cause__
            self.answered.set()
            return self._backoff.failed(permanent=isinstance(error, RedisRefusedError))
        self._backoff.succeeded()
        lease_reply = LeaseReply.of(reply)
        if self.handle_reply(lease_reply, sent_at=sent_at, now=boot_seconds()):
            return 0.0
        if self.standing is Ownership.OURS:
            self._log_regained()
        elif self.answered.is_set():
            self.log_lost()
        else:
            self.refusal = LeaseHeldError(self.key, lease_reply.remaining, REMEDY)
        self.answered.set()
        return math.inf if lease_reply.what == "ended" else self._pause

    def note_renewed(self, *, sent_at: float) -> None:
        """Record that the write of a batch has renewed the lease, too."""
        self.record_renewed(sent_at)
        self._log_regained()
        self.due = anyio.current_time() + self._pause

    def finish(self) -> None:
        """Stop renewing the lease in this process, without a request to Redis."""
        self._task.cancel()
        self.end()

    async def give_back(self) -> None:
        """End a lease that Redis may have granted, before any event was written."""
        nothing = add_arguments(
            (), maxlen=1, ttl=self._pool.bounds.ttl, floor=(0, BEGINNING),
            token=self.token, number=1, ends=True,
        )  # fmt: skip
        await self._pool.run_script(ADD_EVENTS, self._keys, nothing)

    def _log_regained(self) -> None:
        if self._logged_lost:
            self._logged_lost = False
            logger.info("run %d is ours again", self._keys.run_id)

    def log_lost(self) -> None:
        if not self._logged_lost:
            self._logged_lost = True
            text = (
                "run %d belongs to another writer now, or was ended by one: events are "
                "written on, its end is not"
            )
            logger.warning(text, self._keys.run_id)


class _Batch(list[PendingEvent]):
    """Events that are written by one script call."""

    def __init__(self, events: Sequence[PendingEvent]) -> None:
        super().__init__(events)
        self.rows: list[Prepared] = []
        self.pieces = 0  # number of pieces of a text that were merged
        self.ends = False  # whether the run ends with this batch
        self.number = 0  # 0 before the first write; repeated writes keep the number
        self.floor = 0  # the sequence that the first write had to exceed


@dataclass
class WriterCounts:
    """Counts of a run's task, which are part of :class:`RunWriterStats`."""

    behind_end: int = 0  # events after the end of the run, which were not written
    merged: int = 0  # pieces of a text that were written within another event
    cut: int = 0  # events whose data were too long and were shortened


class RunWriterTask:
    """Writes the events of one run, in a task of its own.

    A batch without a reply is sent again with the same number. If the first copy has
    arrived, the script recognises the number and does not add the events again.
    """

    def __init__(
        self,
        delivery: BatchWriter[PendingEvent],
        pool: WriterPool,
        keys: RunKeys,
        lease: RunLease | None,
        *,
        merges: bool,
    ) -> None:
        import asyncio  # noqa: PLC0415 - this import takes 20 ms

        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.counts: WriterCounts = WriterCounts()
        self._delivery = delivery
        self._pool = pool
        self._keys = keys
        self._token = lease.token if lease is not None else make_token(0)
        self._run_lease = lease
        self._merges = merges
        self._reported: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._throttled_log = ThrottledLog()
        self._has_end = False  # whether a batch contains the outcome of the run
        self._end: asyncio.Task[None] | None = None
        self._task = self._start(self._write_all)
        pool.tally.begin(self)

    def _start(
        self, function: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        return start_background(function, f"bls-agent run {self._keys.run_id}")

    def prepare(self, items: Sequence[PendingEvent]) -> _Batch:
        """Make a batch: add warnings about drops, merge pieces, encode all events."""
        ends = [item for item in items if item.ends]
        kept = [item for item in items if not item.ends]
        warnings = [] if self._has_end else self.report_drops()
        if self._has_end:
            self.counts.behind_end += len(kept)
            kept = []
        limit, cut = self._pool.bounds.event_size_limit, 0
        merged = merge(kept, limit) if self._merges else kept
        # The first event of a run is ``lifecycle.started``, also if others were dropped.
        first = [one for one in merged[:1] if one.starts_run]
        batch = _Batch([*first, *warnings, *merged[len(first) :], *ends])
        for event in batch:
            payload, was_cut = event.encode(limit)
            cut += was_cut
            when = format_timestamp(event.at)
            batch.rows.append(
                ("", when, *event.source, event.category, event.action, payload)
            )
        batch.pieces = len(kept) - len(merged)
        batch.ends = bool(ends) and ends[-1].action == "close"
        self._has_end |= bool(ends)
        if cut and not self.counts.cut:
            text = "data of run %d exceed event_size_limit and are cut, now and later"
            logger.warning(text, self._keys.run_id)
        self.counts.cut += cut
        return batch

    def report_drops(self) -> list[PendingEvent]:
        """Return warnings for readers about the events dropped since the last call."""
        dropped = Counter(self._delivery.buffer.stats().dropped)
        fresh, self._reported = dropped - self._reported, dropped
        warnings: list[PendingEvent] = []
        for reason in REPORTED:
            if count := fresh[reason]:
                data = {"dropped": count, "reason": reason}
                warnings.append(self.own_event("system", "warning", data))
        if warnings:
            self._log_drops(dropped)
        return warnings

    def _log_drops(self, dropped: Counter[str]) -> None:
        """Log, at most once a minute, how many events were dropped so far."""
        counts = [f"{dropped[why]:,} ({why})" for why in REPORTED if dropped[why]]
        if counts:
            counted = BlsError(f"so far {', '.join(counts)}; stats() counts on")
            consequence = f"events of run {self._keys.run_id} were dropped"
            self._throttled_log.warn(consequence, counted)

    def own_event(
        self, category: str, action: str, data: object, source: Source = NO_SOURCE
    ) -> PendingEvent:
        return capture(
            category, action, data, source,
            at=time.time(),  # noqa: TID251 - the time of the event
            limit=self._pool.bounds.event_size_limit, merges=False,
        )  # fmt: skip

    async def write(self, batch: Sequence[PendingEvent]) -> None:
        assert isinstance(batch, _Batch)  # noqa: S101 - prepare() made the batch
        if not batch:
            return
        floor = self._pool.marks.of(self._keys.run_id, boot_seconds())
        if not batch.number:
            batch.number, batch.floor = next(self._numbers), floor[0]
        arguments = add_arguments(
            batch.rows,
            maxlen=self._pool.bounds.maxlen,
            ttl=self._pool.bounds.ttl,
            floor=floor,
            token=self._token,
            number=batch.number,
            lease=self._run_lease.ttl if self._run_lease is not None else 0.0,
            ends=batch.ends,
        )
        # While the owner is alive, the run does not expire, because the owner renews
        # the TTL.
        lives = self._run_lease is not None and not batch.ends
        until = math.inf if lives else boot_seconds() + self._pool.bounds.ttl
        sent_at = boot_seconds()
        reply = await self._pool.run_script(ADD_EVENTS, self._keys, arguments)
        if reply[-1] == b"ours":
            reply = reply[:-1]
            if self._run_lease is not None:
                self._run_lease.note_renewed(sent_at=sent_at)
        self._handle_reply(batch, reply, until)
        self.counts.merged += batch.pieces

    def _handle_reply(self, batch: _Batch, reply: Reply, until: float) -> None:
        """Record the ids of the written events, and when the run expires."""
        sequence, *ids = reply
        again = ids[1:2] == [b"again"]
        if again:
            del ids[1:]
        if ids:
            last = ids[-1].decode()
            is_new = sequence < batch.floor
            self._pool.marks.raise_to(
                self._keys.run_id, sequence, last, until, is_new=is_new
            )
        if batch.ends and self._run_lease is not None:
            if not again and len(ids) < len(batch):
                self._run_lease.log_lost()
            self._run_lease.finish()

    def refuse(self, reason: str) -> None:
        """Count an event that was dropped before it reached the buffer."""
        self._pool.tally.refuse(reason)

    def count_events(self) -> EventCounts:
        buffered, behind_end = self._delivery.buffer.stats(), self.counts.behind_end
        dropped = Counter(buffered.dropped)
        if behind_end:
            dropped[CLOSED] += behind_end
        return EventCounts(buffered.delivered - behind_end, dropped, buffered.queued)

    async def check_written(self, batch: Sequence[PendingEvent]) -> Written:
        """Return ``NO``, because writing a batch again adds no events twice."""
        del batch
        return Written.NO

    @property
    def loop_is_closed(self) -> bool:
        return self.loop.is_closed()

    async def _write_all(self) -> None:
        from asyncio import CancelledError  # noqa: PLC0415 - this import takes 20 ms

        try:
            while True:
                try:
                    await self._deliver()
                except Exception as error:  # noqa: BLE001 - logged, and the run goes on
                    text = "writing the events of a run failed\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await anyio.sleep(RETRY)
        except CancelledError:
            if self._end is None:  # the event loop ends before the block was left
                await self._write_rest()
            raise

    async def _deliver(self) -> None:
        await self._delivery.run(self, Backoff(cap=CAP))

    async def _write_rest(self) -> None:
        with suppress(Exception), anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._deliver)
                await anyio.lowlevel.checkpoint()
                await self._delivery.flush(FINAL_WRITE)
                tasks.cancel_scope.cancel()

    async def flush(self, timeout: float) -> Flushed:
        """Wait until all events queued so far are written or dropped."""
        until = anyio.current_time() + timeout
        delivered, dropped, pause = 0, 0, 0.0
        while True:
            left = max(0.0, until - anyio.current_time())
            flushed = await self._delivery.flush(left)
            delivered += flushed.delivered
            dropped += flushed.dropped
            over = flushed or self._delivery.refused or self._task.done()
            if over or not left:
                return replace(flushed, delivered=delivered, dropped=dropped)
            # The task has not begun to write, or waits after an unexpected error.
            await anyio.sleep(min(pause, left))
            pause = GLANCE

    async def end(self, within: float) -> None:
        """Write the remaining events. Raise a cancellation of the caller afterwards."""
        await _wait_through(self._begin_end(within))

    def _begin_end(self, within: float) -> asyncio.Task[None]:
        if self._end is None:
            self._end = self._start(lambda: self._finish(within))
        return self._end

    def abandon(self) -> None:
        """Write the last events of an unclosed writer. Its lease then expires."""
        if self._run_lease is not None:
            self._run_lease.finish()
        self._end = self._begin_end(FINAL_WRITE)

    async def _finish(self, within: float) -> None:
        import asyncio  # noqa: PLC0415 - this import takes 20 ms

        until = anyio.current_time() + within
        try:
            await self.flush(within)
            loop_ends = self._task.done()
        except asyncio.CancelledError:
            loop_ends = True
        try:
            await cancel(self._task)
            if loop_ends:
                await self._write_rest()
            lost = self._delivery.give_up("shutdown")
            if lost:
                text = "run %d: %d events could not be written before the end"
                logger.warning(text, self._keys.run_id, lost)
            elif self._run_lease is None and not loop_ends:
                # Every batch was written, so none is sent again.
                left = max(0.0, until - anyio.current_time())
                await self._pool.remove_batch(self._keys, self._token, left)
            self._log_drops(Counter(self._delivery.buffer.stats().dropped))
        finally:
            if self._run_lease is not None:
                self._run_lease.finish()
            self._pool.users -= 1
            self._pool.tally.end(self)


async def _wait_through(task: asyncio.Task[None]) -> None:
    """Wait until a task has ended, even if the wait is cancelled meanwhile."""
    import asyncio  # noqa: PLC0415 - this import takes 20 ms

    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
