"""The reads behind a look at all projects, in few round trips and bounded bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import anyio.lowlevel

from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.keyed_wires import KeyedWires
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.ops.fleet.track import Moment, Sample, Track

__all__ = ["Survey"]

TEMPLATES: Final = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)
TOGETHER: Final = 250  # projects in one write
STATUS_BYTES: Final = 64  # of a value that are read: the contract's four have six
FIRST_BYTES: Final = 32 * 1024 * 1024  # of records that the first look reads, about
BYTES: Final = 2 * 1024 * 1024  # that each later one reads
BYTES_EACH: Final = 64 * 1024  # of one project's
WINDOWS: Final = 50  # projects whose records are read in one write
NO_KEY: Final = -2  # what PTTL says
WRONG: Final = "wrong_type"
FORBIDDEN: Final = "no_permission"


class _Keys(NamedTuple):
    status: bytes
    console: bytes
    control: bytes

    @classmethod
    def of(cls, project: str) -> _Keys:
        located = (template.locate(project=project) for template in TEMPLATES)
        return cls(*(key.encode("utf-8", "surrogateescape") for key in located))


class Survey:
    """What is known of every project, and the reads that find out more.

    Attributes:
        tracks: Project → what is known of it.
        hidden: Projects whose status may not be read.
    """

    def __init__(self, wires: KeyedWires) -> None:
        """Know nothing."""
        self.tracks: dict[str, Track] = {}
        self.hidden: set[str] = set()
        self._wires = wires
        self._keys: dict[str, _Keys] = {}
        self._share, self._among = FIRST_BYTES, 0

    async def ask_time(self) -> float | None:
        """Ask the server for its clock, in Unix seconds; ``None`` if that is refused."""
        try:
            async with self._wires.to("") as wire:
                seconds, micros = await wire.read("TIME")
        except RedisRefusedError:
            return None
        return int(seconds) + int(micros) / 1e6

    async def scan(self) -> AsyncGenerator[set[str]]:
        """Give the names of projects, step by step through all keys."""
        async with aclosing(self._wires.scan_steps(_common_pattern())) as steps:
            async for keys in steps:
                yield set(_names_in(keys))

    def add(self, project: str, at: Moment, *, absent_at: float | None) -> None:
        """Begin to watch a project; one that is new was surely absent then."""
        self.tracks[project] = Track(project, at, absent_at=absent_at)
        self._keys[project] = _Keys.of(project)

    def forget(self, project: str) -> None:
        """Watch a project no more."""
        del self.tracks[project], self._keys[project]

    async def read_statuses(self, at: Moment) -> None:
        """Read statuses and how long they last; hide whose may not be read.

        Raises:
            RedisUnavailableError: Redis cannot answer.
            RedisRefusedError: It refuses to, of every project.
        """
        refused: dict[str, RedisUnavailableError] = {}
        for part in _parts(self.tracks):
            requests: list[Request] = []
            for name in part:
                key = self._keys[name].status
                requests += [("GETRANGE", key, 0, STATUS_BYTES - 1), ("PTTL", key)]
            replies = await self._wires.read_many(requests)
            for name, value, left in zip(part, *_split(replies, 2), strict=True):
                error = _note_status(self.tracks[name], value, left, at)
                if error is not None:
                    refused[name] = error
            await anyio.lowlevel.checkpoint()
        if refused and len(refused) == len(self.tracks):
            raise next(iter(refused.values()))
        for name in refused:
            self.forget(name)
            self.hidden.add(name)

    async def read_lists(self, at: Moment) -> None:
        """Read how long queues and logs are, and what is new in the logs.

        Raises:
            RedisUnavailableError: Redis cannot answer, or refuses that.
        """
        wanted: dict[str, int] = {}
        self._among = self._among or len(self.tracks)
        for part in _parts(self.tracks):
            await self._read_lengths(part, at, wanted)
            await anyio.lowlevel.checkpoint()
        await self._read_windows(wanted, at)
        self._share, self._among = BYTES, len(wanted)

    @property
    def _room(self) -> int:
        """Bytes of records that may be read of one project, as many as wrote last time."""
        return min(BYTES_EACH, self._share // max(1, self._among))

    async def _read_lengths(
        self, part: Sequence[str], at: Moment, wanted: dict[str, int]
    ) -> None:
        requests: list[Request] = []
        looked = [self.tracks[name].wants_record(at.now) for name in part]
        for name, look in zip(part, looked, strict=True):
            keys = self._keys[name]
            requests += [("LLEN", keys.control), ("LLEN", keys.console)]
            if look:
                requests.append(("LINDEX", keys.console, -1))
        replies = iter(await self._wires.read_many(requests))
        for name, look in zip(part, looked, strict=True):
            sample = Sample(
                queue=_list_value(next(replies)),
                records=_list_value(next(replies)),
                last=_list_value(next(replies)) if look else None,
                looked=look,
            )
            count = self.tracks[name].note_lists(sample, at, self._room)
            if count:
                wanted[name] = count

    async def _read_windows(self, wanted: Mapping[str, int], at: Moment) -> None:
        while wanted:
            again: dict[str, int] = {}
            for part in _parts(wanted, WINDOWS):
                requests: list[Request] = []
                for name in part:
                    key = self._keys[name].console
                    # The length first: it must not count what the window does not show.
                    requests += [("LLEN", key), ("LRANGE", key, -wanted[name], -1)]
                replies = await self._wires.read_many(requests)
                for name, size, records in zip(part, *_split(replies, 2), strict=True):
                    window, length = _list_value(records), _list_value(size)
                    more = self.tracks[name].note_window(window or [], length or 0, at)
                    if more > wanted[name]:
                        again[name] = more
                await anyio.lowlevel.checkpoint()
            wanted = again


def _common_pattern() -> bytes:
    """Make one pattern for all three kinds of keys, so that one SCAN finds them.

    They differ in their last byte. What else ends in it is left out when it is parsed.
    """
    ends = {template.pattern().encode()[-1:] for template in TEMPLATES}
    return b"*[" + b"".join(sorted(ends)) + b"]"


def _names_in(keys: Iterable[bytes]) -> Iterator[str]:
    for key in keys:
        for template in TEMPLATES:
            parsed = template.parse(key)
            if parsed is not None:
                yield parsed["project"]


def _parts(projects: Iterable[str], size: int = TOGETHER) -> Iterator[list[str]]:
    names = list(projects)
    for begin in range(0, len(names), size):
        yield names[begin : begin + size]


def _split(replies: Sequence[Reply], kinds: int) -> list[Sequence[Reply]]:
    return [replies[kind::kinds] for kind in range(kinds)]


def _note_status(
    track: Track, value: Reply, left: Reply, at: Moment
) -> RedisUnavailableError | None:
    """Take what was read; give the error if this project may not be read."""
    wrong = False
    for reply in (value, left):
        if isinstance(reply, RedisUnavailableError):
            if reply.kind == FORBIDDEN:
                return reply
            if reply.kind != WRONG:
                raise reply
            wrong = True
    exists = left != NO_KEY
    ttl = None if left < 0 else left / 1000
    text = value if exists and not wrong else None
    track.note_status(text, ttl, at, wrong=wrong and exists)
    return None


def _list_value(reply: Reply) -> Reply:
    """Give what a request about a list brought; ``None`` where that is no list for us."""
    if not isinstance(reply, RedisUnavailableError):
        return reply
    if reply.kind not in (WRONG, FORBIDDEN):
        raise reply
    return None
