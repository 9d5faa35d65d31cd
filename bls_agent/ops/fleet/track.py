"""One project from look to look: what its keys said, and what follows from it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bls_agent.core.codec import cut_text, parse_timestamp
from bls_agent.core.errors import DecodeError
from bls_agent.ops.fleet.activity import BUCKET, SPAN, Activity
from bls_agent.ops.fleet.freshness import Freshness
from bls_agent.ops.fleet.log_tail import LogTail, News
from bls_agent.ops.fleet.views import Presence, ProjectView
from bls_agent.project.messages import Level, LogEntry, Status

__all__ = ["Moment", "Sample", "Track"]

DRIFT: Final = 5.0  # seconds by which an age that was told may be wrong
KEPT: Final = 600.0  # seconds that a project of which nothing is left is remembered
SHOWN: Final = 4_096  # bytes of a record that is kept whole
SHOWN_TEXT: Final = 1_000  # bytes of a longer one's message
WRONG: Final = "WRONGTYPE"
LONGEST_PAUSE: Final = 15.0  # seconds between two looks at long records


class Moment(NamedTuple):
    """When a look was taken.

    Attributes:
        now: Seconds of a clock that does not jump.
        unix: Unix seconds by the server's clock.
    """

    now: float
    unix: float


@dataclass(frozen=True)
class Sample:
    """What a look at the lists has found.

    Attributes:
        queue: Commands that wait; ``None`` for a key that is no list.
        records: Length of the console list; ``None`` for a key that is no list.
        last: The newest record; ``None`` if there is none.
        looked: Whether the newest record was read at all.
    """

    queue: int | None
    records: int | None
    last: bytes | None
    looked: bool = True


class Track:
    """One project, fed with what each look finds.

    Attributes:
        project: Its name.
        version: Grows whenever a view of it would look different.
        empty_since: When it was first seen that nothing is left of it; else ``None``.
    """

    def __init__(
        self, project: str, at: Moment, *, absent_at: float | None = None
    ) -> None:
        """Begin with a project of which nothing is known but its name.

        Args:
            project: Its name.
            at: When it was found.
            absent_at: When it surely was not there: whatever it has logged is newer.
        """
        self.project = project
        self.version = 1
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
        if absent_at is not None:
            self._tail.started = True
            self._freshness.note(None, absent_at)
        self._listed_at = self._since = at.now
        self._activity = Activity(at.now)
        self._last_mark: int | None = None
        self._last: LogEntry | None = None
        self._last_at: float | None = None  # unix
        self._last_error: LogEntry | None = None
        self._error_at: float | None = None  # unix
        self._next_record = at.now
        self.empty_since: float | None = None

    def note_status(
        self, value: bytes | None, ttl: float | None, at: Moment, *, wrong: bool = False
    ) -> None:
        """Take what the status key says.

        Args:
            value: Its beginning; ``None`` if there is no key.
            ttl: Seconds until it expires; ``None`` if it does not.
            at: When.
            wrong: The key holds no string.
        """
        before = self._said, self._freshness.exact
        self._exists = value is not None or wrong
        self._value, self._wrong = value, wrong
        self._freshness.note(ttl if self._exists else None, at.now)
        self._was_seen |= self._exists
        if self._said != before[0] and self._looked:
            self._changed_at = at.unix
        if (self._said, self._freshness.exact) != before:
            self.version += 1
        self._looked = True
        self._note_age(at.now)

    def _note_age(self, now: float) -> None:
        """Have a view told whose age would not be right if one let it grow."""
        age = self._freshness.age(now)
        written = None if age is None else now - age
        told = self._told_written
        if written is None or told is None or abs(written - told) >= DRIFT:
            self.version += written is not None or told is not None
            self._told_written = written

    @property
    def _said(self) -> tuple[bytes | None, bool, Presence]:
        return self._value, self._wrong, self._presence

    @property
    def _presence(self) -> Presence:
        if self._exists:
            return Presence.FRESH if self._freshness.timed else Presence.UNTIMED
        known = self._was_seen or self._records != 0
        return Presence.STALE if known else Presence.NEVER

    def wants_record(self, now: float) -> bool:
        """Say whether to look at the newest record: not at a long one every time."""
        return now >= self._next_record

    def note_lists(self, sample: Sample, at: Moment, room: int) -> int:
        """Take what the lists say.

        Args:
            sample: What they say.
            at: When.
            room: Bytes of records that may be read, about.

        Returns:
            How many records of the tail are to be read now.
        """
        before = self._queue, self._records, self._said
        self._queue, self._records = sample.queue, sample.records
        self._was_seen |= sample.records != 0
        if (self._queue, self._records, self._said) != before:
            self.version += 1
        self._note_emptiness(at.now)
        if not sample.looked:
            return 0
        self._since, self._listed_at = self._listed_at, at.now
        self._note_last(sample.last, at)
        size = len(sample.last or b"")
        self._next_record = at.now + min(size // SHOWN, LONGEST_PAUSE)
        return self._tail.wants(sample.records or 0, sample.last, room)

    def _note_last(self, payload: bytes | None, at: Moment) -> None:
        mark = None if payload is None else hash(payload)
        if mark == self._last_mark:
            return
        self._last_mark = mark
        self.version += 1
        if payload is None:
            self._last = self._last_at = None
            return
        entry = LogEntry.decode(payload)
        written = _written_at(entry)
        self._last = _brief(entry, payload)
        self._last_at = at.unix if written is None else written

    def _note_emptiness(self, now: float) -> None:
        empty = not self._exists and self._queue == 0 and self._records == 0
        if not empty:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = now

    def note_window(self, window: Sequence[bytes], length: int, at: Moment) -> int:
        """Take the records that :meth:`note_lists` has asked for.

        Returns:
            How many records are to be read instead; 0: these did.
        """
        first = not self._tail.started
        news = self._tail.take(window, length, at.now)
        if news is None:
            return self._tail.most
        self._activity.turn(at.now)
        self._note_error(news, at)
        if first:
            self._count_past(news, at)
        elif news.count:
            self._count(news, at)
            self.version += 1
        return 0

    def _count_past(self, news: News, at: Moment) -> None:
        """Count what was there before anybody watched, by the records' own times."""
        moments = [_written_at(entry) for entry in news.entries]
        known = [moment for moment in moments if moment is not None]
        for entry, moment in zip(news.entries, moments, strict=True):
            if moment is not None:
                then = at.now - max(0.0, at.unix - moment)
                self._activity.note(then, 1, int(entry.level is Level.ERROR))
        if not known:
            return
        covered = max(at.unix - known[0], known[-1] - known[0], 0.0)
        if not news.counted and covered < SPAN:
            self._activity.note_sample(at.now)
            self._activity.knows_since(at.now - covered)
        else:
            self._activity.knows_since(at.now - SPAN)

    def _count(self, news: News, at: Moment) -> None:
        """Count what came since the look before: then, not now, if that is long ago."""
        wrong = [entry.level is Level.ERROR for entry in news.entries]
        unseen = news.count - len(wrong)
        unseen_wrong = round(sum(wrong) * unseen / max(1, len(wrong)))
        if at.now - self._since <= BUCKET:
            self._activity.note(at.now, news.count, sum(wrong) + unseen_wrong)
        else:
            for entry, is_error in zip(news.entries, wrong, strict=True):
                written = _written_at(entry)
                then = at.now if written is None else at.now - (at.unix - written)
                then = max(self._since, min(then, at.now))
                self._activity.note(then, 1, int(is_error))
            self._activity.spread(self._since, at.now, unseen, unseen_wrong)
        if not news.complete:
            self._activity.note_sample(at.now)

    def _note_error(self, news: News, at: Moment) -> None:
        for entry in reversed(news.entries):
            if entry.level is Level.ERROR:
                written = _written_at(entry)
                self._last_error = _brief(entry, b"")
                self._error_at = at.unix if written is None else written
                return

    def turn(self, now: float) -> None:
        """Let time pass."""
        if self._activity.turn(now):
            self.version += 1

    def is_forgotten(self, now: float) -> bool:
        """Tell a project of which nothing is left, and has not been for a while."""
        if self.empty_since is None:
            return False
        return not self._was_seen or now - self.empty_since >= KEPT

    def view(self, at: Moment) -> ProjectView:
        """Give the project as it is now."""
        status, text = self._read_status()
        return ProjectView(
            project=self.project,
            status=status,
            status_text=text,
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
            estimated=self._activity.is_estimated(at.now),
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


def _since(moment: float | None, at: Moment) -> float | None:
    return None if moment is None else max(0.0, at.unix - moment)


def _written_at(entry: LogEntry) -> float | None:
    moment = parse_timestamp(entry.timestamp)
    return None if moment is None else moment.timestamp()


def _brief(entry: LogEntry, payload: bytes) -> LogEntry:
    """Keep of a long record its beginning: a thousand projects are remembered at once."""
    size = len(payload) or len(entry.message.encode("utf-8", "surrogatepass"))
    if size <= SHOWN:
        return entry
    agent = entry.metadata.get("agent")
    kept = {"agent": agent} if entry.number is not None else {}
    message = cut_text(entry.message, SHOWN_TEXT)
    return replace(entry, message=message, metadata={**kept, "truncated": size})
