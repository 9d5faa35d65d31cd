"""Waiting for replies that are owed, while a read is parked at the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection import Connections
from bls_agent.endpoint import CONNECT_TIMEOUT
from bls_agent.errors import RedisUnavailableError, WrongTypeError

__all__ = ["BLOCK", "ParkedRead"]

BLOCK: Final = 2  # seconds a read is parked at the server; Redis 5 wants an integer
MARGIN: Final = 1.0  # seconds a reply may be late before we ask what is wrong
PATIENCE: Final = 1.5  # seconds a PING may take before another connection is asked

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
        """Read all that is owed, and find out why where it is late.

        Overdue is not dead. A stalled server will still answer, and has perhaps taken
        an element for us: keep waiting. A server that answers but owes us has lost the
        link: UNBLOCK, one more grace, then give the connection up, whatever it says.

        Args:
            collect: Reads owed replies, at least one.

        Raises:
            RedisUnavailableError: What ``collect`` raises, or ``deaf``: the link is dead.
        """
        link = self._connections.gate.connect_time  # a slow one is not a dead one
        deadline = BLOCK + MARGIN + link
        released = False
        while self._wire.owed:
            with anyio.move_on_after(deadline) as scope:
                await collect()
            if not scope.cancelled_caught:
                continue
            deadline = BLOCK + MARGIN
            if await self._server_answers():
                if released:
                    await self._give_up()
                with suppress(RedisUnavailableError):
                    await self._send_unblock()
                released = True
                deadline = MARGIN + link

    async def _server_answers(self) -> bool:
        """Ask whether the server lives; any answer will do, a refusal, too.

        The same cut may have made this connection deaf as well, so one that gives no
        answer in time is replaced once.
        """
        live = self._connections.liveness
        patience = PATIENCE + 2 * self._connections.gate.connect_time
        for wait in (patience, CONNECT_TIMEOUT):
            with anyio.move_on_after(wait):
                try:
                    await live.call("PING")
                except RedisUnavailableError as error:
                    if error.connecting or error.ambiguous:
                        continue
                return True
        return False

    async def _send_unblock(self) -> bool:
        """Have the server end the block; False where it has not told our id."""
        number = self._wire.client_id
        if number is not None:
            await self._connections.liveness.call("CLIENT", "UNBLOCK", number)
        return number is not None

    async def _give_up(self) -> None:
        await self._wire.drop()
        raise RedisUnavailableError(
            "deaf",
            "the waiting connection gave no answer",
            address=self._wire.address,
            ambiguous=True,
        )

    async def release(self, collect: _Collect) -> None:
        """Release the parked read with CLIENT UNBLOCK, or wait for the end of its block."""
        while self._wire.owed:
            if not await self._unblock(collect):
                break

    async def _unblock(self, collect: _Collect) -> bool:
        """Release and read owed replies; False when the connection is gone."""
        wait = BLOCK + MARGIN  # where it cannot be released the block ends by itself
        with suppress(RedisUnavailableError):
            if await self._send_unblock():
                wait = 0.05
        try:
            with anyio.move_on_after(wait):
                while self._wire.owed:
                    await collect()
        except (RedisUnavailableError, WrongTypeError):
            return bool(self._wire.owed)
        return True
