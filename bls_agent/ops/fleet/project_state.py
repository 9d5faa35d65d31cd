"""One project over many looks: what its keys held, and what follows from it. No I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from bls_agent.core.codec import cut_text
from bls_agent.core.errors import DecodeError, RedisUnavailableError
from bls_agent.core.keys import (
    CONTROL,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    encode_key,
)
from bls_agent.ops.fleet.log_tail import LogTail, News, written_at
from bls_agent.project.messages import STATUS_REASON, Level, LogEntry, Status

DRIFT: Final = 5.0  # seconds by which an age that was given may be wrong
KEPT: Final = 600.0  # seconds that a project of which nothing is left is remembered
SHOWN: Final = 4_096  # bytes of a record that is kept whole
SHOWN_TEXT: Final = 1_000  # bytes of a longer one's message
BAD: Final = (Status.FAULT.value.encode(), Status.ERROR.value.encode())
WRONG: Final = "WRONGTYPE"
LONGEST_PAUSE: Final = 15.0  # seconds between two looks at long records
SUGGESTED: Final = float(PROJECT_STATUS.ttl or 0)
CLOSE: Final = 1.0  # seconds between two looks that leave no doubt: TTLs are whole ones
BUCKET: Final = 10.0  # seconds
BUCKETS: Final = 30
SPAN: Final = BUCKET * BUCKETS
MINUTE: Final = 60.0
SHORTEST: Final = 1.0  # seconds over which a rate is counted at least


class Presence(StrEnum):
    """Whether a project's status can be believed."""

    FRESH = "fresh"
    """It has a TTL: it would be gone if nobody refreshed it."""
    UNTIMED = "untimed"
    """It has none: a last word, or a service that sets none; nobody can tell."""
    STALE = "stale"
    """There is no status any more, but a log, or it was seen."""
    NEVER = "never"
    """There is only a control list."""


class Condition(StrEnum):
    """How a project is, in one word; the worst first."""

    FAULT = "fault"
    ERROR = "error"
    ODD = "odd"
    """Its status key holds none of the four values."""
    STALE = "stale"
    OFFLINE = "offline"
    ONLINE = "online"
    NEVER = "never"

    @property
    def place(self) -> int:
        """The worse the lower."""
        return tuple(Condition).index(self)


@dataclass(frozen=True, kw_only=True)
class ProjectView:
    """One project as it was at one moment.

    Attributes:
        project: Its name; bytes of a key that are not UTF-8 are kept as surrogates.
        status: ``None`` if the key is absent or holds none of the four.
        status_text: The beginning of the key's value if it is none of the four,
            ``"WRONGTYPE"`` for a key that is no string; else ``""``.
        reason: Why the status is 故障 or 报错, as far as the service has told and its
            record was read; else ``""``.
        presence: Whether the status can be believed.
        age: Seconds since the status was written; ``None`` if unknown. Until a refresh
            was seen, estimated from a TTL of at most 60 s, as if it had been 60.
        age_exact: Whether a refresh was seen.
        ttl: Seconds until the status expires; ``None`` if it does not, or is absent.
        queue: Commands that wait; ``None`` if the key is no list, or may not be read.
        records: Length of the console list; ``None`` as above.
        last_record: The newest record; a long one is shortened.
        last_record_age: Seconds since then, by its timestamp and the server's clock;
            without a timestamp since a look first found it.
        rate: Records per second over the last minute, or the shorter time known.
        rates: Records in each of the last 30 buckets of 10 s, oldest first; the last
            bucket is not over yet.
        errors: Error records of the last five minutes.
        last_error: The newest error record of those that were read.
        last_error_age: Seconds since then, as above.
        estimated: Whether ``rate``, ``rates`` and ``errors`` rest on a sample: more was
            written than was read.
        changed_at: Unix time, by the server's clock, at which status or presence
            changed last, as far as it was watched; else of the first look.
    """

    project: str
    status: Status | None = None
    status_text: str = ""
    reason: str = ""
    presence: Presence = Presence.NEVER
    age: float | None = None
    age_exact: bool = False
    ttl: float | None = None
    queue: int | None = 0
    records: int | None = 0
    last_record: LogEntry | None = None
    last_record_age: float | None = None
    rate: float = 0.0
    rates: tuple[int, ...] = (0,) * 30
    errors: int = 0
    last_error: LogEntry | None = None
    last_error_age: float | None = None
    estimated: bool = False
    changed_at: float = 0.0

    @property
    def condition(self) -> Condition:
        """How it is, in one word."""
        if self.status_text:
            return Condition.ODD
        if self.status is not None:
            return Condition[self.status.name]
        never = self.presence is Presence.NEVER
        return Condition.NEVER if never else Condition.STALE


@dataclass(frozen=True, kw_only=True)
class FleetChange:
    """What has changed since the change before.

    Attributes:
        views: Project → how it is now, of those that changed.
        gone: Projects of which nothing is left.
        unavailable: Why Redis cannot answer; the views before are the latest known.
            ``None``: it answers (again).
    """

    views: Mapping[str, ProjectView] = field(default_factory=dict[str, ProjectView])
    gone: frozenset[str] = frozenset()
    unavailable: RedisUnavailableError | None = None


class Moment(NamedTuple):
    """When a look was taken."""

    now: float  # seconds of a clock that does not jump
    unix: float  # Unix seconds by the server's clock


class ProjectState:
    """One project, fed with what each look finds."""

    def __init__(self, project: str, at: Moment) -> None:
        self.project = project
        self.status_key = encode_key(PROJECT_STATUS.locate(project=project))
        self.log_key = encode_key(PROJECT_CONSOLE.locate(project=project))
        self.control_key = encode_key(CONTROL.locate(project=project))
        self.empty_since: float | None = None
        self._changed_at = at.unix
        self._value: bytes | None = None
        self._wrong = False
        self._exists = False
        self._was_seen = False
        self._looked = False
        self._freshness = Freshness()
        self._told_written: float | None = None
        self._queue: int | None = 0
        self._records: int | None = 0
        self._tail = LogTail()
        self._listed_at = self._since = at.now
        self._activity = Activity(at.now)
        self._last_mark: int | None = None
        self._last: LogEntry | None = None
        self._last_at: float | None = None  # unix
        self._last_error: LogEntry | None = None
        self._error_at: float | None = None  # unix
        self._next_record = at.now
        self._reason = ("", "")  # the process that told it, and the text

    @property
    def mark(self) -> tuple[object, ...]:
        """What its view tells, but for what time does by itself."""
        activity = self._activity
        lists = self._queue, self._records, self._last_mark
        age = self._freshness.exact, self._told_written
        counts = activity.rates, activity.errors
        return *self._shown, self._reason, *age, *lists, *counts

    def record_status(
        self, value: bytes | None, ttl: float | None, at: Moment, *, wrong: bool = False
    ) -> None:
        """Record the status key's beginning and TTL; ``wrong``: it is no string."""
        before = self._shown
        self._exists = value is not None or wrong
        self._value, self._wrong = value, wrong
        self._freshness.record(ttl if self._exists else None, at.now)
        self._was_seen |= self._exists
        if self._shown != before and self._looked:
            self._changed_at = at.unix
            if not self._is_bad:
                self._reason = ("", "")
        self._looked = True
        age = self._freshness.age(at.now)
        written, told = None if age is None else at.now - age, self._told_written
        if written is None or told is None or abs(written - told) >= DRIFT:
            self._told_written = written  # who grew the age told before would be wrong

    @property
    def _shown(self) -> tuple[bytes | None, bool, Presence]:
        return self._value, self._wrong, self._presence

    @property
    def _is_bad(self) -> bool:
        return self._value in BAD

    @property
    def _presence(self) -> Presence:
        if self._exists:
            return (
                Presence.FRESH if self._freshness.ttl is not None else Presence.UNTIMED
            )
        known = self._was_seen or self._records != 0
        return Presence.STALE if known else Presence.NEVER

    def wants_record(self, now: float) -> bool:
        """Whether to read the newest record: not a long one every time."""
        return now >= self._next_record

    def record_lists(self, queue: int | None, records: int | None, now: float) -> None:
        """Record the lengths of the lists; ``None`` for a key that is no list."""
        self._queue, self._records = queue, records
        self._was_seen |= records != 0
        if self._exists or queue != 0 or records != 0:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = now

    def record_last(self, payload: bytes | None, at: Moment, room: int) -> int:
        """Record the newest record; give how many to read, in ``room`` bytes."""
        self._since, self._listed_at = self._listed_at, at.now
        size = len(payload or b"")
        self._next_record = at.now + min(size // SHOWN, LONGEST_PAUSE)
        mark = None if payload is None else hash(payload)
        if payload is None:
            self._last = self._last_at = None
        elif mark != self._last_mark:
            entry = LogEntry.decode(payload)
            self._last, self._last_at = _brief(entry, size), _unix_of(entry, at)
        self._last_mark = mark
        return self._tail.wants(self._records or 0, payload, room)

    def record_window(self, window: Sequence[bytes], length: int, at: Moment) -> int:
        """Record the tail; give how many records to read instead, or 0."""
        since = self._since if self._tail.started else -math.inf
        news = self._tail.take(window, length)
        if news is None:
            return self._tail.most
        self._activity.turn(at.now)
        for entry in news.entries:
            self._record_reason(entry)
        errors = [entry for entry in news.entries if entry.level is Level.ERROR]
        if errors:
            self._last_error = _brief(errors[-1], 0)
            self._error_at = _unix_of(errors[-1], at)
        self._count(news, at, since)
        unseen = news.count - len(news.entries)
        share = len(errors) / max(1, len(news.entries))
        self._activity.record(at.now, unseen, round(share * unseen))
        return 0

    def _record_reason(self, entry: LogEntry) -> None:
        """Record why the status is bad; a process takes back only what it has told."""
        reason = entry.metadata.get(STATUS_REASON)
        if isinstance(reason, str) and (reason or entry.instance == self._reason[0]):
            self._reason = (entry.instance, cut_text(reason, SHOWN_TEXT))

    def _count(self, news: News, at: Moment, since: float) -> None:
        """Count records at their own times, within the time from look to look.

        What was there before the first look counts only where it says when it was.
        """
        first, oldest = math.isinf(since), at.now
        for entry in news.entries:
            written = written_at(entry)
            if written is None and first:
                continue
            then = at.now if written is None else at.now - (at.unix - written)
            then = max(since, min(then, at.now))
            self._activity.record(then, 1, int(entry.level is Level.ERROR))
            oldest = min(oldest, then)
        if not first:
            if not news.complete:
                self._activity.estimated_at = at.now
        elif not news.complete and oldest > at.now - SPAN:
            self._activity.estimated_at, self._activity.known_since = at.now, oldest
        elif oldest < at.now:
            self._activity.known_since = at.now - SPAN

    def turn(self, now: float) -> None:
        """Let time pass."""
        self._activity.turn(now)

    def is_forgotten(self, now: float) -> bool:
        """Whether nothing has been left of the project for a while."""
        if self.empty_since is None:
            return False
        return not self._was_seen or now - self.empty_since >= KEPT

    def view(self, at: Moment) -> ProjectView:
        """Return the project as it is now."""
        status, text = self._read_status()
        return ProjectView(
            project=self.project,
            status=status,
            status_text=text,
            reason=self._reason[1] if self._is_bad else "",
            presence=self._presence,
            age=self._freshness.age(at.now),
            age_exact=self._freshness.exact,
            ttl=self._freshness.left(at.now),
            queue=self._queue,
            records=self._records,
            last_record=self._last,
            last_record_age=_since(self._last_at, at),
            rate=self._activity.rate(at.now),
            rates=self._activity.rates,
            errors=self._activity.errors,
            last_error=self._last_error,
            last_error_age=_since(self._error_at, at),
            estimated=at.now - self._activity.estimated_at < SPAN,
            changed_at=self._changed_at,
        )

    def _read_status(self) -> tuple[Status | None, str]:
        if self._wrong:
            return None, WRONG
        if self._value is None:
            return None, ""
        try:
            return Status.decode(self._value), ""
        except DecodeError:
            return None, self._value.decode("utf-8", "backslashreplace")


def _unix_of(entry: LogEntry, at: Moment) -> float:
    """Return the Unix time of a record; without a timestamp it is that of the look."""
    written = written_at(entry)
    return at.unix if written is None else written


def _since(moment: float | None, at: Moment) -> float | None:
    return None if moment is None else max(0.0, at.unix - moment)


def _brief(entry: LogEntry, size: int) -> LogEntry:
    """Shorten a long record: a thousand projects are in memory at once."""
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

    Redis shows the remaining TTL alone. The TTL that was set is known once a refresh
    was seen; until then it is taken for the contract's. If more is left than that, the
    age is unknown.
    """

    exact: bool = False  # a refresh was seen: the age is known
    ttl: float | None = None  # that was left at the last look
    _given: float = 0.0  # the TTL with which the status was written, as far as known
    _at: float = -math.inf

    def record(self, left: float | None, now: float) -> None:
        """Record a look; ``left`` is ``None`` without a TTL, or without a status."""
        before, gap = self.ttl, now - self._at
        self.ttl, self._at = left, now
        if left is None:
            self.exact, self._given = False, 0.0
        elif before is not None and left <= before:
            return
        elif gap <= CLOSE:  # written just now: what is left never grows by itself
            self._given, self.exact = float(math.ceil(left)), True
        elif before is None or not left <= self._given <= left + gap:
            self._given = SUGGESTED if left <= SUGGESTED else math.inf
            self.exact = False

    def left(self, now: float) -> float | None:
        """Return the seconds until the status expires; ``None`` if it does not."""
        return None if self.ttl is None else max(0.0, self.ttl - (now - self._at))

    def age(self, now: float) -> float | None:
        """Return the seconds since the status was written; ``None`` if unknown."""
        left = self.left(now)
        if left is None or math.isinf(self._given):
            return None
        return max(0.0, self._given - left)


class Activity:
    """Records and error records of one project over the last five minutes.

    Times are seconds of any clock that does not jump.
    """

    def __init__(self, now: float) -> None:
        self.known_since = now  # everything written since then has been counted
        self.estimated_at = -math.inf  # when a count was an estimate
        self._latest = int(now // BUCKET)
        self._records = deque([0] * BUCKETS, BUCKETS)
        self._errors = deque([0] * BUCKETS, BUCKETS)

    def record(self, at: float, records: int, errors: int) -> None:
        """Count records that were written at a time not after the last :meth:`turn`."""
        place = int(at // BUCKET) - self._latest - 1
        if place >= -BUCKETS:
            self._records[min(place, -1)] += records
            self._errors[min(place, -1)] += errors

    def turn(self, now: float) -> None:
        """Begin new buckets if it is time."""
        bucket = int(now // BUCKET)
        for _ in range(min(bucket - self._latest, BUCKETS)):
            self._records.append(0)
            self._errors.append(0)
        self._latest = max(bucket, self._latest)

    @property
    def rates(self) -> tuple[int, ...]:
        """Records in each bucket, oldest first."""
        return tuple(self._records)

    @property
    def errors(self) -> int:
        """Error records in all buckets."""
        return sum(self._errors)

    def rate(self, now: float) -> float:
        """Records per second over the last minute, or the shorter time known."""
        into = now - self._latest * BUCKET
        full = int(MINUTE // BUCKET)
        oldest = self._records[-full - 1] * (1 - min(into / BUCKET, 1.0))
        count = sum(list(self._records)[-full:]) + oldest
        return count / max(SHORTEST, min(MINUTE, now - self.known_since))
