"""How many heartbeats reach Redis in a few writes, and leave it again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from bls_agent.endpoint import Endpoint, Reply
from bls_agent.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.keyed_wires import KeyedWires
from bls_agent.lease import boot_seconds, digest_of
from bls_agent.scripts import BEAT, END_BEAT
from bls_agent.workers.beating.life import Life

__all__ = ["NAME", "HeartbeatWriter"]

logger = logging.getLogger(__name__)

NAME: Final = "bls-agent:heartbeats"  # of the connection
TRIES: Final = 2  # of an end: once more over a new connection


class HeartbeatWriter:
    """Writes heartbeats over one connection; on a cluster over one for each node."""

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        """Remember where to; nothing is opened yet."""
        self._wires = KeyedWires(endpoint, NAME, timeout=timeout)

    @property
    def generation(self) -> int:
        """How often the connection was opened; 0 on a cluster, which has several."""
        return 0 if self._wires.is_cluster else self._wires.pick().generation

    async def beat(self, lives: Sequence[Life]) -> list[Reply]:
        """Ask for one beat of each.

        Returns:
            A reply for each; error replies stand in the list.

        Raises:
            RedisUnavailableError: The connection failed.
        """
        return await BEAT.run_many(self._wires, [life.ask() for life in lives])

    async def beat_plainly(self, lives: Sequence[Life]) -> list[Reply]:
        """The same without a script, so that nobody owns anything."""
        return await self._wires.call_many([life.ask_plainly() for life in lives])

    async def end(self, lives: Sequence[Life]) -> None:
        """Remove what is ours, and say of each that it has ended."""
        for _ in range(TRIES):
            try:
                now = boot_seconds()
                runs = [life.claim.end_request(now) for life in lives]
                await END_BEAT.run_many(self._wires, runs)
                await self._end_plainly([life for life in lives if life.plain])
            except RedisUnavailableError as error:
                logger.info("heartbeats could not be removed: %s", error)
                if error.connecting:
                    break
            else:
                break
        for life in lives:
            life.ended.set()

    async def _end_plainly(self, lives: Sequence[Life]) -> None:
        """Remove what still holds our last value; nobody can do that in one step here."""
        for life in lives:
            key = life.claim.key
            with suppress(RedisRefusedError):
                found: bytes | None = await self._wires.call(key, "GET")
                if found is not None and digest_of(found) == life.claim.digest:
                    await self._wires.call(key, "DEL")

    def forget_loop(self) -> None:
        """Be as if never opened: the event loop was closed under the connection."""
        self._wires.forget_loop()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._wires.aclose()
