"""Counts in buckets of ten seconds."""

from __future__ import annotations

import pytest

from bls_agent.ops.fleet.activity import Activity


def test_counts_move_with_time() -> None:
    """The newest bucket is the last one; after five minutes a record is out."""
    activity = Activity(1_000.0)
    activity.note(1_003.0, 5, 2)
    assert activity.rates == (0,) * 29 + (5,)
    assert not activity.turn(1_009.9)
    assert activity.turn(1_010.0)
    activity.note(1_010.0, 1, 0)
    assert activity.rates == (0,) * 28 + (5, 1)
    activity.turn(1_299.0)
    assert activity.rates == (5, 1, *(0,) * 28)
    assert activity.errors == 2
    assert activity.turn(1_300.0)
    assert (activity.rates[0], activity.errors) == (1, 0)
    activity.turn(9_000.0)
    assert activity.rates == (0,) * 30
    assert not activity.turn(9_010.0)


def test_what_is_too_old_or_ahead() -> None:
    """Older than five minutes is left out; what claims the future counts as now."""
    activity = Activity(1_000.0)
    activity.note(699.9, 1, 1)
    activity.note(709.9, 2, 0)
    activity.note(5_000.0, 3, 0)
    assert activity.rates == (*(0,) * 29, 3)
    activity.note(710.0, 4, 0)
    assert activity.rates == (4, *(0,) * 28, 3)


def test_the_rate_is_of_the_last_minute() -> None:
    """A burst is spread over a minute and fades out; a steady flow shows as it is."""
    activity = Activity(0.0)
    activity.note(0.0, 600, 0)
    activity.turn(59.0)
    assert activity.rate(59.0) == pytest.approx(600 / 59)
    activity.turn(65.0)
    assert activity.rate(65.0) == pytest.approx(5.0)
    activity.turn(70.0)
    assert activity.rate(70.0) == 0.0
    steady = Activity(0.0)
    for second in range(500):
        steady.turn(float(second))
        steady.note(float(second), 7, 0)
    assert steady.rate(500.0) == pytest.approx(7.0, rel=0.05)


def test_what_is_not_known_yet_does_not_dilute() -> None:
    """Two seconds after the first look a flow of 50 a second is one of 50 a second."""
    activity = Activity(1_000.0)
    activity.note(1_001.0, 50, 0)
    activity.note(1_002.0, 50, 0)
    assert activity.rate(1_002.0) == 50.0
    activity.knows_since(940.0)
    assert activity.rate(1_002.0) == pytest.approx(100 / 60)


def test_an_estimate_is_one_for_five_minutes() -> None:
    """As long as the estimated count is among the buckets."""
    activity = Activity(0.0)
    assert not activity.is_estimated(0.0)
    activity.note_sample(10.0)
    assert activity.is_estimated(309.0)
    assert not activity.is_estimated(310.0)


def test_what_came_during_an_outage_is_spread() -> None:
    """Between the looks before and after it, nothing lost by rounding."""
    activity = Activity(1_000.0)
    activity.turn(1_035.0)
    activity.spread(1_000.0, 1_035.0, 103, 7)
    assert sum(activity.rates) == 103
    assert activity.errors == 7
    assert all(24 <= count <= 27 for count in activity.rates[-4:])
    activity.turn(9_000.0)
    activity.spread(1_000.0, 9_000.0, 8_000, 0)
    assert sum(activity.rates) == pytest.approx(300, abs=15)
