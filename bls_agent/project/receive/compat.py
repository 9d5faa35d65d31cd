"""Mode ``compat``, which works without BLPOP, and mode ``auto``, which tries BLPOP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.faults import NOT_ALLOWED
from bls_agent.connection.scripts import TRIM_HEAD
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import checked_reply
from bls_agent.project.receive.blocking import BlockingReceiver
from bls_agent.project.receive.receiver import Message, PutBack, Receiver, Warn

logger: logging.Logger = logging.getLogger(__name__)

POLL: Final = 0.1  # seconds between two polls
CLOSE_GRACE: Final = 0.5  # seconds that closing may take to remove the last command


class CompatReceiver(Receiver):
    """Reads the first command with LRANGE, and removes it when its handler has ended.

    Each command runs at least once. The list must have only one consumer, and the
    consumer runs one command at a time. There are three ways to remove a command. A
    weaker way is used only if the server refuses the previous way:

    1. A script removes the first element if it is still the handled command.
    2. LREM removes the command by its value.
    3. LTRIM removes the first element after a check with LRANGE.
    """

    mode = "compat"
    one_at_a_time = True

    def __init__(self, connections: AgentConnections, key: str, warn: Warn) -> None:
        self._connections = connections
        self._key = key
        self._warn = warn
        self._stopping = anyio.Event()
        self._handled: Message | None = None
        self._standing: bytes | None = None
        self._lock = anyio.Lock(fast_acquire=True)  # held while a command is removed
        self._in_doubt = False
        self._cuts: Sequence[Callable[[bytes], Awaitable[bool]]] = (
            self._cut_by_script,
            self._cut_by_value,
            self._cut_blindly,
        )

    @property
    def standing(self) -> bytes | None:
        return self._standing

    async def receive(self, limit: int) -> Sequence[Message]:  # noqa: ARG002 - takes only one command
        """Wait for the next command.

        After a reconnect, return no command, because :class:`AutoReceiver` then tries
        BLPOP again.
        """
        await self.finish()
        intake = self._connections.intake
        await intake.open()
        generation = intake.generation
        while intake.generation == generation and not self._stopping.is_set():
            reply = await self._command("LRANGE", self._key, 0, 0)
            if reply:
                self._standing = reply[0]
                return [Message(reply[0], mode=self.mode)]
            with anyio.move_on_after(POLL):
                await self._stopping.wait()
        return []

    def mark_ended(self, message: Message) -> None:
        self._handled = message

    async def settle(self, message: Message, *, fetch_follows: bool = False) -> None:  # noqa: ARG002 - always removed at once
        """Remove a command that has ended. If this fails, :meth:`receive` retries."""
        if self._standing is None:
            return  # removed after its outcome was reported, while its handler still ran
        self._handled = message
        try:
            await self.finish()
        except RedisUnavailableError as error:
            logger.warning("a handled command is not trimmed yet: %s", error)

    async def finish(self) -> None:
        """Remove the handled command from the list, if there is one."""
        async with self._lock:
            await self._finish()

    async def _finish(self) -> None:
        if self._handled is None:
            return
        if self._in_doubt:  # an earlier request to remove may still reach the server
            await self._connections.kill_orphans(self._connections.intake, kill=True)
        found = await self._cut_in_some_way(self._handled.payload)
        self._handled = self._standing = None
        in_doubt, self._in_doubt = self._in_doubt, False
        if not found and not in_doubt:
            self._warn(
                "another program trimmed the control list: a second consumer? "
                "compatibility mode allows one. Or the command was withdrawn while it "
                "ran",
                {"key": self._key},
            )

    async def _cut_in_some_way(self, payload: bytes) -> bool:
        """Remove the command, with the first way that the server does not refuse."""
        while True:
            try:
                return await self._cuts[0](payload)
            except RedisUnavailableError as error:
                self._in_doubt |= error.ambiguous
                if error.kind not in NOT_ALLOWED or len(self._cuts) == 1:
                    raise
                self._cuts = self._cuts[1:]
                if len(self._cuts) == 1:
                    self._warn(
                        "the control list is trimmed without looking (scripts and LREM "
                        "are refused): be the only consumer",
                        {"key": self._key, "reason": error.kind},
                    )
            except BaseException:  # cancelled: the server may have removed the command
                self._in_doubt = True
                raise

    async def _cut_by_script(self, payload: bytes) -> bool:
        connection = self._connections.intake
        return bool(await TRIM_HEAD.run(connection, [self._key], [payload]))

    async def _cut_by_value(self, payload: bytes) -> bool:
        return bool(await self._command("LREM", self._key, 1, payload))

    async def _cut_blindly(self, payload: bytes) -> bool:
        head = await self._command("LRANGE", self._key, 0, 0)
        if head != [payload]:
            return False
        await self._command("LTRIM", self._key, 1, -1)
        return True

    async def rest(self) -> None:
        with suppress(RedisUnavailableError):  # receive() retries
            await self.finish()

    async def stop(self) -> None:
        self._stopping.set()

    async def close(self) -> None:
        """Remove a command whose outcome was reported although its handler still runs."""
        with anyio.move_on_after(CLOSE_GRACE), suppress(BlsError):
            await self.finish()

    async def _command(self, *request: Argument) -> Reply:
        try:
            return await self._connections.intake.call(*request)
        except RedisUnavailableError as error:
            return checked_reply(error, self._key)


class AutoReceiver(Receiver):
    """Uses BLPOP, or mode ``compat`` if the server or its ACL refuses BLPOP.

    The change to mode ``compat`` is logged as a warning. After a reconnect, BLPOP is
    tried again.
    """

    def __init__(self, connections: AgentConnections, key: str, warn: Warn) -> None:
        self._blocking = BlockingReceiver(connections, key)
        self._compat = CompatReceiver(connections, key, warn)
        self._intake = connections.intake
        self._warn = warn
        self._refused_at = -1  # number of the connection that refused BLPOP

    async def receive(self, limit: int) -> Sequence[Message]:
        if self._refused_at not in (-1, self._intake.generation):
            await self._compat.finish()
            self._refused_at = -1
            self._use(BlockingReceiver)
        if self.mode == CompatReceiver.mode:
            return await self._compat.receive(limit)
        try:
            return await self._blocking.receive(limit)
        except RedisRefusedError as error:
            refused = error.kind in ("unknown_command", "no_permission")
            if error.connecting or not refused:
                raise
            await self._intake.open()
            self._refused_at = self._intake.generation
            self._use(CompatReceiver)
            self._warn(
                "BLPOP is refused here: receiving in compatibility mode",
                {"mode": "compat", "reason": error.kind},
            )
        return []

    @property
    def standing(self) -> bytes | None:
        return self._compat.standing

    def _use(self, kind: type[Receiver]) -> None:
        self.mode: str = kind.mode
        self.one_at_a_time: bool = kind.one_at_a_time

    def mark_ended(self, message: Message) -> None:
        if message.mode == CompatReceiver.mode:
            self._compat.mark_ended(message)

    async def settle(self, message: Message, *, fetch_follows: bool = False) -> None:  # noqa: ARG002 - always removed at once
        await self._compat.settle(message)

    async def close(self) -> None:
        await self._compat.close()

    async def give_back(self, messages: Sequence[Message]) -> PutBack:
        """Put back the messages that BLPOP has taken.

        Messages of mode ``compat`` are still in the list.
        """
        taken = [one for one in messages if one.mode == BlockingReceiver.mode]
        return await self._blocking.give_back(taken)

    def leftovers(self) -> list[Message]:
        return self._blocking.leftovers()

    async def rest(self) -> None:
        await self._compat.rest()
        await self._blocking.rest()

    async def stop(self) -> None:
        await self._compat.stop()
        await self._blocking.stop()
