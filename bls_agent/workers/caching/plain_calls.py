"""A call of a cached plain function, from its arguments to its result.

The function runs in the caller's thread; what is said to Redis goes through the one
event loop's thread that the caches of a process share. In a thread in which an event
loop runs, nobody waits for others: who computes might need that very loop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import finalize

from bls_agent.access import Access
from bls_agent.endpoint import Reply, Request
from bls_agent.errors import RedisUnavailableError
from bls_agent.loop_thread import LoopThread, result_of
from bls_agent.workers.caching.availability import Availability
from bls_agent.workers.caching.cached_function import (
    MISSING,
    UNKNOWN,
    CachedFunction,
    Found,
)
from bls_agent.workers.caching.fleet_lock import FleetLock
from bls_agent.workers.caching.flights import COMPUTING, Errand, closes_circle
from bls_agent.workers.caching.outcome import Outcome, conclude, excuse
from bls_agent.workers.caching.shared_loop import SHARED_LOOP
from bls_agent.workers.caching.station import Station

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["PlainCalls"]

T = TypeVar("T")
SLACK: Final = 0.25  # seconds beyond the timeout: the loop's thread wants a turn, too


class _Flight(Errand):
    """One value on its way to several threads."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        self.outcome: Outcome | None = None


class PlainCalls:
    """Calls plain functions, in whatever thread the caller runs."""

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
        """In a forked child: who computes is not here, nor is the loop's thread."""
        self._flights: dict[str, _Flight] = {}  # setdefault and pop are one step each
        self._noting = threading.Lock()  # of who waits for whom
        self._refreshing: dict[str, object] = {}
        self._station: Station | None = None

    def call(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Give the stored result, or compute it, or wait for who computes it."""
        run = partial(function.function, *args, **kwargs)
        if sys.is_finalizing() or SHARED_LOOP.is_here:  # in a finaliser, at any time
            return run()
        key = function.key_of(args, kwargs)
        if key is None:
            return run()
        patient = not _runs_event_loop()
        while True:
            mine = _Flight()
            course = function.course(key)
            flight = self._flights.setdefault(course, mine)
            if flight is mine:
                try:
                    return self._lead(function, key, run, mine, patient=patient)
                finally:  # without an outcome one of those who wait takes over
                    self._flights.pop(course, None)
                    mine.over.set()
            if closes_circle(flight):
                function.counts.add("misses")
                return run()
            if not patient:
                return self._find_or_compute(
                    function, key, run, mine, patient=False
                ).give(function)
            if self._wait_for(flight) and flight.outcome is not None:
                return flight.outcome.give(function)

    def _wait_for(self, flight: _Flight) -> bool:
        """Wait for a flight's end, unless that would close a circle by now."""
        inside = COMPUTING.get()[-1:]
        with self._noting:
            if closes_circle(flight):
                return False
            for one in inside:
                one.awaits.append(flight)
        try:
            return flight.over.wait()
        finally:
            for one in inside:
                one.awaits.remove(flight)

    def _lead(
        self,
        function: CachedFunction,
        key: str,
        run: Callable[[], Any],
        flight: _Flight,
        *,
        patient: bool,
    ) -> Any:
        """Find the value out for everybody who asks meanwhile."""
        outcome = self._find_or_compute(function, key, run, flight, patient=patient)
        flight.outcome = outcome
        return outcome.give(function)

    def _find_or_compute(
        self,
        function: CachedFunction,
        key: str,
        run: Callable[[], Any],
        flight: _Flight,
        *,
        patient: bool,
    ) -> Outcome:
        found = self._read(function, key)
        if found.fresh:
            if function.policy.early and function.is_due(found.left):
                self._refresh(function, key, run)
            return Outcome(found.value, found.payload, computed=False, hit=True)
        token = COMPUTING.set((*COMPUTING.get(), flight))
        try:
            return self._compute(function, key, run, found, patient=patient)
        finally:
            COMPUTING.reset(token)

    def _compute(
        self,
        function: CachedFunction,
        key: str,
        run: Callable[[], Any],
        found: Found,
        *,
        patient: bool,
    ) -> Outcome:
        station = self._station
        if not (function.policy.lock and found.writable and patient and station):
            return self._run(function, key, run, found, None)
        lock = FleetLock(station, function, key)
        try:
            other = self._enter(lock)
            if other is not None:
                return Outcome(other.value, other.payload, computed=False)
            return self._run(function, key, run, found, lock)
        finally:
            self._leave(lock)

    def _run(
        self,
        function: CachedFunction,
        key: str,
        run: Callable[[], Any],
        found: Found,
        lock: FleetLock | None,
    ) -> Outcome:
        generation = function.generation
        function.counts.add("computed")
        try:
            value = run()
        except Exception as error:  # noqa: BLE001 - it belongs to the callers
            return excuse(function, error, found)
        outcome = conclude(function, value)
        with function.storing(generation) as may_store:
            wanted = may_store and found.writable and not (lock and lock.lost)
            if wanted and outcome.payload is not None:
                self._write(function, key, outcome.payload)
        return outcome

    def _refresh(
        self, function: CachedFunction, key: str, run: Callable[[], Any]
    ) -> None:
        """Compute anew in a thread of our own, unless one does so already."""
        mine = object()
        if self._refreshing.setdefault(key, mine) is not mine:
            return
        context = copy_context()

        def compute() -> None:
            context.run(self._compute_early, function, key, run)

        try:
            self._begin(partial(SHARED_LOOP.workers.run, compute))
        except BaseException:
            self._refreshing.pop(key, None)
            raise

    def _compute_early(
        self, function: CachedFunction, key: str, run: Callable[[], Any]
    ) -> None:
        station = self._station
        lock = None
        try:
            if function.policy.lock and station is not None:
                lock = FleetLock(station, function, key)
                if not self._do(lock.try_once):
                    return
            function.counts.add("refreshed_early")
            outcome = self._run(function, key, run, MISSING, lock)
            if outcome.error is not None:
                function.say_raised(
                    outcome.error, "its result was to be refreshed early"
                )
        finally:
            self._refreshing.pop(key, None)
            if lock is not None:
                self._begin(lock.leave)

    # --- what is said to Redis

    def _read(self, function: CachedFunction, key: str) -> Found:
        try:
            station = self._find_station()
            requests = function.questions(key)
            submit = partial(_submit, station)
            if not station.may_ask(function, requests, submit):
                return UNKNOWN
            replies = self._ask(station, requests)
        except RedisUnavailableError:
            function.counts.add("redis_failures")
            return UNKNOWN
        return station.understand(function, key, replies)

    def _write(self, function: CachedFunction, key: str, payload: bytes) -> None:
        station = self._station
        try:
            if station is None or self._availability.away:
                function.counts.add("redis_failures")
                return
            replies = self._ask(station, function.writing(key, payload))
        except RedisUnavailableError:
            function.counts.add("redis_failures")
            return
        station.check_written(function, replies)

    def _find_station(self) -> Station:
        station = self._station
        if station is None:
            thread = SHARED_LOOP.find()
            station = self._station = thread.call(self._make_station)
            # Who lets go of a cache does not have to close it: the loop goes on.
            close = partial(_close, thread, station, self._access, self._locks)
            finalize(self, close).atexit = False
        return station

    def close(self) -> Future[None] | None:
        """Begin to close the connections; the next call opens them again."""
        station = self._station
        if station is None:
            return None
        return _close(SHARED_LOOP.find(), station, self._access, self._locks)

    async def _make_station(self) -> Station:
        import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

        loop = asyncio.get_running_loop()
        return Station(
            self._access, self._locks, self._availability, self._timeout, loop
        )

    def _ask(self, station: Station, requests: Sequence[Request]) -> list[Reply]:
        from concurrent.futures import Future  # noqa: PLC0415 - comes with asyncio

        promise: Future[list[Reply]] = Future()
        _submit(station, requests, promise)
        try:
            return promise.result(self._timeout + SLACK)
        except TimeoutError:
            error = RedisUnavailableError("timeout", "the loop's thread has no turn")
            self._availability.failed(error)
            raise error from None

    def _enter(self, lock: FleetLock) -> Found | None:
        try:
            return self._do(lock.enter)
        except RedisUnavailableError:  # the interpreter ends
            return None

    def _leave(self, lock: FleetLock) -> None:
        """Let the next one in; waits for it, because the program may end with the call."""
        from concurrent.futures import wait  # noqa: PLC0415 - comes with asyncio

        leaving = self._begin(lock.leave)
        if not self._availability.away:
            wait([leaving], self._timeout + SLACK)

    def _do(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return result_of(self._begin(function))

    def _begin(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        return SHARED_LOOP.find().begin(function)


def _close(thread: LoopThread, station: Station, *accesses: Access) -> Future[None]:
    async def close() -> None:
        await station.pump.aclose()
        for access in accesses:
            await access.aclose()

    return thread.begin(close)


def _submit(station: Station, requests: Sequence[Request], promise: Any) -> None:
    try:
        station.pump.loop.call_soon_threadsafe(station.pump.submit, requests, promise)
    except RuntimeError as error:  # the interpreter ends, and the loop has
        raise RedisUnavailableError("closed", str(error)) from error


def _runs_event_loop() -> bool:
    import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

    return asyncio._get_running_loop() is not None  # noqa: SLF001 - documented; does not raise
