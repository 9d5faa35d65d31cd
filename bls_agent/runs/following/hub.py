"""All runs that are followed in one event loop, over one waiting connection."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.connection.access import Access
from bls_agent.connection.after_fork import keep, register
from bls_agent.connection.keyed_wires import KeyedWires
from bls_agent.connection.loop_local import LoopLocal
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.event_ids import EventId, order
from bls_agent.runs.following.channel import Channel
from bls_agent.runs.following.lane import Lane
from bls_agent.runs.following.looks import look_at
from bls_agent.runs.following.shared_pages import SharedPages
from bls_agent.runs.reading import RunKeys
from bls_agent.runtime.tasks import start_background

if TYPE_CHECKING:
    import asyncio

__all__ = ["Hub", "Hubs"]

logger = logging.getLogger(__name__)

NAME: Final = "bls-agent-runs"  # of the tasks
AT_ONCE: Final = 0.02  # seconds: looks that are due within it go into one write


class Hub:
    """The lanes of one event loop, and the one who looks after runs and writers.

    Attributes:
        pages: What several followers read at the same time.
        is_closed: Whether its store was closed here: who follows ends.
    """

    def __init__(self, wires: KeyedWires) -> None:
        """Remember the wires; :meth:`join` begins."""
        self.wires = wires
        self.is_closed = False
        self._openings = 0
        self.pages = SharedPages()
        self._lanes: dict[int, Lane] = {}
        self._poked = anyio.Event()
        self._ended = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        register(self)

    def forget_parent(self) -> None:
        """In a forked child: the tasks are the parent's, who waits there does so there."""
        self._forsake()
        keep(self)

    def find(self, run_id: int, key: str) -> Channel | None:
        """Give the channel of a run that somebody follows already."""
        lane = self._lanes.get(self.wires.slot_of(key))
        channel = lane.channels.get(run_id) if lane is not None else None
        return channel if channel is not None and channel.is_open else None

    def join(
        self, keys: RunKeys, place: EventId, known: int | None, *, seen: bool
    ) -> Channel:
        """Give the channel of a run; if there is none, one that begins at a place.

        Args:
            keys: Of the run.
            place: Behind which nothing stood a moment ago.
            known: The sequence there, if it is known.
            seen: Whether the run was there already.
        """
        channel = self.find(keys.run_id, keys.events)
        if channel is not None:
            return channel
        slot = self.wires.slot_of(keys.events)
        lane = self._lanes.get(slot)
        if lane is None:
            self._lanes = {at: one for at, one in self._lanes.items() if one.runs}
            lane = self._lanes[slot] = Lane(self.wires, keys.events, self._poke)
        channel = Channel(keys, place, known, seen=seen)
        lane.add(channel)
        self._poke()
        if self._task is None or self._task.done():
            self._task = start_background(self._look_after, NAME)
            self._task.add_done_callback(lambda _: self._ended.set())
        return channel

    def doubt(self, channel: Channel, place: EventId) -> None:
        """Have it looked at once whether a run still goes as far as we have read."""
        channel.reach = max(channel.reach, place, key=order)
        channel.unchecked = True
        self._poke()

    def _poke(self) -> None:
        self._poked.set()

    @property
    def _channels(self) -> list[Channel]:
        lanes = self._lanes.values()
        return [channel for lane in lanes for channel in lane.channels.values()]

    async def _look_after(self) -> None:
        """See now and then whether the runs are there and their writers alive."""
        self._ended = anyio.Event()
        backoff = Backoff()
        while channels := self._channels:
            now = anyio.current_time()
            due = [one for one in channels if self._is_due(one, now + AT_ONCE)]
            try:
                if due:
                    await self._look(due)
                    backoff.succeeded()
            except RedisUnavailableError:
                for channel in due:
                    channel.presence.notice_outage(anyio.current_time())
                await anyio.sleep(backoff.failed())
            except Exception as error:  # noqa: BLE001 - the one place; the log tells
                text = "looking after runs failed and is started again\n%s"
                logger.error(text, redact_traceback(error))  # noqa: TRY400 - redacted
                await anyio.sleep(1.0 + backoff.failed())
            else:
                await self._sleep()
            self.pages.forget()

    def _is_due(self, channel: Channel, now: float) -> bool:
        return channel.unchecked or channel.presence.look_at <= now

    async def _look(self, channels: list[Channel]) -> None:
        seen, is_behind = await look_at(self.wires, channels)
        if is_behind:
            for lane in self._lanes.values():
                lane.read_anew()
        now = anyio.current_time()
        before, self._openings = self._openings, self.wires.openings
        if before not in (0, self._openings):  # a restart that nobody else has noticed
            for channel in self._channels:
                channel.presence.notice_outage(now)
                channel.unchecked = True
        for channel, one in zip(channels, seen, strict=True):
            if channel.presence.hear(one, now):
                channel.ring_bell()
            if channel.presence.is_gone:
                channel.close()

    async def _sleep(self) -> None:
        """Sleep until a look is due, or somebody comes."""
        channels = self._channels
        if not channels:
            return
        due = min(channel.presence.look_at for channel in channels)
        if any(channel.unchecked for channel in channels):
            due = 0.0
        with anyio.CancelScope(deadline=due):
            await self._poked.wait()
        if self._poked.is_set():
            self._poked = anyio.Event()

    async def aclose(self) -> None:
        """End; who follows is woken and ends, too."""
        self.is_closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await self._ended.wait()
        for lane in list(self._lanes.values()):
            await lane.aclose()

    def forget_loop(self) -> None:
        """Let go of everything: the loop was closed under us."""
        self._forsake()
        for lane in self._lanes.values():
            lane.wire.forget_loop()

    def _forsake(self) -> None:
        self.is_closed = True
        for channel in self._channels:
            channel.forsake()


class Hubs:
    """The hub of each event loop in which a store is followed."""

    def __init__(self, access: Access) -> None:
        """Remember the way to Redis."""
        self._access = access
        self._by_loop: LoopLocal[Hub] = LoopLocal()

    def forget_parent(self) -> None:
        """In a forked child: there are none."""
        self._by_loop.forget_parent()

    @property
    def here(self) -> Hub:
        """The hub of the running event loop."""
        hub = self._by_loop.find()
        if hub is None:
            register(self)
            hub = Hub(self._access.wires)
            for left in self._by_loop.keep(hub):
                left.forget_loop()
        return hub

    async def aclose(self) -> None:
        """End the hub of this event loop; the next follower makes another one."""
        hub = self._by_loop.pop()
        if hub is not None:
            await hub.aclose()
