"""Finds the crawls in Redis, counts their requests, and removes their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from bls_agent.connection.access import RedisOrAgent, Store
from bls_agent.connection.endpoint import Reply
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.codec import (
    JSONObject,
    decode_object,
    encode_strictly,
    json_or_text,
)
from bls_agent.core.errors import (
    ConfigurationError,
    DecodeError,
    RedisUnavailableError,
)
from bls_agent.core.keys import KEYS, checked_reply, escape_glob
from bls_agent.crawl.fingerprint import CrawlRequest
from bls_agent.crawl.keys import QueueKeys, RedisKeyManager, read_key

RETRIES: Final = "crawl_failed_retries"
ALL: Final = f"*{KEYS['crawl_requests'].template.partition('{')[0]}*"
STATS: Final = (  # the reads for QueueStats: row and command
    ("requests", "ZCARD"),
    ("delayed", "HLEN"),
    ("leases", "HLEN"),
    ("failed", "LLEN"),
    ("counters", "HGETALL"),
)


DIGITS: Final = 18  # most digits of a counter
COUNTERS: Final = ("pushed", "taken", "acknowledged", "retried", "expired")


class Namespace(NamedTuple):
    """The project and the spider of a crawl. ``spider`` may be ``None``."""

    project: str
    spider: str | None

    @property
    def shown(self) -> str:
        """The name in the form ``project`` or ``project:spider``."""
        return ":".join(filter(None, self))

    @classmethod
    def parse(cls, shown: str) -> Namespace:
        """Parse a name in the form of :attr:`shown`."""
        project, _, spider = shown.partition(":")
        return cls(project, spider or None)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The requests in a queue now, and counts since its creation or cleanup.

    Attributes:
        waiting: Requests that may be taken now.
        delayed: Requests that are tried again at the end of their delay.
        in_flight: Requests that workers hold.
        failed: Requests in the failed list.
        pushed: Requests that were queued; duplicates are not counted.
        taken: How often a request was taken.
        acknowledged: Requests that were finished.
        retried: How often a request was queued again after a failure.
        expired: How often a lease ended because its worker no longer renewed the lease.
        seen_at: The time of these counts by the server's clock, in seconds since 1970.
            Use it to compute rates.
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

    @classmethod
    def read(cls, replies: Sequence[Reply], clock: Reply) -> QueueStats:
        """Make the counts from the replies to :data:`STATS` and to ``TIME``."""
        waiting, delayed, in_flight, failed, pairs = replies
        counters = dict(zip(pairs[::2], pairs[1::2], strict=True))
        fields = {name: counters.get(name.encode(), b"0") for name in COUNTERS}
        counts = {name: _count(text) for name, text in fields.items()}
        seen_at = int(clock[0]) + int(clock[1]) / 1e6
        return cls(waiting, delayed, in_flight, failed, **counts, seen_at=seen_at)


def _count(text: bytes) -> int:
    """Return a counter, and 0 for what HINCRBY cannot have written."""
    return int(text) if text.isdigit() and len(text) <= DIGITS else 0


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """One entry of the failed list.

    Attributes:
        request: The request that failed; ``None`` if the entry has no readable request.
        reason: Why the last attempt failed.
        attempts: Number of attempts; 0 if the entry has no readable number.
        failed_at: Time of the last failure, in seconds since 1970.
        priority: The priority of the request when it was last taken.
        raw: The entry as stored in Redis.
    """

    request: CrawlRequest | None
    reason: str
    attempts: int
    failed_at: float
    priority: float
    raw: bytes

    @classmethod
    def read(cls, raw: bytes) -> FailedRequest:
        """Decode an entry. If this fails, ``raw`` still holds the entry's bytes."""
        entry: JSONObject = {"reason": "the entry cannot be read"}
        request = None
        with suppress(DecodeError, ConfigurationError):  # the latter if it is too deep
            entry = decode_object(raw)
            if entry.get("request"):
                request = CrawlRequest.decode(
                    encode_strictly("request", entry["request"])
                )

        def number(name: str) -> float:
            value = entry.get(name)
            return float(value) if isinstance(value, int | float) else 0.0

        return cls(
            request,
            json_or_text(entry.get("reason", "")),
            int(number("attempts")),
            number("failed_at"),
            number("priority"),
            raw,
        )


class QueueView(NamedTuple):
    """The counts of one queue, or the reason why Redis refused them."""

    name: Namespace  # project and spider of the queue
    stats: QueueStats | None  # the counts; ``None`` if Redis refused to count
    problem: str = ""  # ``wrong_type`` or ``no_permission`` if Redis refused to count


class QueueOverview(Store):
    """Finds crawl queues and counts their requests. Writes nothing to Redis.

    All queues are counted over one connection, up to 1,000 requests in one write.
    """

    client_name: ClassVar[str] = "bls-crawl"

    @property
    def pool(self) -> ConnectionPool:
        """The connections of the running event loop. The first request opens them."""
        return self._access.pool

    async def find(self) -> list[Namespace]:
        """Find the crawls that have any key. Run SCAN, in a cluster on each master."""
        found: set[Namespace] = set()
        async for key in self.pool.scan(ALL):
            retries = KEYS[RETRIES].parse(key)  # a namespace may have many such keys
            if retries and _namespace_of(retries) in found:
                continue
            if read := read_key(key):
                found.add(Namespace(read.project, read.spider))
        return sorted(found, key=lambda one: (one.project, one.spider or ""))

    async def read(self, names: Sequence[Namespace]) -> list[QueueView]:
        """Count the requests in each of the named queues.

        Raise ConfigurationError if no queue can have such a name. Raise
        RedisUnavailableError if Redis cannot answer, or refuses every queue.
        """
        if not names:
            return []
        pool = self.pool
        keys = [QueueKeys.of(RedisKeyManager(*name)).by_row for name in names]
        requests = [(name, by_row[row]) for by_row in keys for row, name in STATS]
        async with pool.to(keys[0]["requests"]) as connection:
            clock = await connection.read("TIME")
        replies = await pool.read_many(requests)
        parts = zip(*[iter(replies)] * len(STATS), strict=True)
        views: list[QueueView] = []
        refused: list[RedisUnavailableError] = []
        for name, part in zip(names, parts, strict=True):
            errors = (one for one in part if isinstance(one, RedisUnavailableError))
            error = next(errors, None)
            if error is not None and error.kind == "no_permission":
                refused.append(error)
            stats = QueueStats.read(part, clock) if error is None else None
            views.append(QueueView(name, stats, error.kind if error else ""))
        if len(refused) == len(views):  # the user has no permission at all
            raise refused[0]
        return views


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """The keys that a cleanup found, and how many of them it removed.

    Attributes:
        project: Name of the project.
        spider: Name of the spider, or ``None``.
        dry_run: Whether the cleanup only searched and removed nothing.
        keys: How many keys of each kind were found, by their row in the table of keys.
        odd: Keys that hold another type than the table of keys requires. A cleanup
            removes these keys, too.
        in_flight: Requests that workers held when the cleanup began. Requests of a
            worker that has died count, too.
        removed: Number of removed keys; 0 in a dry run.
    """

    project: str
    spider: str | None
    dry_run: bool
    keys: Mapping[str, int]
    odd: tuple[str, ...]
    in_flight: int
    removed: int

    @property
    def found(self) -> int:
        """The number of keys of all kinds that the search has found."""
        return sum(self.keys.values())


async def find_queues(
    redis: RedisOrAgent | None = None, *, timeout: float = 5.0
) -> list[Namespace]:
    """List the crawls that have any key in Redis.

    The keys are found by SCAN. On a Redis Cluster, SCAN runs on each master.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
            ``BLS_REDIS_URL``.
        timeout: Deadline of one request in seconds.

    Returns:
        Project and spider of each crawl, sorted.

    Raises:
        RedisUnavailableError: Redis cannot answer.
    """
    async with QueueOverview(redis, timeout=timeout) as overview:
        return await overview.find()


async def cleanup(
    redis: RedisOrAgent | None,
    project: str,
    spider: str | None = None,
    dry_run: bool = True,  # noqa: FBT001, FBT002 - the protocol has it positional
    on_progress: Callable[[int, int], None] | None = None,
    *,
    timeout: float = 5.0,
) -> CleanupReport:
    """Remove the keys of one namespace: its queue, its filters and this package's keys.

    The keys of other projects stay. If ``spider`` is ``None``, the keys of the
    project's spiders stay, too. Keys are found by SCAN and removed by UNLINK. A worker
    that still runs creates some of these keys again.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``; ``None`` for
            ``BLS_REDIS_URL``.
        project: Name of the project.
        spider: Name of the spider; ``None`` for the project alone.
        dry_run: Whether to search only and remove nothing.
        on_progress: Called after each step, in the event loop, with the number of keys
            found and removed so far.
        timeout: Deadline of one request in seconds.

    Returns:
        The keys that were found, and how many of them were removed.

    Raises:
        RedisUnavailableError: Redis cannot answer or refuses a command. Some keys may
            be removed already; call ``cleanup`` again to remove the rest.
        ConfigurationError: A name is not allowed; see :class:`RedisKeyManager`.
    """
    manager = RedisKeyManager(project, spider)
    name = Namespace(manager.project_name, manager.spider_name)
    pattern = f"{ALL[:-1]}{escape_glob(manager.namespace)}:*"
    known: dict[bytes, str] = {}  # key → row; SCAN may return a key twice
    odd: list[str] = []
    removed = 0
    async with QueueOverview(redis, timeout=timeout) as overview:
        pool = overview.pool
        (view,) = await overview.read([name])
        async with aclosing(pool.scan_steps(pattern)) as steps:
            async for step in steps:
                read = {key: read_key(key) for key in step if key not in known}
                new = {
                    key: one.row for key, one in read.items() if one and one[1:] == name
                }
                known |= new
                odd += await _find_odd(pool, new)
                if not dry_run:
                    replies = await pool.call_many([("UNLINK", key) for key in new])
                    removed += sum(checked_reply(one, ALL) for one in replies)
                if on_progress is not None:
                    on_progress(len(known), removed)
    in_flight = view.stats.in_flight if view.stats else 0
    found = Counter(known.values())
    counts = {row: found[row] for row in KEYS if row in found}
    return CleanupReport(*name, dry_run, counts, tuple(sorted(odd)), in_flight, removed)


def _namespace_of(fields: Mapping[str, str]) -> Namespace:
    return Namespace(fields["project"], fields.get("spider"))


async def _find_odd(pool: ConnectionPool, rows: Mapping[bytes, str]) -> list[str]:
    """Return the keys that hold another type than their row in the table of keys."""
    replies = await pool.read_many([("TYPE", key) for key in rows])
    odd: list[str] = []
    for (key, row), reply in zip(rows.items(), replies, strict=True):
        kind: str = checked_reply(reply, ALL).decode()
        if kind not in {KEYS[row].type or kind, "none"}:
            odd.append(key.decode("utf-8", "replace"))
    return odd
