"""Calls of cached functions. A value is computed once for all simultaneous callers.

A coroutine function runs in a separate task, with the first caller's context variables.
The task is cancelled when its last caller is cancelled. A plain function runs in the
caller's thread. A second thread, which all caches of a process share, sends the
requests to Redis. In a thread with a running event loop, a call of a plain function
waits for no other call, because the other call might need the blocked event loop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
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
    UNKNOWN,
    CachedFunction,
    Found,
    Origin,
    Outcome,
)

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


class _SharedLoop:
    """A thread with an event loop. The first call that needs the thread starts it."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin without a thread; also called in a forked child."""
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        # Threads for functions that could block the event loop.
        self.workers: HandlerThreads = HandlerThreads()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this thread, and so cannot wait for the thread."""
        return self._thread is not None and self._thread.is_here

    def find(self) -> LoopThread:
        """Return the thread. Raise RedisUnavailableError if the interpreter ends."""
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


class State(Enum):
    """The states of a computation."""

    RUNNING = "running"  # reads or computes, while other callers may wait
    SETTLED = "settled"  # has an outcome for all callers
    ABANDONED = "abandoned"  # the caller was cancelled; waiting callers retry


class Claim(Enum):
    """How a caller gets its result."""

    HIT = "hit"  # the result was stored
    JOINED = "joined"  # another call, here or in another process, has its result
    YOURS = "yours"  # the caller computes


class Computation:
    """One call whose value is read or computed, in a task or in the caller's thread."""

    def __init__(self, function: CachedFunction, key: str, *, in_task: bool) -> None:
        self.function = function
        self.key = key
        self.name: str = function.computation_key(
            key
        )  # equal for calls that may share one computation
        self.in_task = in_task  # whether the function is a coroutine function
        self.generation: int = function.generation
        self.waiting = 0  # number of waiting callers
        self.outer: Computation | None = _find_outer()
        self.depth: int = self.outer.depth + 1 if self.outer else 0
        if self.depth > sys.getrecursionlimit():
            message = f"{function.name} is called inside of {self.depth} cached calls"
            raise RecursionError(message)
        # Whether this call may wait for another caller. It may not if the other caller
        # might need this event loop, or might wait for the outer computation.
        self.may_wait: bool = self.outer is None and (in_task or not _runs_event_loop())
        self.state: State = State.RUNNING
        self.outcome: Outcome | None = None  # set when the state is SETTLED
        self.found = UNKNOWN  # the entry in Redis
        self.lock: DistributedLock | None = None
        self.task: asyncio.Task[None] | None = None
        self.over: asyncio.Future[None] | None = None  # made by the first waiting call

    def end(self, outcome: Outcome | None) -> None:
        """Record the end and wake the waiting callers. Ignore a second call."""
        if self.state is not State.RUNNING:
            return
        self.outcome = outcome
        self.state = State.ABANDONED if outcome is None else State.SETTLED
        if self.over is not None and not self.over.done():
            self.over.set_result(None)


# The computation of which the running code is a part.
_COMPUTING: Final = ContextVar["Computation | None"]("computing", default=None)


def _find_outer() -> Computation | None:
    """Return the innermost running computation around this code, if any.

    Computations that have ended are skipped, because tasks that they started keep their
    context variables.
    """
    computation = _COMPUTING.get()
    while computation is not None and computation.state is not State.RUNNING:
        computation = computation.outer
    return computation


class _LoopCalls:
    """The computations that run in one event loop and that callers share."""

    def __init__(self, backend: CacheBackend) -> None:
        self._backend = backend
        self.by_key: dict[str, Computation] = {}

    async def call(
        self,
        function: CachedFunction,
        key: str,
        compute: Callable[[Found], Awaitable[Outcome]],
    ) -> Outcome:
        """Return the outcome of a coroutine function."""
        while True:
            mine = Computation(function, key, in_task=True)
            if await self.claim(mine) is Claim.YOURS:
                self._begin(mine, compute)
                await self._join(mine)
            if mine.outcome is not None:
                return mine.outcome

    async def claim(self, mine: Computation) -> Claim:
        """Decide who computes. For HIT and JOINED, ``mine`` has the outcome.

        1. The caller is itself a part of a computation, or a plain function runs in the
           thread of an event loop. The call waits for no other caller, because the
           other caller might wait for this call. Return HIT or YOURS.
        2. Another call reads or computes this key. Wait for its end and return JOINED.
           If that computation was abandoned, decide again.
        3. Redis has a fresh value. Return HIT.
        4. Another process computes the value (``lock=True``). Wait and return JOINED.
        5. Otherwise return YOURS. The caller computes, then calls :meth:`settle`.
        """
        while mine.may_wait and (other := self.by_key.get(mine.name)):
            await self._join(other)
            if other.outcome is not None:
                mine.end(other.outcome)
                return Claim.JOINED
        if mine.may_wait:
            self.by_key[mine.name] = mine
        try:
            claim, outcome = await self._look(mine)
        except BaseException:  # cancelled; a waiting caller then computes
            await self._end(mine, None)
            raise
        if claim is not Claim.YOURS:
            await self._end(mine, outcome)
        return claim

    async def _look(self, mine: Computation) -> tuple[Claim, Outcome | None]:
        """Read the entry, or wait for another process: cases 3 to 5 of ``claim``."""
        mine.found = found = await self._read(mine)
        if found.fresh:
            hit = Outcome(found.value, found.payload, origin=Origin.STORED)
            return Claim.HIT, hit
        outcome = await self._await_others(mine) if mine.may_wait else None
        return (Claim.YOURS if outcome is None else Claim.JOINED), outcome

    async def _read(self, mine: Computation) -> Found:
        """Read the entry of a computation in one round trip."""
        function, key = mine.function, mine.key
        replies = await self._backend.fetch(function, key)
        decode = partial(self._backend.decode, function, key, replies)
        if mine.in_task or function.load is None:
            return decode()
        # ``load`` is the user's code, and could block the loop of all plain functions.
        found: Found = await SHARED_LOOP.workers.run(decode)
        return found

    async def settle(self, computation: Computation, outcome: Outcome | None) -> None:
        """Store the outcome and end the computation. Abandon it if ``None``."""
        stored: Outcome | None = None
        try:
            if outcome is not None:
                await self._store(computation, outcome)
            stored = outcome
        finally:
            await self._end(computation, stored)

    def _begin(
        self,
        computation: Computation,
        compute: Callable[[Found], Awaitable[Outcome]],
    ) -> None:
        async def run() -> None:
            import asyncio  # noqa: PLC0415 - imported late because it takes 20 ms

            _COMPUTING.set(computation)
            outcome: Outcome | None = None
            try:
                computation.function.counts.add("computed")
                outcome = await compute(computation.found)
            except (asyncio.CancelledError, GeneratorExit):
                raise  # the last caller was cancelled, or the loop has ended
            except BaseException as error:  # noqa: BLE001 - the callers receive it
                outcome = Outcome(error=error)
            finally:
                await self.settle(computation, outcome)

        computation.task = start_background(run, "bls-agent-cache-computation")

    async def _join(self, computation: Computation) -> None:
        """Wait for a computation to end. Cancel it if its last caller is cancelled."""
        import asyncio  # noqa: PLC0415 - waits for a future without owning it

        if computation.over is None:
            computation.over = asyncio.get_running_loop().create_future()
        computation.waiting += 1
        try:
            await asyncio.wait([computation.over])
        except BaseException:
            if computation.waiting == 1:
                await self._cancel(computation)
            raise
        finally:
            computation.waiting -= 1

    async def aclose(self) -> None:
        await self._backend.aclose()

    async def _cancel(self, computation: Computation) -> None:
        import asyncio  # noqa: PLC0415 - imported late because it takes 20 ms

        task = computation.task
        if task is None:  # a plain function computes the value in its caller's thread
            return
        self._remove(computation)
        computation.end(None)
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])

    async def _end(self, computation: Computation, outcome: Outcome | None) -> None:
        """Release the lock of a computation, remove it, and wake its callers."""
        try:
            if computation.lock is not None:
                with anyio.CancelScope(shield=True):
                    await computation.lock.leave()
        finally:
            self._remove(computation)
            computation.end(outcome)

    def _remove(self, computation: Computation) -> None:
        if self.by_key.get(computation.name) is computation:
            del self.by_key[computation.name]

    async def _await_others(self, computation: Computation) -> Outcome | None:
        """Return another process's outcome, or ``None`` if the caller must compute."""
        function = computation.function
        if not (function.policy.lock and computation.found.writable):
            return None
        computation.lock = DistributedLock(self._backend, function, computation.key)
        other = await computation.lock.enter(partial(self._read, computation))
        if other is None:
            return None
        return Outcome(other.value, other.payload, origin=Origin.OTHERS)

    async def _store(self, computation: Computation, outcome: Outcome) -> None:
        if outcome.payload is None or outcome.origin is Origin.STALE:
            return
        function, key = computation.function, computation.key
        is_lost = computation.lock is not None and computation.lock.lost
        with function.storing(computation.generation) as may_store:
            if may_store and computation.found.writable and not is_lost:
                await self._backend.write(function, key, outcome.payload)


async def _await_outcome(
    function: CachedFunction, run: Callable[[], Awaitable[Any]], found: Found
) -> Outcome:
    import asyncio  # noqa: PLC0415 - only asyncio's tasks have ``cancelling()``

    try:
        value = await run()
    except Exception as error:  # noqa: BLE001 - the callers receive it
        return Outcome.of_error(function, error, found)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Outcome(error=error)  # the function itself raised CancelledError
    return Outcome(value, function.pack(value))


def _find_outcome(
    function: CachedFunction, run: Callable[[], Any], found: Found
) -> Outcome:
    try:
        value = run()
    except Exception as error:  # noqa: BLE001 - the callers receive it
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
        self._by_loop: LoopLocal[_LoopCalls] = LoopLocal()
        # Set by the first call of a plain function.
        self._shared: tuple[LoopThread, _LoopCalls] | None = None
        register(self)

    def reset_after_fork(self) -> None:
        """Forget the shared thread, which does not exist in a forked child."""
        self._shared = None

    def _make_here(self) -> _LoopCalls:
        import asyncio  # noqa: PLC0415 - imported late because it takes 20 ms

        loop = asyncio.get_running_loop()
        backend = CacheBackend(
            self._access, self._locks, self._availability, self._timeout, loop
        )
        return _LoopCalls(backend)

    async def aclose(self) -> None:
        """End the background tasks of this event loop, and close its connections."""
        await _close(self._by_loop, self._access, self._locks)

    def close_thread(self) -> Future[None] | None:
        """Begin to close the connections for plain functions. Return a future."""
        return None if self._shared is None else self._shared[0].begin(self.aclose)

    async def call(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the stored result, compute it, or wait for another call's result."""
        run = partial(function.function, *args, **kwargs)
        key = function.key_of(args, kwargs)
        if key is None:
            return await run()
        compute = partial(_await_outcome, function, run)
        outcome = await self._by_loop.get(self._make_here).call(function, key, compute)
        return outcome.deliver(function)

    def call_plain(
        self, function: CachedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do the same as :meth:`call` for a plain function, in the caller's thread."""
        run = partial(function.function, *args, **kwargs)
        # A finaliser may make this call in the shared thread, which must not wait for
        # itself.
        if sys.is_finalizing() or SHARED_LOOP.is_here:
            return run()
        key = function.key_of(args, kwargs)
        if key is None:
            return run()
        mine = Computation(function, key, in_task=False)
        token = _COMPUTING.set(_COMPUTING.get())
        try:
            if self._claim(mine) is Claim.YOURS:
                function.counts.add("computed")
                _COMPUTING.set(mine)
                outcome = _find_outcome(function, run, mine.found)
                self._settle(mine, outcome)
            else:
                outcome = cast("Outcome", mine.outcome)
        except BaseException:  # a waiting caller then computes
            self._settle(mine, None)
            raise
        finally:
            _COMPUTING.reset(token)
        return outcome.deliver(function)

    def _claim(self, mine: Computation) -> Claim:
        """Run ``claim`` in the shared thread. If that is impossible, return YOURS."""
        known = self._availability.failures
        try:
            thread, calls = self._find_thread()
            return thread.call(calls.claim, mine)
        except RedisUnavailableError as error:
            mine.function.counts.add("redis_failures")
            self._availability.failed(error, known)
            return Claim.YOURS

    def _settle(self, computation: Computation, outcome: Outcome | None) -> None:
        """Store the outcome and wait, because the program may end after the call."""
        with suppress(RedisUnavailableError):  # raised while the interpreter ends
            thread, calls = self._find_thread()
            wait_for(thread.begin(calls.settle, computation, outcome))

    def _find_thread(self) -> tuple[LoopThread, _LoopCalls]:
        """Return the shared thread, and the computations in its event loop."""
        if self._shared is None:

            async def find() -> _LoopCalls:
                return self._by_loop.get(self._make_here)

            thread = SHARED_LOOP.find()
            self._shared = thread, thread.call(find)
            # When the cache is garbage-collected, close its connections in the loop.
            close = partial(_close, self._by_loop, self._access, self._locks)
            finalize(self, thread.begin, close).atexit = False
        return self._shared


async def _close(by_loop: LoopLocal[_LoopCalls], *accesses: Access) -> None:
    calls = by_loop.find()
    if calls is not None:
        await calls.aclose()
    for access in accesses:
        await access.aclose()


def _runs_event_loop() -> bool:
    import asyncio  # noqa: PLC0415 - imported late because it takes 20 ms

    return asyncio._get_running_loop() is not None  # noqa: SLF001 - a documented function that does not raise
