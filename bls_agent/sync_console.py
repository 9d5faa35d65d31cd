"""``SyncConsole``: a console for programs without an event loop."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from bls_agent.connection.access import RedisOrAgent
from bls_agent.console import Console
from bls_agent.project.console.tracing import tracing_of
from bls_agent.project.messages import LogEntry
from bls_agent.runtime.loop_thread import (
    LoopThread,
    refuse_in_event_loop,
    result_of,
    wait_for,
)

CLOSE_TIME: Final = 1.0  # longest time in seconds that close() waits

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Console, P], Coroutine[Any, Any, T]],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[SyncConsole, P], T]]:
    """Replace a method by a method that runs ``method`` in the thread and waits for it.

    The replaced method only declares a name, because type checkers take parameters and
    result from ``method``.
    """

    @wraps(method)
    def call(self: SyncConsole, /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread, console = self._open()  # pyright: ignore[reportPrivateUsage] - a method of this class
        return result_of(thread.begin(method, console, *args, **kwargs))

    call.__qualname__ = f"SyncConsole.{method.__name__}"
    return lambda _: call


class SyncConsole:
    """Sends commands and reads statuses and logs, without an event loop.

    Every method runs the method of :class:`~bls_agent.Console` with the same name and
    waits for its result. Arguments, results, errors and guarantees are the same. Close
    the console with :meth:`close` if it was used without ``with``. Any number of threads
    may use one console. Ctrl-C ends a request.

    The connection lives in a daemon thread, which does not delay the interpreter's exit.
    A forked child starts its own thread. In a thread that runs an event loop, every
    request raises :class:`~bls_agent.ConfigurationError`, because a request blocks the
    thread. Use :class:`~bls_agent.Console` in such a thread.

    Args:
        redis: A URL or a client of redis-py, as for :class:`~bls_agent.ProjectAgent`.
            Default: ``BLS_REDIS_URL``, read at the first request.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: The URL, the client or ``timeout`` cannot be used.
    """

    def __init__(
        self, redis: RedisOrAgent | None = None, *, timeout: float = 5.0
    ) -> None:
        self._redis = redis
        self._timeout = timeout
        # By process id, because a forked child cannot use its parent's objects or locks.
        self._opened: dict[int, tuple[LoopThread, Console]] = {}
        self._unused = Console(redis, timeout=timeout)
        self._tracing = tracing_of(self._unused)

    def __repr__(self) -> str:
        opened = self._opened.get(os.getpid())
        console = self._unused if opened is None else opened[1]
        return repr(console).replace("Console", "SyncConsole", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        opened: dict[int, tuple[LoopThread, Console]] = getattr(self, "_opened", {})
        if os.getpid() not in opened:
            return
        if not sys.is_finalizing():  # at the interpreter's exit the thread has ended
            self._begin_end()
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def close(self) -> None:
        """Close the connection and end the thread; the next request opens them again.

        Requests of other threads raise :class:`~bls_agent.RedisUnavailableError`, and
        iterations of :meth:`follow_logs` end. This method waits for at most one second.
        """
        thread = self._begin_end()
        if thread is not None:
            thread.join(CLOSE_TIME)

    def _begin_end(self) -> LoopThread | None:
        opened = self._opened.pop(os.getpid(), None)
        if opened is None:
            return None
        thread, console = opened
        thread.stop_after(thread.begin(console.aclose))
        return thread

    def _open(self) -> tuple[LoopThread, Console]:
        """Return the thread and the console of this process; make them if needed.

        This needs no lock, because ``setdefault()`` is atomic.
        """
        refuse_in_event_loop("SyncConsole", "Console")
        opened = self._opened.get(os.getpid())
        if opened is not None:
            return opened
        thread = LoopThread("bls-agent console")
        thread.start()
        console = Console(self._redis, timeout=self._timeout)
        console._tracing = self._tracing  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - shared, because the tracer may be set later
        mine = (thread, console)
        winner = self._opened.setdefault(os.getpid(), mine)
        if winner is not mine:  # another thread was faster
            thread.stop()
        return winner

    @_blocking(Console.send)
    def send(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.send`, whose result this method returns."""

    @_blocking(Console.call)
    def call(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.call`, whose result this method returns."""

    @_blocking(Console.call_all)
    def call_all(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.call_all`, whose result this method returns."""

    @_blocking(Console.instances)
    def instances(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.instances`, whose result this method returns."""

    @_blocking(Console.intakes)
    def intakes(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.intakes`, whose result this method returns."""

    @_blocking(Console.status)
    def status(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.status`, whose result this method returns."""

    @_blocking(Console.exists)
    def exists(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.exists`, whose result this method returns."""

    @_blocking(Console.projects)
    def projects(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.projects`, whose result this method returns."""

    @_blocking(Console.logs)
    def logs(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.logs`, whose result this method returns."""

    @_blocking(Console.log_page)
    def log_page(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.log_page`, whose result this method returns."""

    @_blocking(Console.search_logs)
    def search_logs(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.search_logs`, whose result this method returns."""

    @_blocking(Console.queue)
    def queue(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.queue`, whose result this method returns."""

    @_blocking(Console.withdraw)
    def withdraw(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.withdraw`, whose result this method returns."""

    @_blocking(Console.withdraw_all)
    def withdraw_all(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.withdraw_all`, whose result this method returns."""

    @_blocking(Console.in_hand)
    def in_hand(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.in_hand`, whose result this method returns."""

    @_blocking(Console.dead_letters)
    def dead_letters(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.dead_letters`, whose result this method returns."""

    @_blocking(Console.requeue)
    def requeue(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.requeue`, whose result this method returns."""

    @_blocking(Console.discard)
    def discard(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.discard`, whose result this method returns."""

    @_blocking(Console.forget)
    def forget(self, *_: Any, **__: Any) -> Any:
        """See :meth:`Console.forget`, whose result this method returns."""

    def follow_logs(
        self, project: str, *, last: int = 0, interval: float = 0.25
    ) -> Generator[LogEntry, None, None]:
        """Yield records as they are written, until the iteration or console is closed.

        Unlike :meth:`Console.follow_logs`, this method reads records only when the
        caller asks for the next record. Records may be trimmed between two reads.

        Args:
            project: The project's name.
            last: Number of existing records to yield first.
            interval: Seconds between two reads.
        """
        thread, console = self._open()
        entries = console.follow_logs(project, last=last, interval=interval)
        while True:
            refuse_in_event_loop("follow_logs", "Console.follow_logs")
            coming = thread.begin(_next, entries)
            try:
                wait_for(coming)
            finally:
                ended = coming.cancel()  # also true if the future was cancelled before
            entry = None if ended else coming.result()
            if entry is None:
                return
            yield entry


async def _next(entries: AsyncIterator[LogEntry]) -> LogEntry | None:
    return await anext(entries, None)
