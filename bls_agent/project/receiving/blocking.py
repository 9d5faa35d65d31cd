"""BLPOP: the way to receive that the contract recommends (section 3.1)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from bls_agent.connection import Connections
from bls_agent.endpoint import Argument
from bls_agent.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.project.messages import find_id
from bls_agent.project.receiving.parked_read import BLOCK, ParkedRead
from bls_agent.project.receiving.receiver import Message

__all__ = ["BlockingReceiver"]

logger = logging.getLogger(__name__)

GIVE_BACK_TRIES: Final = 3
LONGEST_LOOK: Final = 1_048_576  # bytes in which an id is looked for


class BlockingReceiver:
    """BLPOP on a connection of its own.

    Each element that Redis hands out comes out of :meth:`receive` at most once, and
    stopping, cancelling and reconnecting lose none: the reply of a parked read stays
    owed until it is read. Lost at most: the replies that a dying server or link
    swallowed (``prefetch`` commands each time) and what a killed process held.
    """

    mode = "blocking"
    one_at_a_time = False

    def __init__(self, connections: Connections, key: str) -> None:
        """Remember where from."""
        self._connections = connections
        self._key = key
        self._wire = connections.blocking
        self._parked = ParkedRead(connections)
        self._taken: deque[Message] = deque()
        self._stopping = False
        self._can_prefetch = True
        self._posted = 0
        self._more = -1
        self._requests: list[tuple[Argument, ...]] = []

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``."""
        if not self._taken and not self._stopping:
            try:
                await self._read(limit)
            except (RedisUnavailableError, WrongTypeError):
                if not self._taken:
                    raise
        return self.leftovers()

    def leftovers(self) -> list[Message]:
        """Give what was taken, once."""
        messages = list(self._taken)
        self._taken.clear()
        return messages

    async def _read(self, limit: int) -> None:
        if not self._wire.owed:
            if self._wire.lost:
                await self._connections.forget_lost(self._wire, kill=False)
            if self._stopping:
                return
            requests = self._requests_for(limit)
            await self._wire.post(requests)
            self._posted = len(requests)
        await self._parked.wait(self._collect_all)

    async def _collect_all(self) -> None:
        """Read what is owed; a failure is raised at the end: the rest may hold commands."""
        failure: RedisUnavailableError | WrongTypeError | None = None
        while self._wire.owed:
            try:
                await self._collect()
            except (RedisUnavailableError, WrongTypeError) as error:
                failure = failure or error
        if failure is not None and not self._parked.follows(failure):
            raise failure

    def _requests_for(self, limit: int) -> list[tuple[Argument, ...]]:
        more = limit - 1 if self._can_prefetch else 0
        if more != self._more:
            self._more = more
            self._requests = [("BLPOP", self._key, BLOCK)]
            if more:
                # Waits in the server's query buffer while the BLPOP blocks: one trip.
                self._requests.append(("LPOP", self._key, more))
        return self._requests

    async def _collect(self) -> None:
        """Read one owed reply and keep its elements before anything is awaited."""
        is_first = self._wire.owed == self._posted
        try:
            reply = await self._wire.collect()
        except RedisUnavailableError as error:
            if error.kind == "wrong_type":
                raise WrongTypeError(self._key, "list") from error
            if not is_first and isinstance(error, RedisRefusedError):
                self._can_prefetch = False  # no LPOP with a count before Redis 6.2
                return
            raise
        # BLPOP answers with the key and one element, LPOP with a list of elements.
        values = cast("list[bytes]", reply or [])
        payloads = values[1:] if is_first else values
        self._taken.extend(Message(payload) for payload in payloads)
        self._parked.follows(None)

    async def settle(self, message: Message) -> None:
        """Nothing to do: BLPOP has removed the command already."""

    async def give_back(self, messages: Sequence[Message]) -> bool | None:
        """LPUSH the commands to the head of the list, in their order."""
        if not messages:
            return True
        payloads = [message.payload for message in messages]
        in_doubt = False
        for _ in range(GIVE_BACK_TRIES):
            try:
                stand = await self._stand_at_head(payloads) if in_doubt else False
                if stand is None:
                    return None
                if not stand:
                    await self._connections.control.call(
                        "LPUSH", self._key, *reversed(payloads)
                    )
            except RedisUnavailableError as error:
                logger.warning("%d commands not given back: %s", len(payloads), error)
                in_doubt |= error.ambiguous
                if not in_doubt:
                    return False
            else:
                return True
        return None

    async def _stand_at_head(self, payloads: Sequence[bytes]) -> bool | None:
        """Find out whether a doubtful LPUSH has arrived, after it surely cannot any more.

        ``None`` if it seems so and none has an id: they may be others with these bytes.
        """
        control = self._connections.control
        await self._connections.forget_lost(control, kill=True)
        found = await control.call("LRANGE", self._key, 0, len(payloads) - 1)
        if found != payloads:
            return False
        named = any(find_id(payload, limit=LONGEST_LOOK) for payload in payloads)
        return True if named else None

    async def stop(self) -> None:
        """Release the parked read with CLIENT UNBLOCK, or wait for the end of its block."""
        self._stopping = True
        await self._parked.release(self._collect)

    async def run(self) -> None:
        """Nothing to keep up."""

    async def close(self) -> None:
        """Nothing is left to end."""
