"""Heartbeats to the byte, and whatever others write in their place."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest

from bls_agent import ConfigurationError, DecodeError
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    DataWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    GenericHeartbeat,
    SchedulerHeartbeat,
    TaskTimerHeartbeat,
    WorkerStatus,
    parse_heartbeat_data,
)
from bls_agent.workers.heartbeat_fields import KINDS
from tests.corpus.loader import load_heartbeats, sound_heartbeats

AT = "2026-01-12T12:34:56.789Z"


@pytest.mark.parametrize("kind", KINDS)
def test_create_says_it_now(kind: str) -> None:
    """The timestamp carries its zone, and is now."""
    cls: Any = KINDS[kind]
    beat = cls.create("甲", status=WorkerStatus.STOPPING)
    assert (beat.id, beat.status) == ("甲", WorkerStatus.STOPPING)
    moment = datetime.fromisoformat(beat.timestamp)
    assert abs(moment - datetime.now(UTC)) < timedelta(minutes=1)
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_one_is_another_one(kind: str) -> None:
    """It is said later, keeps its id, and leaves the first one alone."""
    beat = KINDS[kind](**sound_heartbeats()[kind])
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


class State(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    """A status, as older programs declare it."""

    BUSY = "RUNNING"


def test_a_status_may_be_a_member_of_another_enum() -> None:
    """Its value counts, in capital letters, too."""
    beat = SchedulerHeartbeat.create("a", State.BUSY)  # type: ignore[arg-type]
    assert beat.status is WorkerStatus.RUNNING


def test_a_large_number_is_written_with_its_digits() -> None:
    """Not as a text; a count has 20 digits at most."""
    beat = DataWorkerHeartbeat.create("a", stats={"行": 2**64})
    assert '"stats":{"行":18446744073709551616}' in beat.to_json()
    assert json.loads(GenericHeartbeat(own={"行": 2**64}).to_json())["行"] == 2**64
    busy = SchedulerHeartbeat.create("a", S, 10**20 - 1)
    assert SchedulerHeartbeat.from_json(busy.to_json()) == busy
    with pytest.raises(ConfigurationError, match="running_tasks"):
        SchedulerHeartbeat.create("a", S, 10**20)
    beat.stats["行"] = {1}  # the class was not asked
    assert json.loads(beat.to_json())["stats"] == {"行": [1]}


def test_reading_is_tolerant() -> None:
    """A time that is none is read as it is."""
    payload = b'{"status":"running","timestamp":"gestern"}'
    assert BacktestWorkerHeartbeat.from_json(payload).timestamp == "gestern"


def test_own_fields_do_not_hide_status_and_timestamp() -> None:
    """The status of the heartbeat is written, in its place."""
    own = {"timestamp": 1, "page": 3, "status": "busy"}
    text = GenericHeartbeat(timestamp=AT, own=own).to_json()
    assert text == f'{{"status":"running","timestamp":"{AT}","page":3}}'


# What may be under the key of a kind that has a form, and is not cut when it is read.
STORED = {
    name: item
    for name, item in load_heartbeats().items()
    if item.kind in KINDS and item.problem != "too_large"
}


def test_no_heartbeat() -> None:
    """It is refused with its reason and its first bytes, never another exception."""
    for name, (kind, payload, problem) in STORED.items():
        if problem:
            with pytest.raises(DecodeError) as raised:
                KINDS[kind].from_json(payload)
            assert raised.value.reason == problem, name
            assert raised.value.payload == payload[:64], name


def test_parsing_never_raises() -> None:
    """Always a dict: an object as it is, anything else as raw text."""
    for name, (_, payload, problem) in STORED.items():
        found = parse_heartbeat_data(payload)
        if problem in ("", "bad_field"):
            assert found == json.loads(payload), name
        else:
            assert found == {"raw": payload.decode("utf-8", "replace")}, name


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
    for surrogate in ("\ud800", "\udcff"):
        assert parse_heartbeat_data(surrogate) == {"raw": surrogate}
        with pytest.raises(DecodeError, match="not_utf8"):
            SchedulerHeartbeat.from_json(surrogate)


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
