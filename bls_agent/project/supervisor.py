"""The task in which a session lives, and the signals that end it."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.core.redaction import redact_traceback
from bls_agent.project.messages import Status
from bls_agent.runtime.tasks import start_background

if TYPE_CHECKING:
    import asyncio

    from bls_agent.project.session import Session

__all__ = [
    "call_beside",
    "can_handle_signals",
    "last_word",
    "obey_signals",
    "start_supervisor",
]

logger = logging.getLogger(__name__)

R = TypeVar("R")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def start_supervisor(session: Session, project: str) -> asyncio.Task[None]:
    """Start the session in a task that stands outside of every scope of the host."""
    import asyncio  # noqa: PLC0415 - 20 ms, not at import

    session.loop = asyncio.get_running_loop()
    task = start_background(session.run, f"bls-agent {project}")

    def tell(_: asyncio.Task[None]) -> None:
        # A task that is cancelled before it began runs nothing of its own, no finally.
        error = session.failure = None if task.cancelled() else task.exception()
        session.is_over()
        if error is not None:
            logger.error("the agent failed\n%s", redact_traceback(error))
        elif session.ended_unasked:
            logger.warning("the agent of %s was cancelled and has ended", project)

    task.add_done_callback(tell)
    return task


async def call_beside(
    session: Session | None, function: Callable[[], Awaitable[R]]
) -> R:
    """Await something in the loop of a session: an agent in a thread has its own."""
    import asyncio  # noqa: PLC0415 - anyio knows one loop

    async def call() -> R:
        return await function()

    if session is None or session.loop is None or not session.is_elsewhere:
        return await function()
    future = asyncio.run_coroutine_threadsafe(call(), session.loop)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return await function()  # that loop ended meanwhile


def last_word(error: BaseException | None) -> Status:
    """离线 for an end that somebody wanted, 故障 for any other exception."""
    if error is None or isinstance(error, KeyboardInterrupt | GeneratorExit):
        return Status.OFFLINE
    if isinstance(error, SystemExit):
        return Status.FAULT if error.code else Status.OFFLINE
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return Status.OFFLINE
    return Status.FAULT


def can_handle_signals() -> bool:
    """Tell whether this thread may listen for signals."""
    on_main_thread = threading.current_thread() is threading.main_thread()
    return on_main_thread and sys.platform != "win32"  # there Ctrl-C cancels run()


async def obey_signals(session: Session) -> None:
    """Drain at the first SIGTERM or SIGINT, hurry at the second."""
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        listening = _Listening()
        register(listening)
        session.signal = await anext(signals)
        session.stop(Status.OFFLINE)
        await anext(signals)
        session.force()
        await session.closed.wait()


class _Listening:
    """The signals that :func:`obey_signals` listens for; a forked child gets them back.

    Their handler does nothing but wake the loop through a pipe that the child shares:
    a SIGTERM for the child would stop the parent's agent, or be lost from Python 3.12 on.
    """

    def __init__(self) -> None:
        self._handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def forget_parent(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == handler:  # else somebody has had it since
                interrupt = number == signal.SIGINT
                usual = signal.default_int_handler if interrupt else signal.SIG_DFL
                signal.signal(number, usual)
