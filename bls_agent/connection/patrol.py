"""Notices that another server has taken over while the old one goes on answering.

A server that was killed or demoted ends its connections, and a new one is found. One
that hangs, or is cut off from the others, does not: what is written there is lost when
it comes back. So the sentinels, or the nodes of the cluster, are asked now and then,
and at once when an answer is late. One sentinel is asked each second, because it may
have made another server the master while the old one lives.
"""

from __future__ import annotations

import random
from typing import Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.core.backoff import jittered

__all__ = ["Patrol"]

ROUND: Final = 10.0  # seconds between two checks without a reason
GLANCE: Final = 1.0  # seconds between two glances for a reason
LATE: Final = 1.0  # seconds after which a missing answer is a reason
PACE: Final = 0.5  # seconds between two turns of the loop


class Patrol:
    """Checks that an agent's connections lead to the right servers; idle with one server."""

    def __init__(self, connections: AgentConnections) -> None:
        self._connections = connections
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets

    async def run(self) -> None:
        """Check the connections until cancelled."""
        if self._connections.endpoint.topology is None:
            return
        routes = {connection.route for connection in self._connections.all}
        try:
            await self._walk()
        finally:
            with anyio.CancelScope(shield=True):
                for route in routes:
                    await route.aclose()

    async def _walk(self) -> None:
        due = anyio.current_time() + jittered(ROUND, self._rng)
        glance = 0.0
        while True:
            await anyio.sleep(PACE)
            now = anyio.current_time()
            suspicious = False
            if now >= glance:
                suspicious = await self._glance()
                # Suspicious: glance at each turn, until the sentinels agree or it ends.
                glance = now + (0 if suspicious else jittered(GLANCE, self._rng))
            if now >= due or suspicious or self._is_late(now):
                await self._connections.leave_wrong_servers()
                due = anyio.current_time() + jittered(ROUND, self._rng)

    async def _glance(self) -> bool:
        """Ask whether another server may have taken over from one that is in use."""
        used = {
            connection.route: connection.server
            for connection in self._connections.all
            if connection.server is not None and connection.connected
        }
        for route, server in used.items():
            if await route.glance(server):
                return True
        return False

    def _is_late(self, now: float) -> bool:
        began = (connection.waiting_since for connection in self._connections.all)
        return any(at is not None and now - at > LATE for at in began)
