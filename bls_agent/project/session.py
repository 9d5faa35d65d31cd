"""One session of an agent: from the opening of the agent to its closing.

A session runs in its own task, outside of the program's cancel scopes. Therefore the
program cannot cancel the session with a scope, and a failing session cancels no task of
the program. At its end a session stops receiving commands, waits for running handlers,
and writes the rest of the log and the final status.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.lowlevel

from bls_agent.connection.after_fork import never_finalize, register
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.reconnect import Reminders
from bls_agent.core.backoff import Backoff
from bls_agent.core.checks import check_wait
from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import RedisUnavailableError, WrongTypeError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.core.redaction import redact_traceback
from bls_agent.core.settings import Settings
from bls_agent.project.agent_state import AgentState
from bls_agent.project.commands.broadcast import Broadcasts, inbox_of
from bls_agent.project.commands.dispatcher import (
    ASIDE_MODE,
    BROADCAST_MODE,
    Dispatcher,
)
from bls_agent.project.commands.pausing import IntakeSwitch
from bls_agent.project.commands.runner import CommandRunner
from bls_agent.project.log.log import CURRENT_COMMAND, NO_COMMAND, LogSink
from bls_agent.project.messages import Level, Status
from bls_agent.project.receive.blocking import BlockingReceiver
from bls_agent.project.receive.compat import AutoReceiver, CompatReceiver
from bls_agent.project.receive.receiver import Receiver
from bls_agent.project.status.health import HealthMonitor
from bls_agent.project.status.intake import IntakePublisher
from bls_agent.project.status.replicas import ReplicaRegistry
from bls_agent.project.status.writer import (
    StallStatusPublisher,
    StatusReporter,
    StatusWriter,
)
from bls_agent.runtime.tasks import start_background, start_soon
from bls_agent.runtime.watchdog import LoopWatch

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

R = TypeVar("R")

END_GRACE: Final = 1.9  # seconds after shutdown_timeout until the session is closed
FLUSH_GRACE: Final = 1.0  # seconds of END_GRACE for writing the rest of the log
AWAY_GRACE: Final = 0.5  # seconds for each step of the end if Redis is unreachable


class SessionState(Enum):
    """The states of a session, in their order. INHERITED may follow any other state."""

    OPENING = "opening"  # the background tasks have not begun
    RUNNING = "running"  # the background tasks run
    STOPPING = "stopping"  # stop() was called, or the session was cancelled
    CLOSED = "closed"  # connections, threads and tasks are released
    INHERITED = "inherited"  # this is a copy in a forked child, and does nothing


class AgentSession:
    """Makes, runs and releases all objects that an agent has only while it is open.

    Most attributes are objects that the constructor makes, :meth:`run` runs, and the
    end of :meth:`run` releases.
    """

    def __init__(
        self, state: AgentState, settings: Settings, endpoint: Endpoint
    ) -> None:
        import asyncio  # noqa: PLC0415 - import takes 20 ms

        self._state = state
        self._settings = settings
        self.state: SessionState = SessionState.OPENING
        self._final_status = Status.OFFLINE
        self.stop_requested: anyio.Event = anyio.Event()  # set when stopping has begun
        self._forced = anyio.Event()  # set by force()
        self.faults: int = 0  # failures of the agent's own code; each is logged
        # Whether the session ended without a call of stop(), for example by
        # cancellation.
        self.ended_unasked: bool = False
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self.signal: signal.Signals | None = None  # the signal that stopped the session
        self.failure: BaseException | None = None  # the error that ended the session
        register(self)
        if settings.status_interval * 3 > settings.status_ttl:
            text = (
                "status_interval %g s is more than a third of status_ttl %d s: one lost "
                "refresh is enough to show a running service as gone"
            )
            logger.warning(text, settings.status_interval, settings.status_ttl)
        self.opened: anyio.Event = anyio.Event()  # set when the background tasks run
        self.closed: anyio.Event = anyio.Event()  # set when the session has ended
        self._status_key = PROJECT_STATUS.build(project=state.project)
        self._reminders = Reminders()
        self._control_key = CONTROL.build(project=state.project)
        self._console_key = PROJECT_CONSOLE.build(project=state.project)
        self.connections: AgentConnections = self._connect(endpoint)
        self.connections.gate.on_connected = self._rewrite_status
        self._broadcasts = Broadcasts(
            self.connections, state.project, state.instance, self._warn
        )
        self.sink: LogSink = LogSink(
            self.connections,
            state.stream,
            key=self._console_key,
            identity=state.instance if settings.record_ids else "",
            list_limit=settings.log_list_limit,
            numbers=state.numbers,
        )
        writer = self._build_status_writer()
        self.status: StatusReporter = StatusReporter(
            writer,
            state.board,
            interval=settings.status_interval,
            backoff=self._backoff(),
            throttled_log=self.connections.throttled_log,
            counts=state.status_counts,
        )
        self.watch: LoopWatch | None = self._build_watch(endpoint, writer)
        self.health: HealthMonitor = HealthMonitor(
            state.checks,
            state.board,
            state.stream,
            project=state.project,
            on_change=self.status.changed,
        )
        runner = CommandRunner(
            state.router,
            state.stream,
            state.outcomes,
            settings,
            clock=state.clock,
            pass_on=self._broadcasts.pass_on if settings.replicas else None,
            observers=state.observers,
        )
        self.receiver: Receiver = self._build_receiver(runner)
        self.dispatcher: Dispatcher = Dispatcher(
            self.receiver,
            runner,
            state.threads,
            settings,
            backoff=self._backoff(),
            throttled_log=self.connections.throttled_log,
        )
        self.switch: IntakeSwitch = self._build_switch()
        self._write_log = partial(state.stream.delivery.run, self.sink, self._backoff())

    def _connect(self, endpoint: Endpoint, use: str = "") -> AgentConnections:
        return AgentConnections(
            endpoint,
            f"bls-agent:{self._state.instance}{use}",
            timeout=self._settings.redis_timeout,
            reconnect_max=self._settings.reconnect_max,
            keys={
                "control": self._control_key,
                "data": self._console_key,
                "liveness": self._status_key,
            },
        )

    def _build_status_writer(self) -> StatusWriter:
        state, ttl = self._state, self._settings.status_ttl
        on_conflict = partial(
            self._warn,
            "another process also writes the status of this project: give the processes "
            "replicas=True, or each a project name of its own",
            {"key": self._status_key},
        )
        replicas = ReplicaRegistry(state.project, state.instance, ttl, self._warn)
        is_replica = self._settings.replicas
        return StatusWriter(
            self.connections,
            self._status_key,
            ttl=ttl,
            replicas=replicas if is_replica else None,
            on_conflict=None if is_replica else on_conflict,
        )

    def _build_watch(
        self, endpoint: Endpoint, writer: StatusWriter
    ) -> LoopWatch | None:
        state = self._state
        if self._settings.stall_after is None:
            return None
        silent = replace(endpoint, notes=())  # the notes were already logged
        return LoopWatch(
            StallStatusPublisher(
                writer,
                state.board,
                state.stream,
                state.stall_counts,
                project=state.project,
                connect=lambda: self._connect(silent, ":watchdog"),
                rewrite=self.status.rewrite,
                stall_after=self._settings.stall_after,
                ttl=self._settings.status_ttl,
            )
        )

    def _build_receiver(self, runner: CommandRunner) -> Receiver:
        connections, key, settings = self.connections, self._control_key, self._settings
        match settings.mode:
            case "blocking":
                return BlockingReceiver(connections, key)
            case "compat":
                return CompatReceiver(connections, key, self._warn)
            case "auto":
                return AutoReceiver(connections, key, self._warn)
            case "reliable":
                # Imported here, because the import takes 3 ms and no other mode needs
                # it.
                from bls_agent.project.receive.reliable import ReliableReceiver  # noqa: PLC0415

                return ReliableReceiver(
                    connections,
                    key,
                    self._warn,
                    settings,
                    instance=self._state.instance,
                    report=runner.report_unstarted,
                )

    def _build_switch(self) -> IntakeSwitch:
        state, connections = self._state, self.connections
        lists = [(connections.intake, self._control_key, ASIDE_MODE)]
        if self._settings.replicas:
            inbox = inbox_of(state.project, state.instance)
            lists.append((connections.control, inbox, BROADCAST_MODE))
        publisher = IntakePublisher(connections.control, state.project, state.instance)
        return IntakeSwitch(
            self.dispatcher,
            self.receiver,
            publisher,
            lists,
            is_builtin=state.router.is_builtin,
            announce=self._announce,
            redact=state.stream.redactor.text,
        )

    def _announce(self, text: str, metadata: JSONObject) -> None:
        self._state.stream.emit(Level.INFO, text, metadata)
        logger.info("%s: %s", self._state.project, text)

    def start(self) -> None:
        context = copy_context()  # of no command, also if a handler opens this agent
        context.run(CURRENT_COMMAND.set, NO_COMMAND)
        task = start_background(self.run, f"bls-agent {self._state.project}", context)
        task.add_done_callback(self._on_task_done)
        self._task = task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        # This callback also runs if the task was cancelled before its first step. In
        # this case run() has executed no code, not even its finally block.
        error = self.failure = None if task.cancelled() else task.exception()
        if self.state is not SessionState.INHERITED:
            self.state = SessionState.CLOSED
        self._release_callers()
        if error is not None:
            logger.error("the agent failed\n%s", redact_traceback(error))
        elif self.ended_unasked:
            text = "the agent of %s was cancelled and has ended"
            logger.warning(text, self._state.project)

    async def call(self, function: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Await a coroutine function in the session's event loop.

        The caller may run in another event loop.
        """
        import asyncio  # noqa: PLC0415 - anyio cannot call into another event loop

        if not self.is_elsewhere:
            return await function()
        future = asyncio.run_coroutine_threadsafe(function(), self.loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return await function()  # the session's event loop has ended meanwhile

    def _backoff(self) -> Backoff:
        return Backoff(base=0.25, cap=self._settings.reconnect_max)

    def _rewrite_status(self) -> None:
        """Write the status again after a reconnect, because Redis may have lost it."""
        if any(
            connection.generation > connection.connected
            for connection in self.connections.all
        ):
            self.status.rewrite()

    async def _log_start(self) -> None:
        project, mode = self._state.project, self._settings.mode
        address = self.connections.endpoint.address
        logger.info("%s: %s, mode %s", project, address, mode)
        await self.status.published.wait()
        if self.status.written:
            now = self._state.board.status(time.monotonic())
            logger.info("%s: connected, the status is %s", project, now)

    def _warn(self, text: str, metadata: dict[str, object]) -> None:
        """Log a warning in the console list and with ``logging``.

        A text is logged again with the same metadata at most once a minute.
        """
        if not self._reminders.is_due(f"{text} {metadata}"):
            return
        self._state.stream.emit(Level.WARN, text, metadata)
        logger.warning("%s: %s", self._state.project, text)

    def stop(self, final_status: Status) -> None:
        """Begin to stop, without waiting. May be called from any thread."""
        if self.is_open:
            self.state = SessionState.STOPPING
            self._final_status = final_status
            self.call_in_loop(self.stop_requested.set)

    def ended_by(self) -> signal.Signals | None:
        """Return the signal that ended the session, or ``None``.

        If an error ended the session, raise this error.
        """
        if self.failure is not None:
            raise self.failure
        return self.signal

    def force(self) -> None:
        """Stop waiting for running handlers. May be called from any thread."""
        self.call_in_loop(self._forced.set)

    async def ready(self, timeout: float | None) -> None:
        """Wait until the first status is written.

        Raises RedisUnavailableError if no status was written within ``timeout``
        seconds.
        """
        if timeout is not None:
            check_wait("timeout", timeout)
        with anyio.move_on_after(timeout):
            await self.call(self.status.published.wait)
        if not self.status.written:
            raise RedisUnavailableError(
                "not_ready",
                f"no status was written in time; {self.connections.gate.last_error}",
                address=self.connections.endpoint.address,
            )

    @property
    def is_elsewhere(self) -> bool:
        """Whether the caller does not run in the session's event loop."""
        import asyncio  # noqa: PLC0415 - anyio has no such function

        return self.loop is not asyncio._get_running_loop()  # noqa: SLF001 - documented

    def call_in_loop(self, function: Callable[[], None]) -> None:
        if not self.is_elsewhere:
            function()
            return
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self.loop.call_soon_threadsafe(function)

    async def wait_closed(self) -> bool:
        """Wait until the session is closed, and return whether its tasks have ended.

        A caller in another event loop waits for a limited time, because the session's
        loop may hang.
        """
        if not self.is_elsewhere:
            await self.closed.wait()
        with anyio.move_on_after(self._settings.shutdown_timeout + END_GRACE + 0.1):
            while not self.is_over:  # noqa: ASYNC110 - an Event works in one loop only
                await anyio.sleep(0.01)
        return self.is_over

    async def run(self) -> None:
        """Run until :meth:`stop` is called or this task is cancelled.

        In both cases all steps of the end are done. A handler that ignores its
        cancellation keeps this task alive, but no caller waits for this task.
        """
        window = self._settings.error_window
        if self.watch is not None:
            self.watch.begin()
        self._state.stream.on_error = self.status.open_error_window(window)
        loops: list[Callable[[], Awaitable[None]]] = [
            self._write_log,
            self.status.run,
            self.health.run,
            self.connections.monitor_failover,
            self.receiver.run,
            self.switch.run,
        ]
        if self._settings.replicas:
            loops.append(partial(self._broadcasts.read_inbox, self.dispatcher))
        try:
            async with anyio.create_task_group() as tasks:
                for loop in loops:
                    start_soon(tasks, self._keep_running, loop)
                start_soon(tasks, self.dispatcher.run)
                if self.state is SessionState.OPENING:
                    self.state = SessionState.RUNNING
                self.opened.set()
                start_soon(tasks, self._log_start)
                try:
                    await self.stop_requested.wait()
                finally:
                    self.dispatcher.stop_starting()
                    if self.is_gone:
                        tasks.cancel_scope.cancel()
                    else:
                        await self._end_in_order(tasks.cancel_scope)
        except BaseException:
            if (
                self.state is not SessionState.INHERITED
            ):  # in a forked child the event loop belongs to the parent process
                raise
        finally:
            self._release_callers()

    async def _end_in_order(self, loops: anyio.CancelScope) -> None:
        self.ended_unasked = self.is_open
        self.state = SessionState.STOPPING
        self.stop_requested.set()
        with anyio.CancelScope(shield=True):
            await self._end()
            loops.cancel()
            await anyio.lowlevel.checkpoint()
            self._release_host()
            await self.connections.aclose()
            self.state = SessionState.CLOSED
            self._release_callers()

    def _release_host(self) -> None:
        if self.watch is not None:
            self.watch.drop()
        self._state.stream.on_error = None
        self._state.board.forget_sources()
        self.health.close()
        self._state.threads.close()

    @property
    def is_open(self) -> bool:
        """Whether the session opens or runs, and :meth:`stop` was not called."""
        return self.state in (SessionState.OPENING, SessionState.RUNNING)

    @property
    def is_inherited(self) -> bool:
        return self.state is SessionState.INHERITED

    @property
    def is_gone(self) -> bool:
        """Whether the session cannot end in order, because its event loop has ended.

        True also in a forked child, where the event loop does not run.
        """
        return self.is_inherited or self.loop.is_closed()

    @property
    def is_over(self) -> bool:
        return self.closed.is_set() or self.is_gone

    def detach(self) -> None:
        """Release everything, without a final status, after the event loop has ended."""
        self._detach(SessionState.CLOSED)

    def reset_after_fork(self) -> None:
        """Detach in a forked child, because the parent continues the session."""
        never_finalize(self)
        self._detach(SessionState.INHERITED)

    def _detach(self, state: SessionState) -> None:
        before, self.state = self.state, state
        if before is SessionState.INHERITED:
            self.state = before
        elif before is not SessionState.CLOSED:
            self.connections.detach()
            self._state.stream.delivery.detach()
            self._release_host()

    def _release_callers(self) -> None:
        """Wake all callers that wait for the opening, the first status or the end."""
        self.opened.set()
        self.status.published.set()
        self.closed.set()

    async def _keep_running(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a background function. Log an unexpected error, and run it again."""
        backoff = self._backoff()
        while not self.stop_requested.is_set():
            try:
                await loop()
            except Exception as error:  # noqa: BLE001 - any error is logged
                if self.is_gone:
                    return
                text = "a loop of the agent failed and is started again\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                self.faults += 1
                await anyio.sleep(1.0 + backoff.failed())
            else:
                return

    async def _end(self) -> None:
        end = anyio.current_time() + self._settings.shutdown_timeout + END_GRACE
        with anyio.CancelScope(deadline=end):
            try:
                await self._drain()
                with anyio.move_on_after(AWAY_GRACE):
                    await self.switch.close()
                with anyio.CancelScope(deadline=end - (END_GRACE - FLUSH_GRACE) / 2):
                    await self._flush(end)
            finally:  # the status is written even if the session is cancelled again
                with anyio.CancelScope(deadline=end, shield=True):
                    await self._write_final_status()

    async def _drain(self) -> None:
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
        """Write the rest of the log. If the writing task has ended, start it again."""
        delivery = self._state.stream.delivery
        timeout = (
            AWAY_GRACE if self._is_away() else max(0.0, end - anyio.current_time())
        )
        async with anyio.create_task_group() as tasks:
            if not delivery.running:
                tasks.start_soon(self._write_log)
                await anyio.lowlevel.checkpoint()  # lets the writing task begin
            await delivery.flush(timeout)
            tasks.cancel_scope.cancel()

    async def _write_final_status(self) -> None:
        """Write 离线 or 故障 without a TTL. After a failure, try once more.

        The second try uses a new connection.
        """
        if self.watch is not None:
            with anyio.move_on_after(AWAY_GRACE):
                await self.watch.end()
        with anyio.move_on_after(AWAY_GRACE if self._is_away() else None):
            for _ in range(2):
                try:
                    await self.status.end(self._final_status)
                except WrongTypeError:
                    return
                except RedisUnavailableError as error:
                    logger.info("the last status could not be written: %s", error)
                else:
                    project, last = self._state.project, self._final_status
                    logger.info("%s: stopped, the status is %s", project, last)
                    return

    def _is_away(self) -> bool:
        return not any(connection.connected for connection in self.connections.all)


def final_status(error: BaseException | None) -> Status:
    """Return 离线 if the program ended as intended, or 故障 after another exception."""
    if error is None or isinstance(error, KeyboardInterrupt | GeneratorExit):
        return Status.OFFLINE
    if isinstance(error, SystemExit):
        return Status.FAULT if error.code else Status.OFFLINE
    # Checked last, because this check needs a running event loop, and a forked child
    # has none.
    was_cancelled = isinstance(error, anyio.get_cancelled_exc_class())
    return Status.OFFLINE if was_cancelled else Status.FAULT
