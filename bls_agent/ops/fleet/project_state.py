"""The state of one project, computed from repeated reads of its keys, without I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from bls_agent.core.codec import cut_text, decode_object, parse_timestamp
from bls_agent.core.errors import DecodeError
from bls_agent.core.keys import (
    CONTROL,
    DEAD_LETTERS,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    encode_key,
    place_beside,
)
from bls_agent.ops.fleet.log_tail import LogTail, written_at
from bls_agent.ops.fleet.project_view import Presence, ProjectView
from bls_agent.project.messages import STATUS_REASON, Level, LogEntry, Status
from bls_agent.project.status.intake import IntakeReport, intake_key, read_reports

DRIFT: Final = 5.0  # most seconds by which a reported age may be wrong
KEPT: Final = 55.0  # seconds for which a project without keys is remembered
SHOWN: Final = 4_096  # largest number of bytes of a record that is kept whole
SHOWN_TEXT: Final = 1_000  # bytes that are kept of the message of a longer record
BAD: Final = (Status.FAULT.value.encode(), Status.ERROR.value.encode())
LONGEST_PAUSE: Final = 15.0  # most seconds between two reads of a long record
REFUSED_PAUSE: Final = 60.0  # seconds until a refused read is tried again
SUGGESTED: Final = float(PROJECT_STATUS.ttl or 0)
CLOSE: Final = 1.0  # most seconds between two reads that date a refresh exactly
BUCKET: Final = 10.0  # seconds whose records are counted together
BUCKETS: Final = 30
SPAN: Final = BUCKET * BUCKETS
MINUTE: Final = 60.0
SHORTEST: Final = 1.0  # shortest time in seconds over which a rate is computed


class Moment(NamedTuple):
    """The time of a read."""

    now: float  # seconds of a clock that does not jump
    unix: float  # Unix seconds by the server's clock


class ProjectState:
    """The state of one project, updated with the data of each read."""

    def __init__(self, project: str, at: Moment) -> None:
        self.project = project
        self.status_key: bytes = encode_key(PROJECT_STATUS.locate(project=project))
        self.log_key: bytes = encode_key(PROJECT_CONSOLE.locate(project=project))
        control = CONTROL.locate(project=project)
        self.control_key: bytes = encode_key(control)
        place = place_beside(control)
        self.dead_key: bytes = encode_key(DEAD_LETTERS.locate(place=place))
        self.intake_key: bytes = encode_key(intake_key(project))
        self.status: StatusState = StatusState(at)
        self.log: LogState = LogState(at, self.status)
        self.head: QueueHead = QueueHead()
        self.empty_since: float | None = None
        self._queue: int | None = 0
        self._dead_letters: int | None = 0
        self._intake: Mapping[str, IntakeReport] = {}
        self._was_seen = False  # whether a status or a log was seen

    @property
    def mark(self) -> tuple[object, ...]:
        """The contents of the view, without values that change only with time."""
        lists = self._queue, self.head.sent_at, self._dead_letters
        own = self._presence, *lists, self._intake
        return *own, *self.status.mark, *self.log.mark

    def record_status(self, value: bytes | Held, ttl: float | None, at: Moment) -> None:
        """Record the beginning and TTL of the status key."""
        before = self._presence, self.status.value
        self.status.record(value, ttl, at)
        self._was_seen |= self.status.exists
        if (self._presence, value) != before:
            self.status.record_change(at, is_first=before[1] is None)

    @property
    def _presence(self) -> Presence:
        if self.status.exists:
            timed = self.status.freshness.ttl is not None
            return Presence.FRESH if timed else Presence.UNTIMED
        known = self._was_seen or self.log.length != 0
        return Presence.STALE if known else Presence.NEVER

    def record_lengths(
        self,
        queue: int | None,
        dead_letters: int | None,
        records: int | None,
        now: float,
    ) -> None:
        self._queue, self.log.length = queue, records
        if not queue:
            self.head = QueueHead()
        self._dead_letters = dead_letters
        self._was_seen |= records != 0
        if self.status.exists or queue != 0 or records != 0:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = now

    def record_intake(self, entries: Sequence[bytes] | None, at: Moment) -> None:
        """Record which processes take no commands; ``None`` if Redis refuses the read."""
        self._intake = read_reports(entries or (), at.unix)

    def wants_head(self, now: float) -> bool:
        """Return whether to read the oldest command; never if the queue was empty."""
        return bool(self._queue) and self.head.is_due(now)

    def is_forgotten(self, now: float) -> bool:
        if self.empty_since is None:
            return False
        return not self._was_seen or now - self.empty_since >= KEPT

    def view(self, at: Moment) -> ProjectView:
        status, text = self.status.read()
        freshness, log = self.status.freshness, self.log
        return ProjectView(
            project=self.project,
            status=status,
            status_text=text,
            reason=self.status.reason,
            presence=self._presence,
            age=freshness.age(at.now),
            age_exact=freshness.exact,
            ttl=freshness.left(at.now),
            queue=self._queue,
            queue_age=_since(self.head.sent_at, at),
            dead_letters=self._dead_letters,
            intake=self._intake,
            records=log.length,
            last_record=log.newest,
            last_record_age=_since(log.newest_at, at),
            rate=log.activity.rate(at.now),
            rates=log.activity.rates,
            errors=log.activity.errors,
            errors_total=log.errors_total,
            last_error=log.error,
            last_error_age=_since(log.error_at, at),
            at_least=log.activity.at_least,
            changed_at=self.status.changed_at,
            turned_age=_since(self.status.turned_at, at),
        )


class Held(Enum):
    """What a status key holds if that is no string."""

    NOTHING = ""
    OTHER_TYPE = "WRONGTYPE"


class StatusState:
    """The state of one status key, updated with each read."""

    def __init__(self, at: Moment) -> None:
        self.value: bytes | Held | None = None  # None before the first read
        self.changed_at: float = at.unix
        self.turned_at: float | None = None  # Unix time of a change that was seen
        self.freshness: Freshness = Freshness()
        # When the status was written, according to the age that the mark contains.
        self._shown_written: float | None = None
        self._reason = ("", "")  # the process that reported the reason, and the text

    @property
    def mark(self) -> tuple[object, ...]:
        """The view's values about the status, except those that change only with time."""
        return self.value, self._reason, self.freshness.exact, self._shown_written

    @property
    def exists(self) -> bool:
        return self.value not in (None, Held.NOTHING)

    @property
    def reason(self) -> str:
        return self._reason[1] if self.value in BAD else ""

    def record(self, value: bytes | Held, ttl: float | None, at: Moment) -> None:
        self.value = value
        self.freshness.record(ttl if self.exists else None, at.now)
        age = self.freshness.age(at.now)
        written, shown = None if age is None else at.now - age, self._shown_written
        # Smaller differences are not reported, because a reader that adds the passed time
        # to the last age is then wrong by less than DRIFT.
        if written is None or shown is None or abs(written - shown) >= DRIFT:
            self._shown_written = written

    def record_change(self, at: Moment, *, is_first: bool) -> None:
        self.changed_at = at.unix
        self.turned_at = None if is_first else at.unix
        if self.value not in BAD:
            self._reason = ("", "")

    def record_reason(self, entry: LogEntry) -> None:
        """Record why the status is 故障 or 报错.

        If a process with a name has reported the reason, only its records can clear it.
        """
        reason, known = entry.metadata.get(STATUS_REASON), ("", entry.instance)
        if isinstance(reason, str) and (reason or self._reason[0] in known):
            self._reason = (entry.instance, cut_text(reason, SHOWN_TEXT))

    def read(self) -> tuple[Status | None, str]:
        if not isinstance(self.value, bytes):
            return None, self.value.value if self.value else ""
        try:
            return Status.decode(self.value), ""
        except DecodeError:
            return None, self.value.decode("utf-8", "backslashreplace")


class QueueHead:
    """The oldest waiting command, as far as it was read."""

    def __init__(self) -> None:
        self.sent_at: float | None = None  # Unix time
        self._hash: int | None = None
        self._next_look = -math.inf

    def is_due(self, now: float) -> bool:
        """Return whether to read the command; a long one is read less often."""
        return now >= self._next_look

    def record(self, commands: Sequence[bytes] | None, at: Moment) -> None:
        """Record the first element of the queue; ``None`` if Redis refuses the read."""
        if commands is None:
            self.sent_at, self._next_look = None, at.now + REFUSED_PAUSE
            return
        for payload in commands:
            self._next_look = at.now + min(len(payload) // SHOWN, LONGEST_PAUSE)
            if hash(payload) != self._hash:
                self._hash, self.sent_at = hash(payload), _sent_at(payload, at)


def _sent_at(payload: bytes, at: Moment) -> float:
    """Return when a command was sent, or the time of the read without a timestamp."""
    try:
        moment = parse_timestamp(decode_object(payload).get("timestamp"))
    except DecodeError:
        moment = None
    return at.unix if moment is None else min(at.unix, moment.timestamp())


class LogState:
    """The state of one console list, updated with each read."""

    def __init__(self, at: Moment, status: StatusState) -> None:
        self._status = status  # records may hold the reason of a status
        self.length: int | None = 0
        self.activity: Activity = Activity(at.now)
        self.newest: LogEntry | None = None
        self.newest_at: float | None = None  # Unix time
        self.error: LogEntry | None = None  # the newest error record
        self.error_at: float | None = None  # Unix time
        self.errors_total: int = 0
        self._tail = LogTail()
        self._newest_hash: int | None = None
        self._looked_at = self._looked_before = at.now
        self._next_look = at.now

    @property
    def mark(self) -> tuple[object, ...]:
        """The view's values about the log, except those that change only with time."""
        activity = self.activity
        counts = activity.rates, activity.errors, activity.at_least
        return self.length, self._newest_hash, self.errors_total, *counts

    @property
    def is_new(self) -> bool:
        return not self._tail.started

    def is_due(self, now: float) -> bool:
        """Return whether to read the newest record; long records are read less often."""
        return now >= self._next_look

    def record_newest(self, payload: bytes | None, at: Moment, room: int) -> int:
        """Record the newest record; return how many of the last records to read next."""
        self._looked_before, self._looked_at = self._looked_at, at.now
        size = len(payload or b"")
        self._next_look = at.now + min(size // SHOWN, LONGEST_PAUSE)
        newest_hash = None if payload is None else hash(payload)
        if payload is None:
            self.newest = self.newest_at = None
            if self._newest_hash is not None:
                self._forget(at)
        elif newest_hash != self._newest_hash:
            entry = LogEntry.decode(payload)
            self.newest, self.newest_at = _brief(entry, size), _unix_of(entry, at)
        self._newest_hash = newest_hash
        return self._tail.wants(self.length or 0, payload, room)

    def record_window(self, window: Sequence[bytes], length: int, at: Moment) -> int:
        """Count the new records of a window and return 0.

        If a longer window is needed, return how many records to read. Cases:

        1. The window is the first one: records with a timestamp are counted. The counts
           are exact if the window holds the whole list, or the last five minutes of it.
        2. The window reaches back to the last read: every new record is counted.
        3. The window does not reach back: its records are counted, and for five minutes
           the counts are lower bounds.
        """
        news = self._tail.take(window, length, at.unix - SPAN)
        if news is None:
            return self._tail.size
        if news.first:
            self._forget(at)
        activity, entries = self.activity, news.entries
        activity.turn(at.now)
        for entry in entries:
            self._status.record_reason(entry)
        errors = [entry for entry in entries if entry.level is Level.ERROR]
        if errors:
            self.error, self.error_at = _brief(errors[-1], 0), _unix_of(errors[-1], at)
        elif len(entries) >= length:
            self.error = self.error_at = None  # the window is the whole list
        since = -math.inf if news.first else self._looked_before
        oldest = self._count(entries, at, since)
        if not news.complete:
            activity.record_missed()
        if news.first:
            known = news.complete and oldest < at.now
            activity.known_since = at.now - SPAN if known else oldest
        else:
            self.errors_total += len(errors)
        return 0

    def _forget(self, at: Moment) -> None:
        self.error = self.error_at = None
        self.activity = Activity(at.now)

    def _count(self, entries: Sequence[LogEntry], at: Moment, since: float) -> float:
        """Count records at the times of their timestamps, limited to ``since`` … now.

        Returns the oldest of these times.
        """
        oldest = at.now
        for entry in entries:
            written = written_at(entry)
            if written is None and math.isinf(since):
                continue
            then = at.now if written is None else at.now - (at.unix - written)
            then = max(since, min(then, at.now))
            self.activity.record(then, 1, int(entry.level is Level.ERROR))
            oldest = min(oldest, then)
        return oldest


def _unix_of(entry: LogEntry, at: Moment) -> float:
    """Return the Unix time of a record, or the time of the read without a timestamp."""
    written = written_at(entry)
    return at.unix if written is None else written


def _since(moment: float | None, at: Moment) -> float | None:
    return None if moment is None else max(0.0, at.unix - moment)


def _brief(entry: LogEntry, size: int) -> LogEntry:
    """Shorten a long record, because the fleet keeps records of all projects in memory."""
    size = size or len(entry.message.encode("utf-8", "surrogatepass"))
    if size <= SHOWN:
        return entry
    agent = entry.metadata.get("agent")
    kept = {"agent": agent} if entry.number is not None else {}
    message = cut_text(entry.message, SHOWN_TEXT)
    return replace(entry, message=message, metadata={**kept, "truncated": size})


@dataclass
class Freshness:
    """The age of one status, derived from its remaining TTL.

    Redis reports only the remaining TTL. A read just after a refresh shows the TTL that the
    service sets. Before such a read, the usual TTL of 60 seconds is assumed. If the
    remaining TTL is longer than that, the age is unknown.
    """

    exact: bool = False  # whether a refresh was seen, so that the age is exact
    ttl: float | None = None  # remaining TTL at the last read
    _given: float = 0.0  # the TTL that the service has set, or the assumed one
    _at: float = -math.inf

    def record(self, left: float | None, now: float) -> None:
        """Record the remaining TTL ``left``; ``None`` without a TTL or a status."""
        before, gap = self.ttl, now - self._at
        self.ttl, self._at = left, now
        if left is None:
            self.exact, self._given = False, 0.0
        elif before is not None and left <= before:
            return
        elif gap <= CLOSE:  # just written, because only a write makes a TTL grow
            self._given, self.exact = float(math.ceil(left)), True
        elif before is None or not left <= self._given <= left + gap:
            self._given = SUGGESTED if left <= SUGGESTED else math.inf
            self.exact = False

    def left(self, now: float) -> float | None:
        return None if self.ttl is None else max(0.0, self.ttl - (now - self._at))

    def age(self, now: float) -> float | None:
        """Return the seconds since the status was written; ``None`` if unknown."""
        left = self.left(now)
        if left is None or math.isinf(self._given):
            return None
        return max(0.0, self._given - left)


class Activity:
    """Counts of records and error records of one project in the last five minutes.

    Times are seconds of a clock that does not jump.
    """

    def __init__(self, now: float) -> None:
        self.known_since = now  # all records written since then are counted
        self._latest = int(now // BUCKET)
        self._records = deque([0] * BUCKETS, BUCKETS)
        self._errors = deque([0] * BUCKETS, BUCKETS)
        self._missed = deque([False] * BUCKETS, BUCKETS)  # were some records not read?

    def record_missed(self) -> None:
        """Record that some records were not read before the last :meth:`turn`."""
        self._missed[-1] = True

    def record(self, at: float, records: int, errors: int) -> None:
        """Count records of the time ``at``, which is not after the last :meth:`turn`."""
        place = int(at // BUCKET) - self._latest - 1
        if place >= -BUCKETS:
            self._records[min(place, -1)] += records
            self._errors[min(place, -1)] += errors

    def turn(self, now: float) -> None:
        bucket = int(now // BUCKET)
        for _ in range(min(bucket - self._latest, BUCKETS)):
            self._records.append(0)
            self._errors.append(0)
            self._missed.append(False)
        self._latest = max(bucket, self._latest)

    @property
    def rates(self) -> tuple[int, ...]:
        return tuple(self._records)

    @property
    def errors(self) -> int:
        return sum(self._errors)

    @property
    def at_least(self) -> bool:
        """Whether the counts are lower bounds."""
        return any(self._missed)

    def rate(self, now: float) -> float:
        """Return records per second over the last minute, or since ``known_since``."""
        into = now - self._latest * BUCKET
        full = int(MINUTE // BUCKET)
        oldest = self._records[-full - 1] * (1 - min(into / BUCKET, 1.0))
        count = sum(list(self._records)[-full:]) + oldest
        return count / max(SHORTEST, min(MINUTE, now - self.known_since))
