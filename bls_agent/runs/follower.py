"""Follows one run: returns all events after an id, in order, each once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Self, TypeAlias

import anyio

from bls_agent.core.backoff import Backoff
from bls_agent.core.checks import check_wait
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
    WriterLiveness,
    WriterLoss,
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

BATCH: Final = 500  # largest number of events that are returned at once
# Approximate bytes of a page: few, because many followers may each hold a page.
PAGE_BYTES: Final = 1024 * 1024


class Mode(Enum):
    """What a follower does next."""

    STARTING = auto()  # asks the server for the event at the cursor
    PAGING = auto()  # reads pages from Redis
    STREAMING = auto()  # takes events from the buffer of the run's topic
    WAITING = auto()  # waits until the topic has something new
    ENDED = auto()


class Step(Enum):
    """What a follower does after a step that returned no events."""

    READ_ON = auto()
    WAIT = auto()


StepResult: TypeAlias = list[Followed] | Step


class Cursor:
    """The position in a run after which a follower continues."""

    def __init__(self, last_id: EventId) -> None:
        self.id: EventId = last_id  # ``$`` until the id of the last event is known
        # sequence number of the event at the position; ``None`` if unknown
        self.known: int | None = 0 if last_id == BEGINNING else None
        self.closes: bool = False  # whether the event at the position has ended the run
        # whether the run is known to have existed at some time
        self.existed: bool = last_id not in (BEGINNING, END)

    def note(self, event: StreamEvent) -> None:
        """Move the cursor to the last event that the follower has received."""
        self.id, self.known = event.id, sequence_of(event)
        self.closes, self.existed = event.closes, True

    def resume(self, point: ResumePoint) -> None:
        self.id, self.closes = point.place, point.closes
        self.known = self.known if point.known is None else point.known

    def misses_nothing(self, first: StreamEvent) -> bool:
        """Return whether certainly no event is missing between cursor and ``first``."""
        is_fresh = self.id == BEGINNING and self.known is None
        return is_fresh or continues(self.known, first)


@dataclass
class Seat:
    """The position of a follower in the buffer of a topic."""

    topic: RunTopic
    number: int = 0  # number of the next event in the topic's buffer
    # The topic's version when this follower had returned everything. ``number`` is
    # valid while the topic has this version.
    settled_version: int | None = None
    # The topic's version when the follower last asked the server whether the event at
    # the cursor is lost.
    checked_version: int | None = None


@dataclass
class Outage:
    """Why Redis could not be read, and when to try again."""

    error: RedisUnavailableError
    backoff: Backoff = field(default_factory=Backoff)
    until: float = 0.0

    def repeat(self, error: RedisUnavailableError) -> Self:
        self.error = error
        self.until = anyio.current_time() + self.backoff.failed()
        return self


class Follower:
    """Returns the events of a run after an id, also events that are written later.

    Iterate with ``async for`` or call :meth:`batch`, in one task at a time. A follower
    need not be closed, because while no task waits for events it holds only its
    position and the events that it has read.

    The follower returns each event once and in order, even if connections are lost or
    the server restarts without losing data. In place of missing events, the follower
    returns a :class:`~bls_agent.runs.Gap`. While Redis is unavailable, the follower
    waits. The follower ends in four cases:

    * ``system.close`` is the last event of the run.
    * The run was deleted or has expired.
    * The program closes the store in this event loop.
    * The program calls :meth:`aclose`.

    A wrong password or a missing permission raises
    :class:`~bls_agent.RedisRefusedError`, also in the middle of an iteration. Iterate
    again to continue at the same position.

    Attributes:
        place: Id of the event that was returned last. The iteration continues after
            this event.
    """

    # All followers of a run share a topic, which buffers the newest events:
    #
    #   the run in Redis   1  2  3  4  5  6  7  8  9 10 11 ...
    #   the buffer                  [ base  6  7  8  9 head ]
    #   the cursor         PAGING     |   STREAMING     |    ahead: STARTING, then WAITING
    #                                              at the head: WAITING
    #
    # STARTING  -> PAGING     the position from which to read Redis is known
    #           -> STREAMING  the follower has a topic, and the server lost no event
    # PAGING    -> STREAMING  the cursor has reached the buffer, or a new topic begins
    # STREAMING -> WAITING    there is nothing to return
    #           -> PAGING     the buffer has dropped the next event, the topic has
    #                         ended, or the run was closed (Redis may have more events)
    #           -> STARTING   the cursor is ahead of the buffer, because the server may
    #                         have lost events
    # WAITING   -> STREAMING  the topic has changed, or the timeout has passed
    # any       -> ENDED

    def __init__(
        self,
        hub: Callable[[], Hub],
        run_id: int,
        last_id: str,
        *,
        is_plain: bool = False,
    ) -> None:
        """Store where to begin. Redis is not read yet.

        ``last_id`` may be ``$`` for the end of the run. A plain follower (``is_plain``)
        returns only events, and does not end when the run ends.
        """
        self.run_id = run_id
        self.place: EventId = last_id
        self._find_hub = hub  # returns the hub of the running event loop
        self._hub: Hub | None = None
        self._is_plain = is_plain
        self._mode = Mode.STARTING
        self._end: FollowEnd | None = None
        self._cursor = Cursor(last_id)
        self._seat: Seat | None = None  # ``None`` at first and while PAGING
        self._page_size = PageSize(most_bytes=PAGE_BYTES)
        self._outage: Outage | None = None
        self._reported_loss: WriterLoss | None = None  # of the last WriterLost
        self._ready: deque[Followed] = deque()  # items that were not returned yet
        self._has_waited = True  # whether other tasks could run since the last batch

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<Follower run {self.run_id} behind {self.place}, {state}>"

    @property
    def ended(self) -> bool:
        """Whether the follower will return nothing more."""
        return self._mode is Mode.ENDED and not self._ready

    @property
    def end(self) -> FollowEnd | None:
        """Why the follower has ended; ``None`` while it may still return events."""
        return self._end if self.ended else None

    @property
    def unavailable(self) -> RedisUnavailableError | None:
        """The error why Redis cannot be read now; ``None`` if Redis can be read."""
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
        """Return the next events, at most about 500. Wait if there are no events.

        Args:
            timeout: Longest wait in seconds for a new event; default: no limit. The
                follower always waits for the reply to a request that was sent, within
                the store's ``timeout``. So even with 0, existing events are returned.

        Returns:
            The events; an empty list if no event arrived in time, or if the follower
            has ended.

        Raises:
            ConfigurationError: ``timeout`` is no time.
            WrongTypeError: The key is no stream.
            RedisRefusedError: Redis refuses the request, for example because of a wrong
                password.
            RedisUnavailableError: The follower began with ``$``, and Redis did not
                return the last event.
        """
        if timeout is not None:
            check_wait("timeout", timeout)
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
        """End the follower. A task that waits for events continues without events."""
        seat = self._seat if self._mode is Mode.WAITING else None
        self._finish(FollowEnd.LEFT)
        self._ready.clear()
        if seat is not None:  # wakes the other followers of the topic, too
            seat.topic.wake()

    def _enter(self, mode: Mode) -> Step:
        if self._mode is not Mode.ENDED:
            self._mode = mode
        return Step.READ_ON

    def _finish(self, end: FollowEnd | None = None) -> Step:
        """End the follower. Without ``end``, the last event determines the reason."""
        by_run = FollowEnd.CLOSED if self._cursor.closes else FollowEnd.GONE
        self._end = self._end or end or by_run
        return self._enter(Mode.ENDED)

    async def _next(self, until: float = math.inf) -> list[Followed]:
        """Return the next items, or an empty list at the end and after ``until``."""
        if not self._has_waited:
            await anyio.lowlevel.checkpoint()
        self._has_waited = False
        while self._mode is not Mode.ENDED:
            seat = self._seat
            if self._mode is Mode.STREAMING and seat is not None:  # the most usual case
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
            if hub.is_closed:
                return self._finish(FollowEnd.LEFT)
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
        """Find the position from which to continue.

        Called at the beginning, and when the server may have lost events.
        """
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
        """Leave the topic, because the next events must be read from Redis."""
        self._seat = None
        return self._enter(Mode.PAGING)

    async def _read_page(self, hub: Hub) -> StepResult:
        """Read a page from Redis. After the last page, join the run's topic."""
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
        if hub.is_closed:  # closed during the read
            return self._finish(FollowEnd.LEFT)
        topic = self._join(hub, reader.keys, page)
        if found or topic is None or topic.buffer.head != head:
            return found or Step.READ_ON
        # The page is empty. If the cursor is before the buffer, the events between them
        # were deleted before this page was read. Otherwise the buffer has the events.
        return Step.WAIT if _is_before(cursor, topic) else Step.READ_ON

    def _join(self, hub: Hub, keys: RunKeys, page: Page) -> RunTopic | None:
        """Join the run's topic if the cursor has reached its buffer."""
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
        evidence = await fetch_evidence(reader, cursor.id)
        return classify_jump(cursor.id, cursor.known, first, evidence)

    def _stream(self, seat: Seat) -> StepResult:
        """Take events from the buffer of the topic.

        1. The topic's version has not changed since this follower had every event, and
           the last event was no ``system.close``: return the new events, or wait.
        2. The run cannot be read: raise the error.
        3. The cursor is before the buffer: read from Redis.
        4. The buffer has events after the cursor: return the events.
        5. The cursor is ahead of the buffer. Usually this follower has read events from
           Redis that the topic receives in a moment, but the server may also have lost
           events. Ask the server once for each version of the topic.
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
        """Handle the cases 4 to 6 of :meth:`_stream`."""
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
        """Read on from Redis, because the buffer has dropped the next event.

        If the run no longer exists, the follower ends.
        """
        # Later events may be larger than those to which the page size was adapted.
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
        """Return the next result of a follower that has every event.

        1. The run no longer exists: end. If this follower has read no event of the run,
           wait for the next run with this id.
        2. The last event has closed the run: read Redis, and end without a later event.
        3. The writer is lost, and this follower has not reported the loss: report it.
        4. The topic has ended: find or make another topic.
        5. Otherwise wait.

        Only 4 and 5 apply to a plain follower.
        """
        liveness, cursor = topic.liveness, self._cursor
        if self._is_plain:
            return Step.WAIT if topic.is_open else self._seek()
        if liveness.has_disappeared:
            return self._finish() if cursor.existed else self._seek()
        if cursor.closes:
            return self._seek()
        if self._must_report_loss(liveness):
            return [WriterLost(self.run_id, cursor.id)]
        return Step.WAIT if topic.is_open else self._seek()

    def _must_report_loss(self, liveness: WriterLiveness) -> bool:
        """Return whether to report a loss, and remember a loss that is reported.

        1. No writer is lost. If a probe has found this, the next loss is another one.
        2. This loss was reported.
        3. An earlier topic has found the death of the same writer, which was reported.
        4. Otherwise the loss must be reported.
        """
        loss, reported = liveness.loss, self._reported_loss
        if loss is None:
            if liveness.had_no_loss:
                self._reported_loss = None
            return False
        if loss is reported:
            return False
        if reported and reported.token == loss.token and not loss.is_new:
            return False
        self._reported_loss = loss
        return True


def _is_before(cursor: Cursor, topic: RunTopic) -> bool:
    """Return whether the buffer has dropped the event after the cursor."""
    ring = topic.buffer
    return ring.locate(cursor.id) is None and order(cursor.id) <= order(ring.head)
