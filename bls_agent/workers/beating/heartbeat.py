"""A worker's heartbeat, kept alive in Redis as long as the worker lives (contract 001)."""

from __future__ import annotations

import copy
import logging
import random
import warnings
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import anyio

from bls_agent.access import Access
from bls_agent.after_fork import register
from bls_agent.errors import (
    ConfigurationError,
    LeaseHeldError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.lease import (
    LeaseState,
    Ownership,
    belongs_to_dead,
    boot_seconds,
    make_token,
)
from bls_agent.loop_thread import LoopThread, refuse_in_event_loop, result_of, wait_for
from bls_agent.settings import check_seconds
from bls_agent.workers.beating.homes import POOLS, THREAD, call_in
from bls_agent.workers.beating.life import HeartbeatCounts, Life
from bls_agent.workers.beating.limits import (
    check_interval,
    check_slot,
    check_stall_after,
)
from bls_agent.workers.beating.said import Said
from bls_agent.workers.beating.stats import HeartbeatStats
from bls_agent.workers.heartbeats import WorkerHeartbeat

if TYPE_CHECKING:
    from bls_agent.workers.beating.pool import HeartbeatPool

__all__ = ["Heartbeat"]

logger = logging.getLogger(__name__)

_RNG: Final = random.SystemRandom()  # has no state that forked children would share
LEAVE_GRACE: Final = 1.0  # seconds beyond its timeout that leaving may take


class Heartbeat:
    """Says that a worker lives, for as long as it does, and how it is.

    ``async with Heartbeat(...) as beat:`` in a program with an event loop, ``with
    Heartbeat(...) as beat:`` in one without. While it is open the worker's key holds
    its heartbeat, with a TTL, written anew every ``interval`` seconds and whenever
    :meth:`update` changes it. Leaving removes the key at once. Nothing in it raises into
    the host or makes it wait; Redis may be away at the start and at any time.

    One process owns a key at a time; the owner's token stands beside it. A process that
    starts while another one lives under the same id is refused. What stands there
    without an owner, of a peer that knows no lease, is judged by its TTL. After a crash
    the id is free at once for who is started again on the same machine, where the system
    tells that the process is gone (Linux, same container); elsewhere when the lease has
    ended, after at most ``ttl`` seconds: ``"wait"`` is for those who are started again
    before that.

    While the event loop stands still for more than ``stall_after`` seconds the status is
    ``error``; used with plain ``with`` it beats in a thread of its own, and what the
    program does meanwhile is not looked at. SIGTERM ends a program without leaving the
    block unless it is handled: ``signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))``.

    Args:
        redis: A URL, a client of redis-py, a ``ProjectAgent``, or ``None`` for
            ``BLS_REDIS_URL``.
        heartbeat: What is said first; a copy is kept.
        interval: Seconds between two beats at most, jittered; at most a third of
            ``ttl``, which is the default.
        ttl: Seconds for which the worker counts as alive after a beat; the contract's
            30 by default.
        conflict: ``"refuse"`` raises :class:`~bls_agent.LeaseHeldError` where the key
            belongs to somebody who lives; ``"wait"`` lets the host go on and takes the
            key when it is free.
        stall_after: Seconds of a motionless event loop that count as a fault; ``None``
            for never.
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
        stall_after: float | None = 5.0,
        timeout: float = 5.0,
    ) -> None:
        """Remember; nothing is opened, read or started."""
        if not getattr(heartbeat, "kind", ""):  # callers without a type checker
            rule = "a heartbeat of contract 001, as BacktestWorkerHeartbeat.create(...)"
            raise ConfigurationError("heartbeat", heartbeat, rule)
        if conflict not in ("refuse", "wait"):
            raise ConfigurationError("conflict", conflict, "'refuse' or 'wait'")
        self._access = Access(redis, "bls-agent:heartbeats", timeout=timeout)
        self._key = heartbeat.key
        check_slot(heartbeat, self._access.known)
        usual = cast("float", heartbeat.template().ttl)
        self._ttl = check_seconds("ttl", usual if ttl is None else ttl)
        self._interval = check_interval(interval, self._ttl)
        self._stall_after = check_stall_after(stall_after)
        self._timeout = timeout
        self._conflict = conflict
        self._said = Said(heartbeat)
        self._counts = HeartbeatCounts()
        self._life: Life | None = None
        self._pool: HeartbeatPool | None = None
        self._thread: LoopThread | None = None
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: it is the parent who lives under this key."""
        self._life = self._pool = self._thread = None

    def __repr__(self) -> str:
        said = self._said.now
        life = self._life
        state = "closed" if life is None else "owned" if self.owned else "not owned"
        if life is not None and life.claim.standing in (
            Ownership.HELD,
            Ownership.STANDS,
        ):
            state = "waiting for its key"
        return (
            f"<Heartbeat {self._key!r} {said.status} {state} at {self._access.shown}>"
        )

    @property
    def heartbeat(self) -> WorkerHeartbeat:
        """What is said now: a copy."""
        return copy.deepcopy(self._said.now)

    @property
    def owned(self) -> bool:
        """Whether the key is surely ours, and will be until the next beat is due."""
        life = self._life
        return life is not None and life.claim.is_valid(boot_seconds())

    def update(self, **changes: Any) -> None:
        """Say something else; written at once, then with each beat.

        From any thread; never waits, and never raises for Redis. Many changes in a row
        become a few writes.

        Args:
            changes: Fields of the heartbeat.

        Raises:
            ConfigurationError: A field is unknown or cannot hold that value; nothing
                has changed.
        """
        self._said.change(changes)
        life, pool = self._life, self._pool
        if life is not None and pool is not None:
            pool.hasten(life)

    def stats(self) -> HeartbeatStats:
        """Give a snapshot of every counter and state; from any thread."""
        life, pool, counts = self._life, self._pool, self._counts
        return HeartbeatStats(
            key=self._key,
            open=life is not None,
            owned=self.owned,
            standing=life.claim.standing if life else Ownership.UNKNOWN,
            **vars(counts),
            loop_stalls=pool.stalls.stalls if pool else 0,
            loop_stalled_seconds=pool.stalls.longest if pool else 0.0,
        )

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the first beat is written.

        Args:
            timeout: Seconds to wait at most; ``None`` for ever.

        Raises:
            RedisUnavailableError: Not within that time.
            ConfigurationError: It is not open.
        """
        life, pool = self._opened(), self._pool
        if pool is not None and pool.is_elsewhere:
            within = None if timeout is None else timeout + LEAVE_GRACE
            await call_in(pool, partial(self.ready, timeout), within)
        else:
            with anyio.move_on_after(timeout):
                await life.decided.wait()
        self._opened()
        if not life.has_landed:
            raise self._not_ready(life)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the first beat is written, in a program without an event loop.

        Args:
            timeout: Seconds to wait at most; ``None`` for ever.

        Raises:
            RedisUnavailableError: Not within that time.
            ConfigurationError: It is not open, or an event loop runs here.
        """
        refuse_in_event_loop("wait_ready", "'await beat.ready()'")
        self._opened()
        if self._thread is None:
            rule = "it must be opened by 'with'; in an event loop there is ready()"
            raise ConfigurationError("heartbeat", self._key, rule)
        result_of(self._thread.begin(self.ready, timeout))

    def _opened(self) -> Life:
        if self._life is None:
            raise ConfigurationError("heartbeat", self._key, "it must be open")
        return self._life

    def _not_ready(self, life: Life) -> RedisUnavailableError:
        reason = {
            Ownership.HELD: "another process owns its key",
            Ownership.STANDS: "a heartbeat that is not ours stands under its key",
            Ownership.WRONG_TYPE: "its key holds another type",
        }.get(life.claim.standing, "Redis has not answered yet")
        reason = f"no heartbeat was written in time: {reason}"
        return RedisUnavailableError("not_ready", reason, address=self._access.shown)

    async def __aenter__(self) -> Self:
        """Open: the first beat is written, or will be when Redis is there.

        Raises:
            LeaseHeldError: The key belongs to a living process.
            WrongTypeError: The key holds another type; it was left alone.
            ConfigurationError: It is open already, or ``BLS_REDIS_URL`` does not fit.
        """
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the key; the exception of the body goes on unchanged."""
        await self.aclose()

    def __enter__(self) -> Self:
        """Open in a program without an event loop; raises as ``async with``."""
        refuse_in_event_loop("with Heartbeat(...)", "'async with Heartbeat(...)'")
        self._refuse_twice()
        self._thread = THREAD.open(self._open)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the key; the exception of the block goes on unchanged."""
        thread = self._thread
        if thread is None:  # a forked child, or closed already
            return
        self._thread = None
        try:
            wait_for(thread.begin(self.aclose), self._timeout + LEAVE_GRACE)
        finally:
            THREAD.leave()

    def _bury(self) -> None:
        """Let go of a life whose event loop was closed under it."""
        if self._pool is not None and self._pool.is_abandoned:
            self._pool.bury()
            self._life = self._pool = None

    def _refuse_twice(self) -> None:
        self._bury()
        if self._life is not None:
            rule = "it is open already"
            raise ConfigurationError("heartbeat", self._key, rule, "Close it first.")

    async def _open(self) -> None:
        self._refuse_twice()
        endpoint = self._access.endpoint
        check_slot(self._said.now, endpoint)
        claim = LeaseState(self._key, self._ttl, make_token(self._ttl))
        said = self._said
        life = Life(
            lambda: said.now,
            claim,
            interval=self._interval,
            counts=self._counts,
            rng=_RNG,
            is_dead=belongs_to_dead,
        )
        pool = POOLS.enter(
            endpoint, timeout=self._timeout, stall_after=self._stall_after
        )
        self._life, self._pool = life, pool
        try:
            pool.add(life)
            with anyio.move_on_after(self._timeout):
                await life.judged.wait()
            self._raise_if_taken(life)
        except BaseException:
            await self.aclose()
            raise

    def _raise_if_taken(self, life: Life) -> None:
        error = life.verdict
        if isinstance(error, LeaseHeldError):
            if self._conflict == "wait" and error.remaining is not None:
                logger.warning(
                    "no heartbeat is written until its key is free: %s", error
                )
                return
            raise error
        if isinstance(error, WrongTypeError):
            raise error

    async def aclose(self) -> None:
        """Remove the key, if it is ours, and stop; does nothing if it is closed.

        Takes at most ``timeout`` + 1 s, whatever Redis does.
        """
        self._bury()
        life, pool = self._life, self._pool
        if life is None or pool is None:
            return
        if pool.is_elsewhere:
            await call_in(pool, self.aclose, self._timeout + LEAVE_GRACE)
            return
        self._life = self._pool = None
        with anyio.CancelScope(shield=True):
            try:
                await pool.end(life)
            finally:  # no scope is a shield against Task.cancel()
                await POOLS.leave(pool)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_life", None) is not None:
            text = f"the heartbeat {self._key!r} was never closed"
            _warn(text, ResourceWarning, stacklevel=2, source=self)
