"""Calls of cached functions: each value is computed once for all its callers.

A coroutine function is computed in a task of its own, with the first caller's context
variables; when its last caller is cancelled, so is the task. A plain function runs in
the caller's thread, and asks Redis in a thread that the caches of a process share. In a
thread with a running event loop it waits for no other call: that might need the loop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import finalize

import anyio

from bls_agent.connection.access import Access, LoopLocal
from bls_agent.connection.after_fork import register
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runtime.loop_thread import LoopThread, wait_for
from bls_agent.runtime.tasks import start_background
from bls_agent.runtime.threads import HandlerThreads
from bls_agent.workers.caching.backend import (
    Availability,
    CacheBackend,
    DistributedLock,
)
from bls_agent.workers.caching.cached_function import (
    MISSING,
    UNKNOWN,
    CachedFunction,
    Found,
    Outcome,
)

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


class _SharedLoop:
    """A thread with an event loop, started when first needed."""

    def __init__(self) -> None:
        self.forget_parent()

    def forget_parent(self) -> None:
        """In a forked child: the thread does not exist."""
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self.workers = HandlerThreads()  # for functions that run in the background

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in the thread itself, and would wait for itself."""
        return self._thread is not None and self._thread.is_here

    def find(self) -> LoopThread:
        """Return the thread; raise ``RedisUnavailableError`` if the interpreter ends."""
        with self._lock:
            if self._thread is None:
                register(self)
                thread = LoopThread("bls-agent-cache")
                try:
                    thread.start()
                except RuntimeError as error:
                    raise RedisUnavailableError("closed", str(error)) from error
                self._thread = thread
            return self._thread


SHARED_LOOP: Final = _SharedLoop()


class _Job(NamedTuple):
    """One call whose result is wanted."""

    function: CachedFunction
    key: str
    compute: Callable[[Found], Awaitable[Outcome]]
    waits: bool = True  # whether the caller may wait for other callers
    loads_in_thread: bool = False  # ``load`` is the user's code, and may take its time


class _Flight:
    """A value that is being read or computed, in a task or a thread."""

    def __init__(self, job: _Job, waiting: int = 0) -> None:
        self.job = job
        self.key = job.function.flight_key(job.key)
        self.generation = job.function.generation
        self.waiting = waiting  # callers that cancelling it would let down
        self.outer = _find_outer()
        self.depth: int = self.outer.depth + 1 if self.outer else 0
        if self.depth > sys.getrecursionlimit():
            message = (
                f"{job.function.name} is called inside of {self.depth} cached calls"
            )
            raise RecursionError(message)
        self.is_over = False
        self.found = UNKNOWN  # what stands in Redis
        # ``None`` if it was given up: the callers ask anew
        self.outcome: Outcome | None = None
        self.lock: DistributedLock | None = None
        self.task: asyncio.Task[None] | None = None
        self.over: asyncio.Future[None] | None = None  # made for the first that waits


# The flight whose computation the running code belongs to.
_COMPUTING: Final = ContextVar["_Flight | None"]("computing", default=None)


def _find_outer() -> _Flight | None:
    """Return the innermost computation around the running code that is not over.

    A task that a computation has left behind runs in that computation's context.
    """
    flight = _COMPUTING.get()
    while flight is not None and flight.is_over:
        flight = flight.outer
    return flight


class _LoopCalls:
    """The flights of one event loop; each is removed at its end."""

    def __init__(self, backend: CacheBackend) -> None:
        self._backend = backend
        self.by_key: dict[str, _Flight] = {}
        # for which no caller waits: there is a value
        self.early: dict[str, _Flight] = {}

    async def call(self, job: _Job) -> Outcome:
        """Return the outcome of a coroutine function."""
        while True:
            mine = _Flight(job)
            outcome = await self.claim(mine)
            if outcome is None:
                self._begin(mine, self._run)
                outcome = await self._join(mine)
            if outcome is not None:
                return outcome

    async def claim(self, mine: _Flight) -> Outcome | None:
        """Return another flight's outcome, or a hit; ``None``: compute, and end this.

        A call inside of a computation never waits for another one, which might wait
        for that computation: it computes by itself, and is not waited for.
        """
        waits = mine.job.waits and mine.outer is None
        while waits and (flight := self.by_key.get(mine.key)):
            outcome = await self._join(flight)
            if outcome is not None:
                return outcome
        if waits:
            self.by_key[mine.key] = mine
        try:
            mine.outcome = await self._find(mine, waits=waits)
        except BaseException:  # the caller is cancelled: another one begins anew
            await self.end(mine)
            raise
        if mine.outcome is not None:
            await self.end(mine)
        return mine.outcome

    async def _find(self, mine: _Flight, *, waits: bool) -> Outcome | None:
        """Return the stored value, or one that is being computed elsewhere."""
        job = mine.job
        mine.found = found = await self._read(job)
        if found.fresh:
            if job.function.is_due(found.left):
                self._refresh(job)
            return Outcome(found.value, found.payload, computed=False, hit=True)
        return await self._await_others(mine) if waits else None

    async def _read(self, job: _Job) -> Found:
        """Read an entry: one round trip."""
        replies = await self._backend.fetch(job.function, job.key)
        decode = partial(self._backend.decode, job.function, job.key, replies)
        if not job.loads_in_thread:
            return decode()
        found: Found = await SHARED_LOOP.workers.run(decode)
        return found

    async def settle(self, flight: _Flight, outcome: Outcome | None) -> None:
        """Store what a thread has computed, and end its flight."""
        try:
            if outcome is not None:
                await self._store(flight, outcome)
                flight.outcome = outcome
        finally:
            await self.end(flight)

    def _refresh(self, job: _Job) -> None:
        """Begin to compute a value before its end, unless that is under way."""
        early = _Flight(job, 1)
        if early.key not in self.early:
            self.early[early.key] = early
            self._begin(early, self._compute_early)

    def _begin(
        self,
        flight: _Flight,
        compute: Callable[[_Flight], Coroutine[Any, Any, Outcome | None]],
    ) -> None:
        """Compute the value in a task of its own."""

        async def run() -> None:
            import asyncio  # noqa: PLC0415 - as above

            _COMPUTING.set(flight)
            try:
                flight.outcome = await compute(flight)
            except (asyncio.CancelledError, GeneratorExit):
                raise  # its last caller was cancelled, or the loop has ended
            except BaseException as error:  # noqa: BLE001 - it belongs to the callers
                flight.outcome = Outcome(error=error)
            finally:
                await self.end(flight)

        flight.task = start_background(run, "bls-agent-cache-flight")

    async def _join(self, flight: _Flight) -> Outcome | None:
        """Wait for a flight's end and give its outcome."""
        import asyncio  # noqa: PLC0415 - waits for a future without owning it

        if flight.over is None:
            flight.over = asyncio.get_running_loop().create_future()
        flight.waiting += 1
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
        """Cancel the flights that no caller waits for, and close the connection."""
        for flight in list(self.early.values()):
            if flight.task is not None and flight.waiting == 1:
                await self._cancel(flight, flight.task)
        await self._backend.aclose()

    async def _cancel(self, flight: _Flight, task: asyncio.Task[None]) -> None:
        import asyncio  # noqa: PLC0415 - as above

        self._finish(flight)
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])

    async def end(self, flight: _Flight) -> None:
        """Release the fleet's lock, forget a flight, and wake its callers."""
        try:
            if flight.lock is not None:
                with anyio.CancelScope(shield=True):
                    await flight.lock.leave()
        finally:
            self._finish(flight)

    def _finish(self, flight: _Flight) -> None:
        flight.is_over = True
        for flights in (self.by_key, self.early):
            if flights.get(flight.key) is flight:
                del flights[flight.key]
        if flight.over is not None and not flight.over.done():
            flight.over.set_result(None)

    async def _await_others(self, flight: _Flight) -> Outcome | None:
        """Wait for an early refresh, or for another process; ``None`` if neither has it."""
        job, early = flight.job, self.early.get(flight.key)
        outcome = None if early is None else await self._join(early)
        if outcome is None and job.function.policy.lock and flight.found.writable:
            flight.lock = DistributedLock(self._backend, job.function, job.key)
            other = await flight.lock.enter(partial(self._read, job))
            if other is not None:
                return Outcome(other.value, other.payload, computed=False)
        return outcome

    async def _compute_early(self, flight: _Flight) -> Outcome | None:
        """Compute before the end; ``None`` if another process of the fleet does."""
        function, key = flight.job.function, flight.job.key
        if function.policy.lock:
            flight.lock = DistributedLock(self._backend, function, key)
            if not await flight.lock.try_once():
                return None
            found = await self._read(flight.job)
            if found.left > function.policy.early:
                return None  # another process has computed it meanwhile
        function.counts.add("refreshed_early")
        flight.found = MISSING
        outcome = await self._run(flight)
        if isinstance(outcome.error, Exception):
            function.log_raised(outcome.error, "its result was to be refreshed early")
        return outcome

    async def _run(self, flight: _Flight) -> Outcome:
        flight.job.function.counts.add("computed")
        outcome = await flight.job.compute(flight.found)
        await self._store(flight, outcome)
        return outcome

    async def _store(self, flight: _Flight, outcome: Outcome) -> None:
        if outcome.payload is None or outcome.stale:
            return
        function, lock = flight.job.function, flight.lock
        with function.storing(flight.generation) as may_store:
            if may_store and flight.found.writable and not (lock and lock.lost):
                await self._backend.write(function, flight.job.key, outcome.payload)


async def _await_outcome(
    function: CachedFunction, run: Callable[[], Awaitable[Any]], found: Found
) -> Outcome:
    import asyncio  # noqa: PLC0415 - only its tasks tell who has cancelled them

    try:
        value = await run()
    except Exception as error:  # noqa: BLE001 - it belongs to the callers
        return Outcome.of_error(function, error, found)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Outcome(error=error)  # the function's own
    return Outcome(value, function.pack(value))


def _find_outcome(
    function: CachedFunction, run: Callable[[], Any], found: Found
) -> Outcome:
    try:
        value = run()
    except Exception as error:  # noqa: BLE001 - it belongs to the callers
        return Outcome.of_error(function, error, found)
    return Outcome(value, function.pack(value))


class CacheCalls:
    """Calls cached functions, in whatever event loop and thread the caller runs."""

    def __init__(
        self, access: Access, locks: Access, availability: Availability, timeout: float
    ) -> None:
        self._access = access
        self._locks = locks
        self._availability = availability
        self._timeout = timeout
        self._here: LoopLocal[_LoopCalls] = LoopLocal()
        # once a plain function was called
        self._shared: tuple[LoopThread, _LoopCalls] | None = None
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._shared = None

    def _make_here(self) -> _LoopCalls:
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        loop = asyncio.get_running_loop()
        backend = CacheBackend(
            self._access, self._locks, self._availability, self._timeout, loop
        )
        return _LoopCalls(backend)

    async def aclose(self) -> None:
        """End the background tasks of this event loop, and close its connections."""
        await _close(self._here, self._access, self._locks)

    def close_thread(self) -> Future[None] | None:
        """Begin to close the connections for plain functions."""
        return None if self._shared is None else self._shared[0].begin(self.aclose)

    async def call(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the stored result, compute it, or wait for the call that computes it."""
        run = partial(function.function, *args, **kwargs)
        key = function.key_of(args, kwargs)
        if key is None:
            return await run()
        job = _Job(function, key, partial(_await_outcome, function, run))
        outcome = await self._here.get(self._make_here).call(job)
        return outcome.give(function)

    def call_plain(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do the same for a plain function, which runs in the caller's thread."""
        run = partial(function.function, *args, **kwargs)
        if sys.is_finalizing() or SHARED_LOOP.is_here:  # in a finaliser, at any time
            return run()
        key = function.key_of(args, kwargs)
        if key is None:
            return run()
        compute = partial(_find_outcome, function, run)
        flight = _Flight(
            _Job(
                function,
                key,
                SHARED_LOOP.workers.wrap(compute),
                waits=not _runs_event_loop(),
                loads_in_thread=function.load is not None,
            )
        )
        token = _COMPUTING.set(_COMPUTING.get())
        try:
            outcome = self._claim(flight)
            if outcome is None:
                function.counts.add("computed")
                _COMPUTING.set(flight)
                outcome = compute(flight.found)
                self._settle(flight, outcome)
        except BaseException:  # without an outcome a waiting caller takes over
            self._settle(flight, None)
            raise
        finally:
            _COMPUTING.reset(token)
        return outcome.give(function)

    def _claim(self, flight: _Flight) -> Outcome | None:
        """Do as ``_LoopCalls.claim``; compute if the loop's thread has ended."""
        known = self._availability.failures
        try:
            thread, here = self._find_thread()
            return thread.call(here.claim, flight)
        except RedisUnavailableError as error:
            flight.job.function.counts.add("redis_failures")
            self._availability.failed(error, known)
            return None

    def _settle(self, flight: _Flight, outcome: Outcome | None) -> None:
        """Store the outcome and wait for that: the program may end with the call."""
        with suppress(RedisUnavailableError):  # the interpreter ends
            thread, here = self._find_thread()
            wait_for(thread.begin(here.settle, flight, outcome))

    def _find_thread(self) -> tuple[LoopThread, _LoopCalls]:
        """Return the shared thread, and the flights in its event loop."""
        if self._shared is None:

            async def find() -> _LoopCalls:
                return self._here.get(self._make_here)

            thread = SHARED_LOOP.find()
            self._shared = thread, thread.call(find)
            # A cache that is dropped need not be closed: the loop goes on.
            close = partial(_close, self._here, self._access, self._locks)
            finalize(self, thread.begin, close).atexit = False
        return self._shared


async def _close(here: LoopLocal[_LoopCalls], *accesses: Access) -> None:
    calls = here.find()
    if calls is not None:
        await calls.aclose()
    for access in accesses:
        await access.aclose()


def _runs_event_loop() -> bool:
    import asyncio  # noqa: PLC0415 - 20 ms, not at import

    return asyncio._get_running_loop() is not None  # noqa: SLF001 - documented; does not raise
