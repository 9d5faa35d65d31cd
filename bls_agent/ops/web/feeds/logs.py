"""Reads each followed log once for all followers of the log."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup

from bls_agent.console import Console
from bls_agent.core.codec import encode
from bls_agent.core.errors import BlsError
from bls_agent.core.settings import BUILTINS
from bls_agent.ops.web.feeds.fleet import FleetFeed
from bls_agent.ops.web.feeds.watch import Item, Ring, Shared
from bls_agent.ops.web.requests import convert, encode_cut
from bls_agent.project.log.reading import ALIKE, LogPage, find_end
from bls_agent.project.messages import LogEntry

# Bytes that are enough for a record of this package, with the field "valid". Records of
# other programs may be longer.
LONGEST: Final = 65_600
LONGEST_BUILTIN: Final = 1_024  # bytes of an outcome of a command such as ``help``
FIRST: Final = 64  # newest records that a reader reads first
ALIGN: Final = 2.0  # most seconds to wait until the ring has the records of a page
MOST: Final = 4_000  # records that are kept for all followers of a list
SIZE: Final = 4 * 1024 * 1024  # bytes of these records
GRACE: Final = 5.0  # seconds that a reader runs after its last follower has left
AGAIN: Final = 1.0  # seconds between two checks for an outage


async def encode_records(entries: Sequence[LogEntry]) -> list[bytes]:
    return await convert(entries, encode_record, 50)


def encode_record(entry: LogEntry) -> bytes:
    """Encode a record; if it is too long, shorten it and add ``"cut": true``.

    Outcomes of built-in commands are cut to ``LONGEST_BUILTIN``, because pages send
    ``help`` to each agent, and the long outcomes would fill every log.
    """
    fields = {
        "timestamp": entry.timestamp,
        "level": entry.level.value,
        "message": entry.message,
        "metadata": entry.metadata,
        "valid": entry.valid,
    }
    outcome = entry.outcome
    is_builtin = outcome is not None and outcome.command in BUILTINS
    return encode_cut(fields, LONGEST_BUILTIN if is_builtin else LONGEST)


class LogFeed(Shared):
    """The newest records of one log, for all its followers.

    The ring holds records as JSON (``log``) and gaps, which are records that the reader
    has missed (``gap``). When an outage begins or ends, the feed adds an item
    ``unavailable`` or ``available``.
    """

    def __init__(self, feeds: LogFeeds, project: str) -> None:
        super().__init__(Ring(most=MOST, size=SIZE), GRACE)
        self._feeds = feeds
        self._console = feeds.console
        self._project = project
        self.error: BlsError | None = None  # why the feed has ended for good
        # Set after the first record was read, or if the log is empty.
        self.begun: anyio.Event = anyio.Event()

    def close(self) -> None:
        self.begun.set()
        super().close()

    async def _run(self) -> None:
        """Read until cancelled, or until an error that is then stored in ``error``."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_for_outages)
                try:
                    await self._read()
                except BlsError as error:
                    self.error = error
                tasks.cancel_scope.cancel()
        finally:
            self.begun.set()
            self.ring.wake()
            self._feeds.forget(self._project, self)

    async def _read(self) -> None:
        if not await self._console.logs(self._project, 1):
            self.begun.set()
        async for entry in self._console.follow_logs(self._project, last=FIRST):
            if entry.is_gap:
                missing = entry.metadata.get("gap")
                self.ring.add(Item(encode(missing), "gap"))
            else:
                self.ring.add(Item(encode_record(entry), "log"))
            self.begun.set()

    async def newest(self, limit: int) -> tuple[LogPage, int | None]:
        """Return the newest page, and the position in the ring behind its last record.

        The position is ``None`` if the ring does not get the records of the page.
        """
        place = self.ring.end
        page = await self._console.log_page(self._project, limit=limit)
        known = [encode_record(entry) for entry in page.entries[-ALIKE:]]
        with anyio.move_on_after(ALIGN):
            while known and not self.closed and self.error is None:
                items = enumerate(self.ring.since(self.ring.begin)[0], 1)
                logs = [(at, item.payload) for at, item in items if item.kind == "log"]
                found = find_end(known, [payload for _, payload in logs], 0)
                if found is not None:
                    return page, self.ring.begin + logs[found - 1][0]
                await self.ring.wait(self.ring.end, ALIGN)
        return page, None if known else place

    async def _watch_for_outages(self) -> None:
        away = False
        while True:
            fault = self._feeds.fleet.outage
            if fault is not None and not away:
                self.ring.add(Item(encode({"kind": fault.kind}), "unavailable"))
            elif fault is None and away:
                self.ring.add(Item(b"{}", "available"))
            away = fault is not None
            await anyio.sleep(AGAIN)


class LogFeeds:
    """The feeds of all followed logs."""

    def __init__(self, console: Console, fleet: FleetFeed) -> None:
        self.console = console
        self.fleet = fleet
        self._tasks: TaskGroup | None = None
        self._feeds: dict[str, LogFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def open(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    @contextmanager
    def join(self, project: str) -> Generator[LogFeed]:
        feed = self._feeds.get(project)
        if feed is None or feed.error is not None or feed.is_ending:
            feed = self._feeds[project] = LogFeed(self, project)
            feed.open(self._tasks)
        with feed.wanted():
            yield feed

    def forget(self, project: str, feed: LogFeed) -> None:
        """Remove a feed that has ended, unless a new feed has replaced it already."""
        if self._feeds.get(project) is feed:
            del self._feeds[project]
