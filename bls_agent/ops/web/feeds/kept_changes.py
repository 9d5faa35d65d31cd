"""A bounded stream of Redis in which status changes outlive the console."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from itertools import chain
from typing import Final, TypeAlias

import anyio

from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.pool import ConnectionPool
from bls_agent.connection.reconnect import Reminders
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import CONSOLE_CHANGES

KEY: Final = CONSOLE_CHANGES.build()
MOST: Final = 1_000  # changes that wait to be written
PAGE: Final = 500  # changes that are read at once
AGAIN: Final = 2.0  # seconds until the stream is read again after a failure

logger = logging.getLogger(__name__)

Fields: TypeAlias = Mapping[bytes, bytes]


class KeptChanges:
    """The stream of changes: read once at the start, then appended to."""

    def __init__(self, endpoint: Endpoint, counts: Counter[str], most: int) -> None:
        self._most = most  # changes that the stream holds, approximately
        self._pool = ConnectionPool(endpoint, "bls-console", timeout=5.0)
        self._counts = counts
        self._waiting: deque[Fields] = deque()
        self._more = anyio.Event()
        self._reminders = Reminders()

    async def load(self) -> list[Fields]:
        """Read all kept changes, oldest first; wait for Redis, but not for a right."""
        while True:
            try:
                return await self._read()
            except RedisRefusedError as error:
                text = "earlier status changes cannot be read from %s: %s"
                logger.warning(text, KEY, error)
                return []
            except RedisUnavailableError:
                await anyio.sleep(AGAIN)

    async def _read(self) -> list[Fields]:
        entries: list[Fields] = []
        end = "+"
        while len(entries) < self._most:
            args = (end, "-", "COUNT", PAGE)
            page = await self._pool.read(KEY, "XREVRANGE", *args)
            entries += (dict(zip(one[::2], one[1::2], strict=True)) for _, one in page)
            if len(page) < PAGE:
                break
            end = f"({page[-1][0].decode()}"
        return entries[: self._most][::-1]

    def put(self, change: Fields) -> None:
        if len(self._waiting) >= MOST:
            self._waiting.popleft()
            self._counts["changes_not_kept"] += 1
        self._waiting.append(change)
        self._more.set()

    async def run(self) -> None:
        """Append changes in order; repeat each one until Redis has taken it."""
        backoff = Backoff()
        while True:
            if not self._waiting:
                self._more = anyio.Event()
                await self._more.wait()
            change = self._waiting[0]
            try:
                fields = chain.from_iterable(change.items())
                await self._pool.call(
                    KEY, "XADD", "MAXLEN", "~", self._most, "*", *fields
                )
            except RedisUnavailableError as error:
                if self._reminders.is_due("changes"):
                    text = "status changes are not kept in %s: %s; it is tried again"
                    logger.warning(text, KEY, error)
                await anyio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            if self._waiting[0] is change:  # put() may have dropped it meanwhile
                self._waiting.popleft()

    async def aclose(self) -> None:
        await self._pool.aclose()
