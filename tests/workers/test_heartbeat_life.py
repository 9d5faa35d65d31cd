"""What a reply means for a heartbeat: when it is due again, and what is told."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from bls_agent import LeaseHeldError, RedisRefusedError, WrongTypeError
from bls_agent.lease import LeaseState
from bls_agent.workers import BacktestWorkerHeartbeat
from bls_agent.workers.beating.life import GUARD_AGAIN, HeartbeatCounts, Life

INTERVAL = 10.0
DEAD = "token@dead"


@pytest.fixture
def life() -> Life:
    said = BacktestWorkerHeartbeat.create("回测-1")
    return Life(
        lambda: said,
        LeaseState(said.key, 30.0),
        interval=INTERVAL,
        counts=HeartbeatCounts(),
        rng=random.Random(1),
        is_dead=lambda token: token == DEAD,
    )


def hear(life: Life, what: bytes, number: int = 0, whose: bytes = b"") -> float:
    """Ask for a beat, and give the reply."""
    life.ask()
    return life.hear([what, number, whose], sent_at=0.0, now=0.0)


def test_a_fleet_drifts_apart(life: Life) -> None:
    """The next beat is due after 80 to 100 % of the interval, never later."""
    due = [hear(life, b"written") for _ in range(1_000)]
    assert min(due) >= 0.8 * INTERVAL
    assert max(due) <= INTERVAL
    assert max(due) - min(due) > 0.19 * INTERVAL
    assert life.counts.writes == 1_000
    assert life.has_landed


@pytest.mark.parametrize("what", [b"held", b"stands"])
def test_somebody_else_has_it(life: Life, what: bytes) -> None:
    """Looked at again right behind its end, but not less often than one beats."""
    assert 0.5 < hear(life, what, 500) < 0.6
    assert isinstance(life.verdict, LeaseHeldError)
    assert life.verdict.remaining == 0.5
    assert hear(life, what, 29_000) <= INTERVAL
    assert 0.8 * INTERVAL <= hear(life, what, -1) <= INTERVAL
    assert life.judged.is_set()


def test_a_dead_owner_is_inherited_from(life: Life) -> None:
    """Asked again at once, once: who lives after all is believed."""
    assert hear(life, b"held", 20_000, DEAD.encode()) == 0.0
    assert not life.judged.is_set()
    keys, arguments = life.ask()
    assert DEAD in arguments
    assert keys == [life.claim.key, life.claim.owner_key]
    assert life.hear([b"held", 20_000, DEAD.encode()], sent_at=0.0, now=0.0) == 1.0
    assert isinstance(life.verdict, LeaseHeldError)


def test_a_lapsed_lease_is_taken_at_once(life: Life) -> None:
    """Without a word to anybody: nothing is decided yet."""
    hear(life, b"written")
    assert hear(life, b"lapsed") == 0.0
    keys, arguments = life.ask()
    assert keys[0] == life.claim.key
    assert arguments[4] == 1  # it may be taken


def test_another_type(life: Life) -> None:
    """The key that is to blame is named."""
    hear(life, b"wrong_type", 0, b"bls_agent:x:owner")
    assert isinstance(life.verdict, WrongTypeError)
    assert life.verdict.key == "bls_agent:x:owner"


def test_told_once_each(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    """Each turn for the worse is said once, and the way back."""
    caplog.set_level(logging.INFO)
    hear(life, b"written")
    for _ in range(3):
        hear(life, b"held", 9_000)
    assert len(caplog.records) == 1
    hear(life, b"written")
    hear(life, b"written")
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
    assert life.counts.losses == 1


def test_a_status_that_is_not_true_is_not_kept_alive(life: Life) -> None:
    """Without memory the former value may live on only if its status still holds."""
    assert life.ask()[1][-1] == 0  # nothing was written yet
    hear(life, b"written")
    assert life.ask()[1][-1] == 1
    said: Any = life._say()
    said.status = "stopping"
    assert life.ask()[1][-1] == 0


def test_no_scripts(life: Life) -> None:
    """A refusal leads to plain writes for a minute, then a script is tried again."""
    refused = RedisRefusedError("no_permission", "NOPERM")
    assert not life.asks_plainly(0.0)
    assert life.goes_plainly(0.0, refused)
    assert life.asks_plainly(1.0)
    assert life.ask_plainly()[-1] == "GET"
    assert life.goes_plainly(1.0, RedisRefusedError("unsupported", "syntax error"))
    assert life.ask_plainly()[-1] == 30_000
    assert not life.goes_plainly(2.0, refused)
    assert not life.asks_plainly(GUARD_AGAIN)
    assert not life.goes_plainly(0.0, RedisRefusedError("wrong_type", "WRONGTYPE"))
