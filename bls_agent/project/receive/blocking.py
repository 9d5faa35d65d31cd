"""Receives commands with BLPOP, as the console protocol recommends."""

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
from bls_agent.project.receive.receiver import Message, PutBack, Receiver

logger: logging.Logger = logging.getLogger(__name__)

BLOCK: Final = 2  # seconds for which the server blocks a read; Redis 5 needs an integer
MARGIN: Final = 1.0  # seconds that a reply may be late before a PING is sent
FIRST_PAUSE: Final = 0.05  # seconds until the second UNBLOCK; each pause is doubled
PATIENCE: Final = 1.5  # seconds that a PING may take before the second try


class BlockingRead:
    """Sends blocking requests and reads their replies, over the blocking connection.

    If :meth:`wait` is cancelled, the next call of :meth:`wait` reads the missing
    replies, because they may contain commands. A reply that was read is kept until
    :meth:`take_replies` returns it.
    """

    def __init__(self, connections: AgentConnections) -> None:
        self._connections = connections
        self._connection = connections.blocking
        self._blocking = BlockingConnection(connections.blocking)
        # The replies to the last requests, in the order of the requests. An error reply
        # is a RedisUnavailableError. A lost connection adds its error at the end.
        self.replies: list[Reply] = []

    async def send(self, requests: Sequence[Request]) -> None:
        """Send requests; :meth:`wait` reads their replies."""
        await self._blocking.post(requests)

    def take_replies(self) -> list[Reply]:
        """Return the replies that were read. Each reply is returned only once."""
        replies, self.replies = self.replies, []
        return replies

    async def wait(self) -> None:
        """Read all pending replies. If a reply is late, check the connection.

        A late reply does not prove a lost connection, because the server may be frozen
        or the link slow. Therefore a PING is sent over another connection. If the
        server answers the PING, CLIENT UNBLOCK is sent. If nothing has arrived on the
        blocking connection after another ``MARGIN``, the connection is dropped, and an
        error of kind ``deaf`` is raised.
        """
        link = self._connections.gate.connect_time  # a slow link gets more time
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
        """Read one pending reply; raise TimeoutError after ``patience`` seconds."""
        try:
            self.replies.append(await self._blocking.collect(patience))
        except RedisUnavailableError as error:
            self.replies.append(error)

    async def _server_answers(self) -> bool:
        """Return whether the server answers a PING over the admin connection.

        An error reply counts as an answer. The admin connection may be lost, too.
        Therefore, if no answer comes, a second PING is sent over a new connection.
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
                    # A request that was sent before this PING has its own deadline.
                    if since is None or since >= asked:
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
        """End the blocking read with CLIENT UNBLOCK, and keep its reply.

        If UNBLOCK is not possible, wait until the server ends the read by itself. If no
        reply arrives although the server answers other requests, drop the connection.
        """
        grace = MARGIN + self._connections.gate.connect_time
        pause, waited = FIRST_PAUSE, 0.0
        while self._blocking.pending:
            released = await self._unblock()
            # If UNBLOCK is not possible, the read ends after BLOCK seconds.
            wait = pause if released else BLOCK + MARGIN
            try:
                await self._read_one(wait)
                continue
            except TimeoutError:
                pause, waited = 2 * pause, waited + wait
            if waited >= grace and (released or await self._server_answers()):
                await self._connection.drop()


class BlockingReceiver(Receiver):
    """Takes commands with BLPOP, on its own connection.

    :meth:`receive` returns each command at most once. Stopping, cancelling and
    reconnecting lose no command. If the server or the connection fails, one reply with
    at most ``prefetch`` commands may be lost. If the process is killed, the commands
    that it has taken are lost.
    """

    def __init__(self, connections: AgentConnections, key: str) -> None:
        self._connections = connections
        self._key = key
        self._connection = connections.blocking
        self._read = BlockingRead(connections)
        self._failure: RedisUnavailableError | None = None  # the error of the last read
        self._stopping = False
        self._can_prefetch = True

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``.

        An error is raised only if no command has come. If one reply has a command and
        another is an error, the command is returned and the error is dropped.
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
                # LPOP is sent together with BLPOP, because this saves a round trip. The
                # server executes LPOP when BLPOP has ended.
                requests.append(("LPOP", self._key, limit - 1))
            await self._read.send(requests)
        await self._read.wait()

    def leftovers(self) -> list[Message]:
        messages: list[Message] = []
        for at, reply in enumerate(self._read.take_replies()):
            if isinstance(reply, RedisUnavailableError):
                self._note_failure(reply, is_prefetch=at > 0)
            elif reply:  # BLPOP returns the key and a command, LPOP returns commands
                messages += map(Message, reply if at else reply[1:])
        return messages

    def _note_failure(self, error: RedisUnavailableError, *, is_prefetch: bool) -> None:
        is_refused = isinstance(error, RedisRefusedError) and error.kind != "wrong_type"
        if is_prefetch and is_refused:
            self._can_prefetch = False  # Redis before 6.2 has no LPOP with a count
        else:
            self._failure = self._failure or error

    async def give_back(self, messages: Sequence[Message]) -> PutBack:
        """Put the commands back to the head of the control list, in their order."""
        payloads = [message.payload for message in reversed(messages)]
        if not payloads:
            return PutBack.DONE
        try:
            await self._connections.control.call("LPUSH", self._key, *payloads)
        except RedisUnavailableError as error:
            logger.warning("%d commands not given back: %s", len(payloads), error)
            return PutBack.UNKNOWN if error.ambiguous else PutBack.REFUSED
        return PutBack.DONE

    async def rest(self) -> None:
        await self._read.release()

    async def stop(self) -> None:
        self._stopping = True
        await self.rest()
