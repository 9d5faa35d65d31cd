"""Reads and writes the entries of a cache, and remembers outages of Redis."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from bls_agent.connection.access import Access
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import (
    BlsError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.runtime.lease import Lease
from bls_agent.runtime.tasks import start_background
from bls_agent.workers.caching.cached_function import UNKNOWN, CachedFunction, Found

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
PROBE: Final = 6.0  # seconds after which a probe without a reply counts as lost
CONSEQUENCE: Final = "a function's result is not cached"
GLANCE: Final = 1.0  # seconds between two checks for a failover
LOCK_BASE: Final = 0.02  # longest first pause in seconds between two tries for a lock
LOCK_CAP: Final = 0.25  # longest later pause in seconds


class Availability:
    """Remembers an outage of Redis, for all event loops and threads of a cache.

    The first failed request begins the outage. After that, only one probe at a time is
    sent, and no caller waits for the probe. As an exception, two threads may send a
    probe at the same time.
    """

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._throttled_log = ThrottledLog()
        self._probe_at = 0.0
        self.away: bool = False  # whether the last request had no reply
        self.failures: int = 0

    def probe_is_due(self) -> bool:
        """Return whether this caller has to send the next probe."""
        now = time.monotonic()
        if not self.away or now < self._probe_at:
            return False
        self._probe_at = now + PROBE
        return True

    def failed(self, error: RedisUnavailableError, known: int) -> None:
        """Record a failed request. ``known`` is ``failures`` before the request."""
        if self.failures != known:  # requests that fail together count as one failure
            return
        self.failures += 1
        delay = self._backoff.failed(permanent=isinstance(error, RedisRefusedError))
        self._probe_at = time.monotonic() + delay
        self.away = True
        self._throttled_log.warn(CONSEQUENCE, error)

    def refused(self, error: BlsError) -> None:
        """Log a refusal. This is no outage, because Redis has answered."""
        self._throttled_log.warn(CONSEQUENCE, error)

    def succeeded(self) -> None:
        if self.away:
            self.away = False
            self._backoff.succeeded()


class CacheBackend:
    """Reads and writes entries in one event loop. Logs errors and raises none."""

    def __init__(
        self,
        access: Access,
        locks: Access,
        availability: Availability,
        timeout: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._pool = access.pool
        self._connection = self._pool.pick()  # on a cluster, one of several connections
        self.locks = locks  # connections for locks, which have a longer deadline
        self.timeout = timeout
        self.availability = availability  # shared by all backends of a cache
        self._loop = loop
        self._glance_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def fetch(self, function: CachedFunction, key: str) -> list[Reply] | None:
        """Return the replies to a read, or ``None`` if Redis did not reply in time."""
        requests, replies = function.read_requests(key), None
        if not self.availability.away:
            replies = await self._ask(requests)
        elif self.availability.probe_is_due():
            _ = self._start(partial(self._ask, requests))
        if replies is None:
            function.counts.add("redis_failures")
        return replies

    def decode(
        self, function: CachedFunction, key: str, replies: list[Reply] | None
    ) -> Found:
        """Decode the replies to a read. Log and count refusals."""
        if replies is None:
            return UNKNOWN
        try:
            return function.decode(key, replies)
        except WrongTypeError as error:
            function.discard(error)
        except RedisUnavailableError as error:
            function.counts.add("redis_failures")
            self.availability.refused(error)
        return UNKNOWN

    async def write(self, function: CachedFunction, key: str, payload: bytes) -> None:
        """Write an entry in one round trip. Count and log errors."""
        replies: list[Reply] | None = None
        if not self.availability.away:
            request = ("SET", key, payload, *function.policy.expiry)
            replies = await self._ask([request], is_write=True)
        refusal = replies and replies[0]
        if replies is None or isinstance(refusal, RedisUnavailableError):
            function.counts.add("redis_failures")
        if isinstance(refusal, RedisUnavailableError):
            self.availability.refused(refusal)

    async def _ask(
        self, requests: Sequence[Request], *, is_write: bool = False
    ) -> list[Reply] | None:
        """Send repeatable requests. Return ``None`` if no reply comes in time."""
        known = self.availability.failures
        try:
            replies = await self._exchange(requests, is_write=is_write)
        except RedisUnavailableError as error:
            self.availability.failed(error, known)
            return None
        self.availability.succeeded()
        return replies

    async def _exchange(
        self, requests: Sequence[Request], *, is_write: bool
    ) -> list[Reply]:
        """Send requests over the open connection, or in a task that may open one."""
        if self._connection.ready and self._loop.time() < self._glance_at:
            try:
                return await self._connection.call_many(requests)
            except RedisUnavailableError as error:
                if error.kind != "connection":
                    raise
        ask = partial(self._pool.read_many, requests)
        replies = await self.in_time(ask, is_write=is_write)
        if not self._pool.is_cluster:
            self._glance_at = self._loop.time() + GLANCE
        return replies

    async def in_time(
        self, function: Callable[[], Coroutine[Any, Any, T]], *, is_write: bool = False
    ) -> T:
        """Run a task and wait for it within the timeout.

        The task continues after the timeout, and if the caller is cancelled. A write
        ends instead, because it might arrive after :meth:`FunctionCache.clear`.
        """
        import asyncio  # noqa: PLC0415 - waits for a task without cancelling it

        task = self._start(function)
        try:
            await asyncio.wait([task], timeout=self.timeout)
        finally:
            if is_write:
                task.cancel()  # has no effect on a task that is done
        if not task.done():
            raise RedisUnavailableError(
                "timeout",
                f"no answer within {self.timeout:g} s",
                address=self._connection.address,
            )
        if task.cancelled():
            raise RedisUnavailableError("closed", "the event loop is ending")
        return task.result()

    def _start(self, function: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        task = start_background(function, "bls-agent-cache")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs an unread exception

    async def aclose(self) -> None:
        """Close the connection at once. The next request opens a new one."""
        import asyncio  # noqa: PLC0415 - waits for tasks without raising their errors

        if tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._pool.aclose()


class DistributedLock:
    """The right of one process to compute a value while other processes wait.

    The lock is a lease, which is renewed while the function runs. If the process dies
    or freezes, another process takes the lock after at most one TTL.
    """

    def __init__(
        self, backend: CacheBackend, function: CachedFunction, key: str
    ) -> None:
        self._backend = backend
        self._function = function
        self._key = key
        self._lease: Lease | None = None  # made in the backend's event loop
        self._connection: Connection | None = None
        self._exit = AsyncExitStack()  # returns the connection to the pool
        self._renewing: asyncio.Task[None] | None = None

    async def enter(self, read: Callable[[], Awaitable[Found]]) -> Found | None:
        """Return another process's result, or ``None`` if the caller must compute.

        The caller must compute the value if it has taken the lock, if Redis is
        unreachable, or if ``lock_timeout`` seconds have passed.
        """
        policy, pause = self._function.policy, Backoff(base=LOCK_BASE, cap=LOCK_CAP)
        end = anyio.current_time() + policy.lock_timeout
        while not self._backend.availability.away:
            is_held_elsewhere = await self._take()
            found = await read()
            if found.fresh:
                await self.leave()
                return found
            left = end - anyio.current_time()
            if not is_held_elsewhere or not found.writable or left <= 0:
                return None
            await anyio.sleep(min(pause.failed(), left))
        return None

    async def _take(self) -> bool:
        """Take the lock if it is free. Return whether another process has the lock.

        Return ``False``, too, if Redis does not reply.
        """
        try:
            lease = await self._prepare()
            with anyio.fail_after(self._backend.timeout):
                ours = await lease.acquire()
        except (RedisUnavailableError, TimeoutError) as error:
            self._failed(error)
            return False
        if ours and self._renewing is None:
            self._renewing = start_background(lease.keep, "bls-agent-cache-lock")
        return not ours

    async def _prepare(self) -> Lease:
        if self._connection is None:
            with anyio.fail_after(self._backend.timeout):
                self._connection = await self._exit.enter_async_context(
                    self._backend.locks.pool.to(self._key)
                )
        if not self._connection.connected:
            await self._backend.in_time(self._connection.open)
        if self._lease is None:
            ttl = self._function.policy.lock_ttl
            self._lease = Lease(self._connection, self._key, ttl)
        return self._lease

    def _failed(self, error: Exception) -> None:
        self._function.counts.add("redis_failures")
        if isinstance(error, RedisUnavailableError):
            self._backend.availability.refused(error)

    @property
    def lost(self) -> bool:
        """Whether the lease has ended, so that another process may compute, too."""
        lease = self._lease
        return self._renewing is not None and lease is not None and not lease.valid

    async def leave(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        try:
            if self._lease is not None and self._lease.token:
                with anyio.fail_after(self._backend.timeout):
                    await self._lease.give_back()
        except (RedisUnavailableError, TimeoutError) as error:
            self._failed(error)  # the lease ends at its TTL
        finally:
            await self._exit.aclose()
