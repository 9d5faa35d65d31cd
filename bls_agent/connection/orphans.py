"""Connections that ended without our will, until the server has ended them, too.

The server may go on serving such a connection: its BLPOP would take the next command,
its RPUSH may still be executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio

from bls_agent.connection.faults import port_was_closed
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Argument, Endpoint, Reply
    from bls_agent.connection.route import Route

HARMLESS_AFTER: Final = 25.0  # seconds: TCP_USER_TIMEOUT, and behind it a read's block
REMEMBERED: Final = 8  # orphans of one connection


class OrphanedConnection(NamedTuple):
    """A connection that ended without our will."""

    client_id: int | None  # at the server, if that is known
    address: str  # our end, as a server sees it without address translation
    server: Endpoint | None = None  # ``None`` where there is one server only
    at: float = 0.0  # when it ended, on the clock of the event loop


class Client(Protocol):
    """What is needed of a connection that has orphans, or that kills them."""

    name: str
    route: Route

    @property
    def client_id(self) -> int | None: ...
    def is_at(self, server: Endpoint) -> bool: ...
    async def call(self, *request: Argument) -> Reply: ...


class Admins(Protocol):
    """Where to send an urgent request to the server of an orphan."""

    endpoint: Endpoint

    def admin_connection(
        self, server: Endpoint | None
    ) -> AbstractAsyncContextManager[Client]: ...


class _Fate(Enum):
    """What has become of an orphan."""

    ENDED = auto()  # the server does not serve it any more
    UNKILLABLE = auto()  # the server would not end it
    LEFT_BEHIND = auto()  # its server is away, and another one serves the key


class OrphanedConnections:
    """The orphans of one connection.

    Attributes:
        waiting: Orphans that the server has not been asked about.
        unkillable: Orphans that the server would not end. They are not tried again.
    """

    def __init__(self) -> None:
        self.waiting: list[OrphanedConnection] = []
        self.unkillable: list[OrphanedConnection] = []

    def __bool__(self) -> bool:
        """Whether an orphan waits to be killed."""
        return bool(self.waiting)

    def add(self, orphan: OrphanedConnection) -> None:
        """Remember an orphan; of too many, the oldest one is forgotten."""
        self.waiting = [*self.waiting[1 - REMEMBERED :], orphan]

    def restore(self, owed: Iterable[OrphanedConnection]) -> None:
        """Remember these orphans in front of the others, however many there are."""
        owed = list(owed)
        self.waiting = owed + [one for one in self.waiting if one not in owed]

    def clear(self) -> None:
        self.waiting, self.unkillable = [], []

    async def kill_all(self, connection: Client, admins: Admins, *, kill: bool) -> bool:
        """Make the server end the orphans of ``connection``; return if all are harmless.

        An orphan is harmless in two cases: the server has ended it, or it was lost 25 s
        ago, so that nothing of it can arrive any more. ``kill`` sends CLIENT KILL
        instead of CLIENT UNBLOCK.

        Raises RedisUnavailableError if a server does not answer that still serves the
        key. The orphan stays then.
        """
        all_ended = True
        for orphan in list(self.waiting):
            fate = await _end_or_leave(orphan, connection, admins, kill=kill)
            all_ended &= fate is _Fate.ENDED
            if fate is _Fate.UNKILLABLE:
                self.unkillable.append(orphan)
            if orphan in self.waiting:
                self.waiting.remove(orphan)
        now = anyio.current_time()
        recent = self.unkillable[-REMEMBERED:]
        self.unkillable = [one for one in recent if now - one.at < HARMLESS_AFTER]
        return all_ended and not self.unkillable


async def _end_or_leave(
    orphan: OrphanedConnection, connection: Client, admins: Admins, *, kill: bool
) -> _Fate:
    """End an orphan, or leave it to a server that serves the key no more.

    1. The server answers: it ends the orphan, or would not.
    2. The port is closed: the server's process is gone, and its connections with it.
    3. The server does not answer, and another one has taken over: the orphan is left.
    4. The server does not answer, and nothing else is known: the error is raised.
    """
    try:
        return await _end(orphan, connection, admins, kill=kill)
    except RedisUnavailableError as error:
        if orphan.server is None or admins.endpoint.topology is None:
            raise
        if port_was_closed(error):
            return _Fate.ENDED
        successor = await connection.route.resolve(orphan.server)
        if successor.address == orphan.server.address:
            raise
        return _Fate.LEFT_BEHIND


async def _end(
    orphan: OrphanedConnection, connection: Client, admins: Admins, *, kill: bool
) -> _Fate:
    """End an orphan at its server.

    The server may have given the id to another client meanwhile, so the client's name
    is checked first. Where that is refused, id and address have to fit.
    """
    number = orphan.client_id
    if number is None:
        return _Fate.UNKILLABLE
    request: list[Argument] = ["CLIENT", "UNBLOCK", number]
    if kill:
        request = ["CLIENT", "KILL", "ID", number]
    is_ours = connection.client_id == number and connection.is_at(
        orphan.server or admins.endpoint
    )
    async with admins.admin_connection(orphan.server) as admin:
        try:
            shown = b"" if is_ours else await admin.call("CLIENT", "LIST", "ID", number)
            if f" name={connection.name} ".encode() not in shown:
                return _Fate.ENDED
        except RedisRefusedError:  # before Redis 6.2, or without the right to look
            if not orphan.address:
                return _Fate.UNKILLABLE
            request = ["CLIENT", "KILL", "ID", number, "ADDR", orphan.address]
        try:
            await admin.call(*request)
        except RedisRefusedError:
            return _Fate.UNKILLABLE
    return _Fate.ENDED
