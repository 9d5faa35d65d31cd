"""Lost connections ("orphans"), remembered until the server has ended them, too.

The server may still serve a connection that this process has lost. A BLPOP that waits
on such a connection would take the next command, and an RPUSH may still be executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio

from bls_agent.connection.endpoint import MAY_ARRIVE
from bls_agent.connection.faults import port_was_closed
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Argument, Endpoint, Reply
    from bls_agent.connection.route import Route

REMEMBERED: Final = 8  # most orphans of one connection


class OrphanedConnection(NamedTuple):
    """A connection that ended without a regular close."""

    client_id: int | None  # reply of the server to CLIENT ID, if known
    address: str  # local address; the server sees it unless addresses are translated
    server: Endpoint
    at: float = 0.0  # time of the loss, on the clock of the event loop


class Client(Protocol):
    """The methods of a connection that are needed to kill its orphans."""

    name: str
    route: Route

    @property
    def client_id(self) -> int | None: ...
    def is_at(self, server: Endpoint) -> bool: ...
    async def call(self, *request: Argument) -> Reply: ...


class Admins(Protocol):
    """Provides a connection to the server of an orphan."""

    endpoint: Endpoint

    def admin_connection(
        self, server: Endpoint | None
    ) -> AbstractAsyncContextManager[Client]: ...


class _Fate(Enum):
    """The result of a try to end an orphan."""

    ENDED = auto()  # the server no longer serves the orphan
    UNKILLABLE = auto()  # the server refuses to end the orphan
    LEFT_BEHIND = auto()  # the server is unreachable, and another server has the key


class OrphanedConnections:
    """The orphans of one connection.

    Attributes:
        waiting: Orphans that still have to be ended at their server.
        unkillable: Orphans that the server refused to end. The server is not asked
            again.
    """

    def __init__(self) -> None:
        self.waiting: list[OrphanedConnection] = []
        self.unkillable: list[OrphanedConnection] = []

    def __bool__(self) -> bool:
        """Whether an orphan waits to be killed."""
        return bool(self.waiting)

    def add(self, orphan: OrphanedConnection) -> None:
        """Remember an orphan; if there are more than 8, forget the oldest."""
        self.waiting = [*self.waiting[1 - REMEMBERED :], orphan]

    def restore(self, owed: Iterable[OrphanedConnection]) -> None:
        """Put these orphans before the others; forget none, even if there are many."""
        owed = list(owed)
        self.waiting = owed + [one for one in self.waiting if one not in owed]

    def clear(self) -> None:
        self.waiting, self.unkillable = [], []

    async def kill_all(self, connection: Client, admins: Admins, *, kill: bool) -> bool:
        """Make the server end the orphans of ``connection``.

        Return whether all are harmless. An orphan is harmless if the server has ended
        it. It is also harmless 25 s after its loss, because no request of it can arrive
        after that time. If ``kill``, send CLIENT KILL instead of CLIENT UNBLOCK.

        Raises RedisUnavailableError if the server of an orphan does not answer and still
        serves the key. The orphan then stays in ``waiting``.
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
        self.unkillable = [one for one in recent if now - one.at < MAY_ARRIVE]
        return all_ended and not self.unkillable


async def _end_or_leave(
    orphan: OrphanedConnection, connection: Client, admins: Admins, *, kill: bool
) -> _Fate:
    """End an orphan at its server, or forget it if another server has the key now.

    1. The server answers: the server ends the orphan or refuses this.
    2. The port is closed: the server process and all its connections have ended.
    3. The server does not answer, and another server has replaced it: forget the
       orphan.
    4. The server does not answer, and no other server has replaced it: raise the error.
    """
    try:
        return await _end(orphan, connection, admins, kill=kill)
    except RedisUnavailableError as error:
        if admins.endpoint.topology is None:
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

    The name of the client is checked first, because the server may have given the id to
    another client. Without a name its address is checked, because the server may refuse
    CLIENT SETNAME. If the server refuses this check, the orphan is killed by id and
    address.
    """
    number = orphan.client_id
    if number is None:
        return _Fate.UNKILLABLE
    request: list[Argument] = ["CLIENT", "UNBLOCK", number]
    if kill:
        request = ["CLIENT", "KILL", "ID", number]
    is_ours = connection.client_id == number and connection.is_at(orphan.server)
    async with admins.admin_connection(orphan.server) as admin:
        try:
            shown = b"" if is_ours else await admin.call("CLIENT", "LIST", "ID", number)
            signs = f" name={connection.name} ", f" addr={orphan.address} "
            if not any(sign.encode() in shown for sign in signs):
                return _Fate.ENDED
        except RedisRefusedError:  # before Redis 6.2, or CLIENT LIST is not allowed
            if not orphan.address:
                return _Fate.UNKILLABLE
            request = ["CLIENT", "KILL", "ID", number, "ADDR", orphan.address]
        try:
            await admin.call(*request)
        except RedisRefusedError:
            return _Fate.UNKILLABLE
    return _Fate.ENDED
