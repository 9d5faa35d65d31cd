"""One server, Sentinel or a cluster: the routes to the servers of one endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.route import Direct, Route

if TYPE_CHECKING:
    from bls_agent.connection.topology import ClusterMap

__all__ = ["Routes"]


class Routes:
    """The routes to the servers of one endpoint, with what they know in common."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Choose by the endpoint; no server is asked yet."""
        self.cluster: ClusterMap | None = None
        self._shared: Route | None = None
        topology = endpoint.topology
        if topology is None:
            self._shared = Direct(endpoint)
            return
        from bls_agent.connection import topology as several  # noqa: PLC0415 - rarely used

        if topology.kind == "sentinel":
            self._shared = several.SentinelRoute(endpoint.address, topology)
        else:
            self.cluster = several.ClusterMap(endpoint.address, topology)

    def to(self, key: str) -> Route:
        """Give the route to the server that serves a key."""
        if self.cluster is not None:
            return self.cluster.route(key)
        assert self._shared is not None  # noqa: S101 - there is one of the two
        return self._shared
