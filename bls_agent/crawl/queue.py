"""The request queue that the crawlers of a project share."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterable
from typing import ClassVar, Final, Literal

from bls_agent.connection.access import LoopLocal, RedisOrAgent, Store
from bls_agent.connection.endpoint import Argument, Reply, Request
from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.core.checks import check_count, check_seconds
from bls_agent.core.codec import (
    decode_object,
    encode_strictly,
    json_or_text,
    text_of,
)
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import checked_reply, slot_of
from bls_agent.core.redaction import redact
from bls_agent.crawl.exchange import (
    FAILED_KEPT,
    Action,
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

logger: logging.Logger = logging.getLogger(__name__)

SHORTEST_LEASE: Final = 0.5  # seconds
LONGEST_LEASE: Final = 86_400.0
LONGEST_DELAY: Final = 60.0  # seconds between two attempts
PAGE: Final = 100  # entries of the failed list that are read at once


class _Take:
    """The block in which a task holds a request. Leaving it settles the request."""

    def __init__(self, queue: RequestQueue, timeout: float | None) -> None:
        self._queue = queue
        self._timeout = timeout
        self._taken: TakenRequest | None = None

    async def __aenter__(self) -> TakenRequest | None:
        exchange, self._taken = self._queue.exchange, None
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
            await taken.fail(error)
        else:
            await taken.give_back()


class TakenRequest:
    """A request that this worker holds; :meth:`RequestQueue.take` yields it.

    Attributes:
        request: The request to fetch.
        attempt: 1 for the first attempt.
        priority: The priority when the request was taken. Each retry adds 1.
        settled: Whether this object has acknowledged, failed or returned the request.
    """

    def __init__(self, exchange: Exchange, held: Held, request: CrawlRequest) -> None:
        self.request = request
        self.attempt: int = held.attempt
        self.priority: float = held.priority
        self.settled: bool = False
        self._exchange = exchange
        self._held = held

    def __repr__(self) -> str:
        return f"<TakenRequest {self.request.method} {redact(self.request.url)}>"

    @property
    def valid(self) -> bool:
        """Whether it is certain that no other worker has the request.

        Check this value before an action that must not happen twice. The value becomes
        ``False`` if the lease is not renewed in time, for example because Redis is
        unreachable or this process was frozen.
        """
        return not self.settled and boot_seconds() < self._held.valid_until

    async def ack(self) -> bool:
        """Finish the request and remove it from Redis.

        Wait for Redis for up to the queue's ``timeout``. While Redis is unreachable, the
        acknowledgement is repeated in the background until the lease ends.

        Returns:
            Whether this worker still held the request. ``False`` means that another
            worker may do the request again, because the lease was lost or Redis has not
            confirmed in time. ``False`` is also returned for a request that was settled
            before.
        """
        if not self._held.token and not self.settled:
            self.settled = True
            return True
        return await self._settle(Action.ACK, "1" if self.attempt > 1 else "")

    async def fail(self, reason: object) -> bool:
        """Queue the request again after a delay, with priority + 1.

        After ``max_retries`` retries the request goes into the failed list instead. In
        mode ``simple``, it goes there at the first failure. The list stores up to 2,000
        bytes of the reason, with secrets masked.

        Args:
            reason: A text, or the exception that was raised. Any other value is
                converted to a text, so that this call does not break the block.

        Returns:
            The same value as :meth:`ack`.
        """
        options = self._exchange.options
        if self._held.token and self.attempt <= options.max_retries:
            doublings = min(self.attempt - 1, 1_000)  # 2 ** 1_024 exceeds a float
            delay = min(LONGEST_DELAY, options.retry_delay * 2**doublings)
            jittered = delay * random.uniform(0.5, 1.0)  # noqa: S311 - the delay is no secret
            return await self._settle(Action.RETRY, int(jittered * 1000))
        entry = self._held.failed_entry(_reason_of(reason))
        return await self._settle(Action.FAIL, entry)

    async def give_back(self) -> bool:
        """Return the request to its old position in the queue.

        The attempt does not count.

        Returns:
            The same value as :meth:`ack`.
        """
        if self.settled:
            return False
        self.settled = True
        return await self._exchange.give_back(self._held)

    async def _settle(self, action: Action, value: Argument) -> bool:
        if self.settled:
            return False
        self.settled = True
        return await self._exchange.settle(Settlement(action, self._held, value))


class RequestQueue(Store):
    """A queue of requests that many workers share, stored under the keys of the protocol.

    The request with the lowest priority is taken first, and the oldest among equal
    priorities. A worker holds a request by a lease, which ends by the server's clock.
    If the worker dies, freezes or loses its connection, its requests return to the
    queue within ``lease`` seconds, with priority + 1. So each request is done at least
    once. It is done twice only if its worker lost the lease. Every step is one script,
    because no crash may leave a request without its body or a fingerprint without its
    request.

    A queue works with and without ``async with``, in any event loop, for any number of
    tasks. Commands of several tasks are sent in one write. Closing the queue returns
    the requests that are still held. After a fork the child process holds no request.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``; ``None`` for
            ``BLS_REDIS_URL``.
        project: Name of the project, without ``:``. On a Redis Cluster it needs a hash
            tag, such as ``{新闻}``, so that all keys of the queue share a slot.
        spider: Name of the spider; ``None`` for the queue of the whole project.
        lease: Seconds after the last renewal until a request returns to the queue.
        max_retries: How often a failed request is tried again before it goes into the
            failed list.
        mode: ``leased`` or ``simple``. In mode ``simple``, which the protocol
            describes, a request leaves Redis when it is taken, and is lost if its
            worker dies.
        retry_delay: Seconds before the first retry. Each further retry doubles the
            delay, up to 60 seconds.
        timeout: Deadline of one command to Redis in seconds.

    Raises:
        ConfigurationError: An argument has a value that is not allowed.
    """

    client_name: ClassVar[str] = "bls-crawl"

    def __init__(
        self,
        redis: RedisOrAgent | None,
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
        self.project: str = manager.project_name
        self.spider: str | None = manager.spider_name
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
        """The object that sends this queue's calls in the running event loop.

        Raise ConfigurationError if the keys lie in several slots of a Redis Cluster.
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
        unique: bool = False,  # noqa: FBT001, FBT002 - the protocol has it positional
    ) -> bool:
        """Queue a request.

        Args:
            request: The request to fetch.
            priority: The request with the lowest priority is taken first.
            unique: Whether to queue the request only if its :func:`fingerprint` is new.
                Redis checks and queues in one atomic step.

        Returns:
            Whether the request was queued; ``False`` for a duplicate.

        Raises:
            ConfigurationError: The priority is not a finite number, or ``request`` is
                not a :class:`CrawlRequest`.
            RedisUnavailableError: The request was not queued. If ``error.ambiguous`` is
                true, it may have been queued; push it again with ``unique`` if it
                must not be queued twice.
            WrongTypeError: A key holds another type than the protocol defines.
        """
        push = _make_push(_score(priority), request, unique=unique)
        return bool((await self.exchange.pusher.push((push,)))[0])

    async def push_many(
        self,
        requests: Iterable[CrawlRequest],
        priority: float = 0,
        unique: bool = False,  # noqa: FBT001, FBT002 - the protocol has it positional
    ) -> int:
        """Queue many requests, up to 500 in one atomic step.

        Raise the same exceptions as :meth:`push`. Requests of the steps before an
        exception stay queued.

        Returns:
            How many requests were queued.
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
        """Take the next request and hold it during an ``async with`` block.

        The lease is renewed during the block. Leaving the block acknowledges the
        request. An exception in the block calls :meth:`TakenRequest.fail` and is
        raised again. A cancellation returns the request to the queue. If the block has
        settled the request itself, leaving the block does nothing.

        Args:
            timeout: Seconds to wait for a request; 0 to check once, ``None`` to wait
                without limit, also while Redis is unreachable.

        Returns:
            A context manager that yields a :class:`TakenRequest`, or ``None`` if no
            request came in time.

        Raises:
            ConfigurationError: ``timeout`` is not a valid number of seconds.
            RedisUnavailableError: Redis is still unreachable when ``timeout`` ends.
                Raised on entering the block, like the next two.
            RedisRefusedError: Redis refuses a command. Raised without a wait.
            WrongTypeError: A key holds another type than the protocol defines.
        """
        if timeout:
            check_seconds("timeout", timeout, "0 or more seconds, or None")
        return _Take(self, timeout)

    async def size(self) -> int:
        """Count the requests that may be taken now.

        Raises:
            RedisUnavailableError: Redis cannot answer.
            WrongTypeError: A key holds another type than the protocol defines.
        """
        return int((await self._read(("requests", "ZCARD")))[0])

    async def stats(self) -> QueueStats:
        """Count the requests in the queue now, and those taken, retried and so on.

        Raise the same exceptions as :meth:`size`.
        """
        replies = await self._read(*STATS)
        async with self._access.pool.to(self._keys.by_row["requests"]) as connection:
            return QueueStats.read(replies, await connection.read("TIME"))

    async def failed(self, limit: int = 100) -> list[FailedRequest]:
        """Return entries of the failed list, the newest first.

        Args:
            limit: The most entries to return. The list keeps the last 10,000.

        Raises:
            ConfigurationError: ``limit`` is not between 1 and 10,000.
            RedisUnavailableError: Redis cannot answer.
            WrongTypeError: The key holds another type than the protocol defines.
        """
        check_count("limit", limit, most=FAILED_KEPT)
        (entries,) = await self._read(("failed", "LRANGE", -limit, -1))
        return [FailedRequest.read(raw) for raw in reversed(entries)]

    async def requeue_failed(self) -> int:
        """Queue the requests of the failed list again, the oldest first.

        Redis moves each request in one atomic step. Entries without a readable request
        stay in the list.

        Returns:
            How many requests were queued.

        Raises:
            RedisUnavailableError: Redis cannot answer. Requests that were moved before
                stay queued.
            WrongTypeError: A key holds another type than the protocol defines.
        """
        count = start = 0
        entries: list[bytes] = [b""] * PAGE
        while len(entries) == PAGE and count + start < FAILED_KEPT:
            (entries,) = await self._read(("failed", "LRANGE", start, start + PAGE - 1))
            found = map(FailedRequest.read, entries)
            moved = await self._push(
                Push(_score(one.priority), _body_of(one), "", one.raw)
                for one in found
                if one.request is not None
            )
            count += moved
            start += len(entries) - moved
        return count

    async def _read(self, *questions: tuple[str | int, ...]) -> list[Reply]:
        """Read several keys. A question is a name of ``by_row``, command, arguments."""
        self._check_slots()
        keys = [self._keys.by_row[str(row)] for row, *_ in questions]
        requests: list[Request] = [
            (command, key, *rest)
            for (_, command, *rest), key in zip(questions, keys, strict=True)
        ]
        replies = await self._access.pool.read_many(requests)
        return [checked_reply(*one) for one in zip(replies, keys, strict=True)]

    async def aclose(self) -> None:
        """Return the requests that this event loop holds, and close its connections."""
        exchange = self._by_loop.pop()
        if exchange is not None:
            await exchange.aclose()
        await super().aclose()


def _reason_of(reason: object) -> str:
    """Return the reason of a failure as a text."""
    if isinstance(reason, BaseException):
        return f"{type(reason).__name__}: {text_of(reason)}"
    return json_or_text(reason)


def _body_of(failed: FailedRequest) -> bytes:
    """Return the request with the fields that only other programs know."""
    return encode_strictly("request", decode_object(failed.raw)["request"])


def _make_push(score: str, request: object, *, unique: bool) -> Push:
    """Encode a request. Raise ConfigurationError for any other object."""
    if not isinstance(request, CrawlRequest):  # a ``str`` has ``encode``, too
        rule, remedy = "a queue takes requests", "Pass CrawlRequest(url)."
        raise ConfigurationError("request", request, rule, remedy)
    return Push(score, request.encode(), fingerprint(request) if unique else "")


def _score(priority: float) -> str:
    """Format a priority for Redis. Raise ConfigurationError if it is not finite."""
    if type(priority) not in (int, float) or not abs(priority) <= sys.float_info.max:
        rule = "a finite number; the lowest is taken first"
        raise ConfigurationError("priority", priority, rule)
    return repr(float(priority))
