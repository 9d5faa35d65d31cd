"""Looks at workers: every value of the corpus, ages, kinds; what two looks differ by."""

from __future__ import annotations

from typing import Any

import pytest

from bls_agent.core.keys import KEYS
from bls_agent.workers import BacktestWorkerHeartbeat, GenericHeartbeat, Worker
from bls_agent.workers.heartbeat_fields import KINDS
from bls_agent.workers.worker import HEARTBEATS, WorkerDiff, find_row

BACKTEST = "backtest_worker_heartbeat"
KEY = "backtest:worker:回测-1".encode()
SOUND = BacktestWorkerHeartbeat.create("回测-1", running_tasks=2).to_json().encode()


def read(payload: bytes | None = SOUND, ttl: float | None = 29.0) -> Worker:
    """A look at one key."""
    return Worker.read(BACKTEST, KEY, payload, ttl)


def test_every_kind_of_heartbeat_of_the_table_is_known() -> None:
    """The five with a form of their own, and three that hold anything."""
    others = {"generic_heartbeat", "component_heartbeat", "process_heartbeat"}
    assert set(HEARTBEATS) == {*KINDS, *others}


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
        ("heartbeat:下载:a:b", "generic_heartbeat"),
        ("heartbeat:下载", None),
        ("heartbeat::a", None),
        ("backtest:worker", None),
        ("x:heartbeat:node:a", None),
        ("bls_agent:{heartbeat:node:a}:owner", None),
    ],
)
def test_a_key_tells_its_kind(key: str | bytes, kind: str | None) -> None:
    """Exactly those of the table; what lies beside them is somebody else's."""
    data = key.encode() if isinstance(key, str) else key
    assert find_row(data, HEARTBEATS) == kind


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


@pytest.mark.parametrize(
    ("payload", "status", "raw"),
    [
        (b'{"status":"stopping","page":3}', "stopping", {"status": "stopping", "page": 3}),
        ('{"status":"忙","page":3}'.encode(), None, {"status": "忙", "page": 3}),
        (b'{"status":"ERROR","timestamp":1.5}', "error", {"status": "ERROR", "timestamp": 1.5}),
        (b'{"page":3}', None, {"page": 3}),
        (b"[1]", None, {"raw": "[1]"}),
        (b"alive", None, {"raw": "alive"}),
        (b"", None, {"raw": ""}),
    ],
)  # fmt: skip
def test_a_generic_heartbeat_holds_anything(
    payload: bytes, status: str | None, raw: dict[str, Any]
) -> None:
    """Its kind is in the key; a value without a status is no problem."""
    key = "heartbeat:下载:上海:1".encode()
    worker = Worker.read("generic_heartbeat", key, payload, 29.0)
    assert (worker.kind, worker.id, worker.problem) == ("下载", "上海:1", "")
    assert (worker.status, worker.raw) == (status, raw)
    beat = worker.heartbeat
    assert (beat is not None) == (status == "stopping")
    assert worker.healthy == (status != "error")
    if isinstance(beat, GenericHeartbeat):
        assert (beat.kind_name, beat.id, beat.own) == ("下载", "上海:1", {"page": 3})
        assert beat.key == worker.key


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
    """Its age is unknown, because it is no heartbeat."""
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


def test_a_value_is_read_once() -> None:
    """Ten thousand large ones take memory enough: both readings share their texts."""
    payload = b'{"status":"running","task_uuids":["a task that is named at length"]}'
    worker = Worker.read(
        "backtest_worker_heartbeat", b"backtest:worker:1", payload, 20.0
    )
    assert isinstance(worker.heartbeat, BacktestWorkerHeartbeat)
    assert worker.heartbeat.task_uuids[0] is worker.raw["task_uuids"][0]


def payload_of(name: str, **fields: Any) -> bytes:
    """What a worker writes."""
    return BacktestWorkerHeartbeat.create(name, **fields).to_json().encode()


class Stage:
    """A diff, and looks at workers that were written with these values."""

    def __init__(self, **options: bool) -> None:
        self.diff = WorkerDiff(**options)

    def look(
        self, now: float, **workers: tuple[float | None, bytes | None]
    ) -> list[str]:
        """Take a look: name → what its TTL and value are now; tell what has changed."""
        seen: dict[bytes, Worker] = {}
        for name, (ttl, payload) in workers.items():
            key = f"backtest:worker:{name}".encode()
            before = self.diff.workers.get(key)
            seen[key] = Worker.read(BACKTEST, key, payload, ttl, before)
        changes = self.diff.compare(seen, now)
        return [f"{one.worker.id} {one.what}" for one in changes if one.worker]


A, B = payload_of("a"), payload_of("b")


def test_a_refresh_is_no_change() -> None:
    """Also when its times are new."""
    stage = Stage()
    stage.look(0, a=(21.0, A))
    later = BacktestWorkerHeartbeat.from_json(A).changed(timestamp="later")
    assert stage.look(1, a=(30.0, later.to_json().encode())) == []
    busy = later.changed(running_tasks=1)
    assert stage.look(2, a=(29.0, busy.to_json().encode())) == ["a changed"]


def test_a_refresh_is_told_to_whoever_wants_to_know() -> None:
    """Once for each, and not beside anything else."""
    stage = Stage(refreshes=True)
    assert stage.look(0, a=(21.0, A), b=(None, B)) == ["a joined", "b joined"]
    assert stage.look(1, a=(30.0, A), b=(None, B)) == ["a refreshed"]
    assert stage.look(2, a=(29.0, A), b=(None, B)) == []
    later = BacktestWorkerHeartbeat.from_json(B).changed(timestamp="later")
    assert stage.look(3, a=(14.0, A), b=(None, later.to_json().encode())) == [
        "a stale",
        "b refreshed",
    ]
    assert stage.look(4, a=(30.0, A), b=(30.0, B)) == ["a back", "b changed"]


def test_whoever_is_gone_has_left_and_may_join_again() -> None:
    """With what was seen last."""
    stage = Stage()
    stage.look(0, a=(2.0, A), b=(30.0, B))
    changes = stage.diff.compare({}, 3)
    assert [(one.what, one.worker) for one in changes] == [
        ("left", one.worker) for one in changes
    ]
    assert [one.worker.payload for one in changes if one.worker] == [A, B]
    assert stage.look(4, a=(30.0, A)) == ["a joined"]


def test_what_is_wrong_is_a_change() -> None:
    """A value that breaks, a key of another type, a TTL that is lost."""
    stage = Stage()
    stage.look(0, a=(30.0, A))
    assert stage.look(1, a=(29.0, b"{")) == ["a changed"]
    assert stage.look(2, a=(28.0, None)) == ["a changed"]
    assert stage.look(3, a=(28.0, A)) == ["a changed"]
    assert stage.look(4, a=(None, A)) == ["a changed"]


def test_a_value_of_many_levels_is_compared() -> None:
    """Python itself compares no more lists than calls that it may nest."""
    stage = Stage()
    for now, word in enumerate(["1", "2", "2"]):
        text = "[" * 1_000 + "]" * 1_000
        payload = f'{{"a":{text},"b":{word},"timestamp":{now}}}'.encode()
        worker = Worker.read("generic_heartbeat", b"heartbeat:a:1", payload, 20.0)
        changes = stage.diff.compare({b"heartbeat:a:1": worker}, now)
        assert [one.what for one in changes] == [["joined"], ["changed"], []][now]


def test_a_change_names_both_states() -> None:
    """How it is, and how it was at the look before."""
    stage = Stage()
    stage.look(0, a=(30.0, A))
    busy = Worker.read(
        BACKTEST, b"backtest:worker:a", payload_of("a", running_tasks=4), 29.0
    )
    (change,) = stage.diff.compare({b"backtest:worker:a": busy}, 1)
    assert change.worker is busy
    assert change.before is not None
    assert change.before.payload == A


def test_after_an_outage_nobody_leaves_before_there_was_time() -> None:
    """For half of the TTL; then whoever is still away has left."""
    stage = Stage()
    stage.look(0, a=(30.0, A), b=(30.0, B))
    stage.diff.hold(100)
    assert stage.look(100) == []
    assert stage.look(110, a=(30.0, A)) == []
    assert stage.look(114.9, a=(26.0, A)) == []
    assert stage.look(115, a=(25.0, A)) == ["b left"]
    assert stage.look(116) == ["a left"]
    long = Worker.read(BACKTEST, KEY, SOUND, 250.0, full_ttl=300.0)
    stage.diff.compare({KEY: long}, 190)
    stage.diff.hold(200)
    assert stage.look(349) == []
    assert stage.look(350) == ["回测-1 left"]
    short = Worker.read(BACKTEST, KEY, SOUND, 1.0, full_ttl=2.0)
    stage.diff.compare({KEY: short}, 390)
    stage.diff.hold(400)
    assert stage.look(414.9) == []


def test_a_lease_tells_the_full_ttl() -> None:
    """Of the worker that has it; an age that does not fit it is unknown."""
    worker = Worker.read(BACKTEST, KEY, SOUND, 29.0, full_ttl=60.0)
    assert (worker.age, worker.stale) == (31.0, True)
    again = Worker.read(BACKTEST, KEY, SOUND, 59.0, worker, full_ttl=60.0)
    assert (again.age, again.stale) == (1.0, False)
    without = Worker.read(BACKTEST, KEY, SOUND, 29.0, again)
    assert (without.age, without.stale) == (1.0, False)
    assert Worker.read(BACKTEST, KEY, SOUND, 61.0, without, full_ttl=60.0).age is None


def test_nobody_is_remembered_for_ever() -> None:
    """Whoever has left is forgotten."""
    stage = Stage()
    for number in range(100):
        stage.look(number, **{f"w{number}": (8.0, A)})
    assert len(stage.diff.workers) == 1
    stage.look(1_000)
    assert not stage.diff.workers
