"""Writes all heartbeats of one event loop to one Redis, in one task."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.access import LoopLocal
from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.pool import ConnectionPool
from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.connection.scripts import BEAT, END_LEASE
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runtime.lease import Run, boot_seconds
from bls_agent.runtime.tasks import ThreadSafeEvent, start_background
from bls_agent.workers.heartbeat_state import HeartbeatState

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

NAME: Final = "bls-agent:heartbeats"  # name of the connection and the task
TOGETHER: Final = 0.25  # seconds; beats due within this time are written together
BATCH: Final = 500  # most heartbeats in one write, so that other tasks can run
COALESCE: Final = 0.1  # shortest time in seconds between two writes of changed values
CAP: Final = 2.0  # longest pause in seconds while Redis is unreachable
RETRY: Final = 1.0  # pause in seconds after an error in this package
GRACE: Final = 0.5  # seconds that a removal may take in addition to ``timeout``
REMOVALS: Final = 2  # attempts to remove heartbeats; the second uses a new connection


class HeartbeatWriter:
    """Writes many heartbeats from one task, over one connection to each Redis node."""

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        # Whether the task has ended, or this is the copy in a forked child.
        self.is_over: bool = False
        self.users = 0  # number of open heartbeats
        self.states: set[HeartbeatState] = set()
        self._timeout = timeout
        self._pool = ConnectionPool(endpoint, NAME, timeout=timeout)
        self._wakeup = ThreadSafeEvent()
        self._ending: list[HeartbeatState] = []
        self._backoff = Backoff(cap=CAP)
        self._written_at = self._retry_at = 0.0
        self._away_since: float | None = None
        self._openings = 0
        self._throttled_log = ThrottledLog()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task in the running event loop."""
        import asyncio  # noqa: PLC0415 - imported late because it takes 20 ms

        register(self)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._task = start_background(self._run, NAME, Context())
        self._task.add_done_callback(self._handle_task_end)

    def _handle_task_end(self, _: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step does not run its ``finally``.
        self.is_over = True
        for state in self._ending:
            state.ended.set()

    def reset_after_fork(self) -> None:
        """Forget the heartbeats in a forked child, because the parent owns them."""
        self.is_over = True
        self.states = set()

    def add(self, state: HeartbeatState) -> None:
        """Write one more heartbeat regularly, beginning now."""
        self.states.add(state)
        state.due_at = now = anyio.current_time()
        if now < self._retry_at:  # Redis is unreachable, and opening must not wait
            state.answered.set()
        self._wakeup.set()

    def write_soon(self, states: Collection[HeartbeatState]) -> None:
        """Request that heartbeats are written soon. Any thread may call this."""
        for state in list(states):
            state.want()
        self._wakeup.set()

    def _detach(self, state: HeartbeatState) -> None:
        state.claim.end()
        state.settled.set()
        self.states.discard(state)

    async def remove(self, state: HeartbeatState) -> None:
        """Remove a heartbeat if we own its key. Wait at most ``timeout`` + 0.5 s."""
        self._detach(state)
        if self.is_over:
            return
        self._ending.append(state)
        self._wakeup.set()
        with anyio.move_on_after(self._timeout + GRACE):
            await state.ended.wait()
        # If the caller is cancelled, the task removes the heartbeat later.
        state.ended.set()
        if state in self._ending:
            self._ending.remove(state)

    async def aclose(self) -> None:
        """End the task and close the connection."""
        import asyncio  # noqa: PLC0415 - imported late because it takes 20 ms

        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        self._wakeup.bind()
        try:
            while not self.is_over:
                try:
                    await self._wait_until_due()
                    if not self.is_over:
                        await self._write_due()
                except Exception as error:  # noqa: BLE001 - heartbeats must continue
                    text = "a beat of the heartbeats failed\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - the traceback is redacted
                    await anyio.sleep(RETRY + self._backoff.failed())
        finally:
            self._wakeup.unbind()
            if not (self.is_over or self.loop.is_closed()):
                with anyio.CancelScope(shield=True):
                    await self._wind_up()

    async def _wind_up(self) -> None:
        """Remove the remaining heartbeats, and close the connection."""
        if states := list(self.states):
            logger.warning("the task of the heartbeats was cancelled and has ended")
            for state in states:
                self._detach(state)
            self._ending += states
        with anyio.move_on_after(self._timeout + GRACE):
            await self._remove_ending()
        await self._pool.aclose()

    async def _wait_until_due(self) -> None:
        while not self._ending:
            now = anyio.current_time()
            due = min((state.due_at for state in self.states), default=inf)
            if any(state.is_wanted for state in self.states):
                due = min(due, self._written_at + COALESCE)
            due = max(due, self._retry_at)
            if due <= now:
                await anyio.lowlevel.checkpoint()
                return
            await self._wakeup.wait(None if due == inf else due - now)

    async def _write_due(self) -> None:
        await self._remove_ending()
        self._written_at = now = anyio.current_time()
        if now < self._retry_at:
            return
        until = now + TOGETHER
        due = [one for one in self.states if one.is_wanted or one.due_at <= until]
        due.sort(key=lambda state: state.due_at)
        del due[BATCH:]
        try:
            await self._write(due)
        except BaseException:  # after an error, all these heartbeats are tried again
            for state in due:
                state.claim.record_failure(ambiguous=True)
                state.due_at = anyio.current_time() + RETRY
            raise

    async def _remove_ending(self) -> None:
        ending, self._ending = self._ending, []
        try:
            if ending:
                await self._remove(ending)
        except BaseException:  # tried again later, because callers wait for it
            self._ending += [state for state in ending if not state.ended.is_set()]
            raise

    async def _remove(self, states: Sequence[HeartbeatState]) -> None:
        for _ in range(REMOVALS):
            now = boot_seconds()
            try:
                runs = [state.claim.end_request(now) for state in states]
                await END_LEASE.run_many(self._pool, runs)
            except RedisUnavailableError as error:
                logger.info("heartbeats could not be removed: %s", error)
                if error.connecting:
                    break
            else:
                break
        for state in states:
            state.ended.set()

    def _make_beats(
        self, states: Sequence[HeartbeatState]
    ) -> dict[HeartbeatState, Run]:
        """Return the next beat of each heartbeat. Leave out one that raises."""
        beats: dict[HeartbeatState, Run] = {}
        for state in states:
            try:
                beats[state] = state.beat()
            except Exception as error:  # noqa: BLE001 - a program's class may raise anything
                text = "the heartbeat %r could not be encoded\n%s"
                logger.error(text, state.claim.key, redact_traceback(error))  # noqa: TRY400 - the traceback is redacted
                state.record_unwritten()
                state.due_at = anyio.current_time() + state.interval
        return beats

    async def _write(self, states: Sequence[HeartbeatState]) -> None:
        beats = self._make_beats(states)
        if not beats:
            return
        sent_at = boot_seconds()
        try:
            replies = await BEAT.run_many(self._pool, list(beats.values()))
        except RedisUnavailableError as error:
            self._record_outage(list(beats), error)
            return
        now = boot_seconds()
        for state, reply in zip(beats, replies, strict=True):
            if state not in self.states:
                continue
            if isinstance(reply, RedisUnavailableError):
                delay = self._record_refusal(state, reply)
            else:
                delay = state.handle_reply(reply, sent_at=sent_at, now=now)
            state.due_at = anyio.current_time() + delay
        self._record_success()

    def _record_success(self) -> None:
        """Record that Redis answered. After a reconnect, write all heartbeats."""
        self._backoff.succeeded()
        self._retry_at = 0.0
        away_since, self._away_since = self._away_since, None
        former, self._openings = self._openings, self._pool.openings
        if away_since is not None or former not in (0, self._openings):
            self.write_soon(self.states)
        if away_since is not None:
            seconds = anyio.current_time() - away_since
            logger.info("heartbeats are written again after %.1f s", seconds)

    def _record_outage(
        self, states: Sequence[HeartbeatState], error: RedisUnavailableError
    ) -> None:
        """Record that a write had no reply, and pause all heartbeats."""
        longest = error.kind == "auth"
        refused = isinstance(error, RedisRefusedError)
        delay = self._backoff.failed(permanent=refused, longest=longest)
        now = anyio.current_time()
        self._retry_at = now + delay
        if self._away_since is None:
            self._away_since = now
        self._log_failure(error)
        # If there were several beats, Redis may have executed some of them.
        ambiguous = error.ambiguous or len(states) > 1
        for state in states:
            state.record_failure(error, ambiguous=ambiguous)
            state.due_at = self._retry_at

    def _record_refusal(
        self, state: HeartbeatState, error: RedisUnavailableError
    ) -> float:
        """Record that Redis refused a beat. Return the seconds until the next beat."""
        self._log_failure(error)
        state.record_failure(error, ambiguous=error.ambiguous)
        refused = isinstance(error, RedisRefusedError)
        return Backoff(base=CAP).failed(permanent=refused)

    def _log_failure(self, error: RedisUnavailableError) -> None:
        self._throttled_log.warn("heartbeats cannot be written", error)


class _Writers:
    """All writers of this process. A writer ends when its last heartbeat is closed."""

    def __init__(self) -> None:
        self._by_loop: LoopLocal[dict[object, HeartbeatWriter]] = LoopLocal()

    def enter(self, endpoint: Endpoint, *, timeout: float) -> HeartbeatWriter:
        """Return this event loop's writer for a Redis server. Count one more user."""
        writers = self._by_loop.get(dict[object, HeartbeatWriter])
        key = (endpoint.address, _find_likeness(endpoint), timeout)
        found = writers.get(key)
        if found is None or found.is_over:
            found = HeartbeatWriter(endpoint, timeout=timeout)
            writers[key] = found
            found.start()
        found.users += 1
        return found

    async def leave(self, writer: HeartbeatWriter) -> None:
        """Remove a user of a writer. After the last user, close the writer."""
        writer.users -= 1
        if writer.users and not writer.is_over:
            return
        writers = self._by_loop.find() or {}
        for key in [key for key, other in writers.items() if other is writer]:
            del writers[key]
        if not writer.is_over:
            await writer.aclose()


def _find_likeness(endpoint: Endpoint) -> int:
    """Return a number that is equal for equal servers and credentials."""
    topology = endpoint.topology
    if topology is None:
        return endpoint.likeness or id(endpoint)
    alike = [seed.likeness for seed in topology.seeds]
    alike.append(topology.node("any", 1).likeness)
    return hash((topology.kind, topology.service, *alike))


WRITERS: Final = _Writers()
