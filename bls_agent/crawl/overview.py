"""Every crawl queue of a Redis at a glance, over one connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from bls_agent.connection.access import Store
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.crawl.keys import RedisKeyManager
from bls_agent.crawl.namespace import Namespace, find_namespaces
from bls_agent.crawl.queue import STATS, QueueStats
from bls_agent.crawl.records import QueueKeys

__all__ = ["QueueOverview", "QueueView"]


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

    async def find(self) -> list[Namespace]:
        """Find the queues that have a key."""
        return await find_namespaces(self._access.pool)

    async def read(self, names: Sequence[Namespace]) -> list[QueueView]:
        """Count what each of some queues holds.

        ConfigurationError if no queue can have such a name; RedisUnavailableError if
        Redis cannot answer, or refuses all of them.
        """
        if not names:
            return []
        pool = self._access.pool
        keys = [QueueKeys.of(RedisKeyManager(*name)).by_row for name in names]
        words = [question.split() for question in STATS]
        requests = [(name, by_row[row]) for by_row in keys for row, name in words]
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
