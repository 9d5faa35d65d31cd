"""A request in the hands of a worker."""

from __future__ import annotations

import random
from typing import Final

from bls_agent.connection.endpoint import Argument
from bls_agent.core.redaction import redact
from bls_agent.crawl.exchange import Exchange
from bls_agent.crawl.fingerprint import CrawlRequest
from bls_agent.crawl.records import Held, Settlement
from bls_agent.runtime.lease import boot_seconds

__all__ = ["TakenRequest"]

LONGEST_DELAY: Final = 60.0  # seconds between two attempts


class TakenRequest:
    """A request in the hands of this worker, as :meth:`RequestQueue.take` gives it.

    Attributes:
        request: What to fetch.
        attempt: 1 for the first.
        priority: With which it was taken; each retry adds 1.
        settled: Whether it was acknowledged, failed or given back here.
    """

    def __init__(self, exchange: Exchange, held: Held, request: CrawlRequest) -> None:
        """Remember what was taken."""
        self.request = request
        self.attempt = held.attempt
        self.priority = held.priority
        self.settled = False
        self._exchange = exchange
        self._held = held

    def __repr__(self) -> str:
        return f"<TakenRequest {self.request.method} {redact(self.request.url)}>"

    @property
    def valid(self) -> bool:
        """Whether surely no other worker has the request.

        Look at it before anything that must not happen twice: it becomes ``False``
        when Redis could not renew the lease in time or when this process stood still.
        """
        return not self.settled and boot_seconds() < self._held.valid_until

    async def ack(self) -> bool:
        """Finish the request: it is removed from Redis.

        Waits for ``timeout`` seconds of the queue at most. While Redis is away the
        end is sent again in the background, until the lease is over.

        Returns:
            Whether it was still ours; ``False``: another worker does it again. Also
            when that could not be found out in time.
        """
        if not self._held.token:
            self.settled = True
            return True
        return await self._settle("ack", "1" if self.attempt > 1 else "")

    async def fail(self, reason: str) -> bool:
        """Have the request tried again after a delay, with priority + 1.

        After ``max_retries`` retries, and in mode ``simple`` at once, it goes into the
        failed list instead.

        Args:
            reason: Why; secrets are taken out, 2,000 bytes are kept.

        Returns:
            As :meth:`ack`.
        """
        options = self._exchange.options
        if self._held.token and self.attempt <= options.max_retries:
            delay = min(LONGEST_DELAY, options.retry_delay * 2 ** (self.attempt - 1))
            jittered = delay * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            return await self._settle("retry", int(jittered * 1000))
        return await self._settle("fail", self._held.failed_entry(reason))

    async def give_back(self) -> bool:
        """Put the request back to its place; the attempt does not count.

        In mode ``simple`` it goes behind those of its priority.

        Returns:
            As :meth:`ack`.

        Raises:
            RedisUnavailableError: In mode ``simple`` alone: it is lost then.
        """
        if self.settled:
            return False
        self.settled = True
        return await self._exchange.give_back(self._held)

    async def _settle(self, what: str, value: Argument) -> bool:
        if self.settled:
            return False
        self.settled = True
        return await self._exchange.settle(Settlement(what, self._held, value))
