"""A call of a cached coroutine function, from its arguments to its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bls_agent.access import Access
from bls_agent.loop_local import LoopLocal
from bls_agent.workers.caching.availability import Availability
from bls_agent.workers.caching.cached_function import (
    MISSING,
    CachedFunction,
    Found,
)
from bls_agent.workers.caching.fleet_lock import FleetLock
from bls_agent.workers.caching.flights import Flight, Flights, closes_circle
from bls_agent.workers.caching.outcome import Outcome, conclude, excuse
from bls_agent.workers.caching.station import Station

__all__ = ["AsyncCalls"]


class _Job(NamedTuple):
    """One call whose result is to be computed."""

    station: Station
    function: CachedFunction
    key: str
    run: Callable[[], Any]


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
        self._here: LoopLocal[tuple[Station, Flights]] = LoopLocal()

    def forget_parent(self) -> None:
        """In a forked child: the loops are the parent's."""
        self._here.forget_parent()

    def _find_here(self) -> tuple[Station, Flights]:
        here = self._here.find()
        if here is None:
            import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

            loop = asyncio.get_running_loop()
            station = Station(
                self._access, self._locks, self._availability, self._timeout, loop
            )
            here = (station, Flights(loop))
            self._here.keep(here)
        return here

    async def aclose(self) -> None:
        """End what goes on in the background of this loop, without the connections."""
        here = self._here.find()
        if here is not None:
            station, flights = here
            await flights.aclose()
            await station.pump.aclose()

    async def call(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Give the stored result, or compute it, or wait for who computes it."""
        key = function.key_of(args, kwargs)
        if key is None:
            return await function.function(*args, **kwargs)
        station, flights = self._find_here()
        while True:
            course = function.course(key)
            flight = flights.get(course)
            if flight is None:
                flight = flights.announce(course)
                run = partial(function.function, *args, **kwargs)
                await _look(flights, flight, _Job(station, function, key, run))
            if flight.outcome is not None:
                return flight.outcome.give(function)
            if closes_circle(flight):
                function.counts.add("misses")
                return await function.function(*args, **kwargs)
            outcome = await flights.join(flight)
            if outcome is not None:
                return outcome.give(function)


async def _look(flights: Flights, flight: Flight, job: _Job) -> None:
    """Take what is stored, or begin to compute it."""
    try:
        found = await job.station.read(job.function, job.key)
    except BaseException:  # this caller is cancelled: another one begins anew
        flights.land(flight)
        raise
    if not found.fresh:
        flights.begin(flight, partial(_compute_or_join, flights, job, found))
        return
    flight.outcome = Outcome(found.value, found.payload, computed=False, hit=True)
    flights.land(flight)
    if job.function.policy.early and job.function.is_due(found.left):
        early = flights.announce_early(job.function.course(job.key))
        if early is not None:
            flights.begin(early, partial(_compute_early, job))


async def _compute_or_join(flights: Flights, job: _Job, found: Found) -> Outcome:
    """Compute, unless the old value has ended while a new one is being computed."""
    early = flights.early.get(job.function.course(job.key))
    outcome = None if early is None else await flights.join(early)
    return outcome or await _compute(job, found)


async def _compute(job: _Job, found: Found) -> Outcome:
    if not (job.function.policy.lock and found.writable):
        return await _run(job, found, None)
    lock = FleetLock(job.station, job.function, job.key)
    try:
        other = await lock.enter()
        if other is not None:
            return Outcome(other.value, other.payload, computed=False)
        return await _run(job, found, lock)
    finally:
        await lock.leave()


async def _compute_early(job: _Job) -> Outcome | None:
    """Compute before the end; ``None`` if another process of the fleet does."""
    function, lock = job.function, None
    try:
        if function.policy.lock:
            lock = FleetLock(job.station, function, job.key)
            if not await lock.try_once():
                return None
        function.counts.add("refreshed_early")
        outcome = await _run(job, MISSING, lock)
        if isinstance(outcome.error, Exception):
            function.say_raised(outcome.error, "its result was to be refreshed early")
        return outcome
    finally:
        if lock is not None:
            await lock.leave()


async def _run(job: _Job, found: Found, lock: FleetLock | None) -> Outcome:
    import asyncio  # noqa: PLC0415, TID251 - only its tasks tell who has cancelled them

    function = job.function
    generation = function.generation
    function.counts.add("computed")
    try:
        value = await job.run()
    except Exception as error:  # noqa: BLE001 - it belongs to the callers
        return excuse(function, error, found)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Outcome(error=error)  # the function's own
    outcome = conclude(function, value)
    with function.storing(generation) as may_store:
        wanted = may_store and found.writable and not (lock and lock.lost)
        if wanted and outcome.payload is not None:
            await job.station.write(function, job.key, outcome.payload)
    return outcome
