"""Where the connection for a key leads to: found anew at each connect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from bls_agent.connection.endpoint import Argument, Endpoint, Reply, Request
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

__all__ = ["Direct", "Node", "Place", "Route", "keys_of"]

Node: TypeAlias = tuple[str, int]  # host and port


# Requests whose keys are not just the first word after their name.
_WITHOUT_KEYS: Final = frozenset({"CLIENT", "CLUSTER", "PING", "ROLE", "TIME"})
_TWO_KEYS: Final = frozenset({"BLMOVE", "LMOVE"})
_SCRIPTS: Final = frozenset({"EVAL", "EVALSHA"})
_SECOND: Final = frozenset({"XINFO"})  # after the name of the subcommand


def keys_of(request: Request) -> tuple[Argument, ...]:
    """Give the keys that one of our requests touches."""
    name = request[0]
    if name in _WITHOUT_KEYS:
        return ()
    if name in _SCRIPTS:
        return tuple(request[3 : 3 + int(request[2])])
    if name in _SECOND:
        return tuple(request[2:3])
    if name == "XREAD":
        rest = request[request.index("STREAMS") + 1 :]
        return tuple(rest[: len(rest) // 2])
    return tuple(request[1 : 3 if name in _TWO_KEYS else 2])


class Place(NamedTuple):
    """Where to connect, and whether its requests need ASKING."""

    server: Endpoint
    asking: bool = False  # each request needs ASKING: the slot migrates there


class Route(Protocol):
    """The route to the server that serves a key.

    ``address`` is for messages while no server is known, without credentials;
    ``greeting`` is sent on each new connection before anything else.
    """

    @property
    def address(self) -> str: ...  # noqa: D102
    @property
    def greeting(self) -> tuple[Request, ...]: ...  # noqa: D102

    async def find(self) -> Place:
        """Give where to connect now; RedisUnavailableError if no server can say."""
        ...

    def check(self, replies: Sequence[Reply]) -> None:
        """Check the replies to the greeting; RedisUnavailableError: wrong server."""
        ...

    def look_anew(self, error: RedisUnavailableError | None = None) -> None:
        """Trust what is known no more; a redirection says where to go instead."""
        ...

    def explain(self, error: RedisUnavailableError) -> RedisUnavailableError:
        """Give an error reply as the caller should see it."""
        ...

    async def look(self) -> Endpoint | None:
        """Find with care where the server is now; ``None`` if that is not certain."""
        ...

    async def glance(self, server: Endpoint) -> bool:
        """Ask in passing whether another server may have taken over; never raises."""
        ...

    async def aclose(self) -> None:
        """Close the connection that :meth:`glance` has kept open."""
        ...


class Direct:
    """The route to one server, always the same."""

    greeting: tuple[Request, ...] = ()

    def __init__(self, server: Endpoint) -> None:
        self.address = server.address
        self._place = Place(server)

    async def find(self) -> Place:
        """Give the server."""
        return self._place

    def check(self, replies: Sequence[Reply]) -> None:
        """Accept the server: the greeting asks nothing."""

    def look_anew(self, error: RedisUnavailableError | None = None) -> None:
        """Do nothing: there is no other server."""

    def explain(self, error: RedisUnavailableError) -> RedisUnavailableError:
        """Explain a redirection to a caller that knows one server only."""
        if error.kind not in ("moved", "ask"):
            return error
        reason = (
            "it is a node of a cluster; give a URL that begins with redis+cluster://"
        )
        return RedisRefusedError("cluster_node", reason, address=error.address)

    async def look(self) -> Endpoint | None:
        """Give ``None``: there is no other server."""
        return None

    async def glance(self, server: Endpoint) -> bool:  # noqa: ARG002 - nobody else
        """Give ``False``: no server takes over."""
        return False

    async def aclose(self) -> None:
        """Do nothing: no connection is kept open."""
