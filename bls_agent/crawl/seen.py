"""The filters that find duplicate requests and duplicate items."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from bls_agent.connection.access import RedisOrAgent, Store
from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.connection.pool import MANY
from bls_agent.connection.scripts import ADD_SEEN
from bls_agent.core.checks import check_seconds, refuse_text, to_number
from bls_agent.core.errors import (
    ConfigurationError,
    DuplicateItem,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.crawl.fingerprint import CrawlRequest, fingerprint, item_fingerprint
from bls_agent.crawl.keys import CrawlSettings, RedisKeyManager, read_flag

_Item = TypeVar("_Item")

_ROWS: Final = {"request": "crawl_filter_fingerprint", "item": "crawl_item_fingerprint"}
# ``on_error`` → whether a fingerprint counts as new while Redis is unreachable.
_ANSWERS: Final = {"raise": None, "new": True, "seen": False}


class SeenFilter(Store):
    """Finds out which fingerprints are new. Many processes share one filter.

    Any number of processes may add the same fingerprint at once. The fingerprint is new
    for exactly one of these processes. If the connection is lost before the reply
    arrives, Redis may have added the fingerprint; adding it again then returns ``False``.
    A filter works with and without ``async with``, in any event loop.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``; ``None`` for
            ``BLS_REDIS_URL``, which is read at the first request.
        project: Name of the project.
        spider: Name of the spider; ``None`` for the project alone.
        ttl: Seconds from the first fingerprint until all fingerprints are forgotten;
            ``None`` to keep them for ever.
        kind: ``"request"`` for the key that ends in ``filter:fingerprint``, ``"item"``
            for the key that ends in ``item:fingerprint``.
        bloom: Whether to use a Bloom filter, under a key of this package, instead of the
            protocol's set. A Bloom filter needs only a few bits for each fingerprint,
            but reports about one in a hundred new fingerprints as seen. For another
            rate, create the key with ``BF.RESERVE`` before. The server needs the module
            valkey-bloom or RedisBloom.
        on_error: What to do while Redis is unreachable. ``"raise"`` raises the error.
            ``"new"`` and ``"seen"`` report every fingerprint as new or as seen. If
            Redis refuses a request, the error is always raised.
        timeout: Deadline of one request in seconds.

    Attributes:
        key: The key of the set or Bloom filter in Redis.

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
        ttl: float | None = None,
        kind: Literal["request", "item"] = "request",
        bloom: bool = False,
        on_error: Literal["raise", "new", "seen"] = "raise",
        timeout: float = 5.0,
    ) -> None:
        super().__init__(redis, timeout=timeout)
        if kind not in _ROWS:
            raise ConfigurationError("kind", kind, f"one of {', '.join(_ROWS)}")
        if on_error not in _ANSWERS:
            rule = f"one of {', '.join(_ANSWERS)}"
            raise ConfigurationError("on_error", on_error, rule)
        self._answer = _ANSWERS[on_error]
        self._ttl = None
        if ttl is not None:
            self._ttl = max(1, round(check_seconds("ttl", ttl) * 1_000))
        self._bloom = bloom
        manager = RedisKeyManager(project, spider)
        if bloom:
            self.key: str = manager.get_own_key("crawl_bloom", _ROWS[kind])
        elif kind == "item":
            self.key = manager.get_item_fingerprint_key()
        else:
            self.key = manager.get_filter_fingerprint_key()

    async def add(self, fingerprint: str | CrawlRequest) -> bool:
        """Add one fingerprint, in one atomic step. Return whether it was new.

        Args:
            fingerprint: Any text, or a request, whose fingerprint is computed here.

        Raises:
            RedisUnavailableError: Redis did not reply, and ``on_error`` is ``"raise"``.
            RedisRefusedError: Redis refused the request, for example because the user
                lacks a permission.
            WrongTypeError: The key holds another type; its value was not changed.
            ConfigurationError: The argument is not a fingerprint, or the server has no
                Bloom filters.
        """
        return (await self.add_many([fingerprint]))[0]

    async def add_many(self, fingerprints: Iterable[str | CrawlRequest]) -> list[bool]:
        """Add many fingerprints. Raise the same exceptions as :meth:`add`.

        Each fingerprint is checked and added atomically. Up to 1,000 fingerprints are
        sent in one write.

        Returns:
            Whether each fingerprint was new, in the order of the argument.
        """
        refuse_text("fingerprints", fingerprints)
        members, pool = [_member(one) for one in fingerprints], self._access.pool
        verb = "BF.ADD" if self._bloom else "SADD"
        replies: list[Reply] = []
        try:
            while len(replies) < len(members):
                part = members[len(replies) : len(replies) + MANY]
                if self._ttl is None:
                    requests = [(verb, self.key, member) for member in part]
                    replies += await pool.call_many(requests)
                else:
                    runs = [([self.key], (self._ttl, verb, one)) for one in part]
                    replies += await ADD_SEEN.run_many(pool, runs)
        except RedisUnavailableError as error:
            error.ambiguous |= bool(replies)  # earlier parts were executed
            replies += [error] * (len(members) - len(replies))
        return [bool(self._checked(reply, self._answer)) for reply in replies]

    async def contains(self, fingerprint: str | CrawlRequest) -> bool:
        """Return whether a fingerprint was added before.

        Raise the same exceptions as :meth:`add`.
        """
        verb = "BF.EXISTS" if self._bloom else "SISMEMBER"
        missing = None if self._answer is None else not self._answer
        return bool(await self._read(verb, _member(fingerprint), missing=missing))

    async def size(self) -> int:
        """Count the fingerprints.

        A Bloom filter does not count new fingerprints that it has reported as seen.

        Raise the same exceptions as :meth:`add` with ``on_error="raise"``.
        """
        return int(await self._read("BF.CARD" if self._bloom else "SCARD"))

    async def clear(self) -> None:
        """Remove the key, and with it all fingerprints.

        Raises:
            RedisUnavailableError: Redis did not reply, or refused the removal.
        """
        await self._access.pool.call(self.key, "UNLINK")

    async def _read(
        self, verb: str, *rest: Argument, missing: bool | None = None
    ) -> Any:
        reply: Reply
        try:
            reply = await self._access.pool.read(self.key, verb, *rest)
        except RedisUnavailableError as error:
            reply = error
        return self._checked(reply, missing)

    def _checked(self, reply: Reply, missing: Reply) -> Reply:
        """Return a reply, or ``missing`` if Redis was unreachable. Raise a refusal."""
        if not isinstance(reply, RedisUnavailableError):
            return reply
        if reply.kind == "wrong_type":
            expected = "a Bloom filter" if self._bloom else "set"
            raise WrongTypeError(self.key, expected) from reply
        if reply.kind == "unknown_command" and self._bloom:
            rule = "the server has no Bloom filters"
            remedy = "Load valkey-bloom or RedisBloom into it, or leave bloom=False."
            raise ConfigurationError("bloom", "True", rule, remedy) from reply
        if isinstance(reply, RedisRefusedError) or missing is None:
            raise reply
        return missing


def _member(one: str | CrawlRequest) -> bytes:
    text = fingerprint(one) if isinstance(one, CrawlRequest) else one
    try:
        member = text.encode()
    except (AttributeError, UnicodeEncodeError):
        member = b""
    if not member:
        rule, remedy = "a fingerprint is text", "Pass fingerprint(request)."
        raise ConfigurationError("fingerprint", one, rule, remedy)
    return member


class DedupPipeline:
    """Lets each item pass once. Works as an item pipeline of Scrapy and without Scrapy.

    Args:
        seen: The filter for the fingerprints of items, with ``kind="item"``.
        cleanup: Whether closing the pipeline removes all fingerprints.
        identify: Function that makes the fingerprint of an item. By default the
            fingerprint covers the whole item.

    Attributes:
        dropped: The exception class that is raised, with the fingerprint, for an item
            that has passed before.
    """

    dropped: ClassVar[type[Exception]] = DuplicateItem

    def __init__(
        self,
        seen: SeenFilter,
        *,
        cleanup: bool = False,
        identify: Callable[[Any], str] = item_fingerprint,
    ) -> None:
        self._seen = seen
        self._cleanup = cleanup
        self._identify = identify

    @classmethod
    def from_settings(cls, settings: CrawlSettings) -> Self:
        """Make a pipeline from settings.

        Args:
            settings: Any object with ``get(name, default)``. All settings are optional:
                ``REDIS_URL`` or ``BLS_REDIS_URL``, ``PROJECT_NAME``, ``SPIDER_NAME``,
                ``REDIS_TTL`` in seconds (0 or ``None`` to keep fingerprints for ever)
                and ``CLEANUP_REDIS_DATA``.

        Raises:
            ConfigurationError: A setting has a value that is not allowed.
        """
        manager = RedisKeyManager.from_settings(settings)
        url = settings.get("REDIS_URL", None) or settings.get("BLS_REDIS_URL", None)
        given = settings.get("REDIS_TTL", None)
        ttl = to_number("REDIS_TTL", given or 0, float) or None
        project, spider = manager.project_name, manager.spider_name
        seen = SeenFilter(url, project, spider, ttl=ttl, kind="item")
        return cls(seen, cleanup=read_flag(settings, "CLEANUP_REDIS_DATA"))

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        """Make a pipeline from ``crawler.settings``, as :meth:`from_settings` does."""
        return cls.from_settings(crawler.settings)

    async def process_item(self, item: _Item, spider: object = None) -> _Item:  # noqa: ARG002 - Scrapy passes it
        """Return the item if it is new.

        Raises:
            DuplicateItem: An equal item has passed before.
            ConfigurationError: The item cannot be written as JSON.
            RedisUnavailableError: Redis did not reply; see :meth:`SeenFilter.add`.
        """
        known = self._identify(item)
        if not await self._seen.add(known):
            raise self.dropped(known)
        return item

    async def close_spider(self, spider: object = None) -> None:  # noqa: ARG002 - Scrapy passes it
        """Close the connection. With ``cleanup``, remove all fingerprints before."""
        try:
            if self._cleanup:
                await self._seen.clear()
        finally:
            await self._seen.aclose()

    async def aclose(self) -> None:
        """Close the pipeline in the same way as :meth:`close_spider`."""
        await self.close_spider()
