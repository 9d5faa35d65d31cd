"""The checker sees each broken promise, and leaves alone what was kept."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from bls_agent import Status
from tests.kit import (
    Footprint,
    History,
    LogCount,
    Promise,
    Recovery,
    StatusSample,
    Step,
    Tally,
    check_invariants,
)

EXACT = Promise()
ONLINE = frozenset({Status.ONLINE.value})


def history_of(**steps: str) -> History:
    """Write a history: step → ids, as in ``pushed="a b"``."""
    history = History()
    for step, ids in steps.items():
        for name in ids.split():
            history.note(Step(step), name)
    return history


def broken(history: History, promise: Promise = EXACT) -> set[str]:
    return {violation.invariant for violation in check_invariants(history, promise)}


def samples_of(*shown: str | None, step: float = 0.1) -> list[StatusSample]:
    """Samples at equal distances while 在线 is true; ``away``: Redis did not answer."""
    return [
        StatusSample(
            number * step, value != "away", None if value == "away" else value, ONLINE
        )
        for number, value in enumerate(shown)
    ]


def count_of(
    accepted: int, delivered: int, dropped: int = 0, queued: int = 0, repeated: int = 0
) -> LogCount:
    return LogCount(accepted, delivered, dropped, queued, repeated)


def test_all_is_well() -> None:
    """Started, waiting, or never answered for: nothing is missing."""
    history = history_of(
        pushed="a b c", maybe_pushed="d", started="a b d", ended="a b d", waiting="c"
    )
    assert check_invariants(history, EXACT) == []
    tally = Tally.of(history)
    assert (len(tally.sent), len(tally.handled), len(tally.waiting)) == (3, 3, 1)


def test_nothing_at_all_is_well() -> None:
    """What was not measured is not judged."""
    assert check_invariants(History(), EXACT) == []


def test_c1_a_repeat() -> None:
    """Started twice."""
    history = history_of(pushed="a b", started="a b a")
    (violation,) = check_invariants(history, EXACT)
    assert str(violation).startswith("C1: 1 starts beyond the first")
    assert "a" in violation.text
    assert not broken(history, Promise.reliable(deaths=1))
    assert broken(history_of(pushed="a", started="a a a"), Promise.compat(deaths=1))


def test_c1_started_and_still_there() -> None:
    """It would be started again."""
    history = history_of(pushed="a", started="a", waiting="a")
    assert broken(history) == {"C1"}
    assert not broken(history, Promise.compat(deaths=1))


def test_c2_more_lost_than_may_be() -> None:
    """The bound holds exactly."""
    history = history_of(pushed="a b c d", started="a")
    assert not broken(history, Promise.blocking(swallowed=1, prefetch=3))
    assert broken(history, Promise.blocking(swallowed=2)) == {"C2"}
    assert not broken(history, Promise.blocking(killed=1, concurrency=2, prefetch=2))


def test_c2_a_stranger() -> None:
    """Nobody pushed what was started: a reply was misread."""
    assert broken(history_of(started="x")) == {"C2"}
    assert broken(history_of(waiting="x")) == {"C2"}


def test_c3_one_lost_where_none_may_be() -> None:
    """Also with the ids in the message."""
    history = history_of(pushed="a b", started="a")
    for promise in (EXACT, Promise.reliable(deaths=9), Promise.compat(deaths=9)):
        (violation,) = check_invariants(history, promise)
        assert violation.invariant == "C3"
        assert "1 of 2 commands lost (b)" in violation.text


def test_a_server_that_forgets_is_to_blame_itself() -> None:
    """It loses what it answered, and hands out again."""
    history = history_of(pushed="a b", started="a a")
    assert broken(history) == {"C1", "C3"}
    assert not broken(history, Promise(server_forgets=True))
    more = history_of(pushed="a b c", started="a")
    assert not broken(more, Promise(lost=1, server_forgets=True))


def test_what_is_pushed_after_the_server_forgot_is_not_lost() -> None:
    """In no mode, because nothing is hurt any more."""
    history = history_of(maybe_pushed="a b", pushed="a b", started="a")
    healed_at = time.monotonic()
    for promise in (EXACT, Promise(lost=9)):
        forgetful = replace(promise, server_forgets=True, healed_at=healed_at)
        assert not broken(history, forgetful)
        late = replace(forgetful, healed_at=0.0)
        (violation,) = check_invariants(history, late)
        assert str(violation) == "C3: pushed after the server forgot, and lost: b"


@pytest.mark.parametrize(
    "count", [count_of(5, 3, 1), count_of(5, 6), count_of(5, 3, 1, 2)], ids=str
)
def test_c4_the_equation(count: LogCount) -> None:
    """Neither a record too few nor one too many."""
    history = History()
    history.evidence.log_counts += [count_of(5, 3, 1, 1), count]
    assert broken(history) == {"C4"}


def test_c4_a_record_that_is_not_in_the_list() -> None:
    """Counted as delivered, and nowhere."""
    history = history_of(logged="a b", found="a")
    history.evidence.final_log_counts.append(count_of(2, 2))
    assert broken(history) == {"C4"}
    history.evidence.final_log_counts[:] = [count_of(2, 1, dropped=1)]
    assert not broken(history)


def test_c4_a_record_that_stands_twice() -> None:
    """Only as many as were counted."""
    history = history_of(logged="a", found="a a")
    history.evidence.final_log_counts.append(count_of(1, 1))
    assert broken(history) == {"C4"}
    history.evidence.final_log_counts[:] = [count_of(1, 1, repeated=1)]
    assert not broken(history)


@pytest.mark.parametrize(
    ("logged", "others", "found", "repeated", "names"),
    [
        ("a b c", "", "a c b", 0, {"C4"}),
        ("a b c", "", "a c b", 1, set()),  # a batch was sent again
        ("a b", "c", "c b a", 0, {"C4"}),
        ("a b", "c", "c a b", 0, set()),  # records of another agent
    ],
)
def test_c4_records_in_another_order(
    logged: str, others: str, found: str, repeated: int, names: set[str]
) -> None:
    """Unless a batch was sent again, or they are of two agents."""
    history = history_of(logged=logged, found=found)
    for record in others.split():
        history.note(Step.LOGGED, record, "another")
    history.evidence.final_log_counts.append(count_of(3, 3, repeated=repeated))
    assert broken(history) == names


def test_c5_offline_of_a_living_agent() -> None:
    """Not even once."""
    history = History()
    history.evidence.statuses += samples_of("在线", "离线", "在线")
    assert broken(history) == {"C5"}


def test_c5_a_lie_that_lasts() -> None:
    """Up to the TTL it is late, beyond it is a lie; missing is judged more strictly."""
    promise = Promise(status_ttl=1.0, vanished=0.5)
    history = History()
    history.evidence.statuses += samples_of("在线", *["故障"] * 10, "在线")
    history.evidence.statuses += samples_of("在线", *[None] * 5, "在线")
    assert not broken(history, promise)
    for shown, limit in (("故障", 12), (None, 7)):
        history.evidence.statuses[:] = samples_of(*[shown] * limit)
        (violation,) = check_invariants(history, promise)
        assert violation.invariant == "C5"
        assert violation.text.startswith(f"{shown or 'nothing'} shown for")


def test_c5_missing_once() -> None:
    """Where it may not be missing at all, one look is enough."""
    history = History()
    history.evidence.statuses += samples_of("在线", None, "在线")
    assert not broken(history)
    assert broken(history, Promise(vanished=0)) == {"C5"}


def test_c5_nobody_was_told() -> None:
    """While Redis does not answer there is no lie, and it begins anew afterwards."""
    promise = Promise(status_ttl=0.35, vanished=0.35)
    for shown in ("故障", None):
        history = History()
        parts = [shown] * 3, ["away"] * 20, [shown] * 3
        history.evidence.statuses += samples_of(
            *(value for part in parts for value in part)
        )
        assert not broken(history, promise)


def test_c6_growth() -> None:
    """The largest counts, not the last."""
    history = History()
    sizes = (10_000_000, 90_000_000, 10_000_000)
    history.evidence.footprints += [Footprint(size, 9, 1, 1) for size in sizes]
    assert broken(history, Promise(memory=79_000_000)) == {"C6"}
    assert not broken(history, Promise(memory=80_000_000))


@pytest.mark.parametrize(
    "after", [(10, 1, 1), (9, 2, 1), (9, 1, 2)], ids=["file", "thread", "task"]
)
def test_c7_a_leak(after: tuple[int, int, int]) -> None:
    """One descriptor, thread or task more than before; fewer are fine."""
    history = History()
    history.evidence.footprints += [Footprint(1, 9, 1, 1), Footprint(1, *after)]
    assert broken(history) == {"C7"}
    history.evidence.footprints[1] = Footprint(1, 8, 1, 1)
    assert not broken(history)


def test_c7_an_exception_in_the_host() -> None:
    """Whatever it was."""
    history = History()
    history.evidence.host_errors.append("ValueError: nanu")
    (violation,) = check_invariants(history, EXACT)
    assert str(violation) == "C7: reached the host: ValueError: nanu"


def test_c8_recovery() -> None:
    """In time, late, or never."""
    history = History()
    recoveries = history.evidence.recoveries
    recoveries.append(Recovery("kill", 3.0))
    assert not broken(history, Promise(recovery=3.0))
    assert broken(history, Promise(recovery=2.9)) == {"C8"}
    recoveries[:] = [Recovery("kill", None)]
    (violation,) = check_invariants(history, EXACT)
    assert violation.text == "never well again after kill"


def test_a_long_list_is_cut() -> None:
    """A message names the first ten."""
    history = history_of(pushed=" ".join(f"c{n:02}" for n in range(30)))
    (violation,) = check_invariants(history, EXACT)
    assert "c09, ..." in violation.text
    assert "c10" not in violation.text
