"""Log records on one line each, and which of them are wanted. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bls_agent.core.codec import cut_text, encode, parse_timestamp
from bls_agent.ops.cli.printable import json_text
from bls_agent.ops.cli.screen import Cell
from bls_agent.ops.cli.words import LEVEL_STYLES, clock_of
from bls_agent.project.messages import Level, LogEntry

__all__ = ["Filter", "for_people", "for_pipe", "told_metadata"]

LONGEST_METADATA: Final = 400  # bytes of it at a terminal
LONGEST_MESSAGE: Final = 4_000
LEVEL_COLUMNS: Final = 5
UNTOLD: Final = frozenset({"agent", "commandId"})  # of use to programs alone
_BARE: Final = re.compile(r"[\w.:/+-]{1,200}")


@dataclass(frozen=True)
class Filter:
    """Which records are wanted; gaps always are.

    Attributes:
        level: That one and worse.
        text: What message or metadata hold, whatever the case; plain text.
        since: Not before this time; a record without a time counts as new.
    """

    level: Level = Level.DEBUG
    text: str = ""
    since: datetime | None = None

    def is_old(self, entry: LogEntry) -> bool:
        """Tell whether a record is from before ``since``."""
        moment = parse_timestamp(entry.timestamp) if self.since else None
        return moment is not None and self.since is not None and moment < self.since

    def wants(self, entry: LogEntry) -> bool:
        """Tell whether a record is wanted."""
        if entry.is_gap:
            return True
        if entry.level.rank < self.level.rank or self.is_old(entry):
            return False
        wanted = self.text.casefold()
        if not wanted or wanted in entry.message.casefold():
            return True
        return wanted in encode(entry.metadata).decode().casefold()


def for_people(entry: LogEntry) -> tuple[list[Cell], bool]:
    """Write a record for a terminal; and tell whether something had to be cut."""
    level = entry.level.value.ljust(LEVEL_COLUMNS)
    pairs = " ".join(f"{key}={_plain(value)}" for key, value in told_metadata(entry))
    message = cut_text(entry.message, LONGEST_MESSAGE)
    shown = cut_text(pairs, LONGEST_METADATA)
    style = "yellow" if entry.is_gap else ""
    line: list[Cell] = [
        (clock_of(entry.timestamp), "dim"),
        " ",
        (level, LEVEL_STYLES[entry.level]),
        " ",
        (message, style),
    ]
    if shown and not entry.is_gap:
        line += ["  ", (shown, "dim")]
    return line, message != entry.message or shown != pairs


def for_pipe(entry: LogEntry) -> list[Cell]:
    """Write a record for a pipe: time, level, message and metadata, nothing cut."""
    metadata = json_text(entry.metadata) if entry.metadata else ""
    return [entry.timestamp or "-", entry.level.value, entry.message, metadata]


def told_metadata(entry: LogEntry) -> list[tuple[str, Any]]:
    """Choose what people want to see: of an outcome its result alone."""
    outcome = entry.outcome
    if outcome is None:
        return [item for item in entry.metadata.items() if item[0] not in UNTOLD]
    told = [("truncated", outcome.truncated)] if outcome.truncated else []
    if outcome.succeeded:
        return told if outcome.result is None else [*told, ("result", outcome.result)]
    return told + [item for item in outcome.error.items() if item[0] != "message"]


def _plain(value: Any) -> str:
    text = json_text(value)
    return text[1:-1] if text[:1] == '"' and _BARE.fullmatch(text[1:-1]) else text
