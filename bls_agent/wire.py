"""One connection: how bytes reach Redis and come back.

Its rules:

* every request runs under a deadline of ours, and nothing is repeated by itself;
* a reply that was not waited for stays *owed* (:attr:`Wire.owed`): cancelling a read
  loses nothing, the next read gets it;
* whatever redis-py raises becomes one of our errors here, once (see ``faults.py``).
"""

from __future__ import annotations

import logging
import string
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import anyio

from bls_agent.endpoint import (
    CONNECT_TIMEOUT,
    Argument,
    Endpoint,
    RawConnection,
    Reply,
    Request,
    pack,
)
from bls_agent.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.faults import (
    classify,
    ends_connection,
    is_error_reply,
    quotes_arguments,
    translate,
)
from bls_agent.forking import count_forks, hang_up, keep, register, sever
from bls_agent.gate import Gate

__all__ = ["Lost", "Wire"]

logger = logging.getLogger(__name__)

UNSHARED_TRIES: Final = 3  # of connecting, in a process that forks and forks
SMALL: Final = 16_384  # bytes; asyncio makes a writer wait from 64 KB on


class Lost(NamedTuple):
    """A connection that ended without our will.

    Attributes:
        life: The server's life at that time (see :class:`~bls_agent.gate.Gate`).
        client_id: The connection's id at the server, if it told.
        address: Our end of it, as the server sees it if nobody translates addresses.
    """

    life: int
    client_id: int | None
    address: str


class Wire:
    """One connection: requests out, replies in, in order.

    Opens by itself on first use and again after a loss. Any number of tasks may call
    :meth:`call`; they take turns. A blocking reader uses :meth:`post` and
    :meth:`collect` instead and has the wire for itself.

    Attributes:
        use: What the wire is for: the last part of its name.
        client_id: This connection's id at the server, if it tells.
        name: What CLIENT LIST shows.
        lost: Connections that ended without our will and that the server may still
            serve.
        owed: Replies posted for and not collected yet.
        generation: How often the wire was opened.
        retired: Whether it will never connect again: it waits for ever instead.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        *,
        timeout: float = 5.0,
        gate: Gate | None = None,
    ) -> None:
        """Remember the endpoint; nothing is opened yet.

        Args:
            endpoint: Where to.
            name: Shown by CLIENT LIST.
            timeout: Deadline of one request in seconds.
            gate: Paces the tries to connect; without one a failure is raised at once.
        """
        self._endpoint = endpoint
        self.use = name.rpartition(":")[2]
        self.name = _client_name(name)
        self._timeout = timeout
        self._gate = gate
        self._lock = anyio.Lock(fast_acquire=True)
        self._raw: RawConnection | None = None
        self.client_id: int | None = None
        self.lost: list[Lost] = []
        self._life = 0
        self._established = False
        self._address_there = ""
        self.owed = 0
        self._packed: tuple[Sequence[Request], list[bytes]] = ((), [])
        self.generation = 0
        self.retired = False

    def __repr__(self) -> str:
        state = "open" if self.connected else "closed"
        return f"<Wire {self.name} {self._endpoint.address} {state}>"

    @property
    def connected(self) -> bool:
        """Whether the connection is open as far as we know."""
        raw = self._raw
        return raw is not None and raw.is_connected and not _peer_has_closed(raw)

    @property
    def address(self) -> str:
        """Where Redis is, without credentials."""
        return self._endpoint.address

    async def call(self, *request: Argument) -> Reply:
        """Send one request and give its reply.

        Raises:
            RedisUnavailableError: No answer within the deadline, or an error reply.
                ``error.ambiguous``: it may have been executed all the same.
        """
        reply = (await self.call_many([request]))[0]
        if isinstance(reply, RedisUnavailableError):
            raise reply
        return reply

    async def call_many(
        self,
        requests: Sequence[Request],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reply]:
        """Send several requests in one write; error replies stand in the list.

        Args:
            requests: What to send.
            meanwhile: Called when they have left, before their replies are awaited.

        Raises:
            RedisUnavailableError: The connection failed; ``error.ambiguous`` as above.
        """
        async with self._lock:
            raw = await self._opened()
            return await self._exchange(raw, requests, meanwhile)

    async def read(self, *request: Argument) -> Reply:
        """Like :meth:`call`, and once more if the connection was lost.

        Only for requests that change nothing.
        """
        try:
            return await self.call(*request)
        except RedisUnavailableError as error:
            if error.kind != "connection" or not error.ambiguous:
                raise
        return await self.call(*request)

    async def open(self) -> None:
        """Connect if the wire is not connected."""
        async with self._lock:
            await self._opened()

    async def post(self, requests: Sequence[Request]) -> None:
        """Send requests without waiting; their replies are owed.

        Never cancelled half-way, because a request sent in part ends the connection.
        """
        raw = await self._opened()
        if requests is not self._packed[0]:  # a reader posts the same ones for ever
            self._packed = (requests, pack(requests))
        self.owed += len(requests)
        try:
            if _leaves_at_once(raw, self._packed[1]):
                await raw.send_packed_command(self._packed[1], check_health=False)
            else:
                with anyio.CancelScope(shield=True), anyio.fail_after(self._timeout):
                    await raw.send_packed_command(self._packed[1], check_health=False)
        except Exception as error:
            await self.drop()
            raise translate(error, self.address, ambiguous=True) from error

    async def collect(self) -> Reply:
        """Wait for the next owed reply.

        Cancelling loses nothing: the reply stays owed and the next call gets it.

        Raises:
            RedisUnavailableError: An error reply, or the connection was lost and with
                it what was owed.
        """
        if self._raw is None:
            raise RedisUnavailableError(
                "connection", "the connection is closed", address=self.address
            )
        try:
            reply = await self._raw.read_response(disconnect_on_error=False)
        except Exception as error:
            drop = classify(error).drop
            translated = translate(error, self.address, ambiguous=drop)
            if drop:
                await self.drop()
            else:
                if self._gate is not None:
                    self._gate.complaints.hear(
                        self._packed[0][-self.owed :], [translated]
                    )
                self.owed -= 1
            raise translated from error
        self.owed -= 1
        return reply

    async def drop(self) -> None:
        """Give the connection up at once; its id is remembered as lost."""
        if self._raw is not None and self._established:
            lost = Lost(self._life, self.client_id, self._address_there)
            self.lost = [*self.lost[-7:], lost]
        await self._close()

    async def aclose(self) -> None:
        """Close the connection in order; it may be used again and then opens anew."""
        await self._close()

    def forget_parent(self) -> None:
        """Be as if never opened; what was open stays with the parent.

        For a forked child, and for a loop that was closed under the connection: nothing
        is said to the server and nothing to the loop.
        """
        raw, self._raw, self.owed, self.client_id = self._raw, None, 0, None
        self._established = False
        self.lost = []
        self._lock = anyio.Lock(fast_acquire=True)
        if raw is not None:
            keep(raw)
            sever(_descriptor(raw))

    async def _close(self) -> None:
        raw, self._raw, self.owed, self.client_id = self._raw, None, 0, None
        self._established = False
        if raw is None:
            return
        with anyio.CancelScope(shield=True):
            _abort_transport(raw)  # TLS would wait 30 s for the server's goodbye
            try:
                await raw.disconnect(nowait=True)
            except Exception:
                logger.debug("closing %r failed", self, exc_info=True)

    async def _opened(self) -> RawConnection:
        raw = self._raw
        if raw is not None and raw.is_connected and not _peer_has_closed(raw):
            return raw
        if raw is not None:
            await self.drop()
        if self._gate is None:
            await self._connect_unshared()
        else:
            await self._gate.enter(self._connect_unshared)
        return cast("RawConnection", self._raw)

    async def _connect_unshared(self) -> None:
        """Connect, and anew if a child was forked meanwhile.

        It holds a copy of a socket of which nobody has told it. Such a connection
        would live on at the server when ours is closed; hanging up ends it for both.
        """
        if self.retired:
            await anyio.sleep_forever()
        register(self)
        for _ in range(UNSHARED_TRIES):
            before = count_forks()
            await self._connect()
            if count_forks() == before:
                return
            hang_up(_descriptor(self._raw))
            await self._close()
        await self._connect()

    async def _connect(self) -> None:
        self._raw = raw = self._endpoint.make()  # from here on a child finds it
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                await raw.connect()
                name, number = await self._exchange(
                    raw, [("CLIENT", "SETNAME", self.name), ("CLIENT", "ID")]
                )
        except BaseException as error:
            self._raw = raw
            await self._close()
            if isinstance(error, Exception):
                cause = None if quotes_arguments(error) else error
                raise translate(error, self.address, connecting=True) from cause
            raise
        for reply in (name, number):
            goes_without = isinstance(reply, RedisRefusedError) and reply.kind != "auth"
            if isinstance(reply, RedisUnavailableError) and not goes_without:
                await self._close()
                raise translate(reply, self.address, connecting=True)
        self.client_id = number if isinstance(number, int) else None
        self._address_there = _own_address(raw)
        self._life = self._gate.server_life if self._gate else 0
        self._established = True
        self.generation += 1

    async def _exchange(
        self,
        raw: RawConnection,
        requests: Sequence[Request],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reply]:
        try:
            with anyio.fail_after(self._timeout):
                await raw.send_packed_command(pack(requests), check_health=False)
                if meanwhile is not None:
                    meanwhile()
                replies = [await self._one_reply(raw) for _ in requests]
        except BaseException as error:
            await self.drop()
            if isinstance(error, Exception):
                raise translate(error, self.address, ambiguous=True) from error
            raise
        if self._gate is not None:
            self._gate.complaints.hear(requests, replies)
        if any(ends_connection(reply) for reply in replies):
            await self.drop()
        return replies

    async def _one_reply(self, raw: RawConnection) -> Reply:
        try:
            return await raw.read_response(disconnect_on_error=False)
        except Exception as error:
            if not is_error_reply(error):
                raise
            return translate(error, self.address)


def _peer_has_closed(raw: RawConnection) -> bool:
    """Notice an end of file that the event loop has already seen."""
    reader = getattr(raw, "_reader", None)
    return reader is not None and bool(reader.at_eof())


def _leaves_at_once(raw: RawConnection, packed: Sequence[bytes]) -> bool:
    """Tell whether a request goes to the system in one step, with nothing to wait for."""
    writer = getattr(raw, "_writer", None)
    return (
        writer is not None
        and not writer.transport.get_write_buffer_size()
        and sum(map(len, packed)) < SMALL
    )


def _own_address(raw: RawConnection) -> str:
    """Give our end of a TCP connection in the form of CLIENT LIST, or ``""``."""
    writer = getattr(raw, "_writer", None)
    name = writer.get_extra_info("sockname") if writer is not None else None
    if not isinstance(name, tuple):
        return ""
    host, port = cast("tuple[str, int]", name)[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _abort_transport(raw: RawConnection) -> None:
    """Throw away what is not sent yet, so that it cannot arrive later."""
    writer = getattr(raw, "_writer", None)
    if writer is not None:
        writer.transport.abort()


def _descriptor(raw: RawConnection | None) -> int:
    """Give the number of a connection's socket, or -1 if there is none any more."""
    writer = getattr(raw, "_writer", None)
    socket = writer.get_extra_info("socket") if writer is not None else None
    return -1 if socket is None else int(socket.fileno())


def _client_name(name: str) -> str:
    """Write a name with what CLIENT SETNAME allows: printable ASCII, no blanks."""
    allowed = string.ascii_letters + string.digits + "-_.:@/#"
    return "".join(
        letter if letter in allowed else f"%{ord(letter):x}" for letter in name
    )
