"""The in-flight list: the commands that this process has taken and not acknowledged.

A command is acknowledged when Redis has removed it from the in-flight list and has
stored its id. An "ack" is the request that does this.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, cast

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Argument
from bls_agent.connection.scripts import EXCHANGE, HAND_BACK
from bls_agent.core.errors import DecodeError, RedisUnavailableError
from bls_agent.core.settings import Settings
from bls_agent.project.messages import id_of
from bls_agent.project.receive.receiver import Message, Start
from bls_agent.project.receive.reclaimer import (
    DEAD_LETTER_LIMIT,
    DELIVERIES_TTL,
    MAX_DELIVERIES,
    Reclaimer,
    ReliableKeys,
)
from bls_agent.runtime.lease import Lease

logger: logging.Logger = logging.getLogger(__name__)

SEEN_LIMIT: Final = 100_000
LONGEST_ID: Final = 200  # bytes of the longest id that is stored, as in exchange.lua
ACKS_AT_ONCE: Final = 1_000  # acks in one run of the script, which must be short


class ListState(Enum):
    """The state of the list in Redis, as far as this process can be sure.

    The docstring of :class:`InFlightList` describes each state.
    """

    UNKNOWN = "unknown"
    OURS = "ours"
    IN_DOUBT = "in_doubt"
    LOST = "lost"
    CLOSED = "closed"


class Stage(Enum):
    """The progress of a command in this process."""

    TAKEN = "taken"
    STARTED = "started"
    ENDED = "ended"


@dataclass(eq=False, slots=True)
class HeldCommand:
    """One command that this process has taken and not acknowledged."""

    id: str  # the id that Redis stores when the command has ended; may be empty
    start: Start  # whether the command runs when a worker is free
    stage: Stage = Stage.TAKEN
    reclaimed: bool = False  # if true, the list in Redis no longer has the command


class InFlightList:
    """Owns an in-flight list in Redis and its lease, and has a copy of it in memory.

    The states are:

    * ``UNKNOWN``: This process has not had the lease yet. :meth:`reconcile` takes the
      lease. It also puts back the commands that a dead process of this name has left in
      the list.
    * ``OURS``: This process has the lease, and the list and the memory contain the same
      commands.
    * ``IN_DOUBT``: A connection was lost, or it is unknown whether a request was
      executed. Commands in memory may still start. :meth:`reconcile` changes the state
      to ``OURS``.
    * ``LOST``: The lease has ended, so another process may have emptied the list. No
      command starts. :meth:`reconcile` takes this lease again, or the lease of another
      list, and changes the state to ``OURS``.
    * ``CLOSED``: :meth:`close` was called. No command is taken or started, and the
      lease is not renewed.

    :meth:`reconcile` compares the commands by their bytes. A command is in memory, in
    the list, in both or in none:

    ======== ============ ================================ ==========================
    memory   list         reason                           action of ``reconcile``
    ======== ============ ================================ ==========================
    yes      yes          taken and not acknowledged       none
    yes      no           the reply to its ack was lost,   marked as reclaimed: not
                          or another process has it        started, not acknowledged
    no       yes          the reply with it was lost, or   put back to the head of the
                          no worker became free            control list, not counted
    no       no           the command has ended            none
    ======== ============ ================================ ==========================

    "Not counted" means that the delivery count of the command stays the same.

    Seven attributes only keep the arguments of the constructor.

    The caller holds a lock while it calls a coroutine method. :meth:`renew` is called
    without this lock, because a renewal must not wait for other requests.
    """

    def __init__(
        self,
        connections: AgentConnections,
        keys: ReliableKeys,
        settings: Settings,
        reclaimer: Reclaimer,
        report_dead: Callable[[bytes], None],
        *,
        instance: str,
    ) -> None:
        self._connections = connections
        self._keys = keys
        self._settings = settings
        self._instance = instance
        self._reclaimer = reclaimer
        self._report_dead = report_dead
        self._renewing = anyio.Lock()
        self.lease: Lease = self._make_lease(instance)
        self.state: ListState = ListState.UNKNOWN
        self.losses: int = 0  # how often the lease was lost
        # Counts doubts and losses. If the number changes during reconcile(), the state
        # does not become OURS.
        self._doubts = 0
        self._held: dict[Message, HeldCommand] = {}
        # How often _held has each id, without the commands that were reclaimed.
        self._ids: defaultdict[str, int] = defaultdict(int)
        # The held commands that have ended, in the order of their ends. A search in
        # _held would be too slow.
        self.ended: dict[Message, None] = {}
        self._warned_of_counts = False

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message: Message) -> bool:
        return message in self._held

    @property
    def valid(self) -> bool:
        """Whether commands may start, because this process surely has the lease now."""
        state = self.state
        may_be_ours = state is ListState.OURS or state is ListState.IN_DOUBT
        return may_be_ours and self.lease.valid

    @property
    def is_closed(self) -> bool:
        return self.state is ListState.CLOSED

    @property
    def in_order(self) -> bool:
        """Whether the list and the memory surely contain the same commands."""
        is_ours = self.state is ListState.OURS and self.lease.valid
        return is_ours and not self._connections.blocking.orphans

    # --- the commands in memory

    def begin(self, message: Message) -> Start:
        """Return whether a message may start now.

        If another process may have reclaimed the command, it is dropped from memory. If
        the command is still in the list, the next :meth:`reconcile` puts it back.
        """
        held = self._held.get(message)
        if held is None:
            return Start.SKIP
        if held.reclaimed or not self.valid:
            self.drop(message)
            self._record_doubt()
            return Start.SKIP
        held.stage = Stage.STARTED
        return held.start

    def end(self, message: Message) -> None:
        held = self._held.get(message)
        if held is not None:
            held.stage = Stage.ENDED
            self.ended[message] = None

    def drop(self, message: Message) -> None:
        self.ended.pop(message, None)
        held = self._held.pop(message, None)
        if held is not None and not held.reclaimed:
            self._forget_id(held)

    def payloads(self, *stages: Stage) -> list[bytes]:
        """Return the payloads at these stages that the list in Redis should contain."""
        return [
            message.payload
            for message, held in self._held.items()
            if held.stage in stages and not held.reclaimed
        ]

    def mark_missing(self, missing: Iterable[bytes]) -> None:
        """Mark the commands as reclaimed that are missing in the list.

        If several commands have equal bytes, commands that have ended are marked first,
        and then the commands that were taken last.
        """
        counts = Counter(missing)
        latest_first = reversed(self._held.items())
        for message, held in sorted(latest_first, key=_is_running):
            if counts[message.payload] > 0 and not held.reclaimed:
                counts[message.payload] -= 1
                self._mark_reclaimed(held)

    def _mark_reclaimed(self, held: HeldCommand) -> None:
        held.reclaimed = True
        self._forget_id(held)

    def _forget_id(self, held: HeldCommand) -> None:
        if self._ids[held.id] > 1:
            self._ids[held.id] -= 1
        else:
            del self._ids[held.id]

    def hold(self, message: Message, *, id: str, is_seen: bool = False) -> None:  # noqa: A002
        start = Start.RUN
        if is_seen or (id and id in self._ids):
            start = Start.DUPLICATE
        elif message.delivery > 1 and self._settings.on_redelivery == "skip":
            start = Start.ABANDONED
        self._held[message] = HeldCommand(id, start)
        self._ids[id] += 1

    # --- requests to the server

    async def exchange(
        self, limit: int, *, startable: int = 0, acks: int = ACKS_AT_ONCE
    ) -> list[Message]:
        """Take up to ``limit`` commands, and acknowledge up to ``acks`` ended commands.

        One script does both. ``startable`` is the number of commands that may start
        before the next request, if this number is larger than ``concurrency``. If the
        reply is lost, the state becomes ``IN_DOUBT``. If the server refuses the script,
        the state stays the same, because nothing was changed.
        """
        connections, lease = self._connections, self.lease
        concurrency = self._settings.concurrency
        ended = list(islice(self.ended, acks))
        acknowledged: list[Argument] = []
        for message in ended:
            held = self._held[message]
            # A duplicate stores no id, because the first command with this id does so.
            is_known = held.start is Start.DUPLICATE
            acknowledged += (message.payload, "" if is_known else held.id)
            acknowledged.append(0 if held.reclaimed else 1)
        keys = self._keys
        try:
            reply = await EXCHANGE.run(
                connections.blocking if limit else connections.control,
                (
                    *(keys.control, lease.key, lease.owner_key),
                    *(keys.lists, keys.deliveries, keys.seen),
                ),
                [
                    *EXCHANGE.order(
                        token=lease.token or "?",
                        limit=limit,
                        concurrency=concurrency,
                        startable=max(startable, concurrency),
                        window=int(self._settings.dedup_window * 1000),
                        ids=SEEN_LIMIT,
                    ),
                    *acknowledged,
                ],
            )
        except BaseException as error:
            if getattr(error, "ambiguous", True):  # true for a cancellation, too
                self._record_doubt()
            raise
        ours, found = cast("tuple[int, list[tuple[bytes, int, bytes, int]]]", reply)
        if lease is not self.lease:
            return []  # another list is used now, and all commands are marked
        # New commands are added before ended commands are dropped. Therefore a new
        # command with the id of a command that has just ended is found to be a
        # duplicate.
        taken = await self._hold_taken(found) if found else []
        self._drop_ended(ended, is_ours=bool(ours))
        if not ours:
            self._record_loss()
        return taken

    def _drop_ended(self, ended: Iterable[Message], *, is_ours: bool) -> None:
        for message in ended:
            held = self._held.get(message)  # None if it was dropped meanwhile
            if held is not None and (is_ours or held.reclaimed):
                self.drop(message)

    async def _hold_taken(
        self, found: Sequence[tuple[bytes, int, bytes, int]]
    ) -> list[Message]:
        taken: list[Message] = []
        ids: list[str] = []
        unread: list[str] = []  # ids that the script could not read
        for payload, delivery, guess, _ in found:
            message = Message(payload, max(delivery, 1), "reliable")
            own = self._id_of(message)
            if own and own.encode() != guess:
                unread.append(own)
            if not delivery:
                self._warn_of_counts()
            taken.append(message)
            ids.append(own)
        try:
            seen = await self._look_up(unread) if unread else {}
        except BaseException:
            self._record_doubt()  # the commands are in the list, but not in memory
            raise
        for message, own, (*_, guess, is_seen) in zip(taken, ids, found, strict=True):
            known = bool(own) and own.encode() == guess and bool(is_seen)
            self.hold(message, id=own, is_seen=known or seen.get(own, False))
        return taken

    async def _look_up(self, ids: list[str]) -> dict[str, bool]:
        """Return for each id whether a command with this id has ended recently.

        Used for ids that ``exchange.lua`` could not read.
        """
        scores = [("ZSCORE", self._keys.seen, one) for one in ids]
        replies = await self._connections.control.call_many([("TIME",), *scores])
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                raise reply
        clock, *found = replies
        now = int(clock[0]) * 1000 + int(clock[1]) // 1000
        since = now - int(self._settings.dedup_window * 1000)
        return {
            one: score is not None and float(score) > since
            for one, score in zip(ids, found, strict=True)
        }

    def _id_of(self, message: Message) -> str:
        """Return the id that Redis will store, or a digest of a long id."""
        if not self._settings.dedup_window:
            return ""
        try:
            given = id_of(message.read(self._settings.command_size_limit))
        except DecodeError:
            return ""
        encoded = given.encode()
        if len(encoded) <= LONGEST_ID:
            return given
        return "sha256:" + hashlib.sha256(encoded).hexdigest()

    def _warn_of_counts(self) -> None:
        if not self._warned_of_counts:
            self._warned_of_counts = True
            text = "%r does not hold counts alone: such a delivery counts as the first"
            logger.warning(text, self._keys.deliveries)

    async def reconcile(self) -> None:
        """Make the list and the memory equal, as the docstring of the class describes.

        If this raises an error, the state is not ``OURS``.
        """
        self._record_doubt()
        connections = self._connections
        for connection in (connections.blocking, connections.control):
            await connections.kill_orphans(connection, kill=True)
        # The server executes this request after all earlier requests, including those
        # whose callers were cancelled.
        await self.renew()
        doubts = self._doubts
        missing = await self.hand_back(*Stage)
        if missing is None:
            self._record_loss()
            return
        self.mark_missing(missing)
        if doubts == self._doubts and self.state is not ListState.CLOSED:
            self.state = ListState.OURS

    async def hand_back(
        self, *stay: Stage, is_final: bool = False
    ) -> list[bytes] | None:
        """Put the commands of the list back, except those at the stages ``stay``.

        ``is_final`` also ends the lease, and counts a delivery for each command that
        has started. Return the commands that should stay but are missing in the list,
        or ``None`` if this process does not own the list.
        """
        connections, lease = self._connections, self.lease
        blocking = connections.blocking
        kept = self.payloads(*stay)
        started = self.payloads(Stage.STARTED) if is_final else []
        reply = await HAND_BACK.run(
            connections.control if blocking.pending else blocking,
            self._keys.moving(lease.key),
            [
                *HAND_BACK.order(
                    token=lease.token or "?",
                    most=MAX_DELIVERIES,
                    kept=DEAD_LETTER_LIMIT,
                    seconds=DELIVERIES_TTL,
                    is_final=int(is_final),
                    stays=len(kept),
                ),
                *kept,
                *started,
            ],
        )
        ours, dead, missing = cast("tuple[int, list[bytes], list[bytes]]", reply)
        for payload in dead:
            self._report_dead(payload)
        return missing if ours else None

    # --- the lease

    async def renew(self) -> None:
        """Renew the lease, and register the list.

        If the lease has ended, take it again. If another process has the lease, leave
        its list unchanged and take the lease of a new list.
        """
        async with self._renewing:
            if self.state is ListState.CLOSED:
                return
            if not await self.lease.renew():
                is_first = self.state is ListState.UNKNOWN
                self._record_loss()
                in_use = is_first and await self._reclaimer.empty(self.lease.key)
                if in_use or not await self.lease.acquire():
                    await self._take_another_list()
                if is_first:
                    self.state = ListState.IN_DOUBT  # no command was taken yet
            await self._register()

    async def _register(self) -> None:
        """Add the list to the hash of all in-flight lists, if its entry is missing."""
        # "all": every command of the list may have been started. exchange.lua replaces
        # this word by how many of the oldest commands may have been started.
        registered, length = await self._connections.control.call_many(
            [
                ("HSETNX", self._keys.lists, self.lease.key, "all"),
                ("LLEN", self.lease.key),
            ]
        )
        if isinstance(registered, RedisUnavailableError):
            raise registered
        if isinstance(length, int) and length > len(self.payloads(*Stage)):
            self._record_doubt()  # the list has more commands than the memory

    async def _take_another_list(self) -> None:
        name = f"{self._instance}~{secrets.token_hex(4)}"
        fresh = self._make_lease(name)
        for held in self._held.values():
            if not held.reclaimed:
                self._mark_reclaimed(held)
        self.lease = fresh
        await fresh.acquire()

    def _make_lease(self, name: str) -> Lease:
        key, ttl = self._keys.inflight(name), self._settings.lease_ttl
        control = self._connections.control
        return Lease(control, key, ttl, is_dead=_is_waited_for)

    def _record_doubt(self) -> None:
        self._doubts += 1
        if self.state is ListState.OURS:
            self.state = ListState.IN_DOUBT

    def _record_loss(self) -> None:
        self._doubts += 1
        if self.state in (ListState.OURS, ListState.IN_DOUBT):
            self.losses += 1
            self.state = ListState.LOST
        self.lease.step_down()

    async def close(self) -> None:
        self.state = ListState.CLOSED
        async with self._renewing:
            pass


def _is_running(item: tuple[Message, HeldCommand]) -> bool:
    return item[1].stage is not Stage.ENDED


def _is_waited_for(_: str) -> bool:
    """Return false, so that :class:`Lease` never takes the lease of a dead process.

    The reclaimer empties the list of the dead process first.
    """
    return False
