"""``EventStore``: the events of runs, written, read and followed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

import anyio

from bls_agent.connection.access import LoopLocal, WritingStore
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import ADD_EVENTS
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runs.events import (
    BEGINNING,
    DAY,
    END,
    StreamEvent,
    check_bound,
    check_count,
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
    log_mended,
    portions,
)
from bls_agent.runs.reading import NO_KEY, RunKeys, RunReader, find_wrong_run_key
from bls_agent.runs.writer import RunWriter, WriterOptions
from bls_agent.runs.writer_task import HighWaterMarks, WriterPool
from bls_agent.runtime.lease import boot_seconds

REFRESH: Final = 5.0  # seconds between two checks of Redis in an endless wait

SIZE_LIMIT: Final = 1024 * 1024  # bytes of an event's data
LEAST_LIMIT: Final = 256


@dataclass(frozen=True)
class EventPage:
    """Some events, and where the next ones begin.

    Attributes:
        events: Oldest first.
        next: Pass it as ``after`` for what follows; ``None`` if this was the last page
            of what is there now.
    """

    events: list[StreamEvent]
    next: str | None


class EventStore(WritingStore):
    """Writes, reads and follows the events of runs; usable from any event loop.

    The methods of the protocol, with their names and argument order; each that does I/O
    is awaited. Down is not empty: where Redis cannot answer,
    :class:`~bls_agent.RedisUnavailableError` is raised.
    """

    client_name: ClassVar[str] = "bls-runs"

    def __init__(
        self,
        redis: object = None,
        *,
        maxlen: int = 10_000,
        ttl: int = DAY,
        event_size_limit: int = SIZE_LIMIT,
        on_error: Literal["raise", "none"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        """Remember where Redis is; nothing is opened yet.

        Args:
            redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
                ``BLS_REDIS_URL``, read at the first request.
            maxlen: About how many events of a run are kept.
            ttl: Seconds for which a run is kept after its last sign of life.
            event_size_limit: Longest data of an event, in bytes of JSON.
            on_error: What a write does when Redis cannot answer: ``raise``, or return
                what stands for nothing (``add`` ``None``, as the document says); then
                it is counted in ``failed_writes``, and a warning is logged, once a
                minute at most. Reads always raise.
            timeout: Deadline of one request in seconds.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        super().__init__(redis, on_error=on_error, timeout=timeout)
        self.maxlen = check_count("maxlen", maxlen)
        self.ttl = check_count("ttl", ttl)
        self.event_size_limit = check_count(
            "event_size_limit", event_size_limit, least=LEAST_LIMIT
        )
        self._marks = HighWaterMarks()
        self._pools: LoopLocal[WriterPool] = LoopLocal()
        self._hubs: LoopLocal[Hub] = LoopLocal(Hub.detach)

    async def add(  # noqa: PLR0917 - the order of the document
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

        Redis counts its sequence over all writers of the run, and goes on behind what
        this store has written last if it has forgotten. The run's TTL begins anew.

        Args:
            run_id: The run.
            event_category: Such as ``llm``; any text.
            event_action: Such as ``stream``; any text.
            data: What a JSON object can hold.
            source: ``agent_id``, ``agent_type``, ``agent_name``, ``team_name``.
            timestamp: When it happened; default: now.
            sequence: Its number; default: counted.

        Returns:
            Its id; with ``on_error="none"`` ``None`` where Redis could not answer.

        Raises:
            ConfigurationError: An argument breaks its rule; nothing was written.
            WrongTypeError: The key is no stream; nothing was written.
            RedisUnavailableError: Not added; or perhaps, if ``error.ambiguous``.
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
        """Add events, in their order, hundreds in one round trip.

        Args:
            run_id: The run.
            events: :class:`NewEvent`, or tuples of its first fields.

        Returns:
            The ids of the events; with ``on_error="none"`` of the first ones alone, as
            far as they were added before Redis could not answer.

        Raises:
            ConfigurationError: One of them breaks a rule; nothing was written.
            WrongTypeError: The key is no stream; nothing was written.
            RedisUnavailableError: Not all were added. Those of earlier portions were.
        """
        keys = RunKeys(check_run_id(run_id))
        now = time.time()  # noqa: TID251 - the outermost place
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
                reply = await ADD_EVENTS.run(connection, keys.all, arguments)
                return log_mended(reply, keys)
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
        """Write a run from beginning to end: ``async with store.run(1) as run:``.

        Opening writes ``lifecycle.started``; leaving ``completed``, ``failed`` with the
        error, or ``cancelled``, then ``system.close``. In between ``run.emit(…)``
        writes events, from any thread, without ever waiting: each exactly once and in
        order, unless the buffer was full, which readers see as a ``system.warning``.

        Args:
            run_id: The run. One living writer owns it at a time.
            source: The source of events that name none.
            data: Data of ``lifecycle.started``.
            lifecycle: Whether this writer begins and ends the run, and owns it. Else it
                only contributes events to the run of another writer.
            lease: Seconds after which followers learn that a writer is lost that died
                without leaving; renewed with each batch, else three times in it.
            coalesce: Seconds for which events gather. Neighbouring ``llm.stream``
                events that differ in their text alone (``content``, ``delta``,
                ``text``, ``token`` or ``chunk``) become one. 0 merges none.
            buffer: Events in memory at most, 1,000 or more. Pieces of texts are given
                up first, the categories ``lifecycle`` and ``system`` last.
            buffer_bytes: Their bytes at most; room for four of the longest events.
            shutdown_timeout: Seconds that leaving takes at most.

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
        return self._pools.get(lambda: WriterPool(self._access, self._marks, self))

    async def set_expire(self, run_id: int, ttl_seconds: int = DAY) -> bool:
        """Set when a run is forgotten if nothing more is written.

        Args:
            run_id: The run.
            ttl_seconds: Seconds from now.

        Returns:
            Whether there is such a run; with ``on_error="none"`` ``False`` where Redis
            could not answer.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream; it was left alone.
            RedisUnavailableError: Not set; or perhaps, if ``error.ambiguous``.
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

        Its sequences begin anew; those of a run whose writer lives go on, because that
        writer knows how far they had come.

        Returns:
            Whether there were any; with ``on_error="none"`` ``False`` where Redis could
            not answer.

        Raises:
            ConfigurationError: ``run_id`` is none.
            WrongTypeError: The key is no stream; it was left alone.
            RedisUnavailableError: Not deleted; or perhaps, if ``error.ambiguous``.
        """
        keys = RunKeys(check_run_id(run_id))
        reader = RunReader(self._access.pool, run_id)
        try:
            # where the run has a lease its writer lives
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
        """Send a request for each key if the first one is a stream; give its reply."""
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
        """Read events of a range, both ends in it.

        Args:
            run_id: The run.
            start_id: Id of the first event, or ``-`` for the oldest.
            end_id: Id of the last event, or ``+`` for the newest.
            count: Events at most; default: all of them.

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
            events += page
        return events

    async def get_events_after(
        self, run_id: int, last_id: str, count: int | None = None
    ) -> list[StreamEvent]:
        """Read events behind an id, for a client that was disconnected.

        Args:
            run_id: The run.
            last_id: Id of the last event that is known; it is not given again.
            count: Events at most; default: all of them.

        Raises as :meth:`get_events`.
        """
        start = next_id(check_id("last_id", last_id))
        return await self._read(run_id, start, "+", count)

    async def page(
        self, run_id: int, *, after: str | None = None, limit: int = 100
    ) -> EventPage:
        """Read a page; no event stands on two of them, and none between them.

        Args:
            run_id: The run.
            after: The ``next`` of the page before; default: the first page.
            limit: Longest page, from 1 to 1,000.

        Raises as :meth:`get_events`.
        """
        check_count("limit", limit, most=1_000)
        last = check_id("after", after) if after is not None else BEGINNING
        start = next_id(last)
        found = await self._read(run_id, start, "+", limit + 1)
        events = found[:limit]
        return EventPage(events, events[-1].id if len(found) > limit else None)

    async def page_back(
        self, run_id: int, *, before: str | None = None, limit: int = 100
    ) -> EventPage:
        """Read a page of what stands before a place, as for a page that scrolls up.

        Args:
            run_id: The run.
            before: The ``next`` of the page after it; default: the newest page.
            limit: Longest page, from 1 to 1,000.

        Returns:
            The events, oldest first; ``next`` is what to pass as ``before`` for what
            stands before them, ``None`` at the beginning.

        Raises as :meth:`get_events`.
        """
        check_count("limit", limit, most=1_000)
        end = "+" if before is None else previous_id(check_id("before", before))
        if end is None:
            return EventPage([], None)
        found = await self._reader(run_id).read_back(end, limit + 1)
        events = found[:limit][::-1]
        return EventPage(events, events[0].id if len(found) > limit else None)

    async def tail(self, run_id: int) -> str:
        """Return the id of the last event: what is read behind it is new.

        Returns:
            The id; ``0-0`` if there is no event.

        Raises as :meth:`get_events`.
        """
        last = await self._reader(run_id).last()
        return BEGINNING if last is None else last.id

    def follow(self, run_id: int, last_id: str = BEGINNING) -> Follower:
        """Return the events behind a place as they are written, each once, in order.

        It waits for a run that does not exist yet, and through outages of Redis. A
        :class:`~bls_agent.runs.Gap` stands where events are missing, a
        :class:`~bls_agent.runs.WriterLost` where the writer fell silent without ending
        the run. It ends at ``system.close``, and when the run disappears.

        Args:
            run_id: The run.
            last_id: Id of the last event that is known; ``0-0`` for all that are kept,
                ``$`` for those that come from the first wait on.

        Returns:
            What to iterate over with ``async for``; it needs no closing.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        last = last_id if last_id == END else check_id("last_id", last_id)
        return Follower(self._hub, check_run_id(run_id), last)

    async def subscribe(
        self, run_id: int, last_id: str = END, block_ms: int = 5000
    ) -> list[StreamEvent]:
        """Wait for the events behind a place, once: the protocol's blocking read.

        Each call stands for itself: pass the id of the last event that you have, and
        begin with :meth:`tail`. With ``$`` in a loop, what is written between two calls
        is missed; :meth:`follow` misses nothing.

        Args:
            run_id: The run.
            last_id: Id of the last event that is known; ``$`` for what comes from now
                on.
            block_ms: Milliseconds to wait at most; 0 for as long as it takes.

        Returns:
            The events; empty if none has come in time.

        Raises as :meth:`get_events`.
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
        """Find all runs, the one with the newest event first.

        All keys are searched with SCAN. What has the key of a run and is none, or may
        not be read, hides no other run; it is counted.

        Args:
            limit: Runs at most, up to 10,000.

        Raises:
            ConfigurationError: ``limit`` breaks its rule.
            RedisUnavailableError: Redis cannot answer, or allows to read none of the
                runs.
        """
        return await list_runs(self._access.pool, limit)

    async def describe(self, run_id: int) -> RunSummary | None:
        """Summarise a run; ``None`` if there is no such run.

        Raises as :meth:`get_events`.
        """
        return await describe_run(self._access.pool, run_id)

    async def exists(self, run_id: int) -> bool:
        """Return whether a run has events.

        Raises as :meth:`get_events`.
        """
        reader = self._reader(run_id)
        return bool(await reader.ask("XLEN")) or bool(await reader.ask("EXISTS"))

    async def get_length(self, run_id: int) -> int:
        """Count the events of a run that are kept.

        Raises as :meth:`get_events`.
        """
        length: int = await self._reader(run_id).ask("XLEN")
        return length

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next request opens them again.

        Iterations of followers in this loop end.
        """
        # A cancelled block closes the store, too.
        with anyio.move_on_after(self._access.timeout, shield=True):
            hub = self._hubs.pop()
            if hub is not None:
                await hub.aclose()
            await super().aclose()

    def _hub(self) -> Hub:
        return self._hubs.get(lambda: Hub(self._access.pool))

    def _reader(self, run_id: int) -> RunReader:
        return RunReader(self._access.pool, check_run_id(run_id))
