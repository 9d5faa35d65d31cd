"""Waiting for replies that are owed, while a read is parked at the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection import Connections
from bls_agent.errors import RedisUnavailableError, WrongTypeError

__all__ = ["BLOCK", "ParkedRead"]

BLOCK: Final = 2  # seconds a read is parked at the server; Redis 5 wants an integer
MARGIN: Final = 1.0  # seconds a reply may be late before we ask what is wrong

_Collect = Callable[[], Awaitable[None]]


class ParkedRead:
    """Reads what the blocking wire owes, and finds out what is wrong when it is late.

    What is owed may hold commands that Redis has taken out of the list for us. So it
    is never thrown away while it may still come.
    """

    def __init__(self, connections: Connections) -> None:
        """Remember the wires."""
        self._connections = connections
        self._wire = connections.blocking

    async def wait(self, collect: _Collect) -> None:
        """Read all that is owed.

        Args:
            collect: Reads owed replies, at least one.

        Raises:
            RedisUnavailableError: What ``collect`` raises, or ``deaf``: the link is dead.
        """
        deadline = BLOCK + MARGIN
        while self._wire.owed:
            with anyio.move_on_after(deadline) as scope:
                await collect()
            if scope.cancelled_caught:
                deadline = await self.after_silence(deadline)

    async def after_silence(self, deadline: float) -> float:
        """Find out why an owed reply is late: overdue is not dead.

        A stalled server will still answer, and has perhaps taken an element for us:
        keep waiting. A server that answers a PING but owes us has lost the link:
        UNBLOCK, one more grace, then give the connection up.

        Returns:
            Seconds to wait for the reply now.
        """
        live = self._connections.liveness
        try:
            await live.call("PING")
            if self._wire.client_id is not None:
                await live.call("CLIENT", "UNBLOCK", self._wire.client_id)
        except RedisUnavailableError as error:
            if error.connecting or error.ambiguous:
                return BLOCK + MARGIN
        if deadline <= MARGIN:
            await self._wire.drop()
            raise RedisUnavailableError(
                "deaf",
                "the waiting connection gave no answer",
                address=self._wire.address,
                ambiguous=True,
            )
        return MARGIN

    async def release(self, collect: _Collect) -> None:
        """Release the parked read with CLIENT UNBLOCK, or wait for the end of its block."""
        while self._wire.owed:
            if not await self._unblock(collect):
                break

    async def _unblock(self, collect: _Collect) -> bool:
        """Release and read owed replies; False when the connection is gone."""
        wait = BLOCK + MARGIN  # where it cannot be released the block ends by itself
        with suppress(RedisUnavailableError):
            if self._wire.client_id is not None:
                await self._connections.liveness.call(
                    "CLIENT", "UNBLOCK", self._wire.client_id
                )
                wait = 0.05
        try:
            with anyio.move_on_after(wait):
                while self._wire.owed:
                    await collect()
        except (RedisUnavailableError, WrongTypeError):
            return bool(self._wire.owed)
        return True
