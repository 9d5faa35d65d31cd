"""Handles SIGTERM and SIGINT for a program that only runs ``agent.run()``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

import anyio

from bls_agent.connection.access import LoopLocal
from bls_agent.connection.after_fork import register
from bls_agent.project.messages import Status
from bls_agent.runtime.tasks import cancel, start_background, start_soon

if TYPE_CHECKING:
    import asyncio

    from bls_agent.project.session import AgentSession

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def wait_until_closed(
    session: AgentSession, on_ready: Callable[[], None], *, handle_signals: bool
) -> None:
    """Wait until a session is closed. Call ``on_ready`` when a status was written."""

    async def announce_ready() -> None:
        await session.status.published.wait()
        if session.status.written:  # the end of a session also ends the wait
            on_ready()

    async with anyio.create_task_group() as tasks:
        start_soon(tasks, announce_ready)
        if handle_signals:
            start_soon(tasks, obey_signals, session)
        await session.closed.wait()
        tasks.cancel_scope.cancel()


async def obey_signals(session: AgentSession) -> None:
    """Stop the session at the first SIGTERM or SIGINT, and wait for running handlers.

    At the second signal, cancel the running handlers.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if on_main_thread and sys.platform != "win32":
        await _RECEIVERS.get(_Receiver).serve(session)


class _Receiver:
    """Receives the signals in one event loop, for all sessions that obey them.

    An event loop has only one handler for each signal.
    """

    def __init__(self) -> None:
        self._sessions: list[AgentSession] = []
        self._task: asyncio.Task[None] | None = None

    async def serve(self, session: AgentSession) -> None:
        self._sessions.append(session)
        if self._task is None:
            self._task = start_background(self._run, "bls-agent signals", Context())
        try:
            await session.closed.wait()
        finally:
            self._sessions.remove(session)
            if not self._sessions:
                task, self._task = self._task, None
                with anyio.CancelScope(shield=True):
                    await cancel(task)

    async def _run(self) -> None:
        before = ours = _read_handlers()
        try:
            with anyio.open_signal_receiver(*SIGNALS) as signals:
                ours = _read_handlers()
                in_child = _SignalHandlers(ours)
                register(in_child)  # keeps a weak reference
                async for number in signals:
                    for session in self._sessions:
                        _obey(session, number)
        finally:
            for number, handler in before.items():
                # Python cannot set a handler of C code (None) again, nor one that the
                # event loop calls: all handlers of an event loop look the same.
                if handler is not None and handler != ours[number]:
                    signal.signal(number, handler)


_RECEIVERS: Final[LoopLocal[_Receiver]] = LoopLocal()


def _obey(session: AgentSession, number: signal.Signals) -> None:
    if session.signal is not None:
        session.force()
        return
    session.signal = number
    session.stop(Status.OFFLINE)


def _read_handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in SIGNALS}


class _SignalHandlers:
    """Restores the default signal handlers in a forked child.

    The signal handlers of :class:`_Receiver` wake the event loop through a pipe. A
    forked child shares this pipe with its parent. Therefore a SIGTERM to the child
    would stop the parent's agent, or from Python 3.12 on would have no effect.
    """

    def __init__(self, handlers: dict[signal.Signals, Any]) -> None:
        self._handlers = handlers

    def reset_after_fork(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == handler:  # unless the child has changed it
                interrupt = number == signal.SIGINT
                usual = signal.default_int_handler if interrupt else signal.SIG_DFL
                signal.signal(number, usual)
