"""The fleet from look to look: what is due when, and what has changed."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import Final, Self

import anyio

from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.keyed_wires import KeyedWires, default_endpoint
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.settings import check_seconds
from bls_agent.ops.fleet.survey import Survey
from bls_agent.ops.fleet.track import Moment
from bls_agent.ops.fleet.views import FleetChange, ProjectView

__all__ = ["Fleet"]

LISTS: Final = 1.0  # seconds between two looks at queues and logs
SEARCH: Final = 2.0  # seconds from one search for new names to the next
RECENT: Final = 30.0  # seconds: who was not there then is new
HIDDEN: Final = 60.0  # seconds until what may not be read is tried again
EMPTY: Final = 1_000  # projects of which nothing is left that are remembered
CLOSE: Final = 1.0  # seconds that closing waits for a look that is under way
STEPS: Final = 25  # of a search in one look: each passes about a thousand keys


class Fleet:
    """Watches every project at one Redis; never writes.

    Works with and without ``async with``; close it with :meth:`aclose` when it was used
    without. Several tasks may look and watch at once: they share the reads and what is
    remembered.

    It needs the rights that ``docs/rights.md`` lists. Projects whose status may not be
    read are left out; if that is so for all of them it raises. Lists that may not be
    read are ``None`` in the views.

    Args:
        redis: URL or client of redis-py, as for :class:`~bls_agent.ProjectAgent`.
            Default: ``BLS_REDIS_URL``, read at the first request.
        interval: Seconds between two looks at the statuses. Queues and logs are looked
            at once a second at most, new names are searched for every two seconds, in
            steps: among a million keys a search takes 20 s.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: The URL, the client or a time cannot be used.
    """

    def __init__(
        self, redis: object = None, *, interval: float = 0.5, timeout: float = 5.0
    ) -> None:
        """Remember where Redis is; nothing is opened yet."""
        self._endpoint = None if redis is None else Endpoint.of(redis)
        self._interval = check_seconds("interval", interval)
        self._timeout = check_seconds("timeout", timeout)
        self._clock: Callable[[], float] = time.time  # noqa: TID251 - the outermost place
        self._turn = anyio.Lock()
        self._offset: float | None = (
            None  # of the server's clock to the one of the loop
        )
        self._complete = False
        self._absent_at: float | None = None  # when a name that is found was not there
        self._search: AsyncGenerator[set[str]] | None = None
        self._search_at = self._lists_at = self._statuses_at = float("-inf")
        self._hidden_at = float("-inf")
        self._searched_at = float("-inf")  # when the last one that was finished began

    def __repr__(self) -> str:
        return f"<Fleet {self._endpoint.address if self._endpoint else 'unopened'}>"

    @cached_property
    def _wires(self) -> KeyedWires:
        if self._endpoint is None:
            self._endpoint = default_endpoint(os.environ)
        return KeyedWires(self._endpoint, "bls-fleet", timeout=self._timeout)

    @cached_property
    def _survey(self) -> Survey:
        return Survey(self._wires)

    async def __aenter__(self) -> Self:
        """Open nothing: the first look does."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; the next look opens it again."""
        with anyio.move_on_after(CLOSE, shield=True):
            async with self._turn:  # somebody may be looking
                await self._end_search()
        if "_wires" in self.__dict__:
            await self._wires.aclose()

    async def look(self) -> dict[str, ProjectView]:
        """Take one complete look at every project.

        What a look before has found is taken into account: rates count from then on.

        Returns:
            Project → how it is, sorted by name.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        async with self._turn:
            self._search_at = self._lists_at = self._statuses_at = float("-inf")
            await self._end_search()
            self._complete = False
            await self._advance()
            tracks = self._survey.tracks
            at = self._now()
            return {name: tracks[name].view(at) for name in sorted(tracks)}

    async def look_at(self, project: str) -> ProjectView:
        """Take one look at one project, whether it exists or not; searches for nothing.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        survey = Survey(self._wires)
        async with self._turn:
            await self._set_clock()
            at = self._now()
            survey.add(project, at, absent_at=None)
            await survey.read_statuses(at)
            await survey.read_lists(at)
        return survey.tracks[project].view(at)

    async def watch(self) -> AsyncIterator[FleetChange]:
        """Tell what changes, until the iteration is left or cancelled.

        The first change is complete. An outage is told once, with ``unavailable``;
        then it is tried again with growing pauses, up to 2 s, and the first change
        after it says that Redis answers again, also if nothing else has changed.

        A view is told again when anything in it has changed but what time does by
        itself: whoever lets the ages grow, and ``ttl`` shrink,
        is right to 5 s.

        Raises:
            RedisRefusedError: Redis refuses for good; nobody repairs that by waiting.
        """
        told: dict[str, int] = {}
        backoff = Backoff()
        silent = True  # nothing was told, or that Redis is away
        down = False
        while True:
            began = anyio.current_time()
            try:
                async with self._turn:
                    await self._advance()
            except RedisRefusedError:
                raise
            except RedisUnavailableError as error:
                if not down:
                    down = silent = True
                    yield FleetChange(unavailable=error)
                await anyio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            change = self._differences(told)
            if silent or change.views or change.gone:
                yield change
            silent = down = False
            await anyio.sleep(max(0.0, began + self._interval - anyio.current_time()))

    async def forget(self, project: str) -> None:
        """Leave a project out whose keys were deleted, until it has one again."""
        async with self._turn:
            if project in self._survey.tracks:
                self._survey.forget(project)

    def _differences(self, told: dict[str, int]) -> FleetChange:
        """Compare with what was told, and note that it is told now."""
        tracks, at = self._survey.tracks, self._now()
        gone = frozenset(told.keys() - tracks.keys())
        for project in gone:
            del told[project]
        views: dict[str, ProjectView] = {}
        for project, track in tracks.items():
            if told.get(project) != track.version:
                told[project] = track.version
                views[project] = track.view(at)
        return FleetChange(views=views, gone=gone)

    async def _advance(self) -> None:
        """Read what is due."""
        try:
            await self._read_what_is_due()
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(RedisUnavailableError):
                await self._end_search()
            raise

    async def _read_what_is_due(self) -> None:
        now = anyio.current_time()
        if self._offset is None or now - self._lists_at >= LISTS:
            await self._set_clock()
        await self._find_names()  # what is found is due at once
        survey, at = self._survey, self._now()
        if now - self._statuses_at >= self._interval / 2:
            await survey.read_statuses(at)
            self._statuses_at = now
        if now - self._lists_at >= LISTS - self._interval / 4:
            await survey.read_lists(at)
            self._lists_at = now
        self._let_go(at.now)

    def _let_go(self, now: float) -> None:
        """Let time pass; forget what nothing has been left of for long, or for longest."""
        survey = self._survey
        empty: list[tuple[float, str]] = []
        for project, track in list(survey.tracks.items()):
            track.turn(now)
            if track.is_forgotten(now):
                survey.forget(project)
            elif track.empty_since is not None:
                empty.append((track.empty_since, project))
        for _, project in sorted(empty)[: max(0, len(empty) - EMPTY)]:
            survey.forget(project)

    async def _set_clock(self) -> None:
        unix = await self._survey.ask_time()
        self._offset = (self._clock() if unix is None else unix) - anyio.current_time()

    def _now(self) -> Moment:
        now = anyio.current_time()
        return Moment(now, now + (self._offset or 0.0))

    async def _find_names(self) -> None:
        """Search for new names: all of them at first, later a few steps each time."""
        now = anyio.current_time()
        if self._search is None:
            if self._complete and now - self._search_at < SEARCH:
                return
            recent = now - self._searched_at < RECENT
            self._absent_at = self._searched_at if recent else None
            self._search, self._search_at = self._survey.scan(), now
            if now - self._hidden_at >= HIDDEN:
                self._survey.hidden.clear()  # rights may have been given meanwhile
                self._hidden_at = now
        steps = 0
        async for names in self._search:
            self._add(names)
            steps += 1
            if self._complete and steps >= STEPS:
                return
        self._search, self._complete = None, True
        self._searched_at = self._search_at

    def _add(self, names: set[str]) -> None:
        survey = self._survey
        for name in names - survey.tracks.keys() - survey.hidden:
            survey.add(name, self._now(), absent_at=self._absent_at)
            self._statuses_at = self._lists_at = float("-inf")

    async def _end_search(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            await search.aclose()
