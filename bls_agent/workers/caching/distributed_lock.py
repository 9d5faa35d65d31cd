"""One process of the fleet computes a missing value; the others wait for it.

The lease stands beside the entry's key and is renewed while the function runs, so that
a process that dies or freezes is replaced after at most one TTL of the lease.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.wire import Wire
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runtime.lease import Lease
from bls_agent.runtime.tasks import start_background
from bls_agent.workers.caching.backend import CacheBackend
from bls_agent.workers.caching.cached_function import CachedFunction, Found

if TYPE_CHECKING:
    import asyncio

__all__ = ["DistributedLock"]

BASE: Final = 0.02  # seconds: first ceiling of the pauses between two tries
CAP: Final = 0.25
RENEWALS: Final = 3  # in one TTL of the lease


class DistributedLock:
    """The right of one process to compute one value."""

    def __init__(
        self, backend: CacheBackend, function: CachedFunction, key: str
    ) -> None:
        """Remember the value; nothing is requested yet."""
        self._backend = backend
        self._function = function
        self._key = key
        self._lease: Lease | None = None  # made in the backend's loop
        self._wire: Wire | None = None
        self._exit = AsyncExitStack()  # gives the wire back
        self._had = False
        self._renewing: asyncio.Task[None] | None = None

    async def enter(self) -> Found | None:
        """Wait until the caller may compute, or another process has.

        Returns:
            The other's result; ``None`` if the caller shall compute, because it has the
            lock, or Redis is away, or the time is up.
        """
        policy, pause = self._function.policy, Backoff(base=BASE, cap=CAP)
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
                wire, lease = await self._prepare()
            if not wire.connected and not await self._connect(wire):
                return None
            with anyio.fail_after(self._backend.timeout):
                ours = await lease.acquire()
        except (RedisUnavailableError, TimeoutError) as error:
            self._failed(error)
            return None
        self._had = ours
        if ours and self._renewing is None:
            renew = partial(_renew, lease)
            self._renewing = start_background(renew, "bls-agent-cache-lock")
        return ours

    async def _prepare(self) -> tuple[Wire, Lease]:
        if self._wire is None:
            wire = self._backend.wire_to(self._key)
            self._wire = await self._exit.enter_async_context(wire)
        if self._lease is None:
            ttl = self._function.policy.lock_ttl
            self._lease = Lease(self._wire, self._key, ttl)
        return self._wire, self._lease

    async def _connect(self, wire: Wire) -> bool:
        """Wait for a connection; where it takes longer, it is there for the next one."""
        import asyncio  # noqa: PLC0415 - waits for a task without cancelling it

        async def connect() -> None:
            try:
                await wire.open()
            except RedisUnavailableError as error:
                self._failed(error)

        task = start_background(connect, "bls-agent-cache-connect")
        await asyncio.wait([task], timeout=self._backend.timeout)
        return wire.connected

    def _failed(self, error: Exception) -> None:
        self._function.counts.add("redis_failures")
        if isinstance(error, RedisUnavailableError):
            self._backend.availability.refused(error)

    @property
    def lost(self) -> bool:
        """Whether another process may compute by now: our result is not stored then."""
        return self._had and self._lease is not None and not self._lease.valid

    async def leave(self) -> None:
        """Give the lock back, if we have it."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        try:
            if self._lease is not None and self._lease.token:
                with anyio.fail_after(self._backend.timeout):
                    await self._lease.give_back()
        except (RedisUnavailableError, TimeoutError) as error:
            self._failed(error)  # it ends by itself
        finally:
            await self._exit.aclose()


async def _renew(lease: Lease) -> None:
    while True:
        await anyio.sleep(lease.ttl / RENEWALS)
        try:
            if not await lease.renew():
                return
        except RedisUnavailableError:
            continue  # the next may do; until then it is valid or not by itself
