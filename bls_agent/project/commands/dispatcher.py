"""Takes a message from the receiver when a handler slot is free, and runs it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup

from bls_agent.connection.reconnect import ThrottledLog, wait_after_failure
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisUnavailableError, WrongTypeError
from bls_agent.core.redaction import redact_traceback
from bls_agent.core.settings import Settings
from bls_agent.project.commands.runner import CommandRunner, Phase
from bls_agent.project.messages import OutcomeKind
from bls_agent.project.receive.receiver import Message, PutBack, Receiver, Start
from bls_agent.runtime.tasks import run_to_end, start_soon
from bls_agent.runtime.threads import HandlerThreads

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

CANCEL_GRACE: Final = 0.5  # seconds that a cancelled handler gets to clean up
INSIST_GRACE: Final = 0.1  # seconds for a handler that has ignored one cancellation
INTAKE_GRACE: Final = 0.9  # seconds after the handlers' time, to end a blocking read
BROADCAST_MODE: Final = "broadcast"  # the mode of a message from an instance's inbox
# The mode of a built-in command that was taken from any position of a list.
ASIDE_MODE: Final = "aside"
NOT_RECEIVED: Final = frozenset({BROADCAST_MODE, ASIDE_MODE})
# In these modes a taken command is no longer in Redis. Therefore the dispatcher does
# not report its end to the receiver.
TAKEN_FOR_GOOD: Final = NOT_RECEIVED | {Receiver.mode}


class Taking(Enum):
    """Whether a dispatcher takes commands from its receiver.

    :meth:`Dispatcher.hold` changes ``YES`` to ``ENDING``, and at its end to ``NO``. A
    hold that was cancelled leaves ``ENDING``. :meth:`Dispatcher.take` changes both to
    ``YES``.
    """

    YES = "yes"
    ENDING = "ending"
    NO = "no"


class Dispatcher:
    """Passes commands from a receiver to the handlers, with a limited concurrency.

    A worker is a task that fetches messages and runs them one after the other. There
    are at most ``concurrency`` workers. Every command that is taken gets one outcome
    record, with two exceptions when the agent stops:

    - A command that was not started is put back into Redis.
    - A command whose handler ignores its cancellation gets no record.
    """

    def __init__(
        self,
        receiver: Receiver,
        runner: CommandRunner,
        threads: HandlerThreads,
        settings: Settings,
        *,
        backoff: Backoff,
        throttled_log: ThrottledLog,
    ) -> None:
        self._receiver = receiver
        self._runner = runner
        self._threads = threads
        self._concurrency = settings.concurrency
        self._intake = Intake(receiver, settings.prefetch, backoff, throttled_log)
        self._pending: deque[Message] = deque()
        self._idle: deque[anyio.Event] = deque()
        self._workers = 0
        self._group: TaskGroup | None = None
        self._changed: anyio.Event | None = None  # wakes all callers of change()
        self._handlers_scope = anyio.CancelScope()
        self.running: int = 0  # commands whose handler runs now
        self.taking: Taking = Taking.YES
        self._resting = anyio.Lock()  # held while the receiver rests or is stopped
        self._giving_back = 0  # commands that are being put back into Redis now

    @property
    def stopping(self) -> bool:
        """Whether no further command is started, because the agent stops."""
        return self._runner.stopping

    def stop_starting(self) -> None:
        """Start no further command. Running handlers continue until :meth:`stop`."""
        self._runner.stop_starting()

    @property
    def ended(self) -> bool:
        """Whether the agent stops and no longer waits for running handlers."""
        return self._runner.phase is Phase.CANCELLED

    @property
    def stuck(self) -> int:
        """Number of handlers that still run after their outcome was reported."""
        return self._threads.stuck + self._runner.resisting

    @property
    def received(self) -> int:
        """The number of commands that the receiver has returned so far."""
        return self._intake.received

    @property
    def caller(self) -> Message | None:
        """The running command whose handler calls this property."""
        return self._runner.caller

    def count_in_hand(self, besides: Iterable[Message | None] = ()) -> int:
        """Return the number of commands that were taken and have not ended.

        Running commands in ``besides`` are not counted.
        """
        left_out = self._runner.runs.keys() & set(besides)
        in_redis = sum(run.mode not in TAKEN_FOR_GOOD for run in left_out)
        begun = self.running + self._threads.stuck - len(left_out)
        waiting = len(self._pending) + self._giving_back
        return max(begun + waiting, self._receiver.counts().held - in_redis, 0)

    async def run(self) -> None:
        self._threads.on_freed = self._announce_change
        with self._handlers_scope:
            while not self.stopping:  # code outside of the agent may cancel the group
                self._workers = 0
                try:
                    async with anyio.create_task_group() as self._group:
                        self._announce_change()
                        await anyio.sleep_forever()
                except* KeyboardInterrupt:
                    pass  # asyncio has already raised it in the program

    @property
    def accepts(self) -> bool:
        """Whether :meth:`submit` would start a message without waiting."""
        is_busy = self.stopping or self._pending or self.taking is not Taking.YES
        return not is_busy and self._has_free_slot()

    def submit(self, message: Message) -> None:
        """Run a message that another task has taken, when a handler slot is free."""
        if self.stopping:
            self._runner.report_unstarted(message)
            return
        self._pending.append(message)
        is_last_worker = not self._idle and self._workers >= self._concurrency
        if is_last_worker:
            self._intake.interrupt()  # the fetching worker runs the message
        self._announce_change()

    def run_aside(self, message: Message) -> anyio.Event:
        """Run a message now, in its own task, even if no handler slot is free.

        Return an event that is set when the message has ended.
        """
        ended = anyio.Event()

        async def run() -> None:
            try:
                await self._run_and_free(message)
            finally:
                ended.set()

        group = self._group
        if self.stopping or group is None or group.cancel_scope.cancel_called:
            self._runner.report_unstarted(message)
            ended.set()
        else:
            self.running += 1
            start_soon(group, run)
        return ended

    async def hold(self) -> None:
        """Receive no more commands, and put back the commands that were not started."""
        self.taking = Taking.ENDING
        await self._end_intake()
        await self.rest()
        self.taking = Taking.NO

    async def rest(self) -> None:
        """End the receiver's blocking read, and put back the commands it has taken."""
        async with self._resting:
            if self.stopping:
                return
            await self._receiver.rest()
            self._pending.extend(self._receiver.leftovers())
            if self._pending:
                # After a cancelled request it would be unknown where the commands are.
                await run_to_end(self._give_back, "bls-agent give back")

    def take(self) -> None:
        """Receive commands again. Call this only while no :meth:`hold` runs."""
        self.taking = Taking.YES
        self._announce_change()

    async def stop(self, timeout: float) -> None:
        """Stop receiving, put back the commands not started, and wait for the handlers.

        Handlers that still run after ``timeout`` seconds are cancelled once. Half a
        second later the scope cancels those that still run, and again each time that
        they wait.
        """
        deadline = anyio.current_time() + timeout
        self.stop_starting()
        with anyio.move_on_after(CANCEL_GRACE):
            await self._end_intake()
        with anyio.CancelScope(deadline=deadline + INTAKE_GRACE):
            async with self._resting:
                await self._receiver.stop()
        self._pending.extend(self._receiver.leftovers())
        await self._give_back_or_run(deadline)
        with anyio.CancelScope(deadline=deadline):
            await self._all_ended()
        self._runner.cancel_handlers()
        with anyio.move_on_after(CANCEL_GRACE):
            await self._all_ended()
        self._handlers_scope.cancel()
        with anyio.move_on_after(INSIST_GRACE):
            await self._all_ended()
        with anyio.CancelScope(deadline=deadline + INTAKE_GRACE):
            await self._receiver.close()

    async def _end_intake(self) -> None:
        while self._intake.running is not None:
            self._intake.interrupt()
            await self.change()

    async def _all_ended(self) -> None:
        while self.running:
            await self.change()

    async def change(self) -> None:
        """Wait until a command ends or arrives, or :attr:`taking` changes."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    async def _give_back(self) -> PutBack:
        """Put the commands that were not started back into Redis.

        1. The commands are surely not in the control list: they stay in this process
           and wait to be run, or, if the agent has ended, are reported as cancelled.
        2. It is unknown whether they are in the list: they are reported as cancelled
           and not run, because no command may run twice.

        Copies of broadcasts are not put back, because another instance would take them
        from the control list.
        """
        taken = [m for m in self._pending if m.mode != BROADCAST_MODE]
        copies = [m for m in self._pending if m.mode == BROADCAST_MODE]
        # The commands to put back leave the queue first, so that no worker starts them.
        self._pending = deque(copies)
        put_back = PutBack.UNKNOWN
        self._giving_back += len(taken)
        try:
            put_back = await self._receiver.give_back(taken)
        finally:
            self._giving_back -= len(taken)
            if put_back is PutBack.REFUSED and not self.ended:
                self._pending.extend(taken)
            elif put_back is not PutBack.DONE:
                for message in taken:
                    self._runner.report_unstarted(message)
            self._announce_change()
        return put_back

    async def _give_back_or_run(self, deadline: float) -> None:
        """Put back the commands that were not started. If Redis refuses, run them.

        A command that cannot be started before the deadline is reported as cancelled.
        """
        is_refused = False
        with (
            anyio.CancelScope(shield=True),
            anyio.CancelScope(deadline=deadline + INTAKE_GRACE),
        ):
            while self._giving_back:
                await self.change()
            if self._pending:
                is_refused = await self._give_back() is PutBack.REFUSED
        try:
            if is_refused:
                with anyio.CancelScope(deadline=deadline):
                    await self._start_the_rest(deadline)
        finally:
            while self._pending:
                self._runner.report_unstarted(self._pending.popleft())

    async def _start_the_rest(self, deadline: float) -> None:
        group = self._group
        while self._pending:
            while not self._has_free_slot():
                await self.change()
            is_over = anyio.current_time() >= deadline
            if is_over or group is None or group.cancel_scope.cancel_called:
                return
            self.running += 1
            start_soon(group, self._run_and_free, self._pending.popleft())

    def _has_free_slot(self) -> bool:
        if self.running >= self._concurrency:
            return False
        slots = 1 if self._receiver.one_at_a_time else self._concurrency
        return self.running + self._threads.stuck < slots

    def _has_work(self) -> bool:
        """Return whether a worker may run a waiting message or fetch a new one now."""
        if self.stopping or not self._has_free_slot():
            return False
        may_fetch = self.taking is Taking.YES and self._intake.running is None
        return bool(self._pending) or may_fetch

    def _announce_change(self) -> None:
        """Wake the tasks that wait for a change, and start a worker if needed."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        self._call_worker()

    def _call_worker(self) -> None:
        group = self._group if self._workers < self._concurrency else None
        if not (self._idle or group) or not self._has_work():
            return
        if self._idle:
            self._idle.popleft().set()
        elif group is not None and not group.cancel_scope.cancel_called:
            self._workers += 1
            start_soon(group, self._work)

    async def _work(self) -> None:
        """Run one command after another. Only one worker at a time fetches messages."""
        try:
            while True:
                message = await self._next()
                self.running += 1
                self._call_worker()
                await self._run_and_free(message)
        except anyio.get_cancelled_exc_class():
            # Either all workers were cancelled, or only this one. In the second case a
            # new worker replaces it. The error is not raised again, because it would
            # cancel the other workers of the task group, too.
            pass
        finally:
            self._workers -= 1
            self._announce_change()

    async def _run_and_free(self, message: Message) -> None:
        receiver, start = self._receiver, Start.RUN
        try:
            if message.mode not in NOT_RECEIVED:
                start = receiver.begin(message)
            if start is Start.RUN:
                kind = await self._runner.run(message, receiver.mark_ended)
            elif start is Start.SKIP:
                return
            else:
                kind = self._runner.report_unstarted(message, OutcomeKind(start.value))
            if message.mode not in TAKEN_FOR_GOOD and kind is not OutcomeKind.CANCELLED:
                await receiver.settle(message, fetch_follows=self._fetches_next())
        except Exception as error:  # noqa: BLE001 - any error is logged
            text = "a command could not be brought to its end\n%s"
            logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
        finally:
            self.running -= 1
            self._announce_change()

    def _fetches_next(self) -> bool:
        """Return whether the worker that ran a message fetches the next one at once."""
        if self.stopping or self._pending or self.taking is not Taking.YES:
            return False
        if self._intake.running is not None:
            return False
        return self.running + self._threads.stuck <= self._concurrency

    async def _next(self) -> Message:
        while True:
            if not self._has_work():
                await self._wait_for_a_call()
            elif self._pending:
                return self._pending.popleft()
            else:
                await self._fetch_more()

    async def _wait_for_a_call(self) -> None:
        called = anyio.Event()
        self._idle.append(called)
        try:
            await called.wait()
        finally:
            if not called.is_set():  # cancelled, so no task may wake this worker
                self._idle.remove(called)

    async def _fetch_more(self) -> None:
        try:
            self._pending.extend(await self._intake.fetch())
        finally:
            if self.stopping or self.taking is not Taking.YES:
                self._announce_change()


class Intake:
    """Fetches messages from the receiver, for one worker at a time.

    Another task may interrupt a fetch.
    """

    def __init__(
        self,
        receiver: Receiver,
        prefetch: int,
        backoff: Backoff,
        throttled_log: ThrottledLog,
    ) -> None:
        self._receiver = receiver
        self._prefetch = prefetch
        self._backoff = backoff
        self._throttled_log = throttled_log
        self.running: asyncio.Timeout | None = None  # set while a worker fetches
        self.received: int = 0  # messages that were fetched so far

    async def fetch(self) -> Sequence[Message]:
        """Call the receiver once. Return nothing after a failure or interruption."""
        import asyncio  # noqa: PLC0415 - an anyio cancel scope costs as much as a read

        messages: Sequence[Message] = ()
        try:
            async with asyncio.timeout(None) as self.running:
                messages = await self._receive()
        except TimeoutError:
            pass  # interrupted
        finally:
            self.running = None
        self.received += len(messages)
        return messages

    def interrupt(self) -> None:
        """End the running fetch. The receiver keeps messages that arrive later."""
        if self.running is not None and not self.running.expired():
            self.running.reschedule(0.0)

    async def _receive(self) -> Sequence[Message]:
        """Receive messages. Log a failure, wait, and return no messages."""
        try:
            messages = await self._receiver.receive(self._prefetch)
        except (RedisUnavailableError, WrongTypeError) as error:
            text = "no commands can be received"
            await wait_after_failure(error, text, self._backoff, self._throttled_log)
            return ()
        except Exception as error:  # noqa: BLE001 - any error is logged
            text = "no commands can be received\n%s"
            logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
            await anyio.sleep(self._backoff.failed())
            return ()
        if self._backoff.failures:
            self._backoff.succeeded()
        return messages
