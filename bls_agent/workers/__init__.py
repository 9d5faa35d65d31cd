"""Contract 001: heartbeats of workers, progress, tasks and a function cache.

The names below are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bls_agent.workers.beating.heartbeat import Heartbeat
    from bls_agent.workers.beating.stats import HeartbeatStats
    from bls_agent.workers.caching.cache import FunctionCache, cache, cached
    from bls_agent.workers.caching.counts import CacheStats
    from bls_agent.workers.heartbeat_fields import WorkerStatus
    from bls_agent.workers.heartbeats import (
        BacktestWorkerHeartbeat,
        DataWorkerHeartbeat,
        ExecutionNodeHeartbeat,
        SchedulerHeartbeat,
        TaskTimerHeartbeat,
        WorkerHeartbeat,
        parse_heartbeat_data,
    )
    from bls_agent.workers.schema import (
        RedisKeyBuilder,
        RedisKeyPattern,
        RedisKeyPrefix,
        RedisTTL,
        extract_id_from_key,
    )
    from bls_agent.workers.tasks.calendars import SyncSummary
    from bls_agent.workers.tasks.progress import BacktestProgress, SyncProgress
    from bls_agent.workers.tasks.task_records import Task
    from bls_agent.workers.tasks.task_status import TaskStatus
    from bls_agent.workers.watching.registry import WorkerRegistry
    from bls_agent.workers.watching.roll import WorkerChange
    from bls_agent.workers.watching.worker import Worker

__all__ = [
    "BacktestProgress",
    "BacktestWorkerHeartbeat",
    "CacheStats",
    "DataWorkerHeartbeat",
    "ExecutionNodeHeartbeat",
    "FunctionCache",
    "Heartbeat",
    "HeartbeatStats",
    "RedisKeyBuilder",
    "RedisKeyPattern",
    "RedisKeyPrefix",
    "RedisTTL",
    "SchedulerHeartbeat",
    "SyncProgress",
    "SyncSummary",
    "Task",
    "TaskStatus",
    "TaskTimerHeartbeat",
    "Worker",
    "WorkerChange",
    "WorkerHeartbeat",
    "WorkerRegistry",
    "WorkerStatus",
    "cache",
    "cached",
    "extract_id_from_key",
    "parse_heartbeat_data",
]

_HOMES = {
    "BacktestProgress": "tasks.progress",
    "CacheStats": "caching.counts",
    "FunctionCache": "caching.cache",
    "Heartbeat": "beating.heartbeat",
    "HeartbeatStats": "beating.stats",
    "RedisKeyBuilder": "schema",
    "RedisKeyPattern": "schema",
    "RedisKeyPrefix": "schema",
    "RedisTTL": "schema",
    "SyncProgress": "tasks.progress",
    "SyncSummary": "tasks.calendars",
    "Task": "tasks.task_records",
    "TaskStatus": "tasks.task_status",
    "Worker": "watching.worker",
    "WorkerChange": "watching.roll",
    "WorkerRegistry": "watching.registry",
    "WorkerStatus": "heartbeat_fields",
    "cache": "caching.cache",
    "cached": "caching.cache",
    "extract_id_from_key": "schema",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module; heartbeats are those without another home."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module = import_module(f"{__name__}.{_HOMES.get(name, 'heartbeats')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
