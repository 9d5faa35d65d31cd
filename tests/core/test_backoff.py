"""Delays before the next try: full jitter, a ceiling that doubles, a cap that holds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from bls_agent.core.backoff import Backoff, jittered


class Highest(random.Random):
    """Chance that always draws the upper end."""

    def random(self) -> float:
        """Give one, the supremum of the draw."""
        return 1.0


class Lowest(random.Random):
    """Chance that always draws the lower end."""

    def random(self) -> float:
        """Give zero."""
        return 0.0


def test_the_ceiling_doubles_up_to_the_cap() -> None:
    """The longest possible delay doubles with each failure and stops at the cap."""
    backoff = Backoff(base=0.1, cap=2.0, rng=Highest())
    delays = [backoff.failed() for _ in range(8)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])


def test_the_jitter_is_full() -> None:
    """A delay may also be nothing at all: a fleet does not come back in step."""
    backoff = Backoff(rng=Lowest())
    assert [backoff.failed() for _ in range(8)] == [0.0] * 8


@given(st.integers(), st.integers(1, 50), st.floats(0.05, 60.0))
def test_a_delay_is_within_its_bounds(seed: int, failures: int, cap: float) -> None:
    """No delay is negative or beyond the cap, however often it failed."""
    backoff = Backoff(cap=cap, rng=random.Random(seed))
    assert all(0.0 <= backoff.failed() <= cap for _ in range(failures))
    assert backoff.failures == failures


def test_success_starts_again() -> None:
    """After a success the first ceiling is the next one."""
    backoff = Backoff(base=0.1, rng=Highest())
    for _ in range(5):
        backoff.failed()
    backoff.succeeded()
    assert backoff.failures == 0
    assert backoff.failed() == pytest.approx(0.1)


@given(st.integers(), st.integers(0, 20))
def test_a_permanent_fault_waits_long(seed: int, failures: int) -> None:
    """Nobody repairs a password within seconds: 30 to 60 of them, from the first on."""
    backoff = Backoff(rng=random.Random(seed), failures=failures)
    assert 30.0 <= backoff.failed(permanent=True) <= 60.0


def test_a_year_of_failures_is_survived() -> None:
    """The delay stays at the cap after a million failures in a row."""
    backoff = Backoff(cap=2.0, rng=Highest(), failures=1_000_000)
    assert backoff.failed() == pytest.approx(2.0)


def test_two_processes_do_not_share_their_chance() -> None:
    """Without a given source of chance each backoff has its own."""
    assert Backoff().rng is not Backoff().rng


@given(st.integers(), st.floats(0.05, 86_400.0))
def test_a_period_is_spread(seed: int, interval: float) -> None:
    """A period lies between 80 % and 100 % of what was asked for, never above."""
    assert 0.8 * interval <= jittered(interval, random.Random(seed)) <= interval


def test_the_spread_uses_its_whole_range() -> None:
    """The ends of the range are reached."""
    assert jittered(10.0, Lowest()) == pytest.approx(8.0)
    assert jittered(10.0, Highest()) == pytest.approx(10.0)
