"""Notices that another server has taken over, while the old one says nothing of it.

A server that was killed or demoted ends its connections, and a new one is found. One
that hangs, or that is cut off from the others and goes on answering, does not: what is
written there is lost when it comes back. So the sentinels, or the nodes of the cluster,
are asked now and then, and at once when an answer is late.
"""

from __future__ import annotations

import random
from typing import Final

import anyio

from bls_agent.backoff import jittered
from bls_agent.connection import Connections

__all__ = ["Patrol"]

ROUND: Final = 10.0  # seconds between two looks without a reason
LATE: Final = 1.0  # seconds after which an answer is a reason
PACE: Final = 0.5  # seconds between two thoughts


class Patrol:
    """Walks round the wires of an agent; where there is one server, it stays at home."""

    def __init__(self, connections: Connections) -> None:
        """Remember what to look after."""
        self._connections = connections
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets

    async def run(self) -> None:
        """Look after the wires until cancelled."""
        if self._connections.endpoint.topology is None:
            return
        due = anyio.current_time() + jittered(ROUND, self._rng)
        while True:
            await anyio.sleep(PACE)
            now = anyio.current_time()
            if now >= due or self._is_late(now):
                await self._connections.leave_wrong_servers()
                due = anyio.current_time() + jittered(ROUND, self._rng)

    def _is_late(self, now: float) -> bool:
        began = (wire.waiting_since for wire in self._connections.all)
        return any(at is not None and now - at > LATE for at in began)
