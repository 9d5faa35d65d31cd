"""Forwards broadcasts, which are commands for every replica of a project.

One instance takes a broadcast from the control list and runs the command. The instance
also pushes a copy of the command into the inbox of every other living instance. An
inbox is a list in Redis that only one instance reads.
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

LOOK_EVERY: Final = 1.0  # seconds between two reads of the inbox
# Seconds until the next read after a command was found. Meanwhile a worker starts it.
LOOK_ON: Final = 0.01
LOOK_AGAIN: Final = 30.0  # seconds until the next read after Redis refused a read
INBOX_TTL: Final = cast("int", BROADCAST.ttl)  # seconds until an unread inbox expires
LIMIT: Final = 1_000  # largest number of commands in an inbox
TRIES: Final = 3
PATIENCE: Final = 5.0  # seconds that forwarding may delay a broadcast, at most
RECENT: Final = 100  # number of newest commands whose second copy is ignored


def inbox_of(project: str, instance: str) -> str:
    place = place_beside(CONTROL.build(project=project))
    return BROADCAST.locate(place=place, instance=instance)


class Broadcasts:
    """Forwards broadcasts to the other living instances, and receives theirs."""

    def __init__(
        self, connections: AgentConnections, project: str, instance: str, warn: Warn
    ) -> None:
        self._replicas_connection = connections.liveness
        self._connection = connections.control
        self._project = project
        self._instance = instance
        self._warn = warn

    async def pass_on(self, message: Message, command: Command, target: str) -> bool:
        """Push copies of a command into the inboxes of other instances. Never raises.

        Return whether this instance runs the command, too. A copy has no field
        ``broadcast``, so that no instance forwards a copy again. After a lost
        connection the copies are pushed again, because an instance ignores a second
        copy. Cases:

        1. The command is a copy, or ``target`` is this instance. Only this instance
           runs the command.
        2. ``target`` is another instance. Only that instance gets a copy and runs the
           command. If no living instance has this name, or if the copy could not be
           pushed, this instance runs the command, and the handler rejects the name.
        3. ``target`` is empty. This instance runs the command, and every other living
           instance gets a copy.
        """
        if message.mode == BROADCAST_MODE or target == self._instance:
            return True
        fields = {k: v for k, v in message.fields.items() if k != "broadcast"}
        # All tries for this broadcast push equal bytes, so that receivers can recognise
        # a second copy. Another broadcast has another value of ``passedOn``.
        fields |= {"id": command.id, "passedOn": secrets.token_hex(4)}
        failure: object = f"not within {PATIENCE:g} s"
        # Shielded, because a cancellation could leave some instances without a copy.
        with anyio.move_on_after(PATIENCE, shield=True):
            for _ in range(TRIES):
                try:
                    payload = encode_strictly("command", fields)
                    failure = await self._push(payload, target)
                except BlsError as error:
                    failure = error
                if not getattr(failure, "ambiguous", False):
                    break
        if failure is not None:
            self._warn(
                "a broadcast has not reached every instance",
                {"commandId": command.id, "reason": str(failure)},
            )
        return not target or failure is not None

    async def _push(self, payload: bytes, target: str) -> BlsError | str | None:
        living = await read_replicas(self._replicas_connection, self._project)
        others = living.keys() - {self._instance}
        if target and target not in others:
            return f"no living instance is called {target!r}"
        requests: list[tuple[Argument, ...]] = []
        for instance in {target} if target else others:
            inbox = inbox_of(self._project, instance)
            requests += [
                ("RPUSH", inbox, payload),
                ("LTRIM", inbox, -LIMIT, -1),
                ("EXPIRE", inbox, INBOX_TTL),
            ]
        replies = await self._connection.call_many(requests) if requests else []
        return next((r for r in replies if isinstance(r, BlsError)), None)

    async def read_inbox(self, dispatcher: Dispatcher) -> None:
        """Run the commands from this instance's inbox, until the task is cancelled."""
        key = inbox_of(self._project, self._instance)
        recent: deque[bytes] = deque(maxlen=RECENT)
        while True:
            payload, pause, is_waiting = None, LOOK_EVERY, False
            try:
                if dispatcher.accepts:
                    payload = await self._connection.call("LPOP", key)
                else:
                    # EXPIRE returns 1 if the inbox exists, so that a copy waits there.
                    is_waiting = await self._connection.call("EXPIRE", key, INBOX_TTL)
            except RedisRefusedError as error:
                metadata: dict[str, object] = {"key": key, "reason": error.kind}
                self._warn("broadcasts do not reach this instance", metadata)
                pause = LOOK_AGAIN
            except RedisUnavailableError:
                pass
            if payload is not None:
                pause = LOOK_ON
                digest = hashlib.sha256(payload).digest()  # less memory than a payload
                if digest not in recent:
                    recent.append(digest)
                    dispatcher.submit(Message(payload, mode=BROADCAST_MODE))
            await (_wait_until_free(dispatcher) if is_waiting else anyio.sleep(pause))


async def _wait_until_free(dispatcher: Dispatcher) -> None:
    """Wait until a handler is free for the copy in the inbox, for at most a second."""
    with anyio.move_on_after(LOOK_EVERY):
        while not dispatcher.accepts:
            await dispatcher.change()
