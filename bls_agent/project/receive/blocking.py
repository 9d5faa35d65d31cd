"""BLPOP: the way to receive that the console protocol recommends."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import CONNECT_TIMEOUT, Reply, Request
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import checked_reply
from bls_agent.project.receive.receiver import Message, Receiver

logger = logging.getLogger(__name__)

BLOCK: Final = 2  # seconds a read is parked at the server; Redis 5 wants an integer
MARGIN: Final = 1.0  # seconds a reply may be late before the server is asked
FIRST_PAUSE: Final = 0.05  # seconds from one UNBLOCK to the next, then twice as many
PATIENCE: Final = 1.5  # seconds a PING may take before another connection is asked

_Handle = Callable[[Reply], None]


class BlockingRead:
    """A read that is parked at the server over the blocking connection.

    The reply of a cancelled read stays pending, for the next call: it may hold
    commands.
    """

    def __init__(self, connections: AgentConnections) -> None:
        self._connections = connections
        self._connection = connections.blocking
        self._handlers: Sequence[_Handle] = ()
        self._on_refused: Callable[[], None] | None = None

    async def send(
        self,
        requests: Sequence[Request],
        handlers: Sequence[_Handle],
        *,
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        """Send requests, each with the handler of its reply in :meth:`wait`.

        With ``on_refused``, all but the first request may be refused.
        """
        self._handlers, self._on_refused = handlers, on_refused
        await self._connection.post(requests)

    async def wait(self) -> None:
        """Read all pending replies, and find out what is wrong when they are late.

        Overdue is not dead: a server may stand still, a link may be narrow. If the
        server answers PING but nothing arrives here: UNBLOCK, one more grace, then the
        connection is dropped, with kind ``deaf``. An error reply is raised at the end.
        """
        link = self._connections.gate.connect_time  # a slow one is not a dead one
        deadline = BLOCK + MARGIN + link
        released, received = False, self._connection.received
        while self._connection.pending:
            try:
                await self._read_all(deadline)
            except TimeoutError:
                deadline = BLOCK + MARGIN
            else:
                continue
            before, received = received, self._connection.received
            if received != before:
                continue
            if await self._server_answers():
                if released:
                    await self._give_up()
                await self._unblock()
                released = True
                deadline = MARGIN + link

    async def _read_all(self, patience: float) -> None:
        """Read all pending replies; TimeoutError if one takes ``patience`` seconds.

        A failure is raised at the end only: the other replies may hold commands.
        """
        failure: RedisUnavailableError | None = None
        while self._connection.pending:
            try:
                await self._read_one(patience)
            except RedisUnavailableError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _read_one(self, patience: float) -> None:
        """Read one pending reply and handle it before anything is awaited."""
        at = len(self._handlers) - self._connection.pending
        try:
            reply = await self._connection.collect(patience)
        except RedisRefusedError as error:
            if self._on_refused is None or not at or error.kind == "wrong_type":
                raise
            self._on_refused()
        else:
            self._handlers[at](reply)

    async def _server_answers(self) -> bool:
        """Whether the server answers, be it by a refusal.

        The other connection may have been cut, too: one without an answer is replaced
        once.
        """
        patience = PATIENCE + 2 * self._connections.gate.connect_time
        for wait in (patience, CONNECT_TIMEOUT):
            try:
                async with self._connections.admin_connection(
                    self._connection.server
                ) as admin:
                    asked = anyio.current_time()
                    with anyio.move_on_after(wait):
                        await admin.call("PING")
                        return True
                    since = admin.waiting_since
                    if since is None or since >= asked:  # older ones have a deadline
                        await admin.drop()
            except RedisUnavailableError as error:
                if not (error.connecting or error.ambiguous):
                    return True
                with anyio.move_on_after(wait):
                    await self._connections.leave_wrong_servers()
        return False

    async def _unblock(self) -> bool:
        """End the block at the server; false if it could not be asked to."""
        number = self._connection.client_id
        if number is None:
            return False
        with suppress(RedisUnavailableError):
            async with self._connections.admin_connection(
                self._connection.server
            ) as beside:
                await beside.call("CLIENT", "UNBLOCK", number)
            return True
        return False

    async def _give_up(self) -> None:
        await self._connection.drop()
        raise RedisUnavailableError(
            "deaf",
            "the waiting connection gave no answer",
            address=self._connection.address,
            ambiguous=True,
        )

    async def release(self) -> None:
        """Release the parked read with CLIENT UNBLOCK, or wait until its block ends.

        A link that then brings nothing, while the server answers, is dead: it is
        dropped.
        """
        grace = MARGIN + self._connections.gate.connect_time
        pause, waited = FIRST_PAUSE, 0.0
        while self._connection.pending:
            released = await self._unblock()
            # Where it cannot be released the block ends by itself.
            wait = pause if released else BLOCK + MARGIN
            try:
                with suppress(RedisUnavailableError):
                    await self._read_all(wait)
                continue
            except TimeoutError:
                pause, waited = 2 * pause, waited + wait
            if waited >= grace and (released or await self._server_answers()):
                await self._connection.drop()


class BlockingReceiver(Receiver):
    """BLPOP on a connection of its own.

    Each element comes out of :meth:`receive` at most once, and stopping, cancelling and
    reconnecting lose none. Lost at most: the replies that a dying server or link
    swallowed (``prefetch`` commands each time) and what a killed process held.
    """

    def __init__(self, connections: AgentConnections, key: str) -> None:
        self._connections = connections
        self._key = key
        self._connection = connections.blocking
        self._blocking_read = BlockingRead(connections)
        self._taken: deque[Message] = deque()
        self._stopping = False
        self._can_prefetch = True

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``."""
        if not self._taken and not self._stopping:
            try:
                await self._read(limit)
            except RedisUnavailableError as error:
                if not self._taken:
                    checked_reply(error, self._key)
        return self.leftovers()

    def leftovers(self) -> list[Message]:
        """Return what was taken, once."""
        messages = list(self._taken)
        self._taken.clear()
        return messages

    async def _read(self, limit: int) -> None:
        if not self._connection.pending:
            if self._connection.orphans:
                await self._connections.kill_orphans(self._connection, kill=False)
            if self._stopping:
                return
            await self._send(limit)
        await self._blocking_read.wait()

    async def _send(self, limit: int) -> None:
        requests: list[Request] = [("BLPOP", self._key, BLOCK)]
        if limit > 1 and self._can_prefetch:
            # Waits in the server's query buffer while the BLPOP blocks: one trip.
            requests.append(("LPOP", self._key, limit - 1))
        handlers = (self._take_first, self._take)[: len(requests)]
        await self._blocking_read.send(
            requests, handlers, on_refused=self._stop_prefetching
        )

    def _take_first(self, reply: Reply) -> None:
        self._take((reply or [])[1:])

    def _take(self, reply: Reply) -> None:
        self._taken.extend(map(Message, reply or ()))

    def _stop_prefetching(self) -> None:
        self._can_prefetch = False  # no LPOP with a count before Redis 6.2

    async def give_back(self, messages: Sequence[Message]) -> bool | None:
        """LPUSH the commands to the head of the list, in their order."""
        payloads = [message.payload for message in reversed(messages)]
        if not payloads:
            return True
        try:
            await self._connections.control.call("LPUSH", self._key, *payloads)
        except RedisUnavailableError as error:
            logger.warning("%d commands not given back: %s", len(payloads), error)
            return None if error.ambiguous else False
        return True

    async def stop(self) -> None:
        """Release the parked read; what it brings is in :meth:`leftovers`."""
        self._stopping = True
        await self._blocking_read.release()
