"""Calls of cached coroutine functions: each value is computed once for all its callers.

The computation has a task of its own, with the first caller's context variables: a
cancelled caller harms no other one. When the last caller is cancelled, so is the task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from bls_agent.connection.access import Access
from bls_agent.connection.loop_local import LoopLocal
from bls_agent.runtime.tasks import start_background
from bls_agent.workers.caching.backend import (
    Availability,
    CacheBackend,
    DistributedLock,
)
from bls_agent.workers.caching.cached_function import (
    MISSING,
    BrokenEntryError,
    CachedFunction,
    Found,
)

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "COMPUTING",
    "AsyncCalls",
    "Computation",
    "Outcome",
    "awaiting",
    "is_circular",
]


@dataclass
class Outcome:
    """A result or an exception, given to each caller as an object of its own."""

    value: Any = None
    payload: bytes | None = None  # the value as it is stored; ``None`` if it cannot be
    error: BaseException | None = None
    stale: bool = False  # the value is an expired one, because the function raised
    computed: bool = True  # the function was run here
    hit: bool = False  # the value was stored already
    taken: bool = False  # the first caller has the object itself; others get a copy

    def __post_init__(self) -> None:
        """Keep the traceback as it is now: raising adds to it."""
        self._traceback = None if self.error is None else self.error.__traceback__

    @classmethod
    def of_error(
        cls, function: CachedFunction, error: Exception, found: Found
    ) -> Outcome:
        """Make one of an exception: of an expired result, if there is one."""
        if not found.has:
            return cls(error=error)
        function.log_raised(error, "its callers get the last result, which has expired")
        return cls(found.value, found.payload, stale=True)

    def give(self, function: CachedFunction) -> Any:
        """Return the result to one caller, or raise the exception."""
        first, self.taken = not self.taken, True
        function.counts.add("hits" if self.hit else "misses")
        if self.hit:
            pass
        elif self.stale:
            function.counts.add("stale_served")
        elif not (first and self.computed):
            function.counts.add("waited")
        if self.error is not None:
            raise self.error if first else _copy_of(self.error, self._traceback)
        if first or self.payload is None:
            return self.value
        try:
            return function.unpack(self.payload)
        except BrokenEntryError:  # load raises what dump has made
            return self.value


def _copy_of(error: BaseException, traceback: TracebackType | None) -> BaseException:
    """Copy an exception: each raise of the same object adds to its traceback."""
    try:
        other = copy.copy(error)
        alike = type(other) is type(error) and str(other) == str(error)
    except Exception:  # noqa: BLE001 - a foreign constructor
        alike, other = False, error
    if not alike or other is error:
        return error.with_traceback(traceback)
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    return other.with_traceback(traceback)


class Computation:
    """A value that is being read or computed, in a task or a thread."""

    def __init__(self) -> None:
        # those for which the code inside of this one waits
        self.awaits: list[Computation] = []
        # ``None`` if it was given up: the callers ask anew
        self.outcome: Outcome | None = None


# The computations around the running code, the innermost last.
COMPUTING: Final = ContextVar[tuple[Computation, ...]]("computing", default=())


def is_circular(computation: Computation) -> bool:
    """Tell whether the running code would wait for itself if it waited for this one.

    Not every nested call may go on by itself instead: a thousand computations that call
    one and the same cached function would compute that a thousand times.
    """
    inside, seen, left = COMPUTING.get(), set[int](), [computation]
    while left:
        one = left.pop()
        if one in inside:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            left += one.awaits
    return False


@contextmanager
def awaiting(computation: Computation) -> Generator[None]:
    """Record that the running code waits for a computation."""
    inside = COMPUTING.get()[-1:]
    for one in inside:
        one.awaits.append(computation)
    try:
        yield
    finally:
        for one in inside:
            one.awaits.remove(computation)


class _Flight(Computation):
    """A value that tasks of one event loop wait for: first read, then computed."""

    def __init__(self, key: str, waiting: int) -> None:
        super().__init__()
        self.key = key
        self.waiting = waiting  # callers that cancelling it would let down
        self.task: asyncio.Task[None] | None = None
        self.over: asyncio.Future[None] | None = None  # made for the first that waits


class _Flights:
    """The flights of one event loop; each is removed at its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.by_key: dict[str, _Flight] = {}
        self.early: dict[
            str, _Flight
        ] = {}  # for which no caller waits: there is a value

    def begin(
        self,
        flight: _Flight,
        compute: Callable[[], Coroutine[Any, Any, Outcome | None]],
    ) -> None:
        """Compute the value in a task of its own."""

        async def run() -> None:
            COMPUTING.set((*COMPUTING.get(), flight))
            try:
                flight.outcome = await compute()
            finally:
                self.finish(flight)

        flight.task = start_background(run, "bls-agent-cache-flight")

    async def join(self, flight: _Flight) -> Outcome | None:
        """Wait for a flight's end and give its outcome."""
        import asyncio  # noqa: PLC0415 - waits for a future without owning it

        if flight.over is None:
            flight.over = self._loop.create_future()
        flight.waiting += 1
        with awaiting(flight):
            try:
                await asyncio.wait([flight.over])
            except BaseException:
                if flight.waiting == 1 and flight.task is not None:
                    await self._cancel(flight, flight.task)
                raise
            finally:
                flight.waiting -= 1
        return flight.outcome

    async def aclose(self) -> None:
        """Cancel the flights that no caller waits for."""
        for flight in list(self.early.values()):
            if flight.task is not None and flight.waiting == 1:
                await self._cancel(flight, flight.task)

    async def _cancel(self, flight: _Flight, task: asyncio.Task[None]) -> None:
        import asyncio  # noqa: PLC0415 - as above

        self.finish(flight)
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])

    def finish(self, flight: _Flight) -> None:
        """Forget a flight, and wake its callers."""
        for flights in (self.by_key, self.early):
            if flights.get(flight.key) is flight:
                del flights[flight.key]
        if flight.over is not None and not flight.over.done():
            flight.over.set_result(None)


class _Job(NamedTuple):
    """One call whose result is wanted."""

    backend: CacheBackend
    function: CachedFunction
    key: str
    run: Callable[[], Any]


class AsyncCalls:
    """Calls coroutine functions, in whatever event loop the caller runs."""

    def __init__(
        self, access: Access, locks: Access, availability: Availability, timeout: float
    ) -> None:
        self._access = access
        self._locks = locks
        self._availability = availability
        self._timeout = timeout
        self._here: LoopLocal[tuple[CacheBackend, _Flights]] = LoopLocal()

    def forget_parent(self) -> None:
        """In a forked child: the loops are the parent's."""
        self._here.forget_parent()

    def _find_here(self) -> tuple[CacheBackend, _Flights]:
        here = self._here.find()
        if here is None:
            import asyncio  # noqa: PLC0415 - 20 ms, not at import

            loop = asyncio.get_running_loop()
            backend = CacheBackend(
                self._access, self._locks, self._availability, self._timeout, loop
            )
            here = (backend, _Flights(loop))
            self._here.keep(here)
        return here

    async def aclose(self) -> None:
        """End the background tasks of this event loop, and close its connection."""
        here = self._here.find()
        if here is not None:
            backend, flights = here
            await flights.aclose()
            await backend.aclose()

    async def call(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Give the stored result, compute it, or wait for the call that computes it."""
        key = function.key_of(args, kwargs)
        if key is None:
            return await function.function(*args, **kwargs)
        backend, flights = self._find_here()
        while True:
            flight_key = function.flight_key(key)
            flight = flights.by_key.get(flight_key)
            if flight is None:
                flight = flights.by_key[flight_key] = _Flight(flight_key, 0)
                run = partial(function.function, *args, **kwargs)
                await _read(flights, flight, _Job(backend, function, key, run))
            if flight.outcome is not None:
                return flight.outcome.give(function)
            if is_circular(flight):
                function.counts.add("misses")
                return await function.function(*args, **kwargs)
            outcome = await flights.join(flight)
            if outcome is not None:
                return outcome.give(function)


async def _read(flights: _Flights, flight: _Flight, job: _Job) -> None:
    """Take the stored value, or begin to compute it."""
    try:
        found = await job.backend.read(job.function, job.key)
    except BaseException:  # this caller is cancelled: another one begins anew
        flights.finish(flight)
        raise
    if not found.fresh:
        flights.begin(flight, partial(_compute_or_join, flights, job, found))
        return
    flight.outcome = Outcome(found.value, found.payload, computed=False, hit=True)
    flights.finish(flight)
    if (
        job.function.policy.early
        and job.function.is_due(found.left)
        and flight.key not in flights.early
    ):
        early = flights.early[flight.key] = _Flight(flight.key, 1)
        flights.begin(early, partial(_compute_early, job))


async def _compute_or_join(flights: _Flights, job: _Job, found: Found) -> Outcome:
    """Compute, unless the old value has ended while a new one is being computed."""
    early = flights.early.get(job.function.flight_key(job.key))
    outcome = None if early is None else await flights.join(early)
    return outcome or await _compute(job, found)


async def _compute(job: _Job, found: Found) -> Outcome:
    if not (job.function.policy.lock and found.writable):
        return await _run(job, found, None)
    lock = DistributedLock(job.backend, job.function, job.key)
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
            lock = DistributedLock(job.backend, function, job.key)
            if not await lock.try_once():
                return None
        function.counts.add("refreshed_early")
        outcome = await _run(job, MISSING, lock)
        if isinstance(outcome.error, Exception):
            function.log_raised(outcome.error, "its result was to be refreshed early")
        return outcome
    finally:
        if lock is not None:
            await lock.leave()


async def _run(job: _Job, found: Found, lock: DistributedLock | None) -> Outcome:
    import asyncio  # noqa: PLC0415 - only its tasks tell who has cancelled them

    function = job.function
    generation = function.generation
    function.counts.add("computed")
    try:
        value = await job.run()
    except Exception as error:  # noqa: BLE001 - it belongs to the callers
        return Outcome.of_error(function, error, found)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Outcome(error=error)  # the function's own
    outcome = Outcome(value, function.pack(value))
    with function.storing(generation) as may_store:
        wanted = may_store and found.writable and not (lock and lock.lost)
        if wanted and outcome.payload is not None:
            await job.backend.write(function, job.key, outcome.payload)
    return outcome
