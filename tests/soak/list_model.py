"""A model of one list server, and of the links to it, behind the face of our connections.

It stands in for Redis in state machines alone, where thousands of histories are wanted
and every link must break at a chosen moment. What it does is what the servers do in the
tests on real ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Argument, Endpoint, Request
from bls_agent.connection.orphans import OrphanedConnection, OrphanedConnections
from bls_agent.connection.reconnect import ReconnectGate
from bls_agent.connection.transport import ChannelState
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisUnavailableError

NOWHERE = Endpoint.of("redis://127.0.0.1:1/0")  # nobody goes there


class Link:
    """One connection as the server sees it.

    Attributes:
        heard: Whether somebody still reads what the server answers.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.heard = True
        self.replies: deque[Any] = deque()
        self.parked: deque[Request] = deque()  # behind a BLPOP that waits
        self.arrived: Callable[[], None] = _nothing
        self.timer: asyncio.TimerHandle | None = None


class ListServer:
    """One list. What it handed to a link that nobody reads any more is ``swallowed``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin empty."""
        self.loop = loop
        self.list: list[bytes] = []
        self.swallowed: list[bytes] = []
        self.links: dict[int, Link] = {}
        self.number = 0

    def connect(self, name: str) -> Link:
        """Take a new connection."""
        self.number += 1
        self.links[self.number] = link = Link(self.number, name)
        return link

    def push(self, value: bytes) -> None:
        """Append to the list; who waits longest gets it."""
        self.list.append(value)
        self._serve()

    def _serve(self) -> None:
        for link in list(self.links.values()):
            if self.list and link.parked:
                self._unpark(link, [b"key", self._pop()])

    def _pop(self) -> bytes:
        return self.list.pop(0)

    def _unpark(self, link: Link, reply: Any) -> None:
        if link.timer is not None:
            link.timer.cancel()
        link.timer = None
        waiting, link.parked = list(link.parked)[1:], deque()
        self._answer(link, reply)
        self.receive(link, waiting)

    def _answer(self, link: Link, reply: Any) -> None:
        if link.heard:
            link.replies.append(reply)
            link.arrived()
        elif isinstance(reply, list):
            self.swallowed += [one for one in reply if one != b"key"]

    def receive(self, link: Link, requests: Sequence[Request]) -> None:
        """Execute requests; what stands behind a BLPOP that waits, waits too."""
        for request in requests:
            if link.parked:
                link.parked.append(request)
            elif request[0] == "BLPOP" and not self.list:
                link.parked.append(request)
                seconds = float(request[2])
                link.timer = self.loop.call_later(seconds, self._unpark, link, None)
            else:
                self._answer(link, self.execute(request))

    def execute(self, request: Request) -> Any:
        """Execute one request that does not wait."""
        match list(request):
            case ["BLPOP", *_]:
                reply: Any = [b"key", self._pop()]
            case ["LPOP", _, count]:
                reply = [self._pop() for _ in range(min(int(count), len(self.list)))]
            case ["LPUSH", _, *values]:
                for value in values:
                    self.list.insert(0, bytes(value))  # type: ignore[arg-type]
                reply = len(self.list)
                self._serve()
            case ["LRANGE", _, 0, last]:
                reply = self.list[: int(last) + 1]
            case ["EVALSHA" | "EVAL", _, 1, _, value]:
                reply = int(self.list[:1] == [value])
                self.list[:reply] = []
            case ["PING"]:
                reply = b"PONG"
            case ["CLIENT", word, *rest]:
                reply = self._manage(str(word), rest)
            case _:
                raise AssertionError(request)
        return reply

    def _manage(self, word: str, rest: Sequence[Argument]) -> Any:
        link = self.links.get(int(rest[-1]))
        if word == "LIST":
            return b"" if link is None else f"id=1 name={link.name} x".encode()
        if link is not None and word == "KILL":
            self.close(link)
        elif link is not None and link.parked:
            self._unpark(link, None)
        return 1

    def close(self, link: Link) -> None:
        """Forget a connection and what it waits for."""
        link.parked.clear()
        self.links.pop(link.number, None)


def _nothing() -> None:
    pass


class ModelWire:
    """A connection to the model; see :class:`bls_agent.connection.connection.Connection` for what each thing means.

    Attributes:
        cut_next: What happens to the next request: ``""`` nothing, ``"before"`` it is
            lost on its way, ``"after"`` its reply is.
    """

    address = "model"
    server = None  # there is but one
    received = None  # nobody counts bytes
    state = ChannelState.OPEN  # a cut shows when it is used
    waiting_since = None  # the model answers at once

    def __init__(self, server: ListServer, name: str) -> None:
        self._server = server
        self.name = name
        self.pending = 0
        self.orphans = OrphanedConnections()
        self.generation = 0
        self.cut_next = ""
        self._link: Link | None = None
        self._arrived = asyncio.Event()

    @property
    def client_id(self) -> int | None:
        """The id of the connection."""
        return None if self._link is None else self._link.number

    def is_at(self, server: object) -> bool:  # noqa: ARG002 - there is but one
        """Whether the connection is open."""
        return self._link is not None

    def _opened(self) -> Link:
        if self._link is None:
            self._link = self._server.connect(self.name)
            self._link.arrived = self._arrived.set
            self.generation += 1
        return self._link

    def break_link(self, *, server_knows: bool = False) -> None:
        """Lose the connection, and what it owes."""
        link, self._link = self._link, None
        if link is None:
            return
        link.heard = False
        for reply in link.replies:
            if isinstance(reply, list):
                self._server.swallowed += [one for one in reply if one != b"key"]
        if server_knows:
            self._server.close(link)
        else:
            self.orphans.add(OrphanedConnection(link.number, "", NOWHERE))
        self._arrived.set()

    async def drop(self) -> None:
        """Give the connection up."""
        self.break_link()
        self.pending = 0

    async def aclose(self) -> None:
        """Close in order."""
        if self._link is not None:
            self._server.close(self._link)
        self._link, self.pending = None, 0

    def _gone(self) -> RedisUnavailableError:
        self.pending = 0
        return RedisUnavailableError("connection", "cut", ambiguous=True)

    @property
    def channel(self) -> ModelWire:
        """What requests leave by: the model needs no second object for it."""
        return self

    def note_refused(self, *_: object) -> None:
        """Nothing: an error reply of the model never ends the connection."""

    def post(self, requests: Sequence[Request]) -> None:
        """Send requests whose replies are owed."""
        link = self._opened()
        self.pending += len(requests)
        cut, self.cut_next = self.cut_next, ""
        if cut == "before":
            self.break_link()
            raise self._gone()
        if cut == "after":
            link.heard = False
        self._server.receive(link, requests)
        if cut == "after":
            self.break_link()

    async def collect(self, patience: float | None = None) -> tuple[Any, Request]:
        """Wait for the next owed reply."""
        with anyio.fail_after(patience):
            return await self._next_reply(), ()

    async def _next_reply(self) -> Any:
        while True:
            if self._link is None:
                raise self._gone()
            if self._link.replies:
                self.pending -= 1
                return self._link.replies.popleft()
            self._arrived.clear()
            await self._arrived.wait()

    async def call(self, *request: Argument) -> Any:
        """Send one request and give its reply."""
        link = self._opened()
        cut, self.cut_next = self.cut_next, ""
        if cut == "before":
            self.break_link()
            raise self._gone()
        await asyncio.sleep(0)
        reply = self._server.execute(request)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.break_link()
            raise
        if cut == "after" or self._link is not link:
            self.break_link()
            raise self._gone()
        return reply

    async def call_many(self, requests: Sequence[Request]) -> list[Any]:
        """Send requests and give their replies; here they are never more than one."""
        (request,) = requests
        return [await self.call(*request)]

    async def open(self) -> None:
        """Connect."""
        self._opened()


class ModelConnections(AgentConnections):
    """The connections of one agent to the model."""

    def __init__(self, server: ListServer) -> None:
        """Make three connections."""
        self.endpoint = NOWHERE
        self.gate = ReconnectGate(Backoff())
        pool: list[Any] = [ModelWire(server, f"n:{use}") for use in "dlb"]
        self.data, self.liveness, self.blocking = pool
        self.control, self.intake = self.liveness, self.data
