"""An open run: the task that writes its events, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.lowlevel

from bls_agent.core.backoff import Backoff
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.writing.emitted import Emitted
from bls_agent.runs.writing.hold import Hold
from bls_agent.runs.writing.sink import RunSink
from bls_agent.runtime.batch_writer import BatchWriter, Flushed
from bls_agent.runtime.tasks import start_background

if TYPE_CHECKING:
    import asyncio

__all__ = ["Course", "call_in", "wait_through"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

CAP: Final = 2.0  # seconds between two tries while Redis is away
RETRY: Final = 1.0  # seconds after a fault of ours
LAST_WORDS: Final = 1.0  # seconds that the end of an event loop may be held up
GLANCE: Final = 0.01


class Course:
    """Writes what one run emits, in a task beside those of the host.

    Attributes:
        loop: Where it lives.
        ended: Set when everything is over.
        lost: Events that could not be written before the end.
    """

    def __init__(
        self, delivery: BatchWriter[Emitted], sink: RunSink, *, name: str
    ) -> None:
        """Begin, in the running event loop."""
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        self.loop = asyncio.get_running_loop()
        self.ended = anyio.Event()
        self.lost = 0
        self._delivery = delivery
        self._sink = sink
        self._name = name
        self._ending = False
        self._end: asyncio.Task[None] | None = None
        self._task = start_background(self._write, name)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it lives in another event loop than the one that runs here."""
        import asyncio  # noqa: PLC0415 - as above

        return self.loop is not asyncio.get_running_loop()

    @property
    def is_gone(self) -> bool:
        """Whether its event loop was closed under it."""
        return self.loop.is_closed()

    async def _write(self) -> None:
        from asyncio import CancelledError  # noqa: PLC0415 - as above

        try:
            while True:
                try:
                    await self._deliver()
                except Exception as error:  # noqa: BLE001 - ours: the run goes on
                    text = "writing the events of a run failed\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await anyio.sleep(RETRY)
        except CancelledError:
            if not self._ending:  # the event loop ends, and nobody has left the run
                with suppress(Exception), anyio.CancelScope(shield=True):
                    await self._write_rest()
            raise

    async def _deliver(self) -> None:
        await self._delivery.run(self._sink, Backoff(cap=CAP))

    async def _write_rest(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._deliver)
            await anyio.lowlevel.checkpoint()
            await self._delivery.flush(LAST_WORDS)
            tasks.cancel_scope.cancel()

    async def flush(self, timeout: float) -> Flushed:
        """Wait until what was put so far is written or given up.

        Args:
            timeout: Seconds to wait at most.
        """
        until = anyio.current_time() + timeout
        delivered, dropped, pause = 0, 0, 0.0
        while True:
            left = max(0.0, until - anyio.current_time())
            flushed = await self._delivery.flush(left)
            delivered += flushed.delivered
            dropped += flushed.dropped
            over = flushed or self._delivery.refused or self._task.done()
            if over or not left:
                return replace(flushed, delivered=delivered, dropped=dropped)
            # It has just begun, or rests after a fault.
            await anyio.sleep(min(pause, left))
            pause = GLANCE

    def end(self, within: float) -> None:
        """Begin the end: what was put is written, as far as that is possible.

        Args:
            within: Seconds.
        """
        if self._end is None:
            self._ending = True
            self._end = start_background(lambda: self._finish(within), self._name)
            self._end.add_done_callback(lambda _: self.ended.set())

    def forsake(self, hold: Hold | None) -> None:
        """Let go of a run that nobody will leave any more: its lease ends by itself."""
        if hold is not None:
            hold.finish()
        self.end(LAST_WORDS)

    async def _finish(self, within: float) -> None:
        from asyncio import CancelledError  # noqa: PLC0415 - as above

        until = anyio.current_time() + within
        for _ in range(2):
            try:
                with anyio.CancelScope(deadline=until, shield=True):
                    await self._settle()
                break
            except CancelledError:  # the event loop ends
                until = min(until, anyio.current_time() + LAST_WORDS)
        written = anyio.Event()
        self._task.add_done_callback(lambda _: written.set())
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await written.wait()
        self.lost = self._delivery.give_up("shutdown")

    async def _settle(self) -> None:
        """Wait until all is written, or refused for good."""
        while True:
            if self._task.done():  # cancelled with the event loop
                self._task = start_background(self._write, self._name)
                await anyio.lowlevel.checkpoint()
            flushed = await self._delivery.flush(float("inf"))
            if flushed.complete or self._delivery.refused:
                return
            await anyio.sleep(GLANCE)


async def call_in(
    course: Course, function: Callable[[], Coroutine[Any, Any, T]], within: float
) -> T | None:
    """Await something in the event loop of a run, which is another one and may hang.

    Args:
        course: Of the run.
        function: What.
        within: Seconds to wait at most.

    Returns:
        Its result; ``None`` if that did not come in time.
    """
    import asyncio  # noqa: PLC0415 - anyio knows one loop

    future = asyncio.run_coroutine_threadsafe(function(), course.loop)
    with anyio.move_on_after(within):
        return await asyncio.wrap_future(future)
    return None


async def wait_through(event: anyio.Event) -> None:
    """Wait for an event, whoever cancels meanwhile; that is raised afterwards."""
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except anyio.get_cancelled_exc_class() as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
