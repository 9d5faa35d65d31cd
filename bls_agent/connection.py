"""The connections of one agent, one for each use, so that none waits behind another."""

from __future__ import annotations

import logging

from bls_agent.backoff import Backoff
from bls_agent.endpoint import Argument, Endpoint
from bls_agent.errors import RedisRefusedError
from bls_agent.gate import Gate
from bls_agent.wire import Lost, Wire

__all__ = ["Connections"]

logger = logging.getLogger(__name__)


class Connections:
    """The wires of one agent, one for each use, behind one gate.

    Attributes:
        data: Log batches and everything that may be large.
        liveness: Status, PING, CLIENT UNBLOCK and CLIENT KILL: small and urgent.
        blocking: The wire on which a receiver waits.
    """

    def __init__(
        self, endpoint: Endpoint, name: str, *, timeout: float, reconnect_max: float
    ) -> None:
        """Remember where to; nothing is opened yet."""
        self.endpoint = endpoint
        self.gate = Gate(Backoff(cap=reconnect_max))
        self.data = Wire(endpoint, f"{name}:data", timeout=timeout, gate=self.gate)
        self.liveness = Wire(
            endpoint, f"{name}:liveness", timeout=timeout, gate=self.gate
        )
        self.blocking = Wire(
            endpoint, f"{name}:blocking", timeout=timeout, gate=self.gate
        )
        for note in endpoint.notes:
            logger.warning("%s: %s", endpoint.address, note)

    @property
    def all(self) -> tuple[Wire, ...]:
        """Every wire."""
        return (self.data, self.liveness, self.blocking)

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
            Whether none of them can still do anything.
        """
        gone = True
        for lost in list(wire.lost):
            gone &= await self._let_go(wire, lost, kill=kill)
            if lost in wire.lost:
                wire.lost.remove(lost)
        return gone

    async def _let_go(self, wire: Wire, lost: Lost, *, kill: bool) -> bool:
        if lost.life != self.gate.server_life:
            return True  # its server is gone
        if lost.client_id is None:
            return False
        request: list[Argument] = ["CLIENT", "UNBLOCK", lost.client_id]
        if kill:
            request[1:] = ["KILL", "ID", lost.client_id]
        try:
            if not await self._is_served(wire, lost.client_id):
                return True  # it is gone, or its id is a stranger's now
        except RedisRefusedError:  # before Redis 6.2, or without the right to look
            if not lost.address:
                return False
            request[1:] = ["KILL", "ID", lost.client_id, "ADDR", lost.address]
        try:
            await self.liveness.call(*request)
        except RedisRefusedError:
            return False
        return True

    async def _is_served(self, wire: Wire, client_id: int) -> bool:
        shown = await self.liveness.call("CLIENT", "LIST", "ID", client_id)
        return f" name={wire.name} ".encode() in shown

    def abandon(self) -> None:
        """Let go of every wire without a word to server or loop; none opens again."""
        for wire in self.all:
            wire.forget_loop()
            wire.retired = True

    async def aclose(self) -> None:
        """Close every wire."""
        for wire in self.all:
            await wire.aclose()
