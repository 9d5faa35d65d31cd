""":class:`~bls_agent.Console` for programs without an event loop."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from bls_agent.console import Console
from bls_agent.project.log.reading import LogPage
from bls_agent.project.messages import (
    COMMAND_LIMIT,
    CONSOLE_SOURCE,
    Command,
    LogEntry,
    Outcome,
    Status,
)
from bls_agent.runtime.loop_thread import (
    LoopThread,
    refuse_in_event_loop,
    result_of,
    wait_for,
)

__all__ = ["SyncConsole"]

CLOSE_TIME: Final = 1.0  # seconds that closing waits at most

P = ParamSpec("P")
T = TypeVar("T")


class SyncConsole:
    """Sends commands, reads statuses and logs, from plain code.

    Arguments, results, errors and promises are those of :class:`~bls_agent.Console`.
    Works with and without ``with``; close it with :meth:`close` when it was used
    without. Any number of threads may use it at once. Ctrl-C ends a request at once.

    Its connection lives in a daemon thread, started by the first request, which does
    not hold the interpreter's exit. A forked child gets a thread and a connection of
    its own. Where an event loop runs it would block that loop, and raises
    :class:`~bls_agent.ConfigurationError`: use :class:`~bls_agent.Console` there.

    Args:
        redis: URL or client of redis-py, as for :class:`~bls_agent.ProjectAgent`.
            Default: ``BLS_REDIS_URL``, read at the first request.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: The URL or client cannot be used.
    """

    def __init__(self, redis: object = None, *, timeout: float = 5.0) -> None:
        self._redis = redis
        self._timeout = timeout
        # By process: a forked child can use nothing of its parent's, not even a lock.
        self._opened: dict[int, tuple[LoopThread, Console]] = {}
        self._unused = Console(redis, timeout=timeout)

    def __repr__(self) -> str:
        opened = self._opened.get(os.getpid())
        console = self._unused if opened is None else opened[1]
        return repr(console).replace("Console", "SyncConsole", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        opened: dict[int, tuple[LoopThread, Console]] = getattr(self, "_opened", {})
        if os.getpid() not in opened:
            return
        if not sys.is_finalizing():  # then there is no thread any more
            self._begin_end()
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def close(self) -> None:
        """Close the connection and end the thread; the next request opens them again.

        Requests of other threads raise :class:`~bls_agent.RedisUnavailableError`, and
        iterations of :meth:`follow_logs` end. Takes a second at most.
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
        """This process's thread and console, made without a lock."""
        refuse_in_event_loop("SyncConsole", "Console")
        opened = self._opened.get(os.getpid())
        if opened is not None:
            return opened
        thread = LoopThread("bls-agent console")
        thread.start()
        mine = (thread, Console(self._redis, timeout=self._timeout))
        winner = self._opened.setdefault(os.getpid(), mine)
        if winner is not mine:  # another thread was faster
            thread.stop()
        return winner

    def _call(
        self,
        method: Callable[Concatenate[Console, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        thread, console = self._open()
        return result_of(thread.begin(method, console, *args, **kwargs))

    def send(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the protocol's name
        broadcast: bool = False,
        create: bool = False,
        size_limit: int = COMMAND_LIMIT,
        record: bool = False,
        sent_by: str = "",
        source: str = CONSOLE_SOURCE,
        timestamp: str = "",
    ) -> Command:
        """Put a command into a control list; arguments as :meth:`Console.send`.

        Returns:
            The command as it was sent.

        Raises:
            ConfigurationError: A name or an argument cannot be sent; as
                :class:`~bls_agent.CommandTooLargeError`, it is longer than
                ``size_limit`` bytes.
            UnknownProjectError: There is no such project.
            RedisUnavailableError: Not sent; or perhaps, if ``error.ambiguous``.
            WrongTypeError: The project's control key is no list.
        """
        return self._call(
            Console.send,
            project,
            command,
            args,
            id=id,
            broadcast=broadcast,
            create=create,
            size_limit=size_limit,
            record=record,
            sent_by=sent_by,
            source=source,
            timestamp=timestamp,
        )

    def call(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float = 10.0,
        broadcast: bool = False,
        create: bool = False,
        size_limit: int = COMMAND_LIMIT,
        source: str = CONSOLE_SOURCE,
        record: bool = False,
        sent_by: str = "",
    ) -> Outcome:
        """Send a command and wait for its outcome; as :meth:`Console.call`.

        Raises:
            ConfigurationError, UnknownProjectError, RedisUnavailableError: As
                :meth:`send`.
            NoOutcomeError: No such record within ``timeout`` seconds.
        """
        return self._call(
            Console.call,
            project,
            command,
            args,
            timeout=timeout,
            broadcast=broadcast,
            create=create,
            size_limit=size_limit,
            source=source,
            record=record,
            sent_by=sent_by,
        )

    def call_all(
        self,
        project: str,
        command: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float = 10.0,
        create: bool = False,
        size_limit: int = COMMAND_LIMIT,
        source: str = CONSOLE_SOURCE,
        record: bool = False,
        sent_by: str = "",
    ) -> dict[str, Outcome]:
        """Send a broadcast and wait for the outcome of every living instance.

        Returns:
            Instance → its outcome. One that is missing has not answered in time.

        Raises:
            ConfigurationError, UnknownProjectError, NoOutcomeError,
            RedisUnavailableError: As :meth:`call`.
        """
        return self._call(
            Console.call_all,
            project,
            command,
            args,
            timeout=timeout,
            create=create,
            size_limit=size_limit,
            source=source,
            record=record,
            sent_by=sent_by,
        )

    def instances(self, project: str) -> dict[str, Status]:
        """Read the living replicas of a project, each with its status.

        Empty without agents with ``replicas=True``. Raises as
        :meth:`Console.instances`.
        """
        return self._call(Console.instances, project)

    def status(self, project: str) -> Status | None:
        """Read a project's status; ``None`` if it has none, or it was not refreshed.

        Raises:
            DecodeError: The value is none of the four statuses.
            WrongTypeError: The key is no string.
            RedisUnavailableError: Redis cannot answer.
        """
        return self._call(Console.status, project)

    def exists(self, project: str) -> bool:
        """Find out whether a project has a status, a log or waiting commands.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        return self._call(Console.exists, project)

    def projects(self) -> dict[str, Status | None]:
        """Find every project that has a status, a log or waiting commands, by name.

        ``None`` stands for no valid status. Raises as :meth:`Console.projects`.
        """
        return self._call(Console.projects)

    def logs(self, project: str, limit: int = 200) -> list[LogEntry]:
        """Read the newest records, at most ``limit``, newest last.

        Raises:
            WrongTypeError: The key is no list.
            RedisUnavailableError: Redis cannot answer.
        """
        return self._call(Console.logs, project, limit)

    def queue(self, project: str, limit: int = 200) -> list[Command]:
        """Read at most ``limit`` waiting commands of a project, the next one first.

        As :meth:`Console.queue`.

        Raises:
            WrongTypeError: The control key is no list.
            RedisUnavailableError: Redis cannot answer.
        """
        return self._call(Console.queue, project, limit)

    def withdraw(self, project: str, id: str) -> Command | None:  # noqa: A002 - the protocol's name
        """Take a command out of a project's control list, before an agent takes it.

        As :meth:`Console.withdraw`; ``None`` if the command does not wait there.

        Raises:
            ConfigurationError: ``id`` is no id.
            WrongTypeError: The control key is no list.
            RedisUnavailableError: Not withdrawn; or perhaps, if ``error.ambiguous``.
        """
        return self._call(Console.withdraw, project, id)

    def forget(self, project: str, *, force: bool = False) -> list[str]:
        """Delete every key of a project, also our own; as :meth:`Console.forget`.

        Returns:
            The keys that were deleted.

        Raises:
            LeaseHeldError: The project is online, and ``force`` is false; nothing was
                deleted.
            RedisUnavailableError: Some keys may be left; call it again.
        """
        return self._call(Console.forget, project, force=force)

    def log_page(self, project: str, *, before: str = "", limit: int = 200) -> LogPage:
        """Read records page by page, backwards from the newest.

        ``before`` is that of the page read last, as for :meth:`Console.log_page`.

        Raises:
            ConfigurationError: ``before`` is not from an earlier page, or ``limit`` is
                less than 1.
            WrongTypeError: The key is no list.
            RedisUnavailableError: Redis cannot answer.
        """
        return self._call(Console.log_page, project, before=before, limit=limit)

    def follow_logs(
        self, project: str, *, last: int = 0, interval: float = 0.25
    ) -> Generator[LogEntry, None, None]:
        """Give records as they are written, until the iteration or this is closed.

        As :meth:`Console.follow_logs`, but records are read when the caller asks for
        the next one, and may be trimmed between two reads.

        Args:
            project: Its name.
            last: Begin with so many records that are there already.
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
                ended = coming.cancel()  # true also when it was cancelled before
            entry = None if ended else coming.result()
            if entry is None:
                return
            yield entry


async def _next(entries: AsyncIterator[LogEntry]) -> LogEntry | None:
    return await anext(entries, None)
