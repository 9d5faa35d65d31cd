"""What the fleet reports: the views of projects, and changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bls_agent.core.errors import RedisUnavailableError
from bls_agent.project.messages import LogEntry, Status
from bls_agent.project.status.intake import IntakeReport


class Presence(StrEnum):
    """Whether a project's status is up to date."""

    FRESH = "fresh"
    """The status has a TTL, so a process refreshes it."""
    UNTIMED = "untimed"
    """The status has no TTL, because the process has ended, or because it sets no TTL."""
    STALE = "stale"
    """The status is missing, but the project has or had a log, or had a status."""
    NEVER = "never"
    """Only a control list exists."""


class Condition(StrEnum):
    """The state of a project in one word, from the worst state to the best."""

    FAULT = "fault"
    ERROR = "error"
    ODD = "odd"
    """The status key holds none of the four valid values."""
    STALE = "stale"
    OFFLINE = "offline"
    ONLINE = "online"
    NEVER = "never"

    @property
    def place(self) -> int:
        """The rank of the state; a worse state has a lower number."""
        return tuple(Condition).index(self)


@dataclass(frozen=True, kw_only=True)
class ProjectView:
    """One project as it was at one moment.

    Attributes:
        project: The project's name; bytes that are not UTF-8 are kept as surrogates.
        status: ``None`` if the key is absent or holds none of the four valid values.
        status_text: The beginning of the key's value if it is none of the four,
            ``"WRONGTYPE"`` for a key that is no string; else ``""``.
        reason: Why the status is 故障 or 报错, if the service has logged a reason and the
            fleet has read this record; else ``""``.
        presence: Whether the status is up to date.
        age: Seconds since the status was written; ``None`` if unknown. Until the fleet has
            seen a refresh, the age is estimated as if the TTL had been set to 60 s.
        age_exact: Whether ``age`` is exact, because the fleet has seen a refresh.
        ttl: Seconds until the status expires; ``None`` without a status or without a TTL.
        queue: Number of waiting commands; ``None`` if the key is no list, or may not be
            read.
        queue_age: Seconds since the oldest waiting command was sent, by its timestamp and
            the server's clock. If the command has no timestamp, seconds since the fleet
            first read the command. ``None`` without a waiting command, or if the queue may
            not be read.
        dead_letters: Number of dead letters (commands that agents have given up);
            ``None`` if the key is no list, or may not be read.
        intake: The processes that take no commands, because they are paused, draining or
            drained.
        records: Length of the console list; ``None`` if the key is no list, or may not
            be read.
        last_record: The newest record; a long record is shortened.
        last_record_age: Seconds since the newest record, by its timestamp and the server's
            clock. If the record has no timestamp, seconds since the fleet first read it.
        rate: Records per second over the last minute, or over the time that the fleet has
            watched the log, if that time is shorter.
        rates: Number of records in each of the last 30 periods of 10 seconds, oldest
            first. The last period is the current one, so its number still grows.
        errors: Number of error records of the last five minutes.
        errors_total: Number of error records that were written after the fleet first read
            the log. If some records were not read, the number is a lower bound.
        last_error: The newest error record that was read.
        last_error_age: Seconds since the newest error record, by its timestamp. If the
            record has no timestamp, seconds since the fleet has read it.
        at_least: Whether ``rate``, ``rates`` and ``errors`` are lower bounds, because some
            records of the last five minutes were not read.
        changed_at: Unix time, by the server's clock, of the last change of status or
            presence. Without such a change, the time of the first read.
        turned_age: Seconds since that change; ``None`` without a change.
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
    queue_age: float | None = None
    dead_letters: int | None = 0
    intake: Mapping[str, IntakeReport] = field(default_factory=dict[str, IntakeReport])
    records: int | None = 0
    last_record: LogEntry | None = None
    last_record_age: float | None = None
    rate: float = 0.0
    rates: tuple[int, ...] = (0,) * 30
    errors: int = 0
    errors_total: int = 0
    last_error: LogEntry | None = None
    last_error_age: float | None = None
    at_least: bool = False
    changed_at: float = 0.0
    turned_age: float | None = None

    def aged(self, seconds: float) -> ProjectView:
        """Return the view as it is some seconds later if nothing else has changed."""
        intake = self.intake.items()
        return replace(
            self,
            age=_later(self.age, seconds),
            ttl=_later(self.ttl, -seconds),
            queue_age=_later(self.queue_age, seconds),
            intake={n: replace(one, age=one.age + seconds) for n, one in intake},
            last_record_age=_later(self.last_record_age, seconds),
            last_error_age=_later(self.last_error_age, seconds),
            turned_age=_later(self.turned_age, seconds),
        )

    @property
    def exists(self) -> bool:
        """Whether the project has any key."""
        return self.presence is not Presence.NEVER or self.queue != 0

    @property
    def condition(self) -> Condition:
        """The state of the project in one word."""
        if self.status_text:
            return Condition.ODD
        if self.status is not None:
            return Condition[self.status.name]
        never = self.presence is Presence.NEVER
        return Condition.NEVER if never else Condition.STALE


def _later(age: float | None, seconds: float) -> float | None:
    return None if age is None else max(0.0, age + seconds)


@dataclass(frozen=True, kw_only=True)
class FleetChange:
    """The changes since the last ``FleetChange``.

    Attributes:
        views: Project → its current view, for projects that have changed.
        removed: Projects that are no longer shown, mostly because all their keys are gone.
        unavailable: Why Redis cannot answer; ``None`` if Redis answers. During an outage
            there are no views, and the views of earlier changes are the latest ones.
        read_at: Unix time, by the server's clock, of the last complete read; 0.0 before
            the first one.
    """

    views: Mapping[str, ProjectView] = field(default_factory=dict[str, ProjectView])
    removed: frozenset[str] = frozenset()
    unavailable: RedisUnavailableError | None = None
    read_at: float = field(default=0.0, compare=False)
