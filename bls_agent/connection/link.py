"""One connection to Redis: made, watched, lost, left, closed.

Where to is asked anew each time (see ``route.py``), and each try is paced by a gate.
"""

from __future__ import annotations

import logging
import math
import string
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import anyio

from bls_agent.connection.after_fork import (
    count_forks,
    cut_off,
    hang_up,
    keep,
    register,
    sever,
)
from bls_agent.connection.endpoint import (
    CONNECT_TIMEOUT,
    Argument,
    Endpoint,
    RawConnection,
    Reply,
    Request,
    pack,
)
from bls_agent.connection.faults import (
    ends_connection,
    is_error_reply,
    quotes_arguments,
    translate,
)
from bls_agent.connection.gate import Gate
from bls_agent.connection.route import Direct, Place, Route
from bls_agent.connection.transport import (
    abort as abort_transport,
    bytes_received,
    descriptor_of,
    own_address,
    peer_has_closed,
    socket_of,
)
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

__all__ = ["Link", "Lost", "client_name"]

logger = logging.getLogger(__name__)

UNSHARED_TRIES: Final = 3  # of connecting, in a process that forks and forks
FAST: Final = 64_000.0  # bytes/s that a long request must pass with
SLOWEST: Final = 1_600.0  # the same after some that did not; documents promise 2,000
MOST_PATIENT: Final = 16  # times the timeout, at that rate: replies may be lost, too


class Lost(NamedTuple):
    """A connection that ended without our will.

    Attributes:
        life: The server's life at that time (see :class:`~bls_agent.connection.gate.Gate`).
        client_id: The connection's id at the server, if it told.
        address: Our end of it, as the server sees it if nobody translates addresses.
        server: Where it was; ``None`` where there is one server only.
        at: When it ended, on the clock of the event loop.
    """

    life: int
    client_id: int | None
    address: str
    server: Endpoint | None = None
    at: float = 0.0


class Link:
    """One connection, opened on first use and again after a loss.

    Attributes:
        use: What it is for: the last part of its name.
        client_id: This connection's id at the server, if it tells.
        name: What CLIENT LIST shows.
        lost: Connections that ended without our will and that the server may still
            serve.
        unkilled: Of these, what the server would not let go of; not asked again.
        owed: Replies posted for and not collected yet.
        generation: How often it was opened.
        server: Where it is connected, or was last tried.
        asking: Whether the server is not the key's own yet: each request says ASKING.
        route: The way there.
        waiting_since: When the request or the connecting that is under way began.
        retired: Whether it will never connect again: it waits for ever instead.
    """

    def __init__(
        self,
        where: Endpoint | Route,
        name: str,
        *,
        timeout: float = 5.0,
        patience: float = CONNECT_TIMEOUT,
        gate: Gate | None = None,
    ) -> None:
        """Remember the way; nothing is opened yet.

        Args:
            where: One server, or the way to the one that serves a key.
            name: Shown by CLIENT LIST.
            timeout: Deadline of one request in seconds. A long request has more time,
                up to 16 times it when it did not pass; a reply as long as some of it comes.
            patience: Deadline of connecting in seconds.
            gate: Paces the tries to connect; without one a failure is raised at once.
        """
        self.route = Direct(where) if isinstance(where, Endpoint) else where
        self.server: Endpoint | None = None
        self.waiting_since: float | None = None
        self._attempt: anyio.CancelScope | None = None
        self.asking = self._asking_answered = False
        self._asked: set[tuple[Argument, ...]] = {()}  # keys that go with ASKING
        self.use = name.rpartition(":")[2]
        self.name = client_name(name)
        self._timeout = timeout
        self._patience = patience
        self._rate = FAST
        self._gate = gate
        self._lock = anyio.Lock(fast_acquire=True)
        self._raw: RawConnection | None = None
        self.client_id: int | None = None
        self.lost: list[Lost] = []
        self.unkilled: list[Lost] = []
        self._life = 0
        self._established = False
        self._address_there = ""
        self.owed: int = 0
        self._packed: tuple[Sequence[Request], list[bytes]] = ((), [])
        self._ends = False  # what is owed is still read, and nothing more is sent
        self.generation = 0
        self.retired = False

    def __repr__(self) -> str:
        state = "open" if self.connected else "closed"
        return f"<Wire {self.name} {self.address} {state}>"

    @property
    def connected(self) -> bool:
        """Whether the connection is open as far as we know."""
        raw = self._raw
        return raw is not None and raw.is_connected and not peer_has_closed(raw)

    @property
    def engaged(self) -> bool:
        """Whether the connection is open or being opened."""
        return self._raw is not None

    @property
    def received(self) -> int | None:
        """Bytes that have arrived over the connection; ``None`` where nobody tells."""
        return bytes_received(self._raw)

    def is_at(self, server: Endpoint) -> bool:
        """Tell whether the connection is open and leads to this very server."""
        here = self.server
        return here is not None and here.address == server.address and self.connected

    @property
    def address(self) -> str:
        """Where Redis is, without credentials."""
        return self.server.address if self.server else self.route.address

    async def drop(self) -> None:
        """Give the connection up at once; its id is remembered as lost."""
        if self._raw is not None and self._established:
            self.lost = [*self.lost[-7:], self._describe_lost()]
        self.route.look_anew()
        await self._close()

    def _describe_lost(self) -> Lost:
        now = anyio.current_time()
        there, server = self._address_there, self.server
        return Lost(self._life, self.client_id, there, server, now)

    async def leave(self) -> None:
        """Give the connection up, also one that is being made: it belongs elsewhere."""
        if self._attempt is not None:
            self._attempt.deadline = -math.inf
        await self.drop()

    async def aclose(self) -> None:
        """Close the connection in order; it may be used again and then opens anew."""
        await self._close()

    def forget_parent(self) -> None:
        """In a forked child: be as if never opened; what was open stays the parent's."""
        sever(descriptor_of(self._forget()))

    def forget_loop(self) -> None:
        """Be as if never opened: the loop was closed under the connection."""
        cut_off(socket_of(self._forget()))

    def _forget(self) -> RawConnection | None:
        """Let go without a word to server and loop; no finaliser may run on it."""
        raw = self._let_go()
        self.lost, self.unkilled = [], []
        self._lock = anyio.Lock(fast_acquire=True)
        self._attempt = self.waiting_since = None
        if raw is not None:
            keep(raw)
        return raw

    def _let_go(self) -> RawConnection | None:
        """Be as if never opened, and give what was open."""
        raw, self._raw, self.owed, self.client_id = self._raw, None, 0, None
        self._established = self._ends = self.asking = self._asking_answered = False
        self._packed = ((), [])
        return raw

    async def _close(self) -> None:
        raw = self._let_go()
        if raw is None:
            return
        with anyio.CancelScope(shield=True):
            abort_transport(raw)  # TLS would wait 30 s for the server's goodbye
            try:
                await raw.disconnect(nowait=True)
            except Exception:
                logger.debug("closing %r failed", self, exc_info=True)

    async def _opened(self) -> RawConnection:
        raw = self._raw
        if raw is not None and raw.is_connected and not peer_has_closed(raw):
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
            hang_up(descriptor_of(self._raw))
            await self._close()
        await self._connect()

    async def _connect(self) -> None:
        self.waiting_since = anyio.current_time()
        try:
            await self._connect_to(await self._find())
        finally:
            self.waiting_since = None

    async def _find(self) -> Place:
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                place = await self.route.find()
        except Exception as error:
            self.server = None
            raise translate(error, self.address, connecting=True) from error
        self.server = place.server
        return place

    async def _connect_to(self, place: Place) -> None:
        self._raw = raw = place.server.make()  # from here on a child finds it
        introduction = (("CLIENT", "SETNAME", self.name), ("CLIENT", "ID"))
        try:
            with anyio.fail_after(self._patience) as self._attempt:
                await raw.connect()
                name, number, *rest = await self._exchange(
                    raw, [*introduction, *self.route.greeting]
                )
            self.route.check(rest)
        except BaseException as error:
            self._raw = raw
            self.route.look_anew()
            await self._close()
            if isinstance(error, Exception):
                cause = None if quotes_arguments(error) else error
                raise translate(error, self.address, connecting=True) from cause
            raise
        finally:
            self._attempt = None
        for reply in (name, number):
            goes_without = isinstance(reply, RedisRefusedError) and reply.kind != "auth"
            if isinstance(reply, RedisUnavailableError) and not goes_without:
                await self._close()
                raise translate(reply, self.address, connecting=True)
        self.client_id = number if isinstance(number, int) else None
        self._address_there = own_address(raw)
        self._life = self._gate.lives[self.address] if self._gate else 0
        self.asking = place.asking
        if not place.asking:
            self._asked = {()}
        self._established = True
        self.generation += 1

    async def _exchange(
        self,
        raw: RawConnection,
        requests: Sequence[Request],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reply]:
        self.waiting_since = anyio.current_time()
        try:
            replies = await self._send_and_read(raw, requests, meanwhile)
        except BaseException as error:
            await self.drop()
            if isinstance(error, Exception):
                raise translate(error, self.address, ambiguous=True) from error
            raise
        finally:
            self.waiting_since = None
        if self._gate is not None:
            self._gate.complaints.hear(requests, replies)
        if final := next(filter(ends_connection, replies), None):
            self.route.look_anew(final)
            await self._close()  # nothing is under way any more
        return replies

    async def _send_and_read(
        self,
        raw: RawConnection,
        requests: Sequence[Request],
        meanwhile: Callable[[], None] | None,
    ) -> list[Reply]:
        """Exchange them; a narrow link is no dead one: what is on its way has time.

        Raises:
            TimeoutError: Nothing more has come in time.
        """
        packed, replies = pack(requests), list[Reply]()
        received, began = bytes_received(raw), anyio.current_time()
        with anyio.move_on_after(self._time_for(packed)):
            await raw.send_packed_command(packed, check_health=False)
            if meanwhile is not None:
                meanwhile()
            while len(replies) < len(requests):
                replies.append(await self._one_reply(raw))
        while len(replies) < len(requests):
            before, received = received, bytes_received(raw)
            if received is None or received == before:
                self._learn_rate(packed, None)
                raise TimeoutError
            with anyio.move_on_after(self._timeout):
                while len(replies) < len(requests):
                    replies.append(await self._one_reply(raw))
        self._learn_rate(packed, anyio.current_time() - began)
        return replies

    def _time_for(self, packed: Sequence[bytes]) -> float:
        """Seconds until something that was sent counts as lost."""
        size = sum(map(len, packed))
        slow = min(size / self._rate, MOST_PATIENT * self._timeout)
        return max(self._timeout, size / FAST, slow)

    def _learn_rate(self, packed: Sequence[bytes], took: float | None) -> None:
        """Give long requests more time when one did not pass, and less when one did.

        So a dead link is noticed soon, and no link is too narrow for a long request.
        """
        size = sum(map(len, packed))
        if size <= SLOWEST * self._timeout:
            return
        if took is None:
            self._rate = max(SLOWEST, self._rate / 4)
        elif self._rate < FAST:
            self._rate = min(FAST, max(self._rate, size / took / 2))

    async def _one_reply(self, raw: RawConnection) -> Reply:
        try:
            return await raw.read_response(disconnect_on_error=False)
        except Exception as error:
            if not is_error_reply(error):
                raise
            return self.route.explain(translate(error, self.address))


def client_name(name: str) -> str:
    """Write a name with what CLIENT SETNAME allows: printable ASCII, no blanks."""
    allowed = string.ascii_letters + string.digits + "-_.:@/#"
    return "".join(
        letter if letter in allowed else f"%{ord(letter):x}" for letter in name
    )
