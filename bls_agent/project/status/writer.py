"""Writing the status to its key, and keeping it true: from the loop or the watchdog."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Request
from bls_agent.connection.reconnect import Complaints, wait_after_failure
from bls_agent.core.backoff import Backoff, jittered
from bls_agent.core.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.keys import checked_reply
from bls_agent.project.log.log import LogStream
from bls_agent.project.messages import Level, Status
from bls_agent.project.status.health import StatusAggregator, StatusCounts
from bls_agent.project.status.replicas import ReplicaRegistry
from bls_agent.runtime.tasks import ThreadSafeEvent
from bls_agent.runtime.watchdog import StallCounts

# SET … GET: before Redis 6.2, or without the right to read the key.
_UNGUARDED: Final = ("unsupported", "no_permission")
ERROR_WINDOW: Final = "error window"  # a source of the status
SLACK: Final = 0.1  # seconds by which two clocks may have drifted since the last write
SIGHTINGS: Final = 2  # in a row; one may be a server whose clock was set back


class Snapshot(NamedTuple):
    """What stood under the key in the moment before a write."""

    asked: float  # monotonic seconds before the request left
    answered: float  # monotonic seconds when the reply was there
    place: int  # the connection: another one may lead to a server without the value
    value: bytes | None = None  # ``None``: there was none, or it is not known
    remaining: int | None = None  # as PTTL (-1 never, -2 no key); ``None``: not known


class ConflictDetector:
    """Notices that another process writes the status, too.

    So it is if twice in a row, over one connection, the key holds not what we wrote
    there last, or lives longer than that could.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin afresh: what was written last is not known."""
        self._value, self._place, self._ends = b"", -1, 0.0
        self._sightings = 0

    def record(self, snapshot: Snapshot, value: bytes, ttl: float) -> bool:
        """Record a write; return whether another process writes, too."""
        other = snapshot.value is not None and snapshot.value != self._value
        remaining = -2 if snapshot.remaining is None else snapshot.remaining
        outlasts = snapshot.asked + remaining / 1000 > self._ends + SLACK
        met = other or outlasts or remaining == -1
        is_known = self._place == snapshot.place
        self._sightings = self._sightings + 1 if met and is_known else 0
        self._value, self._place = value, snapshot.place
        self._ends = snapshot.answered + ttl
        return self._sightings >= SIGHTINGS


class StatusWriter:
    """Writes the status of one project, never over a key of another type.

    ``SET … GET`` fails on another type without writing. Where memory is out, EXPIRE
    keeps a status alive that is still true. A replica reports to the registry instead.
    ``on_conflict`` is called once, when another process writes, too.
    """

    def __init__(
        self,
        connections: AgentConnections,
        key: str,
        *,
        ttl: int,
        replicas: ReplicaRegistry | None = None,
        on_conflict: Callable[[], None] | None = None,
    ) -> None:
        self._connections = connections
        self._key = key
        self._ttl = ttl
        self._replicas = replicas
        self._on_conflict = on_conflict
        self._guard = True  # SET … GET is known here
        self._can_ask_ttl = True
        self._turn = anyio.Lock()
        self.ended = False  # the final status is being written
        self.conflicts = ConflictDetector()  # detects another process that writes here
        # The status that was written last over these connections.
        self.written: Status | None = None

    def over(self, connections: AgentConnections) -> StatusWriter:
        """Make a writer of the same key over other connections."""
        other = StatusWriter(
            connections, self._key, ttl=self._ttl, replicas=self._replicas
        )
        other.written = self.written
        return other

    async def write(self, status: Status) -> None:
        """Write a status that expires after ``ttl`` seconds; none after the final."""
        async with self._turn:
            if not self.ended:
                await self._write(status)

    async def _write(self, status: Status) -> None:
        try:
            if not await self._report(status, self._ttl):
                await self._set(status)
        except RedisUnavailableError as error:
            self.conflicts.forget()
            if error.kind != "out_of_memory" or self.written is not status:
                checked_reply(error, self._key)
            # EXPIRE would keep another status alive, which is not true.
            await self._connections.liveness.call("EXPIRE", self._key, self._ttl)
        self.written = status

    async def write_final(self, final_status: Status) -> None:
        """Write the status that stays, after every write that was lost on the way."""
        self.ended = True
        live = self._connections.liveness
        async with self._turn:  # one that is under way has several requests, perhaps
            while True:
                # A refresh that was lost on the way must not arrive after this one.
                await self._connections.forget_lost(live, kill=True)
                try:
                    if not await self._report(final_status, 0):
                        await self._send(("SET", self._key, final_status.value))
                except RedisUnavailableError as error:
                    checked_reply(error, self._key)
                if not live.lost:
                    return

    async def _report(self, status: Status, ttl: int) -> bool:
        """Report as one of several; false if alone, or from now on where refused."""
        if self._replicas is None:
            return False
        if await self._replicas.report(self._connections.liveness, status, ttl):
            return True
        self._replicas = None
        self._on_conflict = None
        return False

    async def _set(self, status: Status) -> None:
        asked = time.monotonic()
        request = ("SET", self._key, status.value, "EX", self._ttl)
        ask_ttl = self._on_conflict is not None and self._can_ask_ttl
        remaining, value = await self._send(request, ask_ttl=ask_ttl)
        now, place = time.monotonic(), self._connections.liveness.generation
        snapshot = Snapshot(asked, now, place, value, remaining)
        met = self.conflicts.record(snapshot, status.value.encode(), self._ttl)
        if met and self._on_conflict is not None:
            on_conflict, self._on_conflict = self._on_conflict, None
            on_conflict()

    async def _send(
        self, request: Request, *, ask_ttl: bool = False
    ) -> tuple[int | None, bytes | None]:
        """SET, with GET where that is known; return the former TTL and value."""
        live = self._connections.liveness
        requests = [("PTTL", self._key)] if ask_ttl else []  # in the same round trip
        guarded = (*request, "GET") if self._guard else request
        *ttl, reply = await live.call_many([*requests, guarded])
        remaining = ttl[0] if ttl else None
        if isinstance(remaining, RedisUnavailableError):
            self._can_ask_ttl, remaining = False, None
        if not isinstance(reply, RedisUnavailableError):
            return remaining, reply if self._guard else None
        if not self._guard or reply.kind not in _UNGUARDED:
            raise reply
        await self._check_type()
        await live.call(*request)
        self._guard = False
        return remaining, None

    async def _check_type(self) -> None:
        """Check once, where SET … GET cannot guard each write."""
        try:
            found = await self._connections.liveness.call("TYPE", self._key)
        except RedisRefusedError:
            return  # without the right to ask; that was logged
        if found not in (b"string", b"none"):
            raise WrongTypeError(self._key, "string")


class StatusReporter:
    """Writes the status at once when it changes and refreshes it before it expires."""

    def __init__(
        self,
        writer: StatusWriter,
        aggregator: StatusAggregator,
        *,
        interval: float,
        backoff: Backoff,
        complaints: Complaints,
        counts: StatusCounts,
    ) -> None:
        self._writer = writer
        self._aggregator = aggregator
        self._interval = interval
        self._backoff = backoff
        self._complaints = complaints
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets
        self._wakeup = ThreadSafeEvent()
        self._counts = counts
        self.published = anyio.Event()

    def changed(self) -> None:
        """Have the status written soon; from any thread, never waits."""
        self._wakeup.set()

    def check(self) -> None:
        """Have the status written soon if it differs from the one that stands there.

        A source sets its status and then checks here, :meth:`run` writes and then
        checks the sources: one of them sees the other.
        """
        if self._aggregator.status(time.monotonic()) is not self._writer.written:
            self._wakeup.set()

    def open_error_window(self, seconds: float | None) -> Callable[[], None] | None:
        """Turn 在线 into 报错 until some seconds have passed without an error record.

        Returns the function that records an error, from anywhere; ``None`` without a
        window.
        """
        if seconds is None:
            return None
        self._aggregator.set(ERROR_WINDOW, Status.ONLINE)

        def record_error() -> None:
            until = time.monotonic() + seconds
            self._aggregator.set(ERROR_WINDOW, Status.ERROR, until=until)
            self.check()

        return record_error

    @property
    def written(self) -> bool:
        """Whether a status has been written since the agent was opened."""
        return self._writer.written is not None

    async def end(self, final_status: Status) -> None:
        """Stop refreshing and write the final status, which stays."""
        await self._writer.write_final(final_status)
        self._counts.writes += 1

    async def run(self) -> None:
        """Keep the status alive until cancelled."""
        self._wakeup.bind()
        try:
            while not self._writer.ended:
                try:
                    status = self._aggregator.status(time.monotonic())
                    await self._writer.write(status)
                    self._counts.writes += 1
                except (RedisUnavailableError, WrongTypeError) as error:
                    self._counts.failures += 1
                    text = "the status cannot be written"
                    await wait_after_failure(
                        error, text, self._backoff, self._complaints
                    )
                else:
                    self._backoff.succeeded()
                    self.published.set()
                    await self._wait()
        finally:
            self._wakeup.unbind()

    async def _wait(self) -> None:
        now = time.monotonic()
        if self._aggregator.status(now) is not self._writer.written:
            return  # it has changed while it was written
        refresh = jittered(self._interval, self._rng)
        await self._wakeup.wait(min(refresh, self._aggregator.next_change(now) - now))


class StallStatusPublisher:
    """Keeps the status of one agent alive and true while its loop cannot.

    From the notice of a stall until no write of the thread can arrive any more, a
    source of the status is 故障: so the loop, once it moves, writes 故障 too until then.
    Before ``stall_after`` the loop's own status is kept alive where it would expire
    earlier.
    """

    SOURCE = "event loop"

    def __init__(
        self,
        writer: StatusWriter,
        aggregator: StatusAggregator,
        stream: LogStream,
        counts: StallCounts,
        *,
        project: str,
        connect: Callable[[], AgentConnections],
        changed: Callable[[], None],
        stall_after: float,
        ttl: int,
    ) -> None:
        self._own_writer = writer
        self._writer: tuple[AgentConnections, StatusWriter] | None = None
        self._aggregator = aggregator
        self._stream = stream
        self.counts = counts
        self.name = project
        self.connect = connect
        self._changed = changed
        self.stall_after = stall_after  # seconds of standing still that are a stall
        self.publish_after = ttl / 3  # seconds after which the status needs a refresh
        # Seconds between two refreshes: less than a third of the TTL.
        self.interval = ttl / 4

    def on_stall(self) -> None:
        """Turn the status to 故障."""
        self._aggregator.set(self.SOURCE, Status.FAULT)

    async def publish(self, connections: AgentConnections) -> None:
        """Write the worst of all sources."""
        if self._writer is None or self._writer[0] is not connections:
            self._writer = connections, self._own_writer.over(connections)
        await self._writer[1].write(self._aggregator.status(time.monotonic()))

    def on_recovery(self, seconds: float) -> None:
        """End the 故障, have the loop write the truth, and log how long it was."""
        self._writer = None
        self._aggregator.withdraw(self.SOURCE)
        self._own_writer.conflicts.forget()
        self._changed()
        if not seconds:
            return
        self._stream.emit(
            Level.ERROR,
            f"the event loop stood still for {seconds:.1f} s",
            {"durationMs": round(seconds * 1000, 3), "stallAfter": self.stall_after},
            is_alarm=True,
        )
