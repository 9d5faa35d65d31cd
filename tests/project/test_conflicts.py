"""Whether somebody else refreshes our key: decided from what stood there, no Redis."""

from __future__ import annotations

import pytest

from bls_agent.project.status.writer import ConflictDetector, Snapshot

OURS = "在线".encode()
OTHER = "故障".encode()


def snapshot(
    now: float, value: bytes | None = OURS, remaining: int | None = None, place: int = 1
) -> Snapshot:
    """What stood there at a moment, over a connection that answered at once."""
    return Snapshot(now, now, place, value, remaining)


@pytest.fixture
def conflicts() -> ConflictDetector:
    """One that knows of a write at second 100, for 60 seconds."""
    found = ConflictDetector()
    assert not found.record(snapshot(100, OTHER), OURS, 60)
    return found


def test_another_value_is_somebody_else_s(conflicts: ConflictDetector) -> None:
    """What came back is not what we wrote, twice in a row."""
    assert not conflicts.record(snapshot(110, OTHER), OURS, 60)
    assert conflicts.record(snapshot(120, OTHER), OURS, 60)


@pytest.mark.parametrize("value", [OURS, None])
def test_our_own_and_nothing_are_not(
    conflicts: ConflictDetector, value: bytes | None
) -> None:
    """Neither our own word nor a key that has vanished."""
    assert not conflicts.record(snapshot(110, value, 50_000), OURS, 60)
    assert not conflicts.record(snapshot(120, value, -2), OURS, 60)


@pytest.mark.parametrize("remaining", [-1, 55_000, 3_600_000])
def test_a_life_that_is_too_long(conflicts: ConflictDetector, remaining: int) -> None:
    """Ours can have 50 s left; seen twice in a row, because clocks are set back."""
    assert not conflicts.record(snapshot(110, OURS, remaining), OURS, 60)
    assert conflicts.record(snapshot(120, OURS, remaining), OURS, 60)


def test_a_clock_that_is_set_back_once(conflicts: ConflictDetector) -> None:
    """One sighting among others is none."""
    for now, remaining in ((110, 3_600_000), (120, 50_000), (130, 3_600_000)):
        assert not conflicts.record(snapshot(now, OURS, remaining), OURS, 60)


def test_another_connection_may_lead_to_a_server_that_forgot(
    conflicts: ConflictDetector,
) -> None:
    """After a reconnect nothing is compared until we have written again."""
    assert not conflicts.record(snapshot(110, OTHER, place=2), OURS, 60)
    assert not conflicts.record(snapshot(120, OTHER, place=2), OURS, 60)
    assert conflicts.record(snapshot(130, OTHER, place=2), OURS, 60)


def test_a_doubtful_write_of_ours(conflicts: ConflictDetector) -> None:
    """Nobody knows which of our words stood there last."""
    conflicts.forget()
    assert not conflicts.record(snapshot(110, OTHER), OURS, 60)
