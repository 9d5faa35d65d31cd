"""``Heartbeat``: keeps a worker's heartbeat in Redis while the worker runs."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import anyio

from bls_agent.connection.access import Access, RedisOrAgent
from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.checks import check_seconds, check_wait
from bls_agent.core.errors import (
    ConfigurationError,
    LeaseHeldError,
    RedisUnavailableError,
)
from bls_agent.core.keys import shares_slot
from bls_agent.runtime.lease import Ownership, ValueLease
from bls_agent.runtime.loop_thread import (
    LoopThread,
    SharedThread,
    refuse_in_event_loop,
    result_of,
    wait_for,
)
from bls_agent.runtime.tasks import call_in
from bls_agent.workers.heartbeat_fields import WorkerHeartbeat, heartbeat_of
from bls_agent.workers.heartbeat_state import (
    CurrentHeartbeat,
    HeartbeatCounts,
    HeartbeatState,
)
from bls_agent.workers.heartbeat_writer import WRITERS

if TYPE_CHECKING:
    from uuid import UUID

    from bls_agent.workers.heartbeat_writer import HeartbeatWriter

logger: logging.Logger = logging.getLogger(__name__)

SHORTEST: Final = 0.1  # seconds; the shortest allowed interval
SHORTEST_TTL: Final = 0.3  # seconds; an interval is at most a third of it
LEAVE_GRACE: Final = 1.0  # seconds that leaving may take in addition to ``timeout``
AT_EXIT: Final = 1.0  # longest wait in seconds when the interpreter exits

_NOT_READY: Final = {
    Ownership.HELD: "another process owns its key",
    Ownership.STANDS: "its key holds a heartbeat of another process",
    Ownership.WRONG_TYPE: "its key holds another type",
}

_THREAD: Final = SharedThread("bls-agent heartbeats", at_exit=AT_EXIT)


@dataclass(frozen=True, kw_only=True)
class HeartbeatStats:
    """Every counter and state of a heartbeat at one moment.

    A beat is one write of the heartbeat to Redis.

    Attributes:
        open: Whether the heartbeat is open.
        owned: Whether it is certain that the key belongs to this process.
        standing: Who owns the key: ``ours`` (this process), ``held`` (another process),
            ``stands`` (no process, but the key has a value of another program),
            ``wrong_type`` (the key is not a string) or ``unknown``.
        writes: Beats that Redis stored.
        refreshes: Beats that Redis could not store because its memory was full; Redis
            kept the former value alive instead.
        failures: Beats that Redis did not confirm. Redis may have stored some of them.
        losses: How often another process has taken the key from this process.
        overwritten: How often another program overwrote the value without owning the
            key.
    """

    key: str
    open: bool
    owned: bool
    standing: str
    writes: int
    refreshes: int
    failures: int
    losses: int
    overwritten: int


def _check_interval(interval: float | None, ttl: float) -> float:
    """Return the seconds between two beats: a third of the TTL by default."""
    if ttl < SHORTEST_TTL:
        raise ConfigurationError("ttl", ttl, f"at least {SHORTEST_TTL:g} s")
    if interval is None:
        return ttl / 3
    rule = f"at least {SHORTEST:g} s"
    if check_seconds("interval", interval, rule) < SHORTEST:
        raise ConfigurationError("interval", interval, rule)
    if interval * 3 > ttl:
        rule = f"at most a third of ttl ({ttl:g} s)"
        remedy = "Two lost beats must not make a living worker vanish."
        raise ConfigurationError("interval", interval, rule, remedy)
    return interval


def _check_slot(heartbeat: WorkerHeartbeat, endpoint: Endpoint | None) -> None:
    """Refuse a key that cannot be in the same hash slot of a cluster as its lease."""
    if endpoint is not None and endpoint.is_cluster and not shares_slot(heartbeat.key):
        rule = "on a cluster the key of its owner must be in the same slot, and the braces of this id make a slot that no other key can have"
        raise ConfigurationError(
            heartbeat.id_field, heartbeat.id, rule, "Use an id without { and }."
        )


def _first_value(kind: object, worker_id: object) -> WorkerHeartbeat:
    """Return the heartbeat for the arguments ``kind`` and ``worker_id``."""
    if isinstance(worker_id, WorkerHeartbeat):
        rule = "the first argument is the heartbeat or its kind"
        remedy = "Write Heartbeat(heartbeat, redis=...)."
        raise ConfigurationError("kind", kind, rule, remedy)
    if isinstance(kind, str):
        return heartbeat_of(kind, cast("str", worker_id))
    if not isinstance(kind, WorkerHeartbeat) or not kind.kind:
        rule = "a text, or a worker heartbeat as BacktestWorkerHeartbeat.create(...)"
        raise ConfigurationError("kind", kind, rule)
    if worker_id is not None:
        rule = "the heartbeat has its id already"
        raise ConfigurationError("worker_id", worker_id, rule, "Leave it out.")
    return replace(kind)  # checks its fields again, which the caller may have changed


class Heartbeat:
    """Keeps a worker's heartbeat, with its state, in Redis while the worker runs.

    Use ``async with Heartbeat(...) as beat:`` in a program with an event loop, and
    ``with Heartbeat(...) as beat:`` in a program without one. While the block runs, the
    worker's key contains the heartbeat and has a TTL. The heartbeat is written every
    ``interval`` seconds and whenever :meth:`update` changes the value. Leaving the
    block removes the key at once. An outage of Redis, also at the start, raises an
    exception only in :meth:`ready`. Opening and closing wait for Redis, at most
    ``timeout`` + 1 s.

    Only one process at a time owns a key. ``conflict`` decides what a second process
    does. If a program without a lease has written the value, the key is blocked until
    the value's TTL ends. After a crash, a process on the same machine can take the id
    at once if the system shows that the former process is dead (Linux, same container).
    Any other process can take the id after at most ``ttl`` seconds.

    The heartbeat expires if its event loop is blocked for longer than ``ttl``. With
    plain ``with``, a thread writes the heartbeat, even if the program blocks its own
    thread. SIGTERM ends a program without leaving the block, unless the program handles
    the signal: ``signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))``.

    Args:
        kind: What the worker does, such as ``下载``. The key is then
            ``heartbeat:{kind}:{worker_id}``. Or the first value as a
            :class:`~bls_agent.workers.WorkerHeartbeat`, such as
            ``BacktestWorkerHeartbeat.create("回测-1")``, which is copied.
        worker_id: The id of the worker: text, an integer or a UUID. Leave it out if
            ``kind`` is a value.
        redis: A URL, a client of redis-py, a ``ProjectAgent``, or ``None`` for
            ``BLS_REDIS_URL``.
        interval: Longest time in seconds between two beats. Each pause is shortened at
            random. The largest allowed value, and the default, is a third of ``ttl``.
        ttl: Seconds for which the worker counts as alive after a beat; at least 0.3,
            and 30 by default.
        conflict: What to do if another process owns the key, or if the key has a value
            of a program without a lease. ``"refuse"`` raises
            :class:`~bls_agent.LeaseHeldError`. ``"wait"`` lets the program continue,
            and takes the key when it is free.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: An argument is wrong.
    """

    def __init__(
        self,
        kind: str | WorkerHeartbeat,
        worker_id: str | int | UUID | None = None,
        *,
        redis: RedisOrAgent | None = None,
        interval: float | None = None,
        ttl: float | None = None,
        conflict: Literal["refuse", "wait"] = "refuse",
        timeout: float = 5.0,
    ) -> None:
        heartbeat = _first_value(kind, worker_id)
        if conflict not in ("refuse", "wait"):
            raise ConfigurationError("conflict", conflict, "'refuse' or 'wait'")
        self._access = Access(redis, "bls-agent:heartbeats", timeout=timeout)
        self._key = heartbeat.key
        _check_slot(heartbeat, self._access.known)
        usual = cast("float", heartbeat.template().ttl)
        self._ttl = check_seconds("ttl", usual if ttl is None else ttl)
        self._interval = _check_interval(interval, self._ttl)
        self._timeout = timeout
        self._conflict = conflict
        self._current = CurrentHeartbeat(heartbeat)
        self._counts = HeartbeatCounts()
        self._state: HeartbeatState | None = None
        self._writer: HeartbeatWriter | None = None
        self._thread: LoopThread | None = None
        register(self)

    def reset_after_fork(self) -> None:
        """Close the heartbeat in a forked child, because the parent owns the key."""
        self._state = self._writer = self._thread = None

    def __repr__(self) -> str:
        state = self._state
        shown = "closed" if state is None else "owned" if self.owned else "not owned"
        if state and state.claim.standing in (Ownership.HELD, Ownership.STANDS):
            shown = "waiting for its key"
        status = self._current.now.status
        return f"<Heartbeat {self._key!r} {status} {shown} at {self._access.shown}>"

    @property
    def heartbeat(self) -> WorkerHeartbeat:
        """A copy of the current value. Changes of the copy have no effect."""
        return copy.deepcopy(self._current.now)

    @property
    def owned(self) -> bool:
        """Whether it is certain that the key belongs to this process."""
        state = self._state
        return state is not None and state.claim.valid

    def update(self, **changes: Any) -> None:
        """Change fields of the heartbeat. The new value is written soon.

        A generic heartbeat accepts ``status`` and fields with any other names, whose
        values JSON can hold. Many changes in a short time need only a few writes. Any
        thread may call this method. The method never waits for Redis, and raises no
        exception about Redis.

        Raises:
            ConfigurationError: A field is unknown or cannot have this value. No field
                was changed.
        """
        self._current.change(changes)
        state, writer = self._state, self._writer
        if state is not None and writer is not None:
            writer.write_soon([state])

    def stats(self) -> HeartbeatStats:
        """Return every counter and state. Any thread may call this method."""
        state, counts = self._state, self._counts
        return HeartbeatStats(
            key=self._key,
            open=state is not None,
            owned=self.owned,
            standing=state.claim.standing if state else Ownership.UNKNOWN,
            **vars(counts),
        )

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the first beat is written.

        Args:
            timeout: Longest time to wait in seconds; ``None`` to wait without limit.

        Raises:
            RedisUnavailableError: No beat was written within that time.
            ConfigurationError: The heartbeat is not open.
        """
        state, writer = self._opened(), self._writer
        if timeout is not None:
            check_wait("timeout", timeout)
        if writer is not None:
            with anyio.move_on_after(timeout):
                await call_in(writer.loop, state.settled.wait, timeout)
        self._opened()
        if not state.is_written:
            why = _NOT_READY.get(state.claim.standing, "Redis has not answered yet")
            reason = f"no heartbeat was written in time: {why}"
            address = self._access.shown
            raise RedisUnavailableError("not_ready", reason, address=address)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Do the same as :meth:`ready`, in a program without an event loop.

        Raise ConfigurationError if an event loop runs in this thread.
        """
        refuse_in_event_loop("wait_ready", "'await beat.ready()'")
        self._opened()
        if self._thread is None:
            rule = "it must be opened by 'with'; in an event loop there is ready()"
            raise ConfigurationError("heartbeat", self._key, rule)
        result_of(self._thread.begin(self.ready, timeout))

    def _opened(self) -> HeartbeatState:
        if self._state is None:
            raise ConfigurationError("heartbeat", self._key, "it must be open")
        return self._state

    async def __aenter__(self) -> Self:
        """Open the heartbeat. If Redis is unreachable, the first beat is written later.

        Raises:
            LeaseHeldError: The key belongs to another process, or has a value of a
                program without a lease.
            WrongTypeError: The key is not a string. The key was not changed.
            ConfigurationError: The heartbeat is open already, or ``BLS_REDIS_URL`` is
                wrong.
        """
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Remove the key. An exception of the block is raised unchanged."""
        await self.aclose()

    def __enter__(self) -> Self:
        """Do the same as ``async with``, in a program without an event loop.

        The exceptions are the same as those of ``async with``.
        """
        refuse_in_event_loop("with Heartbeat(...)", "'async with Heartbeat(...)'")
        self._refuse_twice()
        self._thread = _THREAD.open(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the key. An exception of the block is raised unchanged."""
        thread = self._thread
        if thread is None:  # this is a forked child, or the heartbeat is closed already
            return
        self._thread = None
        try:
            wait_for(thread.begin(self.aclose), self._timeout + LEAVE_GRACE)
        finally:
            _THREAD.leave()

    def _leave_closed_loop(self) -> None:
        if self._writer is not None and self._writer.loop.is_closed():
            self._state = self._writer = None

    def _refuse_twice(self) -> None:
        self._leave_closed_loop()
        if self._state is not None:
            rule = "it is open already"
            raise ConfigurationError("heartbeat", self._key, rule, "Close it first.")

    async def _open(self) -> None:
        self._refuse_twice()
        endpoint = self._access.endpoint
        _check_slot(self._current.now, endpoint)
        # Neither state nor writer refers to this object, so that an unclosed heartbeat
        # can be garbage-collected.
        state = HeartbeatState(
            self._current,
            ValueLease(self._key, self._ttl),
            interval=self._interval,
            counts=self._counts,
        )
        writer = WRITERS.enter(endpoint, timeout=self._timeout)
        self._state, self._writer = state, writer
        try:
            writer.add(state)
            with anyio.move_on_after(self._timeout):
                await state.answered.wait()
            state.answered.set()  # a conflict that is found later is logged
            self._raise(state.conflict)
        except BaseException:
            await self.aclose()
            raise

    def _raise(self, conflict: Exception | None) -> None:
        """Raise a conflict. With ``conflict="wait"``, log a conflict that will end."""
        ends = isinstance(conflict, LeaseHeldError) and conflict.remaining is not None
        if ends and self._conflict == "wait":
            text = "no heartbeat is written until its key is free: %s"
            logger.warning(text, conflict)
        elif conflict is not None:
            raise conflict

    async def aclose(self) -> None:
        """Remove the key if this process owns the key, and stop writing.

        If the heartbeat is closed already, do nothing. Wait at most ``timeout`` + 1 s.
        """
        self._leave_closed_loop()
        state, writer = self._state, self._writer
        if state is None or writer is None:
            return
        close = partial(self._close, state, writer)
        await call_in(writer.loop, close, self._timeout + LEAVE_GRACE)

    async def _close(self, state: HeartbeatState, writer: HeartbeatWriter) -> None:
        if self._state is not state:
            return
        self._state = self._writer = None
        with anyio.CancelScope(shield=True):
            try:
                await writer.remove(state)
            finally:  # because the scope does not protect against Task.cancel()
                await WRITERS.leave(writer)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_state", None) is not None:
            text = f"the heartbeat {self._key!r} was never closed"
            _warn(text, ResourceWarning, stacklevel=2, source=self)
