"""An outage of Redis: from the first failure that is noticed to a new connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


class Outage:
    """Measures how long Redis is unreachable for the connections that share the object.

    The end of an outage is logged once, but only if a try to connect has failed or a
    warning was logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._noticed = False
        self.quiet = False  # whether it logs nothing at all

    async def enter(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Try to connect. A success ends the outage.

        After a failure the end of the outage will be logged.
        """
        try:
            made = await connect()
        except Exception:
            self.begin()
            self.mark_noticed()
            raise
        self._end()
        return made

    def begin(self) -> None:
        """Begin the outage now, unless it has begun earlier."""
        if self._since is None:
            self._since = self._clock()

    def mark_noticed(self) -> None:
        """Record that the end of the current outage has to be logged."""
        self._noticed = self._since is not None

    def _end(self) -> None:
        if self._since is not None and self._noticed and not self.quiet:
            seconds = self._clock() - self._since
            decimals = 0 if seconds >= 10 else 1  # noqa: PLR2004 - from 10 s on no decimals
            logger.info("Redis answers again after %.*f s", decimals, seconds)
        self._since, self._noticed = None, False
