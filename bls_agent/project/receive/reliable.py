"""A script moves commands into a list of this process's own; an ack: nothing is lost.

Waiting takes nothing: where there is no command, BLMOVE waits for one and moves the head
of the control list onto itself.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, cast

import anyio

from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import ACK, HAND_BACK, TAKE, find_wrong_type
from bls_agent.core.backoff import Backoff, jittered
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.project.messages import OutcomeKind, find_id
from bls_agent.project.receive.blocking import BLOCK, BlockingRead
from bls_agent.project.receive.inflight import (
    LIMITS,
    MAX_DELIVERIES,
    InFlight,
    InFlightLease,
    Reclaimer,
    ReliableKeys,
    Stage,
)
from bls_agent.project.receive.receiver import Message, Receiver, ReceiverCounts, Say

logger = logging.getLogger(__name__)

NOT_OURS: Final = -1  # a script's reply for a list with another owner, or none
SEEN_LIMIT: Final = 100_000
LONGEST_ID: Final = 200  # bytes that are kept of an id; take.lua knows it, too
LOOKS_PER_TTL: Final = 3
AWAY_GRACE: Final = 0.5  # seconds that the end waits for a Redis that is away
FIRST_PAUSE: Final = 0.25  # seconds before the second try, at most
_NEEDED: Final = ("unknown_command", "no_permission", "refused", "unsupported")


class ReliableReceiver(Receiver):
    """Moves commands into an in-flight list of this process's own; an ack after each.

    At least once: nothing is lost of what the serving Redis still holds. A command runs
    twice only if the process or the link dies before its ack, or if the process stands
    still for longer than its lease: then another process takes over what it had.

    What stands in our list and is not held here was never started: a lost link has
    swallowed it, or it was taken for a slot that did not become free. It goes back.
    What is held and does not stand there was acknowledged, or reclaimed. So after each
    request that may or may not have arrived the list is compared with what is held.

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
        concurrency: int,
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
        self._keys = keys = ReliableKeys(key)
        self.in_flight = InFlight()
        self._reclaimer = Reclaimer(
            self._control, keys, lease_ttl, self._report_dead, connections.complaints
        )
        self.lease = InFlightLease(
            self._control,
            keys,
            instance,
            lease_ttl,
            concurrency=concurrency,
            empty=self._reclaimer.empty,
            on_renamed=self.in_flight.forget_all,
        )
        self._read = BlockingRead(connections)
        self._window_ms = int(window * 1000)
        self._size_limit = size_limit
        # Held while something is taken, acknowledged or compared.
        self._lock = anyio.Lock(fast_acquire=True)
        self._is_untidy = True  # our list and what is held here may differ
        self._backoff = Backoff(base=FIRST_PAUSE)  # of acks
        self._retry_at = float("-inf")
        self._opened = False
        self._stopped = anyio.Event()
        self._warned_of_counts = False

    def counts(self) -> ReceiverCounts:
        """Count what is held, what was reclaimed and how often the lease was lost."""
        reclaimed, losses = self._reclaimer.reclaimed, self.lease.losses
        return ReceiverCounts(len(self.in_flight), reclaimed, losses)

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait up to 2 s for at least one command and take up to ``limit``."""
        if self._stopped.is_set():
            return ()
        try:
            return await self._receive(limit)
        except RedisUnavailableError as error:
            raise await self._explain(error) from error

    async def _receive(self, limit: int) -> Sequence[Message]:
        if self._connection.pending:  # a wait that was interrupted
            await self._read.wait()
        async with self._lock:
            await self._prepare()
            messages = await self._take(limit)
        if not messages and self.lease.valid and not self._stopped.is_set():
            key = self._keys.control
            request = ("BLMOVE", key, key, "LEFT", "LEFT", BLOCK)
            await self._read.send([request], [_ignore])
            await self._read.wait()
        return messages

    async def _prepare(self) -> None:
        if not self._opened:
            await self._reclaimer.look(but=self.lease.key)
            self._opened = True
        if not self.lease.valid:
            await self.lease.keep()
        is_in_doubt = self._is_untidy or bool(self._connection.orphans)
        if is_in_doubt or not self.lease.compared:
            await self._tidy()
        await self._acknowledge()

    async def _take(self, limit: int) -> list[Message]:
        """Take commands; if that fails half-way, our list is untidy."""
        keys, lease = self._keys, self.lease.lease
        named = [keys.control, lease.key, keys.deliveries, keys.seen, lease.owner_key]
        try:
            reply = await TAKE.run(
                self._connection, named, [limit, self._window_ms, lease.token]
            )
            if lease is not self.lease.lease:
                return []  # others have these by now
            if reply == NOT_OURS:
                self.lease.lease.step_down()
                return []
            taken = await self._look_up([self._read_taken(*one) for one in reply])
        except BaseException:
            self._is_untidy = True
            raise
        return [self._hold(one) for one in taken]

    def _read_taken(
        self, payload: bytes, delivery: int, guess: bytes, found: int
    ) -> _Taken:
        own = self._id_of(payload)
        is_known = not own or own.encode() == guess
        seen = bool(own and found) if is_known else None
        if not delivery and not self._warned_of_counts:
            self._warned_of_counts = True
            text = "%r does not hold counts alone: such a delivery counts as the first"
            logger.warning(text, self._keys.deliveries)
        return _Taken(payload, own, max(delivery, 1), seen)

    async def _look_up(self, taken: list[_Taken]) -> list[_Taken]:
        """Find out which ids were seen, where the script could not read them."""
        ids = [one.id for one in taken if one.seen is None]
        if not ids:
            return taken
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
            for one in taken
        ]

    def _hold(self, one: _Taken) -> Message:
        """Hold a command; its outcome is known if it is not to be run."""
        preset = None
        if one.seen or (one.id and self.in_flight.has_id(one.id)):
            preset = OutcomeKind.DUPLICATE
        elif one.delivery > 1 and self._on_redelivery == "skip":
            preset = OutcomeKind.ABANDONED
        message = Message(
            one.payload,
            one.delivery,
            self.mode,
            preset,
            on_start=self._may_start,
            on_overdue=self.in_flight.end,
        )
        self.in_flight.take(message, id=one.id)
        return message

    def _may_start(self, message: Message) -> bool:
        """Decide whether a command may start, at the moment when it is to begin.

        What may have been reclaimed is dropped, and goes back if it still stands in our
        list.
        """
        held = self.in_flight.find(message)
        if held is None:
            return False
        if held.gone or not self.lease.valid or not self.lease.compared:
            self.in_flight.drop(message)
            self._is_untidy = True
            return False
        held.stage = Stage.STARTED
        return True

    async def _tidy(self) -> None:
        """Put back what is not held here, and mark what is gone from our list."""
        self._is_untidy = True  # until it has succeeded
        for connection in (self._connection, self._control):
            await self._connections.kill_orphans(connection, kill=True)
        # Behind all that was sent over either connection and given up by its caller.
        await self.lease.keep()
        losses, self._is_untidy = self.lease.losses, False
        try:
            missing = await self._hand_back(*Stage)
        except BaseException:
            self._is_untidy = True
            raise
        if missing is None:
            self.lease.lease.step_down()
            return
        self.in_flight.mark_missing(missing)
        self.lease.compared = losses == self.lease.losses

    async def _hand_back(
        self, *stay: Stage, is_final: bool = False
    ) -> list[bytes] | None:
        """Put everything in our list back except what is at these stages.

        With ``is_final`` the list is given up, and what was started has one more
        delivery. Returns what should stay and does not stand there; ``None`` if the
        list is not ours.
        """
        keys, lease, payloads = self._keys, self.lease.lease, self.in_flight.payloads
        kept = payloads(*stay)
        started = payloads(Stage.STARTED) if is_final else []
        named = [keys.control, lease.key, lease.owner_key]
        reply = await HAND_BACK.run(
            self._control if self._connection.pending else self._connection,
            [*named, keys.deliveries, keys.dead, keys.lists],
            [lease.token or "?", *LIMITS, int(is_final), len(kept), *kept, *started],
        )
        ours, dead, missing = cast("tuple[int, list[bytes], list[bytes]]", reply)
        for payload in dead:
            self._report_dead(payload)
        return missing if ours else None

    async def settle(self, message: Message) -> None:
        """Acknowledge; returns when that has arrived, or must wait for later.

        It waits when the lease is over or the agent stops: so never more commands are
        started without an ack than run at once. All callers share one pace.
        """
        self.in_flight.end(message)
        while message in self.in_flight:
            with suppress(RedisUnavailableError):
                async with self._lock:
                    if anyio.current_time() >= self._retry_at:
                        await self._acknowledge()
            if self._stopped.is_set() or not self.lease.valid:
                return
            with anyio.move_on_after(self._retry_at - anyio.current_time()):
                await self._stopped.wait()

    async def _acknowledge(self) -> None:
        """Acknowledge all that has ended; after a failure one alone, and then the rest.

        To send an ack twice does no harm, unless another command with the same bytes
        stands in the list: so the list is compared before.
        """
        if not self.in_flight.ended:
            return
        try:
            if self._is_untidy:
                await self._tidy()
            if self._backoff.failures:
                await self._send_acks(list(self.in_flight.ended)[:1])
            await self._send_acks(list(self.in_flight.ended))
        except RedisUnavailableError as error:
            delay = self._backoff.failed()
            if not error.connecting:
                self._retry_at = anyio.current_time() + delay
            raise
        self._backoff.succeeded()

    async def _send_acks(self, messages: list[Message]) -> None:
        if not messages:
            return
        keys, lease = self._keys, self.lease.lease
        named = [lease.key, keys.deliveries, keys.seen, lease.owner_key]
        runs = [(named, self._ack_arguments(message)) for message in messages]
        try:
            replies = await ACK.run_many(self._control, runs)
        except BaseException:
            self._is_untidy = True
            raise
        for message, reply in zip(messages, replies, strict=True):
            if reply == NOT_OURS:
                self.lease.lease.step_down()
            elif not isinstance(reply, RedisUnavailableError):
                self.in_flight.drop(message)
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                raise reply

    def _ack_arguments(self, message: Message) -> list[Argument]:
        held = self.in_flight.find(message)
        gone = held is None or held.gone
        is_duplicate = message.preset_outcome is OutcomeKind.DUPLICATE
        return [
            "" if gone else self.lease.lease.token or "?",
            message.payload,
            "" if held is None or is_duplicate else held.id,
            self._window_ms,
            SEEN_LIMIT,
        ]

    async def give_back(self, messages: Sequence[Message]) -> bool:
        """Put commands back to the head of the control list, their delivery uncounted.

        Where that fails they stay in our list and go back when our lease is over.
        """
        for message in messages:
            self.in_flight.drop(message)
        try:
            async with self._lock:
                await self._tidy()
        except RedisUnavailableError as error:
            logger.warning("commands go back when the lease is over: %s", error)
        return True

    async def stop(self) -> None:
        """Release the parked read; what came half-way goes back."""
        self._stopped.set()
        await self._read.release()
        if self._is_untidy and self._opened and self._control.connected:
            await self.give_back(())

    async def close(self) -> None:
        """Put back what did not end, remove the list and give back the lease."""
        self._stopped.set()
        # One that moves to another server is closed for a moment: that is no outage.
        is_away = not any(one.connected for one in self._connections.all)
        with anyio.move_on_after(AWAY_GRACE if is_away else None):
            async with self._lock:
                await self._close()

    async def _close(self) -> None:
        try:
            await self._acknowledge()
        except RedisUnavailableError as error:
            text = "commands that ended are not acknowledged yet: %s"
            logger.debug(text, error)
        await self.lease.close()
        if not self.lease.lease.token:
            return
        try:
            await self._connections.kill_orphans(self._connection, kill=True)
            await self._hand_back(Stage.ENDED, is_final=True)
        except RedisUnavailableError as error:
            logger.warning("commands go back when the lease is over: %s", error)
        else:
            self.lease.lease.forget()

    async def run(self) -> None:
        """Keep the lease, and reclaim the lists of the dead, until cancelled."""
        backoff = Backoff(base=FIRST_PAUSE, cap=min(2.0, self._ttl / LOOKS_PER_TTL))
        while not self.lease.closed:
            pause = jittered(self._ttl / LOOKS_PER_TTL, backoff.rng)
            try:
                if self._opened:
                    await self._look_after()
                backoff.succeeded()
            except RedisRefusedError as error:
                text = "the dead are not looked after"
                self._connections.complaints.say(text, error)
            except RedisUnavailableError as error:
                logger.debug("the lease is not renewed: %s", error)
                pause = backoff.failed()
            await anyio.sleep(pause)

    async def _look_after(self) -> None:
        await self.lease.keep()
        async with self._lock:
            if self.lease.length > len(self.in_flight.payloads(*Stage)):
                self._is_untidy = True  # late, over a lost link; or for no free slot
            if self._is_untidy:
                await self._tidy()
            await self._acknowledge()
        await self._reclaimer.look(but=self.lease.key)

    def _report_dead(self, payload: bytes) -> None:
        dead = Message(payload, MAX_DELIVERIES, self.mode, OutcomeKind.DEAD_LETTERED)
        self._report(dead)

    async def _explain(self, error: RedisUnavailableError) -> BlsError:
        """Name what is wrong or missing behind a refusal: a script does not."""
        if not isinstance(error, RedisRefusedError) or error.connecting:
            return error
        types = self._keys.types(self.lease.key)
        wrong = await find_wrong_type(self._control, error, types)
        if wrong is not None or error.kind not in _NEEDED:
            return wrong or error
        self._say(
            "mode 'reliable' does not work here: use mode='blocking' or 'compat'",
            {"mode": self.mode, "reason": error.kind},
        )
        return RedisRefusedError(
            error.kind,
            f"{error.reason}; mode 'reliable' needs BLMOVE and scripts (Redis 6.2 or "
            "newer, and the rights): use mode='blocking' or mode='compat' instead",
            address=error.address,
        )

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
