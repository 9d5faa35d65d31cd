"""A call of a cached coroutine function, from its arguments to its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from bls_agent.access import Access
from bls_agent.workers.caching.availability import Availability
from bls_agent.workers.caching.cached_function import (
    MISSING,
    CachedFunction,
    Found,
)
from bls_agent.workers.caching.fleet_lock import FleetLock
from bls_agent.workers.caching.flights import COMPUTING, Flights
from bls_agent.workers.caching.outcome import Outcome, conclude, excuse
from bls_agent.workers.caching.station import Station

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see AsyncCalls

__all__ = ["AsyncCalls"]


class AsyncCalls:
    """Calls coroutine functions, in whatever event loop the caller runs."""

    def __init__(
        self, access: Access, locks: Access, availability: Availability, timeout: float
    ) -> None:
        """Remember the way; nothing is opened yet."""
        self._access = access
        self._locks = locks
        self._availability = availability
        self._timeout = timeout
        self.forget_parent()

    def forget_parent(self) -> None:
        """In a forked child: the loops are the parent's."""
        self._here: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[Station, Flights]
        ] = WeakKeyDictionary()

    def _find_here(self) -> tuple[Station, Flights]:
        import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

        loop = asyncio.get_running_loop()
        here = self._here.get(loop)
        if here is None:
            for other in [each for each in self._here if each.is_closed()]:
                del self._here[other]  # what is kept for a loop holds the loop
            station = Station(
                self._access, self._locks, self._availability, self._timeout, loop
            )
            here = self._here[loop] = (station, Flights())
        return here

    async def call(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Give the stored result, or compute it, or wait for who computes it."""
        key = function.key_of(args, kwargs)
        if key is None:
            return await function.function(*args, **kwargs)
        station, flights = self._find_here()
        run = partial(function.function, *args, **kwargs)
        while True:
            flight = flights.get(key)
            if flight is None:
                found = await station.read(function, key)
                if found.fresh:
                    function.counts.add("hits")
                    if function.policy.early and function.is_due(found.left):
                        self._refresh(function, key, run)
                    return found.value
                flight = flights.get(key)
                if flight is None:
                    compute = partial(_compute, station, function, key, run, found)
                    flight = flights.begin(key, compute)
            if flight in COMPUTING.get():
                function.counts.add("misses")
                return await run()
            outcome = await flights.join(flight)
            if outcome is not None:
                return outcome.give(function)

    def _refresh(
        self, function: CachedFunction, key: str, run: Callable[[], Any]
    ) -> None:
        """Compute anew in the background, unless somebody does so already."""
        station, flights = self._find_here()
        if flights.get(key) is None:
            flights.begin(
                key, partial(_compute_early, station, function, key, run), waiting=1
            )


async def _compute(
    station: Station,
    function: CachedFunction,
    key: str,
    run: Callable[[], Any],
    found: Found,
) -> Outcome:
    if not (function.policy.lock and found.writable):
        return await _run(station, function, key, run, found, None)
    lock = FleetLock(station, function, key)
    try:
        other = await lock.enter()
        if other is not None:
            return Outcome(other.value, other.payload, computed=False)
        return await _run(station, function, key, run, found, lock)
    finally:
        await lock.leave()


async def _compute_early(
    station: Station, function: CachedFunction, key: str, run: Callable[[], Any]
) -> Outcome | None:
    """Compute before the end; ``None`` if another process of the fleet does."""
    lock = FleetLock(station, function, key) if function.policy.lock else None
    try:
        if lock is not None and not await lock.try_once():
            return None
        function.counts.add("refreshed_early")
        outcome = await _run(station, function, key, run, MISSING, lock)
        if isinstance(outcome.error, Exception):
            function.say_raised(outcome.error, "its result was to be refreshed early")
        return outcome
    finally:
        if lock is not None:
            await lock.leave()


async def _run(
    station: Station,
    function: CachedFunction,
    key: str,
    run: Callable[[], Any],
    found: Found,
    lock: FleetLock | None,
) -> Outcome:
    import asyncio  # noqa: PLC0415, TID251 - only its tasks tell who has cancelled them

    generation = function.generation
    function.counts.add("computed")
    try:
        value = await run()
    except Exception as error:  # noqa: BLE001 - it belongs to the callers
        return excuse(function, error, found)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Outcome(error=error)  # the function's own
    outcome = conclude(function, value)
    may_store = found.writable and generation == function.generation
    if outcome.payload is not None and may_store and not (lock and lock.lost):
        await station.write(function, key, outcome.payload)
    return outcome
