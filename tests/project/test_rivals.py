"""Whether somebody else refreshes our key: decided from what stood there, no Redis."""

from __future__ import annotations

import pytest

from bls_agent.project.state.rivals import Glance, Rivals

OURS = "在线".encode()
OTHER = "故障".encode()


def glance(
    now: float, value: bytes | None = OURS, remaining: int | None = None, place: int = 1
) -> Glance:
    """What stood there at a moment, over a connection that answered at once."""
    return Glance(now, now, place, value, remaining)


@pytest.fixture
def rivals() -> Rivals:
    """One that knows of a write at second 100, for 60 seconds."""
    found = Rivals()
    assert not found.note(glance(100, OTHER), OURS, 60, found.epoch)
    return found


def test_another_value_is_somebody_else_s(rivals: Rivals) -> None:
    """What came back is not what we wrote."""
    assert rivals.note(glance(110, OTHER), OURS, 60, rivals.epoch)


@pytest.mark.parametrize("value", [OURS, None])
def test_our_own_and_nothing_are_not(rivals: Rivals, value: bytes | None) -> None:
    """Neither our own word nor a key that has vanished."""
    assert not rivals.note(glance(110, value, 50_000), OURS, 60, rivals.epoch)
    assert not rivals.note(glance(120, value, -2), OURS, 60, rivals.epoch)


@pytest.mark.parametrize("remaining", [-1, 55_000, 3_600_000])
def test_a_life_that_is_too_long(rivals: Rivals, remaining: int) -> None:
    """Ours can have 50 s left; seen twice in a row, because clocks are set back."""
    assert not rivals.note(glance(110, OURS, remaining), OURS, 60, rivals.epoch)
    assert rivals.note(glance(120, OURS, remaining), OURS, 60, rivals.epoch)


def test_a_clock_that_is_set_back_once(rivals: Rivals) -> None:
    """One sighting among others is none."""
    for now, remaining in ((110, 3_600_000), (120, 50_000), (130, 3_600_000)):
        assert not rivals.note(glance(now, OURS, remaining), OURS, 60, rivals.epoch)


def test_another_connection_may_lead_to_a_server_that_forgot(rivals: Rivals) -> None:
    """After a reconnect nothing is compared until we have written again."""
    assert not rivals.note(glance(110, OTHER, place=2), OURS, 60, rivals.epoch)
    assert rivals.note(glance(120, OTHER, place=2), OURS, 60, rivals.epoch)


def test_a_doubtful_write_of_ours(rivals: Rivals) -> None:
    """Nobody knows which of our words stood there last."""
    rivals.forget()
    assert not rivals.note(glance(110, OTHER), OURS, 60, rivals.epoch)


def test_our_own_thread(rivals: Rivals) -> None:
    """What it wrote is ours, also for a request that was made before it ended."""
    epoch = rivals.epoch
    rivals.pause()
    assert not rivals.note(glance(110, OTHER), OURS, 60, epoch)
    assert not rivals.note(glance(120, OTHER), OURS, 60, rivals.epoch)
    during = rivals.epoch
    rivals.resume()
    assert not rivals.note(glance(130, OTHER), OURS, 60, during)
    assert not rivals.note(glance(140, OTHER), OURS, 60, rivals.epoch)
    assert rivals.note(glance(150, OTHER), OURS, 60, rivals.epoch)
