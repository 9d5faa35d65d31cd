"""Reads and changes the lists of commands: waiting, taken, and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.scripts import SETTLE_DEAD, find_wrong_type
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError
from bls_agent.core.keys import (
    CONTROL,
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    OWNER,
    checked_reply,
    decode_key,
    encode_key,
    place_beside,
)
from bls_agent.project.messages import Command

if TYPE_CHECKING:
    from bls_agent.connection.pool import ConnectionPool

PAGE: Final = 100  # commands in one request; not more, because a command may be long
LONGEST_PAGE: Final = 3_200  # commands in one request to a list that changes fast


@dataclass(frozen=True, kw_only=True)
class CommandsInHand:
    """The unfinished commands of one process in mode ``reliable``.

    Attributes:
        instance: The name of the process.
        commands: The commands that the process has taken, oldest first. The oldest
            commands may be running.
        alive: Whether the lease of the process is valid. The lease is a key that the
            process renews while it lives. If the lease has expired, another process of
            the project puts the commands back into the control list.
    """

    instance: str
    commands: list[Command]
    alive: bool


class CommandLists:
    """Reads and changes the lists of one project's commands."""

    def __init__(self, pool: ConnectionPool, project: str) -> None:
        self._pool = pool
        self._control = CONTROL.locate(project=project)
        self._place = place_beside(self._control)
        self._dead = DEAD_LETTERS.locate(place=self._place)

    async def waiting(self, limit: int) -> list[Command]:
        """Read the first ``limit`` commands of the control list."""
        return await self._window(self._control, 0, limit - 1)

    async def dead_letters(self, limit: int) -> list[Command]:
        """Read the last ``limit`` dead letters, newest first."""
        return (await self._window(self._dead, -limit, -1))[::-1]

    async def _window(self, key: str, first: int, last: int) -> list[Command]:
        window = await self._read("LRANGE", key, first, last)
        return [Command.peek(payload) for payload in window]

    async def in_hand(self, limit: int) -> list[CommandsInHand]:
        """Read the first ``limit`` commands of each in-flight list."""
        begin = INFLIGHT.locate(place=self._place, instance="")
        found = await self._read("HKEYS", INFLIGHT_LISTS.locate(place=self._place))
        lists = sorted(one for one in map(decode_key, found) if one.startswith(begin))
        reads = [("LRANGE", encode_key(name), 0, limit - 1) for name in lists]
        owners = [OWNER.locate(place=place_beside(name)) for name in lists]
        asks = [("PTTL", encode_key(owner)) for owner in owners]
        replies = await self._pool.read_many([*reads, *asks])
        keys = zip([*lists, *owners], replies, strict=True)
        checked = [checked_reply(reply, key) for key, reply in keys]
        return [
            CommandsInHand(
                instance=name.removeprefix(begin),
                commands=[Command.peek(payload) for payload in window],
                alive=left > 0 or left == -1,  # -1: the lease has no TTL
            )
            for name, window, left in zip(
                lists, checked[: len(lists)], checked[len(lists) :], strict=True
            )
        ]

    async def is_waiting(self, command_id: str) -> bool:
        """Return whether the control list contains a command with this id."""
        async for _, command in read_backwards(self._pool, self._control):
            if command.id == command_id:
                return True
        return False

    async def withdraw(self, command_id: str | None) -> list[Command]:
        """Remove the waiting commands with this id, or all commands for ``None``.

        Return the removed commands, oldest first. Each command is removed by its own
        LREM request, so the result leaves out a command that an agent took meanwhile.
        """
        found = (await self._find(self._control, command_id))[::-1]
        key = encode_key(self._control)
        withdrawn: list[Command] = []
        async with self._pool.to(self._control) as connection:
            for at in range(0, len(found), PAGE):
                payloads = found[at : at + PAGE]
                requests = [("LREM", key, 0, payload) for payload in payloads]
                try:
                    replies = await connection.call_many(requests)
                    # Redis may refuse only some of the requests.
                    for payload, reply in zip(payloads, replies, strict=True):
                        if isinstance(reply, int):
                            withdrawn += [Command.peek(payload)] * reply
                    for reply in replies:
                        checked_reply(reply, self._control)
                except RedisUnavailableError as error:
                    error.ambiguous |= bool(withdrawn)
                    raise
        return withdrawn

    async def settle_dead_letters(
        self, command_id: str | None, *, chooses_all: bool, requeues: bool
    ) -> list[Command]:
        """Put dead letters back into the control list, or discard them.

        The caller passes an id, or ``chooses_all=True``. Return the settled commands,
        oldest first. One run of the script settles up to ``PAGE`` dead letters. Each
        run is atomic, but several runs together are not.
        """
        if type(chooses_all) is not bool:
            raise ConfigurationError("all", chooses_all, "True or False")
        if (command_id is not None) == chooses_all:
            rule, remedy = "an id, or all=True", "Pass one of them."
            raise ConfigurationError("id", command_id, rule, remedy)
        found = (await self._find(self._dead, command_id))[::-1]
        deliveries = DELIVERIES.locate(place=self._place)
        types = {self._control: "list", self._dead: "list", deliveries: "hash"}
        keys = [encode_key(key) for key in types]
        settled: list[Command] = []
        async with self._pool.to(self._control) as connection:
            for at in range(0, len(found), PAGE):
                payloads = found[at : at + PAGE]
                arguments = [*SETTLE_DEAD.order(requeues=int(requeues)), *payloads]
                try:
                    copies = await SETTLE_DEAD.run(connection, keys, arguments)
                except RedisUnavailableError as error:
                    error.ambiguous |= bool(settled)
                    wrong = await find_wrong_type(connection, error, types)
                    raise wrong or error from error
                for payload, count in zip(payloads, copies, strict=True):
                    settled += [Command.peek(payload)] * count
        return settled

    async def _find(self, key: str, command_id: str | None) -> list[bytes]:
        """Return the commands with this id, or all commands for ``None``, newest first.

        Equal payloads are returned only once.
        """
        if command_id is not None and (not command_id or type(command_id) is not str):
            raise ConfigurationError("id", command_id, "a text that is not empty")
        with nothing_written(), wrong_type_of(key):
            found = [
                payload
                async for payload, command in read_backwards(self._pool, key)
                if command_id is None or command.id == command_id
            ]
        return list(dict.fromkeys(found))

    async def _read(self, name: str, key: str, *rest: Argument) -> Reply:
        with wrong_type_of(key):
            return await self._pool.read(key, name, *rest)


@contextmanager
def wrong_type_of(key: str) -> Generator[None]:
    """Replace the server's WRONGTYPE error by WrongTypeError, which names the key."""
    try:
        yield
    except RedisUnavailableError as error:
        checked_reply(error, key)


@contextmanager
def nothing_written() -> Generator[None]:
    """Mark an error of a read before the write: the write was not executed."""
    try:
        yield
    except RedisUnavailableError as error:
        error.ambiguous = False
        raise


async def read_backwards(
    pool: ConnectionPool, key: str
) -> AsyncIterator[tuple[bytes, Command]]:
    """Yield the commands of a list from its end, even if the list changes meanwhile.

    Each command that is in the list at the beginning and stays there is yielded at
    least once, except in case 3 with the longest page. Positions are counted from the
    front of the list. Therefore commands that are pushed meanwhile move no position, and
    the search ends. Two pages overlap by one command, the edge. There are three cases:

    1. The next page contains the edge. Its commands are yielded.
    2. The next page is empty, because the list has become shorter. The search continues
       at the new end of the list.
    3. The edge has left the next page, because commands were removed, or put back to
       the front. The search begins again at the end, because unread commands may be
       anywhere now. From now on a page is twice as long, up to ``LONGEST_PAGE``. With
       the longest page, the search does not begin again.
    """
    last, edge, size = max(0, await pool.read(key, "LLEN") - 1), b"", PAGE
    while True:
        first = max(0, last - size + 1)
        page: list[bytes] = await pool.read(key, "LRANGE", first, last)
        if not page and first:
            last, edge = max(0, min(first, await pool.read(key, "LLEN")) - 1), b""
            continue
        if edge and edge not in page and size < LONGEST_PAGE:
            last, edge = max(0, await pool.read(key, "LLEN") - 1), b""
            size *= 2
            continue
        for payload in reversed(page):
            yield payload, Command.peek(payload)
        if first == 0:
            return
        last, edge = first, page[0]
