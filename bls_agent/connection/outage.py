"""An outage of Redis, from the first lost connection to the first new one."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


class Outage:
    """How long Redis has been unreachable, for all connections that share the object.

    The end of an outage is logged once, but only if the outage was noticed: a try to
    connect failed, or a warning was logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._noticed = False
        self.quiet = False  # whether it logs nothing at all

    async def enter(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Try to connect: success ends the outage, failure makes it worth reporting."""
        try:
            made = await connect()
        except Exception:
            self.begin()
            self.mark_noticed()
            raise
        self._end()
        return made

    def begin(self) -> None:
        """Record when the connections were lost, unless the outage began earlier."""
        if self._since is None:
            self._since = self._clock()

    def mark_noticed(self) -> None:
        """Make the end of the current outage worth reporting."""
        self._noticed = self._since is not None

    def _end(self) -> None:
        if self._since is not None and self._noticed and not self.quiet:
            seconds = self._clock() - self._since
            decimals = 0 if seconds >= 10 else 1  # noqa: PLR2004 - two digits
            logger.info("Redis answers again after %.*f s", decimals, seconds)
        self._since, self._noticed = None, False
