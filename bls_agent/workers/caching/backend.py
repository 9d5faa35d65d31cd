"""How a cache reaches Redis in one event loop, and whether to ask it at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from bls_agent.connection.access import Access
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.reconnect import Complaints
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

__all__ = ["Availability", "CacheBackend", "DistributedLock"]

T = TypeVar("T")
PROBE: Final = 6.0  # seconds after which a probe without an answer is given up
CONSEQUENCE: Final = "a function's result is not cached"
GLANCE: Final = 1.0  # seconds between two checks for a failover
LOCK_BASE: Final = 0.02  # seconds: first ceiling of the pauses between two tries
LOCK_CAP: Final = 0.25


class Availability:
    """Remembers an outage, for all loops and threads of a cache.

    One caller finds it out. From then on Redis is asked by one probe at a time, for
    which no caller waits. Where two threads come at once there may be one probe or one
    count too many, which does no harm: there is no lock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._backoff = Backoff()
        self._complaints = Complaints(clock)
        self._probe_at = 0.0
        self.away = False  # Redis did not answer when it was last asked
        self.failures = 0

    def probe_is_due(self) -> bool:
        """Tell whether the caller shall send a probe; then no other caller shall."""
        now = self._clock()
        if not self.away or now < self._probe_at:
            return False
        self._probe_at = now + PROBE
        return True

    def failed(self, error: RedisUnavailableError, known: int) -> None:
        """Record that Redis did not answer.

        ``known`` is ``failures`` when the caller asked: many that fail together count
        once.
        """
        if self.failures != known:
            return
        self.failures += 1
        delay = self._backoff.failed(permanent=isinstance(error, RedisRefusedError))
        self._probe_at = self._clock() + delay
        self.away = True
        self._complaints.say(CONSEQUENCE, error)

    def refused(self, error: BlsError) -> None:
        """Record that Redis answered, but refused the request."""
        self._complaints.say(CONSEQUENCE, error)

    def succeeded(self) -> None:
        """Record that Redis answered."""
        if self.away:
            self.away = False
            self._backoff.succeeded()

    def decode(
        self, function: CachedFunction, key: str, replies: list[Reply] | None
    ) -> Found:
        """Decode the replies to a read, and log refusals among them."""
        if replies is None:
            return UNKNOWN
        try:
            return function.decode(key, replies)
        except WrongTypeError as error:
            function.log_wrong_type(error)
        except RedisUnavailableError as error:
            function.counts.add("redis_failures")
            self.refused(error)
        return UNKNOWN


class CacheBackend:
    """Reads and writes entries in one event loop; failures of Redis are not raised.

    No caller waits longer than the timeout, not even while the connection is being
    made.
    """

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
        self._locks = locks
        self.timeout = timeout
        self.availability = availability  # shared by all backends of a cache
        self._loop = loop
        self._opening: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[list[Reply] | None] | None = None
        self._glance_at = 0.0
        self._closings = 0

    async def read(self, function: CachedFunction, key: str) -> Found:
        """Read an entry: one round trip."""
        replies = await self.fetch(function, key)
        return self.availability.decode(function, key, replies)

    async def fetch(self, function: CachedFunction, key: str) -> list[Reply] | None:
        """Give the replies to a read; ``None`` if Redis is away."""
        requests, replies = function.read_requests(key), None
        if not self.availability.away:
            replies = await self._ask(requests)
        elif self.availability.probe_is_due():
            probe = partial(self._ask, requests)
            self._probing = start_background(probe, "bls-agent-cache-probe")
        if replies is None:
            function.counts.add("redis_failures")
        return replies

    async def write(self, function: CachedFunction, key: str, payload: bytes) -> None:
        """Write an entry: one round trip."""
        replies: list[Reply] | None = None
        if not self.availability.away:
            request = ("SET", key, payload, *function.policy.expiry)
            replies = await self._ask([request])
        refusal = replies and replies[0]
        if replies is None or isinstance(refusal, RedisUnavailableError):
            function.counts.add("redis_failures")
        if isinstance(refusal, RedisUnavailableError):
            self.availability.refused(refusal)

    def connection_to(self, key: str) -> AbstractAsyncContextManager[Connection]:
        """Give the locks' own connection to a key's server: its requests may take longer."""
        return self._locks.pool.to(key)

    async def _ask(self, requests: Sequence[Request]) -> list[Reply] | None:
        """Send requests about a key that may be sent twice; errors are replies.

        ``None`` if no answer comes within the timeout.
        """
        known = self.availability.failures
        due = self._loop.time() + self.timeout
        try:
            if self._pool.is_cluster:
                reading = partial(self._pool.read_many, requests)
                task = start_background(reading, "bls-agent-cache")
                replies = await self._in_time(task, due)
            else:
                replies = await self._exchange(requests, due)
        except RedisUnavailableError as error:
            self.availability.failed(error, known)
            return None
        self.availability.succeeded()
        return replies

    async def aclose(self) -> None:
        """Close the connection at once; the next request opens it again."""
        import asyncio  # noqa: PLC0415 - as above

        self._closings += 1
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._pool.aclose()

    async def _exchange(self, requests: Sequence[Request], due: float) -> list[Reply]:
        """Send requests, and once more if the connection was lost under them."""
        connection, closings = self._connection, self._closings
        if not connection.ready or self._loop.time() > self._glance_at:
            await self._open(due)
        try:
            return await connection.call_many(requests)
        except RedisUnavailableError as error:
            if error.kind != "connection" or error.connecting:
                raise
            if closings != self._closings:
                raise
        await self._open(due)
        return await connection.call_many(requests)

    async def _open(self, due: float) -> None:
        """Connect, in one task for all callers; it goes on when none waits."""
        if self._opening is None:
            self._opening = start_background(self._connect, "bls-agent-cache-connect")
        await self._in_time(self._opening, due)

    async def _connect(self) -> None:
        try:
            async with self._pool.to("") as connection:
                await connection.open()
                self._glance_at = self._loop.time() + GLANCE
        finally:
            self._opening = None

    async def _in_time(self, task: asyncio.Task[T], due: float) -> T:
        import asyncio  # noqa: PLC0415 - as above

        task.add_done_callback(_retrieve)
        await asyncio.wait([task], timeout=due - self._loop.time())
        if not task.done():
            reason = f"no answer within {self.timeout:g} s"
            raise RedisUnavailableError(
                "timeout", reason, address=self._connection.address
            )
        if task.cancelled():
            raise RedisUnavailableError("closed", "the event loop is ending")
        return task.result()


class DistributedLock:
    """The right of one process of a fleet to compute a value; the others wait.

    The lease stands beside the entry's key and is renewed while the function runs, so
    that a process that dies or freezes is replaced after at most one TTL of the lease.
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
        self._had = False
        self._renewing: asyncio.Task[None] | None = None

    async def enter(self) -> Found | None:
        """Wait until the caller may compute, or another process has; give that result.

        ``None`` if the caller shall compute: it has the lock, or Redis is away, or the
        time is up.
        """
        policy, pause = self._function.policy, Backoff(base=LOCK_BASE, cap=LOCK_CAP)
        end = anyio.current_time() + policy.lock_timeout
        while not self._backend.availability.away:
            ours = await self.try_once()
            found = await self._backend.read(self._function, self._key)
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
            with anyio.fail_after(self._backend.timeout):
                connection, lease = await self._prepare()
            if not connection.connected and not await self._connect(connection):
                return None
            with anyio.fail_after(self._backend.timeout):
                ours = await lease.acquire()
        except (RedisUnavailableError, TimeoutError) as error:
            self._failed(error)
            return None
        self._had = ours
        if ours and self._renewing is None:
            self._renewing = start_background(lease.keep, "bls-agent-cache-lock")
        return ours

    async def _prepare(self) -> tuple[Connection, Lease]:
        if self._connection is None:
            connection = self._backend.connection_to(self._key)
            self._connection = await self._exit.enter_async_context(connection)
        if self._lease is None:
            ttl = self._function.policy.lock_ttl
            self._lease = Lease(self._connection, self._key, ttl)
        return self._connection, self._lease

    async def _connect(self, connection: Connection) -> bool:
        """Wait for a connection; a late one is there for the next caller."""
        import asyncio  # noqa: PLC0415 - waits for a task without cancelling it

        async def connect() -> None:
            try:
                await connection.open()
            except RedisUnavailableError as error:
                self._failed(error)

        task = start_background(connect, "bls-agent-cache-connect")
        await asyncio.wait([task], timeout=self._backend.timeout)
        return connection.connected

    def _failed(self, error: Exception) -> None:
        self._function.counts.add("redis_failures")
        if isinstance(error, RedisUnavailableError):
            self._backend.availability.refused(error)

    @property
    def lost(self) -> bool:
        """Whether another process may compute by now: our result is not stored then."""
        return self._had and self._lease is not None and not self._lease.valid

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


def _retrieve(task: asyncio.Task[T]) -> None:
    """Retrieve the failure of a task for which perhaps no caller waits any more."""
    if not task.cancelled():
        task.exception()
