"""Runs an agent in its own thread, for programs without an event loop."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol, Self

from bls_agent.core.checks import check_wait
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError
from bls_agent.core.redaction import redact_traceback
from bls_agent.project.stats import AgentStats
from bls_agent.runtime.batch_writer import Flushed
from bls_agent.runtime.loop_thread import (
    LoopThread,
    refuse_in_event_loop,
    result_of,
    wait_for,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bls_agent.core.settings import Settings
    from bls_agent.project.session import AgentSession

logger: logging.Logger = logging.getLogger(__name__)

# Seconds after shutdown_timeout for closing. The agent itself needs up to 1.9 of them.
LEAVE_GRACE: Final = 1.95
EXIT_PATIENCE: Final = 0.9  # seconds for running handlers when the interpreter exits
HURRY: Final = 1.0  # seconds for closing after running handlers were cancelled
ANSWER_GRACE: Final = 0.5  # seconds after a timeout until the event loop counts as hung


class _Agent(AbstractAsyncContextManager[object], Protocol):
    """The methods of an agent that its thread calls."""

    project: str

    async def flush(self, timeout: float = ...) -> Flushed: ...

    async def ready(self, timeout: float | None = ...) -> None: ...

    def stats(self) -> AgentStats: ...


class AgentThread:
    """Runs an agent in a daemon thread with an event loop, during a ``with`` block.

    :meth:`ProjectAgent.in_thread` returns an ``AgentThread``. After a ``with`` block
    has ended, the same ``AgentThread`` may be used in another ``with`` block. The
    program calls the synchronous methods of the agent (``log``, ``set_status``,
    ``stats``, decorators) on the agent itself, from any thread.

    The block begins when the agent is open, without waiting for Redis. At the end of
    the block, the agent waits for running handlers as ``async with agent:`` does, for
    at most ``shutdown_timeout`` + 2 s. If a handler blocks the event loop for longer,
    a warning is logged with ``logging``, the thread keeps running, and the agent closes
    when that handler returns. If a signal such as Ctrl-C interrupts the wait, the
    running handlers are cancelled. If the program never leaves the block, the agent is
    closed within 2 s when the interpreter exits. In a forked child, the end of the
    block does nothing.

    Coroutine handlers run in this thread, plain functions in worker threads. The thread
    uses asyncio's own event loop, even if the program uses uvloop. ``AgentThread``
    installs no signal handler.
    """

    def __init__(
        self,
        agent: _Agent,
        read_settings: Callable[[], Settings],
        open_session: Callable[[], AgentSession | None],
    ) -> None:
        self._agent = agent
        self._read_settings = read_settings
        self._open_session = open_session
        self._patience = 0.0
        self._thread: LoopThread | None = None

    def __repr__(self) -> str:
        state = "left" if self._running() is None else "entered"
        return f"<AgentThread {self._agent.project!r} {state}>"

    def __enter__(self) -> Self:
        """Open the agent in a new thread.

        Raises:
            ConfigurationError: The agent is already open, this ``AgentThread`` is
                already entered, or an environment variable has an invalid value.
        """
        if self._running() is not None:
            rule = "this block of it is entered already"
            raise ConfigurationError(
                "agent", self._agent.project, rule, "Leave it first."
            )
        self._patience = self._read_settings().shutdown_timeout + LEAVE_GRACE
        thread = LoopThread(f"bls-agent {self._agent.project}")
        try:
            thread.start()
            thread.call(self._open)
        except BaseException:
            thread.stop()  # cancels the tasks of the thread and lets them end
            thread.join(HURRY)
            raise
        self._thread = thread
        atexit.register(self._close_at_exit)
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        """Close the agent. An exception of the ``with`` block is raised unchanged."""
        self._close(error, self._patience)

    def flush(self, timeout: float = 5.0) -> Flushed:
        """Wait until all log records from before this call are written to Redis.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            The numbers of written, dropped and waiting records. ``bool(result)`` is
            true if none of the records still waits.

        Raises:
            ConfigurationError: The calling thread runs an event loop.
        """
        refuse_in_event_loop("flush", "'await agent.flush()'")
        check_wait("timeout", timeout)
        thread = self._running()
        if thread is not None:
            flushing = thread.begin(self._agent.flush, timeout)
            try:
                wait_for(flushing, timeout + ANSWER_GRACE)
            finally:
                unanswered = flushing.cancel()
            if not unanswered:
                return flushing.result()
        queued = self._agent.stats().logs_queued
        return Flushed(complete=not queued, delivered=0, dropped=0, queued=queued)

    def ready(self, timeout: float | None = None) -> None:
        """Wait until the first status has been written.

        Args:
            timeout: Seconds to wait at most; ``None`` for no limit.

        Raises:
            RedisUnavailableError: The status was not written within ``timeout``.
            ConfigurationError: The agent is not open, or the calling thread runs an
                event loop.
        """
        refuse_in_event_loop("ready", "'await agent.ready()'")
        if timeout is not None:
            check_wait("timeout", timeout)
        thread = self._running()
        if thread is None:
            raise ConfigurationError("agent", repr(self), "the agent must be open")
        waiting = thread.begin(self._agent.ready, timeout)
        if timeout is not None and not wait_for(waiting, timeout + ANSWER_GRACE):
            waiting.cancel()
            raise RedisUnavailableError("not_ready", "the agent's event loop hangs")
        result_of(waiting)

    def _running(self) -> LoopThread | None:
        """Return the thread, or ``None`` outside of the block and in a forked child."""
        thread = self._thread
        return thread if thread is not None and thread.is_ours else None

    async def _open(self) -> None:
        await self._agent.__aenter__()

    async def _exit(self, errors: list[BaseException]) -> None:
        # A second call, after the first one was cancelled, finds no error to log.
        error = errors.pop() if errors else None
        kind = None if error is None else type(error)
        await self._agent.__aexit__(kind, error, getattr(error, "__traceback__", None))

    def _close_at_exit(self) -> None:
        """Close an agent whose ``with`` block was never left.

        The final status is 故障 if an uncaught exception ended the program.
        """
        at_a_prompt = hasattr(sys, "ps1")
        error = None if at_a_prompt else getattr(sys, "last_value", None)
        self._close(error, EXIT_PATIENCE, HURRY)

    def _close(
        self, error: BaseException | None, patience: float, hurry: float = 0.0
    ) -> None:
        """Close the agent and end its thread within a limited time.

        ``error`` decides the final status. Running handlers have ``patience`` seconds
        to end. Then they are cancelled, and closing may take ``hurry`` seconds more.
        """
        thread = self._running()
        if thread is None:
            return
        errors = [] if error is None else [error]
        closing = thread.begin(self._exit, errors)
        deadline = time.monotonic() + patience + hurry
        # If a handler of this agent calls this method, closing would wait for that
        # handler for ever.
        if self._is_inside(thread):
            self._let_go(thread, closing)
            return
        try:
            wait_for(closing, patience)
        except BaseException:  # a signal such as Ctrl-C
            hurry = HURRY
            deadline = time.monotonic() + hurry
            raise
        finally:
            try:
                if closing.cancel():  # from now on the agent waits for no handler
                    closing = thread.begin(self._exit, errors)
                    wait_for(closing, hurry)
            finally:
                self._let_go(thread, closing)
                self._join(thread, closing, deadline - time.monotonic())

    def _is_inside(self, thread: LoopThread) -> bool:
        """Whether the caller runs in the agent's event loop, or is one of its handlers."""
        session = self._open_session()
        is_handler = session is not None and session.dispatcher.caller is not None
        return thread.is_here or is_handler

    def _let_go(self, thread: LoopThread, closing: Future[None]) -> None:
        """Let the thread end after the agent is closed, without waiting."""
        thread.stop_after(closing)
        self._thread = None
        atexit.unregister(self._close_at_exit)

    def _join(self, thread: LoopThread, closing: Future[None], left: float) -> None:
        """Wait for the end of the thread. Log if the thread or the closing fails."""
        if not thread.join(min(max(left, 0.05), 0.5)):
            logger.warning(
                "%s: a handler does not let go of the agent's thread, which is left "
                "behind",
                self._agent.project,
            )
        error = None
        if closing.done() and not closing.cancelled():
            error = closing.exception()
        if error is not None:
            logger.error("the agent failed\n%s", redact_traceback(error))
