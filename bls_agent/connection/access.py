"""How a store reaches Redis: by URL, client, agent or variable, in any event loop."""

from __future__ import annotations

import logging
import os
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
    TypeVar,
    runtime_checkable,
)
from weakref import WeakKeyDictionary

from bls_agent.connection.after_fork import never_finalize, register
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError
from bls_agent.core.settings import check_seconds

if TYPE_CHECKING:
    import asyncio

    from bls_agent.connection.pool import ConnectionPool
    from bls_agent.connection.reconnect import Reminders

logger = logging.getLogger(__name__)

T = TypeVar("T")


@runtime_checkable
class _Connected(Protocol):
    """An object that knows where its Redis is: a ``ProjectAgent``."""

    @property
    def endpoint(self) -> Endpoint: ...


class LoopLocal(Generic[T]):
    """One object for each event loop; those of closed loops go when the next one comes.

    A kept object mostly refers to its loop, so a weak reference would never end.
    """

    def __init__(self, let_go: Callable[[T], None] | None = None) -> None:
        """``let_go`` is called with each object whose loop was closed under it."""
        self._let_go = let_go
        self._lock = RLock()  # reentrant: a finaliser may run inside get()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T]
        self._by_loop = WeakKeyDictionary()

    def reset_after_fork(self) -> None:
        """In a forked child: drop the parent's loops, and the lock it may hold."""
        never_finalize(self._by_loop)
        self._lock = RLock()
        self._by_loop = WeakKeyDictionary()

    def get(self, make: Callable[[], T]) -> T:
        """Return what belongs to the running event loop; made if there is nothing."""
        import asyncio  # noqa: PLC0415 - 20 ms, not at import

        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is not None:
            return found
        register(self)
        made = make()
        # Other threads' loops come and go: without the lock the dictionary would change
        # while this thread iterates over it.
        with self._lock:
            closed = [loop for loop in list(self._by_loop) if loop.is_closed()]
            left = [self._by_loop.pop(loop) for loop in closed]
            self._by_loop[loop] = made
        if self._let_go is not None:
            for one in left:
                self._let_go(one)
        return made

    def find(self) -> T | None:
        import asyncio  # noqa: PLC0415 - as above

        return self._by_loop.get(asyncio.get_running_loop())

    def pop(self) -> T | None:
        """Return what belongs to the running event loop, and keep it no longer."""
        import asyncio  # noqa: PLC0415 - as above

        with self._lock, suppress(RuntimeError):  # in a forked child no loop runs
            return self._by_loop.pop(asyncio.get_running_loop(), None)
        return None

    def values(self) -> list[T]:
        with self._lock:
            return list(self._by_loop.values())


class Access:
    """The connections of one object; each event loop gets its own at the first request."""

    def __init__(
        self, redis: object, name: str, *, timeout: float = 5.0, strict: bool = False
    ) -> None:
        """Remember where Redis is, as :class:`Store`; ``name`` is for CLIENT LIST."""
        self._agent = redis if isinstance(redis, _Connected) else None
        self._given = None
        if redis is not None and self._agent is None:
            self._given = Endpoint.of(redis)
        self._name = name
        self.timeout = check_seconds("timeout", timeout)
        self._strict = strict
        self._by_loop: LoopLocal[ConnectionPool] = LoopLocal(lambda pool: pool.detach())

    @cached_property
    def endpoint(self) -> Endpoint:
        """Where Redis is; ConfigurationError if no usable URL was given."""
        from bls_agent.connection.pool import default_endpoint  # noqa: PLC0415 - 4 ms

        if self._agent is not None:
            return self._agent.endpoint
        return self._given or default_endpoint(os.environ)

    @property
    def known(self) -> Endpoint | None:
        """Where Redis is, if that is known already; the environment is not read."""
        return self._given or self.__dict__.get("endpoint")

    @property
    def shown(self) -> str:
        """Where Redis is, without credentials; the environment is not read."""
        return self.known.address if self.known else "BLS_REDIS_URL"

    @property
    def pool(self) -> ConnectionPool:
        return self._by_loop.get(self._make)

    def _make(self) -> ConnectionPool:
        from bls_agent.connection.pool import ConnectionPool  # noqa: PLC0415 - 4 ms

        return ConnectionPool(
            self.endpoint, self._name, timeout=self.timeout, strict=self._strict
        )

    async def aclose(self) -> None:
        """Close this event loop's connections; the next request opens them again."""
        pool = self._by_loop.pop()
        if pool is not None:
            await pool.aclose()


class Store:
    """An object in Redis that is used with and without ``async with``.

    The first request opens a connection in the event loop that makes it; without
    ``async with``, close it there with :meth:`aclose`.

    Attributes:
        client_name: What its connections are called in CLIENT LIST.
    """

    client_name: ClassVar[str] = "bls-agent:store"

    def __init__(
        self, redis: object = None, *, timeout: float = 5.0, strict: bool = False
    ) -> None:
        """Remember where Redis is; nothing is opened yet.

        Args:
            redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
                ``BLS_REDIS_URL``, read at the first request.
            timeout: Deadline of one request in seconds.
            strict: Whether long requests and replies have no more time than that.

        Raises:
            ConfigurationError: ``redis`` is none of these, or ``timeout`` no time.
        """
        self._access = Access(redis, self.client_name, timeout=timeout, strict=strict)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._access.shown}>"

    async def __aenter__(self) -> Self:
        """Open nothing: the first request does."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection of this event loop; the next request opens it again."""
        await self._access.aclose()


class WritingStore(Store):
    """A store that a long-lived program writes with: a write may fail without raising."""

    def __init__(
        self,
        redis: object = None,
        *,
        on_error: Literal["raise", "none"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        """Remember where Redis is; nothing is opened yet.

        Args:
            redis: As for :class:`Store`.
            on_error: What a write does when Redis cannot answer: ``raise``, or return
                nothing; then it is counted in :attr:`failed_writes`, and a warning is
                logged, once a minute at most. Reads always raise.
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
        from bls_agent.connection.reconnect import Reminders  # noqa: PLC0415 - 4 ms

        return Reminders()

    @property
    def failed_writes(self) -> int:
        """Writes that Redis did not answer, and that did not raise: perhaps lost."""
        return self._failed_writes

    def _absorb(self, error: RedisUnavailableError) -> None:
        """Count and log a write that failed; raise its error if that was asked for."""
        if not self._absorbs:
            raise error
        self._failed_writes += 1
        if self._reminders.is_due(error.kind):
            text = "%s: a write is given up, because Redis cannot answer: %s"
            logger.warning(text, self.client_name, error)
