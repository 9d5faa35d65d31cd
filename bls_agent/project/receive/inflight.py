"""What a process has taken and not acknowledged, and the lists of the dead."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.reconnect import Complaints
from bls_agent.connection.scripts import RECLAIM
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import (
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    OWNER,
    SEEN,
    place_beside,
)
from bls_agent.project.receive.receiver import Message
from bls_agent.runtime.lease import Lease

logger = logging.getLogger(__name__)

MAX_DELIVERIES: Final = 3
DEAD_LETTER_LIMIT: Final = 1_000
LIMITS: Final = (MAX_DELIVERIES, DEAD_LETTER_LIMIT, cast("int", DELIVERIES.ttl))
LISTS_AT_ONCE: Final = 100  # of a fleet's; the next round finds others
COMMANDS_AT_ONCE: Final = 100  # so that a script is short


class ReliableKeys:
    """The keys of reliable receiving: beside the control list, in its slot."""

    def __init__(self, control: str) -> None:
        place = place_beside(control)
        self.control = control  # the protocol's list, from which commands are taken
        # A hash: in-flight list → how many of its oldest commands may have been started.
        self.lists = INFLIGHT_LISTS.locate(place=place)
        # A hash: how often a command was handed out that came back.
        self.deliveries = DELIVERIES.locate(place=place)
        # A sorted set: ids of commands that ended.
        self.seen = SEEN.locate(place=place)
        # A list: commands that were handed out too often.
        self.dead = DEAD_LETTERS.locate(place=place)

    def inflight(self, instance: str) -> str:
        """The list of the commands that one instance has taken and not ended."""
        return INFLIGHT.locate(place=place_beside(self.control), instance=instance)

    def owner(self, inflight: str) -> str:
        """The key that exists as long as the owner of an in-flight list renews it."""
        return OWNER.locate(place=place_beside(inflight))

    def is_inflight(self, key: str) -> bool:
        """Whether a name among the lists can be an in-flight list."""
        return key.startswith(self.inflight("")) and key != self.inflight("")

    def types(self, inflight: str) -> Mapping[str, str]:
        """Key → the type that it should have."""
        return {
            self.control: "list",
            inflight: "list",
            self.owner(inflight): "string",
            self.lists: "hash",
            self.deliveries: "hash",
            self.seen: "zset",
            self.dead: "list",
        }


class InFlightLease:
    """Keeps the lease on this process's in-flight list, or takes another list.

    A list that another process owns is left to it, and a fresh name is taken. After an
    interruption of the lease the list has to be compared: it may have been reclaimed.
    ``empty`` gives back what a dead process has left in a list; true if its owner
    lives.
    """

    def __init__(
        self,
        connection: Connection,
        keys: ReliableKeys,
        instance: str,
        ttl: float,
        *,
        concurrency: int,
        empty: Callable[[str], Awaitable[bool]],
        on_renamed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._instance = instance
        self._ttl = ttl
        self._concurrency = concurrency
        self._empty = empty
        self._on_renamed = on_renamed
        self._lock = anyio.Lock()
        # The lease on the list that is in use.
        self.lease = self._make_lease(instance)
        self.compared = False  # whether the list surely holds what is recorded here
        self.losses = 0  # how often the lease was interrupted
        self.length = 0  # commands in the list at the last request
        self.closed = False
        self._listed = False  # whether other processes would find the list
        self._ever = False

    @property
    def valid(self) -> bool:
        """Whether the list is surely ours now."""
        return self.lease.valid and self._listed and not self.closed

    @property
    def key(self) -> str:
        """The key of the list that is in use."""
        return self.lease.key

    async def keep(self) -> None:
        """Renew the lease, get it back, or get another list; register its name."""
        async with self._lock:
            if self.closed:
                return
            if not await self.lease.renew():
                self.compared = self._listed = False
                self.losses += self._ever
                in_use = not self._ever and await self._empty(self.lease.key)
                if in_use or not await self.lease.acquire():
                    await self._take_another_list()
            self._ever = True
            # Each time: a hash that was emptied or deleted must not hide our list.
            named, length = await self._connection.call_many(
                [
                    ("HSET", self._keys.lists, self.lease.key, self._concurrency),
                    ("LLEN", self.lease.key),
                ]
            )
            if isinstance(named, RedisUnavailableError):
                raise named
            self._listed = True
            self.length = length if isinstance(length, int) else 0

    async def _take_another_list(self) -> None:
        name = f"{self._instance}~{secrets.token_hex(4)}"
        fresh = self._make_lease(name)
        self._on_renamed()
        self.lease = fresh
        await fresh.acquire()

    def _make_lease(self, name: str) -> Lease:
        key = self._keys.inflight(name)
        return Lease(self._connection, key, self._ttl, is_dead=_is_waited_for)

    async def close(self) -> None:
        """Acquire and renew nothing any more."""
        self.closed = True
        async with self._lock:
            pass


def _is_waited_for(_: str) -> bool:
    """Wait for the end of a dead owner's lease, too: its list is to be emptied first."""
    return False


class Stage(Enum):
    """How far a command has come in this process."""

    TAKEN = "taken"
    STARTED = "started"
    ENDED = "ended"


@dataclass(eq=False)
class HeldCommand:
    """One command that this process has taken and not acknowledged."""

    id: str  # the id that its sender gave, or ``""``
    stage: Stage = Stage.TAKEN
    gone: bool = False  # from our list: another process has reclaimed it


class InFlight:
    """The commands that this process has taken and not acknowledged."""

    def __init__(self) -> None:
        self._held: dict[Message, HeldCommand] = {}
        # Those that have ended, in that order: with thousands a search is too slow.
        self.ended: dict[Message, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message: Message) -> bool:
        return message in self._held

    def find(self, message: Message) -> HeldCommand | None:
        """Return what is known of a message, ``None`` if it is not held."""
        return self._held.get(message)

    def take(self, message: Message, *, id: str) -> None:  # noqa: A002
        """Hold a message from now on."""
        self._held[message] = HeldCommand(id)

    def end(self, message: Message) -> None:
        """Record that a message has ended, if it is held."""
        held = self._held.get(message)
        if held is not None:
            held.stage = Stage.ENDED
            self.ended[message] = None

    def drop(self, message: Message) -> None:
        """Hold it no longer."""
        self.ended.pop(message, None)
        self._held.pop(message, None)

    def has_id(self, id: str) -> bool:  # noqa: A002 - the protocol's name
        """Whether a command with this id is held and stands in our list."""
        return any(held.id == id and not held.gone for held in self._held.values())

    def payloads(self, *stages: Stage) -> list[bytes]:
        """The bytes of what stands in our list, at these stages."""
        return [
            message.payload
            for message, held in self._held.items()
            if held.stage in stages and not held.gone
        ]

    def mark_missing(self, missing: Iterable[bytes]) -> None:
        """Mark as gone what does not stand in our list: it was reclaimed.

        Of equal commands the one that has ended is missing first, then the latest.
        """
        counts = Counter(missing)
        latest_first = reversed(self._held.items())
        for message, held in sorted(latest_first, key=_is_running):
            if counts[message.payload] > 0 and not held.gone:
                counts[message.payload] -= 1
                held.gone = True

    def forget_all(self) -> None:
        """Mark everything as gone: the list is not ours any more."""
        for held in self._held.values():
            held.gone = True


def _is_running(item: tuple[Message, HeldCommand]) -> bool:
    return item[1].stage is not Stage.ENDED


class Reclaimer:
    """Puts back into the control list what dead processes have taken."""

    def __init__(
        self,
        connection: Connection,
        keys: ReliableKeys,
        ttl: float,
        report_dead: Callable[[bytes], None],
        complaints: Complaints,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._lease_ms = max(1, int(ttl * 1000))
        self._report_dead = report_dead
        self._complaints = complaints
        self.reclaimed = 0  # commands of dead processes, dead letters included

    async def look(self, *, but: str) -> None:
        """Check the lists of all processes but one, and empty those of the dead."""
        call, lists = self._connection.call, self._keys.lists
        found = await call("HRANDFIELD", lists, LISTS_AT_ONCE)
        names = [name.decode("utf-8", "replace") for name in found]
        names = [n for n in names if n != but and self._keys.is_inflight(n)]
        requests = [("PTTL", self._keys.owner(name)) for name in names]
        left = await self._connection.call_many(requests)
        for name, answer in zip(names, left, strict=True):
            # Of a living process the script cuts a lease that is too long.
            if isinstance(answer, int) and not 0 <= answer <= self._lease_ms:
                try:
                    await self.empty(name)
                except RedisRefusedError as error:
                    self._complaints.say(f"commands stay in {name!r}", error)

    async def empty(self, name: str) -> bool:
        """Empty a list unless its owner lives; return whether the owner lives."""
        keys, moved = self._keys, COMMANDS_AT_ONCE
        named = [keys.control, name, keys.owner(name)]
        while moved == COMMANDS_AT_ONCE:
            reply = await RECLAIM.run(
                self._connection,
                [*named, keys.deliveries, keys.dead, keys.lists],
                [COMMANDS_AT_ONCE, *LIMITS, self._lease_ms],
            )
            lives, moved, dead = cast("tuple[int, int, list[bytes]]", reply)
            if lives:
                return True
            self.reclaimed += moved
            if moved:
                logger.info("%d commands of a dead process reclaimed: %s", moved, name)
            for payload in dead:
                self._report_dead(payload)
        return False
