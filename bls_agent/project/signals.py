"""Handles SIGTERM and SIGINT for a program that only runs ``agent.run()``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.project.messages import Status
from bls_agent.runtime.tasks import start_soon

if TYPE_CHECKING:
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
    if not on_main_thread or sys.platform == "win32":
        return
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        handlers = _SignalHandlers()
        register(handlers)
        session.signal = await anext(signals)
        session.stop(Status.OFFLINE)
        await anext(signals)
        session.force()
        await session.closed.wait()


class _SignalHandlers:
    """Restores the default signal handlers in a forked child.

    The signal handlers of :func:`obey_signals` wake the event loop through a pipe. A
    forked child shares this pipe with its parent. Therefore a SIGTERM to the child
    would stop the parent's agent, or from Python 3.12 on would have no effect.
    """

    def __init__(self) -> None:
        self._handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def reset_after_fork(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == handler:  # unless the child has changed it
                interrupt = number == signal.SIGINT
                usual = signal.default_int_handler if interrupt else signal.SIG_DFL
                signal.signal(number, usual)
