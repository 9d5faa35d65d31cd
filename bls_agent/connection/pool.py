"""Connections by key, for programs that look at many projects over one endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument, Endpoint, Reply, Request
from bls_agent.connection.engines import Routes
from bls_agent.connection.route import Direct, Node, Route, keys_of
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import slot_of
from bls_agent.core.settings import Settings

if TYPE_CHECKING:
    from bls_agent.connection.cluster import ClusterMap

__all__ = ["ConnectionPool", "default_endpoint"]

SCAN_COUNT: Final = 1_000
FINAL: Final = ("wrong_type", "no_permission")  # another node would give the same error
ELSEWHERE: Final = ("moved", "ask", "cluster_node")  # another node is meant
MANY: Final = 1_000  # requests in one write
GLANCE: Final = 1.0  # seconds between two checks for a takeover
KEPT: Final = 8  # connections to slots of a cluster that stay open


def default_endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Read where Redis is from ``BLS_REDIS_URL``."""
    return Endpoint.of(Settings.from_env(environ).redis_url, "BLS_REDIS_URL")


class ConnectionPool:
    """One connection for all keys; on a cluster one for each slot, the latest are kept."""

    def __init__(
        self, endpoint: Endpoint, name: str, *, timeout: float, strict: bool = False
    ) -> None:
        self._strict = strict
        self._routes = Routes(endpoint)
        self._name = name
        self._timeout = timeout
        self._connections: dict[
            int, Connection
        ] = {}  # by slot, the one used last at the end
        self._users: Counter[int] = Counter()
        self._nodes: dict[Node, Connection] = {}  # of a cluster, for many keys at once
        self._node_users: Counter[Node] = Counter()
        self._glance_at = 0.0

    @asynccontextmanager
    async def to(self, key: str) -> AsyncGenerator[Connection]:
        """Give the connection to the server of a key, for as long as the block lasts."""
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
        """Ask once a second whether a server that still answers has been replaced.

        Writes to a master that was deposed and does not know it yet are lost.
        """
        now, server = anyio.current_time(), connection.server
        if server is None or not connection.connected or now < self._glance_at:
            return
        if await connection.route.glance(server):
            right = await connection.route.look()
            if right is None or right.address != server.address:
                await (
                    connection.drop()
                )  # where that is not certain, a new connect decides
            return
        self._glance_at = now + GLANCE

    def pick(self, key: str = "") -> Connection:
        """Give the connection to the server of a key; on a cluster it may soon be closed."""
        slot = self.slot_of(key)
        connection = self._connections.pop(slot, None)
        if connection is None:
            connection = self._connection(self._routes.to(key))
        self._connections[slot] = connection
        return connection

    def _connection(self, where: Route) -> Connection:
        return Connection(where, self._name, timeout=self._timeout, strict=self._strict)

    def waiting(self, key: str) -> Connection:
        """Make a connection for blocking reads of a key's slot; the caller closes it."""
        route, name = self._routes.to(key), f"{self._name}:blocking"
        return Connection(route, name, timeout=self._timeout)

    def slot_of(self, key: str) -> int:
        """Give the slot of a key, 0 without a cluster: a request stays in one slot."""
        return slot_of(key) if self._routes.cluster else 0

    async def _close_surplus(self) -> None:
        for slot in list(self._connections)[: max(0, len(self._connections) - KEPT)]:
            if not self._users[slot]:
                await self._connections.pop(slot).aclose()

    async def scan(self, pattern: str | bytes) -> AsyncIterator[bytes]:
        """Find keys by pattern on every server that holds any; never KEYS."""
        async with aclosing(self.scan_steps(pattern)) as steps:
            async for keys in steps:
                for key in keys:
                    yield key

    async def scan_steps(self, pattern: str | bytes) -> AsyncGenerator[list[bytes]]:
        """The same in steps: each gives what one SCAN found, mostly nothing."""
        async with aclosing(self.masters()) as connections:
            async for connection in connections:
                cursor, first = b"0", True
                while first or cursor != b"0":
                    first = False
                    cursor, keys = await connection.read(
                        "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT
                    )
                    yield keys

    @property
    def is_cluster(self) -> bool:
        """Whether keys lie on several servers."""
        return self._routes.cluster is not None

    @property
    def openings(self) -> int:
        """How often the connections for many keys were opened; grows after a loss."""
        connections = (self._nodes if self.is_cluster else self._connections).values()
        return sum(connection.generation for connection in connections)

    async def masters(self) -> AsyncGenerator[Connection]:
        """Give a connection to each server that holds keys; it stays open until the next."""
        cluster = self._routes.cluster
        if cluster is None:
            async with self.to("") as connection:
                yield connection
            return
        for node in await cluster.masters():
            async with self._node(cluster, node) as connection:
                yield connection

    async def call_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Send many requests, each once, a thousand in one write.

        Each request is about keys of one slot.

        Error replies stand in the list. Where keys lie on several servers, so does the
        failure of one server, in place of each of its replies; elsewhere a lost
        connection raises RedisUnavailableError.
        """
        cluster = self._routes.cluster
        if cluster is not None:
            return await self._call_nodes(cluster, requests)
        async with self.to("") as connection:
            return await _in_portions(connection.call_many, requests)

    async def read_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Send many requests that change nothing, a thousand in one write.

        As :meth:`call_many`, but repeated after a loss.
        """
        cluster = self._routes.cluster
        if cluster is not None:
            return await self._read_from_nodes(cluster, requests)
        async with self.to("") as connection:
            return await _in_portions(connection.read_many, requests)

    async def _read_from_nodes(
        self, cluster: ClusterMap, requests: Sequence[Request]
    ) -> list[Reply]:
        replies: list[Reply] = [None] * len(requests)
        for node, places in (await _by_node(cluster, requests)).items():
            async with self._node(cluster, node) as connection:
                asked = [requests[at] for at in places]
                found = await _in_portions(connection.read_many, asked)
            for at, reply in zip(places, found, strict=True):
                replies[at] = await self._follow(requests[at], reply)
        return replies

    async def _call_nodes(
        self, cluster: ClusterMap, requests: Sequence[Request]
    ) -> list[Reply]:
        replies: list[Reply] = [None] * len(requests)
        for node, places in (await _by_node(cluster, requests)).items():
            asked = [requests[at] for at in places]
            try:
                async with self._node(cluster, node) as connection:
                    found = await _in_portions(connection.call_many, asked)
            except RedisUnavailableError as error:
                cluster.distrust()
                found = [error] * len(asked)  # the other servers' keys were written
            for at, reply in zip(places, found, strict=True):
                replies[at] = await self._redirect(requests[at], reply)
        return replies

    async def _redirect(self, request: Request, reply: Reply) -> Reply:
        """Give the reply, or ask where the slot has moved: the request was not run."""
        if not isinstance(reply, RedisUnavailableError) or reply.kind not in ELSEWHERE:
            return reply
        async with self.to(_decode(keys_of(request)[0])) as connection:
            return (await connection.call_many([request]))[0]

    async def _follow(self, request: Request, reply: Reply) -> Reply:
        """Give the reply, or ask again where the slot has moved meanwhile."""
        if not isinstance(reply, RedisUnavailableError) or reply.kind in FINAL:
            return reply
        async with self.to(_decode(keys_of(request)[0])) as connection:
            return (await connection.read_many([request]))[0]

    @asynccontextmanager
    async def _node(
        self, cluster: ClusterMap, node: Node
    ) -> AsyncGenerator[Connection]:
        """Give a connection to a node, which stays open as long as the node is a master."""
        connection = self._nodes.get(node)
        if connection is None:
            server = cluster.node(*node)
            connection = self._connection(Direct(server, of_cluster=True))
            self._nodes[node] = connection
        self._node_users[node] += 1
        try:
            yield connection
        finally:
            self._node_users[node] -= 1
            await self._close_former_masters(cluster)

    async def _close_former_masters(self, cluster: ClusterMap) -> None:
        if len(self._nodes) == 1:
            return
        with suppress(RedisUnavailableError):
            for node in self._nodes.keys() - set(await cluster.masters()):
                if not self._node_users[node]:
                    await self._nodes.pop(node).aclose()

    async def read(self, key: str, name: str, *rest: Argument) -> Reply:
        """Send one request that changes nothing, about one key."""
        async with self.to(key) as connection:
            return await connection.read(name, _encode(key), *rest)

    async def call(self, key: str, name: str, *rest: Argument) -> Reply:
        """Send one request about one key, once."""
        async with self.to(key) as connection:
            return await connection.call(name, _encode(key), *rest)

    def forget_loop(self) -> None:
        """Become as never opened: the loop was closed under the connections."""
        for connection in [*self._connections.values(), *self._nodes.values()]:
            connection.forget_loop()

    async def aclose(self) -> None:
        """Close every connection; the next request opens one again."""
        for connection in [*self._connections.values(), *self._nodes.values()]:
            await connection.aclose()
            await connection.route.aclose()


async def _in_portions(
    ask: Callable[[Sequence[Request]], Awaitable[list[Reply]]],
    requests: Sequence[Request],
) -> list[Reply]:
    replies: list[Reply] = []
    for begin in range(0, len(requests), MANY):
        replies += await ask(requests[begin : begin + MANY])
    return replies


async def _by_node(
    cluster: ClusterMap, requests: Sequence[Request]
) -> dict[Node, list[int]]:
    """Give the server of each request: node → places in the list."""
    found: dict[Node, list[int]] = {}
    for at, request in enumerate(requests):
        node = await cluster.master_of(slot_of(_decode(keys_of(request)[0])))
        found.setdefault(node, []).append(at)
    return found


def _decode(key: Argument) -> str:
    return (
        key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else str(key)
    )


def _encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
