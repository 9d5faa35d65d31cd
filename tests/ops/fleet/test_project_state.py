"""One project from look to look, without Redis."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from bls_agent import Level, Status
from bls_agent.core.codec import format_timestamp
from bls_agent.ops.fleet import Condition, Presence, ProjectView
from bls_agent.ops.fleet.log_tail import MOST
from bls_agent.ops.fleet.project_state import (
    Activity,
    Freshness,
    Held,
    Moment,
    ProjectState,
)

UNIX = 1_768_221_300.0  # 2026-01-12T12:35:00Z
ONLINE = "在线".encode()


def at(now: float) -> Moment:
    """A moment, with the server's clock far from ours."""
    return Moment(now, UNIX + now)


def record(ago: float | None, level: str = "info", message: str = "x") -> bytes:
    """A record of some seconds before UNIX."""
    stamp = {} if ago is None else {"timestamp": format_timestamp(UNIX - ago)}
    return orjson.dumps({**stamp, "level": level, "message": message})


class Watched:
    """A project and its keys."""

    def __init__(self) -> None:
        self.track = ProjectState("订单系统", at(0.0))
        self.items: list[bytes] = []
        self.queue: int | None = 0

    def look(
        self, now: float, value: bytes | None = None, ttl: float | None = None
    ) -> ProjectView:
        """Take one look, as the reader does, and say how it is."""
        held = Held.NOTHING if value is None else value
        self.track.record_status(held, ttl, at(now))
        log = self.track.log
        looked = log.is_due(now)
        last = self.items[-1] if self.items and looked else None
        self.track.record_lengths(self.queue, 0, len(self.items), now)
        wanted = log.record_newest(last, at(now), 65_536) if looked else 0
        while wanted:
            window = self.items[-wanted:]
            wanted = log.record_window(window, len(self.items), at(now))
        log.activity.turn(now)
        return self.track.view(at(now))


def test_the_four_presences() -> None:
    """With TTL, without, gone, never there."""
    watched = Watched()
    watched.queue = 1
    assert watched.look(0.0).presence is Presence.NEVER
    watched.queue = 0
    assert watched.look(1.0, ONLINE, 60.0).presence is Presence.FRESH
    assert watched.look(2.0, "离线".encode()).presence is Presence.UNTIMED
    assert watched.look(3.0).presence is Presence.STALE
    watched = Watched()
    watched.items = [b"{}"]
    assert watched.look(0.0).presence is Presence.STALE


def test_since_when_a_status_is_what_it_is() -> None:
    """Known from a change that was seen, as the expiry of a frozen process."""
    watched = Watched()
    assert watched.look(0.0, ONLINE, 60.0).turned_age is None
    assert watched.look(50.0, ONLINE, 10.0).turned_age is None
    assert watched.look(60.0).turned_age == 0.0
    assert watched.look(90.0).turned_age == 30.0
    view = watched.look(100.0, "故障".encode(), 60.0)
    assert (view.condition, view.turned_age) == (Condition.FAULT, 0.0)


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        (ONLINE, Status.ONLINE, ""),
        (" 报错\n".encode(), Status.ERROR, ""),
        (b"online", None, "online"),
        (b"", None, ""),
        ("在线".encode("gbk"), None, "\\xd4\\xda\\xcf\\xdf"),
        (b"\x1b[31m", None, "\x1b[31m"),
    ],
)
def test_what_a_status_key_holds(
    value: bytes, status: Status | None, text: str
) -> None:
    """One of the four, or the text itself; what is dangerous in it is for the screen."""
    view = Watched().look(0.0, value, 60.0)
    assert (view.status, view.status_text) == (status, text)
    assert view.presence is Presence.FRESH


def test_keys_of_other_types() -> None:
    """A status that is no string, lists that are none: told, and no fault."""
    track = ProjectState("x", at(0.0))
    track.record_status(Held.OTHER_TYPE, None, at(0.0))
    track.record_lengths(None, None, None, 0.0)
    assert track.log.record_newest(None, at(0.0), 1_000) == 0
    view = track.view(at(0.0))
    assert (view.status, view.status_text) == (None, "WRONGTYPE")
    assert view.presence is Presence.UNTIMED
    assert (view.queue, view.records, view.last_record) == (None, None, None)
    assert not track.is_forgotten(10_000.0)


def test_what_was_there_before_fills_the_sparkline() -> None:
    """By the records' own times and the server's clock; errors and the last of them, too."""
    watched = Watched()
    watched.items = [
        record(1_000.0),
        record(285.0, "error", "old"),
        record(100.0, "error", "new"),
        record(99.0),
        record(None),
        record(5.0),
    ]
    view = watched.look(0.0, ONLINE, 60.0)
    assert sum(view.rates) == 4
    assert view.rates[-1] + view.rates[-2] == 1
    assert view.errors == 2
    assert view.last_error
    assert (view.last_error.message, view.last_error_age) == ("new", 100.0)
    assert view.last_record_age == 5.0
    assert view.rate == pytest.approx(1 / 60)
    assert not view.at_least
    assert watched.look(1.0, ONLINE, 60.0).rates == view.rates


def test_a_busy_past_is_counted_as_far_as_it_was_read() -> None:
    """Exactly, if the bytes allow five minutes of it; else as a lower bound."""
    watched = Watched()
    watched.items = [record(1_000.0)] * 100
    watched.items += [record(280 - n / 2, "error") for n in range(300)]
    view = watched.look(0.0)
    assert (view.errors, sum(view.rates), view.at_least) == (300, 300, False)
    watched = Watched()
    watched.items = [record(280 - n / 20) for n in range(5_000)]
    view = watched.look(0.0)
    assert view.at_least
    assert 500 < sum(view.rates) < 1_500


@pytest.mark.parametrize("left", [0, 1, 2])
def test_of_a_log_that_is_gone_nothing_is_left(left: int) -> None:
    """Its newest error leaves, deleted or replaced between two looks, and its counts do."""
    watched = Watched()
    watched.items = [record(9.0, "error", "old")]
    assert watched.look(0.0).last_error
    watched.items = [record(0.0, message=str(number)) for number in range(left)]
    view = watched.look(1.0)
    assert (view.last_error, view.records) == (None, left)
    watched.items = []
    view = watched.look(2.0)
    assert (sum(view.rates), view.errors, view.last_record) == (0, 0, None)


def test_new_records_are_counted() -> None:
    """When they are seen, whatever their timestamps say; of a flood what was read, as a lower bound."""
    watched = Watched()
    watched.items = [record(5.0)]
    watched.look(0.0)
    watched.items += [record(9_000.0, "error"), record(-9_000.0), b"no JSON"]
    view = watched.look(1.0)
    assert sum(view.rates) == 4
    assert view.errors == 1
    assert not view.at_least
    watched.items += [record(0.0, "error" if n % 2 else "info") for n in range(10_000)]
    view = watched.look(2.0)
    assert 100 < sum(view.rates) <= 4 + MOST
    assert 50 < view.errors <= 1 + MOST
    assert view.at_least


def test_an_hour_between_two_looks() -> None:
    """What came meanwhile is counted when it was written, as far as that can be believed."""
    watched = Watched()
    watched.items = [record(5.0)]
    watched.look(0.0)
    watched.items += [
        record(-3_500.0, "error"),
        record(-3_550.0),
        record(9_000.0),
        record(None),
    ]
    view = watched.look(3_600.0)
    assert (sum(view.rates), view.errors) == (3, 1)
    assert view.rates[-6] == view.rates[-11] == view.rates[-1] == 1


def test_the_newest_record_without_a_time() -> None:
    """Its age counts from when it was seen."""
    watched = Watched()
    watched.items = [record(None)]
    assert watched.look(10.0).last_record_age == 0.0
    assert watched.look(25.0).last_record_age == 15.0


def test_a_long_record_is_shortened_and_seldom_read() -> None:
    """A view holds its beginning; it is not read again every second."""
    watched = Watched()
    watched.items = [record(1.0, "error", "长" * 20_000)]
    view = watched.look(0.0)
    for entry in (view.last_record, view.last_error):
        assert entry
        assert len(entry.message.encode()) <= 1_000
        assert entry.metadata["truncated"] >= 60_000
        assert entry.level is Level.ERROR
    assert not watched.track.log.is_due(13.0)
    assert watched.track.log.is_due(15.0)


def test_the_age_of_the_queue_is_that_of_its_oldest_command() -> None:
    """By its timestamp; else since it was first seen; never one that was taken."""
    watched = Watched()
    track, watched.queue = watched.track, 2
    assert watched.look(0.0).queue_age is None
    assert track.wants_head(1.0)
    sent = format_timestamp(UNIX - 90)
    track.head.record([f'{{"timestamp": "{sent}"}}'.encode()], at(1.0))
    assert watched.look(2.0).queue_age == pytest.approx(92.0)
    for oldest in (b"no JSON", b'{"timestamp": 5}', b'{"timestamp": "2999-01-01"}'):
        track.head.record([oldest], at(3.0))
        track.head.record([oldest], at(4.0))
        assert watched.look(5.0).queue_age == 2.0
    track.head.record([b"x" * 20_000], at(6.0))  # seldom read, because it is long
    assert [track.wants_head(9.0), track.wants_head(10.0)] == [False, True]
    track.head.record(None, at(10.0))  # it may not be read
    assert watched.look(11.0).queue_age is None
    assert [track.wants_head(69.0), track.wants_head(70.0)] == [False, True]
    watched.queue = 0
    watched.look(12.0)
    watched.queue = 1
    assert watched.look(13.0).queue_age is None
    assert track.wants_head(13.0)


def test_errors_are_counted_from_the_first_read_on() -> None:
    """A console that starts again counts no error a second time."""
    watched = Watched()
    watched.items = [record(1.0, "error", f"old {n}") for n in range(3)]
    assert watched.look(0.0).errors_total == 0
    watched.items += [record(0.0, "error", f"new {n}") for n in range(2)]
    assert watched.look(1.0).errors_total == 2
    assert watched.look(900.0).errors_total == 2
    del watched.items[:-1]
    watched.items.append(record(-900.0, "error", "newest"))
    assert watched.look(901.0).errors_total == 3


def test_a_view_is_told_when_it_looks_different() -> None:
    """Not for time that passes; for each thing in it that changes."""
    watched = Watched()
    watched.look(0.0, ONLINE, 60.0)
    told: list[object] = [watched.track.mark]

    def changed() -> bool:
        told.append(watched.track.mark)
        return told[-1] != told[-2]

    watched.look(1.0, ONLINE, 59.0)
    watched.look(2.0, ONLINE, 58.0)
    assert not changed()
    watched.look(3.0, ONLINE, 59.9)  # refreshed: now its age is known
    assert changed()
    watched.look(5.0, ONLINE, 59.9)  # refreshed by somebody eager
    assert not changed()
    watched.look(13.0, ONLINE, 59.9)  # refreshed: an age that had grown would be wrong
    assert changed()
    watched.look(29.0, ONLINE, 43.9)  # late, as one can see who lets the age grow
    assert not changed()
    watched.look(30.0, "报错".encode(), 59.9)
    assert changed()
    watched.queue = 3
    watched.look(31.0, "报错".encode(), 58.9)
    assert changed()
    watched.items = [record(0.0)]
    watched.look(32.0, "报错".encode(), 57.9)
    assert changed()
    watched.look(39.0, "报错".encode(), 50.9)
    assert not changed()
    watched.look(41.0, "报错".encode(), 48.9)  # a new bucket of the sparkline
    assert changed()


def test_when_it_changed() -> None:
    """By the server's clock: when status or presence changed, not when it was refreshed."""
    watched = Watched()
    assert watched.look(0.0, ONLINE, 60.0).changed_at == UNIX
    assert watched.look(8.0, ONLINE, 60.0).changed_at == UNIX
    assert watched.look(9.0, "故障".encode()).changed_at == UNIX + 9
    assert watched.look(90.0, "故障".encode()).changed_at == UNIX + 9
    assert watched.look(91.0).changed_at == UNIX + 91


def test_nothing_is_left() -> None:
    """A project of which nothing is left leaves within a minute; a mere queue at once."""
    watched = Watched()
    watched.look(0.0, ONLINE, 60.0)
    watched.look(60.0)
    assert not watched.track.is_forgotten(105.0)
    assert watched.track.is_forgotten(120.0)
    watched.look(661.0, ONLINE)
    assert not watched.track.is_forgotten(10_000.0)
    watched = Watched()
    watched.queue = 1
    watched.look(0.0)
    assert not watched.track.is_forgotten(0.0)
    watched.queue = 0
    watched.look(1.0)
    assert watched.track.is_forgotten(1.0)


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1e6),
            st.none() | st.binary(max_size=70),
            st.none() | st.floats(0.0, 1e6),
            st.none() | st.integers(0, 50),
            st.lists(st.binary(max_size=60), max_size=50),
        )
    )
)
def test_whatever_the_keys_hold(
    looks: list[tuple[float, bytes | None, float | None, int | None, list[bytes]]],
) -> None:
    """No bytes, no TTL and no jump of the clock break it; nothing is negative."""
    watched = Watched()
    for now, value, ttl, queue, items in looks:
        watched.queue, watched.items = queue, items
        view = watched.look(now, value, ttl)
        numbers = (view.age, view.ttl, view.queue, view.last_record_age, view.rate)
        assert all(number is None or number >= 0 for number in numbers)
        assert all(number >= 0 for number in (*view.rates, view.errors))


def watched(ttl: float, every: float, *, looks: int, interval: float) -> Freshness:
    """Watch a status that is written with a TTL every so many seconds, from 3 s on."""
    freshness = Freshness()
    for look in range(looks):
        now = look * interval
        written = max(0.0, (now - 3.0) // every * every + 3.0)
        freshness.record(ttl - (now - written), now)
    return freshness


def said(freshness: Freshness, now: float) -> tuple[float, bool]:
    """The age in whole milliseconds, and whether it is exact."""
    age = freshness.age(now)
    assert age is not None
    return round(age, 3), freshness.exact


def test_before_a_refresh_it_is_estimated() -> None:
    """What has 45 s left is taken for 15 s old, as if it had been given 60."""
    freshness = Freshness()
    freshness.record(45.0, 100.0)
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
    freshness.record(59.8, 30.0)
    assert freshness.age(30.0) == 60.2
    freshness.record(50.3, 39.5)
    freshness.record(59.8, 40.0)
    assert freshness.age(40.0) == pytest.approx(0.2)
    assert freshness.exact


def test_more_than_the_contract_suggests_tells_no_age() -> None:
    """A status with an hour left may be a second old or a day; a refresh tells."""
    freshness = Freshness()
    freshness.record(3_000.0, 0.0)
    assert (freshness.age(0.0), freshness.left(1.0)) == (None, 2_999.0)
    freshness.record(2_999.5, 0.5)
    assert freshness.age(0.5) is None
    freshness.record(3_600.0, 1.0)
    assert said(freshness, 2.0) == (1.0, True)


def test_a_refresh_during_an_outage_is_no_measure() -> None:
    """Seen only after 20 s, a refresh tells no TTL; what was known still fits or goes."""
    freshness = watched(60.0, 10.0, looks=60, interval=0.5)
    freshness.record(57.0, 50.0)
    assert freshness.exact
    assert freshness.age(50.0) == 3.0
    freshness = watched(30.0, 10.0, looks=60, interval=0.5)
    freshness.record(59.0, 90.0)
    assert not freshness.exact
    assert freshness.age(90.0) == 1.0


def test_what_was_not_there_has_just_been_written() -> None:
    """Seen to appear, a status is young, whatever its TTL."""
    freshness = Freshness()
    freshness.record(None, 0.0)
    freshness.record(2.7, 0.5)
    assert said(freshness, 0.5) == (0.3, True)
    freshness.record(None, 40.0)
    freshness.record(28.0, 60.0)
    assert freshness.age(60.0) == 32.0


def test_without_ttl_nobody_knows() -> None:
    """No TTL or no key: no age, and what was learnt is forgotten."""
    freshness = watched(60.0, 10.0, looks=60, interval=0.5)
    freshness.record(None, 31.0)
    assert (freshness.age(31.0), freshness.left(31.0)) == (None, None)
    assert not freshness.exact
    freshness.record(20.0, 62.0)
    assert freshness.age(62.0) == 40.0


def test_counts_move_with_time() -> None:
    """The newest bucket is the last one; after five minutes a record is out."""
    activity = Activity(1_000.0)
    activity.record(1_003.0, 5, 2)
    assert activity.rates == (0,) * 29 + (5,)
    activity.turn(1_009.9)
    assert activity.rates[-1] == 5
    activity.turn(1_010.0)
    activity.record(1_010.0, 1, 0)
    assert activity.rates == (0,) * 28 + (5, 1)
    activity.turn(1_299.0)
    assert activity.rates == (5, 1, *(0,) * 28)
    assert activity.errors == 2
    activity.turn(1_300.0)
    assert (activity.rates[0], activity.errors) == (1, 0)
    activity.turn(9_000.0)
    assert activity.rates == (0,) * 30


def test_what_is_too_old_or_ahead() -> None:
    """Older than five minutes is left out; what claims the future counts as now."""
    activity = Activity(1_000.0)
    activity.record(699.9, 1, 1)
    activity.record(709.9, 2, 0)
    activity.record(5_000.0, 3, 0)
    assert activity.rates == (*(0,) * 29, 3)
    activity.record(710.0, 4, 0)
    assert activity.rates == (4, *(0,) * 28, 3)


def test_the_rate_is_of_the_last_minute() -> None:
    """A burst is spread over a minute and fades out; a steady flow shows as it is."""
    activity = Activity(0.0)
    activity.record(0.0, 600, 0)
    activity.turn(59.0)
    assert activity.rate(59.0) == pytest.approx(600 / 59)
    activity.turn(65.0)
    assert activity.rate(65.0) == pytest.approx(5.0)
    activity.turn(70.0)
    assert activity.rate(70.0) == 0.0
    steady = Activity(0.0)
    for second in range(500):
        steady.turn(float(second))
        steady.record(float(second), 7, 0)
    assert steady.rate(500.0) == pytest.approx(7.0, rel=0.05)


def test_what_is_not_known_yet_does_not_dilute() -> None:
    """Two seconds after the first look a flow of 50 a second is one of 50 a second."""
    activity = Activity(1_000.0)
    activity.record(1_001.0, 50, 0)
    activity.record(1_002.0, 50, 0)
    assert activity.rate(1_002.0) == 50.0
    activity.known_since = 940.0
    assert activity.rate(1_002.0) == pytest.approx(100 / 60)


def test_a_lower_bound_is_one_for_five_minutes() -> None:
    """As long as the bucket in which records were missed is shown."""
    watched = Watched()
    watched.items = [record(5.0)]
    assert not watched.look(0.0).at_least
    watched.items += [record(0.0)] * 10_000
    assert watched.look(10.0).at_least
    assert watched.look(309.0).at_least
    assert not watched.look(310.0).at_least


def test_the_end_of_a_lower_bound_is_a_change() -> None:
    """Records are missed in the middle of a bucket, and nothing else changes later."""
    watched = Watched()
    watched.items = [record(5.0)]
    watched.look(0.0)
    watched.items += [record(0.0)] * 10_000
    shown, mark = watched.look(14.0), watched.track.mark
    for now in (309.0, 310.0, 313.9, 314.1, 320.0):
        found = watched.look(now)
        if watched.track.mark != mark:  # as in Fleet.watch
            shown, mark = found, watched.track.mark
    assert not shown.at_least


def reason_of(text: str, instance: str = "a") -> bytes:
    """A record that tells why the status is what it is."""
    metadata = {"agent": f"{instance}#1", "statusReason": text}
    return orjson.dumps({"level": "error", "message": "x", "metadata": metadata})


def test_the_reason_of_a_fault() -> None:
    """It is shown while the status is bad, and until its process takes it back."""
    watched, fault = Watched(), "故障".encode()
    watched.items = [reason_of("no database")]
    assert watched.look(0.0, ONLINE, 60.0).reason == ""
    before = watched.track.mark
    assert watched.look(1.0, fault, 60.0).reason == "no database"
    watched.items.append(reason_of("", "b"))
    assert watched.look(2.0, fault, 60.0).reason == "no database"
    watched.items.append(reason_of("no disk", "b"))
    assert watched.look(3.0, fault, 60.0).reason == "no disk"
    assert watched.track.mark != before
    watched.items.append(reason_of("", "b"))
    assert watched.look(4.0, fault, 60.0).reason == ""


def test_an_old_reason_is_no_reason() -> None:
    """A status that was good again in between has lost the reason of the last fault."""
    watched, fault = Watched(), "故障".encode()
    watched.items = [reason_of("no database")]
    watched.look(0.0, fault, 60.0)
    watched.look(1.0, ONLINE, 60.0)
    assert watched.look(2.0, fault, 60.0).reason == ""


@pytest.mark.parametrize("wrong", [None, 1, ["x"], {"a": 1}], ids=str)
def test_what_is_no_reason(wrong: object) -> None:
    """Any value may stand there; only a text is a reason, and a long one is cut."""
    watched, fault = Watched(), "故障".encode()
    metadata = {"statusReason": wrong}
    watched.items = [orjson.dumps({"message": "x", "metadata": metadata})]
    assert watched.look(0.0, fault, 60.0).reason == ""
    watched.items.append(reason_of("密" * 10_000))
    assert 300 < len(watched.look(1.0, fault, 60.0).reason) <= 1_000
