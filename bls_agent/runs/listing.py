"""Lists runs, and summarises the state of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

import anyio
import anyio.lowlevel

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.checks import check_count
from bls_agent.core.codec import JSONObject, cut_text, json_or_text
from bls_agent.core.errors import RedisUnavailableError, WrongTypeError
from bls_agent.core.keys import RUN_EVENTS
from bls_agent.runs.events import (
    BEGINNING,
    EventCategory,
    StreamEvent,
    check_run_id,
    order,
)
from bls_agent.runs.reading import (
    NO_KEY,
    Entry,
    PageSize,
    RunKeys,
    run_id_of,
    size_of,
)

PREVIEW: Final = 400  # largest number of bytes of a text that is taken from an event
LONGEST_REASON: Final = 8 * 1024  # largest number of bytes of the reason of a failure
PORTION: Final = 250  # largest number of runs that are read together
FIRST_PORTION: Final = 10  # runs read together while the size of events is unknown
PORTION_BYTES: Final = 2 * 1024 * 1024  # approximate bytes of events in one reply
_TASK: Final = ("task", "title", "name", "input")  # data fields that may describe a run

MOST: Final = 10_000
_GIVE_EVENTS: Final = ("XRANGE", "XREVRANGE")
_OF_ITS_KEY: Final = ("wrong_type", "no_permission")  # errors that concern only one key


class RunState(StrEnum):
    """The state of a run.

    Attributes:
        RUNNING: A writer is alive, because its lease on the run exists: a key with a
            TTL that the writer renews.
        OPEN: No writer holds a lease. The run has not ended, or has started again.
        LOST: The lease of the writer has expired before the writer ended the run.
        COMPLETED: Ended with ``lifecycle.completed``.
        FAILED: Ended with ``lifecycle.failed``.
        CANCELLED: Ended with ``lifecycle.cancelled``.
        CLOSED: Ended with ``system.close`` but without one of the three actions above,
            or events were added after the end.
    """

    RUNNING = "running"
    OPEN = "open"
    LOST = "lost"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CLOSED = "closed"


_ENDS: Final = {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}


@dataclass(frozen=True)
class RunSummary:
    """The state of a run at one moment.

    Attributes:
        length: Number of events that Redis keeps.
        sequence: Number of the last event, usually equal to the number of all events
            that the run ever had; 0 if the last event has no readable number.
        first_id: Id of the oldest event in Redis; ``""`` without events.
        last_id: Id of the newest event; ``""`` without events.
        ttl: Seconds until the run expires; ``None`` if it never expires.
        task: The beginning of ``task``, ``title``, ``name`` or ``input`` in the data of
            the oldest event in Redis; ``""`` if the data have none of these fields.
        error: Why the run failed, at most 8 KiB of text; ``""`` if the run has not
            failed, or if no reason was written.
        source: Source of the oldest event in Redis; ``None`` without a source.
        last: Name of the newest event, such as ``llm.stream``; ``""`` without events.
    """

    run_id: int
    state: RunState
    length: int
    sequence: int = 0
    first_id: str = ""
    last_id: str = ""
    ttl: float | None = None
    task: str = ""
    error: str = ""
    source: Mapping[str, str] | None = None
    last: str = ""

    @property
    def started_at(self) -> float | None:
        """When the oldest event was written: Unix seconds of the server's clock."""
        return order(self.first_id)[0] / 1000 if self.first_id else None

    @property
    def last_at(self) -> float | None:
        """When the newest event was written: Unix seconds of the server's clock."""
        return order(self.last_id)[0] / 1000 if self.last_id else None

    @property
    def ended(self) -> bool:
        """Whether the run is completed, failed, cancelled or closed."""
        return self.state in _ENDS or self.state is RunState.CLOSED

    def to_dict(self) -> JSONObject:
        """Return the fields in the form that ``bls-agent runs --json`` prints."""
        return {
            "run_id": self.run_id,
            "state": self.state.value,
            "length": self.length,
            "sequence": self.sequence,
            "first_id": self.first_id,
            "last_id": self.last_id,
            "started_at": self.started_at,
            "last_at": self.last_at,
            "ttl": self.ttl,
            "task": self.task,
            "error": self.error,
            "source": self.source,
            "last": self.last,
        }


@dataclass(frozen=True)
class RunList:
    """A list of runs. The run with the newest event is the first.

    Attributes:
        runs: The runs with the newest events, at most ``limit`` of them.
        total: Number of all readable runs, also of those beyond ``limit``.
        left_out: Number of keys that could not be read, by reason. The reasons are
            ``"wrong_type"``, ``"no_permission"`` and ``"wrong_name"`` (the key contains
            no valid run id).
    """

    runs: list[RunSummary]
    total: int
    left_out: Mapping[str, int]

    def __iter__(self) -> Iterator[RunSummary]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


class RunFacts(NamedTuple):
    """The replies of Redis from which one run is summarised."""

    length: int  # number of events
    ttl: int  # milliseconds until the run expires, as PTTL returns them
    first: Sequence[Entry]  # the oldest event
    last: Sequence[Entry]  # the two newest events, newest first
    lease: int  # milliseconds until the writer's lease expires, as PTTL returns them
    owner: bytes | None  # token of a writer that has not ended the run
    # Whether the run was closed and has not started again. ``False`` if the metadata of
    # the run do not count the newest event yet.
    closed: bool = False


def summarise(run_id: int, facts: RunFacts) -> RunSummary | None:
    """Return the summary of a run, or ``None`` if the run does not exist."""
    if facts.ttl == NO_KEY:
        return None
    newest = [StreamEvent.decode(run_id, *entry) for entry in facts.last]
    oldest = [StreamEvent.decode(run_id, *entry) for entry in facts.first]
    first, last = next(iter(oldest), None), next(iter(newest), None)
    state = _state_of(newest, facts)
    return RunSummary(
        run_id,
        state,
        facts.length,
        sequence=last.sequence if last else 0,
        first_id=first.id if first else "",
        last_id=last.id if last else "",
        ttl=None if facts.ttl < 0 else facts.ttl / 1000,
        task=_task_of(first),
        error=_error_of(newest) if state is RunState.FAILED else "",
        source=first.source if first else None,
        last=last.name if last else "",
    )


def _state_of(newest: Sequence[StreamEvent], facts: RunFacts) -> RunState:
    if facts.lease != NO_KEY:
        return RunState.RUNNING
    last = newest[0] if newest else None
    if last is not None and last.closes:
        return _end_state(newest)
    if facts.owner is not None:
        return RunState.LOST
    if facts.closed:
        return RunState.CLOSED
    return (_end_of(last) if last else None) or RunState.OPEN


def _end_state(end: Sequence[StreamEvent]) -> RunState:
    return next(filter(None, map(_end_of, end)), RunState.CLOSED)


def _end_of(event: StreamEvent) -> RunState | None:
    if event.category != EventCategory.LIFECYCLE:
        return None
    return next((state for state in _ENDS if state == event.action), None)


def _task_of(first: StreamEvent | None) -> str:
    data: Mapping[str, Any] = first.data if first else {}
    return next((_preview(data[name]) for name in _TASK if data.get(name)), "")


def _error_of(newest: Sequence[StreamEvent]) -> str:
    for event in newest:
        if _end_of(event) is RunState.FAILED:
            reason: Any = event.data.get("error") or event.data.get("message")
            if isinstance(reason, dict):
                inner = cast("JSONObject", reason)
                kind, reason = inner.get("type"), inner.get("message") or inner
                if isinstance(kind, str) and kind and isinstance(reason, str):
                    reason = f"{kind}: {reason}"
            return _preview(reason, LONGEST_REASON) if reason else ""
    return ""


def _preview(value: object, longest: int = PREVIEW) -> str:
    return cut_text(json_or_text(value), longest)


async def list_runs(pool: ConnectionPool, limit: int) -> RunList:
    """Find all runs with SCAN, as ``EventStore.runs`` describes."""
    check_count("limit", limit, most=MOST)
    found: set[int] = set()
    odd: set[bytes] = set()
    async with aclosing(pool.scan_steps(RUN_EVENTS.pattern())) as steps:
        async for keys in steps:
            for key in keys:
                run_id = run_id_of(key)
                if run_id is None:
                    odd.add(key)
                else:
                    found.add(run_id)
    search = _Search(pool)
    newest = await search.sort_newest_first(sorted(found))
    runs = await search.summarise(newest[:limit])
    search.left_out["wrong_name"] = len(odd)
    if search.refusal is not None and not runs:
        raise search.refusal
    return RunList(runs, len(newest), +search.left_out)


async def describe_run(pool: ConnectionPool, run_id: int) -> RunSummary | None:
    """Return the summary of a run, or ``None`` if the run does not exist."""
    search = _Search(pool)
    found = await search.summarise([check_run_id(run_id)])
    if search.refusal is not None:
        raise search.refusal
    if search.left_out:
        raise WrongTypeError(RunKeys(run_id).events, "stream")
    return found[0] if found else None


class _Search:
    """Reads summaries, and counts the runs that cannot be read."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self.left_out: Counter[str] = Counter()  # reason → number of runs
        # the last error because of a missing permission
        self.refusal: RedisUnavailableError | None = None

    async def sort_newest_first(self, runs: Sequence[int]) -> list[int]:
        """Return the readable runs. The run with the newest event is the first."""
        found: dict[int, tuple[int, int]] = {}
        async for run_id, replies in self._request(runs, _newest_requests):
            if self._is_readable(replies):
                newest: Sequence[Entry] = replies[0]
                last = newest[0][0].decode() if newest else BEGINNING
                found[run_id] = order(last)
        return sorted(found, key=lambda run_id: (found[run_id], run_id), reverse=True)

    async def summarise(self, runs: Sequence[int]) -> list[RunSummary]:
        found: list[RunSummary] = []
        async for run_id, replies in self._request(runs, _fact_requests):
            if self._is_readable(replies[:4]):
                summary = summarise(run_id, _read_facts(replies))
                if summary is not None:
                    found.append(summary)
        return found

    def _is_readable(self, replies: Sequence[Reply]) -> bool:
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                self.left_out[reply.kind] += 1
                if reply.kind == "no_permission":
                    self.refusal = reply
                return False
        return True

    async def _request(
        self,
        runs: Sequence[int],
        make: Callable[[RunKeys], list[Request]],
    ) -> AsyncGenerator[tuple[int, list[Reply]]]:
        """Yield each run with the replies to its requests. A reply may be an error."""
        begin, portion = 0, PageSize(FIRST_PORTION, PORTION, PORTION_BYTES)
        while begin < len(runs):
            part = runs[begin : begin + portion.count]
            portion.count = len(part)
            asked = [make(RunKeys(run_id)) for run_id in part]
            requests = [one for of in asked for one in of]
            began = anyio.current_time()
            try:
                replies = await self._pool.read_many(requests)
            except RedisUnavailableError as error:
                if not portion.shrink(error):
                    raise
                continue
            begin += len(part)
            for reply in replies:
                if _concerns_all(reply):
                    raise reply
            size = _size_of_events(requests, replies)
            portion.record(len(part), size, anyio.current_time() - began)
            each = len(asked[0])
            for place, run_id in enumerate(part):
                yield run_id, replies[place * each : (place + 1) * each]
            await anyio.lowlevel.checkpoint()


def _concerns_all(reply: Reply) -> bool:
    is_error = isinstance(reply, RedisUnavailableError)
    return is_error and reply.kind not in _OF_ITS_KEY


def _size_of_events(requests: Sequence[Request], replies: Sequence[Reply]) -> int:
    return sum(
        size_of(reply)
        for request, reply in zip(requests, replies, strict=True)
        if request[0] in _GIVE_EVENTS and not isinstance(reply, Exception)
    )


def _newest_requests(keys: RunKeys) -> list[Request]:
    return [("XREVRANGE", keys.events, "+", "-", "COUNT", 1)]


def _fact_requests(keys: RunKeys) -> list[Request]:
    return [
        ("XLEN", keys.events),
        ("PTTL", keys.events),
        ("XRANGE", keys.events, "-", "+", "COUNT", 1),
        ("XREVRANGE", keys.events, "+", "-", "COUNT", 2),
        ("PTTL", keys.owner),
        ("HMGET", keys.books, "owner", "closed", "id"),
    ]


def _read_facts(replies: Sequence[Reply]) -> RunFacts:
    """Read the replies. If a reply about the writer is an error, assume no writer."""
    length, ttl, first, last, lease, books = replies
    lease = NO_KEY if isinstance(lease, Exception) else lease
    nothing: Reply = (None, None, None)
    owner, closed, counted = nothing if isinstance(books, Exception) else books
    # Another program may have added an event that the metadata do not count yet. This
    # event may have restarted the run, so the run does not count as ended.
    ended = closed is not None and bool(last) and last[0][0] == counted
    return RunFacts(length, ttl, first, last, lease, owner, ended)
