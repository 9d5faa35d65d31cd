"""What two looks differ by: who came, left, fell silent, came back, says another thing."""

from __future__ import annotations

from typing import Any

import pytest

from bls_agent.workers import BacktestWorkerHeartbeat, Worker
from bls_agent.workers.watching.roll import Roll

KIND = "backtest_worker_heartbeat"


def payload_of(name: str, **fields: Any) -> bytes:
    """What a worker writes."""
    return BacktestWorkerHeartbeat.create(name, **fields).to_json().encode()


class Stage:
    """A roll, and looks at workers that were written with these values."""

    def __init__(self, **options: bool) -> None:
        self.roll = Roll(**options)

    def look(
        self, now: float, **workers: tuple[float | None, bytes | None]
    ) -> list[str]:
        """Take a look: name → what its TTL and value are now; tell what has changed."""
        seen: dict[bytes, Worker] = {}
        for name, (ttl, payload) in workers.items():
            key = f"backtest:worker:{name}".encode()
            before = self.roll.workers.get(key)
            seen[key] = Worker.read(KIND, key, payload, ttl, before)
        changes = self.roll.compare(seen, now)
        return [f"{one.worker.id} {one.what}" for one in changes if one.worker]


A, B = payload_of("a"), payload_of("b")


def test_whoever_is_there_at_first_has_joined() -> None:
    """In the order of their ids, whatever is wrong with them."""
    stage = Stage()
    told = stage.look(0, b=(3.0, B), a=(None, A), c=(20.0, None), d=(20.0, b"["))
    assert told == ["a joined", "b joined", "c joined", "d joined"]
    assert stage.look(1, b=(2.0, B), a=(None, A), c=(20.0, None), d=(20.0, b"[")) == []


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
    changes = stage.roll.compare({}, 3)
    assert [(one.what, one.worker) for one in changes] == [
        ("left", one.worker) for one in changes
    ]
    assert [one.worker.payload for one in changes if one.worker] == [A, B]
    assert stage.look(4, a=(30.0, A)) == ["a joined"]


def test_whoever_is_silent_is_stale_until_the_next_refresh() -> None:
    """After half of the TTL."""
    stage = Stage()
    stage.look(0, a=(30.0, A))
    assert stage.look(14.9, a=(15.1, A)) == []
    assert stage.look(15, a=(15.0, A)) == ["a stale"]
    assert stage.look(20, a=(10.0, A)) == []
    assert stage.look(21, a=(30.0, A)) == ["a back"]
    assert stage.look(37, a=(14.0, payload_of("a", running_tasks=1))) == [
        "a stale",
        "a changed",
    ]


def test_what_is_wrong_is_a_change() -> None:
    """A value that breaks, a key of another type, a TTL that is lost."""
    stage = Stage()
    stage.look(0, a=(30.0, A))
    assert stage.look(1, a=(29.0, b"{")) == ["a changed"]
    assert stage.look(2, a=(28.0, None)) == ["a changed"]
    assert stage.look(3, a=(28.0, A)) == ["a changed"]
    assert stage.look(4, a=(None, A)) == ["a changed"]


def test_a_change_names_both_states() -> None:
    """How it is, and how it was at the look before."""
    stage = Stage()
    stage.look(0, a=(30.0, A))
    busy = Worker.read(
        KIND, b"backtest:worker:a", payload_of("a", running_tasks=4), 29.0
    )
    (change,) = stage.roll.compare({b"backtest:worker:a": busy}, 1)
    assert change.worker is busy
    assert change.before is not None
    assert change.before.payload == A


def test_after_an_outage_nobody_leaves_before_there_was_time() -> None:
    """For half of the TTL; then whoever is still away has left."""
    stage = Stage()
    stage.look(0, a=(30.0, A), b=(30.0, B))
    stage.roll.hold(100)
    assert stage.look(100) == []
    assert stage.look(110, a=(30.0, A)) == []
    assert stage.look(114.9, a=(26.0, A)) == []
    assert stage.look(115, a=(25.0, A)) == ["b left"]
    assert stage.look(116) == ["a left"]


@pytest.mark.parametrize(("given", "silent"), [(10, 5.0), (60, 30.0), (86_400, 43_200)])
def test_another_ttl_is_learnt_from_a_refresh(given: float, silent: float) -> None:
    """A peer that sets a TTL of its own is judged by that one."""
    stage = Stage()
    stage.look(0, a=(given - 1.0, A))
    told = stage.look(1, a=(given - 0.3, A))
    assert told == (["a back"] if given < 30 else [])
    worker = stage.roll.workers[b"backtest:worker:a"]
    assert worker.age == pytest.approx(0.3)
    assert stage.look(2, a=(given - silent + 0.1, A)) == []
    assert stage.look(3, a=(given - silent, A)) == ["a stale"]


def test_the_contracts_ttl_is_learnt_again() -> None:
    """A peer that was mended is judged as all others."""
    stage = Stage()
    stage.look(0, a=(8.0, A))
    stage.look(1, a=(9.5, A))
    assert stage.roll.workers[b"backtest:worker:a"].age == 0.5
    stage.look(2, a=(29.5, A))
    assert stage.look(3, a=(20.0, A)) == []
    assert stage.roll.workers[b"backtest:worker:a"].age == 10.0


def test_what_happened_long_before_a_look_teaches_nothing() -> None:
    """A minute after a refresh the TTL that it gave cannot be told."""
    stage = Stage()
    stage.look(0, a=(5.0, A))
    stage.look(60, a=(50.0, A))
    assert stage.roll.workers[b"backtest:worker:a"].age is None


def test_nobody_is_remembered_for_ever() -> None:
    """Whoever has left is forgotten with all that was learnt."""
    stage = Stage()
    for number in range(100):
        name = f"w{number}"
        stage.look(number * 3, **{name: (8.0, A)})
        stage.look(number * 3 + 1, **{name: (9.5, A)})
    stage.look(1_000)
    assert not stage.roll.workers
    assert not stage.roll._given
