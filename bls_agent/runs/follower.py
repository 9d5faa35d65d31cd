"""One follower of one run: all events behind a place, in order, each once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Self

import anyio

from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.runs.events import (
    BEGINNING,
    END,
    EventId,
    Followed,
    FollowEnd,
    Gap,
    GapReason,
    StreamEvent,
    WriterLost,
    order,
)
from bls_agent.runs.gaps import (
    classify_jump,
    continues,
    fetch_evidence,
    fetch_resume_facts,
    find_resume_point,
    sequence_of,
)
from bls_agent.runs.hub import Hub
from bls_agent.runs.reading import Page, PageSize, RunReader
from bls_agent.runs.topic import RunTopic

BATCH: Final = 500  # events that are given at once
PAGE_BYTES: Final = 1024 * 1024  # of a page, about: each of many followers may hold one


class Cursor:
    """The place behind which a follower goes on."""

    def __init__(self, last_id: EventId) -> None:
        self.id = last_id  # ``$`` until the end of the run was looked up
        # the sequence there, or of the place before it went back; ``None`` if unknown
        self.known: int | None = 0 if last_id == BEGINNING else None
        self.is_event = True  # whether an event surely stood there once
        self.closes = False  # whether that one has ended the run
        # whether the run is known to have existed
        self.existed = last_id not in (BEGINNING, END)
        # whether the server has lost the place, and no event has come since
        self.gap_pending = False

    def note(self, event: StreamEvent) -> None:
        """Go behind an event. Every follower calls it for each event: keep it short."""
        self.id, self.known = event.id, sequence_of(event)
        self.closes, self.is_event, self.existed = event.closes, True, True
        self.gap_pending = False

    def misses_nothing(self, first: StreamEvent) -> bool:
        """Return whether an event is surely the next one, or the first of all."""
        is_fresh = self.id == BEGINNING and self.known is None
        return not self.gap_pending and (is_fresh or continues(self.known, first))


class Follower:
    """Yields the events of a run behind a place, as they are written.

    Iterate over it, or take batches, in one task at a time. Leaving the iteration needs
    no closing: a follower for which no task waits costs nothing, and holds only its
    place.

    Each event is given once, in order, through lost connections and restarts of a
    server that keeps its data. Where some are missing, a :class:`~bls_agent.runs.Gap`
    stands in their place. It ends at ``system.close`` if nothing stands behind that,
    when the run disappears, and when its store is closed in this event loop. It waits
    through an outage; a wrong password and a missing right, also those that changed
    meanwhile, raise :class:`~bls_agent.RedisRefusedError`: iterating once more goes on
    at the same place.

    Attributes:
        place: Id of the event that was given last; the iteration goes on behind it.
    """

    def __init__(
        self,
        hub: Callable[[], Hub],
        run_id: int,
        last_id: str,
        *,
        is_plain: bool = False,
    ) -> None:
        """Remember where to begin; nothing is read yet.

        ``last_id`` may be ``$`` for the end. A plain follower gives events only, and
        what it reads never ends it.
        """
        self.run_id = run_id
        self.place: EventId = last_id
        self._is_over = False
        self._ready: list[Followed] = []  # found, not all of it given yet
        self._at = 0  # in it
        self._find_hub = hub  # of the running event loop
        self._is_plain = is_plain
        self._hub: Hub | None = None
        self._reader: RunReader | None = None
        self._topic: RunTopic | None = None
        self._waits_with: RunTopic | None = None  # now
        self._begun = False
        self._is_left = False
        self._cursor = Cursor(last_id)
        self._number: int | None = None  # of what comes next, in the topic's buffer
        self._rewinds = 0  # of the topic that were handled
        self._probed: EventId | None = None  # the last place behind a topic's head
        # topic.news when nothing but events was left to take from its buffer
        self._known_news: int | None = None
        self._reported_loss: tuple[bytes, int] | None = None  # token, returns
        self._page_size = PageSize(most_bytes=PAGE_BYTES)
        self._has_yielded = True  # whether other tasks could run since the last batch
        self._failure: RedisUnavailableError | None = None
        self._backoff: Backoff | None = None
        self._pause_until = -math.inf  # before the next try
        self._until = -math.inf  # the end of the wait under way

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<Follower run {self.run_id} behind {self.place}, {state}>"

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._is_over and self._at == len(self._ready)

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
        topic = self._topic
        return self._failure or (topic.outage if topic is not None else None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Followed:
        if self._at == len(self._ready):
            self._ready, self._at = await self._next(), 0
            if not self._ready:
                raise StopAsyncIteration
        item = self._ready[self._at]
        self._at += 1
        if isinstance(item, StreamEvent):
            self.place = item.id
        return item

    async def batch(self, timeout: float | None = None) -> list[Followed]:
        """Return all that is there; wait for it if nothing is.

        Args:
            timeout: Seconds to wait at most for something new; default: as long as it
                takes. A request that is under way then is finished (the store's
                ``timeout`` bounds it): even with 0 all is given that is there.

        Returns:
            Empty if nothing has come in time, or if nothing more will (``ended``).

        Raises:
            WrongTypeError: The key is no stream.
            RedisRefusedError: Redis refuses for good.
            RedisUnavailableError: The end could not be found (``last_id="$"``).
        """
        items: list[Followed] = self._ready[self._at :]
        self._ready, self._at = [], 0
        if not items:
            until = math.inf if timeout is None else anyio.current_time() + timeout
            items = await self._next(until)
        for item in reversed(items):
            if isinstance(item, StreamEvent):
                self.place = item.id
                break
        return items

    async def aclose(self) -> None:
        """End: nothing more is given, and a wait under way returns."""
        self._leave_run()
        self._ready, self._at, self._topic = [], 0, None
        if self._waits_with is not None:
            self._waits_with.wake()

    def _leave_run(self) -> None:
        self._is_left |= not self._is_over
        self._is_over = True

    async def _next(self, until: float = math.inf) -> list[Followed]:
        """Return what comes next, at least one; empty at the end, or when time is up."""
        if not self._has_yielded:
            await anyio.lowlevel.checkpoint()
        self._has_yielded, self._until = False, until
        while not self._is_over:
            topic = self._topic
            if topic is not None and topic.news == self._known_news:
                found = self._take_more(topic)
                if found is None:
                    continue  # it is to be read, even if time is up
                if not found:
                    await self._wait_for_more(topic, until)
            else:
                found = await self._find_more()
            if found:
                return found
            if until < math.inf and anyio.current_time() >= until:
                break
        return []

    def _take_more(self, topic: RunTopic) -> list[Followed] | None:
        """Take new events from the buffer, as usual; ``None`` if they have left it."""
        events = topic.buffer.after(self._number or 0, BATCH)
        if events:
            self._number = (self._number or 0) + len(events)
            self._cursor.note(events[-1])
        if events is None or self._cursor.closes:
            self._known_news = None
        return events if events is None else [*events]

    async def _wait_for_more(self, topic: RunTopic, until: float) -> None:
        self._has_yielded, self._waits_with = True, topic
        try:
            if until == math.inf:  # a scope costs more than all the rest
                await topic.wait()
            else:
                with anyio.CancelScope(deadline=until):
                    await topic.wait()
        finally:  # aclose() wakes all followers of the topic: only while this one waits
            self._waits_with = None

    async def _find_more(self) -> list[Followed]:
        """Find what comes next in every other case."""
        self._known_news = None
        if self._reader is None:
            self._hub = self._find_hub()
            self._reader = RunReader(self._hub.pool, self.run_id)
        if self._hub is None or self._hub.is_closed:
            self._leave_run()
            return []
        return await self._try(self._hub, self._reader)

    async def _try(self, hub: Hub, reader: RunReader) -> list[Followed]:
        """Make the next step; while Redis is away, wait before the next try."""
        if not await self._pause():
            return []
        try:
            return await self._step(hub, reader)
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            is_less = self._page_size.shrink(error)
            if self._cursor.id == END or (self._is_plain and not is_less):
                raise
            self._failure = error
            self._backoff = self._backoff or Backoff()
            self._pause_until = anyio.current_time() + self._backoff.failed()
            return []

    async def _pause(self) -> bool:
        """Wait until the next try is due; tell whether it is."""
        now = anyio.current_time()
        if now < self._pause_until:
            self._has_yielded = True
            await anyio.sleep(max(0.0, min(self._pause_until, self._until) - now))
        return self._pause_until <= max(self._until, anyio.current_time())

    async def _step(self, hub: Hub, reader: RunReader) -> list[Followed]:
        """Begin, take from the buffer, wait, or read from Redis."""
        if not self._begun:
            gap = await self._begin(reader)
            if gap is not None or self._is_over:
                return [gap] if gap is not None else []
        topic = self._topic
        found = self._take_from_topic(topic) if topic is not None else None
        if topic is not None and found is not None:
            in_ring = self._number is not None
            if not found and in_ring and not self._cursor.gap_pending:
                self._known_news = topic.news  # wait where it costs least
            elif not found and not self._is_over:
                await self._wait_with(hub, topic)
            return found
        return await self._read_page(hub, reader)

    async def _begin(self, reader: RunReader) -> Gap | None:
        cursor, gap = self._cursor, None
        if cursor.id == END:
            cursor.id, last = BEGINNING, await reader.last()
            if last is not None:
                cursor.note(last)
        elif cursor.id != BEGINNING and not self._is_plain:
            start = await fetch_resume_facts(reader, cursor.id)
            point = find_resume_point(self.run_id, cursor.id, start)
            cursor.id, cursor.known = point.place, point.known
            cursor.is_event, cursor.closes = point.is_event, point.closes
            gap, self._is_over = point.gap, point.is_over
        self.place = cursor.id
        self._begun = True
        return gap

    def _take_from_topic(self, topic: RunTopic) -> list[Followed] | None:
        """Take events from the topic; ``None`` if they have to be read from Redis."""
        cursor = self._cursor
        if topic.failure is not None:
            self._topic = None
            raise topic.failure
        self._follow_rewind(topic)
        if self._number is None:
            self._number = topic.buffer.locate(cursor.id)
        if self._number is None:
            if order(cursor.id) > order(topic.buffer.head):
                return self._report_state(topic)  # this follower has read further
            return self._leave_buffer(topic)
        if cursor.gap_pending and self._number < topic.buffer.end:
            return self._leave_buffer(topic)
        found = self._take_more(topic)
        if found is None:
            return self._leave_buffer(topic)
        return found or self._report_state(topic)

    def _follow_rewind(self, topic: RunTopic) -> None:
        """Go back to the last id that the server knows, if it has lost the place."""
        if topic.rewinds != self._rewinds:
            self._rewinds, self._number = topic.rewinds, None
            if order(self._cursor.id) > order(topic.rewound_to):
                self._cursor.id, self._cursor.gap_pending = topic.rewound_to, True

    def _leave_buffer(self, topic: RunTopic) -> list[Followed] | None:
        """Read on from Redis, unless the run is gone."""
        self._number = None
        # What is large now may have been small before.
        self._page_size = PageSize(most_bytes=PAGE_BYTES)
        if topic.is_open or not topic.liveness.is_gone or self._is_plain:
            return None
        if not self._cursor.existed:
            return self._leave_topic()  # that was an earlier run of the same id
        self._is_over = True
        return [self._make_gap(GapReason.EXPIRED, topic)]

    def _report_state(self, topic: RunTopic) -> list[Followed] | None:
        """Return a gap, a lost writer or the end for a follower that has every event."""
        liveness, cursor, found = topic.liveness, self._cursor, list[Followed]()
        if self._is_plain:
            return found if topic.is_open else self._leave_topic()
        if liveness.is_gone and not cursor.existed:
            return self._leave_topic()
        if liveness.is_gone:
            self._is_over = True
        elif cursor.closes and not cursor.gap_pending:
            self._number = None
            return None  # it ends if nothing stands behind
        lost = None if liveness.lost is None else (liveness.lost, liveness.returns)
        is_news = lost is not None and lost != self._reported_loss
        if cursor.gap_pending and (self._is_over or is_news):
            found.append(self._make_gap(GapReason.LOST))
            cursor.gap_pending, self.place = False, cursor.id
        if is_news and not self._is_over:
            self._reported_loss = lost
            found.append(WriterLost(self.run_id, self.place))
        if not found and not topic.is_open and not self._is_over:
            return self._leave_topic()
        return found

    def _leave_topic(self) -> list[Followed] | None:
        self._topic = self._number = None
        return None

    def _make_gap(self, reason: GapReason, topic: RunTopic | None = None) -> Gap:
        known = topic.known if topic is not None else None
        ours = self._cursor.known
        missing = max(0, known - ours) if known and ours else 0
        return Gap(self.run_id, reason, self.place, None, missing or None)

    async def _wait_with(self, hub: Hub, topic: RunTopic) -> None:
        """Wait for events behind a place that is not in the topic's buffer."""
        place = self._cursor.id
        if self._number is None and not self._is_plain and place != self._probed:
            # Mostly it has only read ahead. But perhaps the server has lost events that
            # it gave out: then nothing would ever come behind this place.
            self._probed = place
            hub.request_probe(topic, place)
        await self._wait_for_more(topic, self._until)

    async def _read_page(self, hub: Hub, reader: RunReader) -> list[Followed]:
        """Read on from Redis, and join the run's topic if that was all."""
        began = anyio.current_time()
        page = await hub.pages.read(reader, self._cursor.id, self._page_size.count)
        gap = await self._find_gap(page.events[0], reader) if page.events else None
        self._failure = self._backoff = None
        took = anyio.current_time() - began
        self._page_size.record(len(page.events), page.size, took)
        found: list[Followed] = [*([gap] if gap is not None else []), *page.events]
        self._go_on(hub, reader, page)
        if found or self._is_over or self._topic is None:
            return found
        if self._topic.buffer.locate(self._cursor.id) is None:
            await self._wait_with(hub, self._topic)
        return []

    def _go_on(self, hub: Hub, reader: RunReader, page: Page) -> None:
        """Go behind a page, and find or make the run's topic."""
        cursor = self._cursor
        if page.events:
            cursor.note(page.events[-1])
        if page.is_last and cursor.closes and not self._is_plain:
            self._is_over = True
            return
        topic = hub.find(self.run_id, reader.keys.events)
        if topic is None and page.is_last:
            topic = hub.join(reader.keys, cursor.id, cursor.known, seen=cursor.existed)
        if topic is not self._topic and topic is not None:
            self._rewinds, self._probed = topic.rewinds, None
        self._topic, self._number = topic, None

    async def _find_gap(self, first: StreamEvent, reader: RunReader) -> Gap | None:
        cursor = self._cursor
        if self._is_plain or cursor.misses_nothing(first):
            return None
        evidence = await fetch_evidence(reader, self.place, first.id)
        return classify_jump(
            self.place,
            cursor.known,
            first,
            evidence,
            is_event=cursor.is_event,
            gap_pending=cursor.gap_pending,
        )
