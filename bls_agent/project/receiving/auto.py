"""BLPOP where it is allowed, compatibility mode where it is not."""

from __future__ import annotations

from collections.abc import Sequence

from bls_agent.connection import Connections
from bls_agent.errors import RedisRefusedError
from bls_agent.project.receiving.blocking import BlockingReceiver
from bls_agent.project.receiving.compat import CompatReceiver
from bls_agent.project.receiving.receiver import Message, Say

__all__ = ["AutoReceiver"]


class AutoReceiver:
    """BLPOP; where the server or its ACL refuses it, compatibility mode.

    Refused means: unknown command or no permission, nothing else. Said once in the
    console log, tried again after a reconnect.
    """

    def __init__(
        self,
        connections: Connections,
        blocking: BlockingReceiver,
        compat: CompatReceiver,
        say: Say,
    ) -> None:
        """Remember both ways."""
        self._connections = connections
        self._blocking = blocking
        self._compat = compat
        self._say = say
        self._active: BlockingReceiver | CompatReceiver = blocking
        self._refused_at = -1

    @property
    def mode(self) -> str:
        """The way that is in use."""
        return self._active.mode

    @property
    def one_at_a_time(self) -> bool:
        """As the way that is in use."""
        return self._active.one_at_a_time

    async def receive(self, limit: int) -> Sequence[Message]:
        """Receive in the way that works here."""
        if self._refused_at not in (-1, self._connections.intake.generation):
            await self._compat.finish()
            self._active, self._refused_at = self._blocking, -1
        try:
            return await self._active.receive(limit)
        except RedisRefusedError as error:
            refused = error.kind in ("unknown_command", "no_permission")
            if self._active is self._compat or error.connecting or not refused:
                raise
            await self._connections.intake.open()
            self._active = self._compat
            self._refused_at = self._connections.intake.generation
            self._say(
                "BLPOP is refused here: receiving in compatibility mode",
                {"mode": "compat", "reason": error.kind},
            )
        return []

    async def settle(self, message: Message) -> None:
        """Settle where it came from."""
        await self._taker_of(message).settle(message)

    async def give_back(self, messages: Sequence[Message]) -> bool | None:
        """Give back where it came from."""
        taken = [m for m in messages if self._taker_of(m) is self._blocking]
        return await self._blocking.give_back(taken)

    def _taker_of(self, message: Message) -> BlockingReceiver | CompatReceiver:
        return self._compat if message.mode == self._compat.mode else self._blocking

    async def stop(self) -> None:
        """Stop both ways."""
        await self._compat.stop()
        await self._blocking.stop()

    def leftovers(self) -> list[Message]:
        """What the blocking way has taken."""
        return self._blocking.leftovers()

    async def run(self) -> None:
        """Nothing to keep up."""

    async def close(self) -> None:
        """Nothing is left to end."""
