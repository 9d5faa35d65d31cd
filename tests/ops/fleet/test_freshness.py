"""How old a status is, judged from its TTL alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from bls_agent.ops.fleet.freshness import Freshness


def watched(ttl: float, every: float, *, looks: int, interval: float) -> Freshness:
    """Watch a status that is written with a TTL every so many seconds, from 3 s on."""
    freshness = Freshness()
    for look in range(looks):
        now = look * interval
        written = max(0.0, (now - 3.0) // every * every + 3.0)
        freshness.note(ttl - (now - written), now)
    return freshness


def said(freshness: Freshness, now: float) -> tuple[float, bool]:
    """The age in whole milliseconds, and whether it is exact."""
    age = freshness.age(now)
    assert age is not None
    return round(age, 3), freshness.exact


def test_before_a_refresh_it_is_estimated() -> None:
    """What has 45 s left is taken for 15 s old, as if it had been given 60."""
    freshness = Freshness()
    freshness.note(45.0, 100.0)
    assert freshness.age(100.0) == 15.0
    assert freshness.age(104.0) == 19.0
    assert not freshness.exact
    assert freshness.left(101.5) == 43.5


@given(
    ttl=st.integers(3, 86_400),
    every=st.floats(2.0, 30.0),
    interval=st.floats(0.1, 0.9),
)
@settings(deadline=None)
def test_after_a_refresh_it_is_known(ttl: int, every: float, interval: float) -> None:
    """Whatever TTL somebody gives: seen refreshed, the age is right to the moment."""
    if every > ttl:
        return
    freshness = watched(float(ttl), every, looks=80, interval=interval)
    now = 79 * interval
    if now < 3.0 + every + interval:
        return
    age = now - ((now - 3.0) // every * every + 3.0)
    assert freshness.exact
    assert freshness.age(now) == pytest.approx(age, abs=0.001)


def test_another_ttl_is_learnt() -> None:
    """A service that was deployed anew with a shorter TTL is not taken for late."""
    freshness = watched(120.0, 10.0, looks=60, interval=0.5)
    freshness.note(59.8, 30.0)
    assert freshness.age(30.0) == 60.2
    freshness.note(50.3, 39.5)
    freshness.note(59.8, 40.0)
    assert freshness.age(40.0) == pytest.approx(0.2)
    assert freshness.exact


def test_more_than_the_contract_suggests_tells_no_age() -> None:
    """A status with an hour left may be a second old or a day; a refresh tells."""
    freshness = Freshness()
    freshness.note(3_000.0, 0.0)
    assert (freshness.age(0.0), freshness.left(1.0)) == (None, 2_999.0)
    freshness.note(2_999.5, 0.5)
    assert freshness.age(0.5) is None
    freshness.note(3_600.0, 1.0)
    assert said(freshness, 2.0) == (1.0, True)


def test_a_refresh_during_an_outage_is_no_measure() -> None:
    """Seen only after 20 s, a refresh tells no TTL; what was known still fits or goes."""
    freshness = watched(60.0, 10.0, looks=60, interval=0.5)
    freshness.note(57.0, 50.0)
    assert freshness.exact
    assert freshness.age(50.0) == 3.0
    freshness = watched(30.0, 10.0, looks=60, interval=0.5)
    freshness.note(59.0, 90.0)
    assert not freshness.exact
    assert freshness.age(90.0) == 1.0


def test_what_was_not_there_has_just_been_written() -> None:
    """Seen to appear, a status is young, whatever its TTL."""
    freshness = Freshness()
    freshness.note(None, 0.0)
    freshness.note(2.7, 0.5)
    assert said(freshness, 0.5) == (0.3, True)
    freshness.note(None, 4.0)
    freshness.note(28.2, 9.0)
    assert said(freshness, 9.0) == (0.8, False)
    freshness.note(None, 40.0)
    freshness.note(28.0, 60.0)
    assert freshness.age(60.0) == 32.0


def test_without_ttl_nobody_knows() -> None:
    """No TTL or no key: no age, and what was learnt is forgotten."""
    freshness = watched(60.0, 10.0, looks=60, interval=0.5)
    freshness.note(None, 31.0)
    assert (freshness.age(31.0), freshness.left(31.0)) == (None, None)
    assert not freshness.exact
    freshness.note(20.0, 62.0)
    assert freshness.age(62.0) == 40.0
