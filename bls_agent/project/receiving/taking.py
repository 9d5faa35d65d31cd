"""Moving commands from the control list into the in-flight list, and looking them up."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import anyio

from bls_agent.connection import Connections
from bls_agent.endpoint import Argument, Reply, Request
from bls_agent.errors import RedisUnavailableError
from bls_agent.project.messages import find_id
from bls_agent.project.receiving.epochs import Epochs
from bls_agent.project.receiving.parked_read import BLOCK, ParkedRead
from bls_agent.project.receiving.places import Places
from bls_agent.scripts import ADMIT, TAKE, Script

__all__ = ["LONGEST_ID", "NOT_OURS", "Taken", "Taker", "name_of_id"]

logger = logging.getLogger(__name__)

NOT_OURS: Final = -1  # what a script says of a list that has another owner, or none
LONGEST_ID: Final = 200  # bytes that are kept of an id; take.lua knows it, too


class Taken(NamedTuple):
    """A command in our list of which everything is known.

    Attributes:
        payload: Its bytes.
        id: Under which its end is remembered, or ``""``.
        delivery: Which delivery this is.
        seen: Whether a command with this id has ended already.
    """

    payload: bytes
    id: str
    delivery: int
    seen: bool


class Taker:
    """Everything that happens on the blocking wire, where replies stay owed.

    Attributes:
        taken: What is to be handed out.
        arrived: What stands in our list and has to be looked up first.
        asking: The wire is in use, or will be at once.
        stopping: Nothing is asked for any more.
        telling: Held while something is told, or nothing is to be taken.
    """

    def __init__(
        self,
        connections: Connections,
        places: Places,
        epochs: Epochs,
        *,
        window: float,
        size_limit: int,
    ) -> None:
        """Remember the parts.

        Args:
            connections: The wires.
            places: Where the lists are.
            epochs: Whose list it is.
            window: Seconds for which an id counts as seen.
            size_limit: Longest command that is parsed, in bytes.
        """
        self._wire = connections.blocking
        self._parked = ParkedRead(connections)
        self.follows = self._parked.follows
        self._places = places
        self._epochs = epochs
        self._window_ms = int(window * 1000)
        self._size_limit = size_limit
        self._expected: deque[tuple[str, Callable[[Reply], None]]] = deque()
        self._known: dict[Script, int] = {}  # … to the connection of this number
        self.taken: list[Taken] = []
        self.arrived: list[bytes] = []
        self.asking = False
        self.stopping = False
        self._said_odd = False
        self.telling = anyio.Lock(fast_acquire=True)

    @property
    def is_free(self) -> bool:
        """Whether something may be told on the blocking wire without waiting."""
        wire = self._wire
        in_use = wire.owed or wire.lost or self.asking or self.telling.locked()
        return wire.connected and not in_use and not self.stopping

    async def tell(
        self, request: Request, hear: Callable[[Reply], None], limit: int
    ) -> None:
        """Tell something, and take the next commands in the same trip.

        Args:
            request: What is told.
            hear: Called with the answer.
            limit: How many commands to take; nothing if there are some already.

        Raises:
            RedisUnavailableError: It may not have been heard.
        """
        requests, hears = [request], [hear]
        if limit and self._known.get(TAKE) == self._wire.generation:
            requests.append(TAKE.request(*self._words_to_take(limit)))
            hears.append(self._hear_taken)
        async with self.telling:
            await self._send(requests, hears)

    async def hear(self) -> None:
        """Read what an interrupted call has left behind."""
        async with self.telling:
            await self.drain()

    async def drain(self) -> None:
        """Read all that is owed; for whoever holds :attr:`telling`."""
        await self._parked.wait(self._collect)

    async def take(self, limit: int) -> None:
        """Take up to so many commands, if there are some."""
        keys, told = self._words_to_take(limit)
        await self._run(TAKE, keys, told, self._hear_taken)

    def _words_to_take(self, limit: int) -> tuple[list[str], list[Argument]]:
        places, lease = self._places, self._epochs.lease
        keys = [places.control, lease.key, places.deliveries, places.seen]
        return [*keys, lease.owner_key], [limit, self._window_ms, lease.token]

    async def park(self) -> None:
        """Wait up to 2 s for one command."""
        places, inflight = self._places, self._epochs.inflight
        request = ("BLMOVE", places.control, inflight, "LEFT", "RIGHT", BLOCK)
        await self._post(request, self._hear_moved)

    async def look_up(self) -> None:
        """Find out all about what has arrived."""
        if not self.arrived:
            return
        places, lease = self._places, self._epochs.lease
        keys = [lease.key, places.deliveries, places.seen, lease.owner_key]
        told: list[Argument] = [self._window_ms, lease.token]
        for payload in self.arrived:
            told += [payload, self._id_of(payload)]
        await self._run(ADMIT, keys, told, self._hear_admitted)

    async def stop(self) -> None:
        """Release the parked read, and ask for nothing any more."""
        self.stopping = True
        async with self.telling:
            await self._parked.release(self._collect)

    async def _run(
        self,
        script: Script,
        keys: list[str],
        told: list[Argument],
        hear: Callable[[Reply], None],
    ) -> None:
        known = self._known.get(script) == self._wire.generation
        try:
            await self._post(script.request(keys, told, known=known), hear)
        except RedisUnavailableError as error:
            if error.kind != "no_script":
                raise
            await self._post(script.request(keys, told, known=False), hear)
        self._known[script] = self._wire.generation

    async def _post(self, request: Request, hear: Callable[[Reply], None]) -> None:
        if not self.stopping:
            await self._send([request], [hear])

    async def _send(
        self, requests: list[Request], hears: list[Callable[[Reply], None]]
    ) -> None:
        await self._wire.post(requests)
        inflight = self._epochs.inflight
        self._expected = deque((inflight, hear) for hear in hears)
        await self._parked.wait(self._collect)

    async def _collect(self) -> None:
        """Read one owed reply and keep what it brings before anything is awaited."""
        inflight, hear = self._expected[-self._wire.owed]
        reply = await self._wire.collect()
        if inflight == self._epochs.inflight:  # else it brings what others have by now
            hear(reply)

    def _hear_taken(self, reply: Reply) -> None:
        if reply == NOT_OURS:
            self._epochs.suspect()
            return
        found = cast("list[tuple[bytes, int, bytes, int]]", reply)
        ids = [self._id_of(payload) for payload, *_ in found]
        pairs = list(zip(ids, found, strict=True))
        if any(own and own.encode() != guess for own, (_, _, guess, _) in pairs):
            self.arrived.extend(payload for payload, *_ in found)
            return
        for own, (payload, delivery, _, seen) in pairs:
            count = self._check_delivery(delivery)
            self.taken.append(Taken(payload, own, count, bool(own and seen)))

    def _hear_moved(self, reply: Reply) -> None:
        if reply is not None:
            self.arrived.append(reply)

    def _hear_admitted(self, reply: Reply) -> None:
        if reply == NOT_OURS:
            self._epochs.suspect()
            return
        payloads, self.arrived = self.arrived, []
        for payload, (delivery, seen) in zip(payloads, reply, strict=True):
            own = self._id_of(payload)
            count = self._check_delivery(delivery)
            self.taken.append(Taken(payload, own, count, bool(seen)))

    def _check_delivery(self, delivery: int) -> int:
        """Say once that something else than a count stood there; it is the first then."""
        if not delivery and not self._said_odd:
            self._said_odd = True
            text = "%r does not hold counts alone: such a delivery counts as the first"
            logger.warning(text, self._places.deliveries)
        return max(delivery, 1)

    def _id_of(self, payload: bytes) -> str:
        if not self._window_ms:
            return ""
        return name_of_id(find_id(payload, limit=self._size_limit))


def name_of_id(given: str) -> str:
    """Write an id as it is remembered: a long one as its digest.

    A hundred thousand of them are kept, and a sender may send what it likes.
    """
    encoded = given.encode()
    if len(encoded) <= LONGEST_ID:
        return given
    return "sha256:" + hashlib.sha256(encoded).hexdigest()
