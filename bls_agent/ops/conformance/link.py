"""A TCP link on loopback between the judged program and Redis, which can be broken."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import Final, Self
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup

LOOPBACK: Final = "127.0.0.1"


class LinkState(Enum):
    """What the link does."""

    OPEN = "open"
    AWAY = "away"  # new connections are closed at once
    # Old connections stay open and carry nothing; new connections work.
    SILENT = "silent"


class Link:
    """Carries connections to a server; an asynchronous context manager."""

    def __init__(self, url: str, tasks: TaskGroup) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or LOOPBACK, parts.port or 6379
        login, at, _ = parts.netloc.rpartition("@")
        self._around = (f"{parts.scheme}://{login}{at}", parts.path)
        self._tasks = tasks
        self._state = LinkState.OPEN
        self._connections: set[_Connection] = set()
        self._scope = anyio.CancelScope()

    @property
    def url(self) -> str:
        """The URL for the program."""
        before, after = self._around
        return f"{before}{LOOPBACK}:{self._own_port}{after}"

    async def __aenter__(self) -> Self:
        self._listener = await anyio.create_tcp_listener(local_host=LOOPBACK)
        port = SocketAttribute.local_port
        self._own_port = self._listener.extra(port)  # noqa: S610 - not of Django
        self._tasks.start_soon(self._serve)
        return self

    async def _serve(self) -> None:
        async with self._listener:
            with self._scope:
                await self._listener.serve(self._carry)

    async def __aexit__(self, *_: object) -> None:
        self._scope.cancel()

    @property
    def carries(self) -> bool:
        """Whether a connection is open."""
        return bool(self._connections)

    def cut(self) -> None:
        """Close all connections; new connections work."""
        for connection in self._connections:
            connection.scope.cancel()

    def set_state(self, state: LinkState) -> None:
        self._state = state
        if state is LinkState.AWAY:
            self.cut()
        if state is LinkState.SILENT:
            for connection in self._connections:
                connection.silent = True

    async def _carry(self, client: SocketStream) -> None:
        async with client:
            if self._state is LinkState.AWAY:
                return
            connection = _Connection()
            self._connections.add(connection)
            try:
                await connection.run(client, self._host, self._port)
            finally:
                self._connections.discard(connection)


class _Connection:
    """The two streams of one connection."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.silent = False

    async def run(self, client: SocketStream, host: str, port: int) -> None:
        with self.scope:
            try:
                server = await anyio.connect_tcp(host, port)
            except OSError:
                return
            async with server, anyio.create_task_group() as tasks:
                tasks.start_soon(self._copy, client, server)
                await self._copy(server, client)
                tasks.cancel_scope.cancel()

    async def _copy(self, source: SocketStream, target: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for data in source:
                if not self.silent:
                    await target.send(data)
        self.scope.cancel()
