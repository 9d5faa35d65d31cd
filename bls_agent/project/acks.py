"""Telling Redis that commands have ended, in one write for all that have by then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import anyio

from bls_agent.connection import Connections
from bls_agent.endpoint import Argument, Reply
from bls_agent.errors import RedisUnavailableError, WrongTypeError
from bls_agent.project.epochs import Epochs
from bls_agent.project.holdings import Holdings, Stage
from bls_agent.project.places import Places, find_wrong_type
from bls_agent.project.receiver import Message
from bls_agent.project.taking import NOT_OURS, Taker
from bls_agent.scripts import ACK
from bls_agent.wire import Wire

__all__ = ["Acks"]

logger = logging.getLogger(__name__)

SEEN_LIMIT: Final = 100_000


class Acks:
    """Takes commands that ended out of the in-flight list, and remembers their ids.

    What cannot be said stays in the holdings as ended, and is said before anything else
    is taken: so it can never be more than what ran at the same time.
    """

    def __init__(
        self,
        connections: Connections,
        wire: Callable[[], Wire],
        places: Places,
        epochs: Epochs,
        holdings: Holdings,
        *,
        window: float,
    ) -> None:
        """Remember the parts.

        Args:
            connections: To let go of a lost connection.
            wire: Gives the wire over which it is said.
            places: Where the books are kept.
            epochs: Whose list it is.
            holdings: What is held.
            window: Seconds for which an id counts as seen.
        """
        self._connections = connections
        self._wire = wire
        self._places = places
        self._epochs = epochs
        self._holdings = holdings
        self._window_ms = int(window * 1000)
        self._lock = anyio.Lock(fast_acquire=True)
        self._in_doubt: list[Message] = []
        self._is_loaded = False  # whether the server should know the script

    async def flush(self) -> None:
        """Say all that is to be said.

        Raises:
            RedisUnavailableError: Something of it could not be said; call again.
            WrongTypeError: One of the keys holds another type.
        """
        if not self._holdings.of(Stage.ENDED):
            return
        async with self._lock:
            if self._in_doubt:
                await self._resolve()
            messages = self._holdings.of(Stage.ENDED)
            if messages:
                await self._say(messages)

    async def say_ahead(self, message: Message, taker: Taker, limit: int) -> None:
        """Say it in front of the next take, in one trip, if the blocking wire is free.

        What goes wrong leaves it as it is: still to be said.
        """
        if not self._is_loaded or self._in_doubt or self._lock.locked():
            return
        if not taker.is_free:
            return
        async with self._lock:
            request = ACK.request(self._keys(), self._arguments(message))
            self._in_doubt = [message]
            with suppress(RedisUnavailableError):
                await taker.tell(request, partial(self._hear_ahead, message), limit)

    def _hear_ahead(self, message: Message, reply: Reply) -> None:
        self._in_doubt = []
        if reply == NOT_OURS:
            self._epochs.suspect()
        else:
            self._holdings.drop(message)

    def _keys(self) -> list[str]:
        places, epochs = self._places, self._epochs
        seen = places.seen
        return [epochs.inflight, places.deliveries, seen, epochs.lease.owner_key]

    async def _say(self, messages: list[Message]) -> None:
        runs = [self._arguments(message) for message in messages]
        self._in_doubt = messages  # also if this is cancelled
        try:
            replies = await ACK.run_each(self._wire(), self._keys(), runs)
        except RedisUnavailableError as error:
            if not error.ambiguous:
                self._in_doubt = []
            raise
        self._in_doubt = []
        await self._hear(messages, replies)

    def _arguments(self, message: Message) -> list[Argument]:
        held = self._holdings.find(message)
        gone = held is None or held.gone
        return [
            "" if gone else self._epochs.lease.token or "?",
            message.payload,
            "" if held is None else held.ack_id,
            self._window_ms,
            SEEN_LIMIT,
        ]

    async def _hear(self, messages: list[Message], replies: list[Reply]) -> None:
        refusal: RedisUnavailableError | None = None
        for message, reply in zip(messages, replies, strict=True):
            if isinstance(reply, RedisUnavailableError):
                refusal = reply
            elif reply == NOT_OURS:
                self._epochs.suspect()
            else:
                self._is_loaded = True
                self._holdings.drop(message)
        if refusal is not None:
            wire, types = self._wire(), self._places.types(self._epochs.inflight)
            wrong = await find_wrong_type(wire, refusal, types)
            raise wrong or refusal

    async def _resolve(self) -> None:
        """Find out whether what is in doubt has been heard.

        It does no harm to say it twice, unless another command with the same bytes
        stands in the list: that one would be taken out.
        """
        for wire in (self._wire(), self._connections.blocking):
            await self._connections.forget_lost(wire, kill=True)
        doubtful = [m for m in self._in_doubt if m in self._holdings]
        if any(self._holdings.count(m.payload) > 1 for m in doubtful):
            found = await self._wire().call("LRANGE", self._epochs.inflight, 0, -1)
            for message in doubtful:
                if found.count(message.payload) < self._holdings.count(message.payload):
                    self._holdings.drop(message)
        self._in_doubt = []

    async def try_flush(self) -> bool:
        """Say what can be said now; whether that was all."""
        try:
            await self.flush()
        except (RedisUnavailableError, WrongTypeError) as error:
            logger.debug("commands that ended are not acknowledged yet: %s", error)
            return False
        return not self._holdings.of(Stage.ENDED)
