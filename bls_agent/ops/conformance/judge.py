"""Verdicts of the judges, and access to the keys of the judged project."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

import anyio

from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.codec import JSONObject, decode_object
from bls_agent.core.errors import DecodeError, RedisRefusedError
from bls_agent.core.keys import (
    BROADCAST,
    CONTROL,
    INFLIGHT_LISTS,
    INSTANCES,
    OWNER,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    decode_key,
    place_beside,
)
from bls_agent.ops.conformance.vectors import Level, Vector
from bls_agent.project.console.projects import BOOKS
from bls_agent.project.messages import Command

POLL: Final = 0.02  # seconds between two checks
RECENT: Final = 500  # newest records in which a word is searched
WORD: Final = b"$WORD"
SENT_AT: Final = 1_768_221_300.0  # Unix seconds: 2026-01-12T12:35:00Z


@dataclass(frozen=True)
class Fault:
    """The reason why a program fails: key and values of a text in the catalogue."""

    text: str
    values: Mapping[str, object] = field(default_factory=dict[str, object])


Check: TypeAlias = Callable[..., Awaitable[Fault | None]]


class Result(StrEnum):
    """How a program was judged by one vector."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # the vector was not tried; the fault has the reason


@dataclass(frozen=True)
class Verdict:
    """The result of one vector, with a fault if the program has not passed."""

    vector: Vector
    result: Result
    fault: Fault | None = None

    @property
    def breaks(self) -> bool:
        """Whether the program violates the protocol by failing this vector."""
        return self.result is Result.FAILED and self.vector.level is Level.MUST


class Wire:
    """Reads and writes the Redis keys of the judged program's project."""

    def __init__(self, pool: ConnectionPool, project: str, patience: float) -> None:
        self._pool = pool
        self.project = project
        self.patience = patience  # seconds within which a program has to react
        self.status_key: str = PROJECT_STATUS.locate(project=project)
        self.log_key: str = PROJECT_CONSOLE.locate(project=project)
        self.control_key: str = CONTROL.locate(project=project)

    async def call(self, command: str, key: str, *arguments: Any) -> Any:
        return await self._pool.call(key, command, *arguments)

    async def clear(self) -> None:
        """Delete the keys of the project, also those that only this package writes."""
        for key in await self._own_keys():
            with suppress(RedisRefusedError):  # the agent may have had no right either
                await self.call("DEL", key)
        for key in (self.status_key, self.log_key, self.control_key):
            await self.call("DEL", key)

    async def _own_keys(self) -> list[str]:
        """Return the keys that an agent of this package may have written."""
        place = place_beside(self.control_key)
        lists = INFLIGHT_LISTS.locate(place=place)
        instances = INSTANCES.locate(place=place_beside(self.status_key))
        found = [row.locate(place=place) for row in BOOKS]
        for name in await self._fields(lists):
            found += [name, OWNER.locate(place=place_beside(name))]
        for name in await self._fields(instances):
            found.append(BROADCAST.locate(place=place, instance=name))
        return [*found, lists, instances]

    async def _fields(self, key: str) -> list[str]:
        """Return the fields of a hash, or ``[]`` if Redis refuses to read it."""
        try:
            reply: list[bytes] = await self.call("HKEYS", key)
        except RedisRefusedError:
            return []
        return [decode_key(name) for name in reply]

    async def exists(self) -> bool:
        """Return whether Redis has any key of this project."""
        keys = (self.status_key, self.log_key, self.control_key)
        return any([await self.call("EXISTS", key) for key in keys])

    async def type_of(self, key: str) -> str:
        reply: bytes = await self.call("TYPE", key)
        return reply.decode()

    async def status(self) -> str:
        """Return the status in Redis, or ``""`` if there is no status."""
        if await self.type_of(self.status_key) != "string":
            return ""
        reply: bytes | None = await self.call("GET", self.status_key)
        return (reply or b"").decode("utf-8", "replace")

    async def push(self, *messages: bytes) -> None:
        await self.call("RPUSH", self.control_key, *messages)

    async def waiting(self) -> int:
        length: int = await self.call("LLEN", self.control_key)
        return length

    async def records(self) -> list[bytes]:
        """Return the newest records, oldest first."""
        if await self.type_of(self.log_key) != "list":
            return []
        found: list[bytes] = await self.call("LRANGE", self.log_key, -RECENT, -1)
        return found

    async def echo(self, **arguments: str) -> str:
        """Send a command ``echo`` with a new random word, and return the word."""
        word = make_word()
        await self.push(make_command("echo", {"word": word, **arguments}))
        return word

    async def positions(self, word: str) -> list[int]:
        """Return the positions of those of the newest records that contain a word.

        Records of errors are left out, because an error that contains the word is no
        effect of the command.
        """
        return [
            at
            for at, payload in enumerate(await self.records())
            if word.encode() in payload
            and (read_record(payload) or {}).get("level") != "error"
        ]

    async def sees(self, word: str, within: float) -> bool:
        async def seen() -> bool:
            return bool(await self.positions(word))

        return await happens(seen, within)


async def happens(condition: Callable[[], Awaitable[bool]], within: float) -> bool:
    """Return whether a condition becomes true within some seconds."""
    with anyio.move_on_after(within):
        while not await condition():  # noqa: ASYNC110 - what Redis holds
            await anyio.sleep(POLL)
        return True
    return False


def make_word() -> str:
    return f"t{secrets.token_hex(8)}"


def make_command(name: str, arguments: JSONObject, command_id: str = "") -> bytes:
    given = command_id or None
    return Command.create(name, arguments, now=SENT_AT, id=given).encode()


def read_record(payload: bytes) -> JSONObject | None:
    """Return a JSON object, or ``None`` if the payload is no JSON object."""
    try:
        return decode_object(payload)
    except DecodeError:
        return None
