"""The request queue that the crawlers of a project share."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from bls_agent.access import Store
from bls_agent.crawl.fingerprint import CrawlRequest

__all__ = ["FailedRequest", "QueueStats", "RequestQueue", "TakenRequest"]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a queue holds now, and what happened to it so far.

    Attributes:
        waiting: Requests that may be taken now.
        delayed: Requests that are tried again at the end of their backoff.
        in_flight: Requests in the hands of a worker.
        failed: Requests in the failed list.
        pushed: Requests that were ever queued, duplicates not counted.
        taken: How often a request was taken.
        acknowledged: Requests that were finished.
        retried: How often a request was queued again after a failure.
        expired: How often the lease of a request ended, because its worker died.
        seen_at: The server's clock, in seconds since 1970; for rates.
    """

    waiting: int
    delayed: int
    in_flight: int
    failed: int
    pushed: int
    taken: int
    acknowledged: int
    retried: int
    expired: int
    seen_at: float


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """One entry of the failed list.

    Attributes:
        request: What failed; ``None`` where no request can be read.
        reason: Why, of the last attempt.
        attempts: How often it was tried.
        failed_at: Of the last attempt, in seconds since 1970, by the server's clock.
        priority: With which it was queued.
        raw: The entry as it stands in Redis.
    """

    request: CrawlRequest | None
    reason: str
    attempts: int
    failed_at: float
    priority: float
    raw: bytes


class TakenRequest:
    """A request in the hands of this worker."""

    request: CrawlRequest
    attempt: int  # 1 for the first
    priority: float

    @property
    def valid(self) -> bool:
        """Whether the lease is surely still ours."""
        raise NotImplementedError

    async def ack(self) -> bool:
        """Finish the request; say whether it was still ours."""
        raise NotImplementedError

    async def fail(self, reason: str) -> bool:
        """Have the request tried again after a backoff, or put into the failed list."""
        raise NotImplementedError

    async def give_back(self) -> bool:
        """Put the request back where it was; the attempt does not count."""
        raise NotImplementedError


class RequestQueue(Store):
    """A queue of requests; see docs/crawl.md."""

    def __init__(
        self,
        redis: object,
        project: str,
        spider: str | None = None,
        *,
        lease: float = 60.0,
        max_retries: int = 3,
        mode: str = "leased",
        timeout: float = 5.0,
    ) -> None:
        """Remember where the queue is; nothing is opened yet."""
        super().__init__(redis, timeout=timeout)

    async def push(
        self, request: CrawlRequest, priority: float = 0, unique: bool = False
    ) -> bool:
        """Queue a request; say whether it was new."""
        raise NotImplementedError

    async def push_many(
        self,
        requests: Iterable[CrawlRequest],
        priority: float = 0,
        unique: bool = False,
    ) -> int:
        """Queue many requests; say how many were new."""
        raise NotImplementedError

    def take(
        self, timeout: float | None = None
    ) -> AbstractAsyncContextManager[TakenRequest | None]:
        """Take the next request for as long as the block lasts."""
        raise NotImplementedError

    async def size(self) -> int:
        """Count the requests that may be taken now."""
        raise NotImplementedError

    async def stats(self) -> QueueStats:
        """Tell what the queue holds, and what happened to it."""
        raise NotImplementedError

    async def failed(self, limit: int = 100) -> list[FailedRequest]:
        """Give the newest entries of the failed list, the newest first."""
        raise NotImplementedError

    async def requeue_failed(self) -> int:
        """Queue what failed once more; say how many."""
        raise NotImplementedError
