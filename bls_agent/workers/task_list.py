"""Reads every task whose status or progress is in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import product
from typing import Final, NamedTuple, cast

import anyio.lowlevel

from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.checks import check_count
from bls_agent.core.codec import JSONObject
from bls_agent.workers.progress import BacktestProgress
from bls_agent.workers.reading import (
    SHOWN,
    Value,
    common_pattern,
    head_of,
    portions_of,
    read_values,
)
from bls_agent.workers.tasks import Task, TaskState, TaskStatus
from bls_agent.workers.worker import Worker

MOST: Final = 10_000  # largest number of tasks that are read
# A task may have one key for each row. If the values do not show which is newer, the
# value of the last row counts as newer.
ROWS: Final = (BacktestProgress.row, TaskStatus.row)
_RANKS: Final = {state: rank for rank, state in enumerate(TaskState)}
_UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)


class TaskList(NamedTuple):
    """The tasks of one read.

    Attributes:
        tasks: The tasks, sorted by state (broken, failed, running, waiting, other,
            done), then by id.
        complete: Whether these are all tasks. ``False`` if Redis has more tasks than
            the limit. The choice of the tasks is then arbitrary.
    """

    tasks: list[Task]
    complete: bool

    def of_workers(self, workers: Iterable[Worker]) -> dict[str, list[Task]]:
        """Find the tasks of each worker.

        A task may contain the id of its worker in the field ``worker``. Only a task
        without this field belongs to the worker that lists it in ``task_uuids``.

        Args:
            workers: The workers, as :meth:`WorkerRegistry.alive` returns them.

        Returns:
            Key of the worker → its tasks. Workers without tasks are left out.
        """
        named: dict[str, list[Task]] = {}
        unclaimed: dict[str, Task] = {}
        for task in self.tasks:
            if task.worker:
                named.setdefault(task.worker, []).append(task)
            else:
                unclaimed[task.id] = task
        found: dict[str, list[Task]] = {}
        for worker in workers:
            ids: object = worker.raw.get("task_uuids")
            listed = cast("list[object]", ids) if isinstance(ids, list) else []
            texts = [str(one) for one in listed if isinstance(one, str | int)]
            others = [unclaimed[one] for one in texts if one in unclaimed]
            if tasks := [*named.get(worker.id, ()), *others]:
                found[worker.key] = tasks
        return found


async def read_tasks(pool: ConnectionPool, limit: int) -> TaskList:
    """Read at most ``limit`` tasks, as :meth:`WorkerRegistry.tasks` describes."""
    check_count("limit", limit, most=MOST)
    keys, complete = await _find(pool, limit)
    parts: dict[str, list[Task]] = {}
    in_order = sorted(keys, key=lambda key: keys[key][1])
    async with aclosing(read_values(pool, in_order)) as values:
        async for value in values:
            task_id = keys[value.key][0]
            parts.setdefault(task_id, []).append(_decode(task_id, value))
    tasks: list[Task] = []
    for portion in portions_of([*parts.values()]):
        tasks += map(merge_tasks, portion)
        await anyio.lowlevel.checkpoint()
    tasks.sort(key=lambda task: (_RANKS[task.state], task.id))
    return TaskList(tasks, complete)


async def _find(
    pool: ConnectionPool, limit: int
) -> tuple[dict[bytes, tuple[str, int]], bool]:
    """Return each key with its task and row, and whether these are all keys."""
    keys: dict[bytes, tuple[str, int]] = {}
    known: set[str] = set()
    async with aclosing(pool.scan_steps(common_pattern(map(head_of, ROWS)))) as steps:
        async for step in steps:
            for key, (rank, row) in product(step, enumerate(ROWS)):
                fields = row.parse(key)
                if fields is None:
                    continue
                task_id = fields["task_id"]
                if task_id not in known and len(known) == limit:
                    return keys, False
                known.add(task_id)
                keys[key] = task_id, rank
    return keys, True


def _decode(task_id: str, value: Value) -> Task:
    if value.payload is None:
        return Task(id=task_id, raw="", reason="wrong_type")
    if len(value.payload) > value.largest:
        raw = value.payload[:SHOWN].decode("utf-8", "replace")
        return Task(id=task_id, raw=raw, reason="too_large")
    return Task.decode(task_id, value.payload)


def merge_tasks(parts: Sequence[Task]) -> Task:
    """Combine the values of all keys of one task.

    1. There is only one value: return it.
    2. No value can be read: return the first value, whose ``reason`` is the cause.
    3. Otherwise combine the fields of all values. If two values have the same field,
       use the value that was written last. If one value cannot be read, use its
       ``reason``.
    """
    first, *others = parts
    readable = [task for task in parts if task.fields or task.status]
    if not others or not readable:
        return first
    fields: JSONObject = {}
    for task in sorted(readable, key=lambda task: task.timestamp or _UNKNOWN):
        fields |= task.fields or {"status": task.status}
    reasons = (task.reason for task in parts if task not in readable)
    return Task.read(first.id, fields, next(reasons, ""))
