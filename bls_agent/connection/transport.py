"""One open connection in its event loop: requests written, replies parsed on arrival.

redis-py connects, authenticates and does TLS; then its transport is handed to
:class:`Channel`, which feeds hiredis where the bytes arrive. Only this module touches
redis-py's private attributes; :data:`TRIED` names the versions that it was tried with.

* Requests of any number of tasks go out at once; their replies come in the same order.
  While replies are awaited, further requests leave in one write per turn of the loop.
* A cancelled caller abandons its future, never the connection.
* The oldest unanswered request has a deadline that grows with its bytes. When it is
  over the connection is given up.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from bls_agent.connection.after_fork import detach_fd, never_finalize
from bls_agent.connection.endpoint import (
    Endpoint,
    RawConnection,
    Reply,
    Request,
    client_version,
    make_reader,
    packer,
    push_type,
)
from bls_agent.connection.faults import classify, translate
from bls_agent.core.errors import RedisRefusedError

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.route import Route

FAST: Final = 64_000.0  # bytes/s that a long request must pass with
SLOWEST: Final = 1_600.0  # the same after some that did not; documents promise 2,000
MOST_PATIENT: Final = 16  # times the timeout, at that rate: replies may be lost, too
SECOND_LOOK: Final = (
    0.02  # seconds for what has arrived while the event loop stood still
)
CLOSED: Final = "Connection closed by server."
CLOCK_STEP: Final = 0.001  # seconds: the clocks of some event loops are no finer
OUTBOX: Final = 65_536  # bytes that may wait for the end of the loop's turn
TRIED: Final = "5.2 to 8.1"  # versions of redis-py
NOTHING: Final = object()  # what hiredis returns while a reply is not complete


class Pace:
    """How long a request may take, learnt from long ones: links may be narrow, or dead."""

    def __init__(self, timeout: float, *, strict: bool = False) -> None:
        self.timeout = timeout
        self.strict = strict
        self.long = math.inf if strict else SLOWEST * timeout  # bytes
        self._rate = FAST

    def time_for(self, size: int) -> float:
        """The seconds until a request of so many bytes counts as lost."""
        if self.strict:
            return self.timeout
        slow = min(size / self._rate, MOST_PATIENT * self.timeout)
        return max(self.timeout, size / FAST, slow)

    def learn(self, size: int, took: float | None) -> None:
        """Allow long requests more time when one did not pass, and less when one did."""
        if size <= self.long:
            return
        if took is None:
            self._rate = max(SLOWEST, self._rate / 4)
        elif self._rate < FAST:
            took = max(took, CLOCK_STEP)
            self._rate = min(FAST, max(self._rate, size / took / 2))


class Owner(Protocol):
    """What a channel needs of the connection that it belongs to."""

    @property
    def address(self) -> str: ...

    @property
    def route(self) -> Route: ...

    def note_lost(self, channel: Channel) -> None: ...


class Batch:
    """Requests that were sent together, and their replies so far."""

    __slots__ = (
        "began", "extended", "future", "left", "posted", "received", "refused",
        "replies", "requests", "sent_at", "size", "unsent",
    )  # fmt: skip

    def __init__(  # a dataclass takes twice as long, for each request
        self,
        requests: Sequence[Request],
        size: int,
        future: asyncio.Future[list[Reply]],
        *,
        posted: bool = False,
    ) -> None:
        self.requests = requests
        self.size = size
        self.left = len(requests)  # replies that have not come
        self.future = future  # gets all replies at once, unless they are posted
        self.posted = posted  # without a deadline; replies are collected one by one
        # refused: one of the replies is an error.
        self.refused = self.unsent = False
        self.replies: list[Reply] = []
        self.began = self.sent_at = 0.0  # oldest unanswered since; sent
        self.extended: float | None = None  # deadline after the first look at it
        self.received = 0  # bytes that had arrived when it began


# A reply to a posted request, and the request.
Collected: TypeAlias = tuple[Reply, Request]


class ChannelState(Enum):
    """The state of a channel; these are all its changes.

    GREETING → OPEN: the server has answered the greeting
    OPEN → CONGESTED: the transport holds large requests that have not left
    CONGESTED → OPEN: they have left
    OPEN, CONGESTED → DRAINING: it answers what was sent, and nothing more is sent
    every state → ENDED: by the server, by a deadline, by us, or by a fork
    """

    GREETING = auto()
    OPEN = auto()
    CONGESTED = auto()
    DRAINING = auto()
    ENDED = auto()


class Channel:
    """One open connection, as a protocol of asyncio; never opens again.

    It has many attributes, because each request and each reply passes through it: a
    class more is a call more for every one of them.
    """

    def __init__(
        self, raw: RawConnection, owner: Callable[[], Owner | None], pace: Pace
    ) -> None:
        """Take over the transport of a connection that redis-py has opened."""
        import asyncio  # noqa: PLC0415 - as above

        try:
            parse_error, stream, self._writer, unread = _take_apart(cast("Any", raw))
        except AttributeError as error:
            reason = f"it is redis-py {client_version()}, tried are {TRIED}: {error}"
            raise RedisRefusedError("unsupported_client", reason) from error
        self._reader = make_reader(parse_error, NOTHING)
        self._transport: asyncio.Transport = self._writer.transport
        self._owner = owner
        self._pack = packer()
        self._push_type = push_type()
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._batches: deque[Batch] = deque()
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._timer: asyncio.TimerHandle | None = None
        self.received = 0  # bytes; with TLS only those of complete records
        self._waiter: asyncio.Future[None] | None = None
        self.state = ChannelState.GREETING
        self._left = asyncio.Event()  # set when it is congested no more
        self.error: Exception | None = None  # why it ended
        self.pending = 0  # replies to posted requests that are not collected yet
        self._arrived: deque[Collected] = deque()
        self.client_id: int | None = None  # at the server, if that is known
        self.server: Endpoint | None = None
        self.ended_at = 0.0  # on the clock of the event loop
        self._transport.set_protocol(cast("Any", self))
        self._left_over = unread
        self._ended = stream.at_eof() or self._transport.is_closing()

    # --- its state

    @property
    def usable(self) -> bool:
        """Whether a request may be sent over it, at once or when others have left."""
        return self.state not in (ChannelState.DRAINING, ChannelState.ENDED)

    @property
    def unanswered(self) -> bool:
        """Whether the server may still work on a request."""
        return bool(self._batches)

    @property
    def waiting_since(self) -> float | None:
        """When the oldest unanswered request began, if it has a deadline."""
        oldest = self._batches[0] if self._batches else None
        return None if oldest is None or oldest.posted else oldest.began

    @property
    def socket(self) -> Any:
        """The socket, or what the loop shows of it."""
        return self._transport.get_extra_info("socket")

    @property
    def own_address(self) -> str:
        """Our end of a TCP connection in the form of CLIENT LIST, or ``""``."""
        name = self._transport.get_extra_info("sockname")
        if not isinstance(name, tuple):
            return ""
        host, port = cast("tuple[str, int]", name)[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def send(self, requests: Sequence[Request]) -> Batch:
        """Send requests in one write; ``batch.future`` gets replies and error replies."""
        packed = self._packed(requests)
        batch = Batch(requests, len(packed), self._loop.create_future())
        self._write(packed, (batch,))
        return batch

    def post(self, requests: Sequence[Request]) -> None:
        """Send requests whose replies are collected one by one, however late."""
        packed, make = self._packed(requests), self._loop.create_future
        self.pending += len(requests)
        batches = [Batch([one], 0, make(), posted=True) for one in requests]
        self._write(packed, batches)

    async def collect(self, patience: float | None = None) -> Collected:
        """Wait for the next reply to a posted request; cancelling loses nothing.

        TimeoutError after ``patience`` seconds, by a timer: a cancel scope costs twice it.
        """
        if not self._arrived and self.state is not ChannelState.ENDED:
            waiter = self._waiter = self._loop.create_future()
            timer = None
            if patience is not None:
                timer = self._loop.call_later(patience, _resolve, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
        if not self._arrived:
            raise self.error or TimeoutError
        self.pending -= 1
        if self.state is ChannelState.DRAINING:
            self.drain()
        return self._arrived.popleft()

    def record_greeted(self) -> None:
        self.state = ChannelState.OPEN

    async def wait_until_left(self) -> None:
        await self._left.wait()

    def drain(self) -> None:
        """Send nothing more, and close when everything is answered and collected."""
        if self.usable:
            self.state = ChannelState.DRAINING
            self._left.set()
        if not self._batches and not self.pending:
            self.close()

    def close(self) -> None:
        """End the connection in order; waiting callers get an error."""
        self.fail(ConnectionError("the connection was closed"), is_loss=False)

    def close_from_anywhere(self) -> None:
        """Close it soon, from any thread; no caller can use it any more."""
        if self.state is not ChannelState.ENDED:
            try:
                self._loop.call_soon_threadsafe(self.close)
            except RuntimeError:  # the loop is closed
                self.detach()

    def fail(
        self,
        error: Exception,
        *,
        oldest: Exception | None = None,
        is_loss: bool = True,
    ) -> None:
        """End the connection; every unanswered request fails with ``error``.

        ``oldest`` is the error of the oldest request and of those that waited as long.
        The owner is told of a loss, because the server may go on serving the connection.
        """
        if self.state is ChannelState.ENDED:
            return
        is_loss = is_loss and self.state is not ChannelState.GREETING
        self.state, self.error = ChannelState.ENDED, error
        owner = self._owner()
        address = "" if owner is None else owner.address
        self.ended_at = now = self._loop.time()
        unanswered = self._clear()
        self._wake()
        self._left.set()
        self._transport.abort()  # what is not sent yet must not arrive later
        for batch in unanswered:
            if not (batch.posted or batch.future.done()):
                is_overdue = now - batch.sent_at >= self._pace.timeout
                reason = oldest if oldest is not None and is_overdue else error
                batch.future.set_exception(
                    translate(reason, address, ambiguous=not batch.unsent)
                )
        if owner is not None and is_loss:
            owner.note_lost(self)

    def reset_after_fork(self) -> None:
        """In a forked child: leave what is open to the parent, and wake no caller."""
        found = self.socket
        descriptor = -1 if found is None else int(found.fileno())
        self._end_silently("the connection belongs to another process")
        never_finalize(self)  # no finaliser may run
        detach_fd(descriptor)

    def detach(self) -> None:
        """Drop the connection, because its loop was closed."""
        self._end_silently("the event loop of the connection was closed")
        _close_without_loop(self._transport)

    def _end_silently(self, reason: str) -> None:
        if self.state is not ChannelState.ENDED:
            self.state, self.error = ChannelState.ENDED, ConnectionError(reason)
            self._clear()

    def _clear(self) -> list[Batch]:
        """Stop watching and sending, and return the unanswered requests."""
        self._stop_timer()
        unanswered = list(self._batches)
        self._batches.clear()
        self._outbox.clear()
        self._outbox_size = 0
        return unanswered

    # --- writing

    def _packed(self, requests: Sequence[Request]) -> bytes:
        if len(requests) == 1:
            return self._pack(tuple(requests[0]))
        return b"".join(map(self._pack, map(tuple, requests)))

    def _write(self, data: bytes, batches: Sequence[Batch]) -> None:
        now, busy = self._loop.time(), bool(self._batches)
        for batch in batches:
            batch.sent_at = now
            batch.unsent = busy
        self._batches.extend(batches)
        if busy:
            self._put_out(data)
        else:
            self._begin(batches[0], now)
            self._transport.write(data)
        if self._left_over or self._ended:
            self._take_left_over()

    def _put_out(self, data: bytes) -> None:
        """Collect the requests of one turn of the loop for one write, if they are small."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)
        self._outbox_size += len(data)
        if self._outbox_size > OUTBOX:  # the transport says at once when to pause
            self._flush()

    def _flush(self) -> None:
        if not self._outbox or self.state is ChannelState.ENDED:
            return
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._outbox_size = 0
        for batch in reversed(self._batches):
            if not batch.unsent:
                break
            batch.unsent = False
        self._transport.write(data)

    def pause_writing(self) -> None:
        if self.state is ChannelState.OPEN:
            self.state = ChannelState.CONGESTED
            self._left.clear()

    def resume_writing(self) -> None:
        if self.state is ChannelState.CONGESTED:
            self.state = ChannelState.OPEN
            self._left.set()

    # --- reading

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and answer the callers."""
        self.received += len(data)
        if self.state is ChannelState.ENDED:
            return
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not NOTHING:
                if not self._batches or isinstance(reply, self._push_type):
                    text = "Redis sends what nobody asked for"
                    raise ConnectionError(text)  # noqa: TRY301 - as any garbled reply
                if isinstance(reply, Exception):
                    self._answer(self._understand(reply), refused=True)
                else:
                    self._answer(reply)
        except Exception as error:  # noqa: BLE001 - also what hiredis raises
            self.fail(error)

    def eof_received(self) -> None:
        """End: the server has closed the connection."""
        self.fail(ConnectionError(CLOSED))

    def connection_lost(self, error: Exception | None) -> None:
        """End: the connection is closed, perhaps by us."""
        self.fail(error or ConnectionError(CLOSED))

    def _take_left_over(self) -> None:
        """Parse what came before the transport was ours, for the first request."""
        unread, self._left_over = self._left_over, b""
        if unread:
            self.data_received(unread)
        if self._ended:
            self.fail(ConnectionError(CLOSED))

    def _answer(self, reply: Reply, *, refused: bool = False) -> None:
        batch = self._batches[0]
        batch.left -= 1
        if batch.posted:
            self._arrived.append((reply, batch.requests[0]))
            self._wake()
        else:
            batch.replies.append(reply)
            batch.refused |= refused
        if batch.left:
            return
        self._batches.popleft()
        if not batch.posted and not batch.future.done():
            batch.future.set_result(batch.replies)
        now = self._loop.time()
        if batch.size > self._pace.long:
            self._pace.learn(batch.size, now - batch.sent_at)
            self._stop_timer()  # the next deadline is earlier
        if self._batches:
            self._begin(self._batches[0], now)
        elif self.state is ChannelState.DRAINING and not self.pending:
            self.close()

    def _understand(self, error: Exception) -> Reply:
        if classify(error) in ("connection", "timeout", "tls", "not_redis"):
            raise error  # no reply of the server
        owner = self._owner()
        if owner is None:
            return translate(error, "")
        return owner.route.explain(translate(error, owner.address))

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            _resolve(waiter)

    # --- the deadline of the oldest unanswered request

    def _begin(self, batch: Batch, now: float) -> None:
        """Start the time of a request, because the requests before it are answered."""
        batch.began = batch.sent_at if self._pace.strict else now
        if batch.posted:
            return
        batch.received = self.received
        if self._timer is None:
            self._watch(batch.began + self._pace.time_for(batch.size))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, due: float) -> None:
        self._timer = self._loop.call_at(due, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        """Drop the connection when the oldest request is overdue and no bytes come.

        A narrow link is not a dead one: a reply has time while its bytes arrive.
        """
        self._timer = None
        batch = self._batches[0] if self._batches else None
        if batch is None or batch.posted or self.state is ChannelState.ENDED:
            return
        now = self._loop.time()
        due = batch.extended or batch.began + self._pace.time_for(batch.size)
        if now < due:
            self._watch(due)
        elif batch.extended is None:
            batch.extended = now + SECOND_LOOK
            self._watch(batch.extended)
        elif not self._pace.strict and self.received != batch.received:
            batch.received, batch.extended = self.received, now + self._pace.timeout
            self._watch(batch.extended)
        else:
            self._pace.learn(batch.size, None)
            reason = "a request before it was not answered"
            self.fail(ConnectionError(reason), oldest=TimeoutError())


def _take_apart(raw: Any) -> tuple[Callable[[str], Exception], Any, Any, bytes]:
    """Take parser, streams and unread bytes out of a connection of redis-py.

    Its finaliser finds nothing to close afterwards.
    """
    parse_error: Callable[[str], Exception] = raw._parser.parse_error  # noqa: SLF001
    stream, writer = raw._reader, raw._writer  # noqa: SLF001
    unread = bytes(stream._buffer)  # noqa: SLF001
    raw._reader = raw._writer = None  # noqa: SLF001
    return parse_error, stream, writer, unread


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _close_without_loop(transport: asyncio.Transport) -> None:
    """Close a transport whose event loop was closed, and its socket.

    ``abort()`` leaves the last step to the loop. It is called here, because without it
    the finaliser of the transport warns of a socket that nobody has closed.
    """
    with suppress(RuntimeError):  # the loop takes no call any more
        transport.abort()
    secured = getattr(transport, "_ssl_protocol", None)
    plain: Any = transport if secured is None else getattr(secured, "_transport", None)
    opened = getattr(plain, "_sock", None)  # asyncio's; uvloop has closed its own
    if opened is None:
        return
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)  # also for a child that holds a copy
    with suppress(RuntimeError):  # TLS would tell its protocol by the loop
        plain._call_connection_lost(None)  # noqa: SLF001 - as said above


def abort(raw: RawConnection) -> None:
    writer = getattr(raw, "_writer", None)
    if writer is not None:
        writer.transport.abort()
