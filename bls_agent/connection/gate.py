"""When to try to reach Redis again, for all connections of an agent together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from bls_agent.connection.complaints import Complaints
from bls_agent.connection.faults import port_was_closed
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Gate:
    """Lets one connection at a time try to reach Redis, and paces the tries.

    All connections of an agent share one gate: while Redis is away there is one try per
    backoff delay, not one per connection, and the first success opens the way for all. The
    gate logs that Redis is away, at once and then once a minute. A password is tried at
    most once a minute.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._lock = anyio.Lock()
        self._retry_at = 0.0
        self._away_since: float | None = None
        self._told = False
        self.complaints = Complaints()
        self.connect_time = 0.0  # seconds that the last success took: some round trips
        self.failures = 0  # tries that failed
        # By address; grows when a port was found closed: a later listener is another
        # process, and connection ids of the former one mean nothing.
        self.lives: Counter[str] = Counter()
        self.last_error = "nothing went wrong so far"
        self.on_connected: Callable[[], None] = _nothing  # called after each success

    async def enter(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Run one try to connect as soon as the backoff allows it.

        RedisUnavailableError if the try failed; the next one waits its time.
        """
        async with self._lock:
            if (delay := self._retry_at - anyio.current_time()) > 0:
                await anyio.sleep(delay)
            try:
                began = anyio.current_time()
                made = await connect()
            except RedisUnavailableError as error:
                self._failed(error)
                raise
            self.connect_time = anyio.current_time() - began
            self._succeeded()
            return made

    def _failed(self, error: RedisUnavailableError) -> None:
        now = anyio.current_time()
        permanent = isinstance(error, RedisRefusedError)
        self._retry_at = now + self._backoff.failed(
            permanent=permanent, longest=error.kind == "auth"
        )
        self.failures += 1
        self.last_error = str(error)
        if port_was_closed(error):
            self.lives[error.address] += 1
        if self._away_since is None:
            self._away_since = now
        self._told |= self.complaints.say("Redis cannot be reached", error)

    def _succeeded(self) -> None:
        self._retry_at = 0.0
        self._backoff.succeeded()
        self.on_connected()
        if self._away_since is not None:
            away = anyio.current_time() - self._away_since
            if self._told:
                logger.info("Redis is back after %.1f s", away)
            self._away_since = None
            self._told = False


def _nothing() -> None:
    pass
