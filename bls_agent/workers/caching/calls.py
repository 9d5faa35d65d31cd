"""Calls of cached functions: each value is computed once for all its callers.

A coroutine function is computed in a task of its own, with the first caller's context
variables: a cancelled caller harms no other one. When the last caller is cancelled, so
is the task.

A plain function runs in the caller's thread. Everything else is done for it in the one
thread with an event loop that the caches of a process share. In a thread in which an
event loop runs, a call waits for no other call: that might need this very loop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    cast,
)
from weakref import finalize

import anyio

from bls_agent.connection.access import Access, LoopLocal
from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Reply
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runtime.loop_thread import LoopThread, result_of, wait_for
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

__all__ = ["SHARED_LOOP", "CacheCalls"]

SLACK: Final = 0.25  # seconds beyond the timeout, for the loop's thread to run


class _SharedLoop:
    """A thread with an event loop, started when first needed, once in each process."""

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
        """Give the thread; raise ``RedisUnavailableError`` if the interpreter ends."""
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


class _Flight:
    """A value that is being read or computed, in a task or a thread."""

    def __init__(self, key: str, waiting: int = 0) -> None:
        self.key = key
        self.waiting = waiting  # callers that cancelling it would let down
        # those for which the code inside of this one waits
        self.awaits: list[_Flight] = []
        # ``None`` if it was given up: the callers ask anew
        self.outcome: Outcome | None = None
        self.replies: list[Reply] | None = None  # each thread decodes them by itself
        self.is_asking = True  # Redis has not answered yet
        self.lock: DistributedLock | None = None
        self.task: asyncio.Task[None] | None = None
        self.over: asyncio.Future[None] | None = None  # made for the first that waits


# The flights around the running code, the innermost last.
_COMPUTING: Final = ContextVar[tuple[_Flight, ...]]("computing", default=())


def _is_circular(flight: _Flight) -> bool:
    """Tell whether the running code would wait for itself if it waited for this one.

    Not every nested call may go on by itself instead: a thousand computations that call
    one and the same cached function would compute that a thousand times.
    """
    inside, seen, left = _COMPUTING.get(), set[int](), [flight]
    while left:
        one = left.pop()
        if one in inside:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            left += one.awaits
    return False


@contextmanager
def _awaiting(flight: _Flight) -> Generator[None]:
    """Record that the running code waits for a flight."""
    inside = _COMPUTING.get()[-1:]
    for one in inside:
        one.awaits.append(flight)
    try:
        yield
    finally:
        for one in inside:
            one.awaits.remove(flight)


class _Job(NamedTuple):
    """One call whose result is wanted."""

    function: CachedFunction
    key: str
    compute: Callable[[Found], Awaitable[Outcome]]
    plain: bool = False  # it is decoded and computed in the caller's thread
    waits: bool = True  # whether the caller may wait for other callers


class _LoopCalls:
    """The flights of one event loop; each is removed at its end."""

    def __init__(self, backend: CacheBackend) -> None:
        self._backend = backend
        self.availability = backend.availability
        self.by_key: dict[str, _Flight] = {}
        # for which no caller waits: there is a value
        self.early: dict[str, _Flight] = {}

    async def call(self, job: _Job) -> Outcome | None:
        """Give the outcome of a coroutine function; ``None`` if that were circular."""
        while True:
            mine = _Flight(job.function.flight_key(job.key))
            answer = await self.claim(job, mine)
            if not isinstance(answer, Found):
                return cast("Outcome | None", answer)
            self._begin(mine, partial(self._run, job, mine, answer))
            outcome = await self._join(mine)
            if outcome is not None:
                return outcome

    async def claim(
        self, job: _Job, mine: _Flight, found: Found | None = None
    ) -> list[Reply] | Outcome | Found | None:
        """Find out what a caller has to do.

        It is given the outcome of another flight, or of its own if that is a hit; or,
        if it shall compute, what was ``found``, and then ends its flight. A plain
        function's caller is given the replies, which it decodes in its own thread, as
        that may run the user's code; if they hold no fresh value it claims anew.
        ``None`` if waiting were circular.
        """
        while flight := self.by_key.get(mine.key):
            if _is_circular(flight):
                return None
            if not job.waits:
                break
            mine.is_asking = False
            answer: Outcome | list[Reply] | None = await self._join(flight)
            if answer is None and found is None:
                answer = flight.replies
            if answer is not None:
                return answer
        else:
            self.by_key[mine.key], mine.is_asking = mine, found is None
        try:
            return await self._find(job, mine, found)
        except BaseException:  # the caller is cancelled: another one begins anew
            await self.end(mine)
            raise

    async def _find(
        self, job: _Job, mine: _Flight, found: Found | None
    ) -> list[Reply] | Outcome | Found:
        if found is None:
            replies = await self._backend.fetch(job.function, job.key)
            if job.plain and replies and isinstance(replies[0], bytes):
                mine.replies = replies
                self._finish(mine)
                return replies
            found = self.availability.decode(job.function, job.key, replies)
        mine.is_asking = False
        if found.fresh:
            mine.outcome = Outcome.of_hit(found)
            if job.function.is_due(found.left):
                await self.refresh(job)
        elif job.waits:
            mine.outcome = await self._await_others(job, mine, found)
        if mine.outcome is None:
            return found
        await self.end(mine)
        return mine.outcome

    async def settle(
        self,
        job: _Job,
        flight: _Flight,
        found: Found,
        generation: int,
        outcome: Outcome | None,
    ) -> None:
        """Store what a thread has computed, and end its flight."""
        try:
            if outcome is not None:
                await self._store(job, flight, found, generation, outcome)
                flight.outcome = outcome
        finally:
            await self.end(flight)

    async def refresh(self, job: _Job) -> None:
        """Begin to compute a value before its end, unless that is under way."""
        key = job.function.flight_key(job.key)
        if key not in self.early:
            early = self.early[key] = _Flight(key, 1)
            self._begin(early, partial(self._compute_early, job, early))

    def _begin(
        self,
        flight: _Flight,
        compute: Callable[[], Coroutine[Any, Any, Outcome | None]],
    ) -> None:
        """Compute the value in a task of its own."""

        async def run() -> None:
            _COMPUTING.set((*_COMPUTING.get(), flight))
            try:
                flight.outcome = await compute()
            finally:
                await self.end(flight)

        flight.task = start_background(run, "bls-agent-cache-flight")

    async def _join(self, flight: _Flight) -> Outcome | None:
        """Wait for a flight's end and give its outcome."""
        import asyncio  # noqa: PLC0415 - waits for a future without owning it

        if flight.over is None:
            flight.over = asyncio.get_running_loop().create_future()
        flight.waiting += 1
        with _awaiting(flight):
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
        for flights in (self.by_key, self.early):
            if flights.get(flight.key) is flight:
                del flights[flight.key]
        if flight.over is not None and not flight.over.done():
            flight.over.set_result(None)

    async def _await_others(
        self, job: _Job, flight: _Flight, found: Found
    ) -> Outcome | None:
        """Wait for an early refresh, or for another process; ``None`` if neither has it."""
        early = self.early.get(flight.key)
        outcome = None if early is None else await self._join(early)
        if outcome is None and job.function.policy.lock and found.writable:
            flight.lock = DistributedLock(self._backend, job.function, job.key)
            other = await flight.lock.enter()
            if other is not None:
                return Outcome(other.value, other.payload, computed=False)
        return outcome

    async def _compute_early(self, job: _Job, flight: _Flight) -> Outcome | None:
        """Compute before the end; ``None`` if another process of the fleet does."""
        function = job.function
        if function.policy.lock:
            flight.lock = DistributedLock(self._backend, function, job.key)
            if not await flight.lock.try_once():
                return None
            found = await self._backend.read(function, job.key)
            if found.left > function.policy.early:
                return None  # another process has computed it meanwhile
        function.counts.add("refreshed_early")
        outcome = await self._run(job, flight, MISSING)
        if isinstance(outcome.error, Exception):
            function.log_raised(outcome.error, "its result was to be refreshed early")
        return outcome

    async def _run(self, job: _Job, flight: _Flight, found: Found) -> Outcome:
        generation = job.function.generation
        job.function.counts.add("computed")
        outcome = await job.compute(found)
        await self._store(job, flight, found, generation, outcome)
        return outcome

    async def _store(
        self,
        job: _Job,
        flight: _Flight,
        found: Found,
        generation: int,
        outcome: Outcome,
    ) -> None:
        if outcome.payload is None or outcome.stale:
            return
        with job.function.storing(generation) as may_store:
            if may_store and found.writable and not (flight.lock and flight.lock.lost):
                await self._backend.write(job.function, job.key, outcome.payload)


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
        """Give the stored result, compute it, or wait for the call that computes it."""
        run = partial(function.function, *args, **kwargs)
        key = function.key_of(args, kwargs)
        if key is None:
            return await run()
        job = _Job(function, key, partial(_await_outcome, function, run))
        outcome = await self._here.get(self._make_here).call(job)
        if outcome is None:
            function.counts.add("misses")
            return await run()
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
        outcome = self._find_or_compute(function, key, compute)
        if outcome is None:
            function.counts.add("misses")
            return run()
        return outcome.give(function)

    def _find_or_compute(
        self, function: CachedFunction, key: str, compute: Callable[[Found], Outcome]
    ) -> Outcome | None:
        in_thread, waits = SHARED_LOOP.workers.wrap(compute), not _runs_event_loop()
        job = _Job(function, key, in_thread, plain=True, waits=waits)
        found: Found | None = None
        while True:
            flight = _Flight(function.flight_key(key))
            try:
                answer = self._claim(job, flight, found)
                if isinstance(answer, Found):
                    return self._compute(job, flight, answer, compute)
            except BaseException:  # without an outcome a waiting caller takes over
                self._settle(job, flight, UNKNOWN, 0, None)
                raise
            if not isinstance(answer, list):
                return answer
            found = self._availability.decode(function, key, answer)
            if found.fresh:
                if function.is_due(found.left):
                    thread, here = self._find_thread()
                    thread.begin(here.refresh, job)
                return Outcome.of_hit(found)
            if answer is not flight.replies:
                found = None  # the thread that has read it computes

    def _compute(
        self,
        job: _Job,
        flight: _Flight,
        found: Found,
        compute: Callable[[Found], Outcome],
    ) -> Outcome:
        generation = job.function.generation
        job.function.counts.add("computed")
        token = _COMPUTING.set((*_COMPUTING.get(), flight))
        try:
            outcome = compute(found)
        finally:
            _COMPUTING.reset(token)
        self._settle(job, flight, found, generation, outcome)
        return outcome

    def _claim(
        self, job: _Job, flight: _Flight, found: Found | None
    ) -> list[Reply] | Outcome | Found | None:
        """Do as ``_LoopCalls.claim``; compute if the loop's thread does not answer."""
        from concurrent.futures import CancelledError  # noqa: PLC0415 - comes with asyncio

        known = self._availability.failures
        try:
            thread, here = self._find_thread()
            asking = thread.begin(here.claim, job, flight, found)
            try:
                with suppress(TimeoutError, CancelledError):
                    return asking.result(self._timeout + SLACK)
                if flight.is_asking:
                    reason = "the loop's thread has no turn"
                    raise RedisUnavailableError("timeout", reason)
                return result_of(asking)
            finally:
                asking.cancel()
        except RedisUnavailableError as error:
            job.function.counts.add("redis_failures")
            self._availability.failed(error, known)
            return UNKNOWN

    def _settle(self, *arguments: Any) -> None:
        """Store the outcome and end the flight.

        It waits for that, because the program may end with the call.
        """
        with suppress(RedisUnavailableError):  # the interpreter ends
            thread, here = self._find_thread()
            settling = thread.begin(here.settle, *arguments)
            if not self._availability.away:
                wait_for(settling, 2 * self._timeout + SLACK)

    def _find_thread(self) -> tuple[LoopThread, _LoopCalls]:
        """Give the shared thread, and the flights in its event loop."""
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
