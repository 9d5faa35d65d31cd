"""One follower of one run: all events behind a place, in order, each once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Self, TypeAlias

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
    next_id,
    order,
)
from bls_agent.runs.gaps import (
    ResumePoint,
    classify_jump,
    continues,
    fetch_evidence,
    fetch_resume_facts,
    find_resume_point,
    sequence_of,
)
from bls_agent.runs.hub import Hub
from bls_agent.runs.reading import Page, PageSize, RunKeys, RunReader
from bls_agent.runs.topic import RunTopic

BATCH: Final = 500  # events that are returned at once
PAGE_BYTES: Final = 1024 * 1024  # of a page, about: each of many followers may hold one


class Mode(Enum):
    """What a follower does next."""

    STARTING = auto()  # asks the server what stands at the cursor
    PAGING = auto()  # reads pages from Redis
    STREAMING = auto()  # takes events from the ring of the run's topic
    WAITING = auto()  # is a waiter of the topic
    ENDED = auto()


class Step(Enum):
    """The result of a step, if it is no list of events."""

    READ_ON = auto()
    WAIT = auto()


StepResult: TypeAlias = list[Followed] | Step


class Cursor:
    """The place behind which a follower goes on."""

    def __init__(self, last_id: EventId) -> None:
        self.id = last_id  # ``$`` until the end of the run was looked up
        # the sequence at the place; ``None`` if unknown
        self.known: int | None = 0 if last_id == BEGINNING else None
        self.is_event = True  # whether an event surely stood there once
        self.closes = False  # whether that one has ended the run
        # whether the run is known to have existed
        self.existed = last_id not in (BEGINNING, END)

    def note(self, event: StreamEvent) -> None:
        """Go behind an event. Every follower calls it for each event: keep it short."""
        self.id, self.known = event.id, sequence_of(event)
        self.closes, self.is_event, self.existed = event.closes, True, True

    def resume(self, point: ResumePoint) -> None:
        self.id, self.closes = point.place, point.closes
        self.is_event = point.is_event
        self.known = self.known if point.known is None else point.known

    def misses_nothing(self, first: StreamEvent) -> bool:
        """Return whether an event is surely the next one, or the first of all."""
        is_fresh = self.id == BEGINNING and self.known is None
        return is_fresh or continues(self.known, first)


@dataclass
class Seat:
    """How far a follower has got with a topic; ``version`` is the topic's."""

    topic: RunTopic
    number: int = 0  # of the event that comes next, in the topic's ring
    # Of the topic when this follower had every event and nothing else was to be told:
    # as long as it is the same, ``number`` is valid.
    settled_version: int | None = None
    # Of the topic when the server was asked whether it still knows the cursor.
    checked_version: int | None = None


@dataclass
class Outage:
    """Why Redis could not be asked, and when to try again."""

    error: RedisUnavailableError
    backoff: Backoff = field(default_factory=Backoff)
    until: float = 0.0

    def repeat(self, error: RedisUnavailableError) -> Self:
        self.error = error
        self.until = anyio.current_time() + self.backoff.failed()
        return self


class Follower:
    """Returns the events of a run behind a place, as they are written.

    Iterate over it, or take batches, in one task at a time. Leaving the iteration needs
    no closing: a follower for which no task waits costs nothing, and holds only its
    place.

    Each event is returned once, in order, through lost connections and restarts of a
    server that keeps its data. Where some are missing, a :class:`~bls_agent.runs.Gap`
    stands in their place. It ends at ``system.close`` if nothing stands behind that,
    when the run disappears, and when its store is closed in this event loop. It waits
    through an outage; a wrong password and a missing right, also those that changed
    meanwhile, raise :class:`~bls_agent.RedisRefusedError`: iterating once more goes on
    at the same place.

    Attributes:
        place: Id of the event that was returned last; the iteration goes on behind it.
    """

    # All followers of a run share a topic, which keeps the newest events in a ring:
    #
    #   the run in Redis   1  2  3  4  5  6  7  8  9 10 11 ...
    #   the ring                    [ base  6  7  8  9 head ]
    #   the cursor         PAGING     |   STREAMING     |    ahead: STARTING, then WAITING
    #                                              at the head: WAITING
    #
    # STARTING  -> PAGING     the cursor is a place at which the server can go on
    #           -> STREAMING  the server still knows the cursor of a follower with a topic
    # PAGING    -> STREAMING  the cursor has reached the ring, or a new one begins there
    # STREAMING -> WAITING    there is nothing to return
    #           -> PAGING     the ring has dropped what comes next, the topic has ended,
    #                         or the run was closed: perhaps more stands behind
    #           -> STARTING   the cursor is ahead of the ring: has the server lost events?
    # WAITING   -> STREAMING  something has changed, or time is up
    # any       -> ENDED

    def __init__(
        self,
        hub: Callable[[], Hub],
        run_id: int,
        last_id: str,
        *,
        is_plain: bool = False,
    ) -> None:
        """Remember where to begin; nothing is read yet.

        ``last_id`` may be ``$`` for the end. A plain follower returns events only, and
        what it reads never ends it.
        """
        self.run_id = run_id
        self.place: EventId = last_id
        self._find_hub = hub  # of the running event loop
        self._hub: Hub | None = None
        self._is_plain = is_plain
        self._mode = Mode.STARTING
        self._end: FollowEnd | None = None
        self._cursor = Cursor(last_id)
        self._seat: Seat | None = None  # while it is not PAGING
        self._page_size = PageSize(most_bytes=PAGE_BYTES)
        self._outage: Outage | None = None
        self._reported_loss: tuple[bytes, int] | None = None  # of the writer
        self._ready: deque[Followed] = deque()  # read, and not yet iterated over
        self._has_waited = True  # whether other tasks could run since the last batch

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<Follower run {self.run_id} behind {self.place}, {state}>"

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._mode is Mode.ENDED and not self._ready

    @property
    def end(self) -> FollowEnd | None:
        """Why nothing more will come; ``None`` as long as something may."""
        return self._end if self.ended else None

    @property
    def unavailable(self) -> RedisUnavailableError | None:
        """Why Redis cannot be asked now; ``None`` if it can."""
        if self._outage is not None:
            return self._outage.error
        return None if self._seat is None else self._seat.topic.outage

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Followed:
        if not self._ready:
            self._ready.extend(await self._next())
            if not self._ready:
                raise StopAsyncIteration
        item = self._ready.popleft()
        if isinstance(item, StreamEvent):
            self.place = item.id
        return item

    async def batch(self, timeout: float | None = None) -> list[Followed]:
        """Return all that is there; wait for it if nothing is.

        Args:
            timeout: Seconds to wait at most for something new; default: as long as it
                takes. A request that is under way then is finished (the store's
                ``timeout`` bounds it): even with 0 all is returned that is there.

        Returns:
            Empty if nothing has come in time, or if nothing more will (``ended``).

        Raises:
            WrongTypeError: The key is no stream.
            RedisRefusedError: Redis refuses for good.
            RedisUnavailableError: The end could not be found (``last_id="$"``).
        """
        items = [*self._ready]
        self._ready.clear()
        if not items:
            until = math.inf if timeout is None else anyio.current_time() + timeout
            items = await self._next(until)
        for item in reversed(items):
            if isinstance(item, StreamEvent):
                self.place = item.id
                break
        return items

    async def aclose(self) -> None:
        """End the follower; a wait under way returns."""
        seat = self._seat if self._mode is Mode.WAITING else None
        self._finish(FollowEnd.LEFT)
        self._ready.clear()
        if seat is not None:  # it wakes all followers of the topic
            seat.topic.wake()

    def _enter(self, mode: Mode) -> Step:
        if self._mode is not Mode.ENDED:
            self._mode = mode
        return Step.READ_ON

    def _finish(self, end: FollowEnd | None = None) -> Step:
        """End the follower; without a reason by what the cursor has read."""
        by_run = FollowEnd.CLOSED if self._cursor.closes else FollowEnd.GONE
        self._end = self._end or end or by_run
        return self._enter(Mode.ENDED)

    async def _next(self, until: float = math.inf) -> list[Followed]:
        """Return what comes next, at least one; empty at the end, or when time is up."""
        if not self._has_waited:
            await anyio.lowlevel.checkpoint()
        self._has_waited = False
        while self._mode is not Mode.ENDED:
            seat = self._seat
            if self._mode is Mode.STREAMING and seat is not None:  # most of all steps
                result = self._stream(seat)
            else:
                result = await self._step()
            if result is Step.WAIT:
                await self._wait(until)
                if until < math.inf and anyio.current_time() >= until:
                    break
            elif result is not Step.READ_ON:
                return result
        return []

    async def _step(self) -> StepResult:
        if self._hub is None:
            self._hub = self._find_hub()
        if self._hub.is_closed:
            return self._finish(FollowEnd.LEFT)
        ask = self._start if self._mode is Mode.STARTING else self._read_page
        return await self._try(ask, self._hub)

    async def _try(
        self, ask: Callable[[Hub], Awaitable[StepResult]], hub: Hub
    ) -> StepResult:
        outage = self._outage
        if outage is not None and anyio.current_time() < outage.until:
            return Step.WAIT
        try:
            result = await ask(hub)
        except RedisRefusedError:
            raise
        except RedisUnavailableError as error:
            is_less = self._page_size.shrink(error)
            if self._cursor.id == END or (self._is_plain and not is_less):
                raise
            self._outage = (outage or Outage(error)).repeat(error)
            return Step.WAIT
        self._outage = None
        return result

    async def _wait(self, until: float) -> None:
        self._has_waited = True
        if self._outage is not None:
            pause = min(self._outage.until, until) - anyio.current_time()
            await anyio.sleep(max(0.0, pause))
        elif self._seat is not None:
            self._enter(Mode.WAITING)
            try:
                await self._seat.topic.wait(until)
            finally:
                self._enter(Mode.STREAMING)

    async def _start(self, hub: Hub) -> StepResult:
        """Find where to go on, at first and when the server may have lost events."""
        cursor, seat = self._cursor, self._seat
        reader, place = RunReader(hub.pool, self.run_id), cursor.id
        gap: Gap | None = None
        if place == END:
            last = await reader.last()
            cursor.id = BEGINNING
            if last is not None:
                cursor.note(last)
        elif place != BEGINNING and not self._is_plain:
            facts = await fetch_resume_facts(reader, place)
            point = find_resume_point(
                self.run_id, place, facts, was_followed=seat is not None
            )
            cursor.resume(point)
            gap = point.gap
            if point.is_over:
                self._finish()
        self.place = cursor.id
        if seat is not None and seat.topic.is_open and cursor.id == place:
            self._enter(Mode.STREAMING)
        else:
            self._seek()
        return Step.READ_ON if gap is None else [gap]

    def _seek(self) -> Step:
        """Leave the topic and read from Redis."""
        self._seat = None
        return self._enter(Mode.PAGING)

    async def _read_page(self, hub: Hub) -> StepResult:
        """Read a page from Redis; behind the last one the topic takes over."""
        cursor, reader = self._cursor, RunReader(hub.pool, self.run_id)
        began, topic = anyio.current_time(), hub.find(self.run_id, reader.keys.events)
        head = None if topic is None else topic.buffer.head
        page = await reader.read(next_id(cursor.id), "+", self._page_size.count)
        found: list[Followed] = [*page.events]
        if page.events:
            gap = await self._find_gap(page.events[0], reader)
            found[:0] = [] if gap is None else [gap]
            cursor.note(page.events[-1])
        took = anyio.current_time() - began
        self._page_size.record(len(page.events), page.size, took)
        if page.is_last and cursor.closes and not self._is_plain:
            self._finish()
            return found
        if hub.is_closed:  # meanwhile
            return self._finish(FollowEnd.LEFT)
        topic = self._join(hub, reader.keys, page)
        if found or topic is None or topic.buffer.head != head:
            return found or Step.READ_ON
        # What the topic has had behind the cursor was deleted meanwhile.
        return Step.WAIT if _is_before(cursor, topic) else Step.READ_ON

    def _join(self, hub: Hub, keys: RunKeys, page: Page) -> RunTopic | None:
        """Take a seat at the run's topic, if the cursor has come so far."""
        cursor, topic = self._cursor, hub.find(self.run_id, keys.events)
        if page.is_last and topic is None:
            topic = hub.join(keys, cursor.id, cursor.known, seen=cursor.existed)
        if topic is None or (
            not page.is_last and topic.buffer.locate(cursor.id) is None
        ):
            return None
        self._seat = Seat(topic)
        if page.events:  # the server has just returned the event at the cursor
            self._seat.checked_version = topic.version
        self._enter(Mode.STREAMING)
        return topic

    async def _find_gap(self, first: StreamEvent, reader: RunReader) -> Gap | None:
        cursor = self._cursor
        if self._is_plain or cursor.misses_nothing(first):
            return None
        evidence = await fetch_evidence(reader, cursor.id, first.id)
        return classify_jump(
            cursor.id, cursor.known, first, evidence, is_event=cursor.is_event
        )

    def _stream(self, seat: Seat) -> StepResult:
        """Take events from the ring.

        1. The topic is as it was when this follower had every event, which was no
           ``system.close``: return the new events, or wait.
        2. The run cannot be read: raise why.
        3. The cursor stands before the ring: read from Redis.
        4. Events stand behind the cursor: return them.
        5. The cursor is ahead of the ring. Mostly this follower has read from Redis what
           the topic gets in a moment; but the server may have lost it. Ask once for
           each change of the topic.
        6. The follower has every event: see :meth:`_report`.
        """
        topic, cursor = seat.topic, self._cursor
        if seat.settled_version == topic.version:
            events = topic.buffer.after(seat.number, BATCH)
            if events:
                return self._take(seat, events)
            if events is not None and not cursor.closes:
                return Step.WAIT
        seat.settled_version = None
        if topic.failure is not None:
            self._seek()
            raise topic.failure
        if _is_before(cursor, topic):
            return self._fall_behind(topic)
        return self._catch_up(seat)

    def _catch_up(self, seat: Seat) -> StepResult:
        """Decide the cases from 4 on."""
        topic, number = seat.topic, seat.topic.buffer.locate(self._cursor.id)
        if number is not None:
            seat.number = number
            if events := topic.buffer.after(number, BATCH):
                return self._take(seat, events)
        elif seat.checked_version != topic.version and not self._is_plain:
            seat.checked_version = topic.version
            return self._enter(Mode.STARTING)
        result = self._report(topic)
        if result is Step.WAIT and number is not None:
            seat.settled_version = topic.version
        return result

    def _take(self, seat: Seat, events: list[StreamEvent]) -> list[Followed]:
        seat.number += len(events)
        self._cursor.note(events[-1])
        return [*events]

    def _fall_behind(self, topic: RunTopic) -> StepResult:
        """Read on from Redis, unless the run is gone."""
        # What is large now may have been small before.
        self._page_size = PageSize(most_bytes=PAGE_BYTES)
        has_disappeared = topic.liveness.has_disappeared and not topic.is_open
        if self._is_plain or not has_disappeared or not self._cursor.existed:
            return self._seek()
        self._finish()
        known, ours = topic.known, self._cursor.known
        missing = max(0, known - ours) if known and ours else 0
        reason, place = GapReason.EXPIRED, self._cursor.id
        return [Gap(self.run_id, reason, place, None, missing or None)]

    def _report(self, topic: RunTopic) -> StepResult:
        """Return what a follower with every event is told.

        1. The run is gone: the end. If this follower never saw it, it was an earlier run
           of the same id, and this follower waits for the next one.
        2. The last event has closed the run: it ends if Redis has none behind.
        3. The writer is lost, and this follower was not told.
        4. The topic has ended: another one is found or made.
        5. Otherwise it waits.

        Only 4 and 5 concern a plain follower.
        """
        liveness, cursor = topic.liveness, self._cursor
        if self._is_plain:
            return Step.WAIT if topic.is_open else self._seek()
        if liveness.has_disappeared:
            return self._finish() if cursor.existed else self._seek()
        if cursor.closes:
            return self._seek()
        if liveness.loss not in (None, self._reported_loss):
            self._reported_loss = liveness.loss
            return [WriterLost(self.run_id, cursor.id)]
        return Step.WAIT if topic.is_open else self._seek()


def _is_before(cursor: Cursor, topic: RunTopic) -> bool:
    """Return whether the ring has dropped what stands behind a cursor."""
    ring = topic.buffer
    return ring.locate(cursor.id) is None and order(cursor.id) <= order(ring.head)
