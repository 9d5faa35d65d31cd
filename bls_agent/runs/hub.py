"""Reads new events for all followers of one event loop.

All runs share one blocking connection. On a cluster, each hash slot has a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from bls_agent.connection.after_fork import never_finalize, register
from bls_agent.connection.blocking import BlockingConnection
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.events import EventId, StreamEvent
from bls_agent.runs.gaps import (
    Probe,
    RunPresence,
    continues,
    fetch_evidence,
    read_last,
)
from bls_agent.runs.reading import (
    GROWTH,
    PAGE,
    PAGE_BYTES,
    RunKeys,
    RunReader,
    decode_entries,
)
from bls_agent.runs.topic import RunTopic
from bls_agent.runtime.tasks import cancel, start_background

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

BLOCK: Final = 3.0  # seconds that the blocking read waits at the server
MARGIN: Final = 1.5  # seconds that the reply may need in addition to ``BLOCK``
MOST_MARGIN: Final = 10.0  # longest margin in seconds, for a server that is far away
FIRST_PAUSE: Final = 0.05  # seconds to wait after the first UNBLOCK, then doubled
GRACE: Final = 1.5  # seconds from the first UNBLOCK until the connection is dropped
OF_ITS_KEY: Final = ("wrong_type", "no_permission")  # errors that concern only one key
COUNT: Final = 100  # events in one reply for all runs, while their size is unknown
ASKED: Final = 3  # number of requests that probe one run

NAME: Final = "bls-agent-runs"  # name of the tasks
AT_ONCE: Final = 0.02  # seconds; probes that are due within this time are sent together


@dataclass
class PostedRead:
    """The blocking read that waits at the server now."""

    # Stream key → topic of the run, and the id after which its events are read.
    runs: dict[bytes, tuple[RunTopic, EventId]]
    count: int = COUNT  # largest number of events that the read returns for each run
    # When the read was sent. Moved forward when a part of the reply has arrived, because
    # the deadline is counted from this time.
    at: float = 0.0
    received: int | None = None  # number of bytes that had arrived before this wait


class StreamReader:
    """Reads new events of runs with one XREAD. On a cluster, each slot has a reader.

    The reader may drop a read and its reply at any time and send another read, because
    each topic stores its position.
    """

    def __init__(
        self, pool: ConnectionPool, key: str, wake: Callable[[], None]
    ) -> None:
        self.topics: dict[int, RunTopic] = {}  # run id → topic
        self.connection: Connection = pool.waiting(key)
        self._blocking = BlockingConnection(self.connection)
        self._pool = pool
        self._key = key
        self._wake = wake
        self._outage: RedisUnavailableError | None = None
        self._generation = 0  # ``connection.generation`` at the last read
        self._given_up = False  # whether this reader has dropped the connection
        self._room = COUNT  # largest number of events in one reply, all runs together
        self._margin = MARGIN
        self._posted = PostedRead({})
        self._is_stale = False  # whether the posted read has outdated runs or ids
        self._scope: anyio.CancelScope | None = None  # cancels a wait for a reply
        self._task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        return self._task is not None and not self._task.done()

    def add(self, topic: RunTopic) -> None:
        self.topics[topic.keys.run_id] = topic
        topic.outage = self._outage
        self.restart_read()
        if not self.runs:
            self._task = start_background(self._run, NAME, Context())
            self._task.add_done_callback(self._note_over)

    def restart_read(self) -> None:
        """Replace the blocking read, because its runs or ids are out of date."""
        self._is_stale = True
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while self._keep_wanted():
                try:
                    await self._read()
                except RedisUnavailableError as error:
                    await self._handle_error(error, backoff)
                except Exception as error:  # noqa: BLE001 - logged, then tried again
                    text = "following runs failed and is started again\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await self.connection.drop()
                    await anyio.sleep(1.0 + backoff.failed())
                else:
                    backoff.succeeded()
        finally:
            self._given_up = True
            self._outage = None
            await self.connection.aclose()

    def _note_over(self, _: asyncio.Task[None]) -> None:
        """Close all topics when the task has ended. Their followers make new topics."""
        for topic in self.topics.values():
            topic.close()
        self.topics.clear()

    def _keep_wanted(self) -> bool:
        now = anyio.current_time()
        for run_id, topic in list(self.topics.items()):
            if not topic.is_open or not topic.is_wanted(now):
                del self.topics[run_id]
                topic.close()
        return bool(self.topics)

    async def _read(self) -> None:
        if self._is_stale and self._blocking.pending:
            await self._release()
        if not self._blocking.pending:
            await self._post()
        reply, has_come = await self._collect(self._posted.at + BLOCK + self._margin)
        if has_come:
            await self._deliver(reply)
            # Let the followers write to their clients before the next read is posted,
            # because posting would delay each event.
            await anyio.lowlevel.checkpoint()
        elif not self._is_stale:
            await self._check_silence()

    async def _post(self) -> None:
        self._is_stale = False
        began = anyio.current_time()
        await self.connection.open()
        if self.connection.generation != self._generation:
            took = anyio.current_time() - began
            self._margin = min(max(MARGIN, 3 * took), MOST_MARGIN)
            self._room = COUNT  # because the next events may be large
            self._notice_opening()
        self._set_outage(None)
        topics = list(self.topics.values())
        keys = [topic.keys.events.encode() for topic in topics]
        places = [topic.buffer.head for topic in topics]
        self._posted = PostedRead(
            dict(zip(keys, zip(topics, places, strict=True), strict=True)),
            count=max(1, min(PAGE, self._room // len(topics))),
            at=anyio.current_time(),
        )
        wait = ("BLOCK", int(BLOCK * 1000), "COUNT", self._posted.count)
        await self._blocking.post([("XREAD", *wait, "STREAMS", *keys, *places)])

    def _set_outage(self, outage: RedisUnavailableError | None) -> None:
        self._outage = outage
        for topic in self.topics.values():
            topic.outage = outage

    def _notice_opening(self) -> None:
        """Check each position after a reconnect, as the server may have lost events."""
        was_lost = self._generation > 0 and not self._given_up
        now = anyio.current_time()
        for topic in self.topics.values():
            topic.needs_check = True
            if was_lost:
                topic.liveness.note_outage(now)
        self._wake()
        self._generation, self._given_up = self.connection.generation, False

    async def _collect(self, until: float) -> tuple[Any, bool]:
        """Return the reply, and whether it has arrived. Cancelling loses no reply."""
        self._posted.received = self._blocking.received
        with anyio.CancelScope(deadline=until) as scope:
            self._scope = scope
            if self._is_stale:
                scope.cancel()
            try:
                return await self._blocking.collect(), True
            finally:
                self._scope = None
        return None, False

    async def _check_silence(self) -> None:
        """Drop the connection if no byte has arrived since the wait began."""
        # New bytes may be a part of a large reply over a slow connection.
        if self._blocking.received != self._posted.received:
            self._posted.at = anyio.current_time() - BLOCK
            return
        await self.connection.drop()
        raise RedisUnavailableError(
            "deaf",
            "the waiting connection gave no answer",
            address=self.connection.address,
        )

    async def _release(self) -> None:
        pause, end = FIRST_PAUSE, anyio.current_time() + GRACE
        while self._blocking.pending:
            released = await self._unblock()
            if not released or anyio.current_time() > end:
                self._given_up = True
                await self.connection.drop()
                return
            with anyio.move_on_after(pause):
                await self._deliver(await self._blocking.collect())
            pause *= 2

    async def _unblock(self) -> bool:
        try:
            async with self._pool.to(self._key) as data:
                if data.server is not None and not self.connection.is_at(data.server):
                    return False  # another server uses the id for another connection
                return await self._blocking.unblock(data)
        except RedisUnavailableError:
            return False

    async def _deliver(self, reply: Any) -> None:
        jumps: list[tuple[RunTopic, list[StreamEvent], list[int]]] = []
        size = count = 0
        for key, entries in reply or ():
            topic, place = self._posted.runs[key]
            sizes = [sum(map(len, fields)) for _, fields in entries]
            size, count = size + sum(sizes), count + len(sizes)
            if not topic.is_open or topic.buffer.head != place:
                continue  # the topic was closed or restarted after the read was posted
            events = decode_entries(topic.keys.run_id, entries)
            if topic.liveness.note_events():
                self._wake()
            if continues(topic.known, events[0]):
                topic.append(events, sizes)
            else:
                jumps.append((topic, events, sizes))
        if count:
            each = max(1, size // count)
            asked = self._posted.count * len(self._posted.runs)
            self._room = min(PAGE_BYTES // each, GROWTH * asked)
        for jump in jumps:
            await self._deliver_jump(*jump)

    async def _deliver_jump(
        self, topic: RunTopic, events: list[StreamEvent], sizes: list[int]
    ) -> None:
        """Ask Redis whether events directly follow the head, then deliver them."""
        head = topic.buffer.head
        reader = RunReader(self._pool, topic.keys.run_id)
        evidence = await fetch_evidence(reader, head)
        if topic.buffer.head != head:
            return
        if evidence.stands:
            topic.append(events, sizes)
        else:
            topic.skip(events)

    async def _handle_error(
        self, error: RedisUnavailableError, backoff: Backoff
    ) -> None:
        """Close the topics of refused runs. If no run is refused, record an outage."""
        refused: dict[int, BlsError] = {}
        if isinstance(error, RedisRefusedError):
            try:
                refused = await self._find_refused(error)
            except RedisUnavailableError as other:
                error = other
        for run_id, failure in refused.items():
            topic = self.topics.pop(run_id)
            topic.failure = failure
            topic.close()
        if not refused:
            self._set_outage(error)
            await anyio.sleep(backoff.failed())

    async def _find_refused(self, error: RedisRefusedError) -> dict[int, BlsError]:
        """Return the runs that Redis refuses to read, each with its error.

        Return all runs if the cause is not a single key.
        """
        topics = list(self.topics.values())
        refused: dict[int, BlsError] = {}
        if not error.connecting:
            keys = [topic.keys.events for topic in topics]
            requests = [("XREAD", "COUNT", 1, "STREAMS", key, "$") for key in keys]
            replies = await self._pool.read_many(requests)
            for topic, reply in zip(topics, replies, strict=True):
                if isinstance(reply, RedisRefusedError):
                    reader = RunReader(self._pool, topic.keys.run_id)
                    refused[topic.keys.run_id] = reader.explain(reply)
            if refused or error.kind in OF_ITS_KEY:
                return refused  # empty if the key was repaired since the error
        return {topic.keys.run_id: error for topic in topics}

    async def aclose(self) -> None:
        await cancel(self._task)


class Hub:
    """The followed runs of one event loop, and the task that probes them.

    A probe asks Redis whether a run exists and whether its writer is alive.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self.is_closed: bool = False  # whether the store was closed in this loop
        self._streams: dict[int, StreamReader] = {}
        self._woken = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        register(self)

    def reset_after_fork(self) -> None:
        """Close the hub in a forked child, because its tasks belong to the parent."""
        self._detach()
        never_finalize(self)

    def find(self, run_id: int, key: str) -> RunTopic | None:
        stream = self._streams.get(self.pool.slot_of(key))
        topic = stream.topics.get(run_id) if stream is not None else None
        return topic if topic is not None and topic.is_open else None

    def join(
        self, keys: RunKeys, place: EventId, known: int | None, *, seen: bool
    ) -> RunTopic:
        """Make the topic of a run that has no topic. The topic begins after an id."""
        slot = self.pool.slot_of(keys.events)
        stream = self._streams.get(slot)
        if stream is None:
            self._streams = {at: one for at, one in self._streams.items() if one.runs}
            stream = self._streams[slot] = StreamReader(
                self.pool, keys.events, self._wake
            )
        topic = RunTopic(keys, place, known, seen=seen)
        stream.add(topic)
        self._wake()
        if self._task is None or self._task.done():
            self._task = start_background(self._probe_runs, NAME, Context())
        return topic

    def _wake(self) -> None:
        self._woken.set()

    @property
    def _topics(self) -> list[RunTopic]:
        streams = self._streams.values()
        return [topic for stream in streams for topic in stream.topics.values()]

    async def _probe_runs(self) -> None:
        backoff = Backoff()
        while topics := self._topics:
            now = anyio.current_time()
            due = [topic for topic in topics if topic.due_at <= now + AT_ONCE]
            try:
                if due:
                    await self._probe(due)
                    backoff.succeeded()
            except RedisUnavailableError:
                for topic in due:
                    topic.liveness.note_outage(anyio.current_time())
                    topic.needs_check = True
                await anyio.sleep(backoff.failed())
            except Exception as error:  # noqa: BLE001 - logged, then tried again
                text = "looking after runs failed and is started again\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                await anyio.sleep(1.0 + backoff.failed())
            else:
                await self._sleep()

    async def _probe(self, topics: list[RunTopic]) -> None:
        began = anyio.current_time()
        existed = [
            topic.liveness.presence is not RunPresence.UNSEEN for topic in topics
        ]
        checked = [(topic, topic.buffer.head) for topic in topics if topic.needs_check]
        for topic, _ in checked:  # a reconnect during the probe sets it again
            topic.needs_check = False
        requests = [one for topic in topics for one in _probe_requests(topic.keys)]
        requests += [("XINFO", "STREAM", topic.keys.events) for topic, _ in checked]
        replies = await self.pool.read_many(requests)
        elapsed = anyio.current_time() - began
        probes = [
            Probe.read(*replies[ASKED * at :][:ASKED], elapsed=elapsed, existed=before)
            for at, before in enumerate(existed)
        ]
        infos = replies[len(topics) * ASKED :]
        for (topic, head), about in zip(checked, infos, strict=True):
            last, _ = read_last(about)
            if topic.compare(head, last or head):
                self._restart_reads()
        now = anyio.current_time()
        for topic, probe in zip(topics, probes, strict=True):
            if topic.liveness.record(probe, now):
                topic.notify()
            if topic.liveness.has_disappeared:
                topic.close()

    def _restart_reads(self) -> None:
        for stream in self._streams.values():
            stream.restart_read()

    async def _sleep(self) -> None:
        topics = self._topics
        if not topics:
            return
        with anyio.CancelScope(deadline=min(topic.due_at for topic in topics)):
            await self._woken.wait()
        if self._woken.is_set():
            self._woken = anyio.Event()

    async def aclose(self) -> None:
        """End the tasks and wake the followers, which then end, too."""
        self.is_closed = True
        await cancel(self._task)
        for stream in list(self._streams.values()):
            await stream.aclose()

    def detach(self) -> None:
        """Drop topics and connections, because their event loop is closed."""
        self._detach()
        for stream in self._streams.values():
            stream.connection.detach()

    def _detach(self) -> None:
        self.is_closed = True
        for topic in self._topics:
            topic.detach()


def _probe_requests(keys: RunKeys) -> list[Request]:
    return [
        ("EXISTS", keys.events),
        ("HGET", keys.books, "owner"),
        ("PTTL", keys.owner),
    ]
