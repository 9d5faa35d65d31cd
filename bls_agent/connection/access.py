"""Finds Redis for an object, by a URL, a client, an agent or ``BLS_REDIS_URL``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from threading import RLock
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)
from weakref import WeakKeyDictionary

from bls_agent.connection.after_fork import never_finalize, register
from bls_agent.connection.endpoint import Endpoint, RedisSource
from bls_agent.core.checks import check_seconds
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.pool import ConnectionPool
    from bls_agent.connection.reconnect import Reminders

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


@runtime_checkable
class Connected(Protocol):
    """The part of a ``ProjectAgent`` that a store uses to find the server."""

    @property
    def endpoint(self) -> Endpoint: ...


RedisOrAgent: TypeAlias = RedisSource | Connected
"""Where Redis is: a URL or a client, as in :data:`RedisSource`, or a ``ProjectAgent``.

A store that gets a ``ProjectAgent`` uses the server of the agent.
"""


class LoopLocal(Generic[T]):
    """Keeps one object for each event loop, such as the loop's connections.

    :meth:`get` removes the objects of closed loops.

    Weak references to the loops are not enough, because most objects refer to their loop.
    """

    def __init__(self, let_go: Callable[[T], None] | None = None) -> None:
        """Begin empty; ``let_go`` is called with each object whose loop was closed."""
        self._let_go = let_go
        self._lock = RLock()  # reentrant: a finaliser may run inside get()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T]
        self._by_loop = WeakKeyDictionary()

    def reset_after_fork(self) -> None:
        """In a forked child, drop the event loops and the lock of the parent."""
        never_finalize(self._by_loop)
        self._lock = RLock()
        self._by_loop = WeakKeyDictionary()

    def get(self, make: Callable[[], T]) -> T:
        """Return the object of the running event loop; make it if there is none."""
        import asyncio  # noqa: PLC0415 - the import takes 20 ms

        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is not None:
            return found
        register(self)
        made = make()
        # Other threads add and remove loops. Without the lock the dictionary could
        # change while this thread iterates over the dictionary.
        with self._lock:
            closed = [loop for loop in list(self._by_loop) if loop.is_closed()]
            left = [self._by_loop.pop(loop) for loop in closed]
            self._by_loop[loop] = made
        if self._let_go is not None:
            for one in left:
                self._let_go(one)
        return made

    def find(self) -> T | None:
        import asyncio  # noqa: PLC0415 - the import takes 20 ms

        return self._by_loop.get(asyncio.get_running_loop())

    def pop(self) -> T | None:
        """Remove and return the object of the running event loop, if any."""
        import asyncio  # noqa: PLC0415 - the import takes 20 ms

        with self._lock, suppress(RuntimeError):  # in a forked child no loop runs
            return self._by_loop.pop(asyncio.get_running_loop(), None)
        return None

    def values(self) -> list[T]:
        with self._lock:
            return list(self._by_loop.values())


class Access:
    """The connections of one object; each event loop opens its own connections."""

    def __init__(
        self,
        redis: RedisOrAgent | None,
        name: str,
        *,
        timeout: float = 5.0,
        strict: bool = False,
    ) -> None:
        """Take the arguments of :class:`Store`; CLIENT LIST shows ``name``."""
        self._agent = redis if isinstance(redis, Connected) else None
        self._given = None
        if redis is not None and self._agent is None:
            self._given = Endpoint.of(redis)
        self._name = name
        self.timeout: float = check_seconds("timeout", timeout)
        self._strict = strict
        self._by_loop: LoopLocal[ConnectionPool] = LoopLocal(lambda pool: pool.detach())

    @cached_property
    def endpoint(self) -> Endpoint:
        """The address of Redis; ConfigurationError if ``BLS_REDIS_URL`` is wrong."""
        from bls_agent.connection.pool import find_endpoint  # noqa: PLC0415 - the import takes 4 ms

        if self._agent is not None:
            return self._agent.endpoint
        return self._given or find_endpoint()

    @property
    def known(self) -> Endpoint | None:
        """The address of Redis, or ``None`` before the environment was read."""
        return self._given or self.__dict__.get("endpoint")

    @property
    def shown(self) -> str:
        """The address without credentials; the environment is not read."""
        return self.known.address if self.known else "BLS_REDIS_URL"

    @property
    def pool(self) -> ConnectionPool:
        return self._by_loop.get(self._make)

    def _make(self) -> ConnectionPool:
        from bls_agent.connection.pool import ConnectionPool  # noqa: PLC0415 - the import takes 4 ms

        return ConnectionPool(
            self.endpoint, self._name, timeout=self.timeout, strict=self._strict
        )

    async def aclose(self) -> None:
        """Close this event loop's connections; the next request opens them again."""
        pool = self._by_loop.pop()
        if pool is not None:
            await pool.aclose()


class Store:
    """An object that sends requests to Redis, with or without ``async with``.

    The first request opens a connection in the event loop that sends the request. Without
    ``async with``, close the connection with :meth:`aclose` in that event loop.

    Attributes:
        client_name: The name that CLIENT LIST shows for the connections of the store.
    """

    client_name: ClassVar[str] = "bls-agent:store"

    def __init__(
        self,
        redis: RedisOrAgent | None = None,
        *,
        timeout: float = 5.0,
        strict: bool = False,
    ) -> None:
        """Open no connection yet.

        Args:
            redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
                ``BLS_REDIS_URL``, read at the first request.
            timeout: Deadline of one request in seconds.
            strict: Whether long requests and replies get no more time than ``timeout``.

        Raises:
            ConfigurationError: ``redis`` is none of these, or ``timeout`` is not valid.
        """
        self._access = Access(redis, self.client_name, timeout=timeout, strict=strict)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._access.shown}>"

    async def __aenter__(self) -> Self:
        """Return the store; the first request opens the connection."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection of this event loop; the next request opens it again."""
        await self._access.aclose()


class WritingStore(Store):
    """A store whose failed writes need not raise, for programs that run for long."""

    def __init__(
        self,
        redis: RedisOrAgent | None = None,
        *,
        on_error: Literal["raise", "none"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        """Open no connection yet.

        Args:
            redis: As for :class:`Store`.
            on_error: What a write does when Redis cannot answer. ``raise`` raises the
                error. ``none`` counts the write in :attr:`failed_writes` and logs a
                warning, at most once a minute. Reads always raise.
            timeout: Deadline of one request in seconds.

        Raises:
            ConfigurationError: An argument breaks its rule.
        """
        super().__init__(redis, timeout=timeout)
        if on_error not in ("raise", "none"):
            raise ConfigurationError("on_error", on_error, "'raise' or 'none'")
        self._absorbs = on_error == "none"
        self._failed_writes = 0

    @cached_property
    def _reminders(self) -> Reminders:
        from bls_agent.connection.reconnect import Reminders  # noqa: PLC0415 - the import takes 4 ms

        return Reminders()

    @property
    def failed_writes(self) -> int:
        """Number of writes that failed without raising an error; they may be lost."""
        return self._failed_writes

    def _absorb(self, error: RedisUnavailableError) -> None:
        """Count and log a failed write, or raise its error if ``on_error`` is ``raise``."""
        if not self._absorbs:
            raise error
        self._failed_writes += 1
        if self._reminders.is_due(error.kind):
            text = "%s: a write is given up, because Redis cannot answer: %s"
            logger.warning(text, self.client_name, error)
