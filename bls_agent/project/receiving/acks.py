"""Telling Redis that commands have ended, in one write for all that have by then."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import anyio

from bls_agent.backoff import Backoff
from bls_agent.connection import Connections
from bls_agent.endpoint import Argument, Reply
from bls_agent.errors import RedisUnavailableError, WrongTypeError
from bls_agent.project.receiving.epochs import Epochs
from bls_agent.project.receiving.holdings import Holdings, Stage
from bls_agent.project.receiving.places import Places, find_wrong_type
from bls_agent.project.receiving.receiver import Message
from bls_agent.project.receiving.taking import NOT_OURS, Taker
from bls_agent.scripts import ACK
from bls_agent.wire import Wire

__all__ = ["Acks"]

logger = logging.getLogger(__name__)

SEEN_LIMIT: Final = 100_000
FIRST_PAUSE: Final = 0.25  # seconds before the second try, at most


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
        self._backoff = Backoff(base=FIRST_PAUSE)
        self._retry_at = float("-inf")

    async def settle(self, message: Message, stopped: anyio.Event) -> None:
        """Say that a command has ended, until that is heard or must be left for later.

        All who are in here share one pace: a thousand of them are no more tries than one.

        Args:
            message: What has ended.
            stopped: Set when nobody waits any more.
        """
        while True:
            with suppress(RedisUnavailableError, WrongTypeError):
                await self.flush(at_pace=True)
            if message not in self._holdings:
                return
            if stopped.is_set() or not self._epochs.valid:
                return
            with anyio.move_on_after(self._retry_at - anyio.current_time()):
                await stopped.wait()

    async def flush(self, *, at_pace: bool = False) -> None:
        """Say all that is to be said; after a failure one alone, and then the rest.

        Args:
            at_pace: Do nothing while a failure is too recent.

        Raises:
            RedisUnavailableError: Something of it could not be said; call again.
            WrongTypeError: One of the keys holds another type.
        """
        if not self._holdings.any_at(Stage.ENDED):
            return
        async with self._lock:
            if at_pace and anyio.current_time() < self._retry_at:
                return
            try:
                await self._say_all()
            except (RedisUnavailableError, WrongTypeError) as error:
                delay = self._backoff.failed()
                if isinstance(error, WrongTypeError) or not error.connecting:
                    self._retry_at = anyio.current_time() + delay
                raise
            self._backoff.succeeded()

    async def _say_all(self) -> None:
        if self._in_doubt:
            await self._resolve()
        messages = self._holdings.of(Stage.ENDED)
        if self._backoff.failures and messages:
            await self._say(messages[:1])
            messages = self._holdings.of(Stage.ENDED)
        if messages:
            await self._say(messages)

    async def say_ahead(self, message: Message, taker: Taker, limit: int) -> None:
        """Say it in front of the next take, in one trip, if the blocking wire is free.

        What goes wrong leaves it as it is: still to be said.
        """
        if not self._is_loaded or self._in_doubt or self._lock.locked():
            return
        if self._backoff.failures or not taker.is_free:
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
        counts = self._holdings.count_payloads()
        if any(counts[message.payload] > 1 for message in doubtful):
            inflight = self._epochs.inflight
            found: Counter[bytes] = Counter(
                await self._wire().call("LRANGE", inflight, 0, -1)
            )
            counts = self._holdings.count_payloads()
            for message in doubtful:
                if found[message.payload] < counts[message.payload]:
                    counts[message.payload] -= 1
                    self._holdings.drop(message)
        self._in_doubt = []

    async def try_flush(self) -> bool:
        """Say what can be said now; whether that was all."""
        try:
            await self.flush()
        except (RedisUnavailableError, WrongTypeError) as error:
            logger.debug("commands that ended are not acknowledged yet: %s", error)
            return False
        return not self._holdings.any_at(Stage.ENDED)
