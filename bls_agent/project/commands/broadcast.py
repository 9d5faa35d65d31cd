"""A command for every replica.

The instance that takes a broadcast pushes it into the inbox of every other living one
and runs it. An inbox is a list beside the control list, which its instance reads.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from typing import Final, cast

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Argument
from bls_agent.core.codec import encode_strictly
from bls_agent.core.errors import (
    BlsError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.core.keys import BROADCAST, CONTROL, place_beside
from bls_agent.project.commands.dispatcher import BROADCAST_MODE, Dispatcher
from bls_agent.project.messages import Command
from bls_agent.project.receive.receiver import Message, Warn
from bls_agent.project.status.replicas import read_replicas

LOOK_EVERY: Final = 1.0  # seconds
LOOK_ON: Final = 0.01  # seconds, behind a command: a free worker has taken it by then
LOOK_AGAIN: Final = 30.0  # seconds, where reading is refused
INBOX_TTL: Final = cast("int", BROADCAST.ttl)  # of an inbox that nobody reads
LIMIT: Final = 1_000  # commands in an inbox
TRIES: Final = 3
PATIENCE: Final = 5.0  # seconds that passing on may hold up a command
RECENT: Final = 100  # commands that are recognised when they come twice


def _inbox_of(project: str, instance: str) -> str:
    place = place_beside(CONTROL.build(project=project))
    return BROADCAST.locate(place=place, instance=instance)


class Broadcasts:
    """Passes broadcasts on to the other living instances, and takes theirs."""

    def __init__(
        self, connections: AgentConnections, project: str, instance: str, warn: Warn
    ) -> None:
        self._replicas_connection = connections.liveness
        self._connection = connections.control
        self._project = project
        self._instance = instance
        self._warn = warn

    async def pass_on(self, message: Message, command: Command) -> None:
        """Push copies without the marker into the inboxes; never raises.

        Repeated after a lost connection: a receiver recognises a copy that comes twice.
        """
        fields = {k: v for k, v in message.fields.items() if k != "broadcast"}
        # Equal in all tries of this one, and in no other broadcast.
        fields |= {"id": command.id, "passedOn": secrets.token_hex(4)}
        payload = encode_strictly("command", fields)
        failure: object = f"not within {PATIENCE:g} s"
        # Shielded: a stop in the middle would reach some of them and not the others.
        with anyio.move_on_after(PATIENCE, shield=True):
            for _ in range(TRIES):
                try:
                    failure = await self._push(payload)
                except BlsError as error:
                    failure = error
                if not getattr(failure, "ambiguous", False):
                    break
        if failure is not None:
            self._warn(
                "a broadcast has not reached every instance",
                {"commandId": command.id, "reason": str(failure)},
            )

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

    async def read_inbox(self, dispatcher: Dispatcher) -> None:
        """Take broadcasts from this instance's inbox, once a second until cancelled."""
        key = _inbox_of(self._project, self._instance)
        recent: deque[bytes] = deque(maxlen=RECENT)
        while True:
            payload, pause = None, LOOK_EVERY
            try:
                if dispatcher.accepts:
                    payload = await self._connection.call("LPOP", key)
                else:
                    await self._connection.call("EXPIRE", key, INBOX_TTL)
            except RedisRefusedError as error:
                metadata: dict[str, object] = {"key": key, "reason": error.kind}
                self._warn("broadcasts do not reach this instance", metadata)
                pause = LOOK_AGAIN
            except RedisUnavailableError:
                pass
            if payload is not None:
                pause = LOOK_ON
                digest = hashlib.sha256(payload).digest()  # it may be a megabyte
                if digest not in recent:
                    recent.append(digest)
                    dispatcher.submit(Message(payload, mode=BROADCAST_MODE))
            await anyio.sleep(pause)
