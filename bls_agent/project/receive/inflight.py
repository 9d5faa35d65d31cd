"""What a process has taken and not acknowledged: keys, lease, commands, acks."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import ACK, ScriptRun, find_wrong_type, run_scripts
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
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

__all__ = [
    "NOT_OURS",
    "Acks",
    "HeldCommand",
    "InFlight",
    "InFlightLease",
    "ReliableKeys",
    "Stage",
    "explain_refusal",
]

logger = logging.getLogger(__name__)

NOT_OURS: Final = -1  # a script's reply for a list with another owner, or none
SEEN_LIMIT: Final = 100_000
FIRST_PAUSE: Final = 0.25  # seconds before the second try, at most
_NEEDED: Final = ("unknown_command", "no_permission", "refused", "unsupported")


@dataclass(frozen=True)
class ReliableKeys:
    """The keys of reliable receiving: beside the control list, in its slot."""

    control: str  # the protocol's list, from which commands are taken
    lists: str  # a set: the names of all in-flight lists
    deliveries: str  # a hash: how often a command was handed out that came back
    seen: str  # a sorted set: ids of commands that ended
    dead: str  # a list: commands that were handed out too often

    @classmethod
    def beside(cls, control: str) -> ReliableKeys:
        """Make the keys that belong to a control list."""
        place = place_beside(control)
        return cls(
            control=control,
            lists=INFLIGHT_LISTS.locate(place=place),
            deliveries=DELIVERIES.locate(place=place),
            seen=SEEN.locate(place=place),
            dead=DEAD_LETTERS.locate(place=place),
        )

    def inflight(self, instance: str) -> str:
        """The list of the commands that one instance has taken and not ended."""
        return INFLIGHT.locate(place=place_beside(self.control), instance=instance)

    def owner(self, inflight: str) -> str:
        """The key that exists as long as the owner of an in-flight list renews it."""
        return OWNER.locate(place=place_beside(inflight))

    def is_inflight(self, key: str) -> bool:
        """Whether a name in the set of lists can be an in-flight list."""
        return key.startswith(self.inflight("")) and key != self.inflight("")

    def types(self, inflight: str) -> Mapping[str, str]:
        """Key → the type that it should have."""
        return {
            self.control: "list",
            inflight: "list",
            self.owner(inflight): "string",
            self.lists: "set",
            self.deliveries: "hash",
            self.seen: "zset",
            self.dead: "list",
        }


def explain_refusal(error: RedisUnavailableError) -> RedisRefusedError | None:
    """Name what reliable receiving needs, if Redis has refused that."""
    if not isinstance(error, RedisRefusedError) or error.connecting:
        return None
    if error.kind not in _NEEDED:
        return None
    return RedisRefusedError(
        error.kind,
        f"{error.reason}; mode 'reliable' needs BLMOVE and scripts (Redis 6.2 or "
        "newer, and the rights): use mode='blocking' or mode='compat' instead",
        address=error.address,
    )


class InFlightLease:
    """Keeps the lease on this process's in-flight list, or takes another list.

    A lease is never waited for: a list that another process owns is left to it, and a
    fresh name is taken. As long as the lease has not been interrupted no process can
    have reclaimed anything; after an interruption the list has to be compared.
    ``empty`` gives back what a dead process of our name has left in a list, unless its
    owner lives, which it returns.
    """

    def __init__(
        self,
        connection: Connection,
        keys: ReliableKeys,
        instance: str,
        ttl: float,
        *,
        empty: Callable[[str], Awaitable[bool]],
        on_renamed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._instance = instance
        self._ttl = ttl
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

    async def ensure(self) -> None:
        """Have a list, at once if there is one."""
        if not self.valid:
            await self.keep()

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
            # Each time: a set that was emptied or deleted must not hide our list.
            named, length = await self._connection.call_many(
                [
                    ("SADD", self._keys.lists, self.lease.key),
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

    def suspect(self) -> None:
        """Have the lease verified before the list is used: a script doubted it."""
        self.lease.step_down()

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

    payload: bytes
    id: str  # the id that its sender gave, or ``""``
    ack_id: str  # the id that counts as seen when it ends, or ``""``
    stage: Stage = Stage.TAKEN
    started_at: float = 0.0  # when it was started, on the clock of the event loop
    gone: bool = False  # from our list: another process has reclaimed it


class InFlight:
    """The commands that this process has taken and not acknowledged.

    Redis cannot distinguish commands with the same bytes; they are counted.
    """

    def __init__(self) -> None:
        self._held: dict[Message, HeldCommand] = {}
        # Read for each command: with thousands of them a search would be too slow.
        self._at: dict[Stage, dict[Message, None]] = {stage: {} for stage in Stage}
        self._ids: Counter[str] = Counter()  # of what stands in our list

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message: Message) -> bool:
        return message in self._held

    def find(self, message: Message) -> HeldCommand | None:
        """Return what is known of a message, ``None`` if it is not held."""
        return self._held.get(message)

    def take(self, message: Message, *, id: str, ack_id: str) -> None:  # noqa: A002
        """Hold a message from now on."""
        self._held[message] = HeldCommand(message.payload, id, ack_id)
        self._at[Stage.TAKEN][message] = None
        self._ids[id] += 1

    def advance(self, message: Message, stage: Stage) -> None:
        """Record the stage of a message, if it is held."""
        held = self._held.get(message)
        if held is not None:
            del self._at[held.stage][message]
            self._at[stage][message] = None
            held.stage = stage

    def drop(self, message: Message) -> None:
        """Hold it no longer."""
        held = self._held.pop(message, None)
        if held is not None:
            del self._at[held.stage][message]
            self._mark_gone(held)

    def _mark_gone(self, held: HeldCommand) -> None:
        if not held.gone:
            held.gone = True
            self._ids[held.id] -= 1
            if not self._ids[held.id]:
                del self._ids[held.id]

    def has_id(self, id: str) -> bool:  # noqa: A002 - the protocol's name
        """Whether a command with this id is held and stands in our list."""
        return id in self._ids

    def of(self, stage: Stage) -> list[Message]:
        """Messages at a stage, in the order in which they came there."""
        return list(self._at[stage])

    def any_at(self, stage: Stage) -> bool:
        """Whether there is a message at a stage."""
        return bool(self._at[stage])

    def payloads(self, *stages: Stage) -> list[bytes]:
        """The bytes of what stands in our list, at these stages."""
        return [
            held.payload
            for held in self._held.values()
            if held.stage in stages and not held.gone
        ]

    def count_payloads(self) -> Counter[bytes]:
        """Bytes → how many such commands should stand in our list."""
        return Counter(self.payloads(*Stage))

    def standing(self) -> list[Message]:
        """Messages that should stand in our list now."""
        return [message for message, held in self._held.items() if not held.gone]

    def mark_missing(
        self, missing: Iterable[bytes], standing: Sequence[Message]
    ) -> None:
        """Mark as gone what does not stand in our list: it was reclaimed.

        Of what was ``standing`` at the request, some may have been acknowledged since.
        """
        counts = Counter(missing)
        latest_first = reversed(standing)
        for message in sorted(latest_first, key=self._is_leaving, reverse=True):
            if counts[message.payload] > 0:
                counts[message.payload] -= 1
                held = self._held.get(message)
                if held is not None:
                    self._mark_gone(held)

    def _is_leaving(self, message: Message) -> bool:
        """Of equal commands the one that has ended is missing first."""
        held = self._held.get(message)
        return held is None or held.stage is Stage.ENDED

    def forget_all(self) -> None:
        """Mark everything as gone: the list is not ours any more."""
        for held in self._held.values():
            self._mark_gone(held)


class Acks:
    """Takes commands that ended out of the in-flight list, and remembers their ids.

    One write for all that have ended by then. What cannot be sent is sent before
    anything else is taken: so never more wait than commands ran at the same time.
    """

    def __init__(
        self,
        connections: AgentConnections,
        keys: ReliableKeys,
        lease: InFlightLease,
        in_flight: InFlight,
        *,
        window: float,
    ) -> None:
        self._connections = connections
        self._connection = connections.control
        self._keys = keys
        self._lease = lease
        self._in_flight = in_flight
        self._window_ms = int(window * 1000)
        self._lock = anyio.Lock(fast_acquire=True)
        self._in_doubt: list[Message] = []
        self._backoff = Backoff(base=FIRST_PAUSE)
        self._retry_at = float("-inf")

    async def settle(self, message: Message, stopped: anyio.Event) -> None:
        """Acknowledge a command; returns when that has arrived or must wait for later.

        All callers share one pace: a thousand of them make no more requests than one.
        """
        while True:
            with suppress(RedisUnavailableError, WrongTypeError):
                await self.flush(at_pace=True)
            if message not in self._in_flight:
                return
            if stopped.is_set() or not self._lease.valid:
                return
            with anyio.move_on_after(self._retry_at - anyio.current_time()):
                await stopped.wait()

    async def flush(self, *, at_pace: bool = False) -> None:
        """Acknowledge all that has ended; after a failure one alone, and then the rest.

        With ``at_pace`` nothing is done while a failure is too recent.
        """
        if not self._in_flight.any_at(Stage.ENDED):
            return
        async with self._lock:
            if at_pace and anyio.current_time() < self._retry_at:
                return
            try:
                await self._send_all()
            except (RedisUnavailableError, WrongTypeError) as error:
                delay = self._backoff.failed()
                if isinstance(error, WrongTypeError) or not error.connecting:
                    self._retry_at = anyio.current_time() + delay
                raise
            self._backoff.succeeded()

    async def _send_all(self) -> None:
        if self._in_doubt:
            await self._resolve()
        messages = self._in_flight.of(Stage.ENDED)
        if self._backoff.failures and messages:
            await self._send(messages[:1])
            messages = self._in_flight.of(Stage.ENDED)
        if messages:
            await self._send(messages)

    @property
    def calm(self) -> bool:
        """Whether nothing is under way, nothing in doubt and nothing refused."""
        busy = self._lock.locked() or self._in_doubt or self._backoff.failures
        return not busy

    async def send_ahead(
        self, message: Message, connection: Connection, ahead: ScriptRun
    ) -> Reply:
        """Acknowledge and run another script, in one trip; give that one's reply."""
        async with self._lock:
            return (await self._run([message], connection, ahead))[-1]

    def _handle_reply(self, message: Message, reply: Reply) -> None:
        if reply == NOT_OURS:
            self._lease.suspect()
        else:
            self._in_flight.drop(message)

    def _script_keys(self) -> list[str]:
        keys, lease = self._keys, self._lease.lease
        return [lease.key, keys.deliveries, keys.seen, lease.owner_key]

    def _arguments(self, message: Message) -> list[Argument]:
        held = self._in_flight.find(message)
        gone = held is None or held.gone
        return [
            "" if gone else self._lease.lease.token or "?",
            message.payload,
            "" if held is None else held.ack_id,
            self._window_ms,
            SEEN_LIMIT,
        ]

    async def _send(self, messages: list[Message]) -> None:
        replies = await self._run(messages, self._connection)
        refusals = [one for one in replies if isinstance(one, RedisUnavailableError)]
        if refusals:
            types = self._keys.types(self._lease.key)
            wrong = await find_wrong_type(self._connection, refusals[-1], types)
            raise wrong or refusals[-1]

    async def _run(
        self, messages: list[Message], connection: Connection, *ahead: ScriptRun
    ) -> list[Reply]:
        keys = self._script_keys()
        runs = [(ACK, keys, self._arguments(message)) for message in messages]
        self._in_doubt = messages  # also if this is cancelled
        try:
            replies = await run_scripts(connection, [*runs, *ahead])
        except RedisUnavailableError as error:
            if not error.ambiguous:
                self._in_doubt = []
            raise
        self._in_doubt = []
        for message, reply in zip(messages, replies, strict=False):
            if not isinstance(reply, RedisUnavailableError):
                self._handle_reply(message, reply)
        return replies

    async def _resolve(self) -> None:
        """Find out whether an ack without a reply has arrived.

        It does no harm to send it twice, unless another command with the same bytes
        stands in the list: that one would be taken out.
        """
        for connection in (self._connection, self._connections.blocking):
            await self._connections.forget_lost(connection, kill=True)
        doubtful = [m for m in self._in_doubt if m in self._in_flight]
        counts = self._in_flight.count_payloads()
        if any(counts[message.payload] > 1 for message in doubtful):
            standing = await self._connection.call("LRANGE", self._lease.key, 0, -1)
            found: Counter[bytes] = Counter(standing)
            counts = self._in_flight.count_payloads()
            for message in doubtful:
                if found[message.payload] < counts[message.payload]:
                    counts[message.payload] -= 1
                    self._in_flight.drop(message)
        self._in_doubt = []
