"""An event loop in a daemon thread, private or shared, for programs that have no loop.

The loop is always a loop of asyncio, even if the program has set another policy. The
thread does not delay the interpreter's exit, and no exception of a task ends the
thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from bls_agent.connection.after_fork import register
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError
from bls_agent.runtime.tasks import LateCoroutine
from bls_agent.runtime.threads import HandlerThreads

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

logger: logging.Logger = logging.getLogger(__name__)

# On Windows a signal cannot interrupt a wait, so a long wait is made of short waits.
SLICE: Final = 0.1 if os.name == "nt" else inf
LAST_WAIT: Final = 0.5  # longest wait in seconds for the end of a shared thread

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread; starts once. A forked child cannot use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # reentrant, for signal handlers
        self._threads = HandlerThreads()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._pid = 0
        self._made = threading.Event()
        self._failure: BaseException | None = None
        self._ending = False
        self._over = False

    def start(self) -> None:
        """Start the thread, and wait until its event loop exists."""
        self._pid = os.getpid()
        self._thread.start()
        self._made.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def is_ours(self) -> bool:
        """Whether this process has started the thread; false in a forked child."""
        return self._pid == os.getpid()

    def begin(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Future[T]:
        """Run a coroutine function in the loop, without waiting for it.

        Cancelling the future cancels the task. If the thread ends or has ended, the
        future is cancelled.
        """
        import asyncio  # noqa: PLC0415 - the import takes 20 ms; anyio cannot wake a loop
        from concurrent.futures import Future  # noqa: PLC0415 - imported together with asyncio

        if self.is_ours:
            with self._lock:
                if not self._ending:
                    coroutine = LateCoroutine(partial(function, *args, **kwargs))
                    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        never: Future[T] = Future()
        never.cancel()
        return never

    def call(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a coroutine function in the loop, and wait for its result."""
        return result_of(self.begin(function, *args, **kwargs))

    def stop(self) -> None:
        """Cancel all tasks and end the thread; never waits, callable in any thread."""
        if not self.is_ours:
            return
        with self._lock:
            if not self._ending:
                self._ending = True
                if self._made.is_set():
                    self._loop.call_soon_threadsafe(self._wind_up)

    def stop_after(self, last: Future[Any]) -> None:
        last.add_done_callback(lambda _: self.stop())

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        if self.is_here:
            return False
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:  # makes the loop here, because a signal could interrupt the main thread
            self._loop = _make_loop(self._threads)
        except BaseException as error:  # noqa: BLE001 - start() raises the error
            self._failure = error
            self._ending = True
            self._made.set()
            return
        _ALIVE.add(self)
        with self._lock:
            self._made.set()
            if self._ending:
                self._loop.call_soon(self._wind_up)
        try:
            while not self._over:
                try:
                    self._loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    # A task raised the error, and asyncio has stopped the loop. The loop
                    # runs again, because the error of one task must not end the thread.
                    logger.warning("%s: a task raised %r", self._name, error)
        finally:
            self._loop.close()
            self._threads.close()
            _ALIVE.discard(self)

    def _wind_up(self) -> None:
        self._last_task = self._loop.create_task(_cancel_the_rest())
        self._last_task.add_done_callback(self._end)

    def _end(self, _: asyncio.Task[None]) -> None:
        self._over = True
        self._loop.stop()


# Loop threads that run. A forked child never releases its copies, because the finaliser
# of a transport would change the selector that the child shares with the parent.
_ALIVE: Final[set[LoopThread]] = set()


async def _cancel_the_rest() -> None:
    """Cancel every other task of the loop, and wait until all have ended."""
    import asyncio  # noqa: PLC0415 - anyio cannot list the tasks of a loop

    for _ in range(3):  # Python warns of tasks that are cancelled before they begin
        await asyncio.sleep(0)
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _make_loop(threads: HandlerThreads) -> asyncio.AbstractEventLoop:
    """Return a loop that resolves host names in daemon threads, which delay no exit."""
    if sys.platform == "win32":
        from asyncio import ProactorEventLoop as Loop  # noqa: PLC0415 - the import takes 20 ms
    else:
        from asyncio import SelectorEventLoop as Loop  # noqa: PLC0415 - the import takes 20 ms

    class QuietLoop(Loop):
        async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
            return await threads.run(partial(socket.getaddrinfo, *args, **options))

    return QuietLoop()


def wait_for(future: Future[Any], timeout: float | None = None) -> bool:
    """Wait until a future is done; an exception in a signal handler ends the wait."""
    from concurrent.futures import wait  # noqa: PLC0415 - imported together with asyncio

    end = time.monotonic() + (inf if timeout is None else timeout)
    while not future.done():
        left = min(end - time.monotonic(), SLICE)
        if left <= 0:
            return False
        wait([future], None if left == inf else left)
    return True


def result_of(future: Future[T]) -> T:
    """Return the result of a future; if the wait is interrupted, cancel its task.

    Raises RedisUnavailableError if the thread ended before the task.
    """
    from concurrent.futures import CancelledError  # noqa: PLC0415 - imported together with asyncio

    try:
        wait_for(future)
        return future.result()
    except CancelledError:
        reason = "it was closed by another thread"
        raise RedisUnavailableError("closed", reason, ambiguous=True) from None
    finally:
        future.cancel()


def refuse_in_event_loop(name: str, instead: str) -> None:
    """Raise a ConfigurationError if an event loop runs in this thread."""
    import asyncio  # noqa: PLC0415 - the import takes 20 ms

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    rule = "it would block the event loop that runs in this thread"
    raise ConfigurationError(name, "wait", rule, f"Use {instead} there.")


class SharedThread:
    """One loop thread for all objects of a kind; the thread ends with its last user.

    The interpreter's exit waits at most ``at_exit`` seconds for the thread.
    """

    def __init__(self, name: str, *, at_exit: float) -> None:
        self._name = name
        self._at_exit = at_exit
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Set up the object without a thread and users, also in a forked child."""
        self._lock = threading.RLock()  # reentrant, for signal handlers
        self._thread: LoopThread | None = None
        self._users = 0

    def enter(self) -> LoopThread:
        """Add a user and return the thread; start the thread for the first user."""
        register(self)
        with self._lock:
            if self._thread is None:
                thread = LoopThread(self._name)
                try:
                    thread.start()
                    atexit.register(self._end_at_exit, thread)
                    self._thread = thread
                except BaseException:  # mostly raised by a signal handler
                    thread.stop()
                    raise
            self._users += 1
            return self._thread

    def open(self, opening: Callable[[], Coroutine[Any, Any, None]]) -> LoopThread:
        """Run ``opening`` in the thread; add a user only if ``opening`` succeeds."""
        thread = self.enter()
        try:
            thread.call(opening)
        except BaseException:
            self.leave()
            raise
        return thread

    def leave(self) -> None:
        """Remove a user, and end the thread after the last one."""
        with self._lock:
            self._users -= 1
            if self._users or self._thread is None:
                return
            thread, self._thread = self._thread, None
            try:
                atexit.unregister(self._end_at_exit)
            finally:  # also if a signal handler raises an exception
                thread.stop()
        thread.join(LAST_WAIT)

    def _end_at_exit(self, thread: LoopThread) -> None:
        thread.stop()
        thread.join(self._at_exit)
