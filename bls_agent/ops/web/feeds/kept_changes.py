"""A Redis stream of limited length that keeps status changes after the console ends."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import anyio

from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import CONSOLE_CHANGES

KEY: Final = CONSOLE_CHANGES.build()
MOST: Final = 1_000  # changes that wait; with more, the oldest are dropped
AGAIN: Final = 2.0  # seconds until the stream is read again after a failure

logger: logging.Logger = logging.getLogger(__name__)


class KeptChanges:
    """Reads the stream of changes once at the start, and then appends changes as JSON."""

    def __init__(self, endpoint: Endpoint, most: int) -> None:
        self._most = most  # changes that the stream holds, approximately
        self._pool = ConnectionPool(endpoint, "bls-console", timeout=5.0)
        self._waiting: deque[bytes] = deque(maxlen=MOST)
        self._more = anyio.Event()

    async def load(self) -> list[bytes]:
        """Return all kept changes, oldest first, or none if Redis refuses the read.

        During an outage, wait until Redis answers.
        """
        while True:
            try:
                args = ("+", "-", "COUNT", self._most)
                found = await self._pool.read(KEY, "XREVRANGE", *args)
                return [fields[1] for _, fields in reversed(found)]
            except RedisRefusedError as error:
                text = "earlier status changes cannot be read from %s: %s"
                logger.warning(text, KEY, error)
                return []
            except RedisUnavailableError:
                await anyio.sleep(AGAIN)

    def put(self, change: bytes) -> None:
        self._waiting.append(change)
        self._more.set()

    async def run(self) -> None:
        """Append changes in order; repeat each write until Redis accepts it."""
        backoff = Backoff()
        while True:
            if not self._waiting:
                self._more = anyio.Event()
                await self._more.wait()
            change = self._waiting[0]
            try:
                args = ("MAXLEN", "~", self._most, "*", "change", change)
                await self._pool.call(KEY, "XADD", *args)
            except RedisUnavailableError as error:
                if not backoff.failures:
                    text = "status changes are not kept in %s: %s; it is tried again"
                    logger.warning(text, KEY, error)
                await anyio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            if self._waiting[0] is change:  # put() may have dropped it meanwhile
                self._waiting.popleft()

    async def aclose(self) -> None:
        await self._pool.aclose()
