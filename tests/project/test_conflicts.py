"""Whether another process writes our key: decided from what stood there, no Redis."""

from __future__ import annotations

import pytest

from bls_agent.project.status.writer import ConflictDetector

OURS = "在线".encode()
OTHER = "故障".encode()


@pytest.fixture
def conflicts() -> ConflictDetector:
    """A detector that knows of one write over connection 1."""
    found = ConflictDetector()
    assert not found.record(OTHER, OURS, 1)
    return found


def test_another_value_is_another_writer(conflicts: ConflictDetector) -> None:
    """The key held another value than ours, twice in a row."""
    assert not conflicts.record(OTHER, OURS, 1)
    assert conflicts.record(OTHER, OURS, 1)


@pytest.mark.parametrize("value", [OURS, None])
def test_our_own_value_and_none_are_not(
    conflicts: ConflictDetector, value: bytes | None
) -> None:
    """Neither our own value nor a key that has vanished is a conflict."""
    for _ in range(3):
        assert not conflicts.record(value, OURS, 1)


def test_one_sighting_among_others_is_none(conflicts: ConflictDetector) -> None:
    """Only sightings that follow each other count."""
    for before in (OTHER, OURS, OTHER, OURS):
        assert not conflicts.record(before, OURS, 1)


def test_another_connection_may_lead_to_a_server_without_the_value(
    conflicts: ConflictDetector,
) -> None:
    """After a reconnect nothing is compared until we have written again."""
    assert not conflicts.record(OTHER, OURS, 2)
    assert not conflicts.record(OTHER, OURS, 2)
    assert conflicts.record(OTHER, OURS, 2)


def test_a_doubtful_write_of_ours(conflicts: ConflictDetector) -> None:
    """Behind a write whose reply was lost nothing is compared."""
    conflicts.forget()
    assert not conflicts.record(OTHER, OURS, 1)
