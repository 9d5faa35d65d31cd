"""Connections to Redis, chosen by key, for programs that read many projects."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from typing import Final, TypeAlias
from weakref import WeakSet

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import (
    Argument,
    Endpoint,
    RedisSource,
    Reply,
    Request,
)
from bls_agent.connection.faults import redirects
from bls_agent.connection.route import Node, Route
from bls_agent.connection.topology import ClusterMap, Routes
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import encode_key, slot_of
from bls_agent.core.settings import Settings

SCAN_COUNT: Final = 1_000
MANY: Final = 1_000  # largest number of requests in one write
GLANCE: Final = 1.0  # seconds between two checks whether a server was replaced
# Command → position of its first key; in all other commands it is 1.
FIRST_KEY_AT: Final = {"EVAL": 3, "EVALSHA": 3, "XINFO": 2}
KEPT: Final = 8  # largest number of connections to slots of a cluster that stay open


def find_endpoint(redis: RedisSource | None = None) -> Endpoint:
    """Return where ``redis`` is; ``None`` is ``BLS_REDIS_URL`` or the default address."""
    if redis is not None:
        return Endpoint.of(redis)
    return Endpoint.of(Settings.from_env(os.environ).redis_url, "BLS_REDIS_URL")


_Ask: TypeAlias = Callable[[Connection, Sequence[Request]], Awaitable[list[Reply]]]


class ConnectionPool:
    """One connection for all keys; on a cluster one for each slot, at most 8 of them.

    More connections are open only while callers use them.
    """

    def __init__(
        self, endpoint: Endpoint, name: str, *, timeout: float, strict: bool = False
    ) -> None:
        self._strict = strict
        self._routes = Routes(endpoint)
        self._name = name
        self._timeout = timeout
        self._outage = endpoint.outage
        # Slot → connection, in the order of their last use.
        self._connections: dict[int, Connection] = {}
        self._users: Counter[int] = Counter()
        self._nodes: dict[Node, Connection] = {}  # for call_many() on a cluster
        self._blocking: WeakSet[Connection] = WeakSet()  # closed by their users
        self._glance_at = 0.0

    @asynccontextmanager
    async def to(self, key: str) -> AsyncGenerator[Connection]:
        """Yield the connection to the server of a key; keep it open in the block."""
        slot, connection = self.slot_of(key), self.pick(key)
        self._users[slot] += 1
        try:
            if self._users[slot] == 1:
                await self._leave_deposed(connection)
            yield connection
        finally:
            self._users[slot] -= 1
            await self._close_surplus()

    async def _leave_deposed(self, connection: Connection) -> None:
        """Drop the connection if its server was replaced; check at most once a second.

        On a cluster the check takes at most ``timeout``, because it may ask many nodes.
        One sentinel is asked per check, which has a deadline of its own.
        """
        now, server = anyio.current_time(), connection.server
        if server is not None and connection.connected and now >= self._glance_at:
            self._glance_at = now + GLANCE
            with anyio.move_on_after(self._timeout if self.is_cluster else None):
                await connection.leave_for(await connection.route.resolve(server))

    def pick(self, key: str = "") -> Connection:
        """Return the connection to the server of a key.

        On a cluster :meth:`to` may close this connection later, to open another one.
        """
        slot = self.slot_of(key)
        connection = self._connections.pop(slot, None)
        if connection is None:
            connection = self._connection(self._routes.to(key))
        self._connections[slot] = connection
        return connection

    def _connection(self, where: Route) -> Connection:
        return Connection(
            where,
            self._name,
            timeout=self._timeout,
            strict=self._strict,
            outage=self._outage,
        )

    def waiting(self, key: str) -> Connection:
        """Return a new connection for blocking reads of a key; the caller closes it."""
        route, name = self._routes.to(key), f"{self._name}:blocking"
        connection = Connection(route, name, timeout=self._timeout, outage=self._outage)
        self._blocking.add(connection)
        return connection

    def slot_of(self, key: str) -> int:
        """Return the slot of a key, or 0 without a cluster."""
        return slot_of(key) if self._routes.cluster else 0

    async def _close_surplus(self) -> None:
        for slot in list(self._connections)[: max(0, len(self._connections) - KEPT)]:
            if not self._users[slot]:
                await self._connections.pop(slot).aclose()

    async def scan(self, pattern: str | bytes) -> AsyncIterator[bytes]:
        """Yield the keys of all servers that match a pattern; uses the command SCAN."""
        async with aclosing(self.scan_steps(pattern)) as steps:
            async for keys in steps:
                for key in keys:
                    yield key

    async def scan_steps(self, pattern: str | bytes) -> AsyncGenerator[list[bytes]]:
        """Yield the keys of each SCAN reply; most of these lists are empty.

        If the connection is lost, the keys of its server are yielded again.
        """
        async with aclosing(self.masters()) as connections:
            async for connection in connections:
                cursor, opened = b"", 0
                while cursor != b"0":
                    following, keys = await connection.read(
                        "SCAN", cursor or b"0", "MATCH", pattern, "COUNT", SCAN_COUNT
                    )
                    if cursor and connection.generation != opened:
                        # Begin again, because another process may serve the keys, which
                        # has them in another order.
                        cursor = b""
                        continue
                    cursor, opened = following, connection.generation
                    yield keys

    @property
    def is_cluster(self) -> bool:
        return self._routes.cluster is not None

    @property
    def openings(self) -> int:
        """How often the connections for :meth:`call_many` were opened.

        If the number has grown between two reads, a connection was lost between them.
        """
        connections = (self._nodes if self.is_cluster else self._connections).values()
        return sum(connection.generation for connection in connections)

    async def masters(self) -> AsyncGenerator[Connection]:
        """Yield a connection to each server that holds keys."""
        cluster = self._routes.cluster
        if cluster is None:
            async with self.to("") as connection:
                yield connection
            return
        for node in await cluster.masters():
            yield self._node(cluster, node)

    async def call_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Send many requests, up to 1,000 in one write.

        All keys of one request must have the same slot. The returned list contains
        error replies, and on a cluster the error of a server that failed.

        Raises RedisUnavailableError if the connection is lost without a cluster, or if
        no server of the cluster serves the slot of a key; then no request was sent.
        """
        return (await self._ask_many(Connection.call_many, requests))[0]

    async def read_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests that change nothing; repeat them if the connection is lost.

        Raises RedisUnavailableError if a server fails, also on a cluster.
        """
        replies, failure = await self._ask_many(Connection.read_many, requests)
        if failure is not None:
            raise failure
        return replies

    async def _ask_many(
        self, ask: _Ask, requests: Sequence[Request]
    ) -> tuple[list[Reply], RedisUnavailableError | None]:
        """Send each server its requests; return replies, and a node's error if any."""
        cluster = self._routes.cluster
        if cluster is None:
            async with self.to("") as connection:
                return await _in_portions(ask, connection, requests), None
        replies: list[Reply] = [None] * len(requests)
        failure: RedisUnavailableError | None = None
        for node, places in (await _by_node(cluster, requests)).items():
            asked = [requests[at] for at in places]
            try:
                found = await _in_portions(ask, self._node(cluster, node), asked)
            except RedisUnavailableError as error:
                cluster.distrust()
                failure = error
                found = [error] * len(asked)
            for at, reply in zip(places, found, strict=True):
                replies[at] = reply
        return replies, await self._follow(ask, requests, replies) or failure

    async def _follow(
        self, ask: _Ask, requests: Sequence[Request], replies: list[Reply]
    ) -> RedisUnavailableError | None:
        """Send redirected requests again, slot by slot; return the last error."""
        redirected: dict[int, list[int]] = {}
        failure: RedisUnavailableError | None = None
        for at, reply in enumerate(replies):
            if redirects(reply):
                redirected.setdefault(slot_of(_key_of(requests[at])), []).append(at)
        for places in redirected.values():
            asked = [requests[at] for at in places]
            try:
                async with self.to(_key_of(asked[0])) as connection:
                    found = await ask(connection, asked)
            except RedisUnavailableError as error:
                failure = error
                found = [error] * len(asked)
            for at, reply in zip(places, found, strict=True):
                replies[at] = reply
        return failure

    def _node(self, cluster: ClusterMap, node: Node) -> Connection:
        connection = self._nodes.get(node)
        if connection is None:
            route = Route(cluster.node(*node), of_cluster=True)
            connection = self._nodes[node] = self._connection(route)
        return connection

    async def read(self, key: str, name: str, *rest: Argument) -> Reply:
        async with self.to(key) as connection:
            return await connection.read(name, encode_key(key), *rest)

    async def call(self, key: str, name: str, *rest: Argument) -> Reply:
        async with self.to(key) as connection:
            return await connection.call(name, encode_key(key), *rest)

    def detach(self) -> None:
        """Forget all open connections, because their event loop was closed."""
        opened = [*self._connections.values(), *self._nodes.values(), *self._blocking]
        for connection in opened:
            connection.detach()

    async def aclose(self) -> None:
        """Close every connection; the next request opens one again."""
        for connection in [*self._connections.values(), *self._nodes.values()]:
            await connection.aclose()
            await connection.route.aclose()


async def _in_portions(
    ask: _Ask, connection: Connection, requests: Sequence[Request]
) -> list[Reply]:
    replies: list[Reply] = []
    for begin in range(0, len(requests), MANY):
        try:
            replies += await ask(connection, requests[begin : begin + MANY])
        except RedisUnavailableError as error:
            error.ambiguous |= begin > 0  # earlier portions were executed
            raise
    return replies


async def _by_node(
    cluster: ClusterMap, requests: Sequence[Request]
) -> dict[Node, list[int]]:
    """Return each node → the indices of the requests that this node has to execute."""
    found: dict[Node, list[int]] = {}
    for at, request in enumerate(requests):
        node = await cluster.master_of(slot_of(_key_of(request)))
        found.setdefault(node, []).append(at)
    return found


def _key_of(request: Request) -> str:
    """Return the first key of a request; all other keys have the same slot."""
    at = FIRST_KEY_AT.get(str(request[0]), 1)
    if request[0] == "XREAD":
        at = request.index("STREAMS") + 1
    key = request[at]
    return (
        key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else str(key)
    )
