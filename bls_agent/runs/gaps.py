"""Decides whether events are missing, whether a run exists and its writer is alive.

The *place* of a follower is the id of the last event that the follower has read. The
follower may *know* the sequence number of this event. If the number of the next event
in Redis is not the known number plus 1, events may be missing between the two events.
The first of these cases that applies decides:

1. The place is the beginning of the run, and the next event may be the first event of
   the run: no gap.
2. The place is the beginning of the run: the first events were TRIMMED.
3. Redis still has the event at the place: no gap, because another program may number
   its events in its own way. So a follower that has not read the events which a server
   has lost after the place gets no gap.
4. Redis has events older than the place, but not the event at the place: the reason is
   LOST, because trimming removes the oldest events first.
5. The next event has the number 1: the former run has EXPIRED, and a new run has the
   same id.
6. Otherwise the events up to the place, and perhaps later events, were TRIMMED.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NamedTuple, cast

from bls_agent.connection.endpoint import Reply
from bls_agent.core.errors import BlsError
from bls_agent.runs.events import (
    BEGINNING,
    EventId,
    Gap,
    GapReason,
    StreamEvent,
    order,
)
from bls_agent.runs.reading import NO_KEY, RunReader, decode_entries

LOOK: Final = 5.0  # seconds between two probes
BEHIND: Final = 0.05  # seconds from the end of a lease to the next probe
SOON: Final = 1.0  # seconds between two probes while a run without a lease gets events
LEASE: Final = 15.0  # default length in seconds of a writer's lease
CONFIRMED: Final = 0.25  # seconds from the first probe that finds no lease to the next
UNSEEN: Final = 2.0  # seconds to the next probe if no lease was ever found
UNOWNED: Final = 5.0  # seconds after an outage until a missing run is reported


def sequence_of(event: StreamEvent) -> int | None:
    """Return the number of an event in its run, or ``None`` if it is not readable."""
    return None if "sequence" in event.faults else event.sequence


def continues(known: int | None, event: StreamEvent) -> bool:
    """Return whether an event certainly follows the event with the number ``known``."""
    sequence = sequence_of(event)
    if known is None or sequence is None:
        return False
    return sequence == known + 1 or known == sequence == 0


@dataclass(frozen=True)
class GapEvidence:
    """What Redis holds at a position in a run, and around it."""

    stands: bool  # whether Redis still has the event at the position
    oldest: EventId | None  # id of the oldest event in Redis


async def fetch_evidence(reader: RunReader, place: EventId) -> GapEvidence:
    """Read the evidence for missing events after a position."""
    key = reader.keys.events
    at, oldest = await reader.pool.read_many(
        [
            ("XRANGE", key, place, place, "COUNT", 1),
            ("XRANGE", key, "-", "+", "COUNT", 1),
        ]
    )
    begins = _known(oldest)
    return GapEvidence(
        stands=bool(_known(at)),
        oldest=begins[0][0].decode() if begins else None,
    )


def classify_jump(
    place: EventId, known: int | None, first: StreamEvent, evidence: GapEvidence
) -> Gap | None:
    """Return the gap before an event, if any, by the cases in the module docstring."""
    sequence = sequence_of(first) or 0
    missing = sequence - known - 1 if known is not None else 0
    if place == BEGINNING:
        if known is not None and missing <= 0:
            return None
        reason = GapReason.TRIMMED
    elif evidence.stands:
        return None
    elif evidence.oldest is not None and order(evidence.oldest) < order(place):
        reason = GapReason.LOST
    elif sequence == 1:
        reason = GapReason.EXPIRED
    else:
        reason = GapReason.TRIMMED
    return Gap(first.run_id, reason, place, first.id, max(missing, 0) or None)


@dataclass(frozen=True)
class ResumeFacts:
    """What Redis holds about a run when a follower starts or resumes."""

    at: StreamEvent | None  # the event at the follower's position, if Redis has it
    exists: bool  # whether the run exists
    last: EventId | None  # id of the last event ever added; ``None`` if unknown
    lives: bool  # whether a writer has a lease on the run
    newest: StreamEvent | None = None  # the newest event; ``None`` if unknown


async def fetch_resume_facts(reader: RunReader, place: EventId) -> ResumeFacts:
    keys = reader.keys
    at, about, left = await reader.pool.read_many(
        [
            ("XRANGE", keys.events, place, place, "COUNT", 1),
            ("XINFO", "STREAM", keys.events),
            ("PTTL", keys.owner),
        ]
    )
    if isinstance(at, BlsError):
        raise reader.explain(at)
    found = decode_entries(keys.run_id, at)
    last, exists = read_last(about)
    newest = None
    if not isinstance(about, BlsError):
        entry = dict(zip(about[::2], about[1::2], strict=False)).get(b"last-entry")
        newest = decode_entries(keys.run_id, [entry])[0] if entry else None
    return ResumeFacts(
        at=found[0] if found else None,
        exists=exists or bool(found),
        last=last,
        lives=_known(left) not in (None, NO_KEY),
        newest=newest,
    )


def read_last(about: Reply) -> tuple[EventId | None, bool]:
    """Return the last id in an XINFO reply, if known, and whether the run exists."""
    if isinstance(about, BlsError):
        if "no such key" in str(about).lower():
            return BEGINNING, False
        return None, True
    named = dict(zip(about[::2], about[1::2], strict=False))
    return cast("bytes", named[b"last-generated-id"]).decode(), True


def _known(reply: Reply) -> Any:
    """Return a reply, or ``None`` for an error such as a missing permission."""
    return None if isinstance(reply, BlsError) else reply


class ResumePoint(NamedTuple):
    """Where and how a follower starts or resumes."""

    place: EventId  # the position after which to read
    known: int | None = None  # the sequence at the position; ``None`` if unknown
    gap: Gap | None = None  # the gap to return first
    closes: bool = False  # whether the event at the position has ended the run
    is_over: bool = False  # whether no event can follow


def find_resume_point(
    run_id: int, place: EventId, start: ResumeFacts, *, was_followed: bool = False
) -> ResumePoint:
    """Decide where to continue after an id that a caller passed or a follower reached.

    1. Redis has the event at the place: continue after the event.
    2. The last id of the run is before the place: the server has lost the events up to
       the place. Continue after the last id.
    3. The run exists: continue after the place. The next event will show whether events
       are missing.
    4. The run does not exist, and its writer is alive or the follower has read the run:
       the server has lost the run. Continue from the beginning.
    5. Otherwise the run has expired, and no event can follow.
    """
    if start.at is not None:
        return ResumePoint(place, sequence_of(start.at), closes=start.at.closes)
    if start.exists:
        if start.last is not None and order(start.last) < order(place):
            gap, newest = Gap(run_id, GapReason.LOST, place), start.newest
            ends = newest is not None and newest.id == start.last and newest.closes
            return ResumePoint(start.last, None, gap, closes=ends)
        return ResumePoint(place)
    if start.lives or was_followed:
        return ResumePoint(BEGINNING, None, Gap(run_id, GapReason.LOST, place))
    return ResumePoint(place, None, Gap(run_id, GapReason.EXPIRED, place), is_over=True)


@dataclass(frozen=True)
class Probe:
    """What Redis held about a run and its writer at one moment."""

    exists: bool  # whether the run has events
    owner: bytes | None  # token of a writer that has not ended the run
    left: float | None  # remaining seconds of the writer's lease; ``None`` without one
    elapsed: float = 0.0  # seconds that the probe took
    # Whether the run was known to exist before the probe. A run that begins during the
    # probe may be missing in the replies, but has not disappeared.
    existed: bool = True

    @classmethod
    def read(
        cls, exists: Reply, owner: Reply, left: Reply, *, elapsed: float, existed: bool
    ) -> Probe:
        milliseconds = _known(left)
        if milliseconds in (None, NO_KEY):
            seconds = None
        else:  # infinite if the key never expires
            seconds = milliseconds / 1000 if milliseconds >= 0 else float("inf")
        return cls(_known(exists) != 0, _known(owner), seconds, elapsed, existed)


class RunPresence(Enum):
    """Whether a run exists, as far as events and probes have shown."""

    UNSEEN = auto()  # no event and no probe has shown the run
    EXISTS = auto()
    DISAPPEARED = auto()  # the run existed, and was deleted or has expired


@dataclass(frozen=True, eq=False)
class WriterLoss:
    """The death of a writer. Each death that a topic finds is an object of its own."""

    token: bytes  # of the writer
    # Whether the topic had found before that no writer is lost. Otherwise an earlier
    # topic may have found this death, too.
    is_new: bool


class WriterLiveness:
    """Decides by repeated probes whether a run exists and its writer is alive.

    A missing lease does not prove that the writer is dead, because a writer cannot
    renew its lease during an outage of Redis. After an outage, the writer counts as
    lost only if it has not renewed its lease for the length of one lease.
    """

    def __init__(self, now: float, *, existed: bool) -> None:
        self.presence: RunPresence = (
            RunPresence.EXISTS if existed else RunPresence.UNSEEN
        )
        self.loss: WriterLoss | None = None  # of the writer that is lost now
        self.had_no_loss: bool = False  # whether a probe has found no lost writer
        self.probe_at: float = now  # when to probe again
        self._probed_at = float("-inf")
        self._lease = 0.0  # longest remaining time in seconds that a probe has found
        self._lives_until = float("-inf")  # end of the lease that was found last
        self._lost_not_before = self._absent_not_before = now
        # the writer whose lease is missing, and the time since which it is missing
        self._missed: tuple[bytes, float] | None = None

    @property
    def has_disappeared(self) -> bool:
        """Whether the run existed, and exists no longer."""
        return self.presence is RunPresence.DISAPPEARED

    @property
    def lost(self) -> bytes | None:
        """The token of the writer that is lost now."""
        return None if self.loss is None else self.loss.token

    def note_events(self) -> bool:
        """Record new events. Return whether to probe earlier than planned."""
        self.presence = RunPresence.EXISTS
        if (
            self._lives_until >= self._probed_at
            or self.probe_at <= self._probed_at + SOON
        ):
            return False
        self.probe_at = self._probed_at + SOON
        return True

    def note_outage(self, now: float) -> None:
        """Record an outage. For the length of a lease, no writer counts as lost."""
        self._lost_not_before = now + (self._lease or LEASE)
        self._absent_not_before = now + (self._lease or UNOWNED)
        self._missed = None
        self.probe_at = now

    def record(self, probe: Probe, now: float) -> bool:
        """Record a probe. Return whether followers have to be notified."""
        self._probed_at = now
        self.probe_at = now + LOOK
        if probe.left is not None:
            # A lease without a TTL may get one again, and its writer may then die.
            left = probe.left if math.isfinite(probe.left) else LEASE
            self._lease = max(self._lease, left)
            self._lives_until = now + left
            # The probe at the end of the lease is sent ``elapsed`` seconds earlier,
            # because this reply and the next request are on their way for so long.
            ends_at = self._lives_until - probe.elapsed
            self.probe_at = min(self.probe_at, ends_at + BEHIND)
        is_lost = self._record_writer(probe, now)
        return self._record_run(probe, now) or is_lost

    def _record_writer(self, probe: Probe, now: float) -> bool:
        """Return whether the writer is lost since this probe.

        1. The run has no writer, or the writer has a lease: no writer is lost.
        2. The lease is not missing for long enough: probe again soon.
        3. The writer was lost before this probe: nothing has changed.
        4. Otherwise the writer is lost.
        """
        if probe.owner is None or probe.left is not None:
            self.loss = self._missed = None
            self.had_no_loss = True
            return False
        if self._missed is None or self._missed[0] != probe.owner:
            self._missed = (probe.owner, now)
        # If this server answers slowly, the writer's renewals also arrive late.
        wait = max(CONFIRMED if self._lease else UNSEEN, probe.elapsed)
        sure_at = max(self._missed[1] + wait, self._lost_not_before)
        if now < sure_at:
            self.probe_at = min(self.probe_at, sure_at + BEHIND)
            return False
        if self.lost == probe.owner:
            return False
        self.loss = WriterLoss(probe.owner, is_new=self.had_no_loss)
        return True

    def _record_run(self, probe: Probe, now: float) -> bool:
        """Return whether the run is gone.

        1. The run exists.
        2. The run may begin, or a writer has a lease and may write it again: wait.
        3. The run is not missing for long enough: probe again soon.
        4. Otherwise the run is gone.
        """
        if probe.exists:
            self.presence = RunPresence.EXISTS
            return False
        may_begin = self.presence is RunPresence.UNSEEN or not probe.existed
        if may_begin or probe.left is not None:
            return False
        # After an outage the server may be empty until the writer writes again.
        sure_at = max(self._lives_until, self._absent_not_before)
        if now < sure_at:
            self.probe_at = min(self.probe_at, sure_at + BEHIND)
            return False
        self.presence = RunPresence.DISAPPEARED
        return True
