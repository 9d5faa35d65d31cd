"""What all open runs of one store and event loop share: one connection, one task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.after_fork import keep, register
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.gate import Gate
from bls_agent.connection.loop_local import LoopLocal
from bls_agent.connection.scripts import ADD_EVENTS, HOLD_RUN
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import BlsError, RedisUnavailableError, WrongTypeError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.adding import add_arguments
from bls_agent.runs.event_ids import BEGINNING
from bls_agent.runs.reading import RunKeys, find_wrong_type
from bls_agent.runs.writing.hold import Hold
from bls_agent.runtime.lease import boot_seconds
from bls_agent.runtime.tasks import ThreadSafeEvent, start_background

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.access import Access
    from bls_agent.connection.keyed_wires import KeyedWires
    from bls_agent.connection.wire import Wire

__all__ = ["WriterPool", "WriterPools"]

logger = logging.getLogger(__name__)

NAME: Final = "bls-agent runs"
CAP: Final = 2.0  # seconds between two tries while Redis is away
RETRY: Final = 1.0  # seconds after a fault of ours
TOGETHER: Final = 12  # part of a lease: what is due so soon is renewed with others
AGAIN: Final = 0.1  # seconds, at least, between two tries on a cluster


class WriterPool:
    """Renews the leases of all open runs from one task, and paces who writes them.

    Attributes:
        users: Runs that are open.
        is_over: Whether its task has ended: leases are not renewed any more.
    """

    def __init__(self, access: Access) -> None:
        """Remember the way; :meth:`start` begins, in the running event loop."""
        self._access = access
        self._gate = Gate(Backoff(cap=CAP))
        self._gate.on_connected = self._note_back
        self._away = False
        self._holds: dict[int, Hold] = {}
        self._wakeup = ThreadSafeEvent()
        self._task: asyncio.Task[None] | None = None
        self._ended = anyio.Event()
        self.users = 0
        self.is_over = False

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = start_background(self._run, NAME)
        self._task.add_done_callback(self._note_over)

    def _note_over(self, _: asyncio.Task[None]) -> None:
        # A task that is cancelled before it began runs nothing of its own, no finally.
        self.is_over = True
        self._ended.set()
        for hold in self._holds.values():
            hold.judged.set()

    async def aclose(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await self._ended.wait()

    def add(self, hold: Hold) -> None:
        """Have a lease taken soon, and renewed from then on."""
        self._holds[id(hold)] = hold
        hold.due = anyio.current_time()
        if self._away:  # its opening does not wait for Redis
            hold.judged.set()
        self._wakeup.set()

    def remove(self, hold: Hold) -> None:
        """Renew a lease no longer."""
        self._holds.pop(id(hold), None)

    def _note_back(self) -> None:
        """Renew at once: what ended or was forgotten meanwhile comes back."""
        self._away, now = False, anyio.current_time()
        for hold in self._holds.values():
            if hold.due != float("inf"):
                hold.due = min(hold.due, now)
        self._wakeup.set()

    async def give_back(self, hold: Hold) -> None:
        """End a lease that is perhaps ours, of a run in which nothing was written.

        Raises:
            RedisUnavailableError: It ends by itself.
        """
        self.remove(hold)
        nothing = add_arguments(
            (), maxlen=1, ttl=hold.ttl, floor=(0, BEGINNING),
            token=hold.token, number=1, ends=True,
        )  # fmt: skip
        await self.add_events(hold.keys, nothing, lambda: None)

    async def add_events(
        self,
        keys: RunKeys,
        arguments: Sequence[Argument],
        meanwhile: Callable[[], None],
    ) -> Reply:
        """Run ``add_events.lua``.

        Raises:
            RedisUnavailableError: Not executed, or (``ambiguous``) perhaps.
        """
        wires = self._access.wires
        try:
            if wires.is_cluster:
                meanwhile()
                run = (keys.all, arguments)
                reply = (await ADD_EVENTS.run_many(wires, [run]))[0]
            else:
                reply = await self._add_over(wires, keys, arguments, meanwhile)
            if isinstance(reply, RedisUnavailableError):
                raise reply
        except RedisUnavailableError as error:
            self._complain(error, await self._find_wrong(error, keys))
            if error.connecting and wires.is_cluster:  # no gate has paced it
                await anyio.sleep(AGAIN + Backoff(cap=CAP, failures=4).failed())
            raise
        return reply

    async def _add_over(
        self,
        wires: KeyedWires,
        keys: RunKeys,
        arguments: Sequence[Argument],
        meanwhile: Callable[[], None],
    ) -> Reply:
        async with wires.to(keys.events) as wire:
            await self._open(wire)
            request = ADD_EVENTS.request(keys.all, arguments)
            reply = (await wire.call_many([request], meanwhile))[0]
            if isinstance(reply, RedisUnavailableError) and reply.kind == "no_script":
                request = ADD_EVENTS.request(keys.all, arguments, known=False)
                reply = (await wire.call_many([request]))[0]
            return reply

    async def _open(self, wire: Wire) -> None:
        """Connect; while Redis is away one tries for all."""
        if not wire.connected:
            await self._gate.enter(wire.open)

    async def _find_wrong(
        self, error: RedisUnavailableError, keys: RunKeys
    ) -> WrongTypeError | None:
        if error.kind != "wrong_type":
            return None
        return await find_wrong_type(self._access.wires, keys)

    def _complain(
        self, error: RedisUnavailableError, wrong: WrongTypeError | None
    ) -> None:
        told: BlsError = wrong or error
        if error.kind == "no_permission":
            told = BlsError(str(error))
        if not error.connecting:
            self._gate.complaints.say("events of runs cannot be written", told)

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

    async def _wait(self) -> list[Hold]:
        """Wait until leases are to be renewed; give those, and what is due soon."""
        while True:
            now = anyio.current_time()
            holds = list(self._holds.values())
            first = min((hold.due for hold in holds), default=float("inf"))
            if first <= now:
                return [
                    hold for hold in holds if hold.due <= now + hold.lease / TOGETHER
                ]
            await self._wakeup.wait(None if first == float("inf") else first - now)

    async def _renew(self, holds: Sequence[Hold]) -> None:
        wires = self._access.wires
        replies: list[Reply]
        for hold in holds:  # if this fails: not at once again
            hold.due = anyio.current_time() + RETRY
        try:
            if not wires.is_cluster:
                async with wires.to("") as wire:
                    await self._open(wire)
            sent_at = boot_seconds()
            replies = await HOLD_RUN.run_many(wires, [hold.ask() for hold in holds])
        except RedisUnavailableError as error:
            self._away |= error.connecting
            sent_at = 0.0
            replies = [error] * len(holds)
        else:
            self._away = False
        now = anyio.current_time()
        for hold, reply in zip(holds, replies, strict=True):
            if isinstance(reply, RedisUnavailableError):
                wrong = await self._find_wrong(reply, hold.keys)
                self._complain(reply, wrong)
                hold.due = now + hold.fail(reply, wrong)
            else:
                hold.due = now + hold.hear(reply, sent_at=sent_at)


class WriterPools:
    """The pools of one store: one for each event loop, as long as runs are open there."""

    def __init__(self, access: Access) -> None:
        """Remember the way to Redis."""
        self._access = access
        self._by_loop: LoopLocal[WriterPool] = LoopLocal()

    def forget_parent(self) -> None:
        """In a forked child: the loops are the parent's."""
        keep(self._by_loop.values())
        self._by_loop.forget_parent()

    def enter(self) -> WriterPool:
        """Give the pool of the running event loop, one user more."""
        pool = self._by_loop.find()
        if pool is None or pool.is_over:
            register(self)
            pool = WriterPool(self._access)
            self._by_loop.keep(pool)
            pool.start()
        pool.users += 1
        return pool

    async def leave(self, pool: WriterPool) -> None:
        """Give back a pool, in its event loop; the last one ends it."""
        pool.users -= 1
        if not pool.users:
            if self._by_loop.find() is pool:
                self._by_loop.pop()
            await pool.aclose()

    async def close_unused(self) -> None:
        """Close the connections of this event loop, unless a run is open in it."""
        if self._by_loop.find() is None:
            await self._access.aclose()
