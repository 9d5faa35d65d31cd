"""Reads a project's log for a console: new records, older pages, and searches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import PROJECT_CONSOLE, checked_reply, encode_key
from bls_agent.project.messages import LogEntry, Outcome

if TYPE_CHECKING:
    from bls_agent.connection.pool import ConnectionPool
    from bls_agent.project.console.search import LogFilter, LogSearch
    from bls_agent.project.log.reading import Follower, LogPage, LogPlace

WINDOW: Final = 64  # records in the first read of a follower
MOST: Final = 65_536  # largest number of records in one read
# Approximate limit of bytes in one read. The length of records is estimated from the
# records that were read before.
LONGEST: Final = 16 * 1024 * 1024
FEW: Final = 4  # records in the first read of a page, to estimate the length of records
GROWTH: Final = 8  # factor by which the next read asks for more records
READ_RATE: Final = 8 * 1024 * 1024  # bytes per second that a follower may read, roughly
LONGEST_PAUSE: Final = 15.0  # seconds between two reads of very long records
SEARCHED: Final = 1_000  # records in one read while the position of a page is searched
MOST_SEARCHED: Final = 10_000  # records after which one call of search() ends, roughly
AT_ONCE: Final = 500  # records in one read of a search; other tasks run between reads
OUTCOME_PAUSE: Final = 0.02  # seconds between two reads of the log for outcomes
OUTAGE_PAUSE: Final = 0.5  # most seconds that are added to this pause during an outage


class LogReader:
    """Reads the console list of one project.

    All requests only read, so they are repeated after a lost connection.
    """

    def __init__(self, pool: ConnectionPool, project: str) -> None:
        self._pool = pool
        self._key = PROJECT_CONSOLE.locate(project=project)
        self._encoded = encode_key(self._key)

    async def look(self, follower: Follower) -> list[LogEntry]:
        """Return the records that the follower has not seen.

        Read a growing number of the newest records, until the follower recognises a
        record that it has seen.
        """
        size = min(WINDOW, _fit(follower.window_bytes, follower.window_records))
        while True:
            window, length = await self._window(-size, -1)
            most = _fitting(window)
            entries = follower.find_new(window, length, longest=size >= most)
            if entries is not None:
                return entries
            size = min(size * GROWTH, most)

    async def newest(self, limit: int) -> tuple[list[bytes], int]:
        """Return the newest records and the length of the list.

        If the records are long, return fewer than ``limit``.
        """
        window, length, _ = await self._newest(limit)
        return window, length

    async def _newest(self, limit: int) -> tuple[list[bytes], int, int]:
        """Return the newest records, the list's length, and the size of the last read.

        Each read asks for more records than the read before.
        """
        size = min(limit, FEW)
        while True:
            window, length = await self._window(-size, -1)
            most = min(limit, _fitting(window))
            if size >= most or len(window) < size:
                return window, length, size
            size = min(size * GROWTH, most)

    async def page(self, before: str, limit: int) -> LogPage:
        """Return the page before a position, or the newest page for ``before=""``."""
        from bls_agent.project.log.reading import LogPage, cut_page  # noqa: PLC0415 - rare

        found = await self._read(before, limit)
        return cut_page(*found) if found else LogPage(entries=(), trimmed=True)

    async def search(self, wanted: LogFilter, before: str, limit: int) -> LogSearch:
        """Search backwards, from the newest record or from the position ``before``.

        The search ends in one of these cases:

        1. It has reached the beginning of the list, or a page whose records are all
           older than ``wanted.since``, because no older record can match.
        2. ``limit`` records match.
        3. ``MOST_SEARCHED`` records were read.
        4. The next older records were trimmed from the list meanwhile.
        """
        from bls_agent.project.console.search import LogSearch  # noqa: PLC0415 - rare
        from bls_agent.project.log.reading import cut_page  # noqa: PLC0415 - rare

        found: list[LogEntry] = []
        searched, back_to = 0, ""
        while read := await self._read(before, AT_ONCE):
            page = cut_page(*read)
            fits = [at for at, one in enumerate(page.entries) if wanted.wants(one)]
            surplus = len(found) + len(fits) - limit
            if surplus > 0:  # the page begins at the oldest record that is returned
                window, index, end, _ = read
                page = cut_page(window, index, end, len(page.entries) - fits[surplus])
            searched += len(page.entries)
            times = (entry.timestamp for entry in page.entries)
            back_to = next(filter(None, times), back_to)
            found[:0] = filter(wanted.wants, page.entries)
            before = page.before
            if all(map(wanted.is_before, page.entries)):
                before = ""
            if not before or surplus >= 0 or searched >= MOST_SEARCHED:
                break
        return LogSearch(
            entries=found,
            searched=searched,
            back_to=back_to,
            before=before if read else "",
            trimmed=not read,
        )

    async def _read(
        self, before: str, limit: int
    ) -> tuple[list[bytes], int, int, int] | None:
        """Read records, and return the arguments for ``cut_page``.

        Return ``None`` if the position ``before`` was trimmed from the list.
        """
        from bls_agent.project.log.reading import LogPlace  # noqa: PLC0415 - rare

        if before:
            return await self._read_before(LogPlace.decode(before), limit)
        window, length, asked = await self._newest(limit)
        index = max(0, length - len(window)) if len(window) == asked else 0
        return window, index, len(window), limit

    async def _read_before(
        self, place: LogPlace, limit: int
    ) -> tuple[list[bytes], int, int, int] | None:
        top = place.index
        size = wanted = min(limit, FEW)
        while True:
            first = max(0, top - size)
            window, length = await self._window(first, top + place.count - 1)
            at, most = place.find_in(window), _fitting(window)
            if at is not None and (at >= wanted or not first):
                if wanted >= min(limit, most) or not first:
                    return window, first, at, min(limit, most)
                top, wanted = first + at, min(wanted * GROWTH, limit, most)
                size = wanted
            elif at is not None:  # the window has too few records before the position
                top, size = first + at, wanted
            elif first:
                # Trimming makes the index of a record smaller, so the search continues
                # at smaller indexes.
                top = max(0, min(first - 1, length - place.count))
                size = max(wanted, min(SEARCHED, most))
            else:
                return None

    async def _window(self, first: int, last: int) -> tuple[list[bytes], int]:
        encoded = self._encoded
        requests = [("LRANGE", encoded, first, last), ("LLEN", encoded)]
        async with self._pool.to(self._key) as connection:
            replies = await connection.read_many(requests)
        window, length = (checked_reply(reply, self._key) for reply in replies)
        return window, length


async def follow_log(
    open_log: Callable[[], LogReader], last: int, interval: float
) -> AsyncGenerator[LogEntry]:
    """Yield the ``last`` newest records, and then each new record.

    While Redis is unreachable, the iteration waits. ``open_log`` is called when the
    iteration begins, so that the connection belongs to the running event loop.
    """
    from bls_agent.project.log.reading import Follower  # noqa: PLC0415 - few programs need it

    log, follower = open_log(), Follower()
    backoff = Backoff()
    while True:
        try:
            if not follower.started:
                window, length = await log.newest(max(last, WINDOW))
                follower.start(window, length)
                entries = [LogEntry.decode(item) for item in window[-last:]]
                entries = entries if last else []
            else:
                entries = await log.look(follower)
        except RedisRefusedError:
            raise
        except RedisUnavailableError:
            await anyio.sleep(backoff.failed())
            continue
        backoff.succeeded()
        for entry in entries:
            yield entry
        await anyio.sleep(max(interval, pause_after(follower.window_bytes)))


def pause_after(held: int) -> float:
    """Return the pause in seconds after a read of ``held`` bytes.

    The pause limits the bytes that a follower reads per second.
    """
    return min(held / READ_RATE, LONGEST_PAUSE)


def _fitting(window: Sequence[bytes]) -> int:
    return _fit(sum(map(len, window)), len(window))


def _fit(held: int, records: int) -> int:
    """Return how many records one read may ask for.

    ``held`` is the number of bytes of ``records`` records that were read before.
    """
    return max(1, min(MOST, LONGEST * records // held)) if held else MOST


@dataclass
class OutcomeCollector:
    """Collects the outcomes of one command, from one instance or from several."""

    # The instances whose outcomes are collected. If empty, the first outcome is enough.
    expected: frozenset[str] = frozenset()
    command_id: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])

    @property
    def complete(self) -> bool:
        return bool(self.outcomes) and self.expected <= self.outcomes.keys()

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add the outcomes of the command, only the first outcome of each instance."""
        for entry in entries:
            outcome = entry.outcome
            if outcome is not None and outcome.command_id == self.command_id:
                self.outcomes.setdefault(entry.instance, outcome)

    async def collect(
        self, read: Callable[[], Awaitable[Iterable[LogEntry]]], timeout: float
    ) -> None:
        """Read new records until all outcomes have come, or ``timeout`` has passed."""
        backoff = Backoff(cap=OUTAGE_PAUSE)
        with anyio.move_on_after(timeout):
            while True:
                pause = OUTCOME_PAUSE
                try:
                    self.add(await read())
                    backoff.succeeded()
                except RedisRefusedError:
                    raise
                except RedisUnavailableError:
                    pause += backoff.failed()
                if self.complete:
                    return
                await anyio.sleep(pause)
