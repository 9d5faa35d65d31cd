"""All runs that are followed in one event loop, over one waiting connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from bls_agent.connection.after_fork import never_finalize, register
from bls_agent.connection.blocking import BlockingConnection
from bls_agent.connection.endpoint import Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.events import EventId, StreamEvent
from bls_agent.runs.gaps import Probe, continues, fetch_evidence, read_last
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

logger = logging.getLogger(__name__)

BLOCK: Final = 3.0  # seconds that the read waits at the server
MARGIN: Final = 1.5  # seconds that its reply may be late
MOST_MARGIN: Final = 10.0  # the same for a server that is far away
FIRST_PAUSE: Final = 0.05  # seconds from one UNBLOCK to the next, then twice as many
GRACE: Final = 1.5  # seconds from the first UNBLOCK until the connection is given up
OF_ITS_KEY: Final = ("wrong_type", "no_permission")  # others may be read
COUNT: Final = 100  # events of all runs in one reply, while their size is unknown
ASKED: Final = 3  # requests of a probe of one run

NAME: Final = "bls-agent-runs"  # of the tasks
AT_ONCE: Final = 0.02  # seconds: probes that are due within it go into one write


@dataclass
class PostedRead:
    """The blocking read that is under way."""

    # By key: the run, and the place behind which its events are read.
    runs: dict[bytes, tuple[RunTopic, EventId]]
    count: int = COUNT  # events that it asks for, of each run
    at: float = 0.0  # when it was posted, or something has come
    received: int | None = None  # bytes that the connection had received


class StreamReader:
    """Reads the new events of its runs with one XREAD; on a cluster those of a slot.

    The topics keep the places: a read may be dropped at any time, with its reply, and
    sent again.
    """

    def __init__(
        self, pool: ConnectionPool, key: str, wake: Callable[[], None]
    ) -> None:
        self.topics: dict[int, RunTopic] = {}  # the runs, by their ids
        self.connection = pool.waiting(key)
        self._blocking = BlockingConnection(self.connection)
        self._pool = pool
        self._key = key
        self._wake = wake
        self._outage: RedisUnavailableError | None = None
        self._generation = 0  # of the connection, when it was used last
        self._given_up = False  # whether this reader has dropped the connection
        self._room = COUNT  # events in a reply, of all runs
        self._margin = MARGIN
        self._posted = PostedRead({})
        self._is_stale = False  # whether the read waits behind outdated places
        self._scope: anyio.CancelScope | None = None  # while a reply is waited for
        self._task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        return self._task is not None and not self._task.done()

    def add(self, topic: RunTopic) -> None:
        self.topics[topic.keys.run_id] = topic
        topic.outage = self._outage
        self.restart_read()
        if not self.runs:
            self._task = start_background(self._run, NAME)
            self._task.add_done_callback(self._note_over)

    def restart_read(self) -> None:
        """Drop the blocking read, which waits behind outdated places."""
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
                except Exception as error:  # noqa: BLE001 - the one place; the log tells
                    text = "following runs failed and is started again\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await self.connection.drop()
                    await anyio.sleep(1.0 + backoff.failed())
                else:
                    backoff.succeeded()
        finally:
            self._given_up = True
            await self.connection.aclose()

    def _note_over(self, _: asyncio.Task[None]) -> None:
        """Wake all followers when the task ended or was cancelled: they begin anew."""
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
        elif not self._is_stale:
            await self._check_silence()

    async def _post(self) -> None:
        self._is_stale = False
        began = anyio.current_time()
        await self.connection.open()
        if self.connection.generation != self._generation:
            took = anyio.current_time() - began
            self._margin = min(max(MARGIN, 3 * took), MOST_MARGIN)
            self._room = COUNT  # what has come meanwhile may be large
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
        """Have the heads compared: another server may answer now, which is behind."""
        was_lost = self._generation > 0 and not self._given_up
        now = anyio.current_time()
        for topic in self.topics.values():
            topic.needs_check = True
            if was_lost:
                topic.liveness.note_outage(now)
        self._wake()
        self._generation, self._given_up = self.connection.generation, False

    async def _collect(self, until: float) -> tuple[Any, bool]:
        """Wait for the reply; cancelling that loses nothing."""
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
        """Drop a connection over which nothing has come for too long."""
        # It may be a large reply over a narrow link.
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
                    return False  # there the id is another connection's
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
                continue  # the ring was restarted meanwhile
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
        """Deliver events that may not stand right behind the head, after a query."""
        head = topic.buffer.head
        reader = RunReader(self._pool, topic.keys.run_id)
        evidence = await fetch_evidence(reader, head, events[0].id)
        if topic.buffer.head != head:
            return
        if evidence.stands and not evidence.noted:
            topic.append(events, sizes)
        else:
            topic.skip(events)

    async def _handle_error(
        self, error: RedisUnavailableError, backoff: Backoff
    ) -> None:
        """Fail the runs that are refused; if there are none, it is an outage."""
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
        """Find the runs that cannot be read; all of them where it is not their keys."""
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
            if refused or error.kind in OF_ITS_KEY:  # else it was mended meanwhile
                return refused
        return {topic.keys.run_id: error for topic in topics}

    async def aclose(self) -> None:
        await cancel(self._task)


class Hub:
    """The runs followed in one event loop, and the task that probes them."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self.is_closed = False  # its store was closed in this loop: followers end
        self._streams: dict[int, StreamReader] = {}
        self._woken = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        register(self)

    def reset_after_fork(self) -> None:
        """In a forked child: tasks and waiting followers are the parent's."""
        self._detach()
        never_finalize(self)

    def find(self, run_id: int, key: str) -> RunTopic | None:
        stream = self._streams.get(self.pool.slot_of(key))
        topic = stream.topics.get(run_id) if stream is not None else None
        return topic if topic is not None and topic.is_open else None

    def join(
        self, keys: RunKeys, place: EventId, known: int | None, *, seen: bool
    ) -> RunTopic:
        """Make the topic of a run that is not followed yet; it begins at a place."""
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
            self._task = start_background(self._probe_runs, NAME)
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
            except Exception as error:  # noqa: BLE001 - the one place; the log tells
                text = "looking after runs failed and is started again\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                await anyio.sleep(1.0 + backoff.failed())
            else:
                await self._sleep()

    async def _probe(self, topics: list[RunTopic]) -> None:
        began = anyio.current_time()
        existed = [topic.liveness.existed for topic in topics]
        checked = [(topic, topic.buffer.head) for topic in topics if topic.needs_check]
        for topic, _ in checked:  # a reconnect meanwhile asks for another comparison
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
        """End the tasks; followers are woken and end, too."""
        self.is_closed = True
        await cancel(self._task)
        for stream in list(self._streams.values()):
            await stream.aclose()

    def detach(self) -> None:
        """Drop everything: the event loop was closed before the store."""
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
