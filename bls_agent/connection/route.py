"""Where the connection for a key is to be made: asked anew at each connect."""

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
_SECOND: Final = frozenset({"XINFO"})  # behind the name of what is asked


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
    """Where to connect, and how to speak there.

    Attributes:
        server: One server.
        asking: Whether each request needs ASKING in front: the slot is on its way there.
    """

    server: Endpoint
    asking: bool = False


class Route(Protocol):
    """The way to the server that serves a key.

    Attributes:
        address: For messages while no server is known: no credentials.
        greeting: Asked on each new connection, before anything else.
    """

    @property
    def address(self) -> str: ...  # noqa: D102
    @property
    def greeting(self) -> tuple[Request, ...]: ...  # noqa: D102

    async def find(self) -> Place:
        """Say where to connect now.

        Raises:
            RedisUnavailableError: Nobody can say.
        """
        ...

    def check(self, replies: Sequence[Reply]) -> None:
        """Judge the replies to the greeting.

        Raises:
            RedisUnavailableError: This is not the server that was looked for.
        """
        ...

    def look_anew(self, error: RedisUnavailableError | None = None) -> None:
        """Trust what is known no more; a redirection says where to go instead."""
        ...

    def explain(self, error: RedisUnavailableError) -> RedisUnavailableError:
        """Give an error reply as the caller should see it."""
        ...

    async def look(self) -> Endpoint | None:
        """Ask with care where the server is now; ``None`` if nobody surely knows."""
        ...

    async def glance(self, server: Endpoint) -> bool:
        """Ask in passing whether another server may have taken over; never raises."""
        ...

    async def aclose(self) -> None:
        """Let go of what :meth:`glance` has kept open."""
        ...


class Direct:
    """To one server, always the same."""

    greeting: tuple[Request, ...] = ()

    def __init__(self, server: Endpoint) -> None:
        """Remember the server."""
        self.address = server.address
        self._place = Place(server)

    async def find(self) -> Place:
        """Say where to connect: where it always is."""
        return self._place

    def check(self, replies: Sequence[Reply]) -> None:
        """Nothing was asked."""

    def look_anew(self, error: RedisUnavailableError | None = None) -> None:
        """There is nowhere else to look."""

    def explain(self, error: RedisUnavailableError) -> RedisUnavailableError:
        """Say what a redirection means to somebody who knows one server only."""
        if error.kind not in ("moved", "ask"):
            return error
        reason = (
            "it is a node of a cluster; give a URL that begins with redis+cluster://"
        )
        return RedisRefusedError("cluster_node", reason, address=error.address)

    async def look(self) -> Endpoint | None:
        """There is nowhere else."""
        return None

    async def glance(self, server: Endpoint) -> bool:  # noqa: ARG002 - nobody else
        """Nobody takes over."""
        return False

    async def aclose(self) -> None:
        """Nothing is kept open."""
