"""Worker heartbeats, progress, tasks, and a function cache.

Python imports the module of a name below when a program first uses the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bls_agent.core import lazy

if TYPE_CHECKING:
    from bls_agent.workers.caching.cache import FunctionCache, cache, cached
    from bls_agent.workers.caching.cached_function import CacheStats
    from bls_agent.workers.heartbeat import Heartbeat, HeartbeatStats
    from bls_agent.workers.heartbeat_fields import (
        BacktestWorkerHeartbeat,
        DataWorkerHeartbeat,
        ExecutionNodeHeartbeat,
        GenericHeartbeat,
        SchedulerHeartbeat,
        TaskTimerHeartbeat,
        WorkerHeartbeat,
        WorkerStatus,
        parse_heartbeat_data,
    )
    from bls_agent.workers.progress import BacktestProgress, SyncProgress, SyncSummary
    from bls_agent.workers.registry import WorkerRegistry
    from bls_agent.workers.schema import (
        RedisKeyBuilder,
        RedisKeyPattern,
        RedisKeyPrefix,
        RedisTTL,
        extract_id_from_key,
    )
    from bls_agent.workers.task_list import TaskList
    from bls_agent.workers.tasks import Task, TaskState, TaskStatus
    from bls_agent.workers.worker import Worker, WorkerChange

__all__ = [
    "BacktestProgress",
    "BacktestWorkerHeartbeat",
    "CacheStats",
    "DataWorkerHeartbeat",
    "ExecutionNodeHeartbeat",
    "FunctionCache",
    "GenericHeartbeat",
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
    "TaskList",
    "TaskState",
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
    "BacktestProgress": "progress",
    "CacheStats": "caching.cached_function",
    "FunctionCache": "caching.cache",
    "Heartbeat": "heartbeat",
    "HeartbeatStats": "heartbeat",
    "RedisKeyBuilder": "schema",
    "RedisKeyPattern": "schema",
    "RedisKeyPrefix": "schema",
    "RedisTTL": "schema",
    "SyncProgress": "progress",
    "SyncSummary": "progress",
    "Task": "tasks",
    "TaskList": "task_list",
    "TaskState": "tasks",
    "TaskStatus": "tasks",
    "Worker": "worker",
    "WorkerChange": "worker",
    "WorkerRegistry": "registry",
    "cache": "caching.cache",
    "cached": "caching.cache",
    "extract_id_from_key": "schema",
}

if not TYPE_CHECKING:  # type checkers use the imports above, and report other names
    __getattr__, __dir__ = lazy.names(__name__, __all__, _HOMES, "heartbeat_fields")
