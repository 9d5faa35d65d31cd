"""Runs one command, or all health checks, of an agent without a server.

A call uses the handlers, middleware, time limits and threads of the agent, and the same
runner class as an open agent. The log records of the call are collected in a list. They
never enter the buffer from which the agent writes to Redis.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import CommandError, ConfigurationError
from bls_agent.core.settings import Settings
from bls_agent.project.agent_state import AgentState
from bls_agent.project.commands.observer import Observers, OnEnd, TakenCommand
from bls_agent.project.commands.router import CommandContext
from bls_agent.project.commands.runner import CommandRunner
from bls_agent.project.log.log import Log, LogStream
from bls_agent.project.log.record import AnyRecord, LogRecord
from bls_agent.project.messages import (
    CONSOLE_SOURCE,
    Command,
    LogEntry,
    Outcome,
    OutcomeKind,
)
from bls_agent.project.receive.receiver import Message
from bls_agent.project.status.health import HealthCheck, HealthMonitor, StatusAggregator

if TYPE_CHECKING:
    from bls_agent.project.session import AgentSession

R = TypeVar("R")

CANCEL_GRACE: Final = 0.5  # seconds that a cancelled handler gets to clean up
Records = list[AnyRecord]
# In the context of a call: the list for its log records. Elsewhere: None.
_RECORDS: Final[ContextVar[Records | None]] = ContextVar("bls_records", default=None)


def is_invoked() -> bool:
    """Return whether the caller belongs to a call of ``agent.invoke``."""
    return _RECORDS.get() is not None


@dataclass(kw_only=True, eq=False)
class Invocation:
    """The result of ``agent.invoke``: how a command ended, and its log records.

    Attributes:
        outcome: The outcome, as a console reads it. It has only JSON values, and
            secrets are removed.
        logs: The log records of the command in their order, as a console reads them.
            Secrets are removed. The outcome record is left out.
        exception: The exception that ended the command. The handler, a middleware or
            the check of the arguments has raised it. If the command timed out, the
            exception is a ``TimeoutError``. ``None`` if the command succeeded.
    """

    outcome: Outcome
    logs: list[LogEntry]
    exception: BaseException | None
    _trace: TracebackType | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        """Keep the traceback now, because each ``raise`` adds frames to it."""
        if self.exception is not None:
            self._trace = _without_our_frames(self.exception.__traceback__)

    @property
    def kind(self) -> OutcomeKind:
        """The kind of the outcome, for example ``"succeeded"`` or ``"rejected"``."""
        return self.outcome.kind

    @property
    def result(self) -> Any:
        """The value that the handler returned, converted to JSON and back.

        ``None`` if the command did not succeed.
        """
        return self.outcome.result

    @property
    def error(self) -> JSONObject:
        """The error of the outcome. ``{}`` if the command succeeded.

        The error has the fields ``type`` and ``message``, and may have others.
        """
        return self.outcome.error

    @property
    def succeeded(self) -> bool:
        """Whether the handler returned."""
        return self.outcome.succeeded

    def unwrap(self) -> Any:
        """Return the result, or raise the exception that ended the command.

        The traceback begins in the handler, so that a test report shows the handler's
        lines.
        """
        __tracebackhide__ = True  # pytest hides this frame in its report
        if self.exception is not None:
            raise self.exception.with_traceback(self._trace)
        return self.result


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one call of a health check.

    Attributes:
        ok: Whether the check succeeded.
        reason: The type and the message of the failure. Secrets are removed. ``""`` if
            the check succeeded.
        seconds: The duration of the call in seconds.
    """

    ok: bool
    reason: str
    seconds: float


def make_context(
    command: str = "test",
    args: Mapping[str, Any] | None = None,
    *,
    id: str = "",  # noqa: A002 - name in the protocol
    source: str = CONSOLE_SOURCE,
    delivery: int = 1,
    deadline: float | None = None,
    logs: list[LogEntry] | None = None,
) -> CommandContext:
    """Make a ``CommandContext``, to call a handler or a middleware directly in a test.

    Args:
        command: The command's name.
        args: The arguments, as a console would send them.
        id: The command's id. Default: a new id.
        source: The name of the sender.
        delivery: How often the command was taken from Redis.
        deadline: The value of ``context.deadline``, in seconds on the clock of
            ``anyio.current_time()``. The deadline has no effect, because no agent
            cancels a handler that is called directly.
        logs: A list to which each record of ``context.log`` is appended.

    Raises:
        ConfigurationError: An argument does not fit the console protocol.
    """
    clock = time.time  # noqa: TID251 - used only as an argument
    sent = Command.create(command, args, now=clock(), id=id or None, source=source)
    stream = LogStream(clock, max_records=1, max_bytes=1)  # the buffer stays empty
    kept: list[LogEntry] = [] if logs is None else logs
    stream.put = lambda record: kept.append(LogEntry.decode(record.payload))
    return CommandContext(
        id=sent.id,
        command=sent.command,
        timestamp=sent.timestamp,
        source=sent.source,
        args=sent.args,
        delivery=_checked_delivery(delivery),
        deadline=deadline,
        log=Log(stream, {"commandId": sent.id}),
    )


def _checked_delivery(value: object) -> int:
    if type(value) is not int or value < 1:
        rule = "a whole number from 1: how often the command was delivered"
        remedy = "An argument of this name is passed in a mapping, behind the command."
        raise ConfigurationError("delivery", value, rule, remedy)
    return value


class _Tap:
    """Puts the records of a call into its list, and all others into the agent's buffer.

    A tap replaces ``LogStream.put`` at the first call, and is never removed, because a
    thread of a call may still log when the call has ended.
    """

    def __init__(self, put: Callable[[AnyRecord], None]) -> None:
        self._put = put
        # The lists of the calls that run while the agent is closed. The list of the
        # newest call also gets the records of threads that belong to no call.
        self.alone: list[Records] = []

    def __call__(self, record: AnyRecord) -> None:
        records = _RECORDS.get()
        if records is None and self.alone:
            records = self.alone[-1]
        if records is None:
            self._put(record)
        else:
            records.append(record)


class _KeptError:
    """Observes one command, and keeps the exception that ended the command."""

    error: BaseException | None = None

    def begin(self, taken: TakenCommand) -> OnEnd:  # noqa: ARG002 - of the interface
        return self._end

    def _end(self, _: Outcome, error: BaseException | None) -> None:
        self.error = error


class Alone:
    """Runs commands and health checks of an agent directly, without Redis.

    If the agent is closed, there is no session, and the commands run in the caller's
    event loop. If the agent is open, the commands run in the event loop of its session.
    """

    def __init__(
        self, state: AgentState, settings: Settings, session: AgentSession | None
    ) -> None:
        self._state = state
        self._settings = settings
        self._session = session

    async def invoke(
        self,
        command: str | Command,
        args: Mapping[str, Any] | None,
        delivery: int | None,
        arguments: Mapping[str, Any],
    ) -> Invocation:
        message = self._make_message(command, args, delivery, arguments)
        return await self._in_loop_of_agent(partial(self._run, message))

    def describe_commands(self) -> list[JSONObject]:
        return [handler.describe() for handler in self._state.router.list_handlers()]

    async def run_checks(self) -> dict[str, CheckResult]:
        return await self._in_loop_of_agent(self._run_checks)

    async def _in_loop_of_agent(
        self, function: Callable[[], Coroutine[Any, Any, R]]
    ) -> R:
        session = self._session
        return await (function() if session is None else session.call(function))

    def _make_message(
        self,
        command: str | Command,
        args: Mapping[str, Any] | None,
        delivery: int | None,
        arguments: Mapping[str, Any],
    ) -> Message:
        """Return the message that a console would have sent for this command."""
        is_whole = isinstance(command, Command)
        if is_whole + (args is not None) + bool(arguments) > 1:
            rule = (
                "the arguments come from one place: a Command, a mapping, or keywords"
            )
            raise ConfigurationError("arguments", [*arguments] or args, rule)
        if not isinstance(command, Command):
            handler = self._state.router.find(command) if args is None else None
            if delivery is not None and handler and "delivery" in handler.fields.checks:
                rule = f"it is an argument of {command!r}, and an option of invoke()"
                remedy = "Pass the arguments as a mapping, and the option as a keyword."
                raise ConfigurationError("delivery", delivery, rule, remedy)
            now = self._state.clock()
            command = Command.create(command, args or arguments, now=now)
        count = 1 if delivery is None else _checked_delivery(delivery)
        return Message(command.encode(), delivery=count)

    @contextmanager
    def _collecting(self) -> Generator[Records]:
        """Collect the log records of the block.

        If the agent is closed, the threads that the block has started end afterwards.
        """
        tap, is_alone = self._state.stream.put, self._session is None
        if not isinstance(tap, _Tap):
            tap = self._state.stream.put = _Tap(tap)
        records: Records = []
        if is_alone:
            tap.alone.append(records)
        token = _RECORDS.set(records)
        try:
            yield records
        finally:
            _RECORDS.reset(token)
            tap.alone = [other for other in tap.alone if other is not records]
            if is_alone:
                self._state.threads.close()

    async def _run(self, message: Message) -> Invocation:
        """Run a command in its own task, and return its result.

        1. The command ends. Return how it ended.
        2. The handler ignores its cancellation after the time limit. Return that the
           command timed out, while the task continues.
        3. The caller is cancelled. Cancel the handler, as an agent does when it stops.
        """
        import asyncio  # noqa: PLC0415 - anyio has no task without a scope

        kept, observers, ended = _KeptError(), Observers(), asyncio.Event()
        observers.all = (*self._state.observers.all, kept)
        with self._collecting() as records:
            runner = CommandRunner(
                self._state.router,
                self._state.stream,
                Counter(),  # not the agent's counters, which count commands from Redis
                self._settings,
                clock=self._state.clock,
                observers=observers,
            )
            task = asyncio.get_running_loop().create_task(
                runner.run(message, lambda _: ended.set()), name="bls-agent invoke"
            )
            task.add_done_callback(lambda _: ended.set())
            try:
                await ended.wait()
            except asyncio.CancelledError:
                runner.stop_starting()
                task.cancel()
                with anyio.move_on_after(CANCEL_GRACE, shield=True):
                    await asyncio.wait([task])
                raise
            if task.done():
                task.result()  # raises KeyboardInterrupt, and nothing else
        return _read(records, kept.error)

    async def _run_checks(self) -> dict[str, CheckResult]:
        """Call all checks once and concurrently. Each check has its own timeout."""
        state = self._state
        monitor = HealthMonitor(
            state.checks,
            StatusAggregator(),
            state.stream,
            project=state.project,
            on_change=lambda: None,
        )
        results: dict[str, CheckResult] = {}

        async def run(check: HealthCheck) -> None:
            began = time.monotonic()
            failure = await monitor.call(check)
            reason = ""
            if failure is not None:
                reason = f"{failure['type']}: {failure['message']}"
            results[check.name] = CheckResult(
                ok=failure is None,
                reason=state.stream.redactor.text(reason),
                seconds=time.monotonic() - began,
            )

        with self._collecting():
            try:
                async with anyio.create_task_group() as tasks:
                    for check in state.checks.all.values():
                        tasks.start_soon(run, check)
            finally:
                monitor.cancel_calls()
                monitor.close()
        return {name: results[name] for name in state.checks.all}


def _read(records: Records, error: BaseException | None) -> Invocation:
    """Decode the records as a console does, and separate the outcome record."""
    logs: list[LogEntry] = []
    outcome: Outcome | None = None
    for record in records:
        entry = LogEntry.decode(record.payload)
        if record.rank == LogRecord.OUTCOME_RANK:
            outcome = entry.outcome
        else:
            logs.append(entry)
    assert outcome is not None  # noqa: S101 - the runner reports every message
    exception = exception_of(outcome, error)
    return Invocation(outcome=outcome, logs=logs, exception=exception)


def exception_of(outcome: Outcome, error: BaseException | None) -> BaseException | None:
    """Return the exception for :meth:`Invocation.unwrap`, or ``None`` for a success."""
    if outcome.succeeded:
        return None
    if outcome.kind is OutcomeKind.TIMED_OUT:
        timeout = TimeoutError(outcome.message)
        timeout.__cause__ = error  # its traceback shows where the handler waited
        return timeout
    # A CancelledError is not raised, because it would cancel the caller. Without an
    # error, the message was not run, for example because it is too long.
    if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
        return CommandError(outcome.message)
    return error


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins with the first frame of other code."""
    rest = trace
    while rest is not None:
        if not str(rest.tb_frame.f_globals.get("__name__")).startswith("bls_agent."):
            return rest
        rest = rest.tb_next
    return trace
