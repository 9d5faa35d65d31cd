"""How the console reads a project's log: its tail, what is new, page by page backwards."""

from __future__ import annotations

from typing import Final

from bls_agent.errors import RedisUnavailableError, WrongTypeError
from bls_agent.keyed_wires import KeyedWires
from bls_agent.keys import PROJECT_CONSOLE, KeyTemplate
from bls_agent.project.log.following import Follower
from bls_agent.project.log.paging import LogPage, LogPlace, cut_page
from bls_agent.project.messages import LogEntry

__all__ = ["WINDOW", "LogReader", "as_wrong_type"]

WINDOW: Final = (
    64  # records a follower looks at first; four times as many while too few
)

SEARCHED: Final = 1_000  # records in one read while a place is searched for


class LogReader:
    """Reads the console list of one project; nothing is repeated but reading."""

    def __init__(self, wires: KeyedWires, project: str) -> None:
        """Remember whose."""
        self._wires = wires
        self._key = PROJECT_CONSOLE.locate(project=project)
        self._encoded = self._key.encode("utf-8", "surrogateescape")

    async def look(self, follower: Follower) -> list[LogEntry]:
        """Read windows of the tail until the follower finds its place again."""
        size = WINDOW
        while True:
            entries = follower.find_new(*await self.tail(size))
            if entries is not None:
                return entries
            size *= 4

    async def tail(self, size: int) -> tuple[list[bytes], int]:
        """Read the newest records, and how many there are, at one moment."""
        return await self._window(-size, -1)

    async def page(self, before: str, limit: int) -> LogPage:
        """Read the newest records, or those before a place that an earlier page named."""
        if not before:
            window, length = await self.tail(limit)
            index = max(0, length - len(window)) if len(window) == limit else 0
            return cut_page(window, index, len(window), limit)
        place = LogPlace.decode(before)
        top, size = place.index, limit
        while True:
            first = max(0, top - size)
            window, length = await self._window(first, top + place.count - 1)
            at = place.find_in(window)
            if at is not None and (at >= limit or not first):
                return cut_page(window, first, at, limit)
            if at is not None:  # it was cut off by so much that the page is not whole
                top, size = first + at, limit
            elif first:
                # What is cut moves records to the front: it can only stand there.
                top = max(0, min(first - 1, length - place.count))
                size = max(limit, SEARCHED)
            else:
                return LogPage(entries=(), trimmed=True)

    async def _window(self, first: int, last: int) -> tuple[list[bytes], int]:
        encoded = self._encoded
        requests = [("LRANGE", encoded, first, last), ("LLEN", encoded)]
        async with self._wires.to(self._key) as wire:
            try:
                replies = await wire.call_many(requests)
            except RedisUnavailableError as error:
                if not error.ambiguous:
                    raise
                replies = await wire.call_many(requests)  # reading changes nothing
        for reply in replies:
            if isinstance(reply, RedisUnavailableError):
                raise as_wrong_type(reply, PROJECT_CONSOLE, self._key)
        return replies[0], replies[1]


def as_wrong_type(
    error: RedisUnavailableError, template: KeyTemplate, key: str
) -> Exception:
    """Turn the refusal of a key that holds another type into an error that says so."""
    if error.kind != "wrong_type":
        return error
    return WrongTypeError(key, str(template.type))
