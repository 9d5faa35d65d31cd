"""The names of contract 001: the document's lists to the byte, and that all is derived."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import IntEnum
from uuid import UUID

import pytest

from bls_agent import ConfigurationError
from bls_agent.core.keys import KEYS, Contract, KeyTemplate, RedisType
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    RedisKeyBuilder,
    RedisKeyPattern,
    RedisKeyPrefix,
    RedisTTL,
    extract_id_from_key,
    schema,
)

PREFIXES = {
    "GENERIC_HEARTBEAT": "heartbeat",
    "DATA_WORKER_HEARTBEAT": "heartbeat:data_worker",
    "BACKTEST_WORKER_HEARTBEAT": "backtest:worker",
    "EXECUTION_NODE_HEARTBEAT": "heartbeat:node",
    "SCHEDULER_HEARTBEAT": "heartbeat:scheduler",
    "TASK_TIMER_HEARTBEAT": "heartbeat:task_timer",
    "COMPONENT_HEARTBEAT": "heartbeat:component",
    "PROCESS_HEARTBEAT": "ginkgo:heartbeat",
    "MAIN_CONTROL": "ginkgo:maincontrol",
    "WATCHDOG": "ginkgo:watchdog",
    "THREAD_POOL": "ginkgo:thread_pool",
    "DATA_WORKER_POOL": "ginkgo:dataworker_pool",
    "WORKER_STATUS": "ginkgo:worker_status",
    "TASK_STATUS": "ginkgo:task_status",
    "BACKTEST_TASK_PROGRESS": "backtest:task",
    "SYNC_PROGRESS": "",
    "FUNC_CACHE": "ginkgo_func_cache",
}

PATTERNS = {
    "ALL_HEARTBEATS": "heartbeat:*",
    "GENERIC_HEARTBEAT_ALL": "heartbeat:*",
    "DATA_WORKER_HEARTBEAT_ALL": "heartbeat:data_worker:*",
    "EXECUTION_NODE_HEARTBEAT_ALL": "heartbeat:node:*",
    "BACKTEST_WORKER_HEARTBEAT_ALL": "backtest:worker:*",
    "SCHEDULER_HEARTBEAT_ALL": "heartbeat:scheduler:*",
    "TASK_TIMER_HEARTBEAT_ALL": "heartbeat:task_timer:*",
    "TASK_STATUS_ALL": "ginkgo:task_status:*",
    "COMPONENT_HEARTBEAT_ALL": "heartbeat:component:*",
    "BACKTEST_TASK_PROGRESS_ALL": "backtest:task:*:progress",
    "FUNC_CACHE_ALL": "ginkgo_func_cache_*",
    "SYNC_PROGRESS_ALL": "*_update_*",
    "ALL_GINKGO_KEYS": "ginkgo:*",
}

TTLS = {
    "GENERIC_HEARTBEAT": 30,
    "DATA_WORKER_HEARTBEAT": 30,
    "BACKTEST_WORKER_HEARTBEAT": 30,
    "EXECUTION_NODE_HEARTBEAT": 30,
    "SCHEDULER_HEARTBEAT": 30,
    "TASK_TIMER_HEARTBEAT": 30,
    "COMPONENT_HEARTBEAT": 30,
    "PROCESS_HEARTBEAT": 30,
    "TASK_STATUS": 86400,
    "BACKTEST_TASK_PROGRESS": 7200,
    "SYNC_PROGRESS": 2592000,
    "FUNC_CACHE": 3600,
    "FUNC_CACHE_DEFAULT": 3600,
}

PARAMETERS = {
    "generic_heartbeat": ["kind", "worker_id"],
    "data_worker_heartbeat": ["node_id"],
    "backtest_worker_heartbeat": ["worker_id"],
    "execution_node_heartbeat": ["node_id"],
    "scheduler_heartbeat": ["node_id"],
    "task_timer_heartbeat": ["node_id"],
    "func_cache": ["func", "key"],
    "sync_progress": ["type", "code"],
    "task_status": ["task_id"],
    "component_heartbeat": ["component_type", "component_id"],
    "process_heartbeat": ["pid"],
    "main_control": [],
    "watchdog": [],
    "thread_pool": [],
    "data_worker_pool": [],
    "worker_status": ["pid"],
    "backtest_task_progress": ["task_id"],
}


@pytest.mark.parametrize("name", PREFIXES)
def test_prefixes(name: str) -> None:
    """Each is that of the document."""
    assert getattr(RedisKeyPrefix, name) == PREFIXES[name]


def test_there_are_no_other_prefixes() -> None:
    """Every row has one, and nothing else has."""
    public = {name for name in dir(RedisKeyPrefix) if name.isupper()}
    assert public == set(PREFIXES) == {name.upper() for name in schema.ROWS}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    """Each is that of the document."""
    assert getattr(RedisKeyPattern, name) == PATTERNS[name]


@pytest.mark.parametrize("name", TTLS)
def test_ttls(name: str) -> None:
    """Each is that of the document, and there are no others."""
    assert getattr(RedisTTL, name) == TTLS[name]
    assert {name for name in dir(RedisTTL) if name.isupper()} == set(TTLS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_signatures(name: str) -> None:
    """Names and order of the arguments are the document's, for editors, too."""
    build = getattr(RedisKeyBuilder, name)
    assert list(inspect.signature(build).parameters) == PARAMETERS[name]
    assert build.__name__ == name
    assert KEYS[name].template in build.__doc__
    named = dict.fromkeys(PARAMETERS[name], "x")
    assert build(**named) == build(*named.values())


class Number(IntEnum):
    """An integer of one's own."""

    SEVEN = 7


@pytest.mark.parametrize(
    "given", [UUID("12345678123456781234567812345678"), 4711, Number.SEVEN, 0]
)
def test_what_an_f_string_takes(given: object) -> None:
    """An id may be a UUID or an integer: the key is that of the document's f-string."""
    assert RedisKeyBuilder.task_status(given) == f"ginkgo:task_status:{given}"
    assert RedisKeyBuilder.component_heartbeat("a", component_id=given) == (
        f"heartbeat:component:a:{given}"
    )
    beat = BacktestWorkerHeartbeat.create(given, task_uuids=[given])  # type: ignore[arg-type,list-item]
    assert beat.key == f"backtest:worker:{given}"
    assert beat.task_uuids == [f"{given}"]


def test_arguments_are_checked() -> None:
    """The wrong number is a TypeError, a wrong value says which one it is."""
    with pytest.raises(TypeError):
        RedisKeyBuilder.task_status()
    with pytest.raises(TypeError):
        RedisKeyBuilder.task_status("a", "b")
    with pytest.raises(TypeError):
        RedisKeyBuilder.task_status(id="a")
    for wrong in ("", " a", "a\nb", "a\x00"):
        with pytest.raises(ConfigurationError, match="task_id"):
            RedisKeyBuilder.task_status(wrong)
    for odd in (True, 1.5, None, b"a"):
        with pytest.raises(ConfigurationError, match="task_id"):
            RedisKeyBuilder.task_status(odd)
    with pytest.raises(ConfigurationError, match="component_type"):
        RedisKeyBuilder.component_heartbeat("a:b", "c")
    for taken in ("node", "component", "a:b"):
        with pytest.raises(ConfigurationError, match="kind"):
            RedisKeyBuilder.generic_heartbeat(taken, "c")


@pytest.mark.parametrize(
    ("owner", "wrong", "right"),
    [
        (RedisKeyPrefix, "TASK_STATE", "TASK_STATUS"),
        (RedisKeyPattern, "TASK_STATUS", "TASK_STATUS_ALL"),
        (RedisKeyBuilder, "tasks_status", "task_status"),
        (RedisTTL, "FUNC_CACHES", "FUNC_CACHE"),
    ],
)
def test_an_unknown_name_is_helped(owner: type, wrong: str, right: str) -> None:
    """The nearest name is suggested."""
    with pytest.raises(AttributeError, match=f"did you mean {right}"):
        getattr(owner, wrong)
    assert not hasattr(owner, "NOTHING_LIKE_IT")


@pytest.fixture
def one_row_more(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A copy of the rows of the table with another one."""
    row = KeyTemplate("风控:{desk}:限额", RedisType.STRING, 77, Contract.WORKERS)
    derived = (
        schema._list_prefixes, schema._list_patterns, schema._list_ttls,
        schema._list_builders,
    )  # fmt: skip
    monkeypatch.setattr(schema, "ROWS", {**schema.ROWS, "risk_limit": row})
    for listing in derived:
        listing.cache_clear()
    yield "risk_limit"
    monkeypatch.undo()
    for listing in derived:
        listing.cache_clear()


def test_adding_a_key_is_adding_a_row(one_row_more: str) -> None:
    """All four lists know it at once."""
    name = one_row_more.upper()
    assert getattr(RedisKeyPrefix, name) == "风控"
    assert getattr(RedisKeyPattern, f"{name}_ALL") == "风控:*:限额"
    assert getattr(RedisKeyBuilder, one_row_more)("一部") == "风控:一部:限额"
    assert getattr(RedisTTL, name) == 77
    for owner in (RedisKeyPrefix, RedisTTL):
        assert name in dir(owner)


@pytest.mark.parametrize(
    ("key", "prefix", "expected"),
    [
        ("heartbeat:node:node_123", "heartbeat:node:", "node_123"),
        ("heartbeat:node:node_123", "heartbeat:node", "node_123"),
        (b"heartbeat:node:node_123", "heartbeat:node:", "node_123"),
        ("heartbeat:node:a:b:c", "heartbeat:node:", "a:b:c"),
        ("heartbeat:scheduler:s1", "heartbeat:node:", "s1"),
        ("没有冒号", "heartbeat:node:", "没有冒号"),
        ("heartbeat:node:", "heartbeat:node:", ""),
        ("heartbeat:node:\n*?", "heartbeat:node:", "\n*?"),
        (b"heartbeat:node:\xb6\xa9", "heartbeat:node:", "\udcb6\udca9"),
        ("", "", ""),
    ],
    ids=ascii,
)
def test_extracting_an_id(key: str | bytes, prefix: str, expected: str) -> None:
    """The prefix goes; of a key without it, the last part stays."""
    assert extract_id_from_key(key, prefix) == expected
