"""BLMOVE into a list of this process's own, and an ack: nothing is lost."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

import anyio

from bls_agent.backoff import Backoff, jittered
from bls_agent.connection import Connections
from bls_agent.endpoint import Argument
from bls_agent.errors import RedisRefusedError, RedisUnavailableError, WrongTypeError
from bls_agent.project.messages import OutcomeKind
from bls_agent.project.receiving.acks import Acks
from bls_agent.project.receiving.epochs import Epochs
from bls_agent.project.receiving.holdings import Holdings, Stage
from bls_agent.project.receiving.parked_read import BLOCK
from bls_agent.project.receiving.places import Places, explain_refusal, find_wrong_type
from bls_agent.project.receiving.receiver import Message, Say
from bls_agent.project.receiving.reclaiming import (
    DEAD_LETTER_LIMIT,
    DELIVERIES_TTL,
    MAX_DELIVERIES,
    Reclaimer,
)
from bls_agent.project.receiving.taking import Taker
from bls_agent.scripts import HAND_BACK
from bls_agent.wire import Wire

__all__ = ["ReliableReceiver"]

logger = logging.getLogger(__name__)

LOOKS_PER_TTL: Final = 3
QUICK: Final = 0.5  # seconds: handlers for which one trip more matters
AWAY_GRACE: Final = 0.5  # seconds that the end waits for a Redis that is away
FIRST_PAUSE: Final = 0.25  # seconds before the second try, at most


class ReliableReceiver:
    """BLMOVE into an in-flight list of this process's own; an ack after the handler.

    At least once: nothing is lost of what the serving Redis still holds. A command runs
    twice only if the process or the link dies before its ack, or if the process stands
    still for longer than its lease: then another one takes over what it had.

    Attributes:
        holdings: What was taken and is not acknowledged.
        epochs: Whose list it is.
        reclaimer: Who looks after the lists of the dead.
    """

    mode = "reliable"
    one_at_a_time = False

    def __init__(
        self,
        connections: Connections,
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
        """Remember where from.

        Args:
            connections: The wires.
            key: The control list.
            say: Tells operator and host.
            instance: Name of this process.
            lease_ttl: Seconds after which a silent process has lost what it had.
            window: Seconds for which an id counts as seen.
            on_redelivery: What becomes of a command that was handed out before.
            size_limit: Longest command that is parsed, in bytes.
            report: Called for each command that has ended without being taken.
        """
        self._connections = connections
        self._say = say
        self._wire = connections.blocking
        self._ttl = lease_ttl
        self._on_redelivery = on_redelivery
        self._report = report
        self.places = places = Places.beside(key)
        self.holdings = holdings = Holdings()
        self.epochs = epochs = Epochs(
            self._give_control, places, instance, lease_ttl, on_renamed=self._lose_all
        )
        self.reclaimer = Reclaimer(places, lease_ttl, self._report_dead)
        self._acks = Acks(
            connections, self._give_control, places, epochs, holdings, window=window
        )
        self._taker = Taker(
            connections, places, epochs, window=window, size_limit=size_limit
        )
        self._taken: deque[Message] = deque()
        self._compare_at = float("inf")  # when our list has to be looked at
        self._unsure_until = float("-inf")
        self._generation = -1  # of the connection since which our list is known
        self._limit = 1
        self._opened = False
        self._stopped = anyio.Event()
        self._said: set[str] = set()
        self._told = False

    @property
    def control(self) -> Wire:
        """The wire for everything but the parked read."""
        return self._connections.control

    def _give_control(self) -> Wire:
        return self.control

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``."""
        if not self._taken and not self._stopped.is_set():
            self._taker.asking = True
            try:
                await self._receive(limit)
            except (RedisUnavailableError, WrongTypeError) as error:
                follows = self._taker.follows(error)
                told = error if follows else await self._explain(error)
                if not (follows or self._taken or self._taker.taken):
                    raise told from error
            else:
                self._told = self._taker.follows(None)  # it does not
            finally:
                self._taker.asking = False
        return self.leftovers()

    def leftovers(self) -> list[Message]:
        """Give what was taken, once."""
        self._keep_taken()
        messages = list(self._taken)
        self._taken.clear()
        return messages

    async def _receive(self, limit: int) -> None:
        self._limit = limit
        await self._taker.hear()
        await self._prepare()
        if not self._has_something():
            await self._taker.take(limit)
        if not self._has_something() and self.epochs.valid:
            await self._taker.park()
        if self._must_compare():
            await self._prepare()
        if not self._must_compare():
            await self._taker.look_up()

    def _has_something(self) -> bool:
        return bool(self._taken or self._taker.taken or self._taker.arrived)

    async def _prepare(self) -> None:
        """Have a list that is ours and holds nothing that we do not know."""
        self._keep_taken()
        if not self._opened:
            await self.reclaimer.look(self.control, also=self.epochs.inflight)
            self._opened = True
        await self.epochs.ensure()
        await self._acks.flush()
        if self._must_compare():
            await self._compare()

    def _must_compare(self) -> bool:
        if self._wire.owed:
            return False
        if self._wire.lost or self._generation != self._wire.generation:
            return True
        if not self.epochs.compared:
            return True
        return anyio.current_time() >= self._compare_at

    async def _compare(self) -> None:
        """Find in our list what a dying link has swallowed, or nobody has told us of."""
        self._compare_at = float("-inf")  # until it has succeeded
        if not await self._connections.forget_lost(self._wire, kill=True):
            # It may still bring something, until its block ends.
            self._unsure_until = anyio.current_time() + BLOCK + 1.0
        await self._wire.open()
        self._generation = self._wire.generation
        began, losses = anyio.current_time(), self.epochs.losses
        standing = self.holdings.standing()
        inflight = self.epochs.inflight
        found: list[bytes] = await self.control.call("LRANGE", inflight, 0, -1)
        if self.epochs.inherits:
            lease, back = self.epochs.lease, self.reclaimer.return_inherited
            if found and not await back(self.control, lease, found):
                self.epochs.suspect()
            found, self.epochs.inherits = [], False
        self._taker.arrived = self.holdings.compare(found, standing)
        self.epochs.compared = losses == self.epochs.losses
        sure = began >= self._unsure_until
        self._compare_at = float("inf") if sure else self._unsure_until

    def _lose_all(self) -> None:
        """What we had stands in a list that somebody else owns now."""
        self.holdings.lose_all()
        self._taker.taken.clear()
        self._taker.arrived.clear()

    def _keep_taken(self) -> None:
        """Hold what has come, and decide how each is to end."""
        for payload, own, delivery, seen in self._taker.taken:
            verdict = self._judge(own, delivery, seen=seen)
            message = Message(
                payload,
                delivery,
                self.mode,
                verdict,
                claim=self._may_start,
                on_overdue=self._note_end,
            )
            ack_id = "" if verdict is OutcomeKind.DUPLICATE else own
            self.holdings.take(message, id=own, ack_id=ack_id)
            self._taken.append(message)
        self._taker.taken.clear()

    def _judge(self, own: str, delivery: int, *, seen: bool) -> OutcomeKind | None:
        """Decide how a command ends that is not even started, if it is one."""
        if seen or (own and self.holdings.has_id(own)):
            return OutcomeKind.DUPLICATE
        if delivery > 1 and self._on_redelivery == "skip":
            return OutcomeKind.ABANDONED
        return None

    def _may_start(self, message: Message) -> bool:
        """Claim the right to start a command, at the moment when it is to begin.

        What was reclaimed meanwhile is forgotten: somebody else has it, or will. What
        only may have been is looked for in our list again.
        """
        held = self.holdings.find(message)
        if held is None:
            return False
        if held.gone or not self.epochs.valid or not self.epochs.compared:
            self.holdings.drop(message)
            self._compare_at = anyio.current_time()
            return False
        self.holdings.advance(message, Stage.STARTED)
        held.started_at = anyio.current_time()
        return True

    def _note_end(self, message: Message) -> None:
        """Its outcome is final; the next flush acknowledges it."""
        self.holdings.advance(message, Stage.ENDED)

    async def settle(self, message: Message) -> None:
        """Acknowledge; returns when that is through, or when it must be left for later.

        Left for later is it when the lease is over or the agent stops: what is started
        without an ack is thus never more than what runs at the same time.
        """
        held = self.holdings.find(message)
        if held is None or held.stage is not Stage.STARTED:
            return
        self.holdings.advance(message, Stage.ENDED)
        if anyio.current_time() - held.started_at < QUICK:  # else a trip is nothing
            limit = 0 if self.holdings.any_at(Stage.TAKEN) else self._limit
            await self._acks.say_ahead(message, self._taker, limit)
        await self._acks.settle(message, self._stopped)

    async def give_back(self, messages: Sequence[Message]) -> bool:
        """Put commands back to the head of the control list, their delivery uncounted.

        Where that fails they stay in our list and go back when our lease is over.
        """
        for message in messages:
            self.holdings.drop(message)
        await self._hand_back(is_final=False)
        return True

    async def stop(self) -> None:
        """Release the parked read with CLIENT UNBLOCK, or wait for the end of its block."""
        self._stopped.set()
        await self._taker.stop()
        self._keep_taken()
        if self._taker.arrived:
            await self._hand_back(is_final=False)

    async def close(self) -> None:
        """Put back what did not end, strike off the list and give back the lease."""
        self._stopped.set()
        with anyio.move_on_after(None if self.control.connected else AWAY_GRACE):
            await self.epochs.close()
            await self._acks.try_flush()
            if self.epochs.lease.token:
                await self._hand_back(is_final=True)

    async def _hand_back(self, *, is_final: bool, waiting: bool = False) -> None:
        """Put everything back that is not to stay.

        Args:
            is_final: What is running goes back, too, and the list is given up.
            waiting: What waits in this process is to stay.
        """
        lease, places, holdings = self.epochs.lease, self.places, self.holdings
        started = holdings.payloads(Stage.STARTED)
        stay = holdings.payloads(Stage.ENDED, *([Stage.TAKEN] if waiting else []))
        stay += [] if is_final else started
        keys = [places.control, lease.key, lease.owner_key, places.deliveries]
        told: list[Argument] = [
            lease.token or "?",
            MAX_DELIVERIES,
            DEAD_LETTER_LIMIT,
            DELIVERIES_TTL,
        ]
        rest: list[Argument] = [int(is_final), len(stay), *stay]
        rest += started if is_final else []
        try:
            await self._connections.forget_lost(self._wire, kill=True)
            _, dead = await HAND_BACK.run(
                self.control, [*keys, places.dead, places.lists], [*told, *rest]
            )
        except RedisUnavailableError as error:
            logger.warning("commands go back when the lease is over: %s", error)
            return
        for payload in dead:
            self._report_dead(payload)
        if is_final:
            lease.forget()

    async def run(self) -> None:
        """Keep the lease, and look after the lists of the dead, until cancelled."""
        backoff = Backoff(base=FIRST_PAUSE, cap=min(2.0, self._ttl / LOOKS_PER_TTL))
        while not self.epochs.closed:
            pause = jittered(self._ttl / LOOKS_PER_TTL, backoff.rng)
            try:
                if self._opened:
                    await self._look_after()
                backoff.succeeded()
            except (RedisRefusedError, WrongTypeError) as error:
                if str(error) not in self._said:
                    self._said.add(str(error))
                    logger.warning("the dead are not looked after: %s", error)
            except RedisUnavailableError as error:
                logger.debug("the lease is not renewed: %s", error)
                pause = backoff.failed()
            await anyio.sleep(pause)

    async def _look_after(self) -> None:
        await self._return_unasked()
        await self.epochs.keep()
        if self.epochs.length > len(self.holdings.standing()):
            self._compare_at = anyio.current_time()  # a former owner's read, perhaps
        await self._acks.flush()
        await self.reclaimer.look(self.control, but=self.epochs.inflight)

    async def _return_unasked(self) -> None:
        """Put back what was taken for a slot that did not become free after all."""
        async with self._taker.telling:
            if not self._taker.asking:
                await self._taker.drain()
            if self._taker.asking or not self._taker.taken:
                return
            self._taker.taken.clear()
            await self._hand_back(is_final=False, waiting=True)

    def _report_dead(self, payload: bytes) -> None:
        dead = Message(payload, MAX_DELIVERIES, self.mode, OutcomeKind.DEAD_LETTERED)
        self._report(dead)

    async def _explain(
        self, error: RedisUnavailableError | WrongTypeError
    ) -> RedisUnavailableError | WrongTypeError:
        """Make of a refusal what tells the operator what to do."""
        if isinstance(error, WrongTypeError):
            return error
        types = self.places.types(self.epochs.inflight)
        if (wrong := await find_wrong_type(self.control, error, types)) is not None:
            return wrong
        if (needed := explain_refusal(error)) is None:
            return error
        if not self._told:
            self._told = True
            self._say(
                "mode 'reliable' does not work here: use mode='blocking' or 'compat'",
                {"mode": self.mode, "reason": error.kind},
            )
        return needed
