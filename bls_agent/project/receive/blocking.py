"""BLPOP: the way to receive that the console protocol recommends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.blocking import BlockingConnection
from bls_agent.connection.endpoint import CONNECT_TIMEOUT, Reply, Request
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import checked_reply
from bls_agent.project.receive.receiver import Message, Receiver

logger = logging.getLogger(__name__)

BLOCK: Final = 2  # seconds a read is parked at the server; Redis 5 wants an integer
MARGIN: Final = 1.0  # seconds a reply may be late before the server is asked
FIRST_PAUSE: Final = 0.05  # seconds from one UNBLOCK to the next, then twice as many
PATIENCE: Final = 1.5  # seconds a PING may take before another connection is asked


class BlockingRead:
    """Requests that are parked at the server over the blocking connection.

    The reply of a cancelled read stays pending, for the next call: it may hold
    commands. So does a reply that was read and not taken.
    """

    def __init__(self, connections: AgentConnections) -> None:
        self._connections = connections
        self._connection = connections.blocking
        self._blocking = BlockingConnection(connections.blocking)
        # Of the requests sent last, in their order: replies, error replies and, at the
        # end, the error of a lost connection.
        self.replies: list[Reply] = []

    async def send(self, requests: Sequence[Request]) -> None:
        """Send requests; their replies come in :meth:`wait`."""
        await self._blocking.post(requests)

    def take_replies(self) -> list[Reply]:
        """Return what has been read, once."""
        replies, self.replies = self.replies, []
        return replies

    async def wait(self) -> None:
        """Read all pending replies, and find out what is wrong when they are overdue.

        Overdue is not dead: a server may stand still, a link may be narrow. If the
        server answers PING but nothing arrives here: UNBLOCK, one more grace, then the
        connection is dropped, with kind ``deaf``.
        """
        link = self._connections.gate.connect_time  # a slow one is not a dead one
        deadline = BLOCK + MARGIN + link
        released, received = False, self._blocking.received
        while self._blocking.pending:
            try:
                await self._read_one(deadline)
            except TimeoutError:
                deadline = BLOCK + MARGIN
            else:
                continue
            before, received = received, self._blocking.received
            if received != before:
                continue
            if await self._server_answers():
                if released:
                    await self._give_up()
                await self._unblock()
                released = True
                deadline = MARGIN + link

    async def _read_one(self, patience: float) -> None:
        """Read one pending reply; TimeoutError if it takes ``patience`` seconds."""
        try:
            self.replies.append(await self._blocking.collect(patience))
        except RedisUnavailableError as error:
            self.replies.append(error)

    async def _server_answers(self) -> bool:
        """Return whether the server answers a PING over another connection.

        A refusal is an answer. The other connection may have been cut, too, so a
        connection without an answer is replaced once.
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
        with suppress(RedisUnavailableError):
            async with self._connections.admin_connection(
                self._connection.server
            ) as admin:
                return await self._blocking.unblock(admin)
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
        while self._blocking.pending:
            released = await self._unblock()
            # Where it cannot be released the block ends by itself.
            wait = pause if released else BLOCK + MARGIN
            try:
                await self._read_one(wait)
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
        self._read = BlockingRead(connections)
        self._failure: RedisUnavailableError | None = None  # of the last read
        self._stopping = False
        self._can_prefetch = True

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``.

        A failure is raised only if no command came: the other replies may hold some.
        """
        if self._stopping:
            return ()
        try:
            await self._fetch(limit)
        except RedisUnavailableError as error:
            self._failure = error
        messages = self.leftovers()
        failure, self._failure = self._failure, None
        if failure is not None and not messages:
            checked_reply(failure, self._key)
        return messages

    async def _fetch(self, limit: int) -> None:
        if not (self._connection.pending or self._read.replies):
            if self._connection.orphans:
                await self._connections.kill_orphans(self._connection, kill=False)
                if self._stopping:
                    return
            requests: list[Request] = [("BLPOP", self._key, BLOCK)]
            if limit > 1 and self._can_prefetch:
                # Waits in the server's query buffer while the BLPOP blocks: one trip.
                requests.append(("LPOP", self._key, limit - 1))
            await self._read.send(requests)
        await self._read.wait()

    def leftovers(self) -> list[Message]:
        messages: list[Message] = []
        for at, reply in enumerate(self._read.take_replies()):
            if isinstance(reply, RedisUnavailableError):
                self._note_failure(reply, is_prefetch=at > 0)
            elif reply:  # the first is the key and one command, the second commands
                messages += map(Message, reply if at else reply[1:])
        return messages

    def _note_failure(self, error: RedisUnavailableError, *, is_prefetch: bool) -> None:
        is_refused = isinstance(error, RedisRefusedError) and error.kind != "wrong_type"
        if is_prefetch and is_refused:
            self._can_prefetch = False  # no LPOP with a count before Redis 6.2
        else:
            self._failure = self._failure or error

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
        self._stopping = True
        await self._read.release()
