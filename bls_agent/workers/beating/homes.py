"""Where heartbeats live: one pool for each event loop and Redis, one thread for the rest."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio

from bls_agent.after_fork import register
from bls_agent.endpoint import Endpoint
from bls_agent.loop_local import LoopLocal
from bls_agent.loop_thread import SharedThread
from bls_agent.workers.beating.pool import HeartbeatPool

__all__ = ["POOLS", "THREAD", "call_in"]

AT_EXIT: Final = 1.0  # seconds that the exit of the interpreter waits at most


class _Pools:
    """The pools of this process; each ends with the last heartbeat in it."""

    def __init__(self) -> None:
        self._by_loop: LoopLocal[dict[object, HeartbeatPool]] = LoopLocal()

    def forget_parent(self) -> None:
        """In a forked child: there are none."""
        self._by_loop.forget_parent()

    def enter(
        self, endpoint: Endpoint, *, timeout: float, stall_after: float | None
    ) -> HeartbeatPool:
        """Give the pool of the running event loop for this Redis, one user more."""
        register(self)
        pools = self._find_here()
        key = (endpoint.address, _find_likeness(endpoint), timeout, stall_after)
        pool = pools.get(key)
        if pool is None or pool.is_gone:
            pool = HeartbeatPool(endpoint, timeout=timeout, stall_after=stall_after)
            pools[key] = pool
            pool.start()
        pool.users += 1
        return pool

    def _find_here(self) -> dict[object, HeartbeatPool]:
        pools = self._by_loop.find()
        if pools is None:
            pools = dict[object, HeartbeatPool]()
            for left in self._by_loop.keep(pools):
                for pool in left.values():
                    pool.bury()
        return pools

    async def leave(self, pool: HeartbeatPool) -> None:
        """Give back a pool, in its event loop; the last one closes it."""
        pool.users -= 1
        if pool.users and not pool.is_gone:
            return
        pools = self._by_loop.find() or {}
        for key in [key for key, other in pools.items() if other is pool]:
            del pools[key]
        if not pools:
            self._by_loop.pop()
        if not pool.is_gone:
            await pool.aclose()


async def call_in(
    pool: HeartbeatPool,
    function: Callable[[], Coroutine[Any, Any, None]],
    within: float | None,
) -> None:
    """Await something in the event loop of a pool, which is another one and may hang.

    Args:
        pool: Whose.
        function: What.
        within: Seconds to wait at most; ``None`` for ever.
    """
    import asyncio  # noqa: PLC0415, TID251 - anyio knows one loop

    assert pool.loop is not None  # noqa: S101 - for the type checker
    future = asyncio.run_coroutine_threadsafe(function(), pool.loop)
    with anyio.move_on_after(within):
        await asyncio.wrap_future(future)


def _find_likeness(endpoint: Endpoint) -> int:
    """Give a number that is equal for the same servers and credentials."""
    topology = endpoint.topology
    if topology is None:
        return endpoint.likeness or id(endpoint)
    alike = [seed.likeness for seed in topology.seeds]
    alike.append(topology.node("any", 1).likeness)
    return hash((topology.kind, topology.service, *alike))


POOLS: Final = _Pools()
THREAD: Final = SharedThread("bls-agent heartbeats", at_exit=AT_EXIT)
