"""How long acks wait for the next fetch: no Redis."""

from __future__ import annotations

import time

import anyio
import pytest

from bls_agent.project.receive.reliable import AckPace


async def is_overdue(pace: AckPace, patience: float = 5.0) -> bool:
    with anyio.move_on_after(patience):
        await pace.overdue()
        return True
    return False


def run_batch(
    pace: AckPace, *, is_quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take a batch whose first command ends soon, or late."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace.record_sent()
    pace.record_taken(may_defer=False)
    now += 0.001 if is_quick else 0.1
    pace.record_ended()
    now += 10.0  # the others do not count
    pace.record_ended()
    monkeypatch.undo()


@pytest.mark.parametrize("is_quick", [True, False])
async def test_a_batch_defers_behind_a_quick_one(
    is_quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is how long the first command of the batch before took."""
    pace = AckPace()
    assert not pace.is_quick
    run_batch(pace, is_quick=is_quick, monkeypatch=monkeypatch)
    assert pace.is_quick == is_quick


async def test_deferred_acks_are_overdue_after_their_time() -> None:
    """Also where nothing has ended: the server has to know that no more is started."""
    pace = AckPace()
    pace.record_sent()
    pace.record_taken(may_defer=True)
    assert pace.defers
    assert await is_overdue(pace)
    assert not pace.defers


async def test_a_fetch_takes_them_along() -> None:
    """Then nothing is overdue, and the next ones have their whole time."""
    pace = AckPace()
    pace.expect_fetch()
    pace.record_sent()
    assert not await is_overdue(pace, 0.05)  # nothing is to happen
    pace.expect_fetch()
    assert await is_overdue(pace)


async def test_an_ack_that_was_sent_ends_the_deferring() -> None:
    """The acks of a batch leave alone behind the first that did."""
    pace = AckPace()
    pace.record_taken(may_defer=True)
    pace.stop_deferring()
    assert not pace.defers
