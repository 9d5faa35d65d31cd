"""One heartbeat without a server: its value, when it is due, what a reply means."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from bls_agent import (
    ConfigurationError,
    LeaseHeldError,
)
from bls_agent.runtime.lease import ValueLease
from bls_agent.workers import BacktestWorkerHeartbeat
from bls_agent.workers.heartbeat_state import (
    CurrentHeartbeat,
    HeartbeatCounts,
    HeartbeatState,
)

INTERVAL = 10.0
DEAD = "token@dead"


@pytest.fixture
def state() -> HeartbeatState:
    """A heartbeat that was just opened."""
    current = CurrentHeartbeat(BacktestWorkerHeartbeat.create("回测-1"))
    return HeartbeatState(
        current,
        ValueLease(current.now.key, 30.0, is_dead=lambda token: token == DEAD),
        interval=INTERVAL,
        counts=HeartbeatCounts(),
    )


def reply_with(
    state: HeartbeatState, what: bytes, number: int = 0, whose: bytes = b""
) -> float:
    """Ask for a beat, and give the reply."""
    state.beat()
    return state.handle_reply([what, number, whose], sent_at=0.0, now=0.0)


def test_a_fleet_drifts_apart(state: HeartbeatState) -> None:
    """The next beat is due after 80 to 100 % of the interval, never later."""
    due = [reply_with(state, b"written") for _ in range(1_000)]
    assert min(due) >= 0.8 * INTERVAL
    assert max(due) <= INTERVAL
    assert max(due) - min(due) > 0.19 * INTERVAL
    assert state.counts.writes == 1_000
    assert state.is_written


@pytest.mark.parametrize("what", [b"held", b"stands"])
def test_somebody_else_has_it(state: HeartbeatState, what: bytes) -> None:
    """Looked at again right behind its end, but not less often than one beats."""
    assert 0.5 < reply_with(state, what, 500) < 0.6
    assert isinstance(state.conflict, LeaseHeldError)
    assert state.conflict.remaining == 0.5
    assert reply_with(state, what, 29_000) <= INTERVAL
    assert 0.8 * INTERVAL <= reply_with(state, what, -1) <= INTERVAL
    assert state.answered.is_set()


def test_a_dead_owner_is_inherited_from(state: HeartbeatState) -> None:
    """Asked again at once, once: who lives after all is believed."""
    assert reply_with(state, b"held", 20_000, DEAD.encode()) == 0.0
    assert not state.answered.is_set()
    keys, arguments = state.beat()
    assert DEAD in arguments
    assert keys == [state.claim.key, state.claim.owner_key]
    assert (
        state.handle_reply([b"held", 20_000, DEAD.encode()], sent_at=0.0, now=0.0)
        == 1.0
    )
    assert isinstance(state.conflict, LeaseHeldError)


def test_a_lapsed_lease_is_taken_at_once(state: HeartbeatState) -> None:
    """Without a word to anybody: nothing is decided yet."""
    reply_with(state, b"written")
    assert reply_with(state, b"lapsed") == 0.0
    keys, arguments = state.beat()
    assert keys[0] == state.claim.key
    assert arguments[5] == 1  # it may be taken


def test_a_change_while_the_key_is_taken_is_written_soon(
    state: HeartbeatState,
) -> None:
    """The beat that takes the key has the former value, and the change must not wait for the next."""
    reply_with(state, b"held", 9_000)
    state.beat()
    state.want()
    assert not state.is_wanted
    state.handle_reply([b"written", 0, b""], sent_at=0.0, now=0.0)
    assert state.is_wanted


def test_told_once_each(
    state: HeartbeatState, caplog: pytest.LogCaptureFixture
) -> None:
    """Each turn for the worse is said once, and the way back."""
    caplog.set_level(logging.INFO)
    reply_with(state, b"written")
    for _ in range(3):
        reply_with(state, b"held", 9_000)
    assert len(caplog.records) == 1
    reply_with(state, b"written")
    reply_with(state, b"written")
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
    assert state.counts.losses == 1


@dataclass
class Interrupted(BacktestWorkerHeartbeat):
    """One that is changed by somebody else in the middle of a change."""

    interrupt: ClassVar[Any] = None

    def changed(self, **changes: Any) -> Self:
        """Let the other one come in between, once."""
        interrupt, Interrupted.interrupt = Interrupted.interrupt, None
        if interrupt is not None:
            interrupt()
        return super().changed(**changes)


def test_a_signal_handler_in_between() -> None:
    """It gets through without waiting for itself, and both changes count."""
    current = CurrentHeartbeat(Interrupted(worker_id="1"))
    Interrupted.interrupt = lambda: current.change({"max_tasks": 7})
    current.change({"running_tasks": 3})
    now: Any = current.now
    assert (now.running_tasks, now.max_tasks) == (3, 7)


def test_a_thread_in_between() -> None:
    """It waits its turn, and both changes count."""
    current = CurrentHeartbeat(Interrupted(worker_id="1"))
    thread = threading.Thread(target=current.change, args=({"max_tasks": 7},))
    Interrupted.interrupt = thread.start
    current.change({"running_tasks": 3})
    thread.join()
    now: Any = current.now
    assert (now.running_tasks, now.max_tasks) == (3, 7)


def test_a_change_that_does_not_fit() -> None:
    """Nothing of it counts."""
    current = CurrentHeartbeat(BacktestWorkerHeartbeat(worker_id="1"))
    with pytest.raises(ConfigurationError):
        current.change({"max_tasks": 7, "running_tasks": "many"})
    now: Any = current.now
    assert now.max_tasks == 5
