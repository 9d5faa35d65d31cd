"""One connection to Redis for any number of tasks; it opens again after a loss.

* Each request is sent at once and has a deadline (see ``transport.py``). Cancelling a
  caller affects neither other callers nor the connection. Only :meth:`Connection.read`
  and :meth:`Connection.read_many` repeat a request that may have been executed.
* Errors of redis-py are translated into errors of this package (see ``faults.py``).
* A request that belongs to another node of a cluster is sent to that node.

Each try to connect looks up the server again (see ``route.py``). A gate may delay the
tries (see ``reconnect.py``). ``blocking.py`` contains the blocking reads.
"""

from __future__ import annotations

import logging
import math
import string
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import (
    CONNECT_TIMEOUT,
    Argument,
    Endpoint,
    RawConnection,
    Reply,
    Request,
)
from bls_agent.connection.faults import ECHO, ends_connection, redirects, translate
from bls_agent.connection.orphans import OrphanedConnection, OrphanedConnections
from bls_agent.connection.outage import Outage
from bls_agent.connection.reconnect import ReconnectGate
from bls_agent.connection.route import Route
from bls_agent.connection.transport import Channel, ChannelState, Pace, abort
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

logger: logging.Logger = logging.getLogger(__name__)

REDIRECTS: Final = 3  # redirections that a request follows without a pause
ASK_AGAIN: Final = 0.25  # seconds before a request to a moving slot is sent again


class Connection:
    """One connection, opened on first use and again after a loss.

    A request passes these stages after :meth:`call`, each with a limit in seconds:

    * opening the connection: at most ``CONNECT_TIMEOUT`` to find the server, and
      ``patience`` to connect. A gate may delay the try without a limit.
    * waiting until earlier, large requests are sent: at most ``timeout``. With a gate
      there is no limit.
    * waiting for the reply (``Pace`` in ``transport.py``): ``timeout``, or more for a
      long request. After each part of the reply the time starts again.
    * repeating while the slot of a cluster moves: at most ``timeout`` until the last try.
    """

    def __init__(
        self,
        where: Endpoint | Route,
        name: str,
        *,
        timeout: float = 5.0,
        patience: float = CONNECT_TIMEOUT,
        gate: ReconnectGate | None = None,
        outage: Outage | None = None,
        strict: bool = False,
    ) -> None:
        """Open no connection yet.

        ``timeout`` and ``patience`` are the deadlines of a request and of a try to
        connect, in seconds. A long request has more time; after timeouts this time
        grows up to 16 times ``timeout``. A reply has more time while its bytes arrive.
        If ``strict``, requests and replies have no more time than ``timeout``. Without
        a ``gate``, a failure to connect is raised at once. Connections without a gate
        may share an ``outage``, so that the end of the outage is logged once.
        """
        self.route: Route = Route(where) if isinstance(where, Endpoint) else where
        self.name: str = client_name(name)
        self.server: Endpoint | None = None  # the server of the last try to connect
        self.orphans: OrphanedConnections = OrphanedConnections()
        self.generation: int = 0  # how often the connection was opened
        self.retired = False  # if true, callers that need a new connection wait forever
        self._patience = patience
        self._pace = Pace(timeout, strict=strict)
        self._gate = gate
        self._outage = gate.outage if gate else outage or Outage()
        self._opening = anyio.Lock(fast_acquire=True)
        self._attempt: anyio.CancelScope | None = None
        self._connecting_since: float | None = None
        self.channel: Channel | None = None  # carries the requests
        self._others: list[Channel] = []  # channels in state greeting or draining

    def __repr__(self) -> str:
        state = "open" if self.connected else "closed"
        return f"<Connection {self.name} {self.address} {state}>"

    def __del__(self) -> None:
        """Close the channel, because no caller can use the channel any more.

        The garbage collector may call this in any thread.
        """
        channel: Channel | None = getattr(self, "channel", None)
        if channel is not None:
            channel.close_from_anywhere()

    # --- state

    @property
    def use(self) -> str:
        return self.name.rpartition(":")[2]

    @property
    def connected(self) -> bool:
        """Whether the connection is open, as far as this process knows."""
        return self.channel is not None and self.channel.state is not ChannelState.ENDED

    @property
    def ready(self) -> bool:
        """Whether a request would be sent at once, without connecting or waiting."""
        return self.channel is not None and self.channel.state is ChannelState.OPEN

    @property
    def engaged(self) -> bool:
        return self.channel is not None or self._connecting_since is not None

    @property
    def unanswered(self) -> bool:
        """Whether the server may still work on a request."""
        return self.channel is not None and self.channel.unanswered

    @property
    def waiting_since(self) -> float | None:
        """Start time of the running try to connect, or else of the oldest request."""
        if self._connecting_since is not None or self.channel is None:
            return self._connecting_since
        return self.channel.waiting_since

    @property
    def client_id(self) -> int | None:
        """The reply of the server to CLIENT ID, or ``None`` if it is not known."""
        return self.channel.client_id if self.channel and self.connected else None

    @property
    def pending(self) -> int:
        """Number of replies to posted requests that the reader has not collected."""
        return 0 if self.channel is None else self.channel.pending

    @property
    def address(self) -> str:
        """Where Redis is, without credentials."""
        return self.server.address if self.server else self.route.address

    def is_at(self, server: Endpoint) -> bool:
        here = self.server
        return here is not None and here.address == server.address and self.connected

    # --- requests

    async def call(self, *request: Argument) -> Reply:
        """Send one request and return its reply.

        Raises RedisUnavailableError if no reply comes within the deadline, or if the
        reply is an error. If ``error.ambiguous``, Redis may have executed the request.
        """
        reply = (await self.call_many([request]))[0]
        if isinstance(reply, RedisUnavailableError):
            raise reply
        return reply

    async def call_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Send several requests in one write; the returned list contains error replies.

        Raises RedisUnavailableError if the connection failed.
        """
        if not requests:
            return []
        channel = self.channel
        if channel is None or channel.state is not ChannelState.OPEN:
            channel = await self._prepare()
        batch = channel.send(requests)
        replies = await batch.future
        if batch.refused:
            self.note_refused(channel, requests, replies)
            await self._follow(requests, replies)
        return replies

    async def _follow(self, requests: Sequence[Request], replies: list[Reply]) -> None:
        """Send redirected requests again, because no node has executed them.

        1. ``MOVED``: the request is sent at once to the node that the reply names.
        2. ``ASK``: the node does not have the key, because the slot is moving. The
           request is sent to the same node again, until the reply is ``MOVED``.
        3. A route to one node follows no redirection. A request that is redirected for
           ``timeout`` keeps its error reply. Other error replies are not changed.
        """
        end = anyio.current_time() + self._pace.timeout
        moves = 0
        while self.route.follows:
            # While a slot moves, the old node has some of its keys and the new node
            # others.
            again = [at for at, reply in enumerate(replies) if redirects(reply)]
            if not again or anyio.current_time() > end:
                return
            moves += 1
            if moves > REDIRECTS or any(replies[at].kind == "ask" for at in again):
                await anyio.sleep(ASK_AGAIN)
            asked = [requests[at] for at in again]
            try:
                answers = await self._send_again(asked)
            except RedisUnavailableError as error:
                if len(again) == len(replies):
                    raise
                answers = [error] * len(again)  # the other requests were executed
            for at, answer in zip(again, answers, strict=True):
                replies[at] = answer

    async def _send_again(self, requests: Sequence[Request]) -> list[Reply]:
        channel = await self._prepare()
        batch = channel.send(requests)
        replies = await batch.future
        self.note_refused(channel, requests, replies)
        return replies

    async def read(self, *request: Argument) -> Reply:
        """Send a request that changes nothing; repeat it if the connection is lost."""
        reply = (await self.read_many([request]))[0]
        if isinstance(reply, RedisUnavailableError):
            raise reply
        return reply

    async def read_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests that change nothing; repeat them if the connection is lost.

        After :meth:`aclose` they are not repeated, because nobody would close the new
        connection.
        """
        try:
            return await self.call_many(requests)
        except RedisUnavailableError as error:
            if error.kind != "connection" or not error.ambiguous:
                raise
        return await self.call_many(requests)

    async def _prepare(self) -> Channel:
        """Return the open channel, as soon as the channel accepts a request.

        Open the connection if needed, and wait while large requests of other callers
        are being sent.
        """
        while True:
            channel = await self.open()
            if channel.error is not None:  # the channel ended while this caller waited
                raise translate(channel.error, self.address)
            if channel.state is not ChannelState.CONGESTED:
                return channel
            text = "the requests before it take more than {} s to leave"
            await self._await_others(channel.wait_until_left, text)

    async def _await_others(
        self, wait: Callable[[], Awaitable[object]], text: str
    ) -> None:
        """Wait for other callers; without a gate, wait for at most ``timeout``."""
        most = self._pace.timeout if self._gate is None else None
        with anyio.move_on_after(most) as scope:
            await wait()
        if scope.cancelled_caught:
            reason = text.format(f"{most:g}")
            raise RedisUnavailableError("timeout", reason, address=self.address)

    def note_refused(
        self, channel: Channel, requests: Sequence[Request], replies: Sequence[Reply]
    ) -> None:
        """Log missing rights; stop using the channel after certain error replies.

        An example is READONLY, because a replica cannot execute the next write either.
        """
        if self._gate is not None:
            self._gate.throttled_log.note_denied(requests, replies)
        final = next(filter(ends_connection, replies), None)
        if final is None or channel is not self.channel:
            return
        self.route.invalidate(final)
        channel.drain()
        if not channel.pending:  # else a reader still collects replies from it
            self.channel = None
            self._others = [c for c in (*self._others, channel) if c.unanswered]

    # --- opening and closing

    async def open(self) -> Channel:
        if (channel := self.channel) is not None and channel.usable:
            return channel
        opening = self._opening
        await self._await_others(opening.acquire, "connecting takes more than {} s")
        try:
            channel = self.channel
            if channel is None or not channel.usable:
                self.channel = None
                channel = await (self._gate or self._outage).enter(self._connect)
            return channel
        finally:
            opening.release()

    async def drop(self) -> None:
        """Drop the connection without a regular close, or end a running try to connect.

        The server may still execute requests of a dropped connection. So the connection
        is remembered as an orphan (see ``orphans.py``).
        """
        channel = self._cut_short()
        if channel is not None and channel.state is not ChannelState.ENDED:
            channel.fail(ConnectionError("the connection was given up"))
        else:
            self.route.invalidate()

    async def leave_for(self, right: Endpoint) -> bool:
        """Drop the connection, unless its server is ``right``.

        Return whether the connection was dropped. A server that was killed or demoted
        ends its connections itself. A server that hangs, or that the other servers
        cannot reach, does not. Writes to such a server are lost when the server comes
        back.
        """
        if not self.engaged or self.address == right.address:
            return False
        await self.drop()
        return True

    async def aclose(self) -> None:
        """Close the connection; the next request opens it again."""
        others, self._others = self._others, []
        for channel in (self._cut_short(), *others):
            if channel is not None:
                channel.close()

    def _cut_short(self) -> Channel | None:
        """End a running try to connect; remove the channel, if any, and return it."""
        if self._attempt is not None:
            self._attempt.deadline = -math.inf
        channel, self.channel = self.channel, None
        return channel

    def note_lost(self, channel: Channel) -> None:
        """Remember a connection that was lost, and not closed, as an orphan."""
        there, at = channel.own_address, channel.ended_at
        orphan = OrphanedConnection(channel.client_id, there, channel.server, at)
        self.orphans.add(orphan)
        self.route.invalidate()

    def reset_after_fork(self) -> None:
        """In a forked child, forget all connections; the parent's sockets stay open."""
        for channel in self._reset():
            channel.reset_after_fork()

    def detach(self) -> None:
        """Forget all connections, because their event loop was closed."""
        for channel in self._reset():
            channel.detach()

    def _reset(self) -> list[Channel]:
        """Forget all channels and return them; use neither the server nor the loop."""
        channels = [*self._others, self.channel]
        self.channel = self._attempt = self._connecting_since = None
        self._others = []
        self.orphans.clear()
        self._opening = anyio.Lock(fast_acquire=True)
        return [channel for channel in channels if channel is not None]

    async def _connect(self) -> Channel:
        if self.retired:
            await anyio.sleep_forever()
        register(self)
        self._connecting_since = anyio.current_time()
        try:
            return await self._connect_to(await self._find())
        finally:
            self._attempt = self._connecting_since = None

    async def _find(self) -> Endpoint:
        try:
            with anyio.fail_after(CONNECT_TIMEOUT) as self._attempt:
                self.server = await self.route.find()
        except Exception as error:
            self.server = None
            raise translate(error, self.address, connecting=True) from error
        return self.server

    async def _connect_to(self, server: Endpoint) -> Channel:
        raw = server.make()
        channel: Channel | None = None
        try:
            with anyio.fail_after(self._patience) as self._attempt:
                await raw.connect()
                channel = Channel(raw, server, weakref.ref(self), self._pace)
                self._others.append(channel)
                await self._introduce(channel)
        except BaseException as error:
            await self._discard(raw, channel)
            if isinstance(error, Exception):
                cause = None if ECHO in str(error) else error
                raise translate(error, self.address, connecting=True) from cause
            raise
        finally:
            self._others = [
                other for other in self._others if other.state is ChannelState.DRAINING
            ]
        channel.record_greeted()
        self.channel = channel
        self.generation += 1
        return channel

    async def _introduce(self, channel: Channel) -> None:
        named = ("CLIENT", "SETNAME", self.name)
        requests = [named, ("CLIENT", "ID"), *self.route.greeting]
        replies = await channel.send(requests).future
        if self._gate is not None:
            self._gate.throttled_log.note_denied(requests, replies)
        name, number, *rest = replies
        self.route.check(rest)
        for reply in (name, number):
            goes_without = isinstance(reply, RedisRefusedError) and reply.kind != "auth"
            if isinstance(reply, RedisUnavailableError) and not goes_without:
                raise reply
        channel.client_id = number if isinstance(number, int) else None
        if channel.error is not None:  # the channel ended with the last reply
            raise channel.error

    async def _discard(self, raw: RawConnection, channel: Channel | None) -> None:
        self.route.invalidate()
        if channel is not None:
            channel.close()
            return
        with anyio.CancelScope(shield=True), suppress(Exception):
            abort(raw)  # TLS would wait 30 s for the server to close
            await raw.disconnect(nowait=True)


def client_name(name: str) -> str:
    """Return a name with only characters that CLIENT SETNAME allows; escape the others."""
    allowed = string.ascii_letters + string.digits + "-_.:@/#"
    return "".join(
        letter if letter in allowed else f"%{ord(letter):x}" for letter in name
    )
