"""``Heartbeat``: keeps a worker's heartbeat in Redis while the worker lives."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import anyio

from bls_agent.connection.access import Access
from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.errors import (
    ConfigurationError,
    LeaseHeldError,
    RedisUnavailableError,
)
from bls_agent.core.keys import shares_slot
from bls_agent.core.settings import check_seconds
from bls_agent.runtime.lease import Ownership, ValueLease
from bls_agent.runtime.loop_thread import (
    LoopThread,
    SharedThread,
    refuse_in_event_loop,
    result_of,
    wait_for,
)
from bls_agent.runtime.tasks import call_in
from bls_agent.workers.heartbeat_fields import WorkerHeartbeat
from bls_agent.workers.heartbeat_state import (
    CurrentHeartbeat,
    HeartbeatCounts,
    HeartbeatState,
)
from bls_agent.workers.heartbeat_writer import WRITERS

if TYPE_CHECKING:
    from bls_agent.workers.heartbeat_writer import HeartbeatWriter

logger = logging.getLogger(__name__)

SHORTEST: Final = 0.1  # seconds: a shorter interval makes no sense
LEAVE_GRACE: Final = 1.0  # seconds beyond its timeout that leaving may take
AT_EXIT: Final = 1.0  # seconds that the exit of the interpreter waits at most

_NOT_READY: Final = {
    Ownership.HELD: "another process owns its key",
    Ownership.STANDS: "a heartbeat that is not ours stands under its key",
    Ownership.WRONG_TYPE: "its key holds another type",
}

_THREAD: Final = SharedThread("bls-agent heartbeats", at_exit=AT_EXIT)


@dataclass(frozen=True, kw_only=True)
class HeartbeatStats:
    """Every counter and state of a heartbeat at one moment.

    Attributes:
        open: Whether it is kept alive.
        owned: Whether the key surely belongs to this process.
        standing: ``ours``; ``held``: another process owns it; ``stands``: a value of
            a peer that knows no lease stands there; ``wrong_type``; or ``unknown``.
        writes: Beats that were written.
        refreshes: Beats for which Redis had no memory: the former value was kept alive.
        failures: Beats that could not be written, or perhaps.
        losses: Times another process had taken the key over.
        overwritten: Times a peer had written over the key without owning it.
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
    """Refuse a key whose slot, on a cluster, no lease can share."""
    if endpoint is not None and endpoint.is_cluster and not shares_slot(heartbeat.key):
        rule = "on a cluster its owner stands beside it, and the braces of this id make a slot that no other key can be put into"
        raise ConfigurationError(
            heartbeat.id_field, heartbeat.id, rule, "Use an id without { and }."
        )


class Heartbeat:
    """Keeps a worker's heartbeat, with its state, in Redis while the worker lives.

    ``async with Heartbeat(...) as beat:`` in a program with an event loop, ``with
    Heartbeat(...) as beat:`` in one without. While it is open the worker's key holds
    its heartbeat, with a TTL, written anew every ``interval`` seconds and whenever
    :meth:`update` changes it. Leaving removes the key at once. Nothing in it raises
    into the host or makes it wait; Redis may be away at the start and at any time.

    One process owns a key at a time: another one that starts under the same id is
    refused. A value without an owner, from a peer that knows no lease, is judged by its
    TTL. After a crash the id is free at once for a process on the same machine, where
    the system shows that the former one is gone (Linux, same container); elsewhere
    after at most ``ttl`` seconds.

    A heartbeat whose event loop stands still for longer than ``ttl`` expires. With plain
    ``with`` a thread beats, whatever the program does meanwhile. SIGTERM ends a program
    without leaving the block, unless it is handled:
    ``signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))``.

    Args:
        redis: A URL, a client of redis-py, a ``ProjectAgent``, or ``None`` for
            ``BLS_REDIS_URL``.
        heartbeat: The first value; a copy is kept.
        interval: Seconds between two beats at most, jittered; at most a third of
            ``ttl``, which is the default.
        ttl: Seconds for which the worker counts as alive after a beat; 30 by default.
        conflict: ``"refuse"`` raises :class:`~bls_agent.LeaseHeldError` where a living
            process owns the key; ``"wait"`` lets the host go on and takes the key when
            it is free.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: An argument is wrong.
    """

    def __init__(
        self,
        redis: object,
        heartbeat: WorkerHeartbeat,
        *,
        interval: float | None = None,
        ttl: float | None = None,
        conflict: Literal["refuse", "wait"] = "refuse",
        timeout: float = 5.0,
    ) -> None:
        if not getattr(heartbeat, "kind", ""):  # from a caller without a type checker
            rule = "a worker heartbeat, as BacktestWorkerHeartbeat.create(...)"
            raise ConfigurationError("heartbeat", heartbeat, rule)
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
        """In a forked child: the key is the parent's."""
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
        """A copy of the present value."""
        return copy.deepcopy(self._current.now)

    @property
    def owned(self) -> bool:
        """Whether the key surely belongs to this process until the next beat is due."""
        state = self._state
        return state is not None and state.claim.valid

    def update(self, **changes: Any) -> None:
        """Change fields of the heartbeat; written at once, many changes in a few writes.

        From any thread; never waits, and never raises for Redis.

        Raises:
            ConfigurationError: A field is unknown or cannot hold that value; nothing
                has changed.
        """
        self._current.change(changes)
        state, writer = self._state, self._writer
        if state is not None and writer is not None:
            writer.write_soon([state])

    def stats(self) -> HeartbeatStats:
        """Return every counter and state; from any thread."""
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
            timeout: Seconds to wait at most; ``None`` for ever.

        Raises:
            RedisUnavailableError: Not within that time.
            ConfigurationError: It is not open.
        """
        state, writer = self._opened(), self._writer
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
        """Do as :meth:`ready`, where no event loop runs: else ConfigurationError."""
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
        """Open: the first beat is written, or will be when Redis is there.

        Raises:
            LeaseHeldError: The key belongs to a living process.
            WrongTypeError: The key holds another type; it was left alone.
            ConfigurationError: It is open already, or ``BLS_REDIS_URL`` is wrong.
        """
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Remove the key; the exception of the body goes on unchanged."""
        await self.aclose()

    def __enter__(self) -> Self:
        """Open in a program without an event loop; raises as ``async with``."""
        refuse_in_event_loop("with Heartbeat(...)", "'async with Heartbeat(...)'")
        self._refuse_twice()
        self._thread = _THREAD.open(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the key; the exception of the block goes on unchanged."""
        thread = self._thread
        if thread is None:  # a forked child, or closed already
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
        # Neither state nor writer holds this object: an unclosed one is collected.
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
            self._raise(state.conflict)
        except BaseException:
            await self.aclose()
            raise

    def _raise(self, conflict: Exception | None) -> None:
        """Raise a conflict, unless it ends and may be waited for."""
        ends = isinstance(conflict, LeaseHeldError) and conflict.remaining is not None
        if ends and self._conflict == "wait":
            text = "no heartbeat is written until its key is free: %s"
            logger.warning(text, conflict)
        elif conflict is not None:
            raise conflict

    async def aclose(self) -> None:
        """Remove the key, if this process owns it, and stop; nothing if closed.

        Takes at most ``timeout`` + 1 s.
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
            finally:  # no scope is a shield against Task.cancel()
                await WRITERS.leave(writer)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_state", None) is not None:
            text = f"the heartbeat {self._key!r} was never closed"
            _warn(text, ResourceWarning, stacklevel=2, source=self)
