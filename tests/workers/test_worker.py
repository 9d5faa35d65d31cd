"""What a look at one key says of a worker: every value of the corpus, ages, kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bls_agent.keys import KEYS
from bls_agent.workers import BacktestWorkerHeartbeat, Worker
from bls_agent.workers.heartbeats import KINDS
from bls_agent.workers.watching.worker import HEARTBEATS, LARGEST, find_kind
from tests.corpus import heartbeats

BACKTEST = "backtest_worker_heartbeat"
KEY = "backtest:worker:回测-1".encode()
SOUND = BacktestWorkerHeartbeat.create("回测-1", running_tasks=2).to_json().encode()


def read(payload: bytes | None = SOUND, ttl: float | None = 29.0) -> Worker:
    """A look at one key."""
    return Worker.read(BACKTEST, KEY, payload, ttl)


def test_every_value_is_taken() -> None:
    """Never an exception; the problem is named, and what can be read is there."""
    for name, (kind, payload, problem) in heartbeats.HEARTBEATS.items():
        worker = Worker.read(kind, KEY, payload[: LARGEST + 1], 20.0)
        assert worker.problem == problem, name
        assert isinstance(worker.raw, dict), name
        assert worker.age == 10.0, name
        assert len(worker.payload) <= LARGEST, name
        if problem or kind not in KINDS:
            assert worker.heartbeat is None, name
            assert problem or worker.raw, name
        else:
            assert isinstance(worker.heartbeat, KINDS[kind]), name


def test_every_kind_of_heartbeat_of_the_table_is_known() -> None:
    """The five with a form of their own, components and processes; nothing else."""
    assert set(HEARTBEATS) == {*KINDS, "component_heartbeat", "process_heartbeat"}


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("heartbeat:data_worker:a", "data_worker_heartbeat"),
        ("backtest:worker:a:b", BACKTEST),
        ("heartbeat:node:a\nb", "execution_node_heartbeat"),
        ("heartbeat:component:feed:1:2", "component_heartbeat"),
        ("ginkgo:heartbeat:1", "process_heartbeat"),
        (b"heartbeat:task_timer:\xb6\xa9", "task_timer_heartbeat"),
        ("heartbeat:node:", None),
        ("heartbeat:component:alone", None),
        ("heartbeat:unknown:a", None),
        ("backtest:worker", None),
        ("x:heartbeat:node:a", None),
        ("bls_agent:{heartbeat:node:a}:owner", None),
    ],
)
def test_a_key_tells_its_kind(key: str | bytes, kind: str | None) -> None:
    """Exactly those of the table; what lies beside them is somebody else's."""
    data = key.encode() if isinstance(key, str) else key
    assert find_kind(data, HEARTBEATS) == kind


@pytest.mark.parametrize(
    ("key", "id_"),
    [
        ("backtest:worker:a:b", "a:b"),
        ("backtest:worker:a\nb", "a\nb"),
        ("backtest:worker:[*?]", "[*?]"),
        ("backtest:worker::", ":"),
        ("backtest:worker:backtest:worker:x", "backtest:worker:x"),
    ],
)
def test_an_id_is_all_that_follows(key: str, id_: str) -> None:
    """With colons, newlines and what globs know."""
    worker = Worker.read(BACKTEST, key.encode(), SOUND, 30.0)
    assert (worker.id, worker.key) == (id_, key)
    assert KEYS[BACKTEST].locate(worker_id=worker.id) == key


def test_bytes_of_a_key_are_kept() -> None:
    """As surrogates, so that the key can be asked for again."""
    key = b"backtest:worker:\xb6\xa9"
    worker = Worker.read(BACKTEST, key, SOUND, 30.0)
    assert worker.key.encode("utf-8", "surrogateescape") == key


@pytest.mark.parametrize(
    ("ttl", "age", "stale"),
    [
        (30.0, 0.0, False),
        (15.5, 14.5, False),
        (15.0, 15.0, True),
        (0.0, 30.0, True),
        (30.5, None, False),
        (86_400.0, None, False),
    ],
)
def test_an_age_is_what_the_ttl_lacks(
    ttl: float, age: float | None, stale: bool
) -> None:
    """By the contract's TTL; a longer one tells nothing."""
    worker = read(ttl=ttl)
    assert (worker.ttl, worker.age, worker.stale) == (ttl, age, stale)


def test_a_heartbeat_without_ttl_is_a_problem() -> None:
    """It looks alive for ever; a broken value is the greater one."""
    assert (read(ttl=None).problem, read(ttl=None).age) == ("no_ttl", None)
    assert read(ttl=None).heartbeat is not None
    assert read(b"{", ttl=None).problem == "not_json"


def test_a_key_of_another_type_is_shown() -> None:
    """Nobody can tell how old it is: it is no heartbeat."""
    worker = read(None, ttl=12.0)
    assert (worker.problem, worker.raw, worker.age) == ("wrong_type", {}, None)
    assert (worker.ttl, worker.stale) == (12.0, False)


def test_the_same_bytes_are_not_read_again() -> None:
    """What they say is taken over, what time does is not, nor a TTL that was lacking."""
    first = read(ttl=None)
    second = Worker.read(BACKTEST, KEY, SOUND, 10.0, first)
    assert second.heartbeat is first.heartbeat
    assert (second.problem, second.age, second.stale) == ("", 20.0, True)
    third = Worker.read(BACKTEST, KEY, SOUND, None, second)
    assert (third.problem, third.age, third.stale) == ("no_ttl", None, False)
    other = Worker.read(BACKTEST, KEY, b"[]", 10.0, second)
    assert (other.problem, other.heartbeat) == ("not_an_object", None)
    broken = Worker.read(BACKTEST, KEY, b"[]", None, other)
    assert broken.problem == "not_an_object"


def test_when_it_was_said_is_no_content() -> None:
    """Two heartbeats that differ in their times alone say the same."""
    worker = read()
    later = {**worker.raw, "timestamp": "later", "last_heartbeat": "later"}
    assert worker.content == replace(worker, raw=later).content
    busy = {**worker.raw, "running_tasks": 9}
    assert worker.content != replace(worker, raw=busy).content
    assert worker.content != replace(worker, problem="no_ttl").content


def test_a_value_is_read_once() -> None:
    """Ten thousand large ones take memory enough: both readings share their texts."""
    payload = b'{"status":"running","task_uuids":["a task that is named at length"]}'
    worker = Worker.read(
        "backtest_worker_heartbeat", b"backtest:worker:1", payload, 20.0
    )
    assert isinstance(worker.heartbeat, BacktestWorkerHeartbeat)
    assert worker.heartbeat.task_uuids[0] is worker.raw["task_uuids"][0]
