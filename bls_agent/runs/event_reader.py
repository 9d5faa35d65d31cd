"""Reading the events of runs: ranges, pages, places, and following."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from bls_agent.runs.event_ids import (
    BEGINNING,
    END,
    check_bound,
    check_id,
    check_run_id,
    next_id,
    previous_id,
)
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.following.follower import Follower
from bls_agent.runs.following.hub import Hubs
from bls_agent.runs.limits import check_count
from bls_agent.runs.listing import Listing
from bls_agent.runs.reading import RunReader

__all__ = ["EventPage", "EventReader"]

REFRESH: Final = 5.0  # seconds after which who waits for ever looks if Redis is there


@dataclass(frozen=True)
class EventPage:
    """Some events, and where the next ones begin.

    Attributes:
        events: Oldest first.
        next: Pass it as ``after`` for what follows; ``None`` if this was the last page
            of what is there now.
    """

    events: list[StreamEvent]
    next: str | None


class EventReader(Listing):
    """Reads and follows the events of runs; never writes."""

    client_name: ClassVar[str] = "bls-runs"

    def __init__(self, redis: object = None, *, timeout: float = 5.0) -> None:
        """Remember where Redis is, as every store does; nothing is opened yet."""
        super().__init__(redis, timeout=timeout)
        self._hubs = Hubs(self._access)

    async def get_events(
        self,
        run_id: int,
        start_id: str = "-",
        end_id: str = "+",
        count: int | None = None,
    ) -> list[StreamEvent]:
        """Read events of a range, both ends in it.

        Args:
            run_id: The run.
            start_id: Id of the first event, or ``-`` for the oldest.
            end_id: Id of the last event, or ``+`` for the newest.
            count: At most so many; default: all of them.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        start = check_bound("start_id", start_id)
        end = check_bound("end_id", end_id)
        return await self._read(run_id, start, end, count)

    async def _read(
        self, run_id: int, start: str | None, end: str, count: int | None
    ) -> list[StreamEvent]:
        if count is not None and check_count("count", count, least=0) == 0:
            return []
        events: list[StreamEvent] = []
        async for page in self._reader(run_id).pages(start, end, count):
            events += page
        return events

    async def get_events_after(
        self, run_id: int, last_id: str, count: int | None = None
    ) -> list[StreamEvent]:
        """Read events behind an id, for who was disconnected.

        Args:
            run_id: The run.
            last_id: Id of the last event that is known; it is not given again.
            count: At most so many; default: all of them.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        start = next_id(check_id("last_id", last_id))
        return await self._read(run_id, start, "+", count)

    async def page(
        self, run_id: int, *, after: str | None = None, limit: int = 100
    ) -> EventPage:
        """Read a page; no event stands on two of them, and none between them.

        Args:
            run_id: The run.
            after: The ``next`` of the page before; default: the first page.
            limit: Longest page, from 1 to 1,000.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        check_count("limit", limit, most=1_000)
        last = check_id("after", after) if after is not None else BEGINNING
        start = next_id(last)
        found = await self._read(run_id, start, "+", limit + 1)
        events = found[:limit]
        return EventPage(events, events[-1].id if len(found) > limit else None)

    async def page_back(
        self, run_id: int, *, before: str | None = None, limit: int = 100
    ) -> EventPage:
        """Read a page of what stands before a place, as who scrolls up wants it.

        Args:
            run_id: The run.
            before: The ``next`` of the page after it; default: the newest page.
            limit: Longest page, from 1 to 1,000.

        Returns:
            The events, oldest first; ``next`` is what to pass as ``before`` for what
            stands before them, ``None`` at the beginning.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        check_count("limit", limit, most=1_000)
        end = "+" if before is None else previous_id(check_id("before", before))
        if end is None:
            return EventPage([], None)
        found = await self._reader(run_id).read_back(end, limit + 1)
        events = found[:limit][::-1]
        return EventPage(events, events[0].id if len(found) > limit else None)

    async def tail(self, run_id: int) -> str:
        """Give the place behind the last event: what is read from there on is new.

        Returns:
            Its id; ``0-0`` if there is none.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        return await self._reader(run_id).last_id()

    def follow(self, run_id: int, last_id: str = BEGINNING) -> Follower:
        """Give the events behind a place as they are written, each once, in order.

        It waits for a run that does not exist yet, and through outages of Redis. Where
        events are missing a :class:`~bls_agent.runs.Gap` stands in their place; where
        the writer fell silent without ending the run, a
        :class:`~bls_agent.runs.WriterLost`. It ends at ``system.close``, and when the
        run disappears.

        Args:
            run_id: The run.
            last_id: Id of the last event that is known; ``0-0`` for all that are kept,
                ``$`` for those that come from the first wait on.

        Returns:
            What to iterate over with ``async for``; it needs no closing.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        last = last_id if last_id == END else check_id("last_id", last_id)
        return Follower(self._hubs, check_run_id(run_id), last)

    async def subscribe(
        self, run_id: int, last_id: str = END, block_ms: int = 5000
    ) -> list[StreamEvent]:
        """Wait for the events behind a place, once: the document's blocking read.

        Each call stands for itself: pass the id of the last event that you have been
        given, and begin with :meth:`tail`. With ``$`` in a loop, what is written between
        two calls is missed; :meth:`follow` misses nothing.

        Args:
            run_id: The run.
            last_id: Id of the last event that is known; ``$`` for what comes from now on.
            block_ms: Milliseconds to wait at most; 0 for as long as it takes.

        Returns:
            The events; empty if none has come in time.

        Raises:
            ConfigurationError: An argument breaks its rule.
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        last = last_id if last_id == END else check_id("last_id", last_id)
        wait = check_count("block_ms", block_ms, least=0) / 1000
        follower = Follower(self._hubs, check_run_id(run_id), last, is_plain=True)
        while True:
            found = await follower.batch(wait or REFRESH)
            if not found and follower.unavailable is not None:
                raise follower.unavailable
            if found or wait or follower.ended:
                return [event for event in found if isinstance(event, StreamEvent)]

    async def exists(self, run_id: int) -> bool:
        """Tell whether there are events of a run.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        reader = self._reader(run_id)
        return bool(await reader.ask("XLEN")) or bool(await reader.ask("EXISTS"))

    async def get_length(self, run_id: int) -> int:
        """Count the events of a run that are kept.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        length: int = await self._reader(run_id).ask("XLEN")
        return length

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next request opens them again.

        Who follows here is given nothing more: the iteration ends.
        """
        await self._hubs.aclose()
        await super().aclose()

    def _reader(self, run_id: int) -> RunReader:
        return RunReader(self._access.wires, check_run_id(run_id))
