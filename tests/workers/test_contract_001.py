"""The examples of contract 001, line for line, with nothing changed but the import."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import redis as redis_py

# redis-py would rather have SET than the SETEX of the document.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")

# What stands in the document; `ginkgo.data.redis_schema` becomes `bls_agent.workers`.
KEYS_OF_THE_DOCUMENT = """
from ginkgo.data.redis_schema import RedisKeyBuilder

# 心跳键
key = RedisKeyBuilder.backtest_worker_heartbeat("worker_1")
# -> "backtest:worker:worker_1"

key = RedisKeyBuilder.execution_node_heartbeat("node_1")
# -> "heartbeat:node:node_1"

# 缓存键
key = RedisKeyBuilder.func_cache("my_function", "cache_key")
# -> "ginkgo_func_cache_my_function_cache_key"

key = RedisKeyBuilder.sync_progress("tick", "000001.SZ")
# -> "tick_update_000001.SZ"
"""

DATA = """
from ginkgo.data.redis_schema import BacktestWorkerHeartbeat, WorkerStatus

# 创建心跳
heartbeat = BacktestWorkerHeartbeat.create(
    worker_id="worker_1",
    status=WorkerStatus.RUNNING,
    running_tasks=3,
    max_tasks=5
)

# 序列化为 JSON
json_data = heartbeat.to_json()

# 从 JSON 反序列化
heartbeat = BacktestWorkerHeartbeat.from_json(json_data)
"""

SENDING = """
from ginkgo.data.redis_schema import (
    RedisKeyBuilder, BacktestWorkerHeartbeat, WorkerStatus, RedisTTL
)

def send_heartbeat(redis_client, worker_id: str, running_tasks: int):
    key = RedisKeyBuilder.backtest_worker_heartbeat(worker_id)
    heartbeat = BacktestWorkerHeartbeat.create(
        worker_id=worker_id,
        status=WorkerStatus.RUNNING,
        running_tasks=running_tasks,
        max_tasks=5
    )
    redis_client.setex(key, RedisTTL.BACKTEST_WORKER_HEARTBEAT, heartbeat.to_json())
"""

READING = """
from ginkgo.data.redis_schema import (
    RedisKeyPattern, BacktestWorkerHeartbeat, parse_heartbeat_data
)

def get_all_workers(redis_client):
    keys = redis_client.keys(RedisKeyPattern.BACKTEST_WORKER_HEARTBEAT_ALL)
    workers = []
    for key in keys:
        data = parse_heartbeat_data(redis_client.get(key))
        workers.append(data)
    return workers
"""

CACHING = """
from ginkgo.data.redis_schema import RedisKeyBuilder, RedisTTL

def cache_result(redis_client, func_name: str, params: dict, result: any):
    import json
    cache_key = RedisKeyBuilder.func_cache(func_name, str(hash(str(params))))
    redis_client.setex(cache_key, RedisTTL.FUNC_CACHE_DEFAULT, json.dumps(result))
"""

TOOLS = """
from ginkgo.data.redis_schema import parse_heartbeat_data, extract_id_from_key

# 解析心跳数据（自动处理 str/dict/bytes）
data = parse_heartbeat_data(redis_client.get(key))

# 从键名提取 ID
node_id = extract_id_from_key("heartbeat:node:node_123", "heartbeat:node:")
# -> "node_123"
"""


def run(code: str, **names: object) -> dict[str, Any]:
    """Run an example after changing its import."""
    changed = code.replace("ginkgo.data.redis_schema", "bls_agent.workers")
    exec(compile(changed, "contract-001.py", "exec"), names)
    return names


@pytest.fixture
def client(redis_url: str) -> Iterator[redis_py.Redis]:
    """The client of the document: redis-py's plain one."""
    with redis_py.Redis.from_url(redis_url, protocol=2) as opened:
        yield opened


@pytest.fixture
def fresh(client: redis_py.Redis) -> Iterator[str]:
    """A fresh name; its keys are removed."""
    name = f"worker_{secrets.token_hex(4)}"
    yield name
    for key in client.scan_iter(f"*{name}*"):
        client.delete(key)


def test_keys() -> None:
    """Each call gives the key that stands behind its arrow."""
    calls = re.findall(
        r'^key = (\S+\(.*?\))\n# -> "(.*)"$', KEYS_OF_THE_DOCUMENT, re.MULTILINE
    )
    assert len(calls) == 4
    names = run(KEYS_OF_THE_DOCUMENT)
    for call, key in calls:
        assert eval(call, names) == key


def test_data() -> None:
    """A heartbeat goes to JSON and comes back."""
    heartbeat = run(DATA)["heartbeat"]
    assert (heartbeat.worker_id, heartbeat.running_tasks) == ("worker_1", 3)
    assert (heartbeat.max_tasks, heartbeat.status) == (5, "running")


def test_sending_and_reading(client: redis_py.Redis, fresh: str) -> None:
    """What one sends the other reads, beside what somebody broke."""
    run(SENDING)["send_heartbeat"](client, fresh, 3)
    key = f"backtest:worker:{fresh}"
    assert client.ttl(key) == 30
    written = orjson.loads(client.get(key) or b"")
    assert list(written) == [
        "status", "timestamp", "worker_id", "running_tasks", "max_tasks",
        "started_at", "last_heartbeat", "task_uuids",
    ]  # fmt: skip
    client.set(f"{key}-broken", b"\xffnothing")
    workers = run(READING)["get_all_workers"](client)
    assert written in workers
    assert {"raw": "\ufffdnothing"} in workers


def test_caching(client: redis_py.Redis, fresh: str) -> None:
    """The result stands under the document's key for an hour."""
    run(CACHING)["cache_result"](client, fresh, {"a": 1}, {"行": [1]})
    (key,) = client.scan_iter(f"ginkgo_func_cache_{fresh}_*")
    assert client.ttl(key) == 3600
    assert orjson.loads(client.get(key) or b"") == {"行": [1]}


def test_tools(client: redis_py.Redis, fresh: str) -> None:
    """Of a key that is not there nothing is read; an id is taken out of its key."""
    names = run(TOOLS, redis_client=client, key=f"heartbeat:node:{fresh}")
    assert (names["data"], names["node_id"]) == ({}, "node_123")
