"""A script moves commands into a list of this process's own; an ack: nothing is lost.

Waiting takes nothing: where there is no command, BLMOVE waits for one and moves the head
of the control list onto itself.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import TAKE, find_wrong_type
from bls_agent.core.backoff import Backoff, jittered
from bls_agent.core.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.project.messages import OutcomeKind, find_id
from bls_agent.project.receive.blocking import BLOCK, BlockingRead
from bls_agent.project.receive.inflight import (
    NOT_OURS,
    Acks,
    InFlight,
    InFlightLease,
    ReliableKeys,
    Stage,
    explain_refusal,
)
from bls_agent.project.receive.receiver import Message, Receiver, ReceiverCounts, Say
from bls_agent.project.receive.reclaim import MAX_DELIVERIES, Reclaimer

__all__ = ["LONGEST_ID", "ReliableReceiver"]

logger = logging.getLogger(__name__)

LONGEST_ID: Final = 200  # bytes that are kept of an id; take.lua knows it, too
LOOKS_PER_TTL: Final = 3
QUICK: Final = 0.5  # seconds: handlers for which one trip more matters
AWAY_GRACE: Final = 0.5  # seconds that the end waits for a Redis that is away
FIRST_PAUSE: Final = 0.25  # seconds before the second try, at most


class ReliableReceiver(Receiver):
    """Moves commands into an in-flight list of this process's own; an ack after each.

    At least once: nothing is lost of what the serving Redis still holds. A command runs
    twice only if the process or the link dies before its ack, or if the process stands
    still for longer than its lease: then another process takes over what it had.

    What stands in our list and is not held here was never started: a lost link has
    swallowed it, or it was taken for a slot that did not become free. It goes back.

    ``lease_ttl`` is in seconds; an id counts as seen for ``window`` seconds; ``report``
    is called for each command that has ended without being taken.
    """

    mode = "reliable"

    def __init__(
        self,
        connections: AgentConnections,
        key: str,
        say: Say,
        *,
        instance: str,
        lease_ttl: float,
        window: float,
        on_redelivery: Literal["run", "skip"],
        size_limit: int,
        report: Callable[[Message], None],
    ) -> None:
        self._connections = connections
        self._say = say
        self._connection = connections.blocking
        self._control = connections.control
        self._ttl = lease_ttl
        self._on_redelivery = on_redelivery
        self._report = report
        self._keys = keys = ReliableKeys.beside(key)
        self.in_flight = InFlight()
        self._reclaimer = Reclaimer(
            self._control, keys, lease_ttl, self._report_dead, connections.complaints
        )
        self.lease = InFlightLease(
            self._control,
            keys,
            instance,
            lease_ttl,
            empty=self._reclaimer.empty,
            on_renamed=self._forget_all,
        )
        self._acks = Acks(connections, keys, self.lease, self.in_flight, window=window)
        self._read = BlockingRead(connections)
        self._window_ms = int(window * 1000)
        self._size_limit = size_limit
        # Held while something is taken, or nothing may be.
        self._taking = anyio.Lock(fast_acquire=True)
        self._arrived: list[_Taken] = []  # taken, and not held yet
        self._taken: deque[Message] = deque()
        self._is_untidy = True  # our list may hold what is not held here
        self._generation = -1  # of the connection since which our list is known
        self._limit = 1
        self._opened = False
        self._stopped = anyio.Event()
        self._warned_of_counts = False

    def counts(self) -> ReceiverCounts:
        """Count what is held, what was reclaimed and how often the lease was lost."""
        reclaimed, losses = self._reclaimer.reclaimed, self.lease.losses
        return ReceiverCounts(len(self.in_flight), reclaimed, losses)

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``."""
        if not self._taken and not self._stopped.is_set():
            try:
                await self._receive(limit)
            except (RedisUnavailableError, WrongTypeError) as error:
                told = await self._explain(error)
                if not self._taken:
                    raise told from error
        return self.leftovers()

    def leftovers(self) -> list[Message]:
        """Return what was taken, once."""
        messages = list(self._taken)
        self._taken.clear()
        return messages

    async def _receive(self, limit: int) -> None:
        self._limit = limit
        if self._connection.pending:  # a wait that was interrupted
            await self._read.wait()
        async with self._taking:
            await self._prepare()
            if not self._taken:
                run = TAKE.run(self._connection, *self._take_arguments(limit))
                await self._note_taken(run)
                await self._hold_arrived()
        if not self._taken and self.lease.valid and not self._stopped.is_set():
            key = self._keys.control
            request = ("BLMOVE", key, key, "LEFT", "LEFT", BLOCK)
            await self._read.send([request], [_ignore])
            await self._read.wait()

    async def _prepare(self) -> None:
        await self._hold_arrived()
        if not self._opened:
            await self._reclaimer.look(but=self.lease.key)
            self._opened = True
        await self.lease.ensure()
        await self._acks.flush()
        if self._must_tidy():
            await self._tidy()

    def _take_arguments(self, limit: int) -> tuple[list[Argument], list[Argument]]:
        keys, lease = self._keys, self.lease.lease
        named = [keys.control, lease.key, keys.deliveries, keys.seen, lease.owner_key]
        return [*named], [limit, self._window_ms, lease.token]

    async def _note_taken(self, run: Awaitable[Reply]) -> None:
        """Note what a script has taken; without its reply, that our list is untidy."""
        inflight = self.lease.key
        try:
            reply = await run
        except RedisUnavailableError as error:
            self._is_untidy |= error.ambiguous
            raise
        except BaseException:  # cancelled half-way
            self._is_untidy = True
            raise
        if isinstance(reply, RedisUnavailableError):
            raise reply
        if inflight != self.lease.key:
            return  # others have these by now
        if reply == NOT_OURS:
            self.lease.suspect()
            return
        for payload, delivery, guess, found in reply:
            own = self._id_of(payload)
            is_known = not own or own.encode() == guess
            seen = bool(own and found) if is_known else None
            count = self._check_delivery(delivery)
            self._arrived.append(_Taken(payload, own, count, seen))

    def _must_tidy(self) -> bool:
        if self._connection.lost or self._generation != self._connection.generation:
            return True
        return self._is_untidy or not self.lease.compared

    async def _tidy(self) -> None:
        """Put back what is not held here, and mark what is gone from our list.

        Behind what was taken over the same connection, and given up by its caller.
        """
        self._is_untidy = True  # until it has succeeded
        await self._connections.forget_lost(self._connection, kill=True)
        await self._connection.open()
        connection = self._control if self._connection.pending else self._connection
        generation, losses = self._connection.generation, self.lease.losses
        self._arrived.clear()
        standing = self.in_flight.standing()
        stay = self.in_flight.payloads(*Stage)
        lease, self._is_untidy = self.lease.lease, False
        try:
            missing = await self._reclaimer.give_back(connection, lease, stay=stay)
        except BaseException:
            self._is_untidy = True
            raise
        if missing is None:
            self.lease.suspect()
            return
        self.in_flight.mark_missing(missing, standing)
        self.lease.compared = losses == self.lease.losses
        self._generation = generation

    def _forget_all(self) -> None:
        self.in_flight.forget_all()
        self._arrived.clear()

    async def _hold_arrived(self) -> None:
        """Hold what was taken; where an id cannot be looked up, all of it goes back."""
        if not self._arrived:
            return
        arrived, self._arrived = self._arrived, []
        if any(one.seen is None for one in arrived):
            try:
                arrived = await self._look_up(arrived)
            except BaseException:
                self._is_untidy = True
                raise
        for one in arrived:
            preset = self._decide_preset(one)
            message = Message(
                one.payload,
                one.delivery,
                self.mode,
                preset,
                on_start=self._may_start,
                on_overdue=self._record_end,
            )
            ack_id = "" if preset is OutcomeKind.DUPLICATE else one.id
            self.in_flight.take(message, id=one.id, ack_id=ack_id)
            self._taken.append(message)

    async def _look_up(self, arrived: list[_Taken]) -> list[_Taken]:
        """Find out which ids were seen, where the script could not read them."""
        ids = [one.id for one in arrived if one.seen is None]
        scores = [("ZSCORE", self._keys.seen, one) for one in ids]
        replies = await self._control.call_many([("TIME",), *scores])
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                raise reply
        clock, *found = replies
        since = int(clock[0]) * 1000 + int(clock[1]) // 1000 - self._window_ms
        seen = {
            one: score is not None and float(score) > since
            for one, score in zip(ids, found, strict=True)
        }
        return [
            one if one.seen is not None else one._replace(seen=seen[one.id])
            for one in arrived
        ]

    def _decide_preset(self, one: _Taken) -> OutcomeKind | None:
        """Decide the outcome of a command that is not to be run; else ``None``."""
        if one.seen or (one.id and self.in_flight.has_id(one.id)):
            return OutcomeKind.DUPLICATE
        if one.delivery > 1 and self._on_redelivery == "skip":
            return OutcomeKind.ABANDONED
        return None

    def _may_start(self, message: Message) -> bool:
        """Decide whether a command may start, at the moment when it is to begin.

        What was reclaimed meanwhile is dropped: another process has it, or will. What
        may have been reclaimed goes back, if it still stands in our list.
        """
        held = self.in_flight.find(message)
        if held is None:
            return False
        if held.gone or not self.lease.valid or not self.lease.compared:
            self.in_flight.drop(message)
            self._is_untidy = True
            return False
        self.in_flight.advance(message, Stage.STARTED)
        held.started_at = anyio.current_time()
        return True

    def _record_end(self, message: Message) -> None:
        """Record that its outcome is final; the next flush acknowledges it."""
        self.in_flight.advance(message, Stage.ENDED)

    async def settle(self, message: Message) -> None:
        """Acknowledge; returns when that has arrived, or must wait for later.

        It waits when the lease is over or the agent stops: so never more commands are
        started without an ack than run at the same time.
        """
        held = self.in_flight.find(message)
        if held is None or held.stage is not Stage.STARTED:
            return
        self._record_end(message)
        quick = anyio.current_time() - held.started_at < QUICK  # else a trip is nothing
        if quick and self._may_take():
            take = (TAKE, *self._take_arguments(self._limit))
            async with self._taking:
                sent = self._acks.send_ahead(message, self._connection, take)
                with suppress(RedisUnavailableError):
                    await self._note_taken(sent)
        await self._acks.settle(message, self._stopped)

    def _may_take(self) -> bool:
        """Whether the next commands may be taken in the trip of an ack."""
        connection = self._connection
        if not connection.ready or connection.pending or self._taking.locked():
            return False
        if self._stopped.is_set() or self._arrived or self._must_tidy():
            return False
        return self._acks.calm and not self.in_flight.any_at(Stage.TAKEN)

    async def give_back(self, messages: Sequence[Message]) -> bool:
        """Put commands back to the head of the control list, their delivery uncounted.

        Where that fails they stay in our list and go back when our lease is over.
        """
        for message in messages:
            self.in_flight.drop(message)
        await self._give_back(Stage.ENDED, Stage.STARTED)
        return True

    async def stop(self) -> None:
        """Release the parked read; what was taken is in :meth:`leftovers`."""
        self._stopped.set()
        await self._read.release()
        if self._arrived:
            self._arrived.clear()
            await self._give_back(*Stage)

    async def close(self) -> None:
        """Put back what did not end, remove the list and give back the lease."""
        self._stopped.set()
        with anyio.move_on_after(None if self._control.connected else AWAY_GRACE):
            await self.lease.close()
            try:
                await self._acks.flush()
            except (RedisUnavailableError, WrongTypeError) as error:
                text = "commands that ended are not acknowledged yet: %s"
                logger.debug(text, error)
            if self.lease.lease.token:
                await self._give_back(Stage.ENDED, is_final=True)

    async def _give_back(self, *stay: Stage, is_final: bool = False) -> None:
        """Put back everything except these stages; ``is_final`` gives up the list."""
        lease, payloads = self.lease.lease, self.in_flight.payloads
        keep, started = payloads(*stay), payloads(Stage.STARTED) if is_final else ()
        try:
            await self._connections.forget_lost(self._connection, kill=True)
            await self._reclaimer.give_back(
                self._control, lease, stay=keep, started=started, is_final=is_final
            )
        except RedisUnavailableError as error:
            logger.warning("commands go back when the lease is over: %s", error)
            return
        if is_final:
            lease.forget()

    async def run(self) -> None:
        """Keep the lease, and reclaim the lists of the dead, until cancelled."""
        backoff = Backoff(base=FIRST_PAUSE, cap=min(2.0, self._ttl / LOOKS_PER_TTL))
        while not self.lease.closed:
            pause = jittered(self._ttl / LOOKS_PER_TTL, backoff.rng)
            try:
                if self._opened:
                    await self._look_after()
                backoff.succeeded()
            except (RedisRefusedError, WrongTypeError) as error:
                text = "the dead are not looked after"
                self._connections.complaints.say(text, error)
            except RedisUnavailableError as error:
                logger.debug("the lease is not renewed: %s", error)
                pause = backoff.failed()
            await anyio.sleep(pause)

    async def _look_after(self) -> None:
        await self.lease.keep()
        if self.lease.length > len(self.in_flight.standing()):
            self._is_untidy = True  # late, over a lost link; or for no free slot
        async with self._taking:
            if self._is_untidy:
                await self._tidy()
        await self._acks.flush()
        await self._reclaimer.look(but=self.lease.key)

    def _report_dead(self, payload: bytes) -> None:
        dead = Message(payload, MAX_DELIVERIES, self.mode, OutcomeKind.DEAD_LETTERED)
        self._report(dead)

    async def _explain(
        self, error: RedisUnavailableError | WrongTypeError
    ) -> RedisUnavailableError | WrongTypeError:
        if isinstance(error, WrongTypeError):
            return error
        types = self._keys.types(self.lease.key)
        if (wrong := await find_wrong_type(self._control, error, types)) is not None:
            return wrong
        if (needed := explain_refusal(error)) is None:
            return error
        self._say(
            "mode 'reliable' does not work here: use mode='blocking' or 'compat'",
            {"mode": self.mode, "reason": error.kind},
        )
        return needed

    def _check_delivery(self, delivery: int) -> int:
        """Take a value that is no count for the first delivery, and warn once."""
        if not delivery and not self._warned_of_counts:
            self._warned_of_counts = True
            text = "%r does not hold counts alone: such a delivery counts as the first"
            logger.warning(text, self._keys.deliveries)
        return max(delivery, 1)

    def _id_of(self, payload: bytes) -> str:
        """The id whose end is remembered; a long one as digest: 100,000 are kept."""
        if not self._window_ms:
            return ""
        given = find_id(payload, limit=self._size_limit)
        encoded = given.encode()
        if len(encoded) <= LONGEST_ID:
            return given
        return "sha256:" + hashlib.sha256(encoded).hexdigest()


class _Taken(NamedTuple):
    payload: bytes
    id: str  # under which its end is remembered, or ``""``
    delivery: int  # 1 for the first
    # Whether a command with this id has ended already; ``None`` before it is looked up.
    seen: bool | None


def _ignore(_: Reply) -> None:
    pass
