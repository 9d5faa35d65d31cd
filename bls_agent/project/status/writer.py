"""Writes the status of the project to its key in Redis.

The event loop writes the status. If the event loop is blocked, a thread of the watchdog
writes it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Request
from bls_agent.connection.reconnect import ThrottledLog, wait_after_failure
from bls_agent.core.backoff import Backoff, jittered
from bls_agent.core.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.keys import PROJECT_CONSOLE, checked_reply
from bls_agent.project.log.log import LogStream
from bls_agent.project.log.record import LogRecord
from bls_agent.project.messages import STATUS_REASON, Level, Status
from bls_agent.project.status.health import StatusAggregator, StatusCounts
from bls_agent.project.status.replicas import ReplicaRegistry
from bls_agent.runtime.tasks import ThreadSafeEvent
from bls_agent.runtime.watchdog import StallCounts

# The kinds of errors after which SET is used without GET: Redis before 6.2 does not
# support GET, or the ACL user may not read the key.
_UNGUARDED: Final = ("unsupported", "no_permission")
ERROR_WINDOW: Final = "error window"  # the name of this source of the status
# How often in a row the key must have an unexpected value until a conflict is reported.
# A single unexpected value may come from an own write whose reply was lost.
SIGHTINGS: Final = 2


class ConflictDetector:
    """Detects that another process writes the same status key.

    A conflict is detected if two writes in a row, over the same connection, replace a
    value that this process has not written. Another process that writes equal values is
    not detected.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._value, self._connection = b"", -1
        self._sightings = 0

    def record(self, before: bytes | None, value: bytes, connection: int) -> bool:
        """Record a write of ``value``. Return whether another process writes, too.

        ``before`` is the value that was replaced, or ``None`` if the key was missing or
        the value is unknown. ``connection`` is the number of the connection. The first
        write over a new connection does not count, because the connection may lead to a
        server without the last value.
        """
        differs = before is not None and before != self._value
        is_known = self._connection == connection
        self._sightings = self._sightings + 1 if differs and is_known else 0
        self._value, self._connection = value, connection
        return self._sightings >= SIGHTINGS


class StatusWriter:
    """Writes the status of one project, and does not replace a key of another type.

    ``SET`` with the option ``GET`` fails on a key of another type and writes nothing.
    If the server does not allow this option, the type is checked only once, before the
    first write. Then a key that later becomes another type is replaced.
    If Redis is out of memory, EXPIRE extends the TTL of an unchanged status. A replica
    calls :class:`ReplicaRegistry` instead of ``SET``. ``on_conflict`` is called once,
    if another process writes the same key.
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
        self._guard = True  # whether the server allows SET with the option GET
        self._turn = anyio.Lock()  # held while a status is written
        self.ended: bool = False  # whether writing the final status has begun
        self.conflicts: ConflictDetector = ConflictDetector()
        self.written: Status | None = None  # the status that the agent wrote last

    def over(self, connections: AgentConnections) -> StatusWriter:
        """Return a writer for the same key that uses the watchdog's connections."""
        other = StatusWriter(
            connections, self._key, ttl=self._ttl, replicas=self._replicas
        )
        other.written = self.written
        return other

    async def write(self, status: Status) -> None:
        """Write a status that expires after the TTL of this writer.

        After a call of :meth:`write_final` this method does nothing.
        """
        async with self._turn:
            if not self.ended:
                await self._write(status)

    async def _write(self, status: Status) -> None:
        live = self._connections.liveness
        if live.orphans:  # an earlier status could arrive later and replace this one
            await self._connections.kill_orphans(live, kill=True)
        try:
            if not await self._report(status, self._ttl):
                await self._set(status)
        except RedisUnavailableError as error:
            self.conflicts.forget()
            if error.kind != "out_of_memory" or self.written is not status:
                checked_reply(error, self._key)
            # Only for an unchanged status, because EXPIRE keeps the old value.
            await live.call("EXPIRE", self._key, self._ttl)
        self.written = status

    async def write_final(self, final_status: Status) -> None:
        """Write the final status, which does not expire.

        Repeat the write until no earlier write, whose reply was lost, can arrive later
        and replace the final status.
        """
        self.ended = True
        live = self._connections.liveness
        async with self._turn:  # a running write may have several requests
            while True:
                # The server closes lost connections, so that an earlier write cannot
                # arrive after this one.
                await self._connections.kill_orphans(live, kill=True)
                try:
                    if not await self._report(final_status, 0):
                        await self._send(("SET", self._key, final_status.value))
                except RedisUnavailableError as error:
                    checked_reply(error, self._key)
                if not live.orphans:
                    return

    async def _report(self, status: Status, ttl: int) -> bool:
        """Report the status as a replica.

        Return false if this agent is no replica, or if the server refuses the script.
        """
        if self._replicas is None:
            return False
        if await self._replicas.report(self._connections.liveness, status, ttl):
            return True
        self._replicas = None
        self._on_conflict = None
        return False

    async def _set(self, status: Status) -> None:
        live = self._connections.liveness
        before = await self._send(("SET", self._key, status.value, "EX", self._ttl))
        met = self.conflicts.record(before, status.value.encode(), live.generation)
        if met and self._on_conflict is not None:
            on_conflict, self._on_conflict = self._on_conflict, None
            on_conflict()

    async def _send(self, request: Request) -> bytes | None:
        """Send SET, with the option GET if the server allows it.

        Return the replaced value, or ``None`` if it is missing or unknown.
        """
        live = self._connections.liveness
        guarded = (*request, "GET") if self._guard else request
        try:
            reply = await live.call(*guarded)
        except RedisRefusedError as error:
            if not self._guard or error.kind not in _UNGUARDED:
                raise
        else:
            return reply if self._guard else None
        await self._check_type()
        await live.call(*request)
        self._guard = False
        return None

    async def _check_type(self) -> None:
        """Raise WrongTypeError if the key has another type than string.

        Called once, if SET with the option GET is not allowed. That option checks the
        type at each write.
        """
        try:
            found = await self._connections.liveness.call("TYPE", self._key)
        except RedisRefusedError:
            return  # the ACL user may not use TYPE
        if found not in (b"string", b"none"):
            raise WrongTypeError(self._key, "string")


class StatusReporter:
    """Writes the status when it changes, and again before its TTL ends."""

    def __init__(
        self,
        writer: StatusWriter,
        aggregator: StatusAggregator,
        *,
        interval: float,
        backoff: Backoff,
        throttled_log: ThrottledLog,
        counts: StatusCounts,
    ) -> None:
        self._writer = writer
        self._aggregator = aggregator
        self._interval = interval
        self._backoff = backoff
        self._throttled_log = throttled_log
        self._rng = random.Random()  # noqa: S311 - for jitter, not for secrets
        self._wakeup = ThreadSafeEvent()
        self._counts = counts
        self._write_at = 0.0  # monotonic time of the next write of an unchanged status
        self.published: anyio.Event = anyio.Event()

    def changed(self) -> None:
        """Make :meth:`run` write the status if it has changed. Never waits.

        Call this after the status of a source was set. May be called from any thread.
        """
        self._wakeup.set()

    def rewrite(self) -> None:
        """Make :meth:`run` write the status again, even if it has not changed.

        May be called from any thread. Never waits.
        """
        self._write_at = 0.0
        self._wakeup.set()

    def open_error_window(self, seconds: float | None) -> Callable[[], None] | None:
        """Let each error record set the status 报错 for some seconds.

        The status becomes 在线 again when ``seconds`` have passed without an error
        record. Return the function to call for each error record, from any thread.
        Return ``None`` if ``seconds`` is ``None``.
        """
        if seconds is None:
            return None
        self._aggregator.set(ERROR_WINDOW, Status.ONLINE)

        def record_error() -> None:
            until = time.monotonic() + seconds
            self._aggregator.set(ERROR_WINDOW, Status.ERROR, until=until)
            self.changed()

        return record_error

    @property
    def written(self) -> bool:
        return self._writer.written is not None

    async def end(self, final_status: Status) -> None:
        """Stop refreshing and write the final status, which does not expire."""
        await self._writer.write_final(final_status)
        self._counts.writes += 1

    async def run(self) -> None:
        """Write and refresh the status, until cancelled or until :meth:`end`."""
        self._wakeup.bind()
        try:
            while not self._writer.ended:
                now = time.monotonic()
                status = self._aggregator.status(now)
                if status is self._writer.written and now < self._write_at:
                    until = min(self._write_at, self._aggregator.next_change(now))
                    await self._wakeup.wait(until - now)
                else:
                    await self._write(status)
        finally:
            self._wakeup.unbind()

    async def _write(self, status: Status) -> None:
        # Set before the write, so that a call of rewrite() during the write causes
        # another write.
        self._write_at = time.monotonic() + jittered(self._interval, self._rng)
        try:
            await self._writer.write(status)
        except (RedisUnavailableError, WrongTypeError) as error:
            self._write_at = 0.0
            self._counts.failures += 1
            text = "the status cannot be written"
            await wait_after_failure(error, text, self._backoff, self._throttled_log)
        else:
            self._counts.writes += 1
            self._backoff.succeeded()
            self.published.set()


class StallStatusPublisher:
    """Writes the status of an agent from a thread while its event loop is blocked.

    A stall is a time in which the event loop is blocked for more than ``stall_after``
    seconds. When a stall is detected, a source of the status becomes 故障. The source is
    removed when no write of this thread can reach Redis any more. Until then the event
    loop, if it runs again, also writes 故障.

    If the status would expire before ``stall_after``, this thread refreshes the status
    of the event loop.

    One error record for each stall names the place in the program. The record has no
    id, because only the event loop may assign ids.
    """

    SOURCE = "event loop"
    REASON = "the event loop stands still in {place}"

    def __init__(
        self,
        writer: StatusWriter,
        aggregator: StatusAggregator,
        stream: LogStream,
        counts: StallCounts,
        *,
        project: str,
        connect: Callable[[], AgentConnections],
        rewrite: Callable[[], None],
        stall_after: float,
        ttl: int,
    ) -> None:
        self._own_writer = writer
        self._writer: tuple[AgentConnections, StatusWriter] | None = None
        self._aggregator = aggregator
        self._stream = stream
        self.counts = counts
        self.name = project
        self._console_key = PROJECT_CONSOLE.build(project=project)
        self._place = ""  # the program lines at which the event loop was blocked last
        self._is_explained = True  # whether the reason of this stall was logged
        self.connect = connect
        self._rewrite = rewrite
        self.stall_after = stall_after  # seconds; a loop blocked for longer is stalled
        # Seconds after which the status needs a refresh.
        self.publish_after: float = ttl / 3
        # Seconds between two refreshes: less than a third of the TTL.
        self.interval: float = ttl / 4

    def on_stall(self, place: str) -> None:
        reason = self.REASON.format(place=place)
        self._aggregator.set(self.SOURCE, Status.FAULT, reason=reason)
        self._place, self._is_explained = place, False

    async def publish(self, connections: AgentConnections) -> None:
        if self._writer is None or self._writer[0] is not connections:
            self._writer = connections, self._own_writer.over(connections)
        status = self._aggregator.status(time.monotonic())
        await self._writer[1].write(status)
        self._own_writer.written = status
        if not self._is_explained:
            self._is_explained = True  # no second try: the status is more important
            reason = self.REASON.format(place=self._place)
            metadata, now = {STATUS_REASON: reason}, self._stream.now()
            record = LogRecord(Level.ERROR, reason, metadata, now=now)
            # On a cluster, another node may have the key of the log.
            is_cluster = connections.endpoint.is_cluster
            to = connections.data if is_cluster else connections.liveness
            await to.call("RPUSH", self._console_key, record.payload)

    def on_recovery(self, seconds: float) -> None:
        """Remove the status 故障, let the event loop write its own, and log the stall."""
        self._writer = None
        self._aggregator.withdraw(self.SOURCE)
        self._own_writer.conflicts.forget()
        self._rewrite()
        if not seconds:
            return
        self._stream.emit(
            Level.ERROR,
            f"the event loop stood still for {seconds:.1f} s",
            {
                "durationMs": round(seconds * 1000, 3),
                "stallAfter": self.stall_after,
                "place": self._place,
                STATUS_REASON: self._aggregator.reason(time.monotonic()),
            },
            is_alarm=True,
        )
