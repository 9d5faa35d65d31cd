"""What following decides without I/O: the ring, what is missing, who is still there."""

from __future__ import annotations

from typing import Any

import pytest

from bls_agent.runs import Gap, GapReason, StreamEvent
from bls_agent.runs.following.cursor import Cursor
from bls_agent.runs.following.gaps import (
    Evidence,
    Start,
    continues,
    judge_jump,
    judge_start,
)
from bls_agent.runs.following.presence import LOOK, Presence, Seen
from bls_agent.runs.following.ring import Ring


def event(number: int, sequence: int | None = None, action: str = "x") -> StreamEvent:
    told = str(number if sequence is None else sequence).encode()
    fields = {
        b"timestamp": b"t",
        b"sequence": told if sequence != -1 else b"?",
        b"event_category": b"system",
        b"event_action": action.encode(),
        b"data": b"{}",
    }
    flat = [part for pair in fields.items() for part in pair]
    return StreamEvent.decode(7, f"{number}-0".encode(), flat)


# -- the ring


def filled(most: int = 5, most_bytes: int = 1_000, count: int = 4) -> Ring:
    ring = Ring("10-0", most=most, most_bytes=most_bytes)
    for number in range(11, 11 + count):
        ring.add([event(number)], [10])
    return ring


def numbers(found: list[StreamEvent] | None) -> list[int] | None:
    return None if found is None else [one.sequence for one in found]


def test_all_behind_the_base_is_in_the_ring() -> None:
    ring = filled()
    assert (ring.base, ring.head, len(ring)) == ("10-0", "14-0", 4)
    assert ring.locate("10-0") == 0
    assert ring.locate("12-0") == 2
    assert ring.locate("14-0") == ring.end == 4
    assert numbers(ring.after(2, 100)) == [13, 14]
    assert numbers(ring.after(0, 3)) == [11, 12, 13]
    assert ring.after(4, 100) == []


@pytest.mark.parametrize("place", ["9-0", "12-1", "11-5", "15-0", "0-0"])
def test_no_place_of_the_ring(place: str) -> None:
    """Before its base, between two events, behind its head: nobody knows what stood there."""
    assert filled().locate(place) is None


def test_the_oldest_go_when_there_are_many() -> None:
    ring = filled(most=3, count=10)
    assert (len(ring), ring.base, ring.head) == (3, "17-0", "20-0")
    assert ring.after(6, 9) is None
    assert numbers(ring.after(7, 9)) == [18, 19, 20]
    assert ring.locate("16-0") is None
    assert ring.locate("17-0") == 7


def test_the_oldest_go_when_they_are_large() -> None:
    """The newest stays, however large: else a thousand followers fetched it each."""
    ring = filled(most_bytes=35, count=3)
    ring.add([event(14)], [30])
    assert numbers(ring.after(ring.first, 9)) == [14]
    ring.add([event(15), event(16)], [1, 5_000])
    assert numbers(ring.after(ring.first, 9)) == [16]
    ring.add([event(17)], [1])
    assert numbers(ring.after(ring.first, 9)) == [17]


def test_no_number_of_before_a_restart_is_valid() -> None:
    ring = filled()
    last = ring.end
    ring.restart("12-0")
    assert ring.after(last, 9) is None
    assert ring.locate("12-0") == ring.end == ring.first
    ring.add([event(20)], [1])
    assert numbers(ring.after(ring.locate("12-0") or 0, 9)) == [20]


# -- what is missing


@pytest.mark.parametrize(
    ("known", "sequence", "is_next"),
    [(4, 5, True), (4, 6, False), (4, 4, False), (None, 5, False), (4, -1, False),
     (0, 1, True), (0, 0, True), (0, 2, False)],
)  # fmt: skip
def test_continues(known: int | None, sequence: int, is_next: bool) -> None:
    assert continues(known, event(9, sequence)) is is_next


STANDS = Evidence(stands=True, oldest="1-0")
TRIMMED = Evidence(stands=False, oldest="9-0")
HAD_TAIL = Evidence(stands=False, oldest="2-0")
NOTED = Evidence(stands=True, oldest="1-0", noted=3)


@pytest.mark.parametrize(
    ("place", "known", "sequence", "evidence", "more", "told"),
    [
        ("5-0", 5, 9, STANDS, {}, None),  # a writer that counts as it likes
        ("5-0", 5, 9, TRIMMED, {}, ("trimmed", 3)),
        ("5-0", 5, 3, TRIMMED, {}, ("trimmed", None)),
        ("5-0", None, 9, TRIMMED, {}, ("trimmed", None)),
        ("5-0", 5, 1, TRIMMED, {}, ("expired", None)),  # the id was used again
        ("5-0", 5, 9, HAD_TAIL, {}, ("lost", 3)),
        ("5-0", 5, 2, HAD_TAIL, {}, ("lost", None)),
        ("5-0", 5, 9, NOTED, {}, ("lost", 3)),
        ("5-0", None, 9, NOTED, {}, ("lost", None)),
        ("5-0", 9, 9, NOTED, {}, None),
        ("5-0", 5, 9, STANDS, {"in_doubt": True}, ("lost", 3)),
        ("5-0", 5, 2, TRIMMED, {"in_doubt": True}, ("lost", None)),
        ("0-0", 0, 4, TRIMMED, {}, ("trimmed", 3)),
        ("0-0", 0, 4, Evidence(stands=False, oldest="9-0", noted=3), {}, ("lost", 3)),
        ("0-0", 0, 1, TRIMMED, {}, None),
        ("5-0", None, 9, TRIMMED, {"is_event": False}, ("trimmed", None)),
        ("5-0", None, 1, TRIMMED, {"is_event": False}, None),
        ("5-0", None, 9, HAD_TAIL, {"is_event": False}, None),  # a time, not an event
    ],
)  # fmt: skip
def test_a_jump(
    place: str, known: int | None, sequence: int, evidence: Evidence,
    more: dict[str, Any], told: tuple[str, int | None] | None,
) -> None:  # fmt: skip
    gap = judge_jump(place, known, event(9, sequence), evidence, **more)
    if told is None:
        assert gap is None
    else:
        assert gap == Gap(7, GapReason(told[0]), place, "9-0", told[1])


def start(**told: Any) -> Start:
    nothing: dict[str, Any] = {
        "at": None, "exists": True, "last": "9-0", "booked": None, "lives": False,
    }  # fmt: skip
    return Start(**{**nothing, **told})


def test_a_place_that_is_there() -> None:
    opening = judge_start(7, "5-0", start(at=event(5, 33)))
    assert (opening.place, opening.known, opening.gap) == ("5-0", 33, None)
    assert opening.is_event
    assert judge_start(7, "5-0", start(at=event(5, 33, "close"))).closes


def test_a_place_between_events() -> None:
    """Judged by the first event that is read; it is not said that one stood there."""
    opening = judge_start(7, "5-0", start())
    assert (opening.place, opening.known, opening.gap) == ("5-0", None, None)
    assert not opening.is_event


def test_a_place_in_the_future() -> None:
    """The server never gave such an id: it has forgotten; go on from its end."""
    opening = judge_start(7, "50-0", start())
    assert opening.place == "9-0"
    assert opening.gap == Gap(7, GapReason.LOST, "50-0")
    assert not opening.is_over
    unknown = judge_start(7, "50-0", start(last=None))  # we may not ask
    assert (unknown.place, unknown.gap) == ("50-0", None)


def test_a_run_that_is_gone() -> None:
    gone = start(exists=False, last="0-0")
    expired = Gap(7, GapReason.EXPIRED, "5-0")
    assert judge_start(7, "5-0", gone).gap == expired
    assert judge_start(7, "5-0", gone).is_over
    lives = start(exists=False, last="0-0", lives=True)
    opening = judge_start(7, "5-0", lives)
    assert opening.gap == Gap(7, GapReason.LOST, "5-0")
    assert (opening.place, opening.is_over) == ("0-0", False)
    booked = start(exists=False, last="0-0", booked=("5-0", 12))
    opening = judge_start(7, "5-0", booked)
    assert (opening.gap, opening.is_over) == (None, True)


@pytest.mark.parametrize("place", ["5-0", "50-0"])
def test_a_run_that_was_deleted_under_its_writer(place: str) -> None:
    """Nobody begins where no event has ever been: that would look like a loss to all."""
    booked = start(exists=False, last="0-0", booked=("5-0", 12), lives=True)
    opening = judge_start(7, place, booked)
    assert (opening.place, opening.known, opening.gap) == ("5-0", 12, None)
    assert not opening.is_over


# -- who is still there

LEASE = 3.0


def alive(left: float = LEASE, **more: Any) -> Seen:
    return Seen(exists=True, owner=b"a", left=left, **more)


GONE = Seen(exists=True, owner=b"a", left=None)
NO_WRITER = Seen(exists=True, owner=None, left=None)
NOTHING = Seen(exists=False, owner=None, left=None)


def test_a_writer_that_dies_is_told_once_soon_after_its_lease() -> None:
    presence = Presence(0.0, existed=True)
    assert not presence.hear(alive(), 0.0)
    assert LEASE < presence.look_at < LEASE + 0.2
    now = presence.look_at
    assert not presence.hear(GONE, now)
    assert presence.look_at < now + 0.5
    now = presence.look_at
    assert presence.hear(GONE, now)
    assert presence.lost == b"a"
    assert now < LEASE + 1
    assert not presence.hear(GONE, now + LOOK)


def test_a_writer_that_returns_can_be_lost_again() -> None:
    presence = Presence(0.0, existed=True)
    presence.hear(alive(), 0.0)
    for now in (4.0, 5.0):
        presence.hear(GONE, now)
    assert not presence.hear(alive(), 6.0)
    assert (presence.lost, presence.returns) == (None, 1)
    presence.hear(GONE, 10.0)
    assert presence.hear(GONE, 11.0)


def test_a_writer_that_has_ended_is_not_lost() -> None:
    presence = Presence(0.0, existed=True)
    presence.hear(alive(), 0.0)
    for now in (4.0, 5.0, 20.0):
        assert not presence.hear(NO_WRITER, now)
    assert presence.lost is None


def test_who_comes_late_takes_a_second_look() -> None:
    presence = Presence(0.0, existed=True)
    assert not presence.hear(GONE, 0.0)
    assert not presence.hear(GONE, 1.0)
    assert presence.hear(GONE, presence.look_at)


def test_events_of_an_unknown_writer_are_a_reason_to_look() -> None:
    """But not more than once a second; and not where its lease is known."""
    presence = Presence(0.0, existed=False)
    presence.hear(NOTHING, 0.0)
    assert presence.notice_events()
    assert presence.look_at == 1.0
    assert not presence.notice_events()
    presence.hear(alive(), 1.0)
    assert not presence.notice_events()


def test_an_outage_is_no_dead_writer() -> None:
    """A living one gets the time of its lease to come back."""
    presence = Presence(0.0, existed=True)
    presence.hear(alive(), 0.0)
    presence.notice_outage(5.0)
    assert presence.look_at == 5.0
    assert not presence.hear(GONE, 5.1)
    assert not presence.hear(GONE, 5.0 + LEASE - 0.1)
    assert not presence.hear(alive(), 5.0 + LEASE - 0.05)
    assert not presence.hear(NOTHING, 6.0)  # and its run may come back, too
    assert not presence.is_gone


def test_a_slow_look_has_seen_an_outage() -> None:
    presence = Presence(0.0, existed=True)
    presence.hear(alive(), 0.0)
    late = Seen(exists=True, owner=b"a", left=None, elapsed=2.0)
    assert not presence.hear(late, 6.0)
    assert not presence.hear(GONE, 6.0 + LEASE - 0.1)
    assert presence.hear(GONE, 6.0 + LEASE + 0.1)


def test_a_far_server_is_no_outage() -> None:
    """Where every look takes long, a lost writer is told all the same."""
    presence = Presence(0.0, existed=True)
    presence.hear(Seen(exists=True, owner=b"a", left=3.0, elapsed=0.6), 0.0)
    gone = Seen(exists=True, owner=b"a", left=None, elapsed=0.7)
    told = [presence.hear(gone, 20.0 + 0.5 * number) for number in range(6)]
    assert told.count(True) == 1


def test_the_first_look_at_a_far_server_is_no_outage() -> None:
    """It waits for the connection: that tells nothing about the server."""
    presence = Presence(0.0, existed=True)
    assert not presence.hear(Seen(exists=True, owner=b"a", left=None, elapsed=2.4), 2.4)
    again = Seen(exists=True, owner=b"a", left=None, elapsed=0.6)
    assert presence.look_at < 2.4 + 2.1
    assert presence.hear(again, presence.look_at + 0.6)


def test_a_writer_of_a_far_server_dies() -> None:
    """Told within a second and two round trips after the end of its lease."""
    presence = Presence(0.0, existed=True)
    ends, now = 2.1 + LEASE, 2.4
    presence.hear(alive(elapsed=2.4), now)
    gone = Seen(exists=True, owner=b"a", left=None, elapsed=0.6)
    while presence.lost is None and now < 60:
        arrives = max(now, presence.look_at) + 0.3
        now = arrives + 0.3
        left = ends - arrives
        presence.hear(alive(left, elapsed=0.6) if left > 0 else gone, now)
    assert now < ends + 1.0 + 2 * 0.6


def test_a_slow_look_gives_a_writer_time_in_proportion() -> None:
    presence = Presence(0.0, existed=True)
    presence.hear(alive(15.0), 0.0)
    gone = Seen(exists=True, owner=b"a", left=None, elapsed=0.6)
    assert not presence.hear(gone, 16.0)
    assert not presence.hear(GONE, 16.0 + 2.3)
    assert presence.hear(GONE, 16.0 + 2.5)


def test_a_look_is_on_its_way_when_a_lease_ends() -> None:
    presence = Presence(0.0, existed=True)
    presence.hear(alive(elapsed=0.6), 0.6)
    assert presence.look_at < 0.6 + LEASE - 0.5


def test_a_server_that_moves_away_is_no_outage_for_ever() -> None:
    presence = Presence(0.0, existed=True)
    presence.hear(alive(), 0.0)
    presence.hear(Seen(exists=True, owner=b"a", left=3.0, elapsed=0.001), 1.0)
    gone = Seen(exists=True, owner=b"a", left=None, elapsed=0.7)
    assert not presence.hear(gone, 5.0)
    assert any(presence.hear(gone, 5.0 + LOOK * number) for number in range(1, 20))


def test_a_run_that_disappears() -> None:
    presence = Presence(0.0, existed=False)
    assert not presence.hear(NOTHING, 0.0)  # it has not begun
    presence.hear(NO_WRITER, 5.0)
    assert presence.hear(NOTHING, 10.0)
    assert presence.is_gone


def test_a_run_without_a_writer_has_time_to_come_back() -> None:
    """A server that was away came back empty: who adds events goes on adding."""
    presence = Presence(0.0, existed=True)
    nothing = Seen(exists=False, owner=None, left=None)
    presence.hear(Seen(exists=True, owner=None, left=None), 0.0)
    presence.notice_outage(10.0)
    assert not presence.hear(nothing, 10.1)
    assert not presence.is_gone
    presence.hear(Seen(exists=True, owner=None, left=None), 12.0)
    assert not presence.is_gone
    assert presence.hear(nothing, 20.0)
    assert presence.is_gone


def test_a_run_that_begins_while_it_is_looked_for() -> None:
    """The look was answered before the first event: nothing has disappeared."""
    presence = Presence(0.0, existed=False)
    presence.notice_events()
    before = Seen(exists=False, owner=None, left=None, existed=False)
    assert not presence.hear(before, 0.1)
    assert not presence.is_gone
    assert presence.hear(NOTHING, 5.0)


def test_a_run_whose_writer_lives_comes_back() -> None:
    presence = Presence(0.0, existed=True)
    presence.hear(alive(), 0.0)
    presence.notice_outage(2.0)
    assert not presence.hear(NOTHING, 2.0)
    assert not presence.hear(Seen(exists=False, owner=b"a", left=3.0), 2.5)
    assert not presence.is_gone
    assert not presence.hear(NOTHING, 5.0)
    assert presence.hear(NOTHING, 5.6)
    assert presence.is_gone


# -- where a follower stands


def test_a_place_where_nobody_else_stands_is_looked_at_more_and_more_seldom() -> None:
    cursor, looked = Cursor("5-0"), list[float]()
    assert not cursor.is_odd(0.0)
    for _ in range(8):
        assert cursor.odd_until is not None
        assert not cursor.is_odd(cursor.odd_until - 0.01)
        looked.append(cursor.odd_until)
        assert cursor.is_odd(cursor.odd_until)
    pauses = [b - a for a, b in zip([0.0, *looked], looked, strict=False)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    cursor.note(event(6))
    assert cursor.odd_until is None
    assert not cursor.is_odd(100.0)
    assert cursor.odd_until == pytest.approx(100.1)


def test_who_went_back_is_in_doubt_until_an_event_comes() -> None:
    """The sequence that he had read up to tells then how many are missing."""
    cursor = Cursor("0-0")
    cursor.note(event(9))
    cursor.go_back("4-0", 1.0)
    assert (cursor.id, cursor.known, cursor.in_doubt) == ("4-0", 9, True)
    assert cursor.misses_nothing(event(10))
    assert not cursor.misses_nothing(event(5))
    cursor.note(event(10))
    assert not cursor.in_doubt


def test_nothing_is_missing_before_the_first_event_that_is_given() -> None:
    """Where the run was empty; not where all of it was asked for."""
    cursor = Cursor("$")
    cursor.go_to_end(None)
    assert cursor.misses_nothing(event(7))
    cursor.go_back("0-0", 1.0)
    assert not cursor.misses_nothing(event(7))
    assert not Cursor("0-0").misses_nothing(event(7))


def test_a_lease_that_a_clock_set_back_made_longer() -> None:
    """It counts for its length from the first look, until its owner renews it."""
    presence = Presence(0.0, existed=True)
    hour = Seen(exists=True, owner=b"a", left=3_600.0, length=15.0)
    assert not presence.hear(hour, 0.0)
    assert not presence.hear(hour, 14.0)
    assert presence.look_at <= 15.1
    assert not presence.hear(hour, 15.05)
    assert presence.hear(hour, 15.5)
    assert presence.lost == b"a"
    renewed = Seen(exists=True, owner=b"a", left=14.9, length=15.0)
    presence.hear(renewed, 16.0)
    assert presence.lost is None
