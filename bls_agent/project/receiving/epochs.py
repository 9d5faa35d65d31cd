"""Whose in-flight list it is, and since when: one list and one lease at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import anyio

from bls_agent.errors import RedisUnavailableError
from bls_agent.lease import Lease
from bls_agent.project.receiving.places import Places
from bls_agent.wire import Wire

__all__ = ["Epochs"]


class Epochs:
    """Keeps the lease on this process's in-flight list, or gets another list.

    Nobody ever waits for a lease: a list that somebody else owns is left to them, and
    a fresh name is taken. As long as the lease has not been interrupted nobody can have
    reclaimed anything; after an interruption the list has to be compared.

    Attributes:
        lease: On the list that is in use.
        compared: Whether the list surely still holds what it is thought to hold.
        inherits: What stands in the list was taken by a process before this one.
        losses: How often the lease was interrupted.
        length: How many commands stood in the list when that was last asked.
        closed: Nothing is acquired or renewed any more.
    """

    def __init__(
        self,
        wire: Callable[[], Wire],
        places: Places,
        instance: str,
        ttl: float,
        *,
        on_renamed: Callable[[], None],
    ) -> None:
        """Remember whose.

        Args:
            wire: Gives the wire over which the lease is kept.
            places: Where the lists are.
            instance: Name of this process.
            ttl: Seconds after which a silent process has lost its list.
            on_renamed: Called when what was held belongs to somebody else now.
        """
        self._wire = wire
        self._places = places
        self._instance = instance
        self._ttl = ttl
        self._on_renamed = on_renamed
        self._lock = anyio.Lock()
        self.lease = Lease(wire(), places.inflight(instance), ttl)
        self.compared = False
        self.inherits = True
        self.losses = 0
        self.length = 0
        self.closed = False
        self._ever = False

    @property
    def valid(self) -> bool:
        """Whether the list is surely ours now."""
        return self.lease.valid and not self.closed

    @property
    def inflight(self) -> str:
        """The key of the list that is in use."""
        return self.lease.key

    async def ensure(self) -> None:
        """Have a list, at once if there is one.

        Raises:
            RedisUnavailableError: Nobody knows whose it is.
        """
        if not self.valid:
            await self.keep()

    async def keep(self) -> None:
        """Renew the lease, get it back, or get another list; write its name down.

        Raises:
            RedisUnavailableError: Nobody knows whose it is.
        """
        async with self._lock:
            if self.closed:
                return
            if not await self.lease.renew():
                self.compared = False
                self.losses += self._ever
                if not await self.lease.acquire():
                    await self._take_another_list()
            self._ever = True
            # Each time: whoever empties or deletes the set must not hide our list.
            named, length = await self._wire().call_many(
                [
                    ("SADD", self._places.lists, self.lease.key),
                    ("LLEN", self.lease.key),
                ]
            )
            if isinstance(named, RedisUnavailableError):
                raise named
            self.length = length if isinstance(length, int) else 0

    async def _take_another_list(self) -> None:
        name = f"{self._instance}~{secrets.token_hex(4)}"
        fresh = Lease(self._wire(), self._places.inflight(name), self._ttl)
        self._on_renamed()
        self.lease = fresh
        await fresh.acquire()

    def suspect(self) -> None:
        """Somebody says that the list is not ours: find out before it is used again."""
        self.lease.step_down()

    async def close(self) -> None:
        """Acquire and renew nothing any more."""
        self.closed = True
        async with self._lock:
            pass
