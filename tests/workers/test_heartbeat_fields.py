"""Heartbeats to the byte, and whatever others write in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from bls_agent import ConfigurationError, DecodeError
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    DataWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    SchedulerHeartbeat,
    TaskTimerHeartbeat,
    WorkerHeartbeat,
    WorkerStatus,
    parse_heartbeat_data,
)
from bls_agent.workers.heartbeat_fields import KINDS

AT = "2026-01-12T12:34:56.789Z"

# One of each kind, and what it looks like in Redis, byte for byte.
WRITTEN: dict[str, tuple[Callable[[], WorkerHeartbeat], str, str]] = {
    "data_worker_heartbeat": (
        lambda: DataWorkerHeartbeat(timestamp=AT, node_id="数据-1", stats={"行": 7}),
        "heartbeat:data_worker:数据-1",
        '{"status":"running","timestamp":"%s","node_id":"数据-1","stats":{"行":7}}',
    ),
    "backtest_worker_heartbeat": (
        lambda: BacktestWorkerHeartbeat(
            status=WorkerStatus.STARTING, timestamp=AT, worker_id="回测-1",
            running_tasks=3, max_tasks=5, started_at=AT, last_heartbeat=AT,
            task_uuids=["甲", "b"],
        ),
        "backtest:worker:回测-1",
        ('{"status":"starting","timestamp":"%s","worker_id":"回测-1","running_tasks":3,'
        '"max_tasks":5,"started_at":"%s","last_heartbeat":"%s","task_uuids":["甲","b"]}'),
    ),
    "execution_node_heartbeat": (
        lambda: ExecutionNodeHeartbeat(
            timestamp=AT, node_id="节点:1", host="10.0.0.1", port=8080,
            active_strategies=2,
        ),
        "heartbeat:node:节点:1",
        ('{"status":"running","timestamp":"%s","node_id":"节点:1","host":"10.0.0.1",'
        '"port":8080,"active_strategies":2}'),
    ),
    "scheduler_heartbeat": (
        lambda: SchedulerHeartbeat(
            timestamp=AT, node_id="s", running_tasks=1, pending_tasks=2
        ),
        "heartbeat:scheduler:s",
        ('{"status":"running","timestamp":"%s","node_id":"s","running_tasks":1,'
        '"pending_tasks":2}'),
    ),
    "task_timer_heartbeat": (
        lambda: TaskTimerHeartbeat(timestamp=AT, node_id="t", jobs_count=9),
        "heartbeat:task_timer:t",
        '{"status":"running","timestamp":"%s","node_id":"t","jobs_count":9}',
    ),
}  # fmt: skip


def test_every_kind_is_here() -> None:
    """The five kinds of the contract; each knows its row, TTL and id."""
    assert KINDS.keys() == WRITTEN.keys()
    assert {kind.template().ttl for kind in KINDS.values()} == {30}


@pytest.mark.parametrize("kind", WRITTEN)
def test_to_the_byte(kind: str) -> None:
    """Key, order of fields and form of each value are the contract's."""
    make, key, written = WRITTEN[kind]
    beat = make()
    assert beat.key == key
    assert beat.to_json() == written.replace("%s", AT)
    assert KINDS[kind].from_json(beat.to_json()) == beat
    assert KINDS[kind].from_json(beat.to_json().encode()) == beat
    assert KINDS[kind].from_json(beat.to_dict()) == beat


@pytest.mark.parametrize("kind", WRITTEN)
def test_create_says_it_now(kind: str) -> None:
    """The timestamp carries its zone, and is now."""
    cls: Any = KINDS[kind]
    beat = cls.create("甲", status=WorkerStatus.STOPPING)
    assert (beat.id, beat.status) == ("甲", WorkerStatus.STOPPING)
    assert abs(beat.said_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert beat.timestamp.endswith("Z")
    assert cls.create("甲").status is WorkerStatus.RUNNING


S = WorkerStatus.STOPPING


@pytest.mark.parametrize(
    ("cls", "given", "fields"),
    [
        (DataWorkerHeartbeat, ("a", S, {"x": 1}), ("node_id", "status", "stats")),
        (BacktestWorkerHeartbeat, ("a", S, 3, 9, AT, ["t"]),
         ("worker_id", "status", "running_tasks", "max_tasks", "started_at", "task_uuids")),
        (ExecutionNodeHeartbeat, ("a", "主机", 80, S, 7),
         ("node_id", "host", "port", "status", "active_strategies")),
        (SchedulerHeartbeat, ("a", S, 1, 2), ("node_id", "status", "running_tasks", "pending_tasks")),
        (TaskTimerHeartbeat, ("a", S, 4), ("node_id", "status", "jobs_count")),
    ],
)  # fmt: skip
def test_the_order_of_the_original(
    cls: Any, given: tuple[object, ...], fields: tuple[str, ...]
) -> None:
    """A call with arguments by place means the same as in the system it comes from."""
    beat = cls.create(*given)
    assert tuple(getattr(beat, name) for name in fields) == given


@pytest.mark.parametrize(
    ("cls", "given", "name"),
    [
        (BacktestWorkerHeartbeat, ("a", S, 3, 9, None, "abc"), "task_uuids"),
        (BacktestWorkerHeartbeat, ("a", S, 3, 9, None, 5), "task_uuids"),
        (BacktestWorkerHeartbeat, ("a", S, 3, 9, ["t"]), "started_at"),
        (BacktestWorkerHeartbeat, ("a", S, 3, 9, "yesterday"), "started_at"),
        (BacktestWorkerHeartbeat, ("a", 3), "status"),
        (ExecutionNodeHeartbeat, ("a", S), "host"),
        (ExecutionNodeHeartbeat, ("a", "h", S), "port"),
        (ExecutionNodeHeartbeat, ("a", "h", 80, 7), "status"),
        (DataWorkerHeartbeat, ("a", S, "ab"), "stats"),
        (DataWorkerHeartbeat, ("a", S, [("x", 1)]), "stats"),
        (DataWorkerHeartbeat, ("a", S, {"x": {1}}), "stats"),
        (DataWorkerHeartbeat, (None,), "node_id"),
        (ExecutionNodeHeartbeat, ("a", "h", -1), "port"),
        (SchedulerHeartbeat, ("a", "gone"), "status"),
    ],
)
def test_wrong_types_are_said_at_once(
    cls: Any, given: tuple[object, ...], name: str
) -> None:
    """By the name of the argument; nothing becomes a list of characters."""
    with pytest.raises(ConfigurationError) as caught:
        cls.create(*given)
    assert caught.value.name == name


def test_when_a_backtest_worker_was_started() -> None:
    """As text, or as a datetime; one without a zone is UTC, as it is when it is read."""
    moment = datetime(2026, 1, 31, 12, 0, 0, 5_000, tzinfo=UTC)
    for given in (moment, moment.replace(tzinfo=None)):
        beat = BacktestWorkerHeartbeat.create("a", started_at=given)
        assert beat.started_at == "2026-01-31T12:00:00.005Z"
    assert BacktestWorkerHeartbeat.create("a", task_uuids=iter("xy")).task_uuids == [
        "x",
        "y",
    ]


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_changed_one_is_another_one(kind: str) -> None:
    """It is said later, keeps its id, and leaves the first one alone."""
    beat = WRITTEN[kind][0]()
    before = beat.to_json()
    later = beat.changed(status="ERROR")
    assert later.status is WorkerStatus.ERROR
    assert later.timestamp > beat.timestamp
    assert later.id == beat.id
    assert beat.to_json() == before
    for wrong in ({"nothing": 1}, {beat.id_field: "x"}, {"status": "gone"}):
        with pytest.raises(ConfigurationError):
            beat.changed(**wrong)


def test_a_backtest_worker_says_it_once_more() -> None:
    """In place, as the document has it; last_heartbeat follows the timestamp."""
    beat = BacktestWorkerHeartbeat.create("worker_1", running_tasks=3)
    assert beat.started_at == beat.timestamp == beat.last_heartbeat
    started = beat.timestamp = beat.last_heartbeat = beat.started_at = AT
    beat.update_heartbeat()
    assert (beat.running_tasks, beat.started_at) == (3, started)
    assert beat.timestamp == beat.last_heartbeat > AT
    beat.update_heartbeat(running_tasks=0)
    assert beat.running_tasks == 0
    with pytest.raises(ConfigurationError, match="running_tasks"):
        beat.update_heartbeat(-1)
    later = beat.changed(running_tasks=4)
    assert later.last_heartbeat == later.timestamp


# What others write → the fields that are read from it.
TOLERATED: dict[str, tuple[bytes, dict[str, object]]] = {
    "only-a-status": (
        b'{"status":"running"}',
        {"running_tasks": 0, "max_tasks": 5, "worker_id": "", "timestamp": ""},
    ),
    "unknown-fields": (
        b'{"zzz":[1],"status":"error","worker_id":"a","kind":"x"}',
        {"status": WorkerStatus.ERROR, "worker_id": "a"},
    ),
    "other-order-and-blanks": (
        b' {\n "worker_id" : "a" ,\t"status":"running" }\n',
        {"worker_id": "a"},
    ),
    "capitals": (b'{"status":"RUNNING"}', {"status": WorkerStatus.RUNNING}),
    "numbers-as-text": (
        b'{"status":"running","running_tasks":"3","max_tasks":4.0,"worker_id":7}',
        {"running_tasks": 3, "max_tasks": 4, "worker_id": "7"},
    ),
    "nulls": (
        b'{"status":"running","running_tasks":null,"task_uuids":null,"timestamp":null}',
        {"running_tasks": 0, "task_uuids": [], "timestamp": ""},
    ),
    "no-zone": (
        b'{"status":"running","timestamp":"2026-01-12T12:00:00"}',
        {"said_at": datetime(2026, 1, 12, 12, tzinfo=UTC)},
    ),
    "other-zone": (
        b'{"status":"running","timestamp":"2026-01-12T20:00:00+08:00"}',
        {"said_at": datetime(2026, 1, 12, 12, tzinfo=UTC)},
    ),
    "no-time": (
        b'{"status":"running","timestamp":"gestern"}',
        {"timestamp": "gestern", "said_at": None},
    ),
    "twice": (b'{"status":"error","status":"running"}', {"status": "running"}),
}


@pytest.mark.parametrize("name", TOLERATED)
def test_reading_is_tolerant(name: str) -> None:
    """What has a meaning is read, whoever wrote it."""
    payload, expected = TOLERATED[name]
    beat = BacktestWorkerHeartbeat.from_json(payload)
    assert {field: getattr(beat, field) for field in expected} == expected


# What is no heartbeat → why.
REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not_json"),
    "bare-word": (b"running", "not_json"),
    "cut": (b'{"status":"running","worker_id":"a"', "not_json"),
    "two-documents": (b'{"status":"running"}{}', "not_json"),
    "nan": (b'{"status":"running","running_tasks":NaN}', "not_json"),
    "gbk": ('{"status":"running","worker_id":"订单"}'.encode("gbk"), "not_utf8"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00.", "not_utf8"),
    "array": (b'["running"]', "not_an_object"),
    "text": (b'"running"', "not_an_object"),
    "null": (b"null", "not_an_object"),
    "number": (b"1768221296", "not_an_object"),
    "deep": (b'{"stats":' + b"[" * 5000, "too_deep"),
    "no-status": (b"{}", "bad_field"),
    "null-status": (b'{"status":null}', "bad_field"),
    "odd-status": (b'{"status":"sleeping"}', "bad_field"),
    "status-of-another-kind": (b'{"status":["running"]}', "bad_field"),
    "negative": (b'{"status":"running","running_tasks":-1}', "bad_field"),
    "fraction": (b'{"status":"running","running_tasks":1.5}', "bad_field"),
    "truth": (b'{"status":"running","running_tasks":true}', "bad_field"),
    "no-number": (b'{"status":"running","max_tasks":"many"}', "bad_field"),
    "tasks-as-text": (b'{"status":"running","task_uuids":"a"}', "bad_field"),
    "id-of-another-kind": (b'{"status":"running","worker_id":{}}', "bad_field"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_heartbeat(name: str) -> None:
    """It is refused with its reason and its first bytes, never another exception."""
    payload, reason = REFUSED[name]
    with pytest.raises(DecodeError) as raised:
        BacktestWorkerHeartbeat.from_json(payload)
    assert raised.value.reason == reason
    assert raised.value.payload == payload[:64]


@pytest.mark.parametrize("name", REFUSED)
def test_parsing_never_raises(name: str) -> None:
    """Always a dict: an object as it is, anything else as raw text."""
    payload, reason = REFUSED[name]
    found = parse_heartbeat_data(payload)
    if reason == "bad_field":
        assert found == orjson.loads(payload)
    else:
        assert found == {"raw": payload.decode("utf-8", "replace")}


def test_parsing_what_there_is() -> None:
    """Text, bytes, a dict, nothing, as the document says."""
    given = {"status": "running"}
    assert parse_heartbeat_data('{"status":"running"}') == given
    assert parse_heartbeat_data(b'{"status":"running"}') == given
    found = parse_heartbeat_data(given)
    assert found == given
    assert found is not given
    assert parse_heartbeat_data(None) == {}
    assert parse_heartbeat_data("running") == {"raw": "running"}
    assert parse_heartbeat_data("") == {"raw": ""}


@pytest.mark.parametrize("wrong", ["", " a", "a\nb", "a\x00", "\ud800"], ids=ascii)
def test_ids_that_no_peer_could_use(wrong: str) -> None:
    """Such a heartbeat can be read, but has no key to be written under."""
    beat = SchedulerHeartbeat(node_id=wrong)
    with pytest.raises(ConfigurationError, match="node_id"):
        _ = beat.key


def test_the_order_of_fields_is_in_the_classes() -> None:
    """What a subclass adds comes behind status and timestamp."""
    for kind in KINDS.values():
        assert [field.name for field in fields(kind)][:2] == ["status", "timestamp"]
