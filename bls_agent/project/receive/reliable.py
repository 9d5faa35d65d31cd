"""Mode ``reliable``: a command stays in a list in Redis until it is acknowledged.

A script moves commands from the control list into the in-flight list of this process.
If the control list is empty, BLMOVE waits for a command. BLMOVE has the control list as
source and destination, so it moves no command away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.faults import NOT_ALLOWED
from bls_agent.connection.scripts import find_wrong_type
from bls_agent.core.backoff import Backoff, jittered
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.core.settings import Settings
from bls_agent.project.messages import OutcomeKind
from bls_agent.project.receive.blocking import BLOCK, BlockingRead
from bls_agent.project.receive.inflight import InFlightList, Stage
from bls_agent.project.receive.receiver import (
    Message,
    PutBack,
    Receiver,
    ReceiverCounts,
    Start,
    Warn,
)
from bls_agent.project.receive.reclaimer import (
    MAX_DELIVERIES,
    Reclaimer,
    ReliableKeys,
)
from bls_agent.runtime.tasks import start_soon

if TYPE_CHECKING:
    import asyncio

logger: logging.Logger = logging.getLogger(__name__)

LOOKS_PER_TTL: Final = 3  # renewals of the lease in one TTL
AWAY_GRACE: Final = 0.5  # seconds that closing waits for an unreachable Redis
FIRST_PAUSE: Final = 0.25  # upper limit in seconds of the first pause after a failure
ACK_WITHIN: Final = 0.005  # seconds that an ack may wait for the next fetch


class ReliableReceiver(Receiver):
    """Moves commands into the in-flight list of this process, and acknowledges them.

    Each command runs at least once, unless Redis loses its data. A command runs twice
    only if the process or its connection fails before the ack, or if the process is
    frozen for longer than its lease, because then another process takes over the
    command.

    One request takes new commands and acknowledges commands that have ended. When a
    command ends, there are three cases:

    1. The worker fetches new commands immediately. The fetch also sends the ack.
    2. The batch may have several commands, and the first command of the batch before
       ended within 5 ms. The next fetch sends the ack, or a separate request 5 ms after
       the batch was taken. Meanwhile more than ``concurrency`` commands may start, and
       Redis has stored this larger number.
    3. Otherwise a separate request sends the ack, and the worker waits for its reply.

    ``report`` is called for each command that has become a dead letter.
    """

    mode = "reliable"

    def __init__(
        self,
        connections: AgentConnections,
        key: str,
        warn: Warn,
        settings: Settings,
        *,
        instance: str,
        report: Callable[[Message, OutcomeKind], object],
    ) -> None:
        self._connections = connections
        self._warn = warn
        self._report = report
        self._ttl = settings.lease_ttl
        self._concurrency = settings.concurrency
        self._keys = ReliableKeys(key)
        self._reclaimer = Reclaimer(
            connections.control,
            self._keys,
            settings.lease_ttl,
            self._report_dead,
            connections.throttled_log,
        )
        self.list: InFlightList = InFlightList(
            connections,
            self._keys,
            settings,
            self._reclaimer,
            self._report_dead,
            instance=instance,
        )
        self._read = BlockingRead(connections)
        # Held while commands are taken or acknowledged, and during reconcile().
        self._lock = anyio.Lock(fast_acquire=True)
        self._backoff = Backoff(base=FIRST_PAUSE)  # of repeated acks
        self._retry_at = float("-inf")
        self._opened = False
        self._stopped = anyio.Event()
        self._pace = AckPace()

    def counts(self) -> ReceiverCounts:
        return ReceiverCounts(
            len(self.list), self._reclaimer.reclaimed, self.list.losses
        )

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``."""
        if self._stopped.is_set():
            return ()
        try:
            return await self._receive(limit)
        except RedisUnavailableError as error:
            raise await self._explain(error) from error

    async def _receive(self, limit: int) -> Sequence[Message]:
        if self._connections.blocking.pending:  # an earlier call was interrupted
            await self._wait()
        async with self._lock:
            if not self.list.in_order:
                await self._put_in_order()
            messages = await self._exchange(limit)
        if not messages and self.list.valid and not self._stopped.is_set():
            key = self._keys.control
            await self._read.send([("BLMOVE", key, key, "LEFT", "LEFT", BLOCK)])
            await self._wait()
        return messages

    async def _wait(self) -> None:
        await self._read.wait()
        for reply in self._read.take_replies():
            if isinstance(reply, RedisUnavailableError):
                raise reply

    async def _put_in_order(self) -> None:
        if not self._opened:
            await self._reclaimer.reclaim_all(but=self.list.lease.key)
            self._opened = True
        await self.list.reconcile()

    async def _exchange(self, limit: int) -> list[Message]:
        may_defer = limit > 1 and self._pace.is_quick
        startable = self._concurrency + limit if may_defer else self._concurrency
        self._pace.record_sent()
        try:
            messages = await self.list.exchange(limit, startable=startable)
        except RedisUnavailableError as error:
            if not (error.ambiguous or error.connecting):
                await self._acknowledge()  # works even if Redis is out of memory
            raise
        if messages and limit > 1:
            first_time = all(message.delivery == 1 for message in messages)
            self._pace.record_taken(may_defer=may_defer and first_time)
        return messages

    def begin(self, message: Message) -> Start:
        return self.list.begin(message)

    def mark_ended(self, message: Message) -> None:
        """Let the next request acknowledge the command, although its handler runs."""
        self.list.end(message)

    async def settle(self, message: Message, *, fetch_follows: bool = False) -> None:
        """Acknowledge a command now or with the next fetch, as the class describes.

        If a separate request sends the ack, wait for its reply, unless the lease has
        ended or the agent stops. Concurrent callers share this request, and the pause
        after a failure.
        """
        self.list.end(message)
        self._pace.record_ended()
        if (fetch_follows or self._pace.defers) and not self._stopped.is_set():
            self._pace.expect_fetch()
            return
        while message in self.list:
            with suppress(RedisUnavailableError):
                async with self._lock:
                    if self._pace.defers:  # a batch was taken meanwhile
                        return
                    if anyio.current_time() >= self._retry_at:
                        await self._acknowledge()
            if self._stopped.is_set() or not self.list.valid:
                return
            with anyio.move_on_after(self._retry_at - anyio.current_time()):
                await self._stopped.wait()

    async def _acknowledge(self) -> None:
        """Acknowledge all commands that have ended.

        After a failure, acknowledge a single command first. If the list and the memory
        may differ, compare them first, because a second ack could remove another
        command with equal bytes.
        """
        if not self.list.ended:
            return
        try:
            if not self.list.in_order:
                await self.list.reconcile()
            self._pace.stop_deferring()
            if self._backoff.failures:
                await self.list.exchange(0, acks=1)
            while self.list.ended and self.list.valid:
                await self.list.exchange(0)
        except RedisUnavailableError as error:
            delay = self._backoff.failed()
            if not error.connecting:
                self._retry_at = anyio.current_time() + delay
            raise
        self._backoff.succeeded()

    async def give_back(self, messages: Sequence[Message]) -> PutBack:
        """Put commands back to the head of the control list.

        The delivery counts stay the same. If this fails, the commands stay in the
        in-flight list. A living process puts them back when the lease has ended.
        """
        for message in messages:
            self.list.drop(message)
        try:
            async with self._lock:
                await self.list.reconcile()
        except RedisUnavailableError as error:
            logger.warning("commands go back when the lease is over: %s", error)
        return PutBack.DONE

    async def rest(self) -> None:
        """End the blocking read and put back commands whose reply was lost."""
        await self._read.release()
        is_open = self._opened and self._connections.control.connected
        if is_open and not self.list.in_order:
            await self.give_back(())

    async def stop(self) -> None:
        self._stopped.set()
        await self.rest()

    async def close(self) -> None:
        """Put back the unfinished commands, remove the list and end the lease."""
        self._stopped.set()
        # Check all connections, because one connection may be closed for a short time
        # while it changes to another server.
        is_away = not any(one.connected for one in self._connections.all)
        with anyio.move_on_after(AWAY_GRACE if is_away else None):
            async with self._lock:
                await self._close()

    async def _close(self) -> None:
        try:
            await self._acknowledge()
        except RedisUnavailableError as error:
            text = "commands that ended are not acknowledged yet: %s"
            logger.debug(text, error)
        await self.list.close()
        if not self.list.lease.token:
            return
        try:
            blocking = self._connections.blocking
            await self._connections.kill_orphans(blocking, kill=True)
            await self.list.hand_back(Stage.ENDED, is_final=True)
        except RedisUnavailableError as error:
            logger.warning("commands go back when the lease is over: %s", error)
        else:
            self.list.lease.forget()

    async def run(self) -> None:
        """Keep the lease, reclaim the lists of dead processes and send overdue acks."""
        async with anyio.create_task_group() as tasks:
            start_soon(tasks, self._send_overdue_acks)
            await self._keep_lease()
            tasks.cancel_scope.cancel()

    async def _send_overdue_acks(self) -> None:
        while True:
            await self._pace.overdue()
            with suppress(RedisUnavailableError):
                async with self._lock:
                    if self.list.ended:
                        await self._acknowledge()
                    elif self.list.in_order:
                        # Redis stores that only ``concurrency`` commands may start.
                        await self.list.exchange(0)

    async def _keep_lease(self) -> None:
        backoff = Backoff(base=FIRST_PAUSE, cap=min(2.0, self._ttl / LOOKS_PER_TTL))
        while not self.list.is_closed:
            pause = jittered(self._ttl / LOOKS_PER_TTL, backoff.rng)
            try:
                if self._opened:
                    await self._look_after()
                backoff.succeeded()
            except RedisRefusedError as error:
                text = "lists of dead processes are not reclaimed"
                self._connections.throttled_log.warn(text, error)
            except RedisUnavailableError as error:
                logger.debug("the lease is not renewed: %s", error)
                pause = backoff.failed()
            await anyio.sleep(pause)

    async def _look_after(self) -> None:
        await self.list.renew()
        async with self._lock:
            if self.list.is_closed:
                return
            if not self.list.in_order:
                await self.list.reconcile()
            await self._acknowledge()
        await self._reclaimer.reclaim_all(but=self.list.lease.key)

    def _report_dead(self, payload: bytes) -> None:
        dead = Message(payload, MAX_DELIVERIES, self.mode)
        self._report(dead, OutcomeKind.DEAD_LETTERED)

    async def _explain(self, error: RedisUnavailableError) -> BlsError:
        """Return an error that names the wrong key or the missing right of a script."""
        if not isinstance(error, RedisRefusedError) or error.connecting:
            return error
        types = self._keys.types(self.list.lease.key)
        wrong = await find_wrong_type(self._connections.control, error, types)
        if wrong is not None or error.kind not in NOT_ALLOWED:
            return wrong or error
        self._warn(
            "mode 'reliable' does not work here: use mode='blocking' or 'compat'",
            {"mode": self.mode, "reason": error.kind},
        )
        return RedisRefusedError(
            error.kind,
            f"{error.reason}; mode 'reliable' needs BLMOVE and scripts (Redis 6.2 or "
            "newer, and the rights): use mode='blocking' or mode='compat' instead",
            address=error.address,
        )


class AckPace:
    """Decides whether acks may wait for the next fetch, and for how long.

    A batch is the commands of one fetch. The acks of a batch may wait if the first
    command of the batch before has ended within 5 ms. With slower handlers, waiting
    would save nothing.
    """

    def __init__(self) -> None:
        self.is_quick: bool = False  # whether the last batch's first command was quick
        self.defers: bool = False  # whether acks of this batch wait for the next fetch
        self._taken_at: float | None = None  # set until a command of the batch ends
        self._due: float | None = None  # when a separate request sends the waiting acks
        self._timer: asyncio.TimerHandle | None = None
        self._overdue = anyio.Event()

    def record_sent(self) -> None:
        self._due = None
        self.defers = False

    def record_taken(self, *, may_defer: bool) -> None:
        self._taken_at = time.monotonic()
        if may_defer:
            self.defers = True
            self.expect_fetch()

    def record_ended(self) -> None:
        if self._taken_at is not None:
            self.is_quick = time.monotonic() - self._taken_at < ACK_WITHIN
            self._taken_at = None

    def expect_fetch(self) -> None:
        """Let the acks of this batch wait up to 5 ms for the next fetch."""
        if self._due is None:
            self._due = time.monotonic() + ACK_WITHIN
            if self._timer is None:
                self._watch(ACK_WITHIN)

    def stop_deferring(self) -> None:
        """Let the following acks of this batch not wait for the next fetch."""
        self.defers = False

    async def overdue(self) -> None:
        """Return when acks have waited for 5 ms without a fetch."""
        await self._overdue.wait()
        self._overdue = anyio.Event()

    def _watch(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415 - import takes 20 ms

        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        """Wake :meth:`overdue` if acks have waited for 5 ms, or set the timer again.

        The timer calls this method. One timer serves many fetches, because a timer for
        each fetch would cost more.
        """
        self._timer = None
        if self._due is None:
            return
        left = self._due - time.monotonic()
        if left > 0:
            self._watch(left)
        else:
            self._due, self.defers = None, False
            self._overdue.set()
