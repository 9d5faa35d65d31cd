"""The task in which a session lives, and the signals that end it.

The task stands outside of every scope of the host: nothing in it can cancel the host,
and no exception of the host is wrapped by it. anyio has no such task, asyncio has.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING

import anyio

from bls_agent.project.messages import Status
from bls_agent.session import Session

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see above

__all__ = ["can_handle_signals", "obey_signals", "start_supervisor"]

logger = logging.getLogger(__name__)


def start_supervisor(session: Session, project: str) -> asyncio.Task[None]:
    """Start the session in a task that stands outside of every scope of the host."""
    import asyncio  # noqa: PLC0415, TID251 - 20 ms; anyio has no task without a scope

    loop = asyncio.get_running_loop()
    task = loop.create_task(session.run(), name=f"bls-agent {project}")

    def tell(_: asyncio.Task[None]) -> None:
        # A task that is cancelled before it began runs nothing of its own, no finally.
        session.is_over()
        if not task.cancelled() and task.exception() is not None:
            logger.error("the agent failed", exc_info=task.exception())
        elif session.ended_unasked:
            logger.warning("the agent of %s was cancelled and has ended", project)

    task.add_done_callback(tell)
    return task


def can_handle_signals() -> bool:
    """Tell whether this thread may listen for signals."""
    on_main_thread = threading.current_thread() is threading.main_thread()
    return on_main_thread and sys.platform != "win32"  # there Ctrl-C cancels run()


async def obey_signals(session: Session) -> None:
    """Drain at the first SIGTERM or SIGINT, hurry at the second."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        await anext(signals)
        session.stop(Status.OFFLINE)
        await anext(signals)
        session.force()
        await session.closed.wait()
