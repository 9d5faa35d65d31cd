"""A daemon thread with an event loop of its own, and how plain code talks to it.

For what lives in an event loop and is used by programs that have none. The loop is
plain asyncio's, whatever policy the host has set. Nothing in the thread holds the
interpreter's exit, and nothing that a task raises ends the thread.
"""

from __future__ import annotations

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

from bls_agent.daemon_threads import HandlerThreads
from bls_agent.errors import ConfigurationError, RedisUnavailableError

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see LoopThread
    from concurrent.futures import Future

__all__ = ["LoopThread", "refuse_in_event_loop", "result_of", "wait_for"]

logger = logging.getLogger(__name__)

# On Windows a signal cannot interrupt a wait: there it is seen between two short ones.
SLICE: Final = 0.1 if os.name == "nt" else inf

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread; works once, from :meth:`start` to its end.

    In a forked child, where the thread does not exist, it counts as ended.
    """

    def __init__(self, name: str) -> None:
        """Remember the name that the thread will have; nothing is started yet."""
        self._name = name
        self._lock = threading.RLock()  # a signal handler may come in between
        self._threads = HandlerThreads()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._pid = 0
        self._made = threading.Event()
        self._failure: BaseException | None = None
        self._ending = False
        self._over = False

    def start(self) -> None:
        """Start the thread; its loop takes work from now on.

        When a signal's exception ends this, :meth:`stop` still ends the thread.
        """
        self._pid = os.getpid()
        self._thread.start()
        self._made.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_ours(self) -> bool:
        """Whether this process has started the thread; a forked child has not."""
        return self._pid == os.getpid()

    def begin(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Future[T]:
        """Run a coroutine function in the loop, without waiting for it.

        Returns:
            What will become of it. Cancelling that cancels the task. It is cancelled
            when the thread ends before the task does, and at once if it has ended.
        """
        import asyncio  # noqa: PLC0415, TID251 - 20 ms; anyio cannot poke a loop
        from concurrent.futures import Future  # noqa: PLC0415 - comes with asyncio

        if self.is_ours:
            with self._lock:
                if not self._ending:
                    coroutine = function(*args, **kwargs)
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
        """Run a coroutine function in the loop and wait for its result.

        An exception that a signal raises here goes through at once and cancels it.

        Raises:
            RedisUnavailableError: The thread was ended first.
        """
        return result_of(self.begin(function, *args, **kwargs))

    def stop(self) -> None:
        """Begin the end: what still runs is cancelled. From any thread, never waits."""
        if not self.is_ours:
            return
        with self._lock:
            if not self._ending:
                self._ending = True
                if self._made.is_set():
                    self._loop.call_soon_threadsafe(self._wind_up)

    def stop_after(self, last: Future[Any]) -> None:
        """Begin the end as soon as this is done."""
        last.add_done_callback(lambda _: self.stop())

    def join(self, timeout: float) -> bool:
        """Wait for the end.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether the thread has ended.
        """
        if self.is_here:
            return False
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:  # here: in the main thread a signal could leave half a loop
            self._loop = _make_loop(self._threads)
        except BaseException as error:  # noqa: BLE001 - for start() to raise
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
                    # A task's, and asyncio ends the loop for it. Nobody has pressed a
                    # key in this thread, and it is not the program.
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


# In a forked child nobody takes a thread out. So nothing of it is ever collected there:
# a transport's finaliser would reach into the selector that is shared with the parent.
_ALIVE: Final[set[LoopThread]] = set()


async def _cancel_the_rest() -> None:
    """End every other task; one that resists is waited for, by nobody but this thread."""
    import asyncio  # noqa: PLC0415, TID251 - knows all tasks of the loop

    for _ in range(3):  # who is cancelled before his first step warns of it
        await asyncio.sleep(0)
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _make_loop(threads: HandlerThreads) -> asyncio.AbstractEventLoop:
    """Make a plain loop that looks names up in daemon threads.

    The loop's own executor would hold the interpreter's exit while a resolver hangs.
    """
    if sys.platform == "win32":
        from asyncio import ProactorEventLoop as Loop  # noqa: PLC0415, TID251 - as above
    else:
        from asyncio import SelectorEventLoop as Loop  # noqa: PLC0415, TID251 - 20 ms

    class QuietLoop(Loop):
        async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
            return await threads.run(partial(socket.getaddrinfo, *args, **options))

    return QuietLoop()


def wait_for(future: Future[Any], timeout: float | None = None) -> bool:
    """Wait until a future is done; a signal's exception gets through at once.

    Args:
        future: What :meth:`LoopThread.begin` gave.
        timeout: Seconds to wait at most.

    Returns:
        Whether it is done.
    """
    from concurrent.futures import wait  # noqa: PLC0415 - as in LoopThread.begin

    end = time.monotonic() + (inf if timeout is None else timeout)
    while not future.done():
        left = min(end - time.monotonic(), SLICE)
        if left <= 0:
            return False
        wait([future], None if left == inf else left)
    return True


def result_of(future: Future[T]) -> T:
    """Wait for a result, and let nothing go on when the wait is interrupted.

    Raises:
        RedisUnavailableError: The thread was ended first.
    """
    from concurrent.futures import CancelledError  # noqa: PLC0415 - as above

    try:
        wait_for(future)
        return future.result()
    except CancelledError:
        reason = "it was closed by another thread"
        raise RedisUnavailableError("closed", reason, ambiguous=True) from None
    finally:
        future.cancel()


def refuse_in_event_loop(name: str, instead: str) -> None:
    """Raise where waiting would block an event loop.

    Args:
        name: What would wait.
        instead: What to use there.

    Raises:
        ConfigurationError: An event loop runs in this thread.
    """
    import asyncio  # noqa: PLC0415, TID251 - as above

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    rule = "it would block the event loop that runs in this thread"
    raise ConfigurationError(name, "wait", rule, f"Use {instead} there.")
