"""Finds one of several servers: the master with Sentinel, or a node of a cluster.

* **Sentinel.** The first sentinel that answers names the master. Each new connection
  then asks this server for its role.
* **Cluster.** If the map of slots is older than 1 s, a known node is asked for a new
  map before a connect. A MOVED reply overrides the map for one connect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint, Reply, Request, Topology
from bls_agent.connection.route import Node, Route
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import slot_of

SENTINEL_TIMEOUT: Final = 0.5  # seconds until the next sentinel is asked
NODE_TIMEOUT: Final = 1.0  # seconds until the next node is asked for the map
FRESH: Final = 1.0  # seconds after which the map of a cluster is fetched again

T = TypeVar("T")

_Failures = list[RedisUnavailableError]


async def _ask_in_turn(
    servers: Iterable[Endpoint],
    ask: Callable[[Endpoint], Awaitable[T | None]],
    failures: _Failures,
) -> T | None:
    """Return the first answer of a server; ``None`` if no server has an answer."""
    for server in servers:
        try:
            answer = await ask(server)
        except RedisUnavailableError as error:
            failures.append(error)
        else:
            if answer is not None:
                return answer
    return None


def _sum_up(
    kind: str, reason: str, failures: _Failures, address: str
) -> RedisUnavailableError:
    """Return one error for the errors of all servers; permanent if all of them are."""
    refused = all(isinstance(error, RedisRefusedError) for error in failures)
    reasons = "; ".join(str(error) for error in failures[:3])
    error = RedisRefusedError if refused else RedisUnavailableError
    return error(kind, f"{reason}: {reasons}", address=address)


class SentinelRoute(Route):
    """The route to the master of one service, shared by all connections of an agent."""

    greeting: tuple[Request, ...] = (("ROLE",),)

    def __init__(self, endpoint: Endpoint, topology: Topology) -> None:
        super().__init__(endpoint)
        self._topology = topology
        self._sentinels = list(topology.seeds)  # in the order in which they are asked
        self._open: tuple[Endpoint, Connection] | None = None  # to a sentinel

    async def find(self) -> Endpoint:
        """Ask the sentinels in turn; return the first master that one of them names."""
        failures: _Failures = []
        asked = list(self._sentinels)
        master = await _ask_in_turn(asked, self._ask, failures)
        if master is not None:
            return self._topology.node(*master)
        if len(failures) == len(asked):
            raise _sum_up("no_sentinel", "no sentinel answers", failures, self.address)
        reason = f"no sentinel knows a master named {self._topology.service!r}"
        raise RedisRefusedError("no_such_service", reason, address=self.address)

    async def _ask(self, sentinel: Endpoint) -> Node | None:
        """Ask one sentinel for the master; if it fails, it becomes the last in turn."""
        connection = _connection_to(sentinel)
        try:
            return await self._ask_over(connection)
        except RedisUnavailableError:
            self._ask_last(sentinel)
            raise
        finally:
            await connection.aclose()

    async def _ask_over(self, connection: Connection) -> Node | None:
        reply = await connection.call(
            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._topology.service
        )
        return None if reply is None else (reply[0].decode(), int(reply[1]))

    def _ask_last(self, sentinel: Endpoint) -> None:
        self._sentinels = [s for s in self._sentinels if s is not sentinel] + [sentinel]

    def check(self, replies: Sequence[Reply]) -> None:
        """Raise an error if the server of a new connection is not a master."""
        role = replies[0]
        if isinstance(role, RedisRefusedError):
            return  # the user may not call ROLE; a replica would refuse the next write
        if isinstance(role, RedisUnavailableError):
            raise role
        if role[0] != b"master":
            reason = "the server that the sentinels name is no master"
            raise RedisUnavailableError("not_master", reason)

    def invalidate(self, error: RedisUnavailableError | None = None) -> None:  # noqa: ARG002
        """Put the first sentinel last, because its answer may be out of date."""
        self._sentinels = [*self._sentinels[1:], *self._sentinels[:1]]

    async def resolve(self, server: Endpoint) -> Endpoint:
        """Return the master that a sentinel names; stay connected to that sentinel.

        If the sentinel names another server than the one in use, leave the sentinel,
        because its knowledge may be old. The next call asks the sentinel that named the
        server that is in use by then.
        """
        first = self._sentinels[0]
        sentinel, connection = self._open = self._open or (first, _connection_to(first))
        try:
            master = await self._ask_over(connection)
        except RedisUnavailableError:
            self._ask_last(sentinel)
            await self.aclose()
            return server
        found = server if master is None else self._topology.node(*master)
        if found.address != server.address:
            await self.aclose()
        return found

    async def aclose(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened[1].aclose()


def _connection_to(sentinel: Endpoint) -> Connection:
    return Connection(
        sentinel,
        "bls-agent:sentinel",
        timeout=SENTINEL_TIMEOUT,
        patience=SENTINEL_TIMEOUT,
    )


class SlotRange(NamedTuple):
    """Consecutive slots and the nodes that hold them, master first."""

    first: int
    last: int
    nodes: tuple[Node, ...]


def read_slots(reply: Reply, asked: str) -> list[SlotRange]:
    """Parse a reply to CLUSTER SLOTS; a node without a host gets the host ``asked``."""
    ranges: list[SlotRange] = []
    for first, last, *nodes in cast("Sequence[Sequence[Reply]]", reply):
        named = tuple(
            (asked if node[0] in (None, b"", b"?") else node[0].decode(), node[1])
            for node in nodes
        )
        ranges.append(SlotRange(cast("int", first), cast("int", last), named))
    return ranges


def read_redirection(reason: str, asked: str) -> Node | None:
    """Return the node that MOVED names: ``3999 127.0.0.1:6381`` or ``3999 :6381``."""
    host, _, port = reason.rpartition(" ")[2].rpartition(":")
    return (host or asked, int(port)) if port.isdecimal() else None


def _host_of(address: str) -> str:
    return urlsplit(address).hostname or ""


class ClusterMap:
    """The map of a cluster (slots and nodes), shared by all connections of an agent."""

    def __init__(self, endpoint: Endpoint, topology: Topology) -> None:
        self.endpoint = endpoint
        self.node: Callable[[str, int], Endpoint] = topology.node
        self._seeds = topology.seeds
        self._ranges: list[SlotRange] = []
        self._last: Endpoint | None = None  # node that answered last; asked first
        self._fetched = float("-inf")

    def route(self, key: str) -> KeyRoute:
        return KeyRoute(self, slot_of(key))

    def distrust(self) -> None:
        """Mark the map as outdated, so that the next use fetches a new map first."""
        self._fetched = float("-inf")

    async def master_of(self, slot: int) -> Node:
        """Return the node that serves a slot, or raise RedisUnavailableError."""
        await self._refresh()
        for first, last, nodes in self._ranges:
            if first <= slot <= last:
                return nodes[0]
        reason = f"no node serves slot {slot}"
        address = self.endpoint.address
        raise RedisUnavailableError("cluster_down", reason, address=address)

    async def masters(self) -> list[Node]:
        await self._refresh()
        return list(dict.fromkeys(nodes[0] for _, _, nodes in self._ranges))

    async def _refresh(self) -> None:
        if anyio.current_time() - self._fetched < FRESH:
            return
        failures: _Failures = []
        found = await _ask_in_turn(self._candidates(), self._ask, failures)
        if found is None:
            reason = "no node tells which serves what"
            raise _sum_up("no_map", reason, failures, self.endpoint.address)
        self._last, self._ranges = found
        self._fetched = anyio.current_time()

    def _candidates(self) -> Iterator[Endpoint]:
        """Yield each known node once: first the last that answered, then the seeds."""
        last = [] if self._last is None else [self._last]
        named = (self.node(*node) for _, _, nodes in self._ranges for node in nodes)
        seen: set[str] = set()
        for server in (*last, *self._seeds, *named):
            if server.address not in seen:
                seen.add(server.address)
                yield server

    async def _ask(self, server: Endpoint) -> tuple[Endpoint, list[SlotRange]]:
        connection = Connection(
            server, "bls-agent:map", timeout=NODE_TIMEOUT, patience=NODE_TIMEOUT
        )
        try:
            reply = await connection.call("CLUSTER", "SLOTS")
        finally:
            await connection.aclose()
        ranges = read_slots(reply, _host_of(server.address))
        if not ranges:
            reason = "the node serves no cluster"
            raise RedisUnavailableError("cluster_down", reason, address=server.address)
        return server, ranges


class KeyRoute(Route):
    """The route to the node that serves one slot."""

    follows = True

    def __init__(self, slots: ClusterMap, slot: int) -> None:
        super().__init__(slots.endpoint, of_cluster=True)
        self._map = slots
        self._slot = slot
        self._moved_to: Endpoint | None = None

    async def find(self) -> Endpoint:
        """Return the node of the last MOVED, for one connect; otherwise ask the map."""
        moved_to, self._moved_to = self._moved_to, None
        return moved_to or self._map.node(*await self._map.master_of(self._slot))

    def invalidate(self, error: RedisUnavailableError | None = None) -> None:
        """Mark the map as outdated; remember the node that a MOVED error names."""
        self._map.distrust()
        self._moved_to = None
        if error is not None and error.kind == "moved":
            node = read_redirection(error.reason, _host_of(error.address))
            self._moved_to = None if node is None else self._map.node(*node)

    async def resolve(self, server: Endpoint) -> Endpoint:
        """Ask the cluster which node serves the slot now."""
        try:
            return self._map.node(*await self._map.master_of(self._slot))
        except RedisUnavailableError:
            return server


class Routes:
    """The routes to the servers of one endpoint; they share a map or a sentinel route."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Choose the kind of routes that fits the endpoint; ask no server yet."""
        self.cluster: ClusterMap | None = None
        self._shared = Route(endpoint)
        topology = endpoint.topology
        if topology is not None and topology.kind == "sentinel":
            self._shared = SentinelRoute(endpoint, topology)
        elif topology is not None:
            self.cluster = ClusterMap(endpoint, topology)

    def to(self, key: str) -> Route:
        return self._shared if self.cluster is None else self.cluster.route(key)
