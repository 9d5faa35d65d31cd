"""Runs one command: decodes a message, calls its handler and reports the outcome."""

from __future__ import annotations

import logging
import os
import threading
import time
import types
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from contextvars import Context, copy_context
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import anyio

from bls_agent.connection.after_fork import exit_if_child
from bls_agent.core.codec import parse_timestamp
from bls_agent.core.errors import (
    ArgumentError,
    DecodeError,
    Reject,
    UnknownCommandError,
    preview,
)
from bls_agent.core.settings import PAUSING, Settings
from bls_agent.project.commands.observer import Observation, Observers, TakenCommand
from bls_agent.project.commands.router import UNSET, CommandContext, Handler, Router
from bls_agent.project.log.log import (
    CURRENT_COMMAND,
    NO_COMMAND,
    CurrentCommand,
    Log,
    LogStream,
    as_text,
    describe_error,
)
from bls_agent.project.messages import (
    Command,
    Outcome,
    OutcomeKind,
    id_of,
    leading_id,
)
from bls_agent.project.receive.receiver import Message

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

_End: TypeAlias = tuple[OutcomeKind, Any, dict[str, Any]]  # kind, result, error
INSIST_EVERY: Final = 0.5  # seconds until a handler that still runs is cancelled again


class Deadline:
    """Cancels a task at its deadline, and again until :meth:`end` is called.

    :meth:`watch` sets a timer of the event loop, because a cancel scope would about
    double the cost of a short command. ``on_resisted`` is called once if the task still
    runs after the first cancellation. The deadline is a time on the clock of
    ``anyio.current_time()``.
    """

    def __init__(
        self,
        task: asyncio.Task[Any],
        deadline: float | None,
        on_resisted: Callable[[], object],
    ) -> None:
        self.task = task
        self._deadline = deadline
        self._on_resisted = on_resisted
        self._cancels = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Set the timer, if it is not set. Call this when the task begins to wait."""
        if self._deadline is not None and self._timer is None:
            self._timer = self.task.get_loop().call_at(self._deadline, self._cancel)

    def _cancel(self) -> None:
        self._cancels += 1
        self.task.cancel()
        if self._cancels == 2:  # noqa: PLR2004 - the first cancellation was ignored
            self._on_resisted()
        self._timer = self.task.get_loop().call_later(INSIST_EVERY, self._cancel)

    def end(self) -> bool:
        """Undo the cancellations of the task. Return whether there were any."""
        if self._timer is not None:
            self._timer.cancel()
        for _ in range(self._cancels):
            self.task.uncancel()
        return self._cancels > 0


class Phase(Enum):
    """How far the end of an agent has come."""

    STARTING = auto()  # commands are started
    FINISHING = auto()  # no more commands are started; the running handlers continue
    CANCELLED = auto()  # the handlers that still ran were cancelled


class CommandRunner:
    """Runs the command in each message and reports its outcome.

    ``pass_on`` is :meth:`Broadcasts.pass_on`, which forwards broadcasts, or ``None`` if
    the agent is no replica.
    """

    def __init__(
        self,
        router: Router,
        stream: LogStream,
        outcomes: Counter[OutcomeKind],
        settings: Settings,
        *,
        clock: Callable[[], float],
        pass_on: Callable[[Message, Command, str], Awaitable[bool]] | None = None,
        observers: Observers | None = None,
    ) -> None:
        """Keep the running event loop, in which all commands will run."""
        import asyncio  # noqa: PLC0415 - import takes 20 ms; anyio cannot cancel a task

        loop = asyncio.get_running_loop()  # found only once, because this costs time
        self._current_task = partial(asyncio.current_task, loop)
        self._router = router
        self._stream = stream
        self._outcomes = outcomes
        self._settings = settings
        self._clock = clock
        self._context = copy_context()  # copied for each command
        self._pass_on = pass_on
        self._observers = Observers() if observers is None else observers
        self._observed: dict[Message, Observation] = {}  # for commands that run now
        self.runs: dict[Message, asyncio.Task[Any]] = {}  # of the handlers that run now
        # Number of handlers that ignore their cancellation. The outcome of such a
        # handler was reported after its deadline, and is not reported again at its end.
        self.resisting: int = 0
        self.phase: Phase = Phase.STARTING

    @property
    def caller(self) -> Message | None:
        """The running command whose handler, or a task of it, calls this property."""
        for message in reversed(CURRENT_COMMAND.get().messages):
            if isinstance(message, Message) and message in self.runs:
                return message
        return None

    @property
    def stopping(self) -> bool:
        """Whether no more commands are started.

        From then on a cancellation comes from the agent. Before that, a cancellation
        comes from code that the handler has called.
        """
        return self.phase is not Phase.STARTING

    def stop_starting(self) -> None:
        if self.phase is Phase.STARTING:
            self.phase = Phase.FINISHING

    def cancel_handlers(self) -> None:
        """Cancel each running handler once, so that it can wait while it cleans up."""
        self.phase = Phase.CANCELLED
        for task in self.runs.values():
            task.cancel()

    async def run(
        self, message: Message, on_overdue: Callable[[Message], None]
    ) -> OutcomeKind | None:
        """Run the handler of a message, report the outcome and return its kind.

        Return ``None`` if only another replica runs the command. If a handler still
        runs after its deadline and a cancellation, the outcome is reported then, and
        ``on_overdue`` is called. In this case the result at the handler's end is
        ``None``, too. Raises only KeyboardInterrupt.
        """
        outcome: Outcome | None
        try:
            found = self._accept(message)
            if isinstance(found, Outcome):
                outcome = found
            else:
                if not await self._is_for_us(found, message):
                    return None
                outcome = await self._run_command(found, message, on_overdue)
        except KeyboardInterrupt:  # raised again, because it ends the event loop
            outcome = self._unended(message, OutcomeKind.CANCELLED, _INTERRUPTED)
            self._report(outcome, message)
            raise
        return None if outcome is None else self._report(outcome, message)

    async def _is_for_us(self, command: Command, message: Message) -> bool:
        """Pass a command on to other replicas. Return whether this one runs it, too.

        ``pause``, ``resume`` and ``drain`` are forwarded like a broadcast. If they have
        the argument ``instance``, only the replica of this name runs them.
        """
        pauses = command.command in PAUSING and self._router.is_builtin(command.command)
        if self._pass_on is None or not (command.broadcast or pauses):
            return True
        target = command.args.get("instance") if pauses else ""
        return await self._pass_on(message, command, str(target or ""))

    def _accept(self, message: Message) -> Command | Outcome:
        """Return the command in a message, or an outcome if it must not be run.

        A message that cannot be decoded is discarded. A command that is older than
        ``command_max_age`` is rejected.
        """
        try:
            command = self._decode(message)
        except DecodeError as error:
            return _discarded(error, message)
        limit = self._settings.command_max_age
        sent = None if limit is None else parse_timestamp(command.timestamp)
        if sent is not None and limit is not None:
            age = self._clock() - sent.timestamp()
            if age > limit:
                text = f"it was sent {age:.0f} s ago; command_max_age is {limit:g} s"
                fields = {"type": "TooOld", "message": text}
                return _ended(OutcomeKind.REJECTED, command, 0.0, fields)
        return command

    def report_unstarted(
        self, message: Message, kind: OutcomeKind = OutcomeKind.CANCELLED
    ) -> OutcomeKind:
        """Report the outcome of a message that this process does not start."""
        return self._report(self._unended(message, kind, _UNSTARTED[kind]), message)

    def _report(self, outcome: Outcome, message: Message) -> OutcomeKind:
        self._outcomes[outcome.kind] += 1
        if not self._observers.all:
            self._stream.report(outcome)
            return outcome.kind
        observation = self._observed.pop(message, None)
        if observation is None:  # the command was not started
            handler = self._router.find(outcome.command)
            taken = outcome.command_id, outcome.command, handler
            observation = self._observe(message, *taken)
        observation.context.run(self._stream.report, outcome)
        observation.end(outcome)
        return outcome.kind

    def _observe(
        self,
        message: Message,
        id: str,  # noqa: A002 - name in the protocol
        command: str,
        handler: Handler | None,
    ) -> Observation:
        timestamp = message.fields.get("timestamp")
        sent = parse_timestamp(timestamp) if isinstance(timestamp, str) else None
        waited = None if sent is None else max(0.0, self._clock() - sent.timestamp())
        registered = None if handler is None else handler.name
        taken = TakenCommand(message, id, command, registered, waited)
        return Observation(self._observers, taken, self._context.copy())

    def _unended(
        self, message: Message, kind: OutcomeKind, reason: tuple[str, str]
    ) -> Outcome:
        """Return the outcome of a message whose handler did not run to its end."""
        try:
            command = self._decode(message)
        except DecodeError as error:
            if kind is not OutcomeKind.DEAD_LETTERED:
                return _discarded(error, message)
            command = Command(id="", timestamp="", source="", command="")
        name, text = reason
        text = text.format(deliveries=message.delivery)
        return _ended(kind, command, 0.0, {"type": name, "message": text})

    def _decode(self, message: Message) -> Command:
        fields = message.read(self._settings.command_size_limit)
        return Command.from_fields(fields, message.payload, now=self._clock())

    async def _run_command(
        self,
        command: Command,
        message: Message,
        on_overdue: Callable[[Message], None],
    ) -> Outcome | None:
        began = time.monotonic()
        handler = self._router.find(command.command)
        own = UNSET if handler is None else handler.timeout
        timeout = self._settings.command_timeout if own is UNSET else own
        context = CommandContext(
            id=command.id,
            command=command.command,
            timestamp=command.timestamp,
            source=command.source,
            args=command.args,
            delivery=message.delivery,
            deadline=None if timeout is None else began + timeout,
            log=Log(self._stream, {"commandId": command.id}),
        )
        reported = False

        def report() -> None:
            nonlocal reported
            reported = True
            self.resisting += 1
            logger.warning(
                "the handler of %r ignores its cancellation", command.command
            )
            outcome = _timed_out(command, timeout, time.monotonic() - began)
            self._report(outcome, message)
            on_overdue(message)

        variables, on_error = self._context.copy(), _ignore
        if self._observers.all:
            observation = self._observe(message, command.id, command.command, handler)
            self._observed[message] = observation
            variables, on_error = observation.context, observation.set_error
        outer = variables.get(CURRENT_COMMAND, NO_COMMAND)
        current = CurrentCommand(command.id, (*outer.messages, message))
        variables.run(CURRENT_COMMAND.set, current)
        self.runs[message] = task = cast("asyncio.Task[Any]", self._current_task())
        deadline = Deadline(task, context.deadline, report)
        try:
            end = await self._call(context, variables, handler, deadline, on_error)
        finally:
            del self.runs[message]
            self.resisting -= reported
        if reported:
            return None
        kind, result, error = end
        seconds = time.monotonic() - began
        is_overdue = timeout is not None and seconds >= timeout
        if kind is OutcomeKind.TIMED_OUT or (
            is_overdue and kind is OutcomeKind.SUCCEEDED
        ):
            return _timed_out(command, timeout, seconds)
        return Outcome(
            kind=kind,
            command=command.command,
            command_id=command.id,
            source=command.source,
            duration_ms=seconds * 1000,
            result=result,
            error=error,
        )

    async def _absorb_cancellation(self, task: asyncio.Task[Any]) -> None:
        """Undo a cancellation that the handler has caused.

        The task must not stay cancelled, because a worker runs further commands in it.
        """
        import asyncio  # noqa: PLC0415 - import takes 20 ms

        if self.stopping:
            return
        while task.cancelling():
            task.uncancel()
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    async def _call(
        self,
        context: CommandContext,
        variables: Context,
        handler: Handler | None,
        deadline: Deadline,
        on_error: Callable[[BaseException], None],
    ) -> _End:
        """Run the handler. Return the kind of its outcome, its result and its error.

        Raises only KeyboardInterrupt.
        """
        process, task = os.getpid(), deadline.task
        timed_out = False
        end: _End
        try:
            try:
                coroutine = self._router.dispatch(context, handler)
                result = await _run_in(variables, coroutine, deadline.watch)
            finally:
                timed_out = deadline.end()
        except KeyboardInterrupt as error:
            if threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C may arrive at any step of the main thread
            end = _failure(error)
        except BaseException as error:  # noqa: BLE001 - any error of a handler
            exit_if_child(error, process)  # the parent process reports the outcome
            on_error(error)
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                end = _failure(error)
            elif timed_out:
                end = OutcomeKind.TIMED_OUT, None, {}
            else:
                await self._absorb_cancellation(task)
                return _CANCELLED if self.stopping else _failure(error)
        else:
            end = OutcomeKind.SUCCEEDED, result, {}
        if task.cancelling():
            await self._absorb_cancellation(task)
        return end


@types.coroutine
def _run_in(
    context: Context,
    coroutine: Coroutine[Any, Any, Any],
    on_wait: Callable[[], None],
) -> Generator[Any, Any, Any]:
    """Await a coroutine in another context, without a new task, which would cost more.

    ``on_wait`` is called each time the coroutine waits. Many handlers never wait.
    """
    step: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        try:
            waits_for = context.run(step, value)
        except StopIteration as end:
            return end.value
        finally:
            value = None  # otherwise a thrown error would keep this frame in memory
        on_wait()
        try:
            value = yield waits_for
            step = coroutine.send
        except BaseException as error:  # noqa: BLE001 - passed to the coroutine
            value, step = error, coroutine.throw


_CANCELLED: Final[_End] = (
    OutcomeKind.CANCELLED,
    None,
    {"type": "Stopped", "message": "the agent stopped before the handler was done"},
)
_INTERRUPTED: Final = ("KeyboardInterrupt", "interrupted while its handler ran")
# Maps the outcome of a message that is not started to the type and text of its error.
_UNSTARTED: Final = {
    OutcomeKind.CANCELLED: (
        "Stopped",
        "the agent stopped or paused before it was started",
    ),
    OutcomeKind.DUPLICATE: (
        "Duplicate",
        "a command with this id has ended already, or is in work",
    ),
    OutcomeKind.ABANDONED: (
        "Abandoned",
        "it was started before, and its end is unknown",
    ),
    OutcomeKind.DEAD_LETTERED: (
        "DeadLettered",
        "it was started {deliveries} times without an end, and is a dead letter now",
    ),
}


def _ignore(error: BaseException) -> None:
    """Do nothing. Used for errors of handlers if the agent has no observers."""


def _failure(error: BaseException) -> _End:
    try:
        return _classify_failure(error)
    except Exception:  # noqa: BLE001 - an attribute of a program's exception raised
        return OutcomeKind.FAILED, None, describe_error(error)


def _classify_failure(error: BaseException) -> _End:
    fields: dict[str, Any] = {"type": type(error).__name__}
    match error:
        case Reject():
            # A subclass may lack both attributes, and an array has no truth value.
            reason = getattr(error, "reason", None)
            details = getattr(error, "details", ())
            if not isinstance(reason, str):
                reason = as_text(error if reason is None else reason)
            fields = {"type": "Reject", "message": reason}
            if not isinstance(details, Mapping | Sequence | None) or details:
                fields["details"] = details
            return OutcomeKind.REJECTED, None, fields
        case ArgumentError():  # a subclass may lack the attribute
            fields["message"] = as_text(error)
            fields["fields"] = getattr(error, "fields", {})
            return OutcomeKind.REJECTED, None, fields
        case UnknownCommandError():
            return OutcomeKind.UNKNOWN, None, fields | {"message": as_text(error)}
        case _:
            return OutcomeKind.FAILED, None, fields | describe_error(error)


def _ended(
    kind: OutcomeKind, command: Command, duration_ms: float, error: dict[str, Any]
) -> Outcome:
    return Outcome(
        kind=kind,
        command=command.command,
        command_id=command.id,
        source=command.source,
        duration_ms=duration_ms,
        error=error,
    )


def _timed_out(command: Command, timeout: float | None, seconds: float) -> Outcome:
    error = {"type": "TimedOut", "message": f"no result within {timeout:g} s"}
    return _ended(OutcomeKind.TIMED_OUT, command, seconds * 1000, error)


def _discarded(error: DecodeError, message: Message) -> Outcome:
    reason = f"{error.reason} ({error.detail})" if error.detail else error.reason
    return Outcome(
        kind=OutcomeKind.DISCARDED,
        command="",
        command_id=id_of(message.fields) or leading_id(message.payload),
        source=message.source,
        error={
            "type": "DecodeError",
            "message": reason,
            "reason": error.reason,
            "size": len(message.payload),
            "firstBytes": preview(message.payload),
        },
    )
