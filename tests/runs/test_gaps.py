"""What following decides without I/O: the buffer, what is missing, who is still there."""

from __future__ import annotations

from typing import Any

import pytest

from bls_agent.runs import Gap, GapReason, StreamEvent
from bls_agent.runs.follower import Cursor
from bls_agent.runs.gaps import (
    LOOK,
    GapEvidence,
    Probe,
    ResumeFacts,
    ResumePoint,
    WriterLiveness,
    classify_jump,
    continues,
    find_resume_point,
)
from bls_agent.runs.topic import EventBuffer


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


# -- the buffer


def filled(most: int = 5, most_bytes: int = 1_000, count: int = 4) -> EventBuffer:
    buffer = EventBuffer("10-0", most=most, most_bytes=most_bytes)
    for number in range(11, 11 + count):
        buffer.add([event(number)], [10])
    return buffer


def numbers(found: list[StreamEvent] | None) -> list[int] | None:
    return None if found is None else [one.sequence for one in found]


def test_all_behind_the_base_is_in_the_ring() -> None:
    buffer = filled()
    assert (buffer.base, buffer.head) == ("10-0", "14-0")
    assert buffer.locate("10-0") == 0
    assert buffer.locate("12-0") == 2
    assert buffer.locate("14-0") == buffer.end == 4
    assert numbers(buffer.after(2, 100)) == [13, 14]
    assert numbers(buffer.after(0, 3)) == [11, 12, 13]
    assert buffer.after(4, 100) == []


@pytest.mark.parametrize("place", ["9-0", "12-1", "11-5", "15-0", "0-0"])
def test_no_place_of_the_ring(place: str) -> None:
    """Before its base, between two events, behind its head: nobody knows what stood there."""
    assert filled().locate(place) is None


def test_the_oldest_go_when_there_are_many() -> None:
    buffer = filled(most=3, count=10)
    assert (buffer.first, buffer.base, buffer.head) == (7, "17-0", "20-0")
    assert buffer.after(6, 9) is None
    assert numbers(buffer.after(7, 9)) == [18, 19, 20]
    assert buffer.locate("16-0") is None
    assert buffer.locate("17-0") == 7


def test_the_oldest_go_when_they_are_large() -> None:
    """The newest stays, however large: else a thousand followers fetched it each."""
    buffer = filled(most_bytes=35, count=3)
    buffer.add([event(14)], [30])
    assert numbers(buffer.after(buffer.first, 9)) == [14]
    buffer.add([event(15), event(16)], [1, 5_000])
    assert numbers(buffer.after(buffer.first, 9)) == [16]
    buffer.add([event(17)], [1])
    assert numbers(buffer.after(buffer.first, 9)) == [17]


def test_no_number_of_before_a_restart_is_valid() -> None:
    buffer = filled()
    last = buffer.end
    buffer.restart("12-0")
    assert buffer.after(last, 9) is None
    assert buffer.locate("12-0") == buffer.end == buffer.first
    buffer.add([event(20)], [1])
    assert numbers(buffer.after(buffer.locate("12-0") or 0, 9)) == [20]


# -- what is missing


@pytest.mark.parametrize(
    ("known", "sequence", "is_next"),
    [(4, 5, True), (4, 6, False), (4, 4, False), (None, 5, False), (4, -1, False),
     (0, 1, True), (0, 0, True), (0, 2, False)],
)  # fmt: skip
def test_continues(known: int | None, sequence: int, is_next: bool) -> None:
    assert continues(known, event(9, sequence)) is is_next


STANDS = GapEvidence(stands=True, oldest="1-0")
TRIMMED = GapEvidence(stands=False, oldest="9-0")
HAD_TAIL = GapEvidence(stands=False, oldest="2-0")


@pytest.mark.parametrize(
    ("place", "known", "sequence", "evidence", "told"),
    [
        ("5-0", 5, 9, STANDS, None),  # a writer that counts as it likes
        ("5-0", 5, 9, TRIMMED, ("trimmed", 3)),
        ("5-0", 5, 3, TRIMMED, ("trimmed", None)),
        ("5-0", None, 9, TRIMMED, ("trimmed", None)),
        ("5-0", 5, 1, TRIMMED, ("expired", None)),  # the id was used again
        ("5-0", 5, 9, HAD_TAIL, ("lost", 3)),
        ("5-0", 5, 2, HAD_TAIL, ("lost", None)),
        ("5-0", None, 9, HAD_TAIL, ("lost", None)),
        ("0-0", 0, 4, TRIMMED, ("trimmed", 3)),
        ("0-0", 0, 1, TRIMMED, None),
    ],
)
def test_a_jump(
    place: str,
    known: int | None,
    sequence: int,
    evidence: GapEvidence,
    told: tuple[str, int | None] | None,
) -> None:
    gap = classify_jump(place, known, event(9, sequence), evidence)
    if told is None:
        assert gap is None
    else:
        assert gap == Gap(7, GapReason(told[0]), place, "9-0", told[1])


def start(**told: Any) -> ResumeFacts:
    nothing: dict[str, Any] = {
        "at": None, "exists": True, "last": "9-0", "lives": False,
    }  # fmt: skip
    return ResumeFacts(**{**nothing, **told})


def test_a_place_that_is_there() -> None:
    point = find_resume_point(7, "5-0", start(at=event(5, 33)))
    assert (point.place, point.known, point.gap) == ("5-0", 33, None)
    assert find_resume_point(7, "5-0", start(at=event(5, 33, "close"))).closes


def test_a_place_between_events() -> None:
    """Judged by the first event that is read."""
    point = find_resume_point(7, "5-0", start())
    assert (point.place, point.known, point.gap) == ("5-0", None, None)


def test_a_place_in_the_future() -> None:
    """The server never gave such an id: it has forgotten; go on from its end."""
    point = find_resume_point(7, "50-0", start())
    assert point.place == "9-0"
    assert point.gap == Gap(7, GapReason.LOST, "50-0")
    assert not point.is_over
    unknown = find_resume_point(7, "50-0", start(last=None))  # we may not ask
    assert (unknown.place, unknown.gap) == ("50-0", None)


def test_a_run_that_is_gone() -> None:
    gone = start(exists=False, last="0-0")
    expired = Gap(7, GapReason.EXPIRED, "5-0")
    assert find_resume_point(7, "5-0", gone).gap == expired
    assert find_resume_point(7, "5-0", gone).is_over
    lives = start(exists=False, last="0-0", lives=True)
    point = find_resume_point(7, "5-0", lives)
    assert point.gap == Gap(7, GapReason.LOST, "5-0")
    assert (point.place, point.is_over) == ("0-0", False)
    seen = find_resume_point(7, "5-0", gone, was_followed=True)
    assert seen.gap == Gap(7, GapReason.LOST, "5-0")
    assert (seen.place, seen.is_over) == ("0-0", False)


# -- who is still there

LEASE = 3.0


def alive(left: float = LEASE, **more: Any) -> Probe:
    return Probe(exists=True, owner=b"a", left=left, **more)


GONE = Probe(exists=True, owner=b"a", left=None)
NO_WRITER = Probe(exists=True, owner=None, left=None)
NOTHING = Probe(exists=False, owner=None, left=None)


def test_a_writer_that_dies_is_told_once_soon_after_its_lease() -> None:
    liveness = WriterLiveness(0.0, existed=True)
    assert not liveness.record(alive(), 0.0)
    assert LEASE < liveness.probe_at < LEASE + 0.2
    now = liveness.probe_at
    assert not liveness.record(GONE, now)
    assert liveness.probe_at < now + 0.5
    now = liveness.probe_at
    assert liveness.record(GONE, now)
    assert liveness.lost == b"a"
    assert now < LEASE + 1
    assert not liveness.record(GONE, now + LOOK)


def test_a_writer_that_has_ended_is_not_lost() -> None:
    liveness = WriterLiveness(0.0, existed=True)
    liveness.record(alive(), 0.0)
    for now in (4.0, 5.0, 20.0):
        assert not liveness.record(NO_WRITER, now)
    assert liveness.lost is None


def test_who_comes_late_takes_a_second_look() -> None:
    liveness = WriterLiveness(0.0, existed=True)
    assert not liveness.record(GONE, 0.0)
    assert not liveness.record(GONE, 1.0)
    assert liveness.record(GONE, liveness.probe_at)


def test_events_of_an_unknown_writer_are_a_reason_to_look() -> None:
    """But not more than once a second; and not where its lease is known."""
    liveness = WriterLiveness(0.0, existed=False)
    liveness.record(NOTHING, 0.0)
    assert liveness.note_events()
    assert liveness.probe_at == 1.0
    assert not liveness.note_events()
    liveness.record(alive(), 1.0)
    assert not liveness.note_events()


def test_an_outage_is_no_dead_writer() -> None:
    """A living one gets the time of its lease to come back."""
    liveness = WriterLiveness(0.0, existed=True)
    liveness.record(alive(), 0.0)
    liveness.note_outage(5.0)
    assert liveness.probe_at == 5.0
    assert not liveness.record(GONE, 5.1)
    assert not liveness.record(GONE, 5.0 + LEASE - 0.1)
    assert not liveness.record(alive(), 5.0 + LEASE - 0.05)
    assert not liveness.record(NOTHING, 6.0)  # and its run may come back, too
    assert not liveness.has_disappeared


@pytest.mark.parametrize("outage", [True, False])
def test_a_lease_that_was_seen_without_a_ttl_once(outage: bool) -> None:
    """It counts like any other: the writer that dies later is lost, its run may go."""
    liveness = WriterLiveness(0.0, existed=True)
    liveness.record(alive(float("inf")), 0.0)
    assert liveness.probe_at <= LOOK
    if outage:
        liveness.note_outage(1.0)
    liveness.record(alive(), 2.0)
    assert not liveness.record(GONE, 20.0)
    assert liveness.record(GONE, liveness.probe_at)
    liveness = WriterLiveness(0.0, existed=True)
    liveness.record(alive(float("inf")), 0.0)
    assert liveness.record(NOTHING, 20.0)
    assert liveness.has_disappeared


def test_a_far_server_is_no_outage() -> None:
    """Where every look takes long, a lost writer is told all the same."""
    liveness = WriterLiveness(0.0, existed=True)
    liveness.record(Probe(exists=True, owner=b"a", left=3.0, elapsed=0.6), 0.0)
    gone = Probe(exists=True, owner=b"a", left=None, elapsed=0.7)
    told = [liveness.record(gone, 20.0 + 0.5 * number) for number in range(6)]
    assert told.count(True) == 1


def test_a_writer_of_a_far_server_dies() -> None:
    """Told within a second and two round trips after the end of its lease."""
    liveness = WriterLiveness(0.0, existed=True)
    ends, now = 2.1 + LEASE, 2.4
    liveness.record(alive(elapsed=2.4), now)
    gone = Probe(exists=True, owner=b"a", left=None, elapsed=0.6)
    while liveness.lost is None and now < 60:
        arrives = max(now, liveness.probe_at) + 0.3
        now = arrives + 0.3
        left = ends - arrives
        liveness.record(alive(left, elapsed=0.6) if left > 0 else gone, now)
    assert now < ends + 1.0 + 2 * 0.6


def test_a_slow_probe_gives_a_writer_time_in_proportion() -> None:
    liveness = WriterLiveness(0.0, existed=True)
    liveness.record(alive(), 0.0)
    slow = Probe(exists=True, owner=b"a", left=None, elapsed=2.0)
    assert not liveness.record(slow, 6.0)
    assert not liveness.record(slow, 7.9)
    assert liveness.record(slow, 8.1)


def test_a_run_without_a_writer_has_time_to_come_back() -> None:
    """A server that was away came back empty: who adds events goes on adding."""
    liveness = WriterLiveness(0.0, existed=True)
    nothing = Probe(exists=False, owner=None, left=None)
    liveness.record(Probe(exists=True, owner=None, left=None), 0.0)
    liveness.note_outage(10.0)
    assert not liveness.record(nothing, 10.1)
    assert not liveness.has_disappeared
    liveness.record(Probe(exists=True, owner=None, left=None), 12.0)
    assert not liveness.has_disappeared
    assert liveness.record(nothing, 20.0)
    assert liveness.has_disappeared


def test_a_run_that_begins_while_it_is_looked_for() -> None:
    """The look was answered before the first event: nothing has disappeared."""
    liveness = WriterLiveness(0.0, existed=False)
    liveness.note_events()
    before = Probe(exists=False, owner=None, left=None, existed=False)
    assert not liveness.record(before, 0.1)
    assert not liveness.has_disappeared
    assert liveness.record(NOTHING, 5.0)


def test_a_run_whose_writer_lives_comes_back() -> None:
    liveness = WriterLiveness(0.0, existed=True)
    liveness.record(alive(), 0.0)
    liveness.note_outage(2.0)
    assert not liveness.record(NOTHING, 2.0)
    assert not liveness.record(Probe(exists=False, owner=b"a", left=3.0), 2.5)
    assert not liveness.has_disappeared
    assert not liveness.record(NOTHING, 5.0)
    assert liveness.record(NOTHING, 5.6)
    assert liveness.has_disappeared


# -- where a follower stands


def test_who_went_back_knows_what_was_read() -> None:
    """The next event may be the next one all the same, and is then no second gap."""
    cursor = Cursor("0-0")
    cursor.note(event(9))
    cursor.resume(ResumePoint("4-0"))
    assert (cursor.id, cursor.known) == ("4-0", 9)
    assert cursor.misses_nothing(event(10))
    assert not cursor.misses_nothing(event(12))


def test_nothing_is_missing_before_the_first_event_that_is_given() -> None:
    """Where the run was empty; not where all of it was asked for."""
    cursor = Cursor("$")
    cursor.id = "0-0"
    assert cursor.misses_nothing(event(7))
    assert not Cursor("0-0").misses_nothing(event(7))
