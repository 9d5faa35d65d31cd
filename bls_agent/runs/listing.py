"""Finding the runs there are, and looking at them, many in one round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import anyio.lowlevel

from bls_agent.connection.access import Store
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.keyed_wires import KeyedWires
from bls_agent.core.errors import RedisUnavailableError, WrongTypeError
from bls_agent.core.keys import RUN_EVENTS
from bls_agent.runs.event_ids import BEGINNING, check_run_id, find_id, next_id, order
from bls_agent.runs.limits import check_count
from bls_agent.runs.reading import RunKeys
from bls_agent.runs.summaries import (
    FIRST_PORTION,
    NO_KEY,
    PORTION,
    Look,
    RunList,
    RunSummary,
    next_portion,
    run_id_of,
    size_of,
    summarise,
    summarise_end,
)

__all__ = ["Listing"]

TOGETHER: Final = 500  # runs of which nothing large is asked
LESS: Final = 4  # by which a portion is divided that has not come through in time
MOST: Final = 10_000
_GIVE_EVENTS: Final = ("XRANGE", "XREVRANGE")
_OF_ITS_KEY: Final = ("wrong_type", "no_permission")  # others may be answered


class Listing(Store):
    """Tells which runs there are; never writes."""

    async def runs(self, limit: int = 100) -> RunList:
        """Find the runs there are, the one with the newest event first.

        All keys are searched with SCAN. What has the key of a run and is none, or may
        not be read, hides no other run; it is counted.

        Args:
            limit: So many runs at most, up to 10,000.

        Raises:
            ConfigurationError: ``limit`` breaks its rule.
            RedisUnavailableError: Redis cannot answer, or lets us read none of the runs.
        """
        check_count("limit", limit, most=MOST)
        wires = self._access.wires
        found: set[int] = set()
        odd: set[bytes] = set()
        async with aclosing(wires.scan_steps(RUN_EVENTS.pattern())) as steps:
            async for keys in steps:
                for key in keys:
                    run_id = run_id_of(key)
                    if run_id is None:
                        odd.add(key)
                    else:
                        found.add(run_id)
        search = _Search(wires)
        newest = await search.newest(sorted(found))
        runs = await search.look_at(newest[:limit])
        search.left_out["wrong_name"] = len(odd)
        if search.refusal is not None and not runs:
            raise search.refusal
        return RunList(runs, len(newest), +search.left_out)

    async def describe(self, run_id: int) -> RunSummary | None:
        """Say how a run stands; ``None`` if there is no such run.

        Raises:
            ConfigurationError: ``run_id`` is none.
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        search = _Search(self._access.wires)
        found = await search.look_at([check_run_id(run_id)])
        if search.refusal is not None:
            raise search.refusal
        if search.left_out:
            raise WrongTypeError(RunKeys(run_id).events, "stream")
        return found[0] if found else None


class _Search:
    """Looks at runs, and counts what cannot be looked at.

    Attributes:
        left_out: Why → how many.
        refusal: What was refused last.
    """

    def __init__(self, wires: KeyedWires) -> None:
        self._wires = wires
        self.left_out: Counter[str] = Counter()
        self.refusal: RedisUnavailableError | None = None

    async def newest(self, runs: Sequence[int]) -> list[int]:
        """Put runs into order, those with the newest event first; leave out what is none.

        The books tell the id of the last event in a few bytes; asked is only whether
        something stands behind it. Without books the event has to be read.
        """
        counted: dict[int, str] = {}
        async for run_id, told in self._ask(runs, TOGETHER, _ask_books):
            last = (
                find_id(told[0].decode("ascii", "replace"))
                if isinstance(told[0], bytes)
                else None
            )
            if last is not None:
                counted[run_id] = last
        found: dict[int, tuple[int, int]] = {}
        uncounted = [run_id for run_id in runs if run_id not in counted]
        for some, portion in ((list(counted), TOGETHER), (uncounted, FIRST_PORTION)):
            asked = self._ask(some, portion, lambda keys: _ask_behind(keys, counted))
            async for run_id, told in asked:
                if self._takes(told):
                    last = told[0][0][0].decode() if told[0] else counted.get(run_id)
                    found[run_id] = order(last or BEGINNING)
        return sorted(found, key=lambda run_id: (found[run_id], run_id), reverse=True)

    async def look_at(self, runs: Sequence[int]) -> list[RunSummary]:
        """Give the summaries of runs, in this order; leave out what is none."""
        found: dict[int, RunSummary] = {}
        ends: dict[int, str] = {}
        async for run_id, told in self._ask(runs, FIRST_PORTION, _ask_all):
            if self._takes(told[:4]):
                look = _look(told)
                summary = summarise(run_id, look)
                if summary is not None:
                    found[run_id] = summary
                    if look.ended_before:
                        ends[run_id] = look.closed
        asked = self._ask(list(ends), FIRST_PORTION, lambda keys: _ask_end(keys, ends))
        async for run_id, told in asked:
            if self._takes(told):
                found[run_id] = summarise_end(found[run_id], told[0])
        return list(found.values())

    def _takes(self, told: Sequence[Reply]) -> bool:
        """Tell whether these are answers; count the run if they are not."""
        for reply in told:
            if isinstance(reply, RedisUnavailableError):
                self.left_out[reply.kind] += 1
                if reply.kind == "no_permission":
                    self.refusal = reply
                return False
        return True

    async def _ask(
        self,
        runs: Sequence[int],
        portion: int,
        make: Callable[[RunKeys], list[Request]],
    ) -> AsyncGenerator[tuple[int, list[Reply]]]:
        """Ask about runs, portion by portion; what is refused of one stands in its list.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        begin = 0
        while begin < len(runs):
            part = runs[begin : begin + portion]
            asked = [make(RunKeys(run_id)) for run_id in part]
            requests = [one for of in asked for one in of]
            try:
                replies = await self._wires.read_many(requests)
            except RedisUnavailableError as error:
                if error.kind != "timeout" or error.connecting or len(part) == 1:
                    raise
                portion = len(part) // LESS or 1  # too much for the link
                continue
            begin += len(part)
            for reply in replies:
                if _concerns_all(reply):
                    raise reply
            size = _size_of_events(requests, replies)
            if portion <= PORTION:
                portion = next_portion(len(part), size)
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


def _ask_books(keys: RunKeys) -> list[Request]:
    return [("HGET", keys.books, "id")]


def _ask_behind(keys: RunKeys, counted: dict[int, str]) -> list[Request]:
    """Ask for the last event, if there is one behind that of the books."""
    last = counted.get(keys.run_id)
    behind = "-" if last is None else next_id(last) or "+"
    return [("XREVRANGE", keys.events, "+", behind, "COUNT", 1)]


def _ask_all(keys: RunKeys) -> list[Request]:
    return [
        ("XLEN", keys.events),
        ("PTTL", keys.events),
        ("XRANGE", keys.events, "-", "+", "COUNT", 1),
        ("XREVRANGE", keys.events, "+", "-", "COUNT", 2),
        ("PTTL", keys.owner),
        ("HMGET", keys.books, "owner", "closed", "id"),
    ]


def _look(told: Sequence[Reply]) -> Look:
    """Read what was answered; who may not look beside the stream knows of no writer."""
    length, ttl, first, last, lease, books = told
    lease = NO_KEY if isinstance(lease, Exception) else lease
    nothing: Reply = (None, None, None)
    owner, closed, counted = nothing if isinstance(books, Exception) else books
    # What others have added behind it may be a new beginning.
    all_counted = bool(last) and last[0][0] == counted
    end = find_id(closed.decode("ascii", "replace")) if closed and all_counted else None
    return Look(length, ttl, first, last, lease, owner, end or "")


def _ask_end(keys: RunKeys, ends: Mapping[int, str]) -> list[Request]:
    return [("XREVRANGE", keys.events, ends[keys.run_id], "-", "COUNT", 2)]
