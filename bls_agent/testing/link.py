"""A proxy between clients and a Redis server that can disturb their connections.

The proxy uses asyncio's streams. With anyio, a program cannot reset a connection (RST),
and a server cannot stop listening and keep its connections.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncGenerator, Callable, Container, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit

import anyio

from bls_agent.core.checks import check_count
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.redaction import mask_url

LOOPBACK: Final = "127.0.0.1"
READ_SIZE: Final = 65_536
QUEUED_READS: Final = 256
RATE_STEP: Final = 0.02  # seconds of traffic that a link with a rate writes at once
# The value of SO_LINGER with which the system sends RST, not FIN, at a close.
RESET: Final = struct.pack("ii", 1, 0)


class Direction(StrEnum):
    """The direction of bytes: from the client to the server, or back."""

    REQUESTS = "requests"
    REPLIES = "replies"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A fault of all connections that lasts until it is switched off.

    Attributes:
        direction: The direction of the bytes that the fault concerns; ``None`` for both.
    """

    direction: Direction | None = None


@dataclass(frozen=True)
class Delay(Condition):
    """Bytes arrive later. Their order and the throughput do not change."""

    seconds: float


@dataclass(frozen=True)
class Rate(Condition):
    """Each connection carries this number of bytes per second in each direction."""

    bytes_per_second: float

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0:
            rule = "more than 0 bytes per second"
            raise ConfigurationError("bytes_per_second", self.bytes_per_second, rule)


@dataclass(frozen=True)
class Slices(Condition):
    """Bytes arrive in slices of this size."""

    size: int = 1

    def __post_init__(self) -> None:
        check_count("size", self.size)


@dataclass(frozen=True)
class Hold(Condition):
    """Bytes wait until the condition ends, as in a network partition that ends."""


@dataclass(frozen=True)
class Swallow(Condition):
    """Bytes and ends of streams are lost, but the sockets stay open.

    A connection that has lost bytes transmits no more bytes in that direction, even
    after the condition has ended. New connections work.
    """


@dataclass(frozen=True)
class Refuse(Condition):
    """New connections are refused. Open connections stay open."""


C = TypeVar("C", bound=Condition)

# One action of a link: send these bytes, wait for these seconds, or break the link.
Act: TypeAlias = bytes | float | None
BREAK: Final = None
# Returns actions for the number of the connection, the direction and the bytes read.
Examine: TypeAlias = Callable[[int, Direction, bytes], Iterable[Act]]

_Queue: TypeAlias = "asyncio.Queue[tuple[float, Act]]"  # when to act, and the action
_END: Final = b""  # the action at the end of a stream
_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class CutAfter:
    """Breaks one connection after a number of bytes from the server.

    Bytes of all connections are counted together.

    Attributes:
        left: Number of bytes until the break.
        fired: Whether a connection was broken.
    """

    def __init__(self, after_bytes: int) -> None:
        self.left: int = after_bytes
        self.fired: bool = False

    def __call__(self, _: int, direction: Direction, data: bytes) -> list[Act]:
        """Pass bytes on until the number is reached, then break this connection."""
        if self.fired or direction is Direction.REQUESTS:
            return [data]
        kept, self.left = data[: self.left], self.left - len(data)
        self.fired = self.left <= 0
        acts: list[Act] = [kept] if kept else []
        return [*acts, BREAK] if self.fired else acts


class FaultProxy:
    """Forwards bytes between clients and a Redis server, and causes faults on request.

    Write ``async with FaultProxy(server_url) as proxy:``, let the clients connect to
    ``proxy.url``, and switch faults on with :meth:`during`. Use the proxy in the event
    loop in which it was opened. A handler that blocks this loop blocks the proxy, too.

    Args:
        target: The server's URL, ``redis://host:port/database``.

    Attributes:
        server: Host and port of the server to which new connections are made.
        examine: Decides what happens to each piece of bytes that is read from a
            connection; ``None`` to pass all bytes on.

    Raises:
        ConfigurationError: ``target`` is not a URL of this form.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        if parts.scheme != "redis" or not parts.hostname:
            rule = "a URL like redis://host:port/database, because a proxy reads it"
            raise ConfigurationError("redis", mask_url(target), rule)
        self._target = parts
        self.server: tuple[str, int] = (parts.hostname, parts.port or 6379)
        self._port = 0
        self._conditions: list[Condition] = []
        self._changed = asyncio.Event()  # replaced when a condition ends
        self._listener: asyncio.Server | None = None
        self._links: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self.examine: Examine | None = None

    def __repr__(self) -> str:
        return f"<FaultProxy {self._port}, {len(self._links)} connections, {self._conditions}>"

    @property
    def port(self) -> int:
        """The port on 127.0.0.1. It does not change while connections are refused."""
        return self._port

    @property
    def url(self) -> str:
        """The URL for clients: the server's URL with the proxy's host and port."""
        login, at, _ = self._target.netloc.rpartition("@")
        place = f"{login}{at}{LOOPBACK}:{self._port}"
        return urlunsplit(self._target._replace(netloc=place))

    @property
    def connections(self) -> list[int]:
        """The numbers of the open connections, which are counted from 1."""
        return [*self._links]

    @property
    def accepted(self) -> int:
        """Number of connections that were ever accepted."""
        return self._accepted

    def find(self, kind: type[C], direction: Direction) -> C | None:
        """Return the condition of this kind that was switched on last, if any."""
        for condition in reversed(self._conditions):
            if isinstance(condition, kind) and condition.direction in (None, direction):
                return condition
        return None

    def start(self, condition: C) -> C:
        """Switch a condition on, for open and for new connections, and return it."""
        self._conditions.append(condition)
        if isinstance(condition, Refuse):
            self._stop_listening()
        return condition

    async def end(self, *conditions: Condition) -> None:
        """Switch conditions off. Conditions that are not on are ignored.

        Another condition with equal values stays on.
        """
        ended = {id(condition) for condition in conditions}
        self._conditions = [one for one in self._conditions if id(one) not in ended]
        self._changed.set()
        self._changed = asyncio.Event()
        refuses = any(isinstance(one, Refuse) for one in self._conditions)
        if not refuses and self._listener is None:
            await self._listen()

    async def heal(self) -> None:
        """Switch all conditions off."""
        await self.end(*self._conditions)

    @asynccontextmanager
    async def during(self, *conditions: Condition) -> AsyncGenerator[None]:
        """Keep conditions on while the block runs."""
        for condition in conditions:
            self.start(condition)
        try:
            yield
        finally:
            await self.end(*conditions)

    async def released(self, direction: Direction) -> None:
        """Wait until no :class:`Hold` is on in this direction."""
        while self.find(Hold, direction):
            await self._changed.wait()

    def break_all(self, *, reset: bool = False) -> int:
        """Break every connection and return their number.

        Args:
            reset: Whether to reset the connections (RST) instead of closing them (FIN).
        """
        if reset:
            for link in self._links.values():
                link.reset()
        for task in self._tasks:  # also of a link that is not complete yet
            task.cancel()
        return len(self._tasks)

    def deafen(
        self, *directions: Direction, numbers: Container[int] | None = None
    ) -> None:
        """Drop all further bytes of open connections. The sockets stay open.

        Args:
            directions: The directions of the bytes.
            numbers: The numbers of the connections; ``None`` for all.
        """
        for number, link in self._links.items():
            if numbers is None or number in numbers:
                link.deaf |= {*directions}

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening and break every connection."""
        self._stop_listening()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # A cancel scope around the block must not cancel ``gather``. The error that
        # ``gather`` raises does not name the scope, so the scope would not catch it.
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # the listener closes

    async def _listen(self) -> None:
        await asyncio.sleep(0)  # a former listener closes
        self._listener = await asyncio.start_server(
            self._accept, LOOPBACK, self._port, backlog=512
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        """Accept no more connections, and close the listener in the next turn.

        asyncio drops the socket of a connection that it is accepting when the listener
        closes. In the next turn, it has accepted the connection, and this class closes
        the socket.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # the loop of Windows has no readers
            for sock in listener.sockets:
                loop.remove_reader(sock)
        loop.call_soon(listener.close)

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._listener is None:  # the connection was made before listening ended
            writer.transport.abort()
            return
        self._accepted += 1
        task = asyncio.create_task(self._carry(self._accepted, (reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The task closes the writer even if it is cancelled before its first step.
        task.add_done_callback(lambda _: writer.close())

    async def _carry(self, number: int, client: _Streams) -> None:
        with suppress(asyncio.CancelledError):  # the link breaks, or the proxy ends
            place = self.server
            try:
                server = await asyncio.open_connection(*place)
            except OSError:
                client[1].transport.abort()
                return
            if place != self.server:  # a test set another server meanwhile
                server[1].transport.abort()
                client[1].transport.abort()
                return
            link = _Link(number, self, client, server)
            self._links[number] = link
            try:
                await link.carry()
            finally:
                del self._links[number]


class _Link:
    """The connection of a client to the proxy, and its connection to the server."""

    def __init__(
        self, number: int, proxy: FaultProxy, client: _Streams, server: _Streams
    ) -> None:
        self.deaf: set[Direction] = set()  # directions in which bytes are dropped
        self._number = number
        self._proxy = proxy
        self._ways = {
            Direction.REQUESTS: (client[0], server[1]),
            Direction.REPLIES: (server[0], client[1]),
        }

    async def carry(self) -> None:
        """Carry bytes until both streams have ended, or the link breaks."""
        tasks: list[asyncio.Task[None]] = []
        for direction in Direction:
            queue: _Queue = asyncio.Queue(QUEUED_READS)
            tasks.append(asyncio.create_task(self._read(direction, queue)))
            tasks.append(asyncio.create_task(self._write(direction, queue)))
        complete = False
        try:
            await asyncio.gather(*tasks)
            complete = True
        except OSError:  # a side has closed its connection, or an action broke it
            pass
        finally:
            for task in tasks:
                task.cancel()
            for _, writer in self._ways.values():
                with suppress(RuntimeError):  # the event loop is closed
                    writer.close()
                    # A side that does not read would keep the socket open for ever.
                    if not complete and writer.transport.get_write_buffer_size():
                        writer.transport.abort()

    def reset(self) -> None:
        for _, writer in self._ways.values():
            transport = writer.transport
            with suppress(OSError):  # the socket is closed already
                transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, RESET
                )
            transport.abort()

    async def _read(self, direction: Direction, queue: _Queue) -> None:
        reader, _ = self._ways[direction]
        proxy = self._proxy
        while data := await reader.read(READ_SIZE):
            delay = proxy.find(Delay, direction)
            due = time.monotonic() + (delay.seconds if delay else 0.0)
            examine = proxy.examine
            # ``examine`` gets all bytes, even those that are dropped afterwards.
            acts = examine(self._number, direction, data) if examine else (data,)
            for act in acts:
                if not self._is_deaf(direction):
                    await queue.put((due, act))
        if not self._is_deaf(direction):
            await queue.put((0.0, _END))

    def _is_deaf(self, direction: Direction) -> bool:
        if self._proxy.find(Swallow, direction):
            self.deaf.add(direction)
        return direction in self.deaf

    async def _write(self, direction: Direction, queue: _Queue) -> None:
        _, writer = self._ways[direction]
        while True:
            due, act = await queue.get()
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            await self._proxy.released(direction)
            match act:
                case None:
                    raise ConnectionAbortedError
                case b"":
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                case bytes():
                    await self._send(direction, writer, act)
                case _:
                    await asyncio.sleep(act)

    async def _send(
        self, direction: Direction, writer: asyncio.StreamWriter, data: bytes
    ) -> None:
        start = 0
        while start < len(data):
            # A condition may end, or begin, in the middle of the data.
            rate = self._proxy.find(Rate, direction)
            slices = self._proxy.find(Slices, direction)
            size = len(data)
            if rate is not None:
                size = max(1, int(rate.bytes_per_second * RATE_STEP))
            if slices is not None:
                size = min(size, slices.size)
            part = data[start : start + size]
            start += len(part)
            writer.write(part)
            await writer.drain()
            if rate is not None:
                await asyncio.sleep(len(part) / rate.bytes_per_second)
            elif start < len(data):
                await asyncio.sleep(0)  # so that the slice is read before the next one
