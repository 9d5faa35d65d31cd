"""The connections of one agent, one for each use, so that none waits behind another."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

import anyio

from bls_agent.connection.endpoint import Argument, Endpoint
from bls_agent.connection.engines import Routes
from bls_agent.connection.faults import port_was_closed
from bls_agent.connection.gate import Gate
from bls_agent.connection.route import Route
from bls_agent.connection.wire import Lost, Wire
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

__all__ = ["Connections"]

logger = logging.getLogger(__name__)

GONE_AFTER: Final = 25.0  # seconds: TCP_USER_TIMEOUT, and behind it a read's block
BESIDE_TIMEOUT: Final = 0.5  # seconds for a word to a server that may be gone


class Connections:
    """The wires of one agent, one for each use, behind one gate.

    A wire leads to the server of one key. On a cluster the status, the console list and
    the control list lie on different nodes, so there are four wires; elsewhere
    ``control`` is ``liveness`` and ``intake`` is ``data``, and there are three.

    Attributes:
        complaints: What the host's log is told about Redis.
        blocking: To the control list: the wire on which a receiver waits.
        control: To the control list: small and urgent, also about the waiting wire.
        intake: To the control list: commands looked at and cut without waiting.
        data: To the console list: log batches and everything that may be large.
        liveness: To the status: never behind anything large.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        *,
        timeout: float,
        reconnect_max: float,
        keys: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Remember where to; nothing is opened yet.

        Args:
            endpoint: Where Redis is.
            name: What every wire's name begins with.
            timeout: Deadline of one request in seconds.
            reconnect_max: Longest wait before the next try to connect, in seconds.
            keys: Use (``control``, ``data``, ``liveness``) → key; on a cluster they
                say where the wires lead to.
        """
        self.endpoint = endpoint
        self.gate = Gate(Backoff(cap=reconnect_max))
        self.complaints = self.gate.complaints
        self._name = name
        self._timeout = timeout
        self._keys = keys
        self.routes = Routes(endpoint)
        self.data = self._wire("data")
        self.liveness = self._wire("liveness")
        self.blocking = self._wire("blocking", "control")
        if endpoint.is_cluster:
            self.control = self.intake = self._wire("control")
        else:
            self.control, self.intake = self.liveness, self.data
        for note in endpoint.notes:
            logger.warning("%s: %s", endpoint.address, note)

    def _wire(self, use: str, key: str = "") -> Wire:
        route = self.routes.to(self._keys.get(key or use, ""))
        name = f"{self._name}:{use}"
        return Wire(route, name, timeout=self._timeout, gate=self.gate)

    @property
    def all(self) -> tuple[Wire, ...]:
        """Every wire, once."""
        control = (self.control,) if self.endpoint.is_cluster else ()
        return (self.data, self.liveness, self.blocking, *control)

    @asynccontextmanager
    async def beside(self, server: Endpoint | None) -> AsyncGenerator[Wire]:
        """Give a wire to this very server, which may have stopped being the right one.

        Where no urgent wire leads there, one is opened for the occasion; it fails at
        once, and not by the pace of the gate.

        Args:
            server: Which; ``None`` for the one that serves the control list.
        """
        if server is None or self.endpoint.topology is None:
            yield self.control
            return
        for wire in (self.control, self.liveness):
            if wire.is_at(server):
                yield wire
                return
        wire = Wire(
            server,
            f"{self._name}:beside",
            timeout=BESIDE_TIMEOUT,
            patience=BESIDE_TIMEOUT,
        )
        try:
            yield wire
        finally:
            await wire.aclose()

    async def forget_lost(self, wire: Wire, *, kill: bool) -> bool:
        """Make the server let go of connections that this wire has lost.

        A lost connection may still be served: a BLPOP of it would eat the next
        command, an RPUSH of it may still run. Its id may meanwhile belong to somebody
        else, on a server that was restarted: it is only used after a look at whose it
        is, by its name; where looking is refused it is killed by id and address together.

        Args:
            wire: Whose lost connections.
            kill: CLIENT KILL them, instead of CLIENT UNBLOCK.

        Returns:
            Whether none of them can still do anything. One that the server would not
            let go of can, for each caller, until it has been lost for 25 s.
        """
        gone = True
        for lost in list(wire.lost):
            gone &= await self._let_go_or_leave(wire, lost, kill=kill)
            if lost in wire.lost:
                wire.lost.remove(lost)
        wire.unkilled = [lost for lost in wire.unkilled[-8:] if self._may_act(lost)]
        return gone and not wire.unkilled

    def _may_act(self, lost: Lost) -> bool:
        """Tell whether something that was sent over a lost connection may still arrive."""
        if lost.life != self.gate.lives[(lost.server or self.endpoint).address]:
            return False  # its server is gone
        return anyio.current_time() - lost.at < GONE_AFTER

    async def _let_go_or_leave(self, wire: Wire, lost: Lost, *, kill: bool) -> bool:
        """Let go; what a server holds that serves the key no more may stay there."""
        try:
            gone = await self._let_go(wire, lost, kill=kill)
        except RedisUnavailableError as error:
            if lost.server is None or self.endpoint.topology is None:
                raise
            if port_was_closed(error):
                return True
            now = await wire.route.look()
            if now is None or now.address == lost.server.address:
                raise
            return False
        if not gone:
            wire.unkilled.append(lost)
        return gone

    async def _let_go(self, wire: Wire, lost: Lost, *, kill: bool) -> bool:
        server = lost.server or self.endpoint
        if lost.life != self.gate.lives[server.address]:
            return True  # its server is gone
        if lost.client_id is None:
            return False
        request: list[Argument] = ["CLIENT", "UNBLOCK", lost.client_id]
        if kill:
            request[1:] = ["KILL", "ID", lost.client_id]
        async with self.beside(lost.server) as beside:
            try:
                if not await _is_served(beside, wire.name, lost.client_id):
                    return True  # it is gone, or its id is a stranger's now
            except RedisRefusedError:  # before Redis 6.2, or without the right to look
                if not lost.address:
                    return False
                request[1:] = ["KILL", "ID", lost.client_id, "ADDR", lost.address]
            try:
                await beside.call(*request)
            except RedisRefusedError:
                return False
        return True

    async def leave_wrong_servers(self) -> None:
        """Ask where each wire should lead to, and give up those that lead elsewhere."""
        found: dict[Route, Endpoint | None] = {}
        wrong: list[Wire] = []
        ways: dict[tuple[str, str], None] = {}
        for wire in self.all:
            if not wire.engaged or wire.asking:
                continue  # closed, or a guest where its slot is on its way to
            if wire.route not in found:
                found[wire.route] = await wire.route.look()
            right = found[wire.route]
            if right is not None and right.address != wire.address:
                ways[wire.address, right.address] = None
                wrong.append(wire)
        for way in ways:  # several wires may go the same one
            logger.warning("leaving %s for %s", *way)
        for wire in wrong:
            await wire.drop()
        if wrong:
            self.gate.on_connected()  # whoever was there first spoke to the old one

    def abandon(self) -> None:
        """Let go of every wire without a word to server or loop; none opens again."""
        for wire in self.all:
            wire.forget_loop()
            wire.retired = True

    async def aclose(self) -> None:
        """Close every wire."""
        for wire in self.all:
            await wire.aclose()


async def _is_served(beside: Wire, name: str, client_id: int) -> bool:
    shown = await beside.call("CLIENT", "LIST", "ID", client_id)
    return f" name={name} ".encode() in shown
