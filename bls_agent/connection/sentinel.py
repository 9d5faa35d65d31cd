"""Redis behind Sentinel: finds the master and checks its role.

One sentinel's answer is enough to connect, because the server itself is asked its role
before it is used. Before an open connection is left, most sentinels have to agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint, Reply, Request, Topology
from bls_agent.connection.route import Node, Route
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

__all__ = ["SentinelRoute"]

SENTINEL_TIMEOUT: Final = 0.5  # seconds until the next sentinel is asked


class SentinelRoute(Route):
    """The route to the master of one service, shared by all connections of an agent."""

    greeting: tuple[Request, ...] = (("ROLE",),)

    def __init__(self, address: str, topology: Topology) -> None:
        super().__init__(address)
        self._topology = topology
        self._sentinels = list(topology.seeds)  # in the order in which they are asked
        self._glancing: tuple[Endpoint, Connection] | None = None

    async def find(self) -> Endpoint:
        """Ask the sentinels in turn; the first that knows a master is believed.

        RedisRefusedError if they answer and none knows the service,
        RedisUnavailableError if none answers.
        """
        failures: list[RedisUnavailableError] = []
        answered = 0
        for sentinel in list(self._sentinels):
            try:
                master = await self._ask(sentinel)
            except RedisUnavailableError as error:
                failures.append(error)
                continue
            answered += 1
            if master is not None:
                return self._topology.node(*master)
        raise self._nobody_knows(failures, answered)

    async def _ask(self, sentinel: Endpoint) -> Node | None:
        """Ask one sentinel; one that fails is asked last from now on."""
        connection = _connection_to(sentinel)
        try:
            return await self._ask_over(connection)
        except RedisUnavailableError:
            self._ask_last(sentinel)
            raise
        finally:
            await connection.aclose()

    async def _ask_over(self, connection: Connection) -> Node | None:
        reply = await connection.call(
            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._topology.service
        )
        return None if reply is None else (reply[0].decode(), int(reply[1]))

    def _ask_last(self, sentinel: Endpoint) -> None:
        self._sentinels = [s for s in self._sentinels if s is not sentinel] + [sentinel]

    def _nobody_knows(
        self, failures: Sequence[RedisUnavailableError], answered: int
    ) -> RedisUnavailableError:
        if answered:
            reason = f"no sentinel knows a master named {self._topology.service!r}"
            return RedisRefusedError("no_such_service", reason, address=self.address)
        refused = [e for e in failures if isinstance(e, RedisRefusedError)]
        kind = RedisRefusedError if len(refused) == len(failures) else None
        said = "; ".join(str(error) for error in failures)
        reason = f"no sentinel answers: {said}"
        return (kind or RedisUnavailableError)(
            "no_sentinel", reason, address=self.address
        )

    def check(self, replies: Sequence[Reply]) -> None:
        """Refuse a server that is no master (any more, or not yet)."""
        role = replies[0]
        if isinstance(role, RedisRefusedError):
            return  # without the right to ask: a replica answers READONLY
        if isinstance(role, RedisUnavailableError):
            raise role
        if role[0] != b"master":
            reason = "the server that the sentinels name is no master"
            raise RedisUnavailableError("not_master", reason)

    def look_anew(self, error: RedisUnavailableError | None = None) -> None:  # noqa: ARG002
        """Ask the next sentinel first from now on: this one may lag behind."""
        self._sentinels = [*self._sentinels[1:], *self._sentinels[:1]]

    async def look(self) -> Endpoint | None:
        """Ask all sentinels, and believe the master that most of them name."""
        voices: Counter[Node] = Counter()
        for sentinel in self._topology.seeds:
            try:
                if master := await self._ask(sentinel):
                    voices[master] += 1
            except RedisUnavailableError:
                continue
        for master, count in voices.most_common(1):
            if count * 2 > len(self._topology.seeds):
                return self._topology.node(*master)
        return None

    async def glance(self, server: Endpoint) -> bool:
        """Ask one sentinel, over a connection that stays open, which master it names.

        After ``SENTINEL FAILOVER`` the old master lives on, and learns only some 8 s
        later that it is none any more.
        """
        sentinel, connection = self._glancing or (
            self._sentinels[0],
            _connection_to(self._sentinels[0]),
        )
        self._glancing = sentinel, connection
        try:
            master = await self._ask_over(connection)
        except RedisUnavailableError:
            self._ask_last(sentinel)
            await self.aclose()
            return False
        named = None if master is None else self._topology.node(*master)
        return named is not None and named.address != server.address

    async def aclose(self) -> None:
        """Close the connection for glances."""
        glancing, self._glancing = self._glancing, None
        if glancing is not None:
            await glancing[1].aclose()


def _connection_to(sentinel: Endpoint) -> Connection:
    return Connection(
        sentinel,
        "bls-agent:sentinel",
        timeout=SENTINEL_TIMEOUT,
        patience=SENTINEL_TIMEOUT,
    )
