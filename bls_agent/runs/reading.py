"""Reads a run from Redis in ranges and pages, and names the keys of the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import anyio

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.errors import BlsError, RedisUnavailableError, WrongTypeError
from bls_agent.core.keys import OWNER, RUN_BOOKS, RUN_EVENTS, place_beside
from bls_agent.runs.events import StreamEvent, check_run_id, next_id, previous_id

NO_KEY: Final = -2  # PTTL of a missing key
FIRST_PAGE: Final = 10  # events that are read at once while their size is unknown
GROWTH: Final = 10  # how many times longer a page may be than the previous page
TYPES: Final = ("stream", "hash", "string")  # types of the three keys of a run
PAGE: Final = 500  # largest number of events in a page
PAGE_BYTES: Final = 4 * 1024 * 1024  # approximate bytes of the largest page
LESS: Final = 4  # divisor of the page size after a timeout
QUICK: Final = 1.0  # seconds; a longer page may follow a page that took less time


Entry: TypeAlias = tuple[bytes, Sequence[bytes]]  # id; names and values alternately


class RunKeys:
    """The keys of one run. On a cluster, all of them are in one hash slot."""

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        self.events: str = RUN_EVENTS.locate(run_id=run_id)  # the stream of events
        place = place_beside(self.events)
        self.books: str = RUN_BOOKS.locate(place=place)  # the metadata of the run
        self.owner: str = OWNER.locate(place=place)  # the lease of the run's writer

    @property
    def all(self) -> list[str]:
        """The three keys, in the order that the scripts expect."""
        return [self.events, self.books, self.owner]


def run_id_of(key: bytes) -> int | None:
    """Return the run id in a key, or ``None`` if the key belongs to no run."""
    fields = RUN_EVENTS.parse(key)
    return parse_run_id(fields["run_id"]) if fields else None


def parse_run_id(text: str) -> int | None:
    """Return the run id in a text, or ``None``. Keys have no leading zeros."""
    if not (text.isascii() and text.isdigit()) or text != (text.lstrip("0") or "0"):
        return None
    try:
        return check_run_id(int(text))
    except ValueError:  # from int(), or the ConfigurationError of check_run_id()
        return None


async def find_wrong_run_key(pool: ConnectionPool, keys: RunKeys) -> WrongTypeError:
    """Return an error that names which key of a run has a wrong type.

    The requests need only permissions that the scripts need, too. If no key has a wrong
    type any more, the error names the stream.
    """
    requests: list[Request] = [
        ("XLEN", keys.events), ("HMGET", keys.books, "owner"), ("GET", keys.owner)
    ]  # fmt: skip
    with suppress(RedisUnavailableError):
        replies = await pool.call_many(requests)
        for key, expected, reply in zip(keys.all, TYPES, replies, strict=True):
            if isinstance(reply, RedisUnavailableError) and reply.kind == "wrong_type":
                return WrongTypeError(key, expected)
    return WrongTypeError(keys.events, TYPES[0])


class Page(NamedTuple):
    """Consecutive events of a run, and whether the range has further events."""

    events: list[StreamEvent]  # oldest first, or newest first if read backwards
    is_last: bool  # whether the range had no further event when the page was read
    size: int  # bytes of the events


class PageSize:
    """Decides how many events to read at once, by their size and the time of reads."""

    def __init__(
        self, first: int = FIRST_PAGE, most: int = PAGE, most_bytes: int = PAGE_BYTES
    ) -> None:
        self.count: int = first  # number of events, or runs, to request next
        self._longest = self._most = most
        self._most_bytes = most_bytes

    def shrink(self, error: RedisUnavailableError) -> bool:
        """Reduce the count after a request that took too long.

        Return ``False`` if the count is 1, or if the error has another cause.
        """
        was_under_way = error.kind == "timeout" or error.ambiguous
        if error.connecting or not was_under_way or self.count == 1:
            return False
        self.count = self._most = max(1, self.count // LESS)
        return True

    def record(self, found: int, size: int, took: float) -> None:
        """Adapt the count to a page of ``found`` events and ``size`` bytes.

        ``took`` is the number of seconds that the request took.
        """
        if took < QUICK:
            self._most = min(self._longest, 2 * self._most)
        fitting = self._most_bytes // max(1, size // max(1, found))
        self.count = max(1, min(self._most, fitting, GROWTH * self.count))


class RunReader:
    """Reads one run over the connections of a pool."""

    def __init__(self, pool: ConnectionPool, run_id: int) -> None:
        self.keys: RunKeys = RunKeys(run_id)
        self.pool = pool

    async def read(
        self, start: str | None, end: str | None, count: int, *, back: bool = False
    ) -> Page:
        """Read the oldest events of a range, including both ends.

        If ``back``, read the newest events. Return an empty page if an end is ``None``.
        """
        if start is None or end is None:
            await anyio.lowlevel.checkpoint()
            return Page([], is_last=True, size=0)
        if back:
            entries = await self.ask("XREVRANGE", end, start, "COUNT", count)
        else:
            entries = await self.ask("XRANGE", start, end, "COUNT", count)
        events = decode_entries(self.keys.run_id, entries)
        return Page(events, len(events) < count, size_of(entries))

    async def pages(
        self,
        start: str | None,
        end: str | None,
        count: int | None = None,
        *,
        back: bool = False,
    ) -> AsyncGenerator[Page]:
        """Read a range page by page, so that no request takes long."""
        left, portion = count, PageSize()
        while left is None or left > 0:
            began = anyio.current_time()
            asked = portion.count if left is None else min(portion.count, left)
            portion.count = asked
            try:
                page = await self.read(start, end, asked, back=back)
            except RedisUnavailableError as error:
                if not portion.shrink(error):
                    raise
                continue
            took = anyio.current_time() - began
            portion.record(len(page.events), page.size, took)
            yield page
            if page.is_last:
                return
            left = None if left is None else left - asked
            reached = page.events[-1].id
            if back:
                end = previous_id(reached)
            else:
                start = next_id(reached)

    async def read_limited(
        self, start: str | None, end: str | None, limit: int, *, back: bool = False
    ) -> tuple[list[StreamEvent], bool]:
        """Read up to ``limit`` events, and stop after about ``PAGE_BYTES``.

        Return the events, and whether the range has further events.
        """
        events: list[StreamEvent] = []
        size = 0
        async for page in self.pages(start, end, limit + 1, back=back):
            events += page.events
            size += page.size
            if size >= PAGE_BYTES and len(events) > 1 and not page.is_last:
                limit = min(limit, len(events) - 1)
                break
        return events[:limit], len(events) > limit

    async def last(self) -> StreamEvent | None:
        page = await self.read("-", "+", 1, back=True)
        return next(iter(page.events), None)

    async def ask(self, name: str, *rest: str | int) -> Reply:
        """Send one read-only command for the stream. Return the reply."""
        try:
            return await self.pool.read(self.keys.events, name, *rest)
        except RedisUnavailableError as error:
            raise self.explain(error) from error

    def explain(self, error: BlsError) -> BlsError:
        """Return WrongTypeError if the key has a wrong type, else ``error`` itself."""
        if getattr(error, "kind", "") == "wrong_type":
            return WrongTypeError(self.keys.events, "stream")
        return error


def decode_entries(run_id: int, entries: Sequence[Entry]) -> list[StreamEvent]:
    """Decode entries of a stream. Never raise, whatever an entry contains."""
    return [StreamEvent.decode(run_id, number, fields) for number, fields in entries]


def size_of(entries: Sequence[Entry]) -> int:
    return sum(sum(map(len, fields)) for _, fields in entries)
