"""The fleet: reads the keys of all projects at intervals and reports changes."""

from __future__ import annotations

import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from functools import cached_property
from typing import Final, Self, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from bls_agent.connection.endpoint import Endpoint, RedisSource, Reply, Request
from bls_agent.connection.pool import ConnectionPool, find_endpoint
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import PROJECT_KEYS
from bls_agent.ops.fleet.project_state import Held, Moment, ProjectState
from bls_agent.ops.fleet.project_view import FleetChange, ProjectView

INTERVAL: Final = 0.5  # seconds between two reads of the statuses
TIMEOUT: Final = 5.0  # seconds for one request
LISTS: Final = 1.0  # seconds between two reads of queues and logs
SEARCH: Final = 2.0  # seconds between the starts of two searches for new names
CLOSE: Final = 1.0  # seconds that closing waits at most for a running read
STEPS: Final = 25  # steps of a search in one round; a step covers about 1,000 keys
# One SCAN finds all three kinds of keys by the last byte of their names. Other keys may
# match, too; the parser ignores them.
PATTERN: Final = b"*[%b]" % b"".join(
    row.pattern().encode()[-1:] for row in PROJECT_KEYS
)
TOGETHER: Final = 250  # projects whose requests are sent in one write
STATUS_BYTES: Final = 64  # bytes that are read of a status; valid values have six
# Approximate bytes of records that the first reads fetch: of all projects, and of one.
FIRST_BYTES: Final = 32 * 1024 * 1024
FIRST_EACH: Final = 8 * 1024 * 1024
BYTES: Final = 2 * 1024 * 1024  # approximate bytes of records that a later read fetches
BYTES_EACH: Final = 64 * 1024  # bytes of the records of one project in one later read
WINDOWS: Final = 50  # projects whose records are read in one write
NO_KEY: Final = -2  # reply to PTTL for a missing key
WRONG: Final = "wrong_type"
FORBIDDEN: Final = "no_permission"


_T = TypeVar("_T")
_Window: TypeAlias = tuple[ProjectState, int]  # a project, and how many records to read


class Fleet:
    """Watches every project at one Redis; never writes.

    At the end of an ``async with`` block the fleet is closed. Without such a block, call
    :meth:`aclose`. Several tasks may call the methods at once, because they share the
    reads and the state.

    The fleet reads statuses twice a second, and queues and logs once a second. A search
    for new projects starts every two seconds and runs in steps. Among a million keys, a
    search takes 20 seconds.

    The fleet needs the rights that ``docs/rights.md`` lists. If Redis refuses to return
    the status of a project, the fleet leaves out this project. If Redis refuses to return
    any status, the fleet raises an error. If Redis refuses to return the length of a list,
    the length is ``None`` in the view.

    Args:
        redis: URL or client of redis-py, as for :class:`~bls_agent.ProjectAgent`.
            Default: ``BLS_REDIS_URL``, read at the first request.

    Raises:
        ConfigurationError: The URL or the client cannot be used.
    """

    def __init__(self, redis: RedisSource | None = None) -> None:
        self._endpoint = None if redis is None else Endpoint.of(redis)
        self._clock: Callable[[], float] = time.time  # noqa: TID251 - chosen here, passed on as an argument
        self._turn = anyio.Lock()
        self._projects: dict[str, ProjectState] = {}
        self._hidden: frozenset[str] = frozenset()  # projects with unreadable status
        self._wrote = 1  # projects with new records in the last read
        self._offset: float | None = None  # server's Unix time minus event loop's time
        self._read_at = 0.0  # server's Unix time of the last complete read
        self._complete = False
        self._search: AsyncGenerator[set[str]] | None = None
        self._search_at = self._lists_at = self._statuses_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Fleet {self._endpoint.address if self._endpoint else 'unopened'}>"

    @cached_property
    def _pool(self) -> ConnectionPool:
        if self._endpoint is None:
            self._endpoint = find_endpoint()
        return ConnectionPool(self._endpoint, "bls-fleet", timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the next read opens them again."""
        with anyio.move_on_after(CLOSE, shield=True):
            async with self._turn:  # another task may be reading
                await self._end_search()
        if "_pool" in self.__dict__:
            await self._pool.aclose()

    async def look(self) -> dict[str, ProjectView]:
        """Read all projects once; the counts of records include those of earlier reads.

        Returns:
            Project → its current view, sorted by name.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        async with self._turn:
            self._lists_at = self._statuses_at = float("-inf")
            await self._end_search()
            self._complete = False
            await self._advance()
            shown, at = self._shown(), self._now()
            return {name: shown[name].view(at) for name in sorted(shown)}

    async def look_at(self, project: str) -> ProjectView:
        """Read one project once, without a search; the project need not exist.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        async with self._turn:
            await self._set_clock()
            at = self._now()
            state = ProjectState(project, at)
            await self._read_statuses([state], at)
            await self._read_lists([state], at)
        return state.view(at)

    async def watch(self) -> AsyncIterator[FleetChange]:
        """Yield changes until the caller ends the iteration or is cancelled.

        The first change contains all projects. An outage is one change, with
        ``unavailable``. The fleet then tries again after growing pauses of up to 2 s. The
        first change after the outage is yielded even if nothing else has changed.

        If values of a view change only because time passes, the view is not yielded again.
        A caller that shows the view for longer calls :meth:`ProjectView.aged` with the
        passed seconds. The resulting ages are wrong by at most 5 seconds.

        Raises:
            RedisRefusedError: Redis refuses requests until its configuration or this
                program's changes.
        """
        yielded: dict[str, tuple[object, ...]] = {}
        backoff = Backoff()
        silent = True  # whether to yield the next change even if it is empty
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
                    yield FleetChange(unavailable=error, read_at=self._read_at)
                await anyio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            change = self._differences(yielded)
            if silent or change.views or change.removed:
                yield change
            silent = down = False
            await anyio.sleep(max(0.0, began + INTERVAL - anyio.current_time()))

    async def forget(self, project: str) -> None:
        """Drop a project whose keys were deleted.

        If a later search finds a key of the project, the project is back.
        """
        async with self._turn:
            self._projects.pop(project, None)

    def _differences(self, yielded: dict[str, tuple[object, ...]]) -> FleetChange:
        shown, at = self._shown(), self._now()
        marks = {project: state.mark for project, state in shown.items()}
        changed = [name for name, mark in marks.items() if yielded.get(name) != mark]
        removed = frozenset(yielded.keys() - marks.keys())
        yielded.clear()
        yielded.update(marks)
        views = {project: shown[project].view(at) for project in changed}
        return FleetChange(views=views, removed=removed, read_at=self._read_at)

    async def _advance(self) -> None:
        now = anyio.current_time()
        if self._offset is None or self._wants_lists(now):
            await self._set_clock()
        try:
            await self._find_names()  # new projects are read in this round
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(RedisUnavailableError):
                await self._end_search()
            raise
        states, at = list(self._projects.values()), self._now()
        if now - self._statuses_at >= INTERVAL / 2:
            self._hidden = await self._read_statuses(states, at)
            self._statuses_at = now
        if self._wants_lists(now):
            await self._read_lists(states, at)
            self._lists_at = now
        self._let_go(at.now)
        self._read_at = at.unix

    def _wants_lists(self, now: float) -> bool:
        return now - self._lists_at >= LISTS - INTERVAL / 4

    def _let_go(self, now: float) -> None:
        """Move the counts on to ``now``, and drop projects whose keys are gone."""
        for project, state in list(self._projects.items()):
            state.log.activity.turn(now)
            if state.is_forgotten(now):
                del self._projects[project]

    async def _set_clock(self) -> None:
        """Read the server's time; if ``TIME`` is refused, use this process's clock."""
        try:
            async with self._pool.to("") as connection:
                seconds, micros = await connection.read("TIME")
            unix = int(seconds) + int(micros) / 1e6
        except RedisRefusedError:
            unix = self._clock()
        self._offset = unix - anyio.current_time()

    def _now(self) -> Moment:
        now = anyio.current_time()
        return Moment(now, now + (self._offset or 0.0))

    async def _find_names(self) -> None:
        """Search for new projects.

        The first search runs to its end. A later search runs a few steps in each call.
        """
        now = anyio.current_time()
        if self._search is None:
            if self._complete and now - self._search_at < SEARCH:
                return
            self._search, self._search_at = self._scan(), now
        steps, projects = 0, self._projects
        async for names in self._search:
            for name in names - projects.keys():
                projects[name] = ProjectState(name, self._now())
                self._statuses_at = self._lists_at = float("-inf")
            steps += 1
            if self._complete and steps >= STEPS:
                return
        self._search, self._complete = None, True

    async def _end_search(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            await search.aclose()

    def _shown(self) -> dict[str, ProjectState]:
        projects = self._projects.items()
        return {name: state for name, state in projects if name not in self._hidden}

    async def _scan(self) -> AsyncGenerator[set[str]]:
        async with aclosing(self._pool.scan_steps(PATTERN)) as steps:
            async for keys in steps:
                found = (row.parse(key) for key in keys for row in PROJECT_KEYS)
                yield {fields["project"] for fields in found if fields is not None}

    async def _read_statuses(
        self, states: Sequence[ProjectState], at: Moment
    ) -> frozenset[str]:
        """Read statuses and TTLs; return the projects whose status may not be read.

        If no status may be read, raise the server's error.
        """
        refused: dict[str, RedisUnavailableError] = {}
        for part in _parts(states, TOGETHER):
            requests: list[Request] = []
            for state in part:
                key = state.status_key
                requests += [("GETRANGE", key, 0, STATUS_BYTES - 1), ("PTTL", key)]
            replies = await self._pool.read_many(requests)
            answers = zip(part, replies[::2], replies[1::2], strict=True)
            for state, value, left in answers:
                error = _record_status(state, value, left, at)
                if error is not None:
                    refused[state.project] = error
            await anyio.lowlevel.checkpoint()
        if refused and len(refused) == len(states):
            raise next(iter(refused.values()))
        return frozenset(refused)

    async def _read_lists(self, states: Sequence[ProjectState], at: Moment) -> None:
        wanted: list[_Window] = []
        new = sum(state.log.is_new for state in states)
        first = min(FIRST_EACH, FIRST_BYTES // max(1, new))
        later = min(BYTES_EACH, BYTES // max(1, self._wrote))
        for part in _parts(states, TOGETHER):
            wanted += await self._read_lengths(part, at, first, later)
            await anyio.lowlevel.checkpoint()
        self._wrote = len(wanted)
        while wanted:
            again: list[_Window] = []
            for windows in _parts(wanted, WINDOWS):
                again += await self._read_windows(windows, at)
                await anyio.lowlevel.checkpoint()
            wanted = again

    async def _read_lengths(
        self, part: Sequence[ProjectState], at: Moment, first: int, later: int
    ) -> list[_Window]:
        requests: list[Request] = []
        looked = [state.log.is_due(at.now) for state in part]
        heads = [state for state in part if state.wants_head(at.now)]
        for state, look in zip(part, looked, strict=True):
            lists = state.control_key, state.dead_key, state.log_key
            requests += [("LLEN", key) for key in lists]
            requests.append(("HGETALL", state.intake_key))
            if look:
                requests.append(("LINDEX", state.log_key, -1))
        # LRANGE, because the documented rights of a console on queues lack LINDEX.
        requests += [("LRANGE", state.control_key, 0, 0) for state in heads]
        replies = map(_readable, await self._pool.read_many(requests))
        wanted: list[_Window] = []
        for state, look in zip(part, looked, strict=True):
            lengths = next(replies), next(replies), next(replies)
            state.record_lengths(*lengths, at.now)
            state.record_intake(next(replies), at)
            room = first if state.log.is_new else later
            if look and (count := state.log.record_newest(next(replies), at, room)):
                wanted.append((state, count))
        for state in heads:
            state.head.record(next(replies), at)
        return wanted

    async def _read_windows(
        self, windows: Sequence[_Window], at: Moment
    ) -> list[_Window]:
        """Read the last records of logs; return the logs that need a longer window."""
        requests: list[Request] = []
        for state, count in windows:
            # The length is read first, so that it counts no record after the window.
            requests += [("LLEN", state.log_key), ("LRANGE", state.log_key, -count, -1)]
        replies = map(_readable, await self._pool.read_many(requests))
        again: list[_Window] = []
        for state, count in windows:
            length: int | None = next(replies)
            window: list[bytes] | None = next(replies)
            more = state.log.record_window(window or [], length or 0, at)
            if more > count:
                again.append((state, more))
            await anyio.lowlevel.checkpoint()  # a first window may take long to parse
        return again


def _parts(whole: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for begin in range(0, len(whole), size):
        yield whole[begin : begin + size]


def _record_status(
    state: ProjectState, value: Reply, left: Reply, at: Moment
) -> RedisUnavailableError | None:
    for reply in (value, left):
        if isinstance(reply, RedisUnavailableError) and reply.kind == FORBIDDEN:
            return reply
    text, left = _readable(value), _readable(left)
    held = Held.OTHER_TYPE if text is None else text
    ttl = None if left < 0 else left / 1000
    state.record_status(Held.NOTHING if left == NO_KEY else held, ttl, at)
    return None


def _readable(reply: Reply) -> Reply:
    """Return the reply, or ``None`` if the key has another type or may not be read."""
    if not isinstance(reply, RedisUnavailableError):
        return reply
    if reply.kind not in (WRONG, FORBIDDEN):
        raise reply
    return None
