"""``WorkerRegistry``: every worker whose heartbeat is in Redis, listed or watched."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from math import inf
from typing import ClassVar, Final, TypeVar

import anyio
import anyio.lowlevel

from bls_agent.connection.access import Store
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import (
    ConfigurationError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.core.keys import KeyTemplate
from bls_agent.core.settings import check_seconds
from bls_agent.runtime.lease import length_of
from bls_agent.workers.heartbeat_fields import WorkerHeartbeat
from bls_agent.workers.worker import (
    HEARTBEATS,
    LARGEST,
    SHOWN,
    Change,
    Worker,
    WorkerChange,
    WorkerDiff,
    find_kind,
)

T = TypeVar("T")

TOGETHER: Final = 250  # workers in one write
LEASE: Final = 255  # bytes of a lease that are read
PLENTY: Final = 8 * 2**20  # bytes in one look, from which on large values are cut
LARGE: Final = 65_536  # bytes of values that are read before the host gets its turn
NO_KEY: Final = -2  # PTTL of a missing key
NO_TTL: Final = -1

SEARCH_PAUSE: Final = 2.0  # seconds from the end of a search to the next one, at least
SEARCH_REST: Final = 4.0  # times as long as a search took


class WorkerRegistry(Store):
    """Finds the workers of a fleet by their heartbeats; never writes.

    Works with and without ``async with``; close it with :meth:`aclose` when it was used
    without. Several tasks may list and watch at once.

    It needs SCAN, GETRANGE and PTTL of the heartbeats' keys, and GETRANGE of the leases
    beside them, which hold TTLs other than the default. Heartbeats that may not be
    read are left out; if that is so for all of them it raises.
    """

    client_name: ClassVar[str] = "bls-workers"

    async def alive(
        self, kind: type[WorkerHeartbeat] | str | None = None
    ) -> list[Worker]:
        """Find every worker whose heartbeat is there, and whatever else has such a key.

        Args:
            kind: A class of heartbeats, the name of a row such as
                ``"backtest_worker_heartbeat"`` (its end may be left out), or ``None``
                for every kind.

        Returns:
            Sorted by kind and id.

        Raises:
            ConfigurationError: There is no such kind.
            RedisUnavailableError: Redis cannot answer.
        """
        seen = await _read(self._access.pool, await self._find(_kinds_of(kind)), {})
        return sorted(seen.values(), key=lambda worker: (worker.kind, worker.id))

    def watch(
        self,
        kind: type[WorkerHeartbeat] | str | None = None,
        *,
        interval: float = 1.0,
        refreshes: bool = False,
    ) -> AsyncGenerator[WorkerChange]:
        """Report workers that join, leave, fall silent, come back or change.

        First every worker that is there ``joined``. Known ones are read each interval,
        so that a dead one ``left`` an interval after its TTL at the latest; new ones
        are searched for every few seconds, less often where that takes long. Among a
        million other keys a search, and the look behind it, takes a second.

        An outage is reported once as ``unavailable`` and its end as ``available``; it
        is tried again every 2 s at most. After it no worker counts as ``left`` before
        half a TTL is over: they had no way to refresh.

        Args:
            kind: As for :meth:`alive`.
            interval: Seconds between two looks.
            refreshes: Whether to report also workers that have ``refreshed`` a
                heartbeat without a new value: an age that is shown has to follow them.

        Raises:
            ConfigurationError: There is no such kind, or the interval is no time.
            RedisRefusedError: Redis refuses for good; waiting does not repair that.
        """
        kinds, every = _kinds_of(kind), check_seconds("interval", interval)
        return self._watch(self.look(WorkerDiff(refreshes=refreshes), every, kinds))

    async def _watch(
        self, looks: AsyncGenerator[list[WorkerChange]]
    ) -> AsyncGenerator[WorkerChange]:
        async with aclosing(looks):
            async for changes in looks:
                for change in changes:
                    yield change

    async def look(
        self,
        diff: WorkerDiff,
        interval: float,
        kinds: Mapping[str, KeyTemplate] = HEARTBEATS,
    ) -> AsyncGenerator[list[WorkerChange]]:
        """Look again and again, and yield what each look has changed in ``diff``."""
        backoff = Backoff()
        openings, is_away, search_at = None, False, -inf
        while True:
            began = anyio.current_time()
            try:
                seen, search_at = await self._fetch(kinds, diff.workers, search_at)
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
            # A restart of the server between two looks shows no outage.
            if is_away or before not in (None, openings):
                diff.hold(now)
            changes = [WorkerChange(Change.AVAILABLE)] if is_away else []
            is_away = False
            yield changes + diff.compare(seen, now)
            await anyio.sleep(max(0.0, began + interval - anyio.current_time()))

    async def _fetch(
        self,
        kinds: Mapping[str, KeyTemplate],
        known: Mapping[bytes, Worker],
        search_at: float,
    ) -> tuple[dict[bytes, Worker], float]:
        """Read known workers and, if a search is due, new ones; return when the next is due."""
        keys = {key: one.kind for key, one in known.items()}
        began = anyio.current_time()
        if began >= search_at:
            keys |= await self._find(kinds)
            ended = anyio.current_time()
            search_at = ended + max(SEARCH_PAUSE, SEARCH_REST * (ended - began))
        return await _read(self._access.pool, keys, known), search_at

    async def _find(self, kinds: Mapping[str, KeyTemplate]) -> dict[bytes, str]:
        """Search all keys for heartbeats; return each key with its kind."""
        found: dict[bytes, str] = {}
        async for key in self._access.pool.scan(_common_pattern(kinds)):
            kind = find_kind(key, kinds)
            if kind is not None:
                found[key] = kind
        return found


def _kinds_of(kind: type[WorkerHeartbeat] | str | None) -> Mapping[str, KeyTemplate]:
    if kind is None:
        return HEARTBEATS
    named = kind if isinstance(kind, str) else getattr(kind, "kind", None)
    for row in (named, f"{named}_heartbeat"):
        if isinstance(row, str) and row in HEARTBEATS:
            return {row: HEARTBEATS[row]}
    rule = f"one of {', '.join(HEARTBEATS)}, or a class of heartbeats"
    raise ConfigurationError("kind", kind, rule)


def _common_pattern(kinds: Mapping[str, KeyTemplate]) -> str:
    """Make one pattern of the letters that stand at each place, for one SCAN."""
    heads = [row.template.partition("{")[0] for row in kinds.values()]
    if len(heads) == 1:
        return next(iter(kinds.values())).pattern()
    places = zip(*heads, strict=False)
    return "".join(f"[{''.join(sorted(set(place)))}]" for place in places) + "*"


async def _read(
    pool: ConnectionPool, keys: Mapping[bytes, str], before: Mapping[bytes, Worker]
) -> dict[bytes, Worker]:
    """Read heartbeats and their TTLs; leave out those that are gone or may not be read.

    MGET would hide keys of other types, read huge values, and fail for all of them.
    """
    seen: dict[bytes, Worker] = {}
    refused: list[RedisUnavailableError] = []
    size = total = 0
    for part in _parts(list(keys)):
        requests: list[Request] = []
        largest = LARGEST if total <= PLENTY else SHOWN
        for key in part:
            requests += [("PTTL", key), ("GETRANGE", key, 0, largest)]
        replies = await pool.read_many(requests)
        for key, left, value in zip(part, replies[::2], replies[1::2], strict=True):
            if error := _refusal_in(left, value):
                refused.append(error)
            elif left != NO_KEY or value:  # written again after it had expired
                payload = None if isinstance(value, Exception) else value
                ttl = None if left == NO_TTL else max(0.0, left / 1000)
                seen[key] = Worker.read(
                    keys[key], key, payload, ttl, before.get(key), largest=largest
                )
                size += len(payload or b"")
                total += len(seen[key].payload)
            if size >= LARGE:  # a page of large values takes a second to read
                size = 0
                await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    if refused and len(refused) == len(keys):
        raise refused[0]
    return seen | await _judge_by_leases(pool, seen)


async def _judge_by_leases(
    pool: ConnectionPool, seen: Mapping[bytes, Worker]
) -> dict[bytes, Worker]:
    """Judge workers that seem stale by the TTL in their lease, if it differs."""
    doubtful = [(k, one) for k, one in seen.items() if one.stale or one.age is None]
    judged: dict[bytes, Worker] = {}
    for part in _parts([(k, one) for k, one in doubtful if one.ttl is not None]):
        requests = [("GETRANGE", worker.owner_key, 0, LEASE) for _, worker in part]
        leases = await pool.read_many(requests)
        for (key, worker), lease in zip(part, leases, strict=True):
            given = length_of(lease)
            if given is not None:
                judged[key] = worker.judged(given)
    return judged


def _refusal_in(left: Reply, value: Reply) -> RedisUnavailableError | None:
    """Return the error of a key that may not be read. A key of another type is shown."""
    for reply in (left, value):
        if isinstance(reply, RedisUnavailableError):
            if reply.kind == "no_permission":
                return reply
            if reply.kind != "wrong_type":
                raise reply
    return None


def _parts(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(things), TOGETHER):
        yield things[begin : begin + TOGETHER]
