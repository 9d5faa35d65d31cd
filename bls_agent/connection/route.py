"""A route finds the server for a key; a connection asks its route at each connect.

The class in this module always finds the same server. The classes in ``topology.py``
find the master that sentinels name, or the node of a cluster that serves the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Endpoint, Reply, Request

Node: TypeAlias = tuple[str, int]  # host and port


class Route:
    """Finds the server for a key; this class always finds the same server.

    Attributes:
        address: Address for messages while no server is known, without credentials.
        greeting: Requests that are sent first on each new connection.
        follows: Whether a redirected request is sent to the node that the reply names.
    """

    greeting: tuple[Request, ...] = ()
    follows = False

    def __init__(self, endpoint: Endpoint, *, of_cluster: bool = False) -> None:
        self.address: str = endpoint.address
        self._endpoint = endpoint
        self._of_cluster = of_cluster

    async def find(self) -> Endpoint:
        """Return the server to connect to; raise RedisUnavailableError if none is known."""
        return self._endpoint

    def check(self, replies: Sequence[Reply]) -> None:
        """Raise RedisUnavailableError if the greeting's replies show a wrong server."""

    def invalidate(self, error: RedisUnavailableError | None = None) -> None:
        """Forget which server was found; a ``MOVED`` error names the next one."""

    def explain(self, error: RedisUnavailableError) -> RedisUnavailableError:
        if self._of_cluster or error.kind not in ("moved", "ask"):
            return error
        reason = (
            "it is a node of a cluster; give a URL that begins with redis+cluster://"
        )
        return RedisRefusedError("cluster_node", reason, address=error.address)

    async def resolve(self, server: Endpoint) -> Endpoint:
        """Return the server that replaced ``server``, or ``server``; never raise."""
        return server

    async def aclose(self) -> None:
        """Close the connection that :meth:`resolve` has kept open."""
