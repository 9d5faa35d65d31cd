"""``WorkerRegistry``: every worker whose heartbeat is in Redis, listed or watched."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from math import inf
from typing import ClassVar, Final, NamedTuple

import anyio

from bls_agent.connection.access import Store
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.backoff import Backoff
from bls_agent.core.checks import check_seconds
from bls_agent.core.errors import (
    ConfigurationError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.core.keys import KeyTemplate, name_of
from bls_agent.runtime.lease import length_of
from bls_agent.workers.heartbeat_fields import WorkerHeartbeat
from bls_agent.workers.reading import common_pattern, head_of, read_values
from bls_agent.workers.task_list import MOST, TaskList, read_tasks
from bls_agent.workers.worker import (
    GENERIC,
    HEARTBEATS,
    Change,
    Worker,
    WorkerChange,
    WorkerDiff,
    find_row,
)

SEARCH_PAUSE: Final = 2.0  # shortest pause in seconds between two searches
SEARCH_REST: Final = 4.0  # pause after a search, as a multiple of the search's duration


class WorkerRegistry(Store):
    """Finds the workers that write heartbeats, and their tasks. Only reads from Redis.

    The registry works with and without ``async with``. If you do not use
    ``async with``, call :meth:`aclose` at the end. Several coroutines may use the
    registry at once.

    The Redis user needs permission for SCAN, for GETRANGE and PTTL on the keys of
    heartbeats and tasks, and for GETRANGE on the keys of leases. Without the last
    permission, ages are only correct for workers with the default TTL. Keys that the
    user may not read are left out. If the user may read no key at all, an error is
    raised.
    """

    client_name: ClassVar[str] = "bls-workers"

    async def alive(
        self, kind: type[WorkerHeartbeat] | str | None = None
    ) -> list[Worker]:
        """Find every worker with a heartbeat in Redis.

        A worker whose key has an invalid value is returned, too. Its
        :attr:`Worker.problem` describes the fault.

        Args:
            kind: A class of heartbeats, the name of a row such as
                ``"backtest_worker_heartbeat"`` (``_heartbeat`` may be left out), the
                kind in the key such as ``"下载"`` or ``"node"``, or ``None`` for all.

        Returns:
            The workers, sorted by kind and id.

        Raises:
            ConfigurationError: No key can contain this kind.
            RedisUnavailableError: Redis cannot answer.
        """
        seen = await _read(self._access.pool, await self._find(_search_for(kind)), {})
        return sorted(seen.values(), key=lambda worker: (worker.kind, worker.id))

    async def tasks(self, limit: int = MOST) -> TaskList:
        """Read the status and the progress of all tasks, at most ``limit`` of them.

        A task is found by its keys ``ginkgo:task_status:{task_id}``
        (:class:`~bls_agent.workers.TaskStatus`) and
        ``backtest:task:{task_id}:progress``
        (:class:`~bls_agent.workers.BacktestProgress`). If the task has both keys, each
        field has the value that was written last. A task whose value cannot be read is
        returned, too. Its :attr:`Task.problem` describes the fault.

        Args:
            limit: The largest number of tasks to read, from 1 to 10,000.

        Raises:
            ConfigurationError: ``limit`` is out of range.
            RedisUnavailableError: Redis cannot answer.
        """
        return await read_tasks(self._access.pool, limit)

    def watch(
        self,
        kind: type[WorkerHeartbeat] | str | None = None,
        *,
        interval: float = 1.0,
        refreshes: bool = False,
    ) -> AsyncGenerator[WorkerChange]:
        """Yield each change of a worker: joined, left, changed, stale or back.

        At first every worker is yielded as ``joined``. The generator reads known
        workers once per interval, and yields a dead worker as ``left`` within one
        interval after its key has expired. The generator searches for new workers every
        few seconds, or less often if a search takes long. A search among a million
        other keys takes about a second.

        An outage of Redis is yielded once as ``unavailable``, and its end as
        ``available``. During an outage, the pause between two attempts is at most 2 s.
        For half a TTL after an outage no worker counts as ``left``, because workers
        could not refresh their heartbeats during the outage.

        Args:
            kind: The same as for :meth:`alive`.
            interval: Seconds between two reads.
            refreshes: Whether to yield ``refreshed``, too, when a worker has refreshed
                its heartbeat without changing the value. A program that displays the
                age of heartbeats needs these changes.

        Raises:
            ConfigurationError: No key can contain this kind, or ``interval`` is not a
                number of seconds.
            RedisRefusedError: Redis refuses the requests, and waiting does not help.
        """
        search, every = _search_for(kind), check_seconds("interval", interval)
        return self._watch(self.look(WorkerDiff(refreshes=refreshes), every, search))

    async def _watch(
        self, looks: AsyncGenerator[list[WorkerChange]]
    ) -> AsyncGenerator[WorkerChange]:
        async with aclosing(looks):
            async for changes in looks:
                for change in changes:
                    yield change

    async def look(
        self, diff: WorkerDiff, interval: float, search: _Search | None = None
    ) -> AsyncGenerator[list[WorkerChange]]:
        """Read all workers once per interval, and yield the changes of each read."""
        search = search or _search_for(None)
        backoff = Backoff()
        openings, is_away, search_at = None, False, -inf
        while True:
            began = anyio.current_time()
            try:
                seen, search_at = await self._fetch(search, diff.workers, search_at)
            except RedisRefusedError:
                raise
            except RedisUnavailableError as error:
                search_at = -inf
                if not is_away:
                    is_away = True
                    yield [WorkerChange(Change.UNAVAILABLE, error=error)]
                await anyio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            now, before = anyio.current_time(), openings
            openings = self._access.pool.openings
            # Only a new connection shows that the server restarted between two reads.
            if is_away or before not in (None, openings):
                diff.hold(now)
            changes = [WorkerChange(Change.AVAILABLE)] if is_away else []
            is_away = False
            yield changes + diff.compare(seen, now)
            await anyio.sleep(max(0.0, began + interval - anyio.current_time()))

    async def _fetch(
        self,
        search: _Search,
        known: Mapping[bytes, Worker],
        search_at: float,
    ) -> tuple[dict[bytes, Worker], float]:
        """Read known workers, and search for new workers if a search is due.

        Return all these workers, and the time of the next search.
        """
        keys = {key: one.row for key, one in known.items()}
        began = anyio.current_time()
        if began >= search_at:
            keys |= await self._find(search)
            ended = anyio.current_time()
            search_at = ended + max(SEARCH_PAUSE, SEARCH_REST * (ended - began))
        return await _read(self._access.pool, keys, known), search_at

    async def _find(self, search: _Search) -> dict[bytes, str]:
        """Search all keys for heartbeats; return each key with its row."""
        found: dict[bytes, str] = {}
        async for key in self._access.pool.scan(search.pattern):
            row = find_row(key, search.rows)
            if row is not None:
                found[key] = row
        return found


class _Search(NamedTuple):
    """The kinds of heartbeats to find, and one SCAN pattern that matches their keys."""

    rows: Mapping[str, KeyTemplate]
    pattern: str


def _search_for(kind: type[WorkerHeartbeat] | str | None) -> _Search:
    if kind is None:
        return _Search(HEARTBEATS, common_pattern(map(head_of, HEARTBEATS.values())))
    named = kind if isinstance(kind, str) else getattr(kind, "kind", None)
    head = HEARTBEATS[GENERIC].locate(kind=str(name_of(named)), worker_id="")
    for name, row in HEARTBEATS.items():
        words = (name, name.removesuffix("_heartbeat"))
        if named in words or head_of(row) == head:
            return _Search({name: row}, row.pattern())
    if not isinstance(kind, str):
        rule = "a class of heartbeats, or the name of a kind"
        raise ConfigurationError("kind", kind, rule)
    row = HEARTBEATS[GENERIC]
    row.build(kind=kind, worker_id="-")  # raises for a name that no key can contain
    return _Search({GENERIC: row}, row.pattern(kind=kind))


async def _read(
    pool: ConnectionPool, keys: Mapping[bytes, str], before: Mapping[bytes, Worker]
) -> dict[bytes, Worker]:
    """Read heartbeats with TTLs and leases. Leave out missing and forbidden keys."""
    seen: dict[bytes, Worker] = {}
    async with aclosing(read_values(pool, list(keys), leases=True)) as values:
        async for key, payload, ttl, largest, lease in values:
            seen[key] = Worker.read(
                keys[key], key, payload, ttl, before.get(key),
                largest=largest, full_ttl=length_of(lease),
            )  # fmt: skip
    return seen
