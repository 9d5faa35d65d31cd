"""The filter and the result of a search in a log. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final

from bls_agent.core.checks import check_text
from bls_agent.core.codec import encode, json_or_text, parse_timestamp
from bls_agent.core.errors import ConfigurationError
from bls_agent.project.messages import Level, LogEntry

_SPAN: Final = re.compile(
    r"(?=\d)(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?"
)


@dataclass(frozen=True, kw_only=True)
class LogFilter:
    """Selects records of a log.

    A record is selected if it matches all attributes. A gap, which is the entry for
    missing records, is always selected.

    Attributes:
        text: A text that occurs in the message, in the metadata as JSON, or in a field
            of the metadata written as ``name=value``. Upper and lower case are equal.
        level: The lowest level of the records.
        since: The earliest time of the records. A record without a time matches.
        until: The latest time of the records. If ``until`` is set, a record without a
            time does not match.
        replica: The beginning of the name of the replica that wrote the record.
        logger: The name of a logger of ``logging``. Records of its child loggers match,
            too.

    Raises:
        ConfigurationError: An attribute has another type, or ``since`` or ``until`` has
            no time zone.
    """

    text: str = ""
    level: Level = Level.DEBUG
    since: datetime | None = None
    until: datetime | None = None
    replica: str = ""
    logger: str = ""

    def __post_init__(self) -> None:
        """Check that the attributes can be compared with those of records."""
        for name in ("text", "replica", "logger"):
            check_text(name, getattr(self, name))
        if not isinstance(self.level, Level):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped code
            raise ConfigurationError("level", self.level, "a Level, such as Level.WARN")
        for name, moment in (("since", self.since), ("until", self.until)):
            is_exact = isinstance(moment, datetime) and moment.utcoffset() is not None
            if moment is not None and not is_exact:
                raise ConfigurationError(name, moment, "a datetime with its zone")

    def wants(self, entry: LogEntry) -> bool:
        """Return whether the filter selects this entry."""
        if entry.is_gap:
            return True
        return (
            entry.level.rank >= self.level.rank
            and self._has_replica(entry)
            and self._has_logger(entry)
            and self._is_in_time(entry)
            and self._has_text(entry)
        )

    def is_before(self, entry: LogEntry) -> bool:
        """Return whether a record is older than ``since``."""
        moment = parse_timestamp(entry.timestamp) if self.since else None
        return moment is not None and self.since is not None and moment < self.since

    def _is_in_time(self, entry: LogEntry) -> bool:
        if self.since is None and self.until is None:
            return True
        moment = parse_timestamp(entry.timestamp)
        if moment is None:  # a record without a valid time counts as new
            return self.until is None
        is_before = self.since is not None and moment < self.since
        is_after = self.until is not None and moment > self.until
        return not (is_before or is_after)

    def _has_replica(self, entry: LogEntry) -> bool:
        if not self.replica:
            return True
        agent = entry.metadata.get("agent")
        return isinstance(agent, str) and agent.startswith(self.replica)

    def _has_logger(self, entry: LogEntry) -> bool:
        if not self.logger:
            return True
        name = entry.metadata.get("logger")
        return isinstance(name, str) and f"{name}.".startswith(f"{self.logger}.")

    @cached_property
    def _folded(self) -> str:
        return self.text.casefold()

    def _has_text(self, entry: LogEntry) -> bool:
        wanted = self._folded
        if not wanted or wanted in entry.message.casefold():
            return True
        if not entry.metadata:
            return False
        if wanted in encode(entry.metadata).decode().casefold():
            return True
        fields = entry.metadata.items()
        return "=" in wanted and any(
            wanted in f"{name}={json_or_text(value)}".casefold()
            for name, value in fields
        )


@dataclass(frozen=True, kw_only=True)
class LogSearch:
    """The result of a search.

    Attributes:
        entries: The records that match, newest last.
        searched: How many records the search has read.
        back_to: The timestamp of the oldest record that was read, as the record's
            writer wrote it. ``""`` if none of the records has a timestamp.
        before: The argument that continues the search with older records. ``""`` if no
            older record can match.
        trimmed: Whether the search ended because the next older records were trimmed
            from the list meanwhile.
    """

    entries: Sequence[LogEntry] = ()
    searched: int = 0
    back_to: str = ""
    before: str = ""
    trimmed: bool = False


def read_moment(text: str) -> datetime | None:
    """Return the time of an ISO-8601 timestamp, or of an age like ``10m`` or ``1h30m``.

    Return ``None`` for any other text.
    """
    if found := _SPAN.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        ago = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return datetime.now(UTC) - ago
    return parse_timestamp(text)
