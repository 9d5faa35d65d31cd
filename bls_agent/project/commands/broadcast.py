"""A command for every replica.

The instance that takes a broadcast from the control list pushes it into the inbox of
every other living instance and then runs it itself. An inbox is a list beside the
control list, read once a second by its instance.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from typing import Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Argument
from bls_agent.core.codec import decode_object, encode_strictly
from bls_agent.core.errors import (
    BlsError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.core.keys import BROADCAST, CONTROL, place_beside
from bls_agent.project.commands.dispatcher import BROADCAST_MODE, Dispatcher
from bls_agent.project.messages import Command
from bls_agent.project.receive.receiver import Message, Say
from bls_agent.project.status.replicas import read_replicas

__all__ = ["FanOut", "Inbox"]

LOOK_EVERY: Final = 1.0  # seconds
LOOK_AGAIN: Final = 30.0  # seconds, where reading is refused
INBOX_TTL: Final = 300  # seconds that an inbox is kept when its owner does not read it
LIMIT: Final = 1_000  # commands in an inbox
TRIES: Final = 3
PATIENCE: Final = 5.0  # seconds that passing on may hold up a command
RECENT: Final = 100  # commands that are recognised when they come twice


def _inbox_of(project: str, instance: str) -> str:
    place = place_beside(CONTROL.build(project=project))
    return BROADCAST.locate(place=place, instance=instance)


class FanOut:
    """Passes a broadcast on to every other living instance."""

    def __init__(
        self, connections: AgentConnections, project: str, instance: str, say: Say
    ) -> None:
        self._replicas_connection = connections.liveness
        self._connection = connections.control
        self._project = project
        self._instance = instance
        self._say = say

    async def pass_on(self, message: Message, command: Command) -> None:
        """Push copies without the marker into the inboxes; never raises.

        Repeated after a lost connection: a receiver recognises a copy that comes twice.
        """
        fields = decode_object(message.payload)
        fields.pop("broadcast", None)
        # Equal in all tries of this one, and in no other broadcast.
        fields |= {"id": command.id, "passedOn": secrets.token_hex(4)}
        failure: object = f"not within {PATIENCE:g} s"
        # Shielded: a stop in the middle would reach some of them and not the others.
        with anyio.move_on_after(PATIENCE, shield=True):
            failure = await self._try_to_push(encode_strictly("command", fields))
        if failure is not None:
            self._say(
                "a broadcast has not reached every instance",
                {"commandId": command.id, "reason": str(failure)},
            )

    async def _try_to_push(self, payload: bytes) -> BlsError | None:
        """Push, again after a lost connection; return why it failed."""
        failure: BlsError | None = None
        for _ in range(TRIES):
            try:
                failure = await self._push(payload)
            except BlsError as error:
                failure = error
            if not getattr(failure, "ambiguous", False):
                break
        return failure

    async def _push(self, payload: bytes) -> BlsError | None:
        living = await read_replicas(self._replicas_connection, self._project)
        requests: list[tuple[Argument, ...]] = []
        for instance in living.keys() - {self._instance}:
            inbox = _inbox_of(self._project, instance)
            requests += [
                ("RPUSH", inbox, payload),
                ("LTRIM", inbox, -LIMIT, -1),
                ("EXPIRE", inbox, INBOX_TTL),
            ]
        replies = await self._connection.call_many(requests) if requests else []
        return next((r for r in replies if isinstance(r, BlsError)), None)


class Inbox:
    """Takes the broadcasts of other instances from this one's inbox."""

    def __init__(
        self,
        connections: AgentConnections,
        dispatcher: Dispatcher,
        *,
        project: str,
        instance: str,
        say: Say,
    ) -> None:
        self._connection = connections.control
        self._dispatcher = dispatcher
        self._key = _inbox_of(project, instance)
        self._say = say
        self._recent: deque[bytes] = deque(maxlen=RECENT)

    async def run(self) -> None:
        """Read once a second until cancelled."""
        while True:
            try:
                took = await self._take_one()
            except RedisRefusedError as error:
                told: dict[str, object] = {"key": self._key, "reason": error.kind}
                self._say("broadcasts do not reach this instance", told)
                await anyio.sleep(LOOK_AGAIN)
            except RedisUnavailableError:
                await anyio.sleep(LOOK_EVERY)
            else:
                await anyio.sleep(0 if took else LOOK_EVERY)

    async def _take_one(self) -> bool:
        """Take one command; while no handler is free, only extend the inbox's TTL."""
        if not self._dispatcher.accepts:
            await self._connection.call("EXPIRE", self._key, INBOX_TTL)
            return False
        payload = await self._connection.call("LPOP", self._key)
        if payload is None:
            return False
        digest = hashlib.sha256(payload).digest()  # a command may be a megabyte
        if digest not in self._recent:
            self._recent.append(digest)
            self._dispatcher.submit(Message(payload, mode=BROADCAST_MODE))
        return True
