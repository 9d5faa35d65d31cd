"""``TaskRegistry``: every task whose status or progress is in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import product
from typing import ClassVar, Final, NamedTuple

from bls_agent.connection.access import Store
from bls_agent.core.codec import JSONObject
from bls_agent.core.errors import ConfigurationError
from bls_agent.workers.progress import BacktestProgress
from bls_agent.workers.reading import SHOWN, Value, common_pattern, head_of, read_values
from bls_agent.workers.tasks import Task, TaskState, TaskStatus

MOST: Final = 10_000  # tasks that are read
# A task may have a key of each row. In doubt, the value of the last one is newer.
ROWS: Final = (BacktestProgress.row, TaskStatus.row)
_RANKS: Final = {state: rank for rank, state in enumerate(TaskState)}
_UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)


class TaskList(NamedTuple):
    """The tasks of one read.

    Attributes:
        tasks: The tasks, sorted by state (broken, failed, running, waiting, other,
            done), then by id.
        complete: Whether these are all tasks. Otherwise there are more tasks than the
            limit, and chance decides which of them were read.
    """

    tasks: list[Task]
    complete: bool


class TaskRegistry(Store):
    """Reads the status and the progress of all tasks; writes nothing to Redis.

    A task is found by its keys ``ginkgo:task_status:{task_id}``
    (:class:`~bls_agent.workers.TaskStatus`) and ``backtest:task:{task_id}:progress``
    (:class:`~bls_agent.workers.BacktestProgress`). If it has both, each field has the
    value that was written last.

    Works with and without ``async with``. If you do not use ``async with``, call
    :meth:`aclose` at the end. The Redis user needs SCAN, and GETRANGE and PTTL of these
    keys. Tasks that the user may not read are left out; an error is raised if the user
    may read none.
    """

    client_name: ClassVar[str] = "bls-tasks"

    async def tasks(self, limit: int = MOST) -> TaskList:
        """Read all tasks, at most ``limit`` of them.

        Keys are found by SCAN, never by KEYS, and values are read in portions. A value
        that cannot be read is a task, too; see :attr:`Task.problem`.

        Args:
            limit: The largest number of tasks to read, from 1 to 10,000.

        Raises:
            ConfigurationError: ``limit`` is out of range.
            RedisUnavailableError: Redis cannot answer.
        """
        if not 1 <= limit <= MOST:
            raise ConfigurationError("limit", limit, f"from 1 to {MOST:,}")
        keys, complete = await self._find(limit)
        parts: dict[str, list[Task]] = {}
        in_order = sorted(keys, key=lambda key: keys[key][1])
        async with aclosing(read_values(self._access.pool, in_order)) as values:
            async for value in values:
                task_id = keys[value.key][0]
                parts.setdefault(task_id, []).append(_decode(task_id, value))
        tasks = [merge_tasks(read) for read in parts.values()]
        tasks.sort(key=lambda task: (_RANKS[task.state], task.id))
        return TaskList(tasks, complete)

    async def _find(self, limit: int) -> tuple[dict[bytes, tuple[str, int]], bool]:
        """Return each key with its task and row, and whether these are all keys."""
        keys: dict[bytes, tuple[str, int]] = {}
        known: set[str] = set()
        pattern = common_pattern(map(head_of, ROWS))
        async with aclosing(self._access.pool.scan_steps(pattern)) as steps:
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
    """Combine what the keys of one task hold.

    1. There is one value: return it.
    2. No value can be read: return the first, whose reason says why.
    3. Otherwise each field has the value that was written last. The reason is that of
       the value that cannot be read, if there is one.
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
