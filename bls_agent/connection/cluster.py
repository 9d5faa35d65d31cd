"""A Redis Cluster: which node serves a key.

A connect asks any known node for the map of slots, unless the map is fresh. A
redirection (MOVED, ASK) overrides the map, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint, Reply, Topology
from bls_agent.connection.route import Node, Route
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import slot_of

__all__ = [
    "ClusterMap",
    "KeyRoute",
    "SlotRange",
    "read_redirection",
    "read_slots",
]

NODE_TIMEOUT: Final = 1.0  # seconds until the next node is asked for the map
FRESH: Final = 1.0  # seconds during which all connections believe one map


class SlotRange(NamedTuple):
    """Consecutive slots and the nodes that hold them, master first."""

    first: int
    last: int
    nodes: tuple[Node, ...]


def read_slots(reply: Reply, asked: str) -> list[SlotRange]:
    """Read the reply to CLUSTER SLOTS; a node without a host is at ``asked``."""
    ranges: list[SlotRange] = []
    for first, last, *nodes in cast("Sequence[Sequence[Reply]]", reply):
        named = tuple((_host_or(node[0], asked), node[1]) for node in nodes)
        ranges.append(SlotRange(cast("int", first), cast("int", last), named))
    return ranges


def _host_or(host: bytes | None, asked: str) -> str:
    return host.decode() if host and host != b"?" else asked


def read_redirection(reason: str, asked: str) -> Node | None:
    """Read the target of MOVED or ASK: ``3999 127.0.0.1:6381``, maybe without host."""
    host, _, port = reason.rpartition(" ")[2].rpartition(":")
    return (host or asked, int(port)) if port.isdecimal() else None


def _host_of(address: str) -> str:
    return urlsplit(address).hostname or ""


class ClusterMap:
    """What is known of a cluster, shared by all connections of an agent."""

    def __init__(self, address: str, topology: Topology) -> None:
        self.address = address
        self.node = topology.node
        self._seeds = topology.seeds
        self._ranges: list[SlotRange] = []
        self._last: Endpoint | None = None  # that answered; asked first
        self._fetched = float("-inf")

    def route(self, key: str) -> KeyRoute:
        """Give the route to the node that serves a key."""
        return KeyRoute(self, slot_of(key))

    def distrust(self) -> None:
        """Have the map fetched anew before it is used again."""
        self._fetched = float("-inf")

    async def master_of(self, slot: int) -> Node:
        """Give the node that serves a slot.

        RedisUnavailableError if no node answers, or if none serves the slot.
        """
        await self._refresh()
        for first, last, nodes in self._ranges:
            if first <= slot <= last:
                return nodes[0]
        reason = f"no node serves slot {slot}"
        raise RedisUnavailableError("cluster_down", reason, address=self.address)

    async def masters(self) -> list[Node]:
        """Give every node that serves slots, each once."""
        await self._refresh()
        return list(dict.fromkeys(nodes[0] for _, _, nodes in self._ranges))

    async def _refresh(self) -> None:
        if anyio.current_time() - self._fetched < FRESH:
            return
        failures: list[RedisUnavailableError] = []
        for server in self._candidates():
            try:
                self._ranges = await self._ask(server)
            except RedisUnavailableError as error:
                failures.append(error)
            else:
                self._last, self._fetched = server, anyio.current_time()
                return
        raise self._nobody_knows(failures)

    def _candidates(self) -> Iterator[Endpoint]:
        """Give every server worth asking, once: the last to answer, seeds, others."""
        last = [] if self._last is None else [self._last]
        named = (self.node(*node) for _, _, nodes in self._ranges for node in nodes)
        seen: set[str] = set()
        for server in (*last, *self._seeds, *named):
            if server.address not in seen:
                seen.add(server.address)
                yield server

    async def _ask(self, server: Endpoint) -> list[SlotRange]:
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
        return ranges

    def _nobody_knows(
        self, failures: Sequence[RedisUnavailableError]
    ) -> RedisUnavailableError:
        refused = all(isinstance(error, RedisRefusedError) for error in failures)
        said = "; ".join(str(error) for error in failures[:3])
        kind = RedisRefusedError if refused else RedisUnavailableError
        reason = f"no node tells which serves what: {said}"
        return kind("no_map", reason, address=self.address)


class KeyRoute(Route):
    """The route to the node that serves one slot."""

    def __init__(self, slots: ClusterMap, slot: int) -> None:
        super().__init__(slots.address)
        self._map = slots
        self._slot = slot
        self._moved_to: Endpoint | None = None

    async def find(self) -> Endpoint:
        """Follow the last MOVED, once; else use the map."""
        moved_to, self._moved_to = self._moved_to, None
        return moved_to or self._map.node(*await self._map.master_of(self._slot))

    def look_anew(self, error: RedisUnavailableError | None = None) -> None:
        """Distrust the map; remember where the slot has moved to."""
        self._map.distrust()
        moved = error is not None and error.kind == "moved"
        self._moved_to = self.target_of(error) if error is not None and moved else None

    def target_of(self, redirection: RedisUnavailableError) -> Endpoint | None:
        """Give the node that MOVED or ASK names."""
        node = read_redirection(redirection.reason, _host_of(redirection.address))
        return None if node is None else self._map.node(*node)

    async def look(self) -> Endpoint | None:
        """Ask the cluster which node serves the slot now."""
        try:
            return self._map.node(*await self._map.master_of(self._slot))
        except RedisUnavailableError:
            return None
