"""Whether events are missing between a place and the next one; no I/O here.

Sequences alone prove nothing: other writers count them in their own processes, and
several of them in one run. What proves is whether the event at the place still stands,
and what the run's books say of events that the server has forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bls_agent.runs.event_ids import BEGINNING, EventId, order
from bls_agent.runs.events import Gap, GapReason, StreamEvent

__all__ = [
    "Evidence",
    "Opening",
    "Start",
    "continues",
    "judge_jump",
    "judge_start",
    "sequence_of",
]


def sequence_of(event: StreamEvent) -> int | None:
    """Give the number of an event within its run; ``None`` if it cannot be read."""
    return None if "sequence" in event.faults else event.sequence


def continues(known: int | None, event: StreamEvent) -> bool:
    """Tell whether an event is surely the next one behind a known sequence."""
    sequence = sequence_of(event)
    if known is None or sequence is None:
        return False
    return sequence == known + 1 or known == sequence == 0


@dataclass(frozen=True)
class Evidence:
    """What Redis tells about a place and what stands behind it.

    Attributes:
        stands: Whether the event at the place is still there.
        oldest: Id of the oldest event that is there.
        noted: How many events the server had forgotten when the event behind the place
            was written, as its writer has noted; 0 if it noted nothing.
    """

    stands: bool
    oldest: EventId | None
    noted: int = 0


def judge_jump(
    place: EventId,
    known: int | None,
    first: StreamEvent,
    evidence: Evidence,
    *,
    is_event: bool = True,
    in_doubt: bool = False,
) -> Gap | None:
    """Judge an event whose sequence does not continue that of the place before.

    Args:
        place: Behind which it was read.
        known: The sequence at the place; ``None`` if nobody knows.
        first: The event.
        evidence: What else Redis tells.
        is_event: Whether an event surely stood at the place once.
        in_doubt: Whether the server had forgotten the place.
    """
    sequence = sequence_of(first) or 0
    missing = sequence - known - 1 if known is not None else 0
    if known is not None and missing <= 0 and (evidence.noted or place == BEGINNING):
        return None
    reason = _find_reason(place, sequence, evidence, is_event=is_event)
    if in_doubt:
        reason = GapReason.LOST
    if reason is None:
        return None
    told = missing if missing > 0 else None
    return Gap(first.run_id, reason, place, first.id, told)


def _find_reason(
    place: EventId, sequence: int, evidence: Evidence, *, is_event: bool
) -> GapReason | None:
    if evidence.noted:
        return GapReason.LOST
    if place == BEGINNING:
        return GapReason.TRIMMED
    if evidence.stands:
        return None
    if _had_tail(place, evidence.oldest):  # that is no trimming
        return GapReason.LOST if is_event else None
    if sequence == 1:  # the run's id was used again
        return GapReason.EXPIRED if is_event else None
    return GapReason.TRIMMED


def _had_tail(place: EventId, oldest: EventId | None) -> bool:
    """Tell whether events stand that are older than a place."""
    return oldest is not None and order(oldest) < order(place)


@dataclass(frozen=True)
class Start:
    """What Redis tells about the place at which somebody begins.

    Attributes:
        at: The event at the place, if it is there.
        exists: Whether the run is there.
        last: Id of the last event that was ever added to it; ``None`` if nobody knows.
        booked: Id and sequence of the last event that the books know of.
        lives: Whether a writer has a lease on the run.
        newest: The newest event that is there; ``None`` if nobody knows.
    """

    at: StreamEvent | None
    exists: bool
    last: EventId | None
    booked: tuple[EventId, int] | None
    lives: bool
    newest: StreamEvent | None = None


class Opening(NamedTuple):
    """How to begin.

    Attributes:
        place: Read behind it.
        known: The sequence there, if that is known.
        gap: What to tell first.
        is_event: Whether an event surely stood at the place once.
        closes: Whether its writer has ended the run with it.
        is_over: Whether nothing more can come.
    """

    place: EventId
    known: int | None = None
    gap: Gap | None = None
    is_event: bool = True
    closes: bool = False
    is_over: bool = False


def judge_start(run_id: int, place: EventId, start: Start) -> Opening:
    """Say how to begin behind an id that was given from outside."""
    if start.at is not None:
        return Opening(place, sequence_of(start.at), closes=start.at.closes)
    if start.exists:
        if start.last is not None and order(start.last) < order(place):
            gap, newest = Gap(run_id, GapReason.LOST, place), start.newest
            ends = newest is not None and newest.id == start.last and newest.closes
            return Opening(start.last, None, gap, closes=ends)
        return Opening(place, is_event=False)
    if start.booked is not None and order(start.booked[0]) <= order(place):
        # Deleted under its writer, who goes on behind his last event; or it has ended.
        behind: tuple[EventId, int | None] = (
            start.booked if start.lives else (place, None)
        )
        return Opening(*behind, is_over=not start.lives)
    if start.lives:
        return Opening(BEGINNING, None, Gap(run_id, GapReason.LOST, place))
    return Opening(place, None, Gap(run_id, GapReason.EXPIRED, place), is_over=True)
