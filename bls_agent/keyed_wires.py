"""Wires by key, for programs that look at many projects over one endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.endpoint import Argument, Endpoint, Reply
from bls_agent.engines import Routes
from bls_agent.errors import RedisUnavailableError
from bls_agent.names import slot_of
from bls_agent.wire import Wire

if TYPE_CHECKING:
    from bls_agent.cluster import ClusterMap

__all__ = ["KeyedWires"]

SCAN_COUNT: Final = 1_000
GET_KEYS: Final = 500
GLANCE: Final = 1.0  # seconds between two questions whether somebody took over
KEPT: Final = 8  # wires to slots of a cluster that stay open


class KeyedWires:
    """One wire for all keys; on a cluster one for each slot, the latest of them kept."""

    def __init__(self, endpoint: Endpoint, name: str, *, timeout: float) -> None:
        """Remember where to; nothing is opened yet."""
        self._routes = Routes(endpoint)
        self._name = name
        self._timeout = timeout
        self._wires: dict[int, Wire] = {}  # by slot, the one used last at the end
        self._users: Counter[int] = Counter()
        self._glance_at = 0.0

    @asynccontextmanager
    async def to(self, key: str) -> AsyncGenerator[Wire]:
        """Give the wire to the server of a key, for as long as the block lasts."""
        slot, wire = self._slot_of(key), self.pick(key)
        self._users[slot] += 1
        try:
            if self._users[slot] == 1:
                await self._leave_deposed(wire)
            yield wire
        finally:
            self._users[slot] -= 1
            await self._close_surplus()

    async def _leave_deposed(self, wire: Wire) -> None:
        """Ask once a second whether somebody has taken over from a server that lives on.

        What is written to a master that was deposed and not told yet is lost.
        """
        now, server = anyio.current_time(), wire.server
        if server is None or not wire.connected or now < self._glance_at:
            return
        if await wire.route.glance(server):
            right = await wire.route.look()
            if right is None or right.address != server.address:
                await wire.leave()  # if nobody surely knows, find out by connecting
            return
        self._glance_at = now + GLANCE

    def pick(self, key: str = "") -> Wire:
        """Give the wire to the server of a key; on a cluster it may soon be closed."""
        slot = self._slot_of(key)
        wire = self._wires.pop(slot, None)
        if wire is None:
            wire = Wire(self._routes.to(key), self._name, timeout=self._timeout)
        self._wires[slot] = wire
        return wire

    def _slot_of(self, key: str) -> int:
        return slot_of(key) if self._routes.cluster else 0

    async def _close_surplus(self) -> None:
        for slot in list(self._wires)[: max(0, len(self._wires) - KEPT)]:
            if not self._users[slot]:
                await self._wires.pop(slot).aclose()

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """Find keys by pattern on every server that holds any; never KEYS."""
        async with aclosing(self._masters()) as wires:
            async for wire in wires:
                cursor, first = b"0", True
                while first or cursor != b"0":
                    first = False
                    cursor, keys = await wire.read(
                        "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT
                    )
                    for key in keys:
                        yield key

    async def _masters(self) -> AsyncGenerator[Wire]:
        cluster = self._routes.cluster
        if cluster is None:
            async with self.to("") as wire:
                yield wire
            return
        for node in await cluster.masters():
            async with self._passing(cluster.node(*node)) as wire:
                yield wire

    @asynccontextmanager
    async def _passing(self, server: Endpoint) -> AsyncGenerator[Wire]:
        wire = Wire(server, self._name, timeout=self._timeout)
        try:
            yield wire
        finally:
            await wire.aclose()

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read many strings; ``None`` for a key that is absent or of another type.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        cluster = self._routes.cluster
        if cluster is not None:
            return await self._get_from_nodes(cluster, keys)
        found: list[bytes | None] = []
        async with self.to("") as wire:
            for begin in range(0, len(keys), GET_KEYS):
                encoded = map(_encode, keys[begin : begin + GET_KEYS])
                found.extend(await wire.read("MGET", *encoded))
        return found

    async def _get_from_nodes(
        self, cluster: ClusterMap, keys: Sequence[str]
    ) -> list[bytes | None]:
        by_node: dict[tuple[str, int], list[str]] = {}
        for key in keys:
            by_node.setdefault(await cluster.master_of(slot_of(key)), []).append(key)
        found: dict[str, bytes | None] = {}
        for node, group in by_node.items():
            async with self._passing(cluster.node(*node)) as wire:
                for begin in range(0, len(group), GET_KEYS):
                    part = group[begin : begin + GET_KEYS]
                    requests = [("GET", _encode(key)) for key in part]
                    replies = await wire.call_many(requests)
                    for key, reply in zip(part, replies, strict=True):
                        found[key] = await self._value(key, reply)
        return [found[key] for key in keys]

    async def _value(self, key: str, reply: Reply) -> bytes | None:
        """Take a reply, or ask again where the slot has moved meanwhile."""
        if isinstance(reply, RedisUnavailableError) and reply.kind != "wrong_type":
            async with self.to(key) as wire:
                reply = (await wire.call_many([("GET", _encode(key))]))[0]
        if not isinstance(reply, RedisUnavailableError):
            found: bytes | None = reply
            return found
        if reply.kind != "wrong_type":
            raise reply
        return None

    async def read(self, key: str, name: str, *rest: Argument) -> Reply:
        """Send one request that changes nothing, about one key."""
        async with self.to(key) as wire:
            return await wire.read(name, _encode(key), *rest)

    async def call(self, key: str, name: str, *rest: Argument) -> Reply:
        """Send one request about one key, once."""
        async with self.to(key) as wire:
            return await wire.call(name, _encode(key), *rest)

    async def aclose(self) -> None:
        """Close every wire; the next request opens one again."""
        for wire in list(self._wires.values()):
            await wire.aclose()
            await wire.route.aclose()


def _encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
