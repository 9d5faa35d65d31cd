"""One server, Sentinel or a cluster: the routes to the servers of one endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.route import Direct, Route

if TYPE_CHECKING:
    from bls_agent.connection.cluster import ClusterMap

__all__ = ["Routes"]


class Routes:
    """The routes to the servers of one endpoint, with what they know in common."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Choose by the endpoint; no server is asked yet."""
        self.endpoint = endpoint
        self.cluster: ClusterMap | None = None
        topology = endpoint.topology
        self._to: Callable[[str], Route]
        if topology is None:
            direct = Direct(endpoint)
            self._to = lambda _: direct
        elif topology.kind == "sentinel":
            from bls_agent.connection.sentinel import SentinelRoute  # noqa: PLC0415 - rarely used

            sentinels = SentinelRoute(endpoint.address, topology)
            self._to = lambda _: sentinels
        else:
            from bls_agent.connection.cluster import ClusterMap  # noqa: PLC0415 - rarely used

            self.cluster = ClusterMap(endpoint.address, topology)
            self._to = self.cluster.route

    def to(self, key: str) -> Route:
        """Give the route to the server that serves a key."""
        return self._to(key)
