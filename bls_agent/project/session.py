"""One life of an agent: what is opened together and closed together.

A session lives in one supervisor task of its own, so that nothing in it can cancel
the host and no exception of the host is wrapped. However it ends, its end is the same:
the intake stops first, running handlers get their time, the log is flushed, the last
status is written.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from bls_agent.connection.after_fork import keep, register
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.patrol import Patrol
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisUnavailableError, WrongTypeError
from bls_agent.core.redaction import redact_traceback
from bls_agent.core.settings import Settings
from bls_agent.project.commands.broadcast import Inbox
from bls_agent.project.hearing import make_dispatcher, make_receiver, make_runner
from bls_agent.project.messages import Level, Status
from bls_agent.project.parts import Parts
from bls_agent.project.voices import (
    connect,
    make_health,
    make_inbox,
    make_reporter,
    make_sink,
    make_watch,
    make_writer,
)
from bls_agent.runtime.tasks import start_soon

if TYPE_CHECKING:
    import asyncio

__all__ = ["Session"]

logger = logging.getLogger(__name__)

END_GRACE: Final = 1.9  # seconds beyond shutdown_timeout until everything is over
FLUSH_GRACE: Final = 1.0  # … of which this much is left for the log
AWAY_GRACE: Final = 0.5  # seconds that each step waits for a Redis that is away


class Session:
    """Everything between opening and closing an agent.

    Attributes:
        faults: Failures of the agent itself; each is in the host's log.
        stop_requested: Set when the end has begun.
        ended_unasked: Whether somebody cancelled the session from outside.
        loop: Where it lives, once it does.
        inherited: Whether it goes on in the parent process, and not here.
        signal: The signal that began the end, if one did.
        failure: What ended it that should not have happened.
        opened: Set when the loops run.
        closed: Set when everything is over.
    """

    def __init__(self, parts: Parts, settings: Settings, endpoint: Endpoint) -> None:
        """Compose the project room over the wires of one agent."""
        self._parts = parts
        self._settings = settings
        self._last_word = Status.OFFLINE
        self.stop_requested = anyio.Event()
        self._forced = anyio.Event()
        self.faults = 0
        self.ended_unasked = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.signal: signal.Signals | None = None
        self.failure: BaseException | None = None
        self._abandoned = self.inherited = False
        register(self)
        self.opened = anyio.Event()
        self.closed = anyio.Event()
        self.connections = connect(endpoint, parts, settings)
        self.sink = make_sink(self.connections, parts, settings)
        writer = make_writer(self.connections, parts, settings, self._say)
        self.status = make_reporter(self.connections, parts, settings, writer)
        self.watch = make_watch(endpoint, parts, settings, writer, self.status.changed)
        self.health = make_health(parts, self.status.check)
        self.connections.gate.on_connected = self._note_connection
        runner = make_runner(self.connections, parts, settings, self._say)
        self.receiver = make_receiver(
            self.connections, parts, settings, self._say, runner.report_unstarted
        )
        self.dispatcher = make_dispatcher(
            self.connections, parts, settings, self.receiver, runner
        )
        self.inbox: Inbox | None = None
        if settings.replicas:
            self.inbox = make_inbox(self.connections, parts, self.dispatcher, self._say)

    def _backoff(self) -> Backoff:
        return Backoff(base=0.25, cap=self._settings.reconnect_max)

    def _note_connection(self) -> None:
        """Have the status written again after a loss: the server may have forgotten it."""
        if any(wire.generation > wire.connected for wire in self.connections.all):
            self.status.changed()

    async def _say_start(self) -> None:
        """Say in the host's log where Redis is, and when all is well."""
        project, mode = self._parts.project, self._settings.mode
        address = self.connections.endpoint.address
        logger.info("%s: %s, mode %s", project, address, mode)
        await self.status.published.wait()
        if self.status.written:
            now = self._parts.board.status(time.monotonic())
            logger.info("%s: connected, the status is %s", project, now)

    def _say(self, text: str, metadata: dict[str, object]) -> None:
        """Tell the operator and the host what works less well than it could."""
        self._parts.stream.emit(Level.WARN, text, metadata)
        logger.warning("%s: %s", self._parts.project, text)

    def stop(self, last_word: Status) -> None:
        """Begin the end; from any thread, returns at once."""
        if not self.stop_requested.is_set():
            self._last_word = last_word
            self._call_there(self.stop_requested.set)

    def ended_by(self) -> signal.Signals | None:
        """Tell which signal ended it, if one did; raise what it failed with."""
        if self.failure is not None:
            raise self.failure
        return self.signal

    def force(self) -> None:
        """Cut the time of running handlers short; from any thread."""
        self._call_there(self._forced.set)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it lives in another loop than the one that runs here, if any."""
        import asyncio  # noqa: PLC0415 - see supervisor.py

        return self.loop is not asyncio._get_running_loop()  # noqa: SLF001 - documented

    def _call_there(self, function: Callable[[], None]) -> None:
        if self.loop is None or not self.is_elsewhere:
            function()
            return
        with suppress(RuntimeError):  # closed meanwhile
            self.loop.call_soon_threadsafe(function)

    async def wait_closed(self) -> None:
        """Wait until everything is over, from whatever loop.

        From another one not longer than a stop takes: that loop may hang.
        """
        if not self.is_elsewhere:
            await self.closed.wait()
        with anyio.move_on_after(self._settings.shutdown_timeout + END_GRACE + 0.1):
            while not (self.closed.is_set() or self.is_gone):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)

    async def run(self) -> None:
        """Live until :meth:`stop`; cancelling ends the session in order, too.

        A handler that resists its cancellation holds this task, but nobody waits for
        it: :attr:`closed` is set before.
        """
        window = self._settings.error_window
        if self.watch is not None:
            self.watch.begin()
        self._parts.stream.on_error = self.status.open_error_window(window)
        try:
            async with anyio.create_task_group() as loops:
                start_soon(loops, self._keep_running, self._ship)
                start_soon(loops, self._keep_running, self.status.run)
                start_soon(loops, self._keep_running, self.health.run)
                start_soon(loops, self._keep_running, Patrol(self.connections).run)
                start_soon(loops, self._keep_running, self.receiver.run)
                if self.inbox is not None:
                    start_soon(loops, self._keep_running, self.inbox.run)
                start_soon(loops, self.dispatcher.run)
                self.opened.set()
                start_soon(loops, self._say_start)
                try:
                    await self.stop_requested.wait()
                finally:
                    self.dispatcher.stop_starting()
                    if self.is_gone:
                        loops.cancel_scope.cancel()
                    else:
                        await self._end_in_order(loops.cancel_scope)
        except BaseException:
            if not self.inherited:  # else this loop is the parent's, and torn
                raise
        finally:
            self.is_over()

    async def _end_in_order(self, loops: anyio.CancelScope) -> None:
        self.ended_unasked = not self.stop_requested.is_set()
        self.stop_requested.set()
        with anyio.CancelScope(shield=True):
            await self._end()
            loops.cancel()
            await self._release()

    async def _release(self) -> None:
        """Let the loops end, close what they used, and let go of the host."""
        await anyio.lowlevel.checkpoint()
        self._let_go_of_host()
        await self.connections.aclose()
        self.is_over()

    def _let_go_of_host(self) -> None:
        if self.watch is not None:
            self.watch.drop()
        self._parts.stream.on_error = None
        self._parts.board.forget_sources()
        self.health.close()
        self._parts.threads.close()

    @property
    def is_gone(self) -> bool:
        """Whether it cannot end in order any more: its loop is closed, or a parent's."""
        return self._abandoned or (self.loop is not None and self.loop.is_closed())

    def abandon(self) -> None:
        """Let go of everything, without a last word: the loop will not run any more."""
        if self._abandoned:
            return
        self._abandoned = True
        self.connections.abandon()
        self._parts.stream.delivery.forget_loop()
        self._let_go_of_host()

    def forget_parent(self) -> None:
        """In a forked child: this life goes on in the parent, not here."""
        keep(self)
        self.inherited = True
        self.abandon()

    def is_over(self) -> None:
        """Release everybody who waits for something that will not come any more."""
        self.opened.set()
        self.status.published.set()
        self.closed.set()

    async def _keep_running(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop; a fault of ours in it is logged, and the loop goes on."""
        backoff = self._backoff()
        while not self.stop_requested.is_set():
            try:
                await loop()
            except Exception as error:  # noqa: BLE001 - the one place; the log tells
                if self.is_gone:
                    return
                text = "a loop of the agent failed and is started again\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                self.faults += 1
                await anyio.sleep(1.0 + backoff.failed())
            else:
                return

    async def _ship(self) -> None:
        await self._parts.stream.delivery.run(self.sink, self._backoff())

    async def _end(self) -> None:
        end = anyio.current_time() + self._settings.shutdown_timeout + END_GRACE
        with anyio.CancelScope(deadline=end):
            try:
                await self._drain()
                with anyio.CancelScope(deadline=end - (END_GRACE - FLUSH_GRACE) / 2):
                    await self._flush(end)
            finally:  # also when somebody cancels once more
                with anyio.CancelScope(deadline=end, shield=True):
                    await self._write_last_word()

    async def _drain(self) -> None:
        """Stop the intake and let handlers finish, or be forced to."""

        async def force(scope: anyio.CancelScope) -> None:
            await self._forced.wait()
            scope.cancel()

        async with anyio.create_task_group() as draining:
            draining.start_soon(force, draining.cancel_scope)
            await self.dispatcher.stop(self._settings.shutdown_timeout)
            draining.cancel_scope.cancel()
        if self._forced.is_set():
            await self.dispatcher.stop(0.0)

    async def _flush(self, end: float) -> None:
        """Write what is left of the log, also when the shipping loop is gone already."""
        delivery = self._parts.stream.delivery
        timeout = AWAY_GRACE if self._away() else max(0.0, end - anyio.current_time())
        async with anyio.create_task_group() as tasks:
            if not delivery.running:
                await tasks.start(self._ship_started)
            await delivery.flush(timeout)
            tasks.cancel_scope.cancel()

    async def _ship_started(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await self._ship()

    async def _write_last_word(self) -> None:
        """Write 离线 or 故障 without a TTL; one more try over a new connection."""
        if self.watch is not None:
            with anyio.move_on_after(AWAY_GRACE):
                await self.watch.end()
        with anyio.move_on_after(AWAY_GRACE if self._away() else None):
            for _ in range(2):
                try:
                    await self.status.end(self._last_word)
                except WrongTypeError:
                    return
                except RedisUnavailableError as error:
                    logger.info("the last status could not be written: %s", error)
                else:
                    return

    def _away(self) -> bool:
        return not any(wire.connected for wire in self.connections.all)
