"""One connection that waits at Redis for new events of many runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from bls_agent.connection.keyed_wires import KeyedWires
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import BlsError, RedisRefusedError, RedisUnavailableError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.following.channel import Arrivals, Channel
from bls_agent.runs.following.looks import find_refused, gather_evidence
from bls_agent.runs.reading import (
    GROWTH,
    PAGE,
    PAGE_BYTES,
    RunReader,
    decode_entries,
)
from bls_agent.runtime.tasks import start_background

if TYPE_CHECKING:
    import asyncio

__all__ = ["Lane"]

logger = logging.getLogger(__name__)

BLOCK: Final = 3.0  # seconds that the read waits at the server
MARGIN: Final = 1.5  # seconds that its reply may be late
MOST_MARGIN: Final = 10.0  # the same for a server that is far away
FIRST_PAUSE: Final = 0.05  # seconds from one UNBLOCK to the next, then twice as many
GRACE: Final = 1.5  # seconds from the first UNBLOCK until the connection is given up
OF_ITS_KEY: Final = ("wrong_type", "no_permission")  # others may be read
COUNT: Final = 100  # events of all runs in one reply, while nobody knows their size


class Lane:
    """Reads the new events of all its runs with one XREAD; on a cluster those of a slot.

    The places are ours, not the server's: a read may be given up at any time, with its
    reply, and asked again.

    Attributes:
        channels: The runs, by their ids.
    """

    def __init__(self, wires: KeyedWires, key: str, poke: Callable[[], None]) -> None:
        """Remember the way to a key's server; :meth:`add` begins.

        Args:
            wires: For requests that do not wait.
            key: Any key of its server; on a cluster of its slot.
            poke: Called when runs and writers should be looked after earlier.
        """
        self.channels: dict[int, Channel] = {}
        self._outage: RedisUnavailableError | None = None
        self._wires = wires
        self._key = key
        self._poke = poke
        self.wire = wires.waiting(key)
        self._generation = 0
        self._given_up = self._doubted = False
        self._room = self._asked = COUNT  # events in a reply: of all runs; of each
        self._margin = MARGIN
        self._received: int | None = None
        self._posted: dict[bytes, tuple[Channel, str]] = {}
        self._posted_at = 0.0
        self._is_stale = False
        self._scope: anyio.CancelScope | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = anyio.Event()

    @property
    def runs(self) -> bool:
        """Whether somebody reads."""
        return self._task is not None and not self._task.done()

    def add(self, channel: Channel) -> None:
        """Read the new events of one more run."""
        self.channels[channel.keys.run_id] = channel
        channel.outage = self._outage
        self.read_anew()
        if not self.runs:
            name = "bls-agent-runs"
            self._ended = anyio.Event()
            self._task = start_background(self._run, name)
            self._task.add_done_callback(self._note_over)

    def read_anew(self) -> None:
        """Give up the read that is parked: it asks for the wrong places."""
        self._is_stale = True
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while self._keep_wanted():
                try:
                    await self._read()
                except RedisUnavailableError as error:
                    await self._understand(error, backoff)
                except Exception as error:  # noqa: BLE001 - the one place; the log tells
                    text = "following runs failed and is started again\n%s"
                    logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                    await self.wire.drop()
                    await anyio.sleep(1.0 + backoff.failed())
                else:
                    self._doubted = False
                    backoff.succeeded()
        finally:
            self._given_up = True
            await self.wire.aclose()

    def _note_over(self, _: asyncio.Task[None]) -> None:
        """Wake all who wait if somebody has cancelled us: they begin anew."""
        self._ended.set()
        for channel in self.channels.values():
            channel.close()
        self.channels.clear()

    def _keep_wanted(self) -> bool:
        """Forget the runs for which nobody waits any more; tell whether any are left."""
        now = anyio.current_time()
        for run_id, channel in list(self.channels.items()):
            if not channel.is_open or not channel.is_wanted(now):
                del self.channels[run_id]
                channel.close()
        return bool(self.channels)

    async def _read(self) -> None:
        """Wait for events once, and take what has come."""
        if self._is_stale and self.wire.owed:
            await self._release()
        if not self.wire.owed:
            await self._post()
        reply, has_come = await self._collect(self._posted_at + BLOCK + self._margin)
        if has_come:
            await self._take(reply)
        elif not self._is_stale:
            await self._judge_silence()

    async def _post(self) -> None:
        self._is_stale = False
        began = anyio.current_time()
        await self.wire.open()
        if self.wire.generation != self._generation:
            took = anyio.current_time() - began
            self._margin = min(max(MARGIN, 3 * took), MOST_MARGIN)
            self._room = COUNT  # what has come meanwhile may be large
            self._notice_opening()
        self._hear_outage(None)
        channels = list(self.channels.values())
        keys = [channel.keys.events.encode() for channel in channels]
        places = [channel.ring.head for channel in channels]
        self._posted = dict(zip(keys, zip(channels, places, strict=True), strict=True))
        self._posted_at = anyio.current_time()
        self._asked = max(1, min(PAGE, self._room // len(channels)))
        wait = ("BLOCK", int(BLOCK * 1000), "COUNT", self._asked)
        await self.wire.post([("XREAD", *wait, "STREAMS", *keys, *places)])

    def _hear_outage(self, outage: RedisUnavailableError | None) -> None:
        self._outage = outage
        for channel in self.channels.values():
            channel.outage = outage

    def _notice_opening(self) -> None:
        """Have it looked whether the server still knows what we have read."""
        if self._generation and not self._given_up:
            now = anyio.current_time()
            for channel in self.channels.values():
                channel.presence.notice_outage(now)
                channel.unchecked = True
            self._poke()
        self._generation, self._given_up = self.wire.generation, False

    async def _collect(self, until: float) -> tuple[Any, bool]:
        """Wait for the reply; cancelling that loses nothing."""
        self._received = self.wire.received
        with anyio.CancelScope(deadline=until) as scope:
            self._scope = scope
            if self._is_stale:
                scope.cancel()
            try:
                return await self.wire.collect(), True
            finally:
                self._scope = None
        return None, False

    async def _judge_silence(self) -> None:
        """Give the connection up if nothing comes over it, however late."""
        if self.wire.received != self._received:  # a large reply over a narrow link
            self._posted_at = anyio.current_time() - BLOCK
            return
        await self.wire.drop()
        raise RedisUnavailableError(
            "deaf", "the waiting connection gave no answer", address=self.wire.address
        )

    async def _release(self) -> None:
        """Have the server end the read that is parked; else give the connection up."""
        pause, end = FIRST_PAUSE, anyio.current_time() + GRACE
        while self.wire.owed:
            released = await self._unblock()
            if not released or anyio.current_time() > end:
                self._given_up = True
                await self.wire.drop()
                return
            with anyio.move_on_after(pause):
                await self._take(await self.wire.collect())
            pause *= 2

    async def _unblock(self) -> bool:
        number = self.wire.client_id
        if number is None:
            return False
        try:
            async with self._wires.to(self._key) as data:
                if data.server is not None and not self.wire.is_at(data.server):
                    return False  # its id would be a stranger's
                await data.call("CLIENT", "UNBLOCK", number)
        except RedisUnavailableError:
            return False
        return True

    async def _take(self, reply: Any) -> None:
        """Give each run what has come for it."""
        jumps: list[tuple[Channel, Arrivals]] = []
        size = count = 0
        for key, entries in reply or ():
            channel, place = self._posted[key]
            sizes = [sum(map(len, fields)) for _, fields in entries]
            size, count = size + sum(sizes), count + len(sizes)
            if not channel.is_open or channel.ring.head != place:
                continue  # the server has forgotten the place meanwhile
            events = decode_entries(channel.keys.run_id, entries)
            if channel.presence.notice_events():
                self._poke()
            come = Arrivals(events, sizes)
            if channel.continues(events):
                channel.take(come)
            else:
                jumps.append((channel, come))
        if count:
            each = max(1, size // count)
            asked = self._asked * len(self._posted)
            self._room = min(PAGE_BYTES // each, GROWTH * asked)
        for channel, come in jumps:
            await self._take_jump(channel, come)

    async def _take_jump(self, channel: Channel, come: Arrivals) -> None:
        """Take what may not stand right behind what we have, after a look."""
        head = channel.ring.head
        reader = RunReader(self._wires, channel.keys.run_id)
        evidence = await gather_evidence(reader, head, come.events[0].id)
        if channel.ring.head != head:
            return
        if evidence.stands and not evidence.noted:
            channel.take(come)
        else:
            channel.skip(come)

    async def _understand(self, error: RedisUnavailableError, backoff: Backoff) -> None:
        """Find out what an error means, and wait before the next try."""
        if isinstance(error, RedisRefusedError):
            try:
                await self._sort_out(error)
            except RedisUnavailableError as other:
                error = other
            else:
                return
        self._hear_outage(error)
        await anyio.sleep(backoff.failed())

    async def _sort_out(self, error: RedisRefusedError) -> None:
        """Find the runs that cannot be read; if it is none of them, it is all."""
        channels = list(self.channels.values())
        found: list[tuple[Channel, BlsError]] = []
        if not error.connecting:
            found = await find_refused(self._wires, channels)
            if not found and error.kind in OF_ITS_KEY and not self._doubted:
                self._doubted = True  # one may have been wrong for a moment
                raise error
        for channel, failure in found or [(one, error) for one in channels]:
            channel.fail(failure)
            self.channels.pop(channel.keys.run_id, None)

    async def aclose(self) -> None:
        """End; who waits is woken."""
        if self._task is not None and self.runs:
            self._task.cancel()
            await self._ended.wait()
