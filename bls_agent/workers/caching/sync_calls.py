"""Calls of cached plain functions.

The function runs in the caller's thread; requests to Redis go through the one thread
with an event loop that the caches of a process share. In a thread in which an event
loop runs, a call waits for no other call: that might need this very loop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import finalize

from bls_agent.connection.access import Access
from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.runtime.loop_thread import LoopThread, result_of
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
)
from bls_agent.workers.caching.calls import (
    COMPUTING,
    Computation,
    Outcome,
    awaiting,
    is_circular,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["SHARED_LOOP", "SyncCalls"]

T = TypeVar("T")
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
        thread = self._thread
        if thread is not None:
            return thread
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


class _Flight(Computation):
    """A value that several threads wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()


class _Job(NamedTuple):
    """One call whose result is wanted."""

    function: CachedFunction
    key: str
    run: Callable[[], Any]
    waits: bool  # whether the caller may wait for other callers


class SyncCalls:
    """Calls plain functions, in whatever thread the caller runs."""

    def __init__(
        self, access: Access, locks: Access, availability: Availability, timeout: float
    ) -> None:
        self._access = access
        self._locks = locks
        self._availability = availability
        self._timeout = timeout
        self.forget_parent()

    def forget_parent(self) -> None:
        """In a forked child: neither computing threads nor the loop's thread exist."""
        self._flights: dict[str, _Flight] = {}  # setdefault and pop are one step each
        self._joining = threading.Lock()  # so that two cannot close a circle at once
        self._refreshing: dict[str, object] = {}
        self._backend: CacheBackend | None = None

    def call(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Give the stored result, compute it, or wait for the call that computes it."""
        run = partial(function.function, *args, **kwargs)
        if sys.is_finalizing() or SHARED_LOOP.is_here:  # in a finaliser, at any time
            return run()
        key = function.key_of(args, kwargs)
        if key is None:
            return run()
        job = _Job(function, key, run, waits=not _runs_event_loop())
        while True:
            mine = _Flight()
            flight_key = function.flight_key(key)
            flight = self._flights.setdefault(flight_key, mine)
            if flight is mine:
                try:
                    mine.outcome = self._find_or_compute(job, mine)
                    return mine.outcome.give(function)
                finally:  # without an outcome a waiting caller takes over
                    self._flights.pop(flight_key, None)
                    mine.over.set()
            if is_circular(flight):
                function.counts.add("misses")
                return run()
            if not job.waits:
                return self._find_or_compute(job, mine).give(function)
            if self._join(flight) and flight.outcome is not None:
                return flight.outcome.give(function)

    def _join(self, flight: _Flight) -> bool:
        """Wait for a flight's end, unless that would close a circle by now."""
        with ExitStack() as waiting:
            with self._joining:
                if is_circular(flight):
                    return False
                waiting.enter_context(awaiting(flight))
            return flight.over.wait()

    def _find_or_compute(self, job: _Job, flight: _Flight) -> Outcome:
        found = self._read(job)
        if found.fresh:
            if job.function.policy.early and job.function.is_due(found.left):
                self._refresh(job)
            return Outcome(found.value, found.payload, computed=False, hit=True)
        token = COMPUTING.set((*COMPUTING.get(), flight))
        try:
            return self._compute(job, found)
        finally:
            COMPUTING.reset(token)

    def _compute(self, job: _Job, found: Found) -> Outcome:
        backend = self._backend
        if not (job.function.policy.lock and found.writable and job.waits and backend):
            return self._run(job, found, None)
        lock = DistributedLock(backend, job.function, job.key)
        try:
            other = self._enter(lock)
            if other is not None:
                return Outcome(other.value, other.payload, computed=False)
            return self._run(job, found, lock)
        finally:
            self._leave(lock)

    def _run(self, job: _Job, found: Found, lock: DistributedLock | None) -> Outcome:
        function = job.function
        generation = function.generation
        function.counts.add("computed")
        try:
            value = job.run()
        except Exception as error:  # noqa: BLE001 - it belongs to the callers
            return Outcome.of_error(function, error, found)
        outcome = Outcome(value, function.pack(value))
        with function.storing(generation) as may_store:
            wanted = may_store and found.writable and not (lock and lock.lost)
            if wanted and outcome.payload is not None:
                self._write(job, outcome.payload)
        return outcome

    def _refresh(self, job: _Job) -> None:
        """Compute anew in a thread of its own, unless one does so already."""
        mine = object()
        if self._refreshing.setdefault(job.key, mine) is not mine:
            return
        context = copy_context()

        def compute() -> None:
            context.run(self._compute_early, job)

        try:
            self._begin(partial(SHARED_LOOP.workers.run, compute))
        except BaseException:
            self._refreshing.pop(job.key, None)
            raise

    def _compute_early(self, job: _Job) -> None:
        function, backend, lock = job.function, self._backend, None
        try:
            if function.policy.lock and backend is not None:
                lock = DistributedLock(backend, function, job.key)
                if not result_of(self._begin(lock.try_once)):
                    return
            function.counts.add("refreshed_early")
            error = self._run(job, MISSING, lock).error
            if error is not None:
                function.log_raised(error, "its result was to be refreshed early")
        finally:
            self._refreshing.pop(job.key, None)
            if lock is not None:
                self._begin(lock.leave)

    # --- through the shared loop's thread

    def _read(self, job: _Job) -> Found:
        function = job.function
        try:
            backend = self._find_backend()
            if not backend.is_worth_asking(function, job.key):
                return UNKNOWN
            replies = self._request(backend, function.read_requests(job.key))
        except RedisUnavailableError:
            function.counts.add("redis_failures")
            return UNKNOWN
        return backend.decode(function, job.key, replies)

    def _write(self, job: _Job, payload: bytes) -> None:
        backend, counts = self._backend, job.function.counts
        if backend is None or self._availability.away:
            counts.add("redis_failures")
            return
        try:
            replies = self._request(
                backend, job.function.write_requests(job.key, payload)
            )
        except RedisUnavailableError:
            counts.add("redis_failures")
            return
        backend.count_refusals(job.function, replies)

    def _find_backend(self) -> CacheBackend:
        backend = self._backend
        if backend is None:
            thread = SHARED_LOOP.find()
            backend = self._backend = thread.call(self._make_backend)
            # A cache that is dropped need not be closed: the loop goes on.
            close = partial(_close, thread, backend, self._access, self._locks)
            finalize(self, close).atexit = False
        return backend

    def close(self) -> Future[None] | None:
        """Begin to close the connections; the next call opens them again."""
        backend = self._backend
        if backend is None:
            return None
        return _close(SHARED_LOOP.find(), backend, self._access, self._locks)

    async def _make_backend(self) -> CacheBackend:
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        loop = asyncio.get_running_loop()
        return CacheBackend(
            self._access, self._locks, self._availability, self._timeout, loop
        )

    def _request(
        self, backend: CacheBackend, requests: Sequence[Request]
    ) -> list[Reply]:
        from concurrent.futures import CancelledError  # noqa: PLC0415 - comes with asyncio

        known = self._availability.failures
        asking = self._begin(partial(backend.ask, requests))
        try:
            return asking.result(self._timeout + SLACK)
        except TimeoutError:
            error = RedisUnavailableError("timeout", "the loop's thread has no turn")
            self._availability.failed(error, known)
            raise error from None
        except CancelledError:
            raise RedisUnavailableError(
                "closed", "the loop's thread has ended"
            ) from None

    def _enter(self, lock: DistributedLock) -> Found | None:
        try:
            return result_of(self._begin(lock.enter))
        except RedisUnavailableError:  # the interpreter ends
            return None

    def _leave(self, lock: DistributedLock) -> None:
        """Release the lock; waits for it, because the program may end with the call."""
        from concurrent.futures import wait  # noqa: PLC0415 - comes with asyncio

        leaving = self._begin(lock.leave)
        if not self._availability.away:
            wait([leaving], self._timeout + SLACK)

    def _begin(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        return SHARED_LOOP.find().begin(function)


def _close(
    thread: LoopThread, backend: CacheBackend, *accesses: Access
) -> Future[None]:
    async def close() -> None:
        await backend.aclose()
        for access in accesses:
            await access.aclose()

    return thread.begin(close)


def _runs_event_loop() -> bool:
    import asyncio  # noqa: PLC0415 - 20 ms, not at import

    return asyncio._get_running_loop() is not None  # noqa: SLF001 - documented; does not raise
