"""Runs commands: takes a message when a handler is free, runs it, reports how it ended.

The decisions are elsewhere (``router.py``: which handler, ``messages.py``: what a
message says); here are the slots, the deadlines and the one place where whatever a
handler raises ends.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import TaskGroup

from bls_agent.backoff import Backoff
from bls_agent.errors import (
    ArgumentError,
    DecodeError,
    Reject,
    UnknownCommandError,
    preview,
)
from bls_agent.project.context import CommandContext
from bls_agent.project.deadlines import Deadlines
from bls_agent.project.logs import CURRENT_COMMAND, Log, LogStream, describe_error
from bls_agent.project.messages import Command, Outcome, OutcomeKind
from bls_agent.project.receiver import Intake, Message, Receiver
from bls_agent.project.router import UNSET, Router
from bls_agent.project.threads import HandlerThreads

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see deadlines.py

__all__ = ["Dispatcher"]

logger = logging.getLogger(__name__)

CANCEL_GRACE: Final = 0.5  # seconds that a cancelled handler gets to clean up
INTAKE_GRACE: Final = 0.9  # seconds beyond the handlers' time for a read to end


class Dispatcher:
    """Feeds commands from a receiver to the handlers of a router.

    Every command that is taken leaves exactly one outcome record, unless the agent stops:
    then what was not started goes back to the list, and a handler that resists its
    cancellation is left behind without one.

    Attributes:
        running: Commands whose handler runs now.
        stopping: No command is started any more.
    """

    def __init__(
        self,
        receiver: Receiver,
        router: Router,
        stream: LogStream,
        threads: HandlerThreads,
        *,
        concurrency: int,
        prefetch: int,
        timeout: float | None,
        size_limit: int,
        clock: Callable[[], float],
        backoff: Backoff,
        outcomes: Counter[OutcomeKind],
    ) -> None:
        """Remember the parts.

        Args:
            receiver: Where commands come from.
            router: Who handles them.
            stream: Where outcomes go.
            threads: Where plain handlers run.
            concurrency: Commands that run at the same time.
            prefetch: Commands taken at once.
            timeout: Default deadline of a handler in seconds.
            size_limit: Longest command in bytes.
            clock: Gives Unix seconds.
            backoff: Paces the tries while commands cannot be received.
            outcomes: Where ends are counted.
        """
        self._receiver = receiver
        self._router = router
        self._stream = stream
        self._threads = threads
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._timeout = timeout
        self._size_limit = size_limit
        self._clock = clock
        self._intake = Intake(receiver, backoff)
        self._pending: deque[Message] = deque()
        self._idle: deque[anyio.Event] = deque()
        self._workers = 0
        self._group: TaskGroup | None = None
        self._intake_scope: anyio.CancelScope | None = None
        self._changed: anyio.Event | None = None  # there while somebody waits for it
        self._handlers_scope = anyio.CancelScope()
        self._deadlines = Deadlines()
        self.stopping = False
        self._outcomes = outcomes
        self.running = 0

    async def run(self) -> None:
        """Take and run commands until :meth:`stop` has ended both."""
        self._threads.on_freed = self._announce_change
        with self._handlers_scope:
            try:
                async with anyio.create_task_group() as self._group:
                    self._announce_change()
            finally:
                self._deadlines.close()

    async def stop(self, timeout: float) -> None:
        """End the intake, give back what was not started, let handlers finish.

        Args:
            timeout: Seconds that running handlers get; then they are cancelled.
        """
        deadline = anyio.current_time() + timeout
        self.stopping = True
        with anyio.move_on_after(CANCEL_GRACE):
            await self._end_intake()
        with anyio.CancelScope(deadline=deadline + INTAKE_GRACE):
            await self._receiver.stop()
        self._pending.extend(self._receiver.leftovers())
        await self._give_back_or_run(deadline)
        with anyio.CancelScope(deadline=deadline):
            await self._all_ended()
        self._handlers_scope.cancel()
        with anyio.move_on_after(CANCEL_GRACE):
            await self._all_ended()

    async def _end_intake(self) -> None:
        while self._intake_scope is not None:
            self._intake_scope.cancel()
            await self._change()

    async def _all_ended(self) -> None:
        while self.running:
            await self._change()

    async def _change(self) -> None:
        """Wait until something has changed; who waits looks again at what."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    async def _give_back_or_run(self, deadline: float) -> None:
        """Put back what was taken and not started.

        Where that is refused it is run while there is time; what may or may not have
        been put back is not run, because it must not run twice.
        """
        if not self._pending:
            return
        with (
            anyio.CancelScope(shield=True),
            anyio.CancelScope(deadline=deadline + INTAKE_GRACE),
        ):
            given_back = await self._receiver.give_back(list(self._pending))
            if given_back:
                self._pending.clear()
            elif given_back is False:
                with anyio.CancelScope(deadline=deadline):
                    await self._run_the_rest(deadline)
        while self._pending:
            self._report_cancelled(self._pending.popleft())

    async def _run_the_rest(self, deadline: float) -> None:
        """Run what waits, one by one, as long as there is time."""
        while self._pending:
            while not self._has_free_slot():
                await self._change()
            if anyio.current_time() >= deadline:
                return
            self.running += 1
            try:
                await self._handle(self._pending.popleft())
            finally:
                self.running -= 1

    def _report_cancelled(self, message: Message) -> None:
        try:
            command = self._decode(message)
        except DecodeError as error:
            self._report(_discarded(error, message))
            return
        reason = {
            "type": "Stopped",
            "message": "the agent stopped before it was started",
        }
        self._report(_ended(OutcomeKind.CANCELLED, command, 0.0, error=reason))

    def _has_free_slot(self) -> bool:
        if self.running >= self._concurrency:
            return False
        slots = 1 if self._receiver.one_at_a_time else self._concurrency
        return self.running + self._threads.stuck < slots

    def _has_work(self) -> bool:
        """Tell whether a worker would find something to do: to run, or to ask for."""
        if self.stopping or not self._has_free_slot():
            return False
        return bool(self._pending) or self._intake_scope is None

    def _announce_change(self) -> None:
        """Let everybody look again: a slot is free, or a waiting command was taken."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        self._call_worker()

    def _call_worker(self) -> None:
        """Have one more worker look for work, if there is some."""
        group = self._group if self._workers < self._concurrency else None
        if not (self._idle or group) or not self._has_work():
            return
        if self._idle:
            self._idle.popleft().set()
        elif group is not None and not group.cancel_scope.cancel_called:
            self._workers += 1
            group.start_soon(self._work)

    async def _work(self) -> None:
        """Run one command after the other, and ask for more when it is this one's turn.

        One worker at a time asks. It runs what it got itself, with no hand-over in
        between, after it has called the next one to ask.
        """
        try:
            while True:
                message = await self._next()
                self.running += 1
                self._call_worker()
                try:
                    await self._handle(message)
                except (
                    Exception
                ):  # a fault of ours: the loop lives, the host's log tells
                    logger.exception("a command could not be brought to its end")
                finally:
                    self.running -= 1
                    self._announce_change()
        except anyio.get_cancelled_exc_class():
            if self.stopping:
                raise
            # Somebody has cancelled just this task: another one takes its place.
        finally:
            self._workers -= 1
            self._announce_change()

    async def _next(self) -> Message:
        while True:
            if not self._has_work():
                called = anyio.Event()
                self._idle.append(called)
                await called.wait()
            elif self._pending:
                return self._pending.popleft()
            else:
                await self._ask()

    async def _ask(self) -> None:
        """Wait for commands; what comes waits here until a worker takes it."""
        try:
            with anyio.CancelScope() as self._intake_scope:
                self._pending.extend(await self._intake.receive(self._prefetch))
        finally:
            self._intake_scope = None
            if self.stopping:
                self._announce_change()

    async def _handle(self, message: Message) -> None:
        """Run one message to its final outcome and settle it."""
        try:
            command = self._decode(message)
        except DecodeError as error:
            outcome = _discarded(error, message)
        else:
            outcome = await self._run_command(command, message)
        self._report(outcome)
        if outcome.kind is not OutcomeKind.CANCELLED:
            await self._receiver.settle(message)

    def _decode(self, message: Message) -> Command:
        return Command.decode(
            message.payload, now=self._clock(), limit=self._size_limit
        )

    def _report(self, outcome: Outcome) -> None:
        self._outcomes[outcome.kind] += 1
        self._stream.report(outcome)

    def _timeout_of(self, command: Command) -> float | None:
        handler = self._router.find(command.command)
        own = UNSET if handler is None else handler.timeout
        return self._timeout if own is UNSET else own

    async def _run_command(self, command: Command, message: Message) -> Outcome:
        began = time.monotonic()
        timeout = self._timeout_of(command)
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
        token = CURRENT_COMMAND.set(command.id)
        try:
            kind, result, error = await self._call(context)
        finally:
            CURRENT_COMMAND.reset(token)
        seconds = time.monotonic() - began
        if kind is OutcomeKind.SUCCEEDED and timeout is not None and seconds >= timeout:
            kind, result = OutcomeKind.TIMED_OUT, None
        if kind is OutcomeKind.TIMED_OUT:
            error = {"type": "TimedOut", "message": f"no result within {timeout:g} s"}
        return _ended(kind, command, seconds * 1000, result=result, error=error)

    async def _absorb_cancellation(self, task: asyncio.Task[Any]) -> None:
        """Free the worker of a cancellation that a handler brought upon its task.

        A moment is given to a stop that may be the true reason.
        """
        import asyncio  # noqa: PLC0415, TID251 - a yield, and no more

        if self.stopping:
            return
        while task.cancelling():
            task.uncancel()
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    async def _call(
        self, context: CommandContext
    ) -> tuple[OutcomeKind, Any, dict[str, Any]]:
        """Run the handler; whatever it does ends here as an outcome."""
        task = self._deadlines.begin(context.deadline)
        late = False
        try:
            try:
                result = await self._router.dispatch(context)
            finally:
                late = self._deadlines.end(task)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the one place for handlers
            if isinstance(error, anyio.get_cancelled_exc_class()):
                if late:
                    return OutcomeKind.TIMED_OUT, None, {}
                await self._absorb_cancellation(task)
                return _CANCELLED if self.stopping else _failure(error)
            end = _failure(error)
        else:
            end = (OutcomeKind.SUCCEEDED, result, {})
        if task.cancelling():
            await self._absorb_cancellation(task)
        return end


_CANCELLED = (
    OutcomeKind.CANCELLED,
    None,
    {"type": "Stopped", "message": "the agent stopped before the handler was done"},
)


def _failure(error: BaseException) -> tuple[OutcomeKind, Any, dict[str, Any]]:
    """Find the outcome for what a handler raised."""
    told: dict[str, Any] = {"type": type(error).__name__}
    match error:
        case Reject():
            told = {"type": "Reject", "message": error.reason}
            if error.details:
                told["details"] = error.details
            return OutcomeKind.REJECTED, None, told
        case ArgumentError():
            told |= {"message": str(error), "fields": error.fields}
            return OutcomeKind.REJECTED, None, told
        case UnknownCommandError():
            return OutcomeKind.UNKNOWN, None, told | {"message": str(error)}
        case _:
            return OutcomeKind.FAILED, None, told | describe_error(error)


def _ended(
    kind: OutcomeKind,
    command: Command,
    duration_ms: float,
    *,
    result: Any = None,
    error: dict[str, Any] | None = None,
) -> Outcome:
    return Outcome(
        kind=kind,
        command=command.command,
        command_id=command.id,
        duration_ms=duration_ms,
        result=result,
        error=error or {},
    )


def _discarded(error: DecodeError, message: Message) -> Outcome:
    reason = f"{error.reason} ({error.detail})" if error.detail else error.reason
    return Outcome(
        kind=OutcomeKind.DISCARDED,
        command="",
        command_id="",
        error={
            "type": "DecodeError",
            "message": reason,
            "reason": error.reason,
            "size": len(message.payload),
            "firstBytes": preview(message.payload),
        },
    )
