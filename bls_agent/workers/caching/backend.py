"""How a cache reaches Redis in one event loop, and whether to ask it at all."""

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
PROBE: Final = 6.0  # seconds after which a probe without an answer is given up
CONSEQUENCE: Final = "a function's result is not cached"
GLANCE: Final = 1.0  # seconds between two checks for a failover
LOCK_BASE: Final = 0.02  # seconds: first ceiling of the pauses between two tries
LOCK_CAP: Final = 0.25


class Availability:
    """Remembers an outage, for all loops and threads of a cache.

    One caller finds it out. From then on Redis is asked by one probe at a time, for
    which no caller waits. Two threads at once may send one probe too many.
    """

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._throttled_log = ThrottledLog()
        self._probe_at = 0.0
        self.away = False  # Redis did not answer when it was last asked
        self.failures = 0

    def probe_is_due(self) -> bool:
        """Return whether the caller has to send a probe. The next caller does not."""
        now = time.monotonic()
        if not self.away or now < self._probe_at:
            return False
        self._probe_at = now + PROBE
        return True

    def failed(self, error: RedisUnavailableError, known: int) -> None:
        """Record that Redis did not answer; ``known`` was ``failures`` when it was asked."""
        if self.failures != known:  # many that fail together count once
            return
        self.failures += 1
        delay = self._backoff.failed(permanent=isinstance(error, RedisRefusedError))
        self._probe_at = time.monotonic() + delay
        self.away = True
        self._throttled_log.warn(CONSEQUENCE, error)

    def refused(self, error: BlsError) -> None:
        """Record that Redis answered, but refused the request."""
        self._throttled_log.warn(CONSEQUENCE, error)

    def succeeded(self) -> None:
        if self.away:
            self.away = False
            self._backoff.succeeded()


class CacheBackend:
    """Reads and writes entries in one event loop, within the timeout; never raises."""

    def __init__(
        self,
        access: Access,
        locks: Access,
        availability: Availability,
        timeout: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._pool = access.pool
        self._connection = self._pool.pick()  # the only one, unless it is a cluster
        self.locks = locks  # whose requests may take longer
        self.timeout = timeout
        self.availability = availability  # shared by all backends of a cache
        self._loop = loop
        self._glance_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def fetch(self, function: CachedFunction, key: str) -> list[Reply] | None:
        """Return the replies to a read; ``None`` if Redis is away."""
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
        """Decode the replies to a read, and log refusals among them."""
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
        """Write an entry, in one round trip; an error is counted, and raised to nobody."""
        replies: list[Reply] | None = None
        if not self.availability.away:
            request = ("SET", key, payload, *function.policy.expiry)
            replies = await self._ask([request])
        refusal = replies and replies[0]
        if replies is None or isinstance(refusal, RedisUnavailableError):
            function.counts.add("redis_failures")
        if isinstance(refusal, RedisUnavailableError):
            self.availability.refused(refusal)

    async def _ask(self, requests: Sequence[Request]) -> list[Reply] | None:
        """Send requests that may be sent twice; ``None`` if no answer comes in time."""
        known = self.availability.failures
        try:
            replies = await self._exchange(requests)
        except RedisUnavailableError as error:
            self.availability.failed(error, known)
            return None
        self.availability.succeeded()
        return replies

    async def _exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests over the open connection, or in a task that opens a connection."""
        if self._connection.ready and self._loop.time() < self._glance_at:
            try:
                return await self._connection.call_many(requests)
            except RedisUnavailableError as error:
                if error.kind != "connection":
                    raise
        replies = await self.in_time(partial(self._pool.read_many, requests))
        if not self._pool.is_cluster:
            self._glance_at = self._loop.time() + GLANCE
        return replies

    async def in_time(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for a task within the timeout. The task goes on when the caller has gone."""
        import asyncio  # noqa: PLC0415 - waits for a task without cancelling it

        task = self._start(function)
        await asyncio.wait([task], timeout=self.timeout)
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
            task.exception()  # retrieved, as perhaps no caller waits any more

    async def aclose(self) -> None:
        """Close the connection at once; the next request opens it again."""
        import asyncio  # noqa: PLC0415 - as above

        if tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._pool.aclose()


class DistributedLock:
    """The right of one process of a fleet to compute a value; the others wait.

    Its lease is renewed while the function runs: a process that dies or freezes is
    replaced after at most one TTL.
    """

    def __init__(
        self, backend: CacheBackend, function: CachedFunction, key: str
    ) -> None:
        self._backend = backend
        self._function = function
        self._key = key
        self._lease: Lease | None = None  # made in the backend's loop
        self._connection: Connection | None = None
        self._exit = AsyncExitStack()  # gives the connection back
        self._renewing: asyncio.Task[None] | None = None

    async def enter(self, read: Callable[[], Awaitable[Found]]) -> Found | None:
        """Return another process's result; ``None`` if the caller shall compute.

        Then it has the lock, or Redis is away, or the time is up.
        """
        policy, pause = self._function.policy, Backoff(base=LOCK_BASE, cap=LOCK_CAP)
        end = anyio.current_time() + policy.lock_timeout
        while not self._backend.availability.away:
            ours = await self.try_once()
            found = await read()
            if found.fresh:
                await self.leave()
                return found
            left = end - anyio.current_time()
            if ours is not False or not found.writable or left <= 0:
                return None
            await anyio.sleep(min(pause.failed(), left))
        return None

    async def try_once(self) -> bool | None:
        """Take the lock if it is free; ``None`` if Redis does not answer."""
        try:
            lease = await self._prepare()
            with anyio.fail_after(self._backend.timeout):
                ours = await lease.acquire()
        except (RedisUnavailableError, TimeoutError) as error:
            self._failed(error)
            return None
        if ours and self._renewing is None:
            self._renewing = start_background(lease.keep, "bls-agent-cache-lock")
        return ours

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
        """Whether another process may compute by now, so that our result is not stored."""
        lease = self._lease
        return self._renewing is not None and lease is not None and not lease.valid

    async def leave(self) -> None:
        """Release the lock, if this process has it."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        try:
            if self._lease is not None and self._lease.token:
                with anyio.fail_after(self._backend.timeout):
                    await self._lease.give_back()
        except (RedisUnavailableError, TimeoutError) as error:
            self._failed(error)  # the lease ends by itself
        finally:
            await self._exit.aclose()
