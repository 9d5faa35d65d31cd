"""Runs commands: takes a message when a handler is free, runs it, reports how it ended.

The decisions are elsewhere (``router.py``: which handler, ``messages.py``: what a
message says); here are the slots, the deadlines and the one place where whatever a
handler raises ends.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

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
from bls_agent.project.logs import CURRENT_COMMAND, Log, LogStream, describe_error
from bls_agent.project.messages import Command, Outcome, OutcomeKind
from bls_agent.project.receiver import Intake, Message, Receiver
from bls_agent.project.router import UNSET, Router
from bls_agent.project.threads import HandlerThreads

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
        self._changed = anyio.Event()
        self._intake_scope = anyio.CancelScope()
        self._intake_ended = anyio.Event()
        self._handlers_scope = anyio.CancelScope()
        self.stopping = False
        self._outcomes = outcomes
        self.running = 0

    async def run(self) -> None:
        """Take and run commands until :meth:`stop` has ended both."""
        self._threads.on_freed = self._announce_change
        with self._handlers_scope:
            async with anyio.create_task_group() as workers:
                try:
                    with self._intake_scope:
                        await self._take_commands(workers)
                finally:
                    self._intake_ended.set()

    async def stop(self, timeout: float) -> None:
        """End the intake, give back what was not started, let handlers finish.

        Args:
            timeout: Seconds that running handlers get; then they are cancelled.
        """
        deadline = anyio.current_time() + timeout
        self.stopping = True
        self._intake_scope.cancel()
        with anyio.move_on_after(CANCEL_GRACE):  # a task cancelled early never began
            await self._intake_ended.wait()
        with anyio.CancelScope(deadline=deadline + INTAKE_GRACE):
            await self._receiver.stop()
        self._pending.extend(self._receiver.leftovers())
        await self._give_back_or_run(deadline)
        with anyio.CancelScope(deadline=deadline):
            await self._all_ended()
        self._handlers_scope.cancel()
        with anyio.move_on_after(CANCEL_GRACE):
            await self._all_ended()

    async def _all_ended(self) -> None:
        while self.running:
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
                await self._changed.wait()
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

    async def _take_commands(self, workers: TaskGroup) -> None:
        """Ask for commands whenever a handler is free and none waits here."""
        while True:
            while self._pending or not self._has_free_slot():
                await self._changed.wait()
            self._pending.extend(await self._intake.receive(self._prefetch))
            for _ in self._pending:
                self._wake_a_worker(workers)

    def _has_free_slot(self) -> bool:
        slots = 1 if self._receiver.one_at_a_time else self._concurrency
        return self.running + self._threads.stuck < slots

    def _wake_a_worker(self, workers: TaskGroup) -> None:
        if self._idle:
            self._idle.popleft().set()
        elif self._workers < self._concurrency:
            self._workers += 1
            workers.start_soon(self._work)

    def _announce_change(self) -> None:
        """Let everybody look again: a slot is free, or a waiting command was taken."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        if self._pending and self._idle:
            self._idle.popleft().set()

    async def _work(self) -> None:
        """Run one waiting command after the other."""
        while True:
            while self.stopping or not (self._pending and self._has_free_slot()):
                called = anyio.Event()
                self._idle.append(called)
                await called.wait()
            message = self._pending.popleft()
            self.running += 1
            self._announce_change()
            try:
                await self._handle(message)
            except Exception:  # a fault of ours: the loop lives, the host's log tells
                logger.exception("a command could not be brought to its end")
            finally:
                self.running -= 1
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
        began = anyio.current_time()
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
            kind, result, error = await self._call(context, timeout)
            await self._absorb_cancellation()
        finally:
            CURRENT_COMMAND.reset(token)
        duration = (anyio.current_time() - began) * 1000
        return _ended(kind, command, duration, result=result, error=error)

    async def _absorb_cancellation(self) -> None:
        """Free the worker of a cancellation that a handler brought upon its task.

        A moment is given to a stop that may be the true reason.
        """
        import asyncio  # noqa: PLC0415, TID251 - 20 ms; anyio does not tell

        task = asyncio.current_task()
        if self.stopping or task is None or not task.cancelling():
            return
        while task.cancelling():
            task.uncancel()
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    async def _call(
        self, context: CommandContext, timeout: float | None
    ) -> tuple[OutcomeKind, Any, dict[str, Any]]:
        """Run the handler; whatever it does ends here as an outcome."""
        scope = anyio.CancelScope()
        if timeout is not None:
            scope.deadline = anyio.current_time() + timeout
        try:
            with scope:
                result = await self._router.dispatch(context)
                if anyio.current_time() < scope.deadline:
                    return OutcomeKind.SUCCEEDED, result, {}
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the one place for handlers
            if isinstance(error, anyio.get_cancelled_exc_class()):
                await self._absorb_cancellation()
                if self.stopping:
                    return _CANCELLED
            return _failure(error)
        return (
            OutcomeKind.TIMED_OUT,
            None,
            {"type": "TimedOut", "message": f"no result within {timeout:g} s"},
        )


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
