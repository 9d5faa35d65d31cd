"""The connections of one agent: one for each use, so that no use waits for another."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

import anyio

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.reconnect import ReconnectGate, ThrottledLog
from bls_agent.connection.route import Route
from bls_agent.connection.topology import Routes
from bls_agent.core.backoff import Backoff, jittered

logger: logging.Logger = logging.getLogger(__name__)

# Seconds between two checks whether another server has replaced the server in use. With
# Sentinel a check is one request. On a cluster a check fetches the map of slots over a
# new connection. Such checks are rare, because MOVED replies report most changes.
LOOK_EVERY: Final = {"sentinel": 1.0, "cluster": 10.0}
OVERDUE: Final = 1.0  # seconds without a reply after which a check is made at once
PACE: Final = 0.5  # seconds between two turns of the loop of monitor_failover()
ADMIN_TIMEOUT: Final = 0.5  # seconds for a request to a server that may be down


class AgentConnections:
    """The connections of one agent, which share one :class:`ReconnectGate`.

    Each connection goes to the server of one key. On a cluster the status, the console
    list and the control list are on different nodes, so there are four connections.
    Without a cluster there are three: ``control`` is the connection ``liveness``, and
    ``intake`` is the connection ``data``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        *,
        timeout: float,
        reconnect_max: float,
        keys: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Open no connection yet.

        ``timeout`` is the deadline of one request and ``reconnect_max`` the longest wait
        before the next try to connect, in seconds. ``keys`` maps a use (``control``,
        ``data``, ``liveness``) to a key. On a cluster the connection for this use goes
        to the node of this key.
        """
        self.endpoint = endpoint
        self.gate: ReconnectGate = ReconnectGate(Backoff(cap=reconnect_max))
        self.throttled_log: ThrottledLog = self.gate.throttled_log
        self._name = name
        self._timeout = timeout
        self._keys = keys
        self.routes: Routes = Routes(endpoint)
        # data: the console list, log batches and all large requests. liveness: the
        # status, and no large requests. blocking: the receiver of commands waits here.
        self.data: Connection = self._connection("data")
        self.liveness: Connection = self._connection("liveness")
        self.blocking: Connection = self._connection("blocking", "control")
        # Both are for the control list. control: small, urgent requests. intake:
        # requests that read and trim commands without blocking.
        self.control: Connection = self.liveness
        self.intake: Connection = self.data
        if endpoint.is_cluster:
            self.control = self.intake = self._connection("control")
        for note in endpoint.notes:
            logger.warning("%s: %s", endpoint.address, note)

    def _connection(self, use: str, key: str = "") -> Connection:
        route = self.routes.to(self._keys.get(key or use, ""))
        name = f"{self._name}:{use}"
        return Connection(route, name, timeout=self._timeout, gate=self.gate)

    @property
    def all(self) -> tuple[Connection, ...]:
        control = (self.control,) if self.endpoint.is_cluster else ()
        return (self.data, self.liveness, self.blocking, *control)

    @asynccontextmanager
    async def admin_connection(
        self, server: Endpoint | None
    ) -> AsyncGenerator[Connection]:
        """Yield a connection to this server for urgent requests; open it if needed.

        A failure to connect is raised at once, because the connection does not wait for
        the gate. If ``server`` is ``None``, yield the connection to the control list.
        """
        if server is None or self.endpoint.topology is None:
            yield self.control
            return
        for connection in (self.control, self.liveness):
            if connection.is_at(server):
                yield connection
                return
        connection = Connection(
            server,
            f"{self._name}:admin",
            timeout=ADMIN_TIMEOUT,
            patience=ADMIN_TIMEOUT,
        )
        try:
            yield connection
        finally:
            await connection.aclose()

    async def kill_orphans(self, connection: Connection, *, kill: bool) -> bool:
        """Make the server end the connections that this process has lost.

        Return whether no request of a lost connection can be executed any more. If
        ``kill``, send CLIENT KILL instead of CLIENT UNBLOCK.
        """
        return await connection.orphans.kill_all(connection, self, kill=kill)

    async def monitor_failover(self) -> None:
        """Drop connections to servers that were replaced; check until cancelled."""
        topology = self.endpoint.topology
        if topology is None:
            return
        due, rng = 0.0, random.Random()  # noqa: S311 - the random numbers are no secrets
        try:
            while True:
                await anyio.sleep(PACE)
                now = anyio.current_time()
                began = (connection.waiting_since for connection in self.all)
                is_overdue = any(at is not None and now - at > OVERDUE for at in began)
                if is_overdue or now >= due:
                    await self.leave_wrong_servers()
                    due = now + jittered(LOOK_EVERY[topology.kind], rng)
        finally:
            with anyio.CancelScope(shield=True):
                for connection in self.all:
                    await connection.route.aclose()

    async def leave_wrong_servers(self) -> None:
        """Drop the connections to servers that another server has replaced."""
        right: dict[Route, Endpoint] = {}
        for connection in self.all:
            route, server = connection.route, connection.server
            if server is not None and connection.engaged and route not in right:
                right[route] = await route.resolve(server)
        left: set[tuple[str, str]] = set()
        for connection in self.all:
            server, former = right.get(connection.route), connection.address
            if server is not None and await connection.leave_for(server):
                left.add((former, server.address))
        for addresses in left:
            logger.warning("leaving %s for %s", *addresses)
        if left:
            # The session writes its status again, because the last writes went to the
            # old server.
            self.gate.on_connected()

    def detach(self) -> None:
        """Drop all connections for ever; send no request, do not use the event loop."""
        for connection in self.all:
            connection.detach()
            connection.retired = True

    async def aclose(self) -> None:
        for connection in self.all:
            await connection.aclose()
