"""``EventStore``: the events of runs, written, read and followed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

import anyio

from bls_agent.connection.access import LoopLocal, RedisOrAgent, WritingStore
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import ADD_EVENTS
from bls_agent.core.checks import check_count
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runs.events import (
    BEGINNING,
    DAY,
    END,
    StreamEvent,
    check_bound,
    check_id,
    check_run_id,
    next_id,
    previous_id,
)
from bls_agent.runs.follower import Follower
from bls_agent.runs.hub import Hub
from bls_agent.runs.listing import RunList, RunSummary, describe_run, list_runs
from bls_agent.runs.new_events import (
    NewEvent,
    Prepared,
    add_arguments,
    encode_all,
    portions,
)
from bls_agent.runs.reading import NO_KEY, RunKeys, RunReader, find_wrong_run_key
from bls_agent.runs.tally import EventStoreStats, RunTally
from bls_agent.runs.writer import RunWriter, WriterOptions
from bls_agent.runs.writer_task import HighWaterMarks, WriterPool
from bls_agent.runtime.lease import boot_seconds

REFRESH: Final = 5.0  # seconds between two checks of Redis in a wait without limit

SIZE_LIMIT: Final = 1024 * 1024  # default limit in bytes for the data of an event
LEAST_LIMIT: Final = 256  # smallest allowed limit in bytes
MOST_ON_PAGE: Final = 2_000  # largest number of events on one page


@dataclass(frozen=True)
class EventPage:
    """A page of events, and the position of the next page.

    Attributes:
        events: The events, oldest first.
        next: Value to pass as ``after`` (or ``before``) to read the next page; ``None``
            if there is no further page now.
    """

    events: list[StreamEvent]
    next: str | None


class EventStore(WritingStore):
    """Writes, reads and follows the events of runs, in any event loop.

    The names of the methods and the order of their arguments are those of the protocol.
    Methods that do I/O are coroutines. If Redis cannot answer, a read raises
    :class:`~bls_agent.RedisUnavailableError` and never returns an empty result instead.
    """

    client_name: ClassVar[str] = "bls-runs"

    def __init__(
        self,
        redis: RedisOrAgent | None = None,
        *,
        maxlen: int = 10_000,
        ttl: int = DAY,
        event_size_limit: int = SIZE_LIMIT,
        on_error: Literal["raise", "none"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        """Store how to reach Redis. No connection is opened yet.

        Args:
            redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
                ``BLS_REDIS_URL``, read at the first request.
            maxlen: Approximate largest number of events that Redis keeps of a run.
            ttl: Seconds for which Redis keeps a run after its last event. The writer of
                an open run also extends this time while no event is written.
            event_size_limit: Largest number of bytes of an event's data as JSON.
            on_error: What a write does if Redis cannot answer. ``raise`` raises the
                error. ``none`` returns an empty result (``None`` from ``add``), counts
                the failure in ``failed_writes``, and logs a warning at most once a
                minute. A read always raises the error.
            timeout: Deadline of one request in seconds.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        super().__init__(redis, on_error=on_error, timeout=timeout)
        self.maxlen: int = check_count("maxlen", maxlen)
        self.ttl: int = check_count("ttl", ttl)
        self.event_size_limit: int = check_count(
            "event_size_limit", event_size_limit, least=LEAST_LIMIT
        )
        self._marks = HighWaterMarks()
        self._tally = RunTally()
        self._pools: LoopLocal[WriterPool] = LoopLocal()
        self._hubs: LoopLocal[Hub] = LoopLocal(Hub.detach)

    async def add(  # noqa: PLR0917 - the order of the protocol
        self,
        run_id: int,
        event_category: str,
        event_action: str,
        data: Mapping[str, Any] | None = None,
        source: Mapping[str, str | None] | None = None,
        timestamp: str | datetime | None = None,
        sequence: int | None = None,
    ) -> str | None:
        """Add one event, in one round trip.

        Redis numbers the events of all writers of the run in one sequence. If Redis has
        lost events, the sequence continues after the last event that this store has
        written. Each call restarts the TTL of the run.

        Args:
            run_id: The run.
            event_category: Any text, such as ``llm``.
            event_action: Any text, such as ``stream``.
            data: Content of the event, as a JSON object; default: ``{}``.
            source: ``agent_id``, ``agent_type``, ``agent_name``, ``team_name``.
            timestamp: Time of the event; default: now.
            sequence: Number of the event; default: counted by Redis.

        Returns:
            Id of the event; ``None`` if Redis could not answer and ``on_error="none"``.

        Raises:
            ConfigurationError: An argument breaks its rule. Nothing was written.
            WrongTypeError: The key is no stream. Nothing was written.
            RedisUnavailableError: Redis could not answer. If ``error.ambiguous`` is
                true, the event may have been added, otherwise it was not.
        """
        event = NewEvent(
            event_category, event_action, data, source, timestamp, sequence
        )
        ids = await self.add_many(run_id, [event])
        return ids[0] if ids else None

    async def add_many(
        self,
        run_id: int,
        events: Iterable[
            NewEvent | tuple[str, str] | tuple[str, str, Mapping[str, Any]]
        ],
    ) -> list[str]:
        """Add events in order, up to 500 of them in one round trip.

        Args:
            run_id: The run.
            events: :class:`NewEvent`, or tuples of its first fields.

        Returns:
            The ids of the events. If Redis stops answering and ``on_error="none"``, the
            ids of the events that were added before.

        Raises:
            ConfigurationError: An event breaks a rule. Nothing was written.
            WrongTypeError: The key is no stream. Nothing was written.
            RedisUnavailableError: Redis could not answer. Only the events of earlier
                round trips were surely added.
        """
        keys = RunKeys(check_run_id(run_id))
        now = time.time()  # noqa: TID251 - the time of the call
        prepared = encode_all(events, now, self.event_size_limit)
        ids: list[str] = []
        for portion in portions(prepared):
            sent_at = boot_seconds()
            floor = self._marks.of(run_id, sent_at)
            try:
                sequence, *added = await self._run_script(keys, portion, floor)
            except RedisUnavailableError as error:
                self._absorb(error)
                break
            ids += [one.decode() for one in added]
            is_new, until = sequence < floor[0], sent_at + self.ttl
            self._marks.raise_to(run_id, sequence, ids[-1], until, is_new=is_new)
        return ids

    async def _run_script(
        self, keys: RunKeys, events: Sequence[Prepared], floor: tuple[int, str]
    ) -> Reply:
        arguments = add_arguments(events, maxlen=self.maxlen, ttl=self.ttl, floor=floor)
        try:
            async with self._access.pool.to(keys.events) as connection:
                return await ADD_EVENTS.run(connection, keys.all, arguments)
        except RedisUnavailableError as error:
            if error.kind == "wrong_type":
                raise await find_wrong_run_key(self._access.pool, keys) from error
            raise

    def run(
        self,
        run_id: int,
        *,
        source: Mapping[str, str | None] | None = None,
        data: Mapping[str, Any] | None = None,
        lifecycle: bool = True,
        lease: float = 15.0,
        coalesce: float = 0.05,
        buffer: int = 10_000,
        buffer_bytes: int = 8 * 1024 * 1024,
        shutdown_timeout: float = 10.0,
    ) -> RunWriter:
        """Return a writer for a whole run: ``async with store.run(1) as run:``.

        Entering the block writes ``lifecycle.started``. Leaving the block writes
        ``lifecycle.completed``, ``failed`` with the error, or ``cancelled``, and then
        ``system.close``. In the block, ``run.emit(…)`` accepts events from any thread
        without waiting. Each event is written exactly once and in order, unless a full
        buffer drops the event. The writer then writes a ``system.warning`` with the
        number of dropped events.

        Args:
            run_id: The run. Only one writer at a time can own the run.
            source: The source of events that are emitted without a source.
            data: Data of ``lifecycle.started``.
            lifecycle: Whether this writer begins, owns and ends the run. If ``False``,
                the writer only adds events to the run of another writer.
            lease: Seconds without a sign of the writer after which the writer counts as
                lost. The lease is a key with this TTL. Each written batch renews the
                lease. Without batches, a task renews it three times within the TTL.
            coalesce: Seconds for which events are collected before a write.
                Neighbouring ``llm.stream`` events that differ only in their text
                (``content``, ``delta``, ``text``, ``token`` or ``chunk``) are merged.
                With 0, no events are merged.
            buffer: Largest number of events in memory, at least 1,000. A full buffer
                drops ``llm.stream`` first, the categories ``lifecycle`` and ``system``
                last.
            buffer_bytes: Largest number of bytes of these events, at least 1 MiB and
                four times ``event_size_limit``.
            shutdown_timeout: Longest time in seconds for the last writes when the block
                is left.

        Returns:
            The writer, which ``async with`` or ``with`` opens.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        options = WriterOptions(
            lifecycle,
            lease,
            coalesce,
            buffer,
            buffer_bytes,
            shutdown_timeout,
            self.event_size_limit,
        )
        return RunWriter(
            check_run_id(run_id),
            access=self._access,
            get_pool=self._writer_pool,
            source=source,
            data=data,
            options=options,
        )

    def _writer_pool(self) -> WriterPool:
        return self._pools.get(self._make_pool)

    def _make_pool(self) -> WriterPool:
        return WriterPool(self._access, self._marks, self, self._tally)

    def stats(self) -> EventStoreStats:
        """Return the store's counters in this process. Any thread may call this."""
        return self._tally.show(self.failed_writes)

    async def set_expire(self, run_id: int, ttl_seconds: int = DAY) -> bool:
        """Set when a run expires if no further event is written.

        Args:
            run_id: The run.
            ttl_seconds: Seconds from now.

        Returns:
            ``True`` if the run exists. ``False`` if the run does not exist, or if Redis
            could not answer and ``on_error="none"``.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream, and was not changed.
            RedisUnavailableError: Redis could not answer. If ``error.ambiguous`` is
                true, the time may have been set, otherwise it was not.
        """
        keys = RunKeys(check_run_id(run_id))
        ttl = check_count("ttl_seconds", ttl_seconds)
        until = boot_seconds() + ttl
        reader, both = RunReader(self._access.pool, run_id), [keys.events, keys.books]
        try:
            expires = bool(await self._each(reader, both, "EXPIRE", ttl))
        except RedisUnavailableError as error:
            self._absorb(error)
            return False
        self._marks.expire(run_id, until)
        return expires

    async def delete(self, run_id: int) -> bool:
        """Delete the events of a run.

        Afterwards the sequence of the run begins at 1 again. If a writer is alive, the
        sequence continues, because the writer remembers the last number.

        Args:
            run_id: The run.

        Returns:
            ``True`` if the run had events. ``False`` if the run had no events, or if
            Redis could not answer and ``on_error="none"``.

        Raises:
            ConfigurationError: ``run_id`` is no id of a run.
            WrongTypeError: The key is no stream, and was not changed.
            RedisUnavailableError: Redis could not answer. If ``error.ambiguous`` is
                true, the events may have been deleted, otherwise they were not.
        """
        keys = RunKeys(check_run_id(run_id))
        reader = RunReader(self._access.pool, run_id)
        try:
            # If the lease of a run exists, the writer is alive.
            if await self._access.pool.read(keys.owner, "PTTL") != NO_KEY:
                return bool(await self._each(reader, [keys.events], "UNLINK"))
            deleted = await self._each(reader, [keys.events, keys.books], "UNLINK")
        except RedisUnavailableError as error:
            self._absorb(error)
            return False
        self._marks.forget(run_id)
        return bool(deleted)

    async def _each(
        self, reader: RunReader, keys: Sequence[str], name: str, *rest: Argument
    ) -> Reply:
        """Check that the run is a stream, then send a command for each of its keys."""
        await reader.ask("XLEN")
        requests = [(name, key, *rest) for key in keys]
        async with self._access.pool.to(reader.keys.events) as connection:
            replies = await connection.call_many(requests)
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                raise reply
        return replies[0]

    async def get_events(
        self,
        run_id: int,
        start_id: str = "-",
        end_id: str = "+",
        count: int | None = None,
    ) -> list[StreamEvent]:
        """Read events of a range, including both ends.

        Args:
            run_id: The run.
            start_id: Id of the first event, or ``-`` for the oldest.
            end_id: Id of the last event, or ``+`` for the newest.
            count: Largest number of events to return; default: all events.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        start = check_bound("start_id", start_id)
        end = check_bound("end_id", end_id)
        return await self._read(run_id, start, end, count)

    async def _read(
        self, run_id: int, start: str | None, end: str, count: int | None
    ) -> list[StreamEvent]:
        if count is not None and check_count("count", count, least=0) == 0:
            return []
        events: list[StreamEvent] = []
        async for page in self._reader(run_id).pages(start, end, count):
            events += page.events
        return events

    async def get_events_after(
        self, run_id: int, last_id: str, count: int | None = None
    ) -> list[StreamEvent]:
        """Read events after an id, for a client that was disconnected.

        Args:
            run_id: The run.
            last_id: Id of the last event that the client has. Only later events are
                returned.
            count: Largest number of events to return; default: all events.

        Raises the same errors as :meth:`get_events`.
        """
        start = next_id(check_id("last_id", last_id))
        return await self._read(run_id, start, "+", count)

    async def page(
        self, run_id: int, *, after: str | None = None, limit: int = 100
    ) -> EventPage:
        """Read one page of events, the oldest first. No event is on two pages.

        A page ends early after about 4 MiB of events.

        Args:
            run_id: The run.
            after: ``next`` of the previous page; default: the first page.
            limit: Largest number of events on the page, from 1 to 2,000.

        Raises the same errors as :meth:`get_events`.
        """
        check_count("limit", limit, most=MOST_ON_PAGE)
        last = check_id("after", after) if after is not None else BEGINNING
        reader = self._reader(run_id)
        events, has_more = await reader.read_limited(next_id(last), "+", limit)
        return EventPage(events, events[-1].id if has_more else None)

    async def page_back(
        self, run_id: int, *, before: str | None = None, limit: int = 100
    ) -> EventPage:
        """Read the page of events before an id, for a view that scrolls back.

        A page ends early after about 4 MiB of events.

        Args:
            run_id: The run.
            before: ``next`` of the page that was read last; default: the newest page.
            limit: Largest number of events on the page, from 1 to 2,000.

        Returns:
            The events, the oldest first. Pass ``next`` as ``before`` to read earlier
            events. ``next`` is ``None`` at the beginning of the run.

        Raises the same errors as :meth:`get_events`.
        """
        check_count("limit", limit, most=MOST_ON_PAGE)
        end = "+" if before is None else previous_id(check_id("before", before))
        reader = self._reader(run_id)
        found, has_more = await reader.read_limited("-", end, limit, back=True)
        return EventPage(found[::-1], found[-1].id if has_more else None)

    async def tail(self, run_id: int) -> str:
        """Return the id of the last event.

        Pass the id to :meth:`subscribe` or :meth:`follow` to read only new events.

        Returns:
            The id; ``0-0`` if the run has no event.

        Raises the same errors as :meth:`get_events`.
        """
        last = await self._reader(run_id).last()
        return BEGINNING if last is None else last.id

    def follow(self, run_id: int, last_id: str = BEGINNING) -> Follower:
        """Return an iterable of the events after an id, also of future events.

        The iteration returns each event once, in order. Where events are missing, the
        iteration returns a :class:`~bls_agent.runs.Gap`. If the writer has stopped
        without ending the run, the iteration returns a
        :class:`~bls_agent.runs.WriterLost`. The iteration waits if the run does not
        exist yet, and while Redis is unavailable. The iteration ends after
        ``system.close``, or if the run was deleted or has expired.

        Args:
            run_id: The run.
            last_id: Id of the last event that the caller has; ``0-0`` for all events in
                Redis, ``$`` for events that are written after the iteration began.

        Returns:
            A follower for ``async for``, which need not be closed.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        last = last_id if last_id == END else check_id("last_id", last_id)
        return Follower(self._hub, check_run_id(run_id), last)

    async def subscribe(
        self, run_id: int, last_id: str = END, block_ms: int = 5000
    ) -> list[StreamEvent]:
        """Wait once for events after an id, like the protocol's blocking read.

        The store does not remember a position between two calls. Pass the id from
        :meth:`tail` to the first call, and the id of your last event to each later
        call. A loop that always passes ``$`` misses events that are written between two
        calls. :meth:`follow` misses no event.

        Args:
            run_id: The run.
            last_id: Id of the last event that the caller has; ``$`` for new events
                only.
            block_ms: Longest wait in milliseconds; 0 waits without limit.

        Returns:
            The events; an empty list if no event arrived in time.

        Raises the same errors as :meth:`get_events`.
        """
        last = last_id if last_id == END else check_id("last_id", last_id)
        wait = check_count("block_ms", block_ms, least=0) / 1000
        follower = Follower(self._hub, check_run_id(run_id), last, is_plain=True)
        while True:
            found = await follower.batch(wait or REFRESH)
            if not found and follower.unavailable is not None:
                raise follower.unavailable
            if found or wait or follower.ended:
                return [event for event in found if isinstance(event, StreamEvent)]

    async def runs(self, limit: int = 100) -> RunList:
        """Find all runs. The run with the newest event is the first.

        SCAN searches all keys of the database. If a key looks like the key of a run but
        cannot be read, the key is counted in ``left_out``, and the other runs are
        returned.

        Args:
            limit: Largest number of runs to return, up to 10,000.

        Raises:
            ConfigurationError: ``limit`` breaks its rule.
            RedisUnavailableError: Redis cannot answer, or no run can be read because
                of a missing permission.
        """
        return await list_runs(self._access.pool, limit)

    async def describe(self, run_id: int) -> RunSummary | None:
        """Return the summary of a run, or ``None`` if the run does not exist.

        Raises the same errors as :meth:`get_events`.
        """
        return await describe_run(self._access.pool, run_id)

    async def exists(self, run_id: int) -> bool:
        """Return whether the stream of a run exists, even if it is empty.

        Raises the same errors as :meth:`get_events`.
        """
        reader = self._reader(run_id)
        return bool(await reader.ask("XLEN")) or bool(await reader.ask("EXISTS"))

    async def has_writer(self, run_id: int) -> bool:
        """Return whether a living writer owns a run, even if the run has no stream.

        If Redis loses the stream of a living writer, the next event of this writer
        makes the stream again.

        Raises the same errors as :meth:`get_events`.
        """
        reader = self._reader(run_id)
        return bool(await reader.pool.read(reader.keys.owner, "PTTL") != NO_KEY)

    async def get_length(self, run_id: int) -> int:
        """Return the number of events of a run that are in Redis.

        Raises the same errors as :meth:`get_events`.
        """
        length: int = await self._reader(run_id).ask("XLEN")
        return length

    async def aclose(self) -> None:
        """Close the connections of this event loop. The next request opens new ones.

        The followers in this event loop end.
        """
        # Without the shield, a cancelled ``async with`` block would not close the
        # store.
        with anyio.move_on_after(self._access.timeout, shield=True):
            hub = self._hubs.pop()
            if hub is not None:
                await hub.aclose()
            await super().aclose()

    def _hub(self) -> Hub:
        return self._hubs.get(lambda: Hub(self._access.pool))

    def _reader(self, run_id: int) -> RunReader:
        return RunReader(self._access.pool, check_run_id(run_id))
