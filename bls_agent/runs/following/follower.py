"""One follower of one run: everything behind a place, in order, once."""

from __future__ import annotations

import math
from typing import Final

import anyio

from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.runs.event_ids import BEGINNING, END, order
from bls_agent.runs.events import Followed, Gap, GapReason, StreamEvent, WriterLost
from bls_agent.runs.following.channel import Channel
from bls_agent.runs.following.cursor import Cursor
from bls_agent.runs.following.ends import FollowEnd
from bls_agent.runs.following.gaps import judge_jump, judge_start
from bls_agent.runs.following.hub import Hub, Hubs
from bls_agent.runs.following.iteration import Iteration
from bls_agent.runs.following.looks import gather_evidence, gather_start
from bls_agent.runs.reading import Page, Portion, RunReader

__all__ = ["Follower"]

BATCH: Final = 500  # events that are given at once


class Follower(Iteration):
    """Gives the events of a run behind a place, as they are written.

    Iterate over it, or ask it for batches, in one task at a time. Leaving the iteration
    needs no closing: a follower that nobody waits with costs nothing, and holds no more
    than its place.

    Each event is given once, in order, through lost connections and restarts of a server
    that keeps its data. Where some are missing, a :class:`~bls_agent.runs.Gap` stands
    in their place. It ends at ``system.close`` if nothing stands behind that, when the
    run disappears, and when its store is closed in this event loop. It waits through an
    outage; a wrong password and a missing right, also those that changed meanwhile, raise
    :class:`~bls_agent.RedisRefusedError`: iterating once more goes on at the same place.

    Attributes:
        run_id: The run.
        place: Id of the event that was given last; the iteration goes on behind it.
    """

    def __init__(
        self, hubs: Hubs, run_id: int, last_id: str, *, is_plain: bool = False
    ) -> None:
        """Remember where to begin; nothing is read yet.

        Args:
            hubs: Who waits for new events.
            run_id: The run.
            last_id: Behind which event; ``$`` for the end.
            is_plain: Give events only, and never end by what is read.
        """
        super().__init__(last_id)
        self.run_id = run_id
        self._hubs = hubs
        self._is_plain = is_plain
        self._hub: Hub | None = None
        self._reader: RunReader | None = None
        self._channel: Channel | None = None
        self._waits_with: Channel | None = None  # now
        self._begun = False
        self._is_left = False
        self._cursor = Cursor(last_id)
        self._number: int | None = None  # of what comes next, in the channel's ring
        self._rewinds = 0  # of the channel that we have heard of
        self._heard: int | None = None  # of its news, as long as we stand in its ring
        self._told: tuple[bytes, int] | None = None  # whose loss
        self._portion = Portion()
        self._rests = True  # whether others had their turn since the last batch
        self._failure: RedisUnavailableError | None = None
        self._backoff: Backoff | None = None
        self._pause_until = -math.inf  # before the next try
        self._until = -math.inf  # who waits for what comes next, at most

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<Follower run {self.run_id} behind {self.place}, {state}>"

    @property
    def end(self) -> FollowEnd | None:
        """Why nothing more will come; ``None`` as long as something may."""
        if not self.ended:
            return None
        if self._is_left:
            return FollowEnd.LEFT
        return FollowEnd.CLOSED if self._cursor.closes else FollowEnd.GONE

    @property
    def unavailable(self) -> RedisUnavailableError | None:
        """Why Redis cannot be asked now; ``None`` if it can."""
        channel = self._channel
        return self._failure or (channel.outage if channel is not None else None)

    async def aclose(self) -> None:
        """End: nothing more is given, and whoever waits with it is told so.

        There is nothing else to close.
        """
        self._leave_run()
        self._ready, self._at, self._channel = [], 0, None
        if self._waits_with is not None:
            self._waits_with.wake()

    def _leave_run(self) -> None:
        self._is_left |= not self._is_over
        self._is_over = True

    async def _next(self, until: float = math.inf) -> list[Followed]:
        """Give what comes next, at least one; empty at the end, or when time is up.

        What is given is noted in the very step in which it leaves: who is cancelled
        before that has lost nothing.
        """
        if not self._rests:
            await anyio.lowlevel.checkpoint()
        self._rests, self._until = False, until
        while not self._is_over:
            channel = self._channel
            if channel is not None and channel.news == self._heard:
                found = self._take_more(channel)
                if found is None:
                    continue  # it is to be read, even if time is up
                if not found:
                    await self._wait_for_more(channel, until)
            else:
                found = await self._find_more()
            if found:
                return found
            if until < math.inf and anyio.current_time() >= until:
                break
        return []

    def _take_more(self, channel: Channel) -> list[Followed] | None:
        """Give what has come since, and nothing else has happened: the usual case.

        All who follow a run come here for each event: it has to be short.

        Returns:
            ``None`` if it is not here any more.
        """
        events = channel.ring.after(self._number or 0, BATCH)
        if events:
            self._number = (self._number or 0) + len(events)
            self._cursor.note(events[-1])
        if events is None or self._cursor.closes:
            self._heard = None
        return events if events is None else [*events]

    async def _wait_for_more(self, channel: Channel, until: float) -> None:
        self._rests, self._waits_with = True, channel
        try:
            if until == math.inf:  # a scope costs more than all the rest
                await channel.wait()
            else:
                with anyio.CancelScope(deadline=until):
                    await channel.wait()
        finally:  # who was cancelled needs no waking, which would wake all others, too
            self._waits_with = None

    async def _find_more(self) -> list[Followed]:
        """Do what comes next in every other case."""
        self._heard = None
        if self._reader is None:
            self._hub = self._hubs.here
            self._reader = RunReader(self._hub.wires, self.run_id)
        if self._hub is None or self._hub.is_closed:
            self._leave_run()
            return []
        return await self._try(self._hub, self._reader)

    async def _try(self, hub: Hub, reader: RunReader) -> list[Followed]:
        """Do what comes next; if Redis is away, wait a little."""
        if not await self._pause():
            return []
        try:
            return await self._step(hub, reader)
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            is_less = self._portion.shrink(error)
            if self._cursor.id == END or (self._is_plain and not is_less):
                raise
            self._failure = error
            self._backoff = self._backoff or Backoff()
            self._pause_until = anyio.current_time() + self._backoff.failed()
            return []

    async def _pause(self) -> bool:
        """Wait until it is time for the next try; tell whether it is."""
        now = anyio.current_time()
        if now < self._pause_until:
            self._rests = True
            await anyio.sleep(max(0.0, min(self._pause_until, self._until) - now))
        return self._pause_until <= max(self._until, anyio.current_time())

    async def _step(self, hub: Hub, reader: RunReader) -> list[Followed]:
        """Do what comes next: begin, take from the ring, wait, or read from Redis."""
        if not self._begun:
            gap = await self._begin(reader)
            if gap is not None or self._is_over:
                return [gap] if gap is not None else []
        channel = self._channel
        found = self._take_from(channel) if channel is not None else None
        if channel is not None and found is not None:
            in_ring = self._number is not None
            if not found and in_ring and not self._cursor.in_doubt:
                self._heard = channel.news  # wait where it costs least
            elif not found and not self._is_over:
                await self._wait_with(hub, channel)
            return found
        return await self._read_page(hub, reader)

    async def _begin(self, reader: RunReader) -> Gap | None:
        """Find out where to begin."""
        cursor, gap = self._cursor, None
        if cursor.id == END:
            cursor.go_to_end(await reader.last())
        elif cursor.id != BEGINNING and not self._is_plain:
            start = await gather_start(reader, cursor.id)
            opening = judge_start(self.run_id, cursor.id, start)
            cursor.open(opening)
            gap, self._is_over = opening.gap, opening.is_over
        self.place = cursor.id
        self._begun = True
        return gap

    def _take_from(self, channel: Channel) -> list[Followed] | None:
        """Give what the others have, too; ``None`` if Redis has to be asked."""
        if channel.failure is not None:
            self._channel = None
            raise channel.failure
        if channel.rewinds != self._rewinds:
            self._hear_of_rewind(channel)
        ring = channel.ring
        if self._number is None:
            self._number = ring.locate(self._cursor.id)
            if self._number is None and order(self._cursor.id) > order(ring.head):
                return self._look_round(channel)  # we have read further than it has
        events = None
        if self._number is not None:
            events = ring.after(self._number, BATCH)
        if events is None or (events and self._cursor.in_doubt):
            return self._leave(channel)
        if not events:
            return self._look_round(channel)
        self._number = (self._number or 0) + len(events)
        self._cursor.note(events[-1])
        return [*events]

    def _leave(self, channel: Channel) -> list[Followed] | None:
        """Read on from Redis, unless there is nothing to be read any more."""
        self._number = None
        self._portion = Portion()  # what is large now may have been small before
        if channel.is_open or not channel.presence.is_gone or self._is_plain:
            return None
        if not self._cursor.was_there:
            return self._drop()  # that was a former life of the run
        self._is_over = True
        return [self._make_gap(GapReason.EXPIRED, channel)]

    def _hear_of_rewind(self, channel: Channel) -> None:
        """Go back to the end that is there, if the server has forgotten our place."""
        in_ring = self._number is not None
        self._rewinds, self._number = channel.rewinds, None
        if channel.has_lost(self._cursor.id, in_ring=in_ring):
            self._cursor.go_back(channel.rewound_to, anyio.current_time())

    def _look_round(self, channel: Channel) -> list[Followed] | None:
        """Say what else there is to be told to one who has been given every event."""
        presence, cursor, found = channel.presence, self._cursor, list[Followed]()
        if self._is_plain:
            return found if channel.is_open else self._drop()
        if presence.is_gone and not cursor.was_there:
            return self._drop()
        if presence.is_gone:
            self._is_over = True
        elif cursor.closes and not cursor.in_doubt:
            self._number = None
            return None  # it ends if nothing stands behind
        lost = None if presence.lost is None else (presence.lost, presence.returns)
        is_news = lost is not None and lost != self._told
        doubt = cursor.doubt_until
        if doubt is not None and (
            self._is_over or is_news or anyio.current_time() >= doubt
        ):
            found.append(self._make_gap(GapReason.LOST))
            cursor.doubt_until, self.place = None, cursor.id
        if is_news and not self._is_over:
            self._told = lost
            found.append(WriterLost(self.run_id, self.place))
        if not found and not channel.is_open and not self._is_over:
            return self._drop()
        return found

    def _drop(self) -> list[Followed] | None:
        """Leave a channel that nobody feeds any more."""
        self._channel = self._number = None
        return None

    def _make_gap(self, reason: GapReason, channel: Channel | None = None) -> Gap:
        known = channel.known if channel is not None else None
        ours = self._cursor.known
        missing = max(0, known - ours) if known and ours else 0
        return Gap(self.run_id, reason, self.place, None, missing or None)

    async def _wait_with(self, hub: Hub, channel: Channel) -> None:
        """Wait for what comes; not for long in doubt, or where others do not stand."""
        cursor, until = self._cursor, self._until
        if self._number is None:
            if cursor.is_odd(anyio.current_time()):
                hub.doubt(channel, BEGINNING if self._is_plain else cursor.id)
            until = min(until, cursor.odd_until or until)
        if cursor.doubt_until is not None:
            until = min(until, cursor.doubt_until)
        await self._wait_for_more(channel, until)

    async def _read_page(self, hub: Hub, reader: RunReader) -> list[Followed]:
        """Read on from Redis, and join those who wait if that was all."""
        began = anyio.current_time()
        page = await hub.pages.read(reader, self._cursor.id, self._portion.count)
        gap = await self._judge(page.events[0], reader) if page.events else None
        self._failure = self._backoff = None
        self._portion.learn(page, anyio.current_time() - began)
        found: list[Followed] = [*([gap] if gap is not None else []), *page.events]
        self._go_on(hub, reader, page)
        if found or self._is_over or self._channel is None:
            return found
        if self._channel.ring.locate(self._cursor.id) is None:
            await self._wait_with(hub, self._channel)
        return []

    def _go_on(self, hub: Hub, reader: RunReader, page: Page) -> None:
        """Go behind a page, and find those who follow the run, too."""
        cursor = self._cursor
        if page.events:
            cursor.note(page.events[-1])
        if page.is_last and cursor.closes and not self._is_plain:
            self._is_over = True
            return
        channel = hub.find(self.run_id, reader.keys.events)
        if channel is None and page.is_last:
            channel = hub.join(
                reader.keys, cursor.id, cursor.known, seen=cursor.was_there
            )
        if channel is not self._channel and channel is not None:
            self._rewinds = channel.rewinds
        if channel is not None:
            channel.note_page(page.events)
        self._channel, self._number = channel, None

    async def _judge(self, first: StreamEvent, reader: RunReader) -> Gap | None:
        """Find out whether events are missing before one that was read."""
        cursor = self._cursor
        if self._is_plain or cursor.misses_nothing(first):
            return None
        evidence = await gather_evidence(reader, self.place, first.id)
        return judge_jump(
            self.place,
            cursor.known,
            first,
            evidence,
            is_event=cursor.is_event,
            in_doubt=cursor.in_doubt,
        )
