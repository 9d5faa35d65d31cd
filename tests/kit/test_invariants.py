"""The checker sees each broken promise, and leaves alone what was kept."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import pytest

from bls_agent import Status
from tests.kit import (
    Evidence,
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
EVEN = LogCount(accepted=5, delivered=3, dropped=1, queued=1, maybe_repeated=0)


class Case(NamedTuple):
    """What happened and was measured, and how the text of each violation begins."""

    promise: Promise
    broken: tuple[str, ...]
    evidence: Evidence
    steps: dict[str, str]


def case(
    promise: Promise, *broken: str, evidence: Evidence | None = None, **steps: str
) -> Case:
    """Steps → ids, as in ``pushed="a b"``; ``b@other`` is a step of that agent."""
    return Case(promise, broken, evidence or Evidence(), steps)


def history_of(**steps: str) -> History:
    """Write the steps of a case."""
    history = History()
    for step, ids in steps.items():
        for word in ids.split():
            name, _, who = word.partition("@")
            history.note(Step(step), name, who)
    return history


def final(
    accepted: int, delivered: int, dropped: int = 0, repeated: int = 0
) -> Evidence:
    """The last counters of the log."""
    count = LogCount(accepted, delivered, dropped, 0, repeated)
    return Evidence(final_log_counts=[count])


def looks(*shown: str | None) -> Evidence:
    """Ten looks a second while 在线 is true; ``away``: Redis did not answer."""
    samples = [
        StatusSample(
            number / 10, value != "away", None if value == "away" else value, ONLINE
        )
        for number, value in enumerate(shown)
    ]
    return Evidence(statuses=samples)


def footprints(*after: tuple[int, int, int, int]) -> Evidence:
    """Bytes, descriptors, threads and tasks: 10 MB, 9, 1 and 1, and then these."""
    return Evidence(
        footprints=[Footprint(10_000_000, 9, 1, 1), *(Footprint(*one) for one in after)]
    )


KILLED = Evidence(recoveries=[Recovery("kill", 3.0)])
NEVER_WELL = Evidence(recoveries=[Recovery("kill", None)])
RAISED = Evidence(host_errors=["ValueError: nanu"])
GROWN = footprints((90_000_000, 9, 1, 1), (10_000_000, 9, 1, 1))
BOUNDED = Promise(status_ttl=1.0, vanished=0.5)
SHORT = Promise(status_ttl=0.35, vanished=0.35)

CASES = [
    # What was not measured is not judged.
    case(EXACT),
    # Started, waiting, or never answered for: nothing is missing.
    case(
        EXACT,
        pushed="a b c",
        maybe_pushed="d",
        started="a b d",
        ended="a b d",
        waiting="c",
    ),
    # C1: started twice.
    case(EXACT, "C1: 1 starts beyond the first", pushed="a b", started="a b a"),
    case(Promise.reliable(deaths=1), pushed="a b", started="a b a"),
    case(Promise.compat(deaths=1), "C1", pushed="a", started="a a a"),
    # C1: what was started and is still there would be started again.
    case(EXACT, "C1", pushed="a", started="a", waiting="a"),
    case(Promise.compat(deaths=1), pushed="a", started="a", waiting="a"),
    # C2: the bound holds exactly.
    case(Promise.blocking(swallowed=1, prefetch=3), pushed="a b c d", started="a"),
    case(Promise.blocking(swallowed=2), "C2", pushed="a b c d", started="a"),
    case(
        Promise.blocking(killed=1, concurrency=2, prefetch=2),
        pushed="a b c d",
        started="a",
    ),
    # C2: nobody pushed what was started: a reply was misread.
    case(EXACT, "C2", started="x"),
    case(EXACT, "C2", waiting="x"),
    # C3: none may be lost.
    case(EXACT, "C3: 1 of 2 commands lost (b)", pushed="a b", started="a"),
    case(
        Promise.reliable(deaths=9),
        "C3: 1 of 2 commands lost (b)",
        pushed="a b",
        started="a",
    ),
    case(
        Promise.compat(deaths=9),
        "C3: 1 of 2 commands lost (b)",
        pushed="a b",
        started="a",
    ),
    # C3: a message names the first ten.
    case(
        EXACT,
        "C3: 12 of 12 commands lost (a, b, c, d, e, f, g, h, i, j, ...), none may be",
        pushed="a b c d e f g h i j k l",
    ),
    # A server that forgets loses what it answered, and hands out again.
    case(EXACT, "C1", "C3", pushed="a b", started="a a"),
    case(Promise(server_forgets=True), pushed="a b", started="a a"),
    case(Promise(lost=1, server_forgets=True), pushed="a b c", started="a"),
    # C4: neither a record too few nor one too many.
    case(EXACT, "C4", evidence=Evidence(log_counts=[EVEN, replace(EVEN, queued=0)])),
    case(EXACT, "C4", evidence=Evidence(log_counts=[EVEN, replace(EVEN, queued=2)])),
    case(EXACT, "C4", evidence=Evidence(log_counts=[EVEN, LogCount(5, 6, 0, 0, 0)])),
    # C4: counted as delivered, and not in the list.
    case(EXACT, "C4", evidence=final(2, 2), logged="a b", found="a"),
    case(EXACT, evidence=final(2, 1, dropped=1), logged="a b", found="a"),
    # C4: in the list again, and only as often as was counted.
    case(EXACT, "C4", evidence=final(1, 1), logged="a", found="a a"),
    case(EXACT, evidence=final(1, 1, repeated=1), logged="a", found="a a"),
    # C4: in another order, unless a batch was sent again, or they are of two agents.
    case(EXACT, "C4", evidence=final(3, 3), logged="a b c", found="a c b"),
    case(EXACT, evidence=final(3, 3, repeated=1), logged="a b c", found="a c b"),
    case(EXACT, "C4", evidence=final(3, 3), logged="a b c@other", found="c b a"),
    case(EXACT, evidence=final(3, 3), logged="a b c@other", found="c a b"),
    # C5: a living agent is not offline, not even once.
    case(EXACT, "C5", evidence=looks("在线", "离线", "在线")),
    # C5: up to the TTL it is late, beyond it is a lie; missing is judged more strictly.
    case(BOUNDED, evidence=looks("在线", *["故障"] * 10, "在线")),
    case(BOUNDED, evidence=looks("在线", *[None] * 5, "在线")),
    case(BOUNDED, "C5: 故障 shown for", evidence=looks(*["故障"] * 12)),
    case(BOUNDED, "C5: nothing shown for", evidence=looks(*[None] * 7)),
    # C5: where it may not be missing at all, one look is enough.
    case(EXACT, evidence=looks("在线", None, "在线")),
    case(Promise(vanished=0), "C5", evidence=looks("在线", None, "在线")),
    # C5: while Redis does not answer there is no lie, and it begins anew afterwards.
    case(SHORT, evidence=looks(*["故障"] * 3, *["away"] * 20, *["故障"] * 3)),
    case(SHORT, evidence=looks(*[None] * 3, *["away"] * 20, *[None] * 3)),
    # C6: the largest counts, not the last.
    case(Promise(memory=79_000_000), "C6", evidence=GROWN),
    case(Promise(memory=80_000_000), evidence=GROWN),
    # C7: one descriptor, thread or task more than before; fewer are fine.
    case(EXACT, "C7", evidence=footprints((10_000_000, 10, 1, 1))),
    case(EXACT, "C7", evidence=footprints((10_000_000, 9, 2, 1))),
    case(EXACT, "C7", evidence=footprints((10_000_000, 9, 1, 2))),
    case(EXACT, evidence=footprints((10_000_000, 8, 1, 1))),
    # C7: an exception in the host, whatever it was.
    case(EXACT, "C7: reached the host: ValueError: nanu", evidence=RAISED),
    # C8: in time, late, or never.
    case(Promise(recovery=3.0), evidence=KILLED),
    case(Promise(recovery=2.9), "C8", evidence=KILLED),
    case(EXACT, "C8: never well again after kill", evidence=NEVER_WELL),
]


@pytest.mark.parametrize("case", CASES)
def test_what_is_broken(case: Case) -> None:
    """Exactly the promises that were broken are named, in their order."""
    history = history_of(**case.steps)
    history.evidence = case.evidence
    texts = [str(violation) for violation in check_invariants(history, case.promise)]
    assert len(texts) == len(case.broken), texts
    for text, beginning in zip(texts, case.broken, strict=True):
        assert text.startswith(beginning)


def test_what_is_pushed_after_the_server_forgot_is_not_lost() -> None:
    """In no mode, because nothing is hurt any more."""
    history = history_of(maybe_pushed="a b", pushed="a b", started="a")
    healed_at = time.monotonic()
    for promise in (EXACT, Promise(lost=9)):
        forgetful = replace(promise, server_forgets=True, healed_at=healed_at)
        assert not check_invariants(history, forgetful)
        late = replace(forgetful, healed_at=0.0)
        (violation,) = check_invariants(history, late)
        assert str(violation) == "C3: pushed after the server forgot, and lost: b"


def test_tally() -> None:
    """Each command is counted as what became of it."""
    history = history_of(pushed="a b c", maybe_pushed="d", started="a b d", waiting="c")
    tally = Tally.of(history)
    assert (len(tally.sent), len(tally.handled), len(tally.waiting)) == (3, 3, 1)
