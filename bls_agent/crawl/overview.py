"""What Redis holds of crawls: found, counted over one connection, and removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from bls_agent.connection.access import Store
from bls_agent.connection.endpoint import Reply
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.codec import JSONObject, decode_object, encode
from bls_agent.core.errors import DecodeError, RedisUnavailableError
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


COUNTERS: Final = ("pushed", "taken", "acknowledged", "retried", "expired")


class Namespace(NamedTuple):
    """The project and the spider of a crawl; no spider for the project alone."""

    project: str
    spider: str | None

    @property
    def shown(self) -> str:
        """The name in one word: ``project`` or ``project:spider``."""
        return ":".join(filter(None, self))

    @classmethod
    def parse(cls, shown: str) -> Namespace:
        """Read :attr:`shown`."""
        project, _, spider = shown.partition(":")
        return cls(project, spider or None)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a queue holds now, and what happened to it since it was made or cleaned up.

    Attributes:
        waiting: Requests that may be taken now.
        delayed: Requests that are tried again at the end of their delay.
        in_flight: Requests that a worker holds.
        failed: Requests in the failed list.
        pushed: Requests that were queued; duplicates are not counted.
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

    @classmethod
    def read(cls, replies: Sequence[Reply], clock: Reply) -> QueueStats:
        """Read the replies to :data:`STATS` and to ``TIME``."""
        waiting, delayed, in_flight, failed, pairs = replies
        counters = dict(zip(pairs[::2], pairs[1::2], strict=True))
        fields = {name: counters.get(name.encode(), b"0") for name in COUNTERS}
        counts = {name: int(n) if n.isdigit() else 0 for name, n in fields.items()}
        seen_at = int(clock[0]) + int(clock[1]) / 1e6
        return cls(waiting, delayed, in_flight, failed, **counts, seen_at=seen_at)


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """One entry of the failed list.

    Attributes:
        request: What failed; ``None`` where no request can be read.
        reason: Why, of the last attempt.
        attempts: How often it was tried; 0 where that cannot be read.
        failed_at: Of the last attempt, in seconds since 1970.
        priority: Its priority when it was taken last.
        raw: The entry as it stands in Redis.
    """

    request: CrawlRequest | None
    reason: str
    attempts: int
    failed_at: float
    priority: float
    raw: bytes

    @classmethod
    def read(cls, raw: bytes) -> FailedRequest:
        """Read an entry; another program's entry in another form is kept whole."""
        entry: JSONObject = {"reason": "the entry cannot be read"}
        request = None
        with suppress(DecodeError):
            entry = decode_object(raw)
            if entry.get("request"):
                request = CrawlRequest.decode(encode(entry["request"]))

        def number(name: str) -> float:
            value = entry.get(name)
            return float(value) if isinstance(value, int | float) else 0.0

        return cls(
            request,
            str(entry.get("reason", "")),
            int(number("attempts")),
            number("failed_at"),
            number("priority"),
            raw,
        )


class QueueView(NamedTuple):
    """The state of one queue."""

    name: Namespace  # whose it is
    stats: QueueStats | None  # what it holds; ``None`` if that cannot be counted
    problem: str = ""  # why not: ``wrong_type``, ``no_permission``; else nothing


class QueueOverview(Store):
    """Finds and counts crawl queues; writes nothing.

    All queues are counted over one connection, a thousand requests in one write.
    """

    client_name: ClassVar[str] = "bls-crawl"

    @property
    def pool(self) -> ConnectionPool:
        """The connections of the running event loop."""
        return self._access.pool

    async def find(self) -> list[Namespace]:
        """Find the crawls that have a key."""
        found: set[Namespace] = set()
        async for key in self.pool.scan(ALL):
            retries = KEYS[RETRIES].parse(key)  # there may be many, of few namespaces
            if retries and _namespace_of(retries) in found:
                continue
            if read := read_key(key):
                found.add(Namespace(read.project, read.spider))
        return sorted(found, key=lambda one: (one.project, one.spider or ""))

    async def read(self, names: Sequence[Namespace]) -> list[QueueView]:
        """Count what each of some queues holds.

        ConfigurationError if no queue can have such a name; RedisUnavailableError if
        Redis cannot answer, or refuses all of them.
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
        if len(refused) == len(views):  # not of some projects: of any
            raise refused[0]
        return views


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What a cleanup has found, and how much of it was removed.

    Attributes:
        project: Name of the project.
        spider: Name of the spider, or ``None``.
        dry_run: Whether it only looked.
        keys: How many keys of each kind were found, by their row in the table of keys.
        odd: Those that hold another type than they should; they are removed, too.
        in_flight: Requests that workers held when it began, also a worker that has
            died since its last word.
        removed: Keys that are gone; 0 in a dry run.
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
        """All keys of the namespace."""
        return sum(self.keys.values())


async def find_queues(redis: object = None, *, timeout: float = 5.0) -> list[Namespace]:
    """List the crawls that have any key in Redis, by SCAN; on a cluster on all masters.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
            ``BLS_REDIS_URL``.
        timeout: Deadline of one request in seconds.

    Returns:
        Project and spider of each, in order.

    Raises:
        RedisUnavailableError: Redis cannot answer.
    """
    async with QueueOverview(redis, timeout=timeout) as overview:
        return await overview.find()


async def cleanup(
    redis: object,
    project: str,
    spider: str | None = None,
    dry_run: bool = True,  # noqa: FBT001, FBT002 - as the contract has it
    on_progress: Callable[[int, int], None] | None = None,
    *,
    timeout: float = 5.0,
) -> CleanupReport:
    """Remove the keys of one namespace: its queue, its filters, our keys beside them.

    Nothing else is touched: neither another project's keys, nor those of a project's
    spiders where ``spider`` is ``None``. Keys are found by SCAN and removed by UNLINK;
    a worker that goes on meanwhile makes some of them anew.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``; ``None`` for
            ``BLS_REDIS_URL``.
        project: Name of the project.
        spider: Name of the spider; ``None`` for the project alone.
        dry_run: Only look; the default.
        on_progress: Called after each step, in the event loop, with the number of keys
            found and removed so far.
        timeout: Deadline of one request in seconds.

    Raises:
        RedisUnavailableError: Redis cannot answer, or refuses it. What was removed
            before is gone; call it again.
        ConfigurationError: A name breaks its rule.
    """
    manager = RedisKeyManager(project, spider)
    name = Namespace(manager.project_name, manager.spider_name)
    pattern = f"{ALL[:-1]}{escape_glob(manager.namespace)}:*"
    known: dict[bytes, str] = {}  # key → row; SCAN may give a key twice
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
    """Find the keys (key → row) that hold another type than the table of keys says."""
    replies = await pool.read_many([("TYPE", key) for key in rows])
    odd: list[str] = []
    for (key, row), reply in zip(rows.items(), replies, strict=True):
        kind: str = checked_reply(reply, ALL).decode()
        if kind not in {KEYS[row].type or kind, "none"}:
            odd.append(key.decode("utf-8", "replace"))
    return odd
