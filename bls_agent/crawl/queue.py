"""The request queue that the crawlers of a project share."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterable
from typing import ClassVar, Final, Literal

from bls_agent.connection.access import LoopLocal, Store
from bls_agent.connection.endpoint import Argument, Reply, Request
from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import checked_reply, slot_of
from bls_agent.core.redaction import redact
from bls_agent.core.settings import check_seconds
from bls_agent.crawl.exchange import (
    FAILED_KEPT,
    Exchange,
    Held,
    QueueOptions,
    Settlement,
)
from bls_agent.crawl.fingerprint import CrawlRequest, fingerprint
from bls_agent.crawl.keys import QueueKeys, RedisKeyManager
from bls_agent.crawl.overview import STATS, FailedRequest, QueueStats
from bls_agent.crawl.pusher import MOST_BYTES, MOST_PUSHES, Push
from bls_agent.runtime.lease import boot_seconds

logger = logging.getLogger(__name__)

SHORTEST_LEASE: Final = 0.5  # seconds
LONGEST_LEASE: Final = 86_400.0
LONGEST_DELAY: Final = 60.0  # between two attempts
PAGE: Final = 100  # entries of the failed list that are read at once


class _Take:
    """The block in which this worker holds a request."""

    def __init__(self, queue: RequestQueue, timeout: float | None) -> None:
        self._queue = queue
        self._timeout = timeout
        self._taken: TakenRequest | None = None

    async def __aenter__(self) -> TakenRequest | None:
        exchange = self._queue.exchange
        held = await exchange.take(self._timeout)
        if held is not None and held.request is not None:
            self._taken = TakenRequest(exchange, held, held.request)
        return self._taken

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        taken = self._taken
        if taken is None or taken.settled:
            return
        if error is None:
            if not await taken.ack():
                logger.warning(
                    "%r: its end is not confirmed, it may be done again", taken
                )
        elif isinstance(error, Exception):
            await taken.fail(f"{type(error).__name__}: {error}")
        else:
            await taken.give_back()


class TakenRequest:
    """A request that this worker holds, as :meth:`RequestQueue.take` hands it out.

    Attributes:
        request: What to fetch.
        attempt: 1 for the first.
        priority: Its priority when it was taken; each retry adds 1.
        settled: Whether it was acknowledged, failed or given back here.
    """

    def __init__(self, exchange: Exchange, held: Held, request: CrawlRequest) -> None:
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
        """Whether certainly no other worker has the request.

        Check it before anything that must not happen twice: it is ``False`` once Redis
        could not renew the lease in time, or this process stood still.
        """
        return not self.settled and boot_seconds() < self._held.valid_until

    async def ack(self) -> bool:
        """Finish the request: it is removed from Redis.

        Waits for the queue's ``timeout`` at most. While Redis is away the end is sent
        again in the background, until the lease is over.

        Returns:
            Whether it was still ours; ``False``: another worker does it again, or that
            could not be found out in time.
        """
        if not self._held.token:
            self.settled = True
            return True
        return await self._settle("ack", "1" if self.attempt > 1 else "")

    async def fail(self, reason: str) -> bool:
        """Have the request tried again after a delay, with priority + 1.

        After ``max_retries`` retries, and in mode ``simple`` at once, it goes into the
        failed list instead.

        Secrets are taken out of the reason, 2,000 bytes of it are kept. Returns as
        :meth:`ack`.
        """
        options = self._exchange.options
        if self._held.token and self.attempt <= options.max_retries:
            delay = min(LONGEST_DELAY, options.retry_delay * 2 ** (self.attempt - 1))
            jittered = delay * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            return await self._settle("retry", int(jittered * 1000))
        return await self._settle("fail", self._held.failed_entry(reason))

    async def give_back(self) -> bool:
        """Put the request back to its place; the attempt does not count.

        Returns as :meth:`ack`.
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


class RequestQueue(Store):
    """A queue of requests that many workers share, in the document's keys.

    The lowest priority comes first, and within one the oldest. A worker holds what it
    takes by a lease that the server's clock ends: the requests of a worker that died,
    froze or lost its connection return at most ``lease`` seconds later, with priority +
    1. So each request is done at least once, and twice only if its worker was cut off.
    Every step is one script: no crash leaves a request without its body or a
    fingerprint without its request.

    Works with and without ``async with``, in any event loop, for any number of tasks:
    what they ask at the same time leaves in one write. Leaving the block gives back
    what is still held. After a fork the child holds nothing.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``; ``None`` for
            ``BLS_REDIS_URL``.
        project: Name of the project, without ``:``. On a Redis Cluster it needs a hash
            tag, such as ``{新闻}``, so that all keys of the queue share a slot.
        spider: Name of the spider; ``None`` for the queue of the whole project.
        lease: Seconds until a request returns whose worker does not renew it any more.
        max_retries: How often a failed request is tried again before it goes into the
            failed list.
        mode: ``leased``, or ``simple``: a request is done as soon as it was taken, as
            the document has it, and is lost if its worker dies.
        retry_delay: Seconds before the first retry; doubled with each, 60 at most.
        timeout: Deadline of one request to Redis in seconds.

    Raises:
        ConfigurationError: One of these cannot be used.
    """

    client_name: ClassVar[str] = "bls-crawl"

    def __init__(
        self,
        redis: object,
        project: str,
        spider: str | None = None,
        *,
        lease: float = 60.0,
        max_retries: int = 3,
        mode: Literal["leased", "simple"] = "leased",
        retry_delay: float = 1.0,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(redis, timeout=timeout)
        manager = RedisKeyManager(project, spider)
        self.project, self.spider = manager.project_name, manager.spider_name
        self._namespace = manager.namespace
        rule = "between 0.5 seconds and a day"
        if not SHORTEST_LEASE <= check_seconds("lease", lease, rule) <= LONGEST_LEASE:
            raise ConfigurationError("lease", lease, rule)
        if type(max_retries) is not int or max_retries < 0:
            rule = "a whole number, 0 or more"
            raise ConfigurationError("max_retries", max_retries, rule)
        if mode not in ("leased", "simple"):
            raise ConfigurationError("mode", mode, "one of leased, simple")
        self._keys = QueueKeys.of(manager)
        self._options = QueueOptions(
            lease=lease,
            max_retries=max_retries,
            retry_delay=check_seconds("retry_delay", retry_delay),
            leased=mode == "leased",
            timeout=timeout,
        )
        self._throttled_log = ThrottledLog()
        self._by_loop: LoopLocal[Exchange] = LoopLocal(Exchange.detach)

    def __repr__(self) -> str:
        return f"<RequestQueue {self._namespace} {self._access.shown}>"

    @property
    def exchange(self) -> Exchange:
        """The exchange of the running event loop.

        ConfigurationError if the keys lie in several slots of a Redis Cluster.
        """
        return self._by_loop.get(self._make_exchange)

    def _make_exchange(self) -> Exchange:
        self._check_slots()
        pool = self._access.pool
        return Exchange(pool, self._keys, self._options, self._throttled_log)

    def _check_slots(self) -> None:
        keys = self._keys.by_row.values()
        if self._access.pool.is_cluster and len(set(map(slot_of, keys))) > 1:
            rule = "on a Redis Cluster all keys of a queue share one slot"
            remedy = f"Name it {{{self.project}}}: what is in braces chooses the slot."
            raise ConfigurationError("project", self.project, rule, remedy)

    async def push(
        self,
        request: CrawlRequest,
        priority: float = 0,
        unique: bool = False,  # noqa: FBT001, FBT002 - as the document's queue has it
    ) -> bool:
        """Queue a request.

        Args:
            request: What to fetch.
            priority: The lowest is taken first.
            unique: Whether to queue it only if its :func:`fingerprint` is new; test and
                write are one step.

        Returns:
            Whether it was queued; ``False`` for a duplicate.

        Raises:
            ConfigurationError: The priority is no finite number, or the request none.
            RedisUnavailableError: Nothing was queued, unless ``error.ambiguous``: then
                push it again with ``unique``, or risk that it is there twice.
            WrongTypeError: A key holds another type than the document says.
        """
        push = _make_push(_score(priority), request, unique=unique)
        return bool((await self.exchange.pusher.push((push,)))[0])

    async def push_many(
        self,
        requests: Iterable[CrawlRequest],
        priority: float = 0,
        unique: bool = False,  # noqa: FBT001, FBT002 - as push()
    ) -> int:
        """Queue many requests, up to 500 in one step; raises as :meth:`push`.

        Returns:
            How many were queued. After an error those of earlier steps are.
        """
        score = _score(priority)
        return await self._push(
            _make_push(score, request, unique=unique) for request in requests
        )

    async def _push(self, pushes: Iterable[Push]) -> int:
        count = size = 0
        batch: list[Push] = []
        for push in pushes:
            size += len(push.body)
            if batch and (len(batch) == MOST_PUSHES or size > MOST_BYTES):
                count += sum(await self.exchange.pusher.push(batch))
                batch, size = [], len(push.body)
            batch.append(push)
        if batch:
            count += sum(await self.exchange.pusher.push(batch))
        return count

    def take(self, timeout: float | None = None) -> _Take:
        """Take the next request, for as long as an ``async with`` block lasts.

        Leaving the block acknowledges the request. An exception fails it with its
        reason and goes on to the caller; a cancellation gives the request back. A
        request that was settled in the block by hand stays so. The lease is renewed
        meanwhile.

        Args:
            timeout: Seconds to wait for a request; 0 to look once, ``None`` to wait for
                ever, also while Redis is away.

        Returns:
            A block that yields a :class:`TakenRequest`; ``None`` if none came in time.

        Raises:
            ConfigurationError: ``timeout`` is no time.
            RedisUnavailableError: At the block's beginning: Redis was away when the
                time was over. :class:`RedisRefusedError` at once.
            WrongTypeError: At the block's beginning: as :meth:`push`.
        """
        if timeout:
            check_seconds("timeout", timeout, "0 or more seconds, or None")
        return _Take(self, timeout)

    async def size(self) -> int:
        """Count the requests that may be taken now.

        Raises:
            RedisUnavailableError: Redis cannot answer.
            WrongTypeError: As :meth:`push`.
        """
        return int((await self._read(("requests", "ZCARD")))[0])

    async def stats(self) -> QueueStats:
        """Return what it holds and what happened to it; raises as :meth:`size`."""
        replies = await self._read(*STATS)
        async with self._access.pool.to(self._keys.by_row["requests"]) as connection:
            return QueueStats.read(replies, await connection.read("TIME"))

    async def failed(self, limit: int = 100) -> list[FailedRequest]:
        """Return entries of the failed list, the newest first; raises as :meth:`size`.

        Args:
            limit: How many; the list keeps 10,000.

        Raises:
            ConfigurationError: ``limit`` is not between 1 and 10,000.
        """
        if not 1 <= limit <= FAILED_KEPT:
            raise ConfigurationError("limit", limit, f"between 1 and {FAILED_KEPT:,}")
        (entries,) = await self._read(("failed", "LRANGE", -limit, -1))
        return [FailedRequest.read(raw) for raw in reversed(entries)]

    async def requeue_failed(self) -> int:
        """Queue what is in the failed list once more, each in one step, oldest first.

        Entries without a readable request stay where they are.

        Returns:
            How many were queued.

        Raises:
            RedisUnavailableError: Redis cannot answer; what was queued stays queued.
            WrongTypeError: As :meth:`push`.
        """
        count = start = 0
        entries: list[bytes] = [b""] * PAGE
        while len(entries) == PAGE and count + start < FAILED_KEPT:
            (entries,) = await self._read(("failed", "LRANGE", start, start + PAGE - 1))
            found = map(FailedRequest.read, entries)
            moved = await self._push(
                Push(_score(one.priority), one.request.encode(), "", one.raw)
                for one in found
                if one.request is not None
            )
            count += moved
            start += len(entries) - moved
        return count

    async def _read(self, *questions: tuple[str | int, ...]) -> list[Reply]:
        """Read several keys, each by row, command and arguments."""
        self._check_slots()
        keys = [self._keys.by_row[str(row)] for row, *_ in questions]
        requests: list[Request] = [
            (command, key, *rest)
            for (_, command, *rest), key in zip(questions, keys, strict=True)
        ]
        replies = await self._access.pool.read_many(requests)
        return [checked_reply(*one) for one in zip(replies, keys, strict=True)]

    async def aclose(self) -> None:
        """Put back what this event loop holds, and close its connections."""
        exchange = self._by_loop.pop()
        if exchange is not None:
            await exchange.aclose()
        await super().aclose()


def _make_push(score: str, request: object, *, unique: bool) -> Push:
    """Encode a request; ConfigurationError for a ``str``, which has ``encode``, too."""
    if not isinstance(request, CrawlRequest):
        rule, remedy = "a queue takes requests", "Pass CrawlRequest(url)."
        raise ConfigurationError("request", request, rule, remedy)
    return Push(score, request.encode(), fingerprint(request) if unique else "")


def _score(priority: float) -> str:
    """Write a priority as Redis reads it; ConfigurationError if it is not finite."""
    if type(priority) not in (int, float) or not abs(priority) <= sys.float_info.max:
        rule = "a finite number; the lowest is taken first"
        raise ConfigurationError("priority", priority, rule)
    return repr(float(priority))
