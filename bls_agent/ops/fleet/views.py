"""The state of the projects at one Redis, as values: no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bls_agent.core.errors import RedisUnavailableError
from bls_agent.project.messages import LogEntry, Status

__all__ = ["Condition", "FleetChange", "Presence", "ProjectView"]


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
