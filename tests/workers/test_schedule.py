"""When each of many things is due."""

from __future__ import annotations

import random

from bls_agent.workers.beating.schedule import Schedule


class Thing:
    """Something that is due."""


def test_in_order() -> None:
    """What is due is taken earliest first, and only once."""
    schedule: Schedule[Thing] = Schedule()
    a, b, c = Thing(), Thing(), Thing()
    schedule.put(a, 3.0)
    schedule.put(b, 1.0)
    schedule.put(c, 2.0)
    assert schedule.next() == 1.0
    assert schedule.take(2.0, 10) == [b, c]
    assert schedule.take(2.0, 10) == []
    assert schedule.next() == 3.0
    assert len(schedule) == 1


def test_one_time_each() -> None:
    """The last time counts, unless it is only hastened to a later one."""
    schedule: Schedule[Thing] = Schedule()
    a = Thing()
    schedule.put(a, 1.0)
    schedule.put(a, 5.0)
    assert schedule.take(4.0, 10) == []
    schedule.hasten(a, 7.0)
    assert schedule.next() == 5.0
    schedule.hasten(a, 2.0)
    assert schedule.take(3.0, 10) == [a]
    assert schedule.next() is None


def test_at_most_so_many() -> None:
    """What is left over is due the next time."""
    schedule: Schedule[Thing] = Schedule()
    things = [Thing() for _ in range(5)]
    for at, thing in enumerate(things):
        schedule.put(thing, at)
    assert schedule.take(9.0, 3) == things[:3]
    assert schedule.take(9.0, 3) == things[3:]


def test_removed() -> None:
    """What was removed is never due."""
    schedule: Schedule[Thing] = Schedule()
    a = Thing()
    schedule.put(a, 1.0)
    schedule.remove(a)
    schedule.remove(a)
    assert schedule.next() is None
    assert schedule.take(9.0, 9) == []


def test_former_times_do_not_pile_up() -> None:
    """A thing that is put off again and again takes no more room."""
    schedule: Schedule[Thing] = Schedule()
    things = [Thing() for _ in range(10)]
    rng = random.Random(1)
    for _ in range(10_000):
        schedule.put(rng.choice(things), rng.random())
    assert len(schedule) == 10
    assert len(schedule._heap) <= 100
    assert len(schedule.take(1.0, 100)) == 10
