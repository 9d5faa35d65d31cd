"""The connections of one agent, one for each use, so that none waits behind another."""

from __future__ import annotations

import logging

from bls_agent.backoff import Backoff
from bls_agent.endpoint import Endpoint
from bls_agent.errors import RedisUnavailableError
from bls_agent.gate import Gate
from bls_agent.wire import Wire

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
        command, an RPUSH of it may still run. An id is only used while it can be of
        the same server process: ids grow, and a refused port means another process.

        Args:
            wire: Whose lost connections.
            kill: CLIENT KILL them, instead of CLIENT UNBLOCK.

        Returns:
            Whether the server did it (or there was nothing to do).
        """
        if not wire.lost:
            return True
        await wire.open()
        newest, life = wire.client_id or 0, self.gate.server_life
        lost = [number for was, number in wire.lost if was == life]
        ids = [number for number in lost if number is not None and number < newest]
        requests = [
            ("CLIENT", "KILL", "ID", number) if kill else ("CLIENT", "UNBLOCK", number)
            for number in ids
        ]
        replies = await self.liveness.call_many(requests) if requests else []
        wire.lost = []
        refused = any(isinstance(reply, RedisUnavailableError) for reply in replies)
        return not refused and None not in lost

    async def aclose(self) -> None:
        """Close every wire."""
        for wire in self.all:
            await wire.aclose()
