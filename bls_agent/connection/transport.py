"""Writes requests to one open connection, and parses the replies that arrive.

redis-py connects, authenticates and does TLS. Then :class:`Channel` takes over the
transport and passes the bytes that arrive to hiredis. Only this module uses private
attributes of redis-py; it was tested with the versions in :data:`TRIED`.

* Any number of tasks send requests at the same time, and replies come in the order of
  the requests. While the channel waits for a reply, it collects new requests and writes
  them once in each turn of the event loop.
* Cancelling a caller drops only its reply; the connection stays open.
* The oldest unanswered request has a deadline, which is later for large requests. If no
  reply arrives before the deadline, the connection is dropped.
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
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.route import Route

FAST: Final = 64_000.0  # bytes/s that a long request is expected to reach at first
SLOWEST: Final = (
    1_600.0  # bytes/s expected after timeouts; docs/promises.md promises 2,000
)
MOST_PATIENT: Final = 16  # longest time for such a request, in multiples of the timeout
# Seconds to read the bytes that arrived while the event loop was blocked.
SECOND_LOOK: Final = 0.02
CLOSED: Final = "Connection closed by server."
CLOCK_STEP: Final = 0.001  # seconds; some event loops have no finer clock
OUTBOX: Final = 65_536  # bytes; larger collections of requests are written at once
TRIED: Final = "5.2 to 8.1"  # versions of redis-py that were tested
NOTHING: Final = object()  # what hiredis returns while a reply is not complete


class Pace:
    """Computes the deadlines of requests from the speed of earlier long requests."""

    def __init__(self, timeout: float, *, strict: bool = False) -> None:
        self.timeout = timeout
        self.strict = strict
        # A request of more bytes than this is a long request.
        self.long: float = math.inf if strict else SLOWEST * timeout
        self._rate = FAST

    def time_for(self, size: int) -> float:
        """Return the seconds after which a request of ``size`` bytes counts as lost."""
        if self.strict:
            return self.timeout
        slow = min(size / self._rate, MOST_PATIENT * self.timeout)
        return max(self.timeout, size / FAST, slow)

    def learn(self, size: int, took: float | None) -> None:
        """Allow long requests more time after a timeout, and less after a reply.

        ``took`` are the seconds until the reply; ``None`` after a timeout.
        """
        if size <= self.long:
            return
        if took is None:
            self._rate = max(SLOWEST, self._rate / 4)
        elif self._rate < FAST:
            took = max(took, CLOCK_STEP)
            self._rate = min(FAST, max(self._rate, size / took / 2))


class Owner(Protocol):
    """The part of a :class:`Connection` that its channel uses."""

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

    def __init__(  # no dataclass, because that takes twice as long for each request
        self,
        requests: Sequence[Request],
        size: int,
        future: asyncio.Future[list[Reply]],
        *,
        posted: bool = False,
    ) -> None:
        self.requests: Sequence[Request] = requests
        self.size: int = size
        self.left: int = len(requests)  # number of replies that have not come
        # Gets all replies at once, unless the batch is posted.
        self.future: asyncio.Future[list[Reply]] = future
        # A posted batch has no deadline, and collect() returns its reply.
        self.posted: bool = posted
        # refused: a reply is an error. unsent: the requests are not written yet.
        self.refused: bool = False
        self.unsent: bool = False
        self.replies: list[Reply] = []
        self.began: float = 0.0  # when the batch became the oldest unanswered one
        self.sent_at: float = 0.0
        self.extended: float | None = None  # later deadline, after the first has passed
        self.received: int = 0  # bytes that the channel had received at ``began``


# A reply to a posted request, and the request.
Collected: TypeAlias = tuple[Reply, Request]


class ChannelState(Enum):
    """The state of a channel; no other changes of state occur.

    GREETING → OPEN: the server has answered the greeting
    OPEN → CONGESTED: the transport holds large requests that are not sent yet
    CONGESTED → OPEN: the transport has sent these requests
    OPEN, CONGESTED → DRAINING: only replies are awaited, no more requests are sent
    every state → ENDED: the server, a deadline, this process or a fork has ended it
    """

    GREETING = auto()
    OPEN = auto()
    CONGESTED = auto()
    DRAINING = auto()
    ENDED = auto()


class Channel:
    """One open connection, as a protocol of asyncio; it cannot be opened again.

    The class has many attributes, because each request and each reply passes through
    it, and a second class would cost another call for each of them.
    """

    def __init__(
        self,
        raw: RawConnection,
        server: Endpoint,
        owner: Callable[[], Owner | None],
        pace: Pace,
    ) -> None:
        """Take over the transport of a connection that redis-py has opened."""
        import asyncio  # noqa: PLC0415 - the import takes 20 ms

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
        self.received: int = 0  # bytes that arrived; with TLS only complete records
        self._waiter: asyncio.Future[None] | None = None
        self.state: ChannelState = ChannelState.GREETING
        self._left = asyncio.Event()  # set when congestion ends
        self.error: Exception | None = None  # why the channel ended
        self.pending: int = 0  # replies to posted requests that are not collected yet
        self._arrived: deque[Collected] = deque()
        self.client_id: int | None = None  # reply to CLIENT ID, if known
        self.server: Endpoint = server
        self.ended_at: float = 0.0  # on the clock of the event loop
        self._transport.set_protocol(cast("Any", self))
        self._left_over = unread
        self._ended = stream.at_eof() or self._transport.is_closing()

    # --- state

    @property
    def usable(self) -> bool:
        """Whether a request may be sent, at once or after requests that still wait."""
        return self.state not in (ChannelState.DRAINING, ChannelState.ENDED)

    @property
    def unanswered(self) -> bool:
        """Whether the server may still work on a request."""
        return bool(self._batches)

    @property
    def waiting_since(self) -> float | None:
        """When the oldest unanswered request began.

        ``None`` if there is no such request, or if the request has no deadline because
        it is a posted request.
        """
        oldest = self._batches[0] if self._batches else None
        return None if oldest is None or oldest.posted else oldest.began

    @property
    def socket(self) -> Any:
        """The socket, or the object that the event loop returns instead."""
        return self._transport.get_extra_info("socket")

    @property
    def own_address(self) -> str:
        """The local address of a TCP connection, as in CLIENT LIST; otherwise ``""``."""
        name = self._transport.get_extra_info("sockname")
        if not isinstance(name, tuple):
            return ""
        host, port = cast("tuple[str, int]", name)[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def send(self, requests: Sequence[Request]) -> Batch:
        """Send requests in one write; ``batch.future`` gets all replies and errors."""
        packed = self._packed(requests)
        batch = Batch(requests, len(packed), self._loop.create_future())
        self._write(packed, (batch,))
        return batch

    def post(self, requests: Sequence[Request]) -> None:
        """Send requests without a deadline; :meth:`collect` returns the replies."""
        packed, make = self._packed(requests), self._loop.create_future
        self.pending += len(requests)
        batches = [Batch([one], 0, make(), posted=True) for one in requests]
        self._write(packed, batches)

    async def collect(self, patience: float | None = None) -> Collected:
        """Return the next reply to a posted request; cancelling loses no reply.

        Raises TimeoutError after ``patience`` seconds. A timer is used for this,
        because a cancel scope takes twice as long.
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
        """Accept no more requests, and close after the last reply was collected."""
        if self.usable:
            self.state = ChannelState.DRAINING
            self._left.set()
        if not self._batches and not self.pending:
            self.close()

    def close(self) -> None:
        """Close the connection; callers that wait for a reply get an error."""
        closed = RedisUnavailableError("closed", "the connection was closed")
        self.fail(closed, is_loss=False)

    def close_from_anywhere(self) -> None:
        """Make the event loop close the connection; any thread may call this."""
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

        If there is an error ``oldest``, requests that were sent at least one timeout
        ago fail with that error instead. If ``is_loss``, the owner remembers the
        connection as an orphan, because the server may still execute its requests.
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
        self._transport.abort()  # unsent requests must not arrive later
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
        """In a forked child, stop using the parent's connection; wake no caller."""
        found = self.socket
        descriptor = -1 if found is None else int(found.fileno())
        self._end_silently("the connection belongs to another process")
        never_finalize(self)  # a finaliser would act on the event loop of the parent
        detach_fd(descriptor)

    def detach(self) -> None:
        """Drop the connection, because its event loop was closed."""
        self._end_silently("the event loop of the connection was closed")
        _close_without_loop(self._transport)

    def _end_silently(self, reason: str) -> None:
        if self.state is not ChannelState.ENDED:
            self.state, self.error = ChannelState.ENDED, ConnectionError(reason)
            self._clear()

    def _clear(self) -> list[Batch]:
        """Stop the timer, drop unsent requests, and return the unanswered requests."""
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
        """Collect small requests, and write them when this turn of the loop ends."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)
        self._outbox_size += len(data)
        if self._outbox_size > OUTBOX:  # lets the transport pause the callers at once
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
        """Parse the bytes that arrived, and pass the replies to the callers."""
        self.received += len(data)
        if self.state is ChannelState.ENDED:
            return
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not NOTHING:
                if not self._batches or isinstance(reply, self._push_type):
                    text = "Redis sends what nobody asked for"
                    raise ConnectionError(text)  # noqa: TRY301 - handled like an unreadable reply
                if isinstance(reply, Exception):
                    self._answer(self._understand(reply), refused=True)
                else:
                    self._answer(reply)
        except Exception as error:  # noqa: BLE001 - hiredis may raise other errors
            self.fail(error)

    def eof_received(self) -> None:
        """End the channel, because the server has closed the connection."""
        self.fail(ConnectionError(CLOSED))

    def connection_lost(self, error: Exception | None) -> None:
        """End the channel, because the connection was closed, perhaps by this process."""
        self.fail(error or ConnectionError(CLOSED))

    def _take_left_over(self) -> None:
        """Parse the bytes that arrived before this channel took over the transport."""
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
            self._stop_timer()  # the next deadline may be earlier than the timer
        if self._batches:
            self._begin(self._batches[0], now)
        elif self.state is ChannelState.DRAINING and not self.pending:
            self.close()

    def _understand(self, error: Exception) -> Reply:
        if classify(error) in ("connection", "timeout", "tls", "not_redis"):
            raise error  # the connection failed; this is no error reply
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
        """Start the deadline of a batch that has become the oldest unanswered batch."""
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
        """Drop the connection if the oldest request is overdue; the timer calls this.

        While bytes arrive, the deadline is extended, because the link may only be slow.
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
    """Return parser, streams and unread bytes of a connection of redis-py.

    They are removed from the connection, so that its finaliser closes nothing.
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

    ``abort()`` leaves its last step, ``_call_connection_lost()``, to the loop. The step is
    called here, because otherwise the finaliser of the transport warns of an open socket.
    """
    with suppress(RuntimeError):  # a closed loop accepts no calls
        transport.abort()
    secured = getattr(transport, "_ssl_protocol", None)
    plain: Any = transport if secured is None else getattr(secured, "_transport", None)
    opened = getattr(plain, "_sock", None)  # of asyncio; uvloop has closed its socket
    if opened is None:
        return
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)  # also ends the copy in a forked child
    with suppress(RuntimeError):  # with TLS this calls the closed loop
        plain._call_connection_lost(None)  # noqa: SLF001 - the last step of abort()


def abort(raw: RawConnection) -> None:
    writer = getattr(raw, "_writer", None)
    if writer is not None:
        writer.transport.abort()
