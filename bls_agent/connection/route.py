"""Where the connection for a key leads to: found anew at each connect.

Always the same server, or one that ``topology.py`` finds: the master that sentinels
name, the node of a cluster that serves the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    from bls_agent.connection.endpoint import Endpoint, Reply, Request

Node: TypeAlias = tuple[str, int]  # host and port


class Route:
    """The route to the server that serves a key; as it stands, to one server.

    Attributes:
        address: For messages while no server is known, without credentials.
        greeting: What is sent on each new connection before anything else.
        follows: Whether the route leads elsewhere after a redirection.
    """

    greeting: tuple[Request, ...] = ()
    follows = False

    def __init__(self, endpoint: Endpoint, *, of_cluster: bool = False) -> None:
        self.address = endpoint.address
        self._endpoint = endpoint
        self._of_cluster = of_cluster

    async def find(self) -> Endpoint:
        """Return where to connect now; RedisUnavailableError if no server can say."""
        return self._endpoint

    def check(self, replies: Sequence[Reply]) -> None:
        """Check the replies to the greeting; RedisUnavailableError: wrong server."""

    def invalidate(self, error: RedisUnavailableError | None = None) -> None:
        """Find the server anew at the next connect; MOVED names it."""

    def explain(self, error: RedisUnavailableError) -> RedisUnavailableError:
        if self._of_cluster or error.kind not in ("moved", "ask"):
            return error
        reason = (
            "it is a node of a cluster; give a URL that begins with redis+cluster://"
        )
        return RedisRefusedError("cluster_node", reason, address=error.address)

    async def resolve(self, server: Endpoint) -> Endpoint:
        """Return the server that has taken over from this one, or this one; never raises."""
        return server

    async def aclose(self) -> None:
        """Close the connection that :meth:`resolve` has kept open."""
