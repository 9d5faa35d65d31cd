"""Reading a run from Redis: ranges, page by page, and what else is known of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import anyio

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.keyed_wires import KeyedWires
from bls_agent.core.errors import RedisUnavailableError, WrongTypeError
from bls_agent.core.keys import OWNER, RUN_BOOKS, RUN_EVENTS
from bls_agent.core.names import place_beside
from bls_agent.runs.event_ids import BEGINNING, next_id
from bls_agent.runs.events import StreamEvent
from bls_agent.runs.summaries import NO_KEY, size_of

__all__ = [
    "FIRST_PAGE",
    "GROWTH",
    "PAGE",
    "PAGE_BYTES",
    "Entry",
    "Page",
    "Portion",
    "RunKeys",
    "RunReader",
    "decode_entries",
    "find_wrong_type",
    "next_portion",
]

FIRST_PAGE: Final = 10  # events that are read at once while nobody knows their size
GROWTH: Final = 10  # how many times longer a page may be than the one before
TYPES: Final = ("stream", "hash", "string")  # of the three keys of a run
PAGE: Final = 500  # events of the longest one
PAGE_BYTES: Final = 4 * 1024 * 1024  # about as long as a page may become
LESS: Final = 4  # by which a page is divided that has not come through in time
QUICK: Final = 1.0  # seconds: a page that took less may be followed by a longer one

Entry: TypeAlias = tuple[bytes, Sequence[bytes]]  # id; names and values by turns


class RunKeys:
    """The keys of one run.

    Attributes:
        run_id: The run.
        events: The stream of the contract.
        books: What counts its events.
        owner: The lease of its writer.
    """

    def __init__(self, run_id: int) -> None:
        """Make the keys of a run."""
        self.run_id = run_id
        self.events = RUN_EVENTS.locate(run_id=run_id)
        place = place_beside(self.events)
        self.books = RUN_BOOKS.locate(place=place)
        self.owner = OWNER.locate(place=place)

    @property
    def all(self) -> list[str]:
        """All three, as the scripts want them."""
        return [self.events, self.books, self.owner]


async def find_wrong_type(wires: KeyedWires, keys: RunKeys) -> WrongTypeError:
    """Tell which key of a run has another type, after a script was refused for it.

    Asks with commands that the scripts use themselves: no further right is needed.

    Returns:
        It names the stream, too, where the answer is not to be had (any more).
    """
    requests: list[Request] = [
        ("XLEN", keys.events), ("HMGET", keys.books, "owner"), ("GET", keys.owner)
    ]  # fmt: skip
    with suppress(RedisUnavailableError):
        replies = await wires.call_many(requests)
        for key, expected, reply in zip(keys.all, TYPES, replies, strict=True):
            if isinstance(reply, RedisUnavailableError) and reply.kind == "wrong_type":
                return WrongTypeError(key, expected)
    return WrongTypeError(keys.events, TYPES[0])


class Page(NamedTuple):
    """Some events of a run that stand one behind the other.

    Attributes:
        events: Oldest first.
        is_last: Whether nothing stood behind them when they were read.
        portion: How many to read next, so that a page does not grow too large.
    """

    events: list[StreamEvent]
    is_last: bool
    portion: int


class Portion:
    """How many events to read at once: as many as come through the link in time.

    Attributes:
        count: How many to ask for next.
    """

    def __init__(self) -> None:
        """Begin with few: nobody knows how large they are."""
        self.count = FIRST_PAGE
        self._most = PAGE

    def shrink(self, error: RedisUnavailableError) -> bool:
        """Ask for less if it was too much for the link; tell whether there is less."""
        was_under_way = error.kind == "timeout" or error.ambiguous
        if error.connecting or not was_under_way or self.count == 1:
            return False
        self.count = self._most = max(1, self.count // LESS)
        return True

    def learn(self, page: Page, took: float) -> None:
        """Take a page that has come, and the seconds that it took."""
        if took < QUICK:
            self._most = min(PAGE, 2 * self._most)
        self.count = min(page.portion, self._most)


class RunReader:
    """Reads one run over given wires.

    Attributes:
        keys: Of the run.
        wires: The ways to it.
    """

    def __init__(self, wires: KeyedWires, run_id: int) -> None:
        """Remember what to read."""
        self.keys = RunKeys(run_id)
        self.wires = wires

    async def read(
        self, start: str | None, end: str, count: int, *, most_bytes: int = PAGE_BYTES
    ) -> Page:
        """Read events of a range, both ends in it.

        Args:
            start: The first id; ``None`` for what comes behind the largest.
            end: The last id.
            count: How many at most.
            most_bytes: About how long the next page may become.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        if start is None:
            await anyio.lowlevel.checkpoint()
            return Page([], is_last=True, portion=count)
        entries = await self.ask("XRANGE", start, end, "COUNT", count)
        events = decode_entries(self.keys.run_id, entries)
        portion = next_portion(entries, count, most_bytes)
        return Page(events, len(events) < count, portion)

    async def read_back(self, end: str, count: int) -> list[StreamEvent]:
        """Read the newest events up to a place, newest first.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        entries = await self.ask("XREVRANGE", end, "-", "COUNT", count)
        return decode_entries(self.keys.run_id, entries)

    async def pages(
        self, start: str | None, end: str, count: int | None = None
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Read a range page by page, so that nobody waits long for a long one.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        left, portion = count, Portion()
        while left is None or left > 0:
            began = anyio.current_time()
            asked = portion.count if left is None else min(portion.count, left)
            portion.count = asked
            try:
                page = await self.read(start, end, asked)
            except RedisUnavailableError as error:
                if not portion.shrink(error):
                    raise
                continue
            portion.learn(page, anyio.current_time() - began)
            yield page.events
            if page.is_last:
                return
            left = None if left is None else left - asked
            start = next_id(page.events[-1].id)

    async def last(self) -> StreamEvent | None:
        """Give the last event, if there is one.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        entries = await self.ask("XREVRANGE", "+", "-", "COUNT", 1)
        found = decode_entries(self.keys.run_id, entries)
        return found[0] if found else None

    async def last_id(self) -> str:
        """Give the id of the last event; ``0-0`` if there is none.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        last = await self.last()
        return BEGINNING if last is None else last.id

    async def has_writer(self) -> bool:
        """Tell whether a writer lives that has to end the run.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        return bool(await self.wires.read(self.keys.owner, "PTTL") != NO_KEY)

    async def ask(self, name: str, *rest: str | int) -> Reply:
        """Send one request about the stream that changes nothing.

        Raises:
            WrongTypeError: The key is no stream.
            RedisUnavailableError: Redis cannot answer.
        """
        try:
            return await self.wires.read(self.keys.events, name, *rest)
        except RedisUnavailableError as error:
            if error.kind == "wrong_type":
                raise WrongTypeError(self.keys.events, "stream") from error
            raise

    async def ask_many(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests about the run that change nothing, in one write.

        Returns:
            A reply for each; an error reply stands in the list.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        async with self.wires.to(self.keys.events) as wire:
            return await wire.read_many(requests)


def decode_entries(run_id: int, entries: Sequence[Entry]) -> list[StreamEvent]:
    """Read entries of a stream; never raises, whatever they hold."""
    return [StreamEvent.decode(run_id, number, fields) for number, fields in entries]


def next_portion(
    entries: Sequence[Entry], asked: int, most_bytes: int = PAGE_BYTES
) -> int:
    """Say how many events to read next, so that a page does not grow too large.

    Args:
        entries: What was read last.
        asked: How many were asked for.
        most_bytes: About how long the next page may become.
    """
    each = max(1, size_of(entries) // max(1, len(entries)))
    return max(1, min(PAGE, most_bytes // each, GROWTH * asked))
