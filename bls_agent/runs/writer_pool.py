"""What all open runs of one store and event loop share: one connection, one task."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.access import LoopLocal
from bls_agent.connection.after_fork import register
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.reconnect import Gate
from bls_agent.connection.scripts import ADD_EVENTS, HOLD_RUN
from bls_agent.core.backoff import Backoff, jittered
from bls_agent.core.errors import (
    BlsError,
    LeaseHeldError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.events import BEGINNING, order
from bls_agent.runs.new_events import add_arguments
from bls_agent.runs.reading import RunKeys, find_wrong_type
from bls_agent.runtime.lease import (
    RENEWALS,
    LeaseReply,
    LeaseState,
    Ownership,
    Run,
    boot_seconds,
)
from bls_agent.runtime.tasks import ThreadSafeEvent, start_background

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.access import Access
    from bls_agent.connection.pool import ConnectionPool

__all__ = ["HighWaterMarks", "RunLease", "WriterPool", "WriterPools"]

logger = logging.getLogger(__name__)

MOST: Final = 10_000  # runs; those written longest ago are forgotten
_UNKNOWN: Final = (0, BEGINNING, float("-inf"))

NEVER: Final = float("inf")
REMEDY: Final = "Give the run another id, or contribute to it with lifecycle=False."

NAME: Final = "bls-agent runs"
CAP: Final = 2.0  # seconds between two tries while Redis is away
RETRY: Final = 1.0  # seconds after a fault of ours
TOGETHER: Final = 12  # leases due within this part of a lease are renewed, too
AGAIN: Final = 0.1  # seconds, at least, between two tries on a cluster


class HighWaterMarks:
    """Sequence and id of the last event written, for each run that lives."""

    def __init__(self) -> None:
        self._marks: OrderedDict[int, tuple[int, str, float]] = OrderedDict()
        self._lock = threading.Lock()
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: a thread that does not exist here may hold the lock."""
        self._lock = threading.Lock()

    def of(self, run_id: int, now: float) -> tuple[int, str]:
        """Give the sequence and the id that the next event has to come after.

        An expired run has none: its server did not lose it, so it begins anew.
        """
        sequence, event_id, until = self._marks.get(run_id, _UNKNOWN)
        return (sequence, event_id) if now < until else (0, BEGINNING)

    def raise_to(self, run_id: int, sequence: int, event_id: str, until: float) -> None:
        """Record what was written; an older mark changes nothing."""
        with self._lock:  # event loops in several threads may share a store
            known_sequence, known_id, known = self._marks.pop(run_id, _UNKNOWN)
            highest = max(known_id, event_id, key=order)
            until = max(until, known) if known < math.inf else until
            self._marks[run_id] = max(known_sequence, sequence), highest, until
            if len(self._marks) > MOST:
                self._marks.popitem(last=False)

    def expire(self, run_id: int, until: float) -> None:
        """Record when a run expires."""
        with self._lock:
            if run_id in self._marks:
                self._marks[run_id] = (*self._marks[run_id][:2], until)

    def forget(self, run_id: int) -> None:
        """Drop the mark of a run that was deleted, and begins anew."""
        with self._lock:
            self._marks.pop(run_id, None)


class RunLease(LeaseState):
    """The lease of one writer on its run, from its opening to its end.

    Each renewal starts the run's own TTL anew, too, however long nothing is written.
    """

    def __init__(
        self,
        keys: RunKeys,
        token: str,
        *,
        lease: float,
        run_ttl: int,
        rng: random.Random,
    ) -> None:
        super().__init__(keys.events, lease, token)
        self.keys = keys
        self.run_ttl = run_ttl  # seconds
        self.due = 0.0  # when to send the next request, by the event loop's clock
        # set at the first reply, and where none is to be expected soon
        self.answered = anyio.Event()
        # what opening the run raises, if anything
        self.refusal: BlsError | None = None
        self._rng = rng
        self._logged_lost = self._over = False
        self._backoff = Backoff(cap=CAP)

    def request(self) -> Run:
        """Make the request that takes or renews the lease."""
        return self.keys.all, (*self.arguments, self.run_ttl)

    def note_reply(self, reply: Reply, *, sent_at: float) -> float:
        """Handle a reply; give the seconds until the next request."""
        if self._over:
            return NEVER
        self._backoff.succeeded()
        answer = LeaseReply.of(reply)
        if self.handle_reply(answer, sent_at=sent_at, now=boot_seconds()):
            return 0.0
        if self.standing is Ownership.OURS:
            self._log_regained()
        else:
            self._refuse(LeaseHeldError(self.key, answer.remaining, REMEDY))
        self.answered.set()
        if answer.what == "ended":
            return NEVER
        return jittered(self.ttl / RENEWALS, self._rng)

    def note_renewed(self, *, sent_at: float) -> None:
        """Record that a batch of events has renewed the lease."""
        if self._over:
            return
        self.record_renewed(sent_at)
        self._log_regained()
        self.due = anyio.current_time() + jittered(self.ttl / RENEWALS, self._rng)

    def fail(
        self, error: RedisUnavailableError, wrong: WrongTypeError | None = None
    ) -> float:
        """Record that a request failed; give the seconds until the next one."""
        refused = isinstance(error, RedisRefusedError)
        if wrong is not None:
            self.refusal = wrong
        self.answered.set()
        return self._backoff.failed(permanent=refused)

    def finish(self) -> None:
        """Give up the lease here; later replies do not count."""
        self._over = True
        self.due = NEVER
        self.end()
        self.answered.set()

    def _log_regained(self) -> None:
        if self._logged_lost:
            self._logged_lost = False
            logger.info("run %d is ours again", self.keys.run_id)

    def _refuse(self, error: LeaseHeldError) -> None:
        """Refuse the opening: another writer has the run. Later only log that."""
        if self.answered.is_set():
            self.log_lost()
        else:
            self.refusal = error

    def log_lost(self) -> None:
        """Log once that this writer has lost the run."""
        if not self._logged_lost:
            self._logged_lost = True
            text = (
                "run %d belongs to another writer now, or was ended by one: events are "
                "written on, its end is not"
            )
            logger.warning(text, self.keys.run_id)


class WriterPool:
    """Renews the leases of all open runs from one task, and paces their writers."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._gate = Gate(Backoff(cap=CAP))
        self._gate.on_connected = self._note_back
        self._away = False
        self._leases: dict[int, RunLease] = {}
        self._wakeup = ThreadSafeEvent()
        self._task: asyncio.Task[None] | None = None
        self._ended = anyio.Event()
        self.users = 0  # runs that are open
        # whether its task has ended: leases are not renewed any more
        self.is_over = False

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = start_background(self._run, NAME)
        self._task.add_done_callback(self._note_over)

    def _note_over(self, _: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs no finally of its own.
        self.is_over = True
        self._ended.set()
        for lease in self._leases.values():
            lease.answered.set()

    async def aclose(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await self._ended.wait()

    def add(self, lease: RunLease) -> None:
        """Request a lease soon, and renew it from then on."""
        self._leases[id(lease)] = lease
        lease.due = anyio.current_time()
        if self._away:  # the opening does not wait for Redis
            lease.answered.set()
        self._wakeup.set()

    def remove(self, lease: RunLease) -> None:
        """Stop renewing a lease."""
        self._leases.pop(id(lease), None)

    def _note_back(self) -> None:
        """Renew at once: leases that ended or were forgotten meanwhile come back."""
        self._away, now = False, anyio.current_time()
        for lease in self._leases.values():
            if lease.due != float("inf"):
                lease.due = min(lease.due, now)
        self._wakeup.set()

    async def give_back(self, lease: RunLease) -> None:
        """End a lease that Redis may have given; nothing was written in its run."""
        self.remove(lease)
        nothing = add_arguments(
            (), maxlen=1, ttl=lease.run_ttl, floor=(0, BEGINNING),
            token=lease.token, number=1, ends=True,
        )  # fmt: skip
        await self.add_events(lease.keys, nothing)

    async def add_events(self, keys: RunKeys, arguments: Sequence[Argument]) -> Reply:
        """Run ``add_events.lua``."""
        pool = self._access.pool
        try:
            await self._open(pool)
            reply = (await ADD_EVENTS.run_many(pool, [(keys.all, arguments)]))[0]
            if isinstance(reply, RedisUnavailableError):
                raise reply
        except RedisUnavailableError as error:
            self._warn(error, await self._find_wrong(error, keys))
            if error.connecting and pool.is_cluster:  # no gate has paced it
                await anyio.sleep(AGAIN + Backoff(cap=CAP, failures=4).failed())
            raise
        return reply

    async def _open(self, pool: ConnectionPool) -> None:
        """Connect; while Redis is away one attempt serves all runs."""
        if not pool.is_cluster and not pool.pick().connected:
            async with pool.to("") as connection:
                await self._gate.enter(connection.open)

    async def _find_wrong(
        self, error: RedisUnavailableError, keys: RunKeys
    ) -> WrongTypeError | None:
        if error.kind != "wrong_type":
            return None
        return await find_wrong_type(self._access.pool, keys)

    def _warn(self, error: RedisUnavailableError, wrong: WrongTypeError | None) -> None:
        shown: BlsError = wrong or error
        if error.kind == "no_permission":
            shown = BlsError(str(error))
        if not error.connecting:
            self._gate.complaints.say("events of runs cannot be written", shown)

    async def _run(self) -> None:
        self._wakeup.bind()
        try:
            while True:
                try:
                    await self._renew(await self._wait())
                except Exception as error:  # noqa: BLE001 - ours: the others go on
                    text = "a renewal of the runs' leases failed\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await anyio.sleep(RETRY)
        finally:
            self._wakeup.unbind()

    async def _wait(self) -> list[RunLease]:
        """Wait until leases are due; give them, and those that are due soon."""
        while True:
            now = anyio.current_time()
            leases = list(self._leases.values())
            first = min((lease.due for lease in leases), default=float("inf"))
            if first <= now:
                return [
                    lease for lease in leases if lease.due <= now + lease.ttl / TOGETHER
                ]
            await self._wakeup.wait(None if first == float("inf") else first - now)

    async def _renew(self, leases: Sequence[RunLease]) -> None:
        pool = self._access.pool
        replies: list[Reply]
        for lease in leases:  # if this fails: not at once again
            lease.due = anyio.current_time() + RETRY
        try:
            await self._open(pool)
            sent_at = boot_seconds()
            replies = await HOLD_RUN.run_many(
                pool, [lease.request() for lease in leases]
            )
        except RedisUnavailableError as error:
            self._away |= error.connecting
            sent_at = 0.0
            replies = [error] * len(leases)
        else:
            self._away = False
        now = anyio.current_time()
        for lease, reply in zip(leases, replies, strict=True):
            if isinstance(reply, RedisUnavailableError):
                wrong = await self._find_wrong(reply, lease.keys)
                self._warn(reply, wrong)
                lease.due = now + lease.fail(reply, wrong)
            else:
                lease.due = now + lease.note_reply(reply, sent_at=sent_at)


class WriterPools:
    """The pools of one store: one for each event loop that has open runs."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._by_loop: LoopLocal[WriterPool] = LoopLocal()

    def enter(self) -> WriterPool:
        """Give the pool of the running event loop, and count one more user."""
        pool = self._by_loop.get(self._start)
        if pool.is_over:
            self._by_loop.pop()
            pool = self._by_loop.get(self._start)
        pool.users += 1
        return pool

    def _start(self) -> WriterPool:
        pool = WriterPool(self._access)
        pool.start()
        return pool

    async def leave(self, pool: WriterPool) -> None:
        """Give back a pool, in its event loop; the last user ends it."""
        pool.users -= 1
        if not pool.users:
            if self._by_loop.find() is pool:
                self._by_loop.pop()
            await pool.aclose()

    async def close_unused(self) -> None:
        """Close the connections of this event loop, unless a run is open in it."""
        if self._by_loop.find() is None:
            await self._access.aclose()
