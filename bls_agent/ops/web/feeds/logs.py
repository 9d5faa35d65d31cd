"""One reader for each followed log, whatever the number of its followers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup

from bls_agent.console import Console
from bls_agent.core.codec import encode
from bls_agent.core.errors import (
    BlsError,
    ContractError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.ops.web.feeds.watch import Item, Ring
from bls_agent.ops.web.requests import convert, encode_cut
from bls_agent.project.log.reading import LogPage
from bls_agent.project.messages import LogEntry

__all__ = ["LogFeed", "LogFeeds", "encode_record", "encode_records"]

LONGEST: Final = (
    65_600  # bytes: any record of ours and "valid"; foreign ones may be longer
)
FIRST: Final = 64  # records that a reader begins with
ALIKE: Final = 8  # records by which a page finds its place in the ring
ALIGN: Final = 2.0  # seconds for the ring to get as far as a page
MOST: Final = 4_000  # records that are kept for all followers of a list
SIZE: Final = 4 * 1024 * 1024  # bytes of them
GRACE: Final = 5.0  # seconds for which a reader outlives its last follower
AGAIN: Final = 1.0  # seconds between two tries to begin
QUIET: Final = 2.0  # seconds of silence after which Redis is asked whether it is there


async def encode_records(entries: Sequence[LogEntry]) -> list[bytes]:
    """Encode many records, and let other tasks run in between."""
    return await convert(entries, encode_record, 50)


def encode_record(entry: LogEntry) -> bytes:
    """Encode a record; one that is too long is shortened and marked by ``cut``."""
    fields = {
        "timestamp": entry.timestamp,
        "level": entry.level.value,
        "message": entry.message,
        "metadata": entry.metadata,
        "valid": entry.valid,
    }
    return encode_cut(fields, LONGEST)


class LogFeed:
    """The newest records of one list, for all its followers.

    Its ring holds records as JSON (``log``), each ``gap``, and when Redis is
    ``unavailable`` or ``available`` again.
    """

    def __init__(self, console: Console, project: str) -> None:
        self._console = console
        self._project = project
        self.ring = Ring(most=MOST, size=SIZE)
        self.followers = 0
        self.error: BlsError | None = None  # why it is over for good
        self.unavailable: RedisUnavailableError | None = None
        self._last = float("-inf")
        self.begun = anyio.Event()  # set when the records there already are in the ring
        self.closed = False  # whether every follower has to end

    def close(self) -> None:
        """End every follower."""
        self.closed = True
        self.begun.set()
        self.ring.wake()

    async def run(self) -> None:
        """Read until cancelled, or until Redis refuses for good (:attr:`error`)."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._check_when_quiet)
                await self._read()
        except* BlsError as group:
            self.error = _first(group)
        finally:
            self.begun.set()
            self.ring.wake()

    async def _read(self) -> None:
        if not await self._wait_for_redis():
            self.begun.set()
        entries = self._console.follow_logs(self._project, last=FIRST)
        async for entry in entries:
            self._last = anyio.current_time()
            if entry.is_gap:
                missing = entry.metadata.get("gap")
                self.ring.add(Item(encode(missing), "gap"))
            else:
                self.ring.add(Item(encode_record(entry), "log"))
            self.begun.set()

    async def newest(self, limit: int) -> tuple[LogPage, int]:
        """Read the newest records, and find the place in the ring behind them."""
        place = self.ring.end
        page = await self._console.log_page(self._project, limit=limit)
        known = [encode_record(entry) for entry in page.entries[-ALIKE:]]
        with anyio.move_on_after(ALIGN):
            while known and not self.closed and self.error is None:
                found = _find_behind(self.ring, known)
                if found is not None:
                    return page, found
                await self.ring.wait(self.ring.end, ALIGN)
        return page, self.ring.end if known else place

    async def _wait_for_redis(self) -> list[LogEntry]:
        """Read the newest record once Redis answers; report the outage until then."""
        while True:
            try:
                return await self._console.logs(self._project, 1)
            except RedisRefusedError:
                raise
            except RedisUnavailableError as error:
                self._record_fault(error)
                await anyio.sleep(AGAIN)

    async def _check_when_quiet(self) -> None:
        """Report to the followers when Redis goes away, and when it is back."""
        while True:
            await anyio.sleep(QUIET)
            if anyio.current_time() - self._last > QUIET:
                self._record_fault(await self._find_fault())

    async def _find_fault(self) -> RedisUnavailableError | None:
        try:
            await self._console.status(self._project)
        except RedisUnavailableError as error:
            return error
        except ContractError:
            return None
        return None

    def _record_fault(self, fault: RedisUnavailableError | None) -> None:
        before, self.unavailable = self.unavailable, fault
        if fault is not None and before is None:
            self.begun.set()
            self.ring.add(Item(encode({"kind": fault.kind}), "unavailable"))
        elif fault is None and before is not None:
            self.ring.add(Item(b"{}", "available"))


def _find_behind(ring: Ring, known: Sequence[bytes]) -> int | None:
    """Find the place behind the last occurrence of these records in a ring."""
    items, _ = ring.since(ring.begin)
    records = [
        (place, item.payload)
        for place, item in enumerate(items, ring.begin)
        if item.kind == "log"
    ]
    for end in range(len(records), 0, -1):
        begin = max(0, end - len(known))
        if records[end - 1][1] != known[-1]:
            continue
        row = [payload for _, payload in records[begin:end]]
        if row == list(known[len(known) - len(row) :]):
            return records[end - 1][0] + 1
    return None


class LogFeeds:
    """The feeds of all logs that are followed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: TaskGroup | None = None
        self._feeds: dict[str, LogFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def open(self, tasks: TaskGroup) -> None:
        """Set the task group of the readers."""
        self._tasks = tasks

    def close(self) -> None:
        """End every follower of every list."""
        for feed in self._feeds.values():
            feed.close()

    @contextmanager
    def join(self, project: str) -> Generator[LogFeed]:
        """Give the feed of a project's log, for as long as the block lasts."""
        feed = self._feeds.get(project)
        if feed is None or feed.error is not None:
            feed = self._feeds[project] = LogFeed(self._console, project)
            if self._tasks is None:
                raise RuntimeError
            self._tasks.start_soon(self._run, project, feed)
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1

    async def _run(self, project: str, feed: LogFeed) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_unwanted, feed, tasks.cancel_scope)
                await feed.run()
                tasks.cancel_scope.cancel()
        finally:
            if self._feeds.get(project) is feed:
                del self._feeds[project]


async def _end_unwanted(feed: LogFeed, scope: anyio.CancelScope) -> None:
    while True:
        left = anyio.current_time()
        while not feed.followers:
            if anyio.current_time() - left > GRACE:
                scope.cancel()
                return
            await anyio.sleep(0.5)
        await anyio.sleep(0.5)


def _first(group: BaseExceptionGroup[BlsError]) -> BlsError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
