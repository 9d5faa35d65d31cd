"""Waiting for replies that are owed, while a read is parked at the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection import Connections
from bls_agent.endpoint import CONNECT_TIMEOUT
from bls_agent.errors import RedisUnavailableError, WrongTypeError
from bls_agent.faults import redirects

__all__ = ["BLOCK", "ParkedRead"]

BLOCK: Final = 2  # seconds a read is parked at the server; Redis 5 wants an integer
MARGIN: Final = 1.0  # seconds a reply may be late before we ask what is wrong
FIRST_PAUSE: Final = 0.05  # seconds from one UNBLOCK to the next, then twice as many
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
        self._followed = False

    def follows(self, failure: Exception | None) -> bool:
        """Tell whether to ask again at once: where a redirection points to.

        But not from one redirection to the next.
        """
        followed, self._followed = self._followed, redirects(failure)
        return self._followed and not followed

    async def wait(self, collect: _Collect) -> None:
        """Read all that is owed.

        Overdue is not dead. A stalled server will still answer, and has perhaps taken
        an element for us: keep waiting. So does a large element over a narrow link, as
        long as something of it arrives. A server that answers but owes us has lost the
        link: UNBLOCK, one more grace, then give the connection up, whatever it says.

        Args:
            collect: Reads owed replies, at least one.

        Raises:
            RedisUnavailableError: What ``collect`` raises, or ``deaf``: the link is dead.
        """
        link = self._connections.gate.connect_time  # a slow one is not a dead one
        deadline = BLOCK + MARGIN + link
        released, received = False, self._wire.received
        while self._wire.owed:
            with anyio.move_on_after(deadline) as scope:
                await collect()
            if not scope.cancelled_caught:
                continue
            deadline = BLOCK + MARGIN
            before, received = received, self._wire.received
            if received != before:
                continue
            if await self._server_answers():
                if released:
                    await self._give_up()
                await self._unblock()
                released = True
                deadline = MARGIN + link

    async def _server_answers(self) -> bool:
        """Ask whether the server lives; any answer will do, a refusal, too.

        The same cut may have made that connection deaf as well, so one that gives no
        answer in time is replaced once.
        """
        patience = PATIENCE + 2 * self._connections.gate.connect_time
        for wait in (patience, CONNECT_TIMEOUT):
            with anyio.move_on_after(wait):
                try:
                    async with self._connections.beside(self._wire.server) as beside:
                        await beside.call("PING")
                except RedisUnavailableError as error:
                    if error.connecting or error.ambiguous:
                        await self._connections.leave_wrong_servers()
                        continue
                return True
        return False

    async def _unblock(self) -> bool:
        """Have the server end the block; whether it was asked to."""
        number = self._wire.client_id
        if number is None:
            return False
        with suppress(RedisUnavailableError):
            async with self._connections.beside(self._wire.server) as beside:
                await beside.call("CLIENT", "UNBLOCK", number)
            return True
        return False

    async def _give_up(self) -> None:
        await self._wire.drop()
        raise RedisUnavailableError(
            "deaf",
            "the waiting connection gave no answer",
            address=self._wire.address,
            ambiguous=True,
        )

    async def release(self, collect: _Collect) -> None:
        """Release the parked read with CLIENT UNBLOCK, or wait for the end of its block.

        A link that then brings nothing, while the server answers, is dead: it is given
        up, with what it owes.
        """
        grace = MARGIN + self._connections.gate.connect_time
        pause, waited = FIRST_PAUSE, 0.0
        while self._wire.owed:
            released = await self._unblock()
            # Where it cannot be released the block ends by itself.
            wait = pause if released else BLOCK + MARGIN
            try:
                with anyio.move_on_after(wait) as scope:
                    while self._wire.owed:
                        await collect()
            except (RedisUnavailableError, WrongTypeError):
                continue
            if not scope.cancelled_caught:
                return
            pause, waited = 2 * pause, waited + wait
            if waited >= grace and (released or await self._server_answers()):
                await self._wire.drop()
