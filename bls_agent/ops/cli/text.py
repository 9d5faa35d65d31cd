"""Statuses, levels, times and records, formatted alike in every command. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from bls_agent.core.codec import format_timestamp
from bls_agent.ops.cli.output import Cell
from bls_agent.ops.terminal import CLOCK
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import Level, LogEntry, Status

__all__ = [
    "LEVEL_STYLES",
    "describe_entry",
    "now_clock",
    "span",
    "status_cell",
    "status_name",
]

STATUS_STYLES: Final = {
    Status.ONLINE: "green",
    Status.OFFLINE: "dim",
    Status.FAULT: "bold red",
    Status.ERROR: "bold yellow",
}
LEVEL_STYLES: Final = {
    Level.DEBUG: "dim",
    Level.INFO: "cyan",
    Level.WARN: "yellow",
    Level.ERROR: "bold red",
}
MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400


def status_cell(
    status: Status | None, texts: Texts, *, meaning_too: bool = True
) -> Cell:
    """Give the contract's word for a status, with its meaning for people."""
    if status is None:
        return texts["status_none"], "dim"
    meaning = texts[f"status_{status.name}"]
    if not meaning_too or meaning == status:
        return status.value, STATUS_STYLES[status]
    return f"{status.value} {meaning}", STATUS_STYLES[status]


def status_name(status: Status | None) -> str | None:
    """Give the English name of a status, for programs: ``online``, ``fault``."""
    return status.name.lower() if status is not None else None


def now_clock(*, iso: bool = False) -> str:
    """Give the current time: local for people, UTC as in the contract for programs."""
    now = datetime.now(UTC)
    if iso:
        return format_timestamp(now.timestamp())
    return now.astimezone().strftime(CLOCK)


def span(seconds: float | None) -> str:
    """Write a time in its two largest useful units: ``3s``, ``2m05s``, ``3h10m``."""
    if seconds is None:
        return "-"
    whole = int(max(0.0, seconds))
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02d}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02d}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02d}h"


def describe_entry(entry: LogEntry | None) -> dict[str, Any] | None:
    """Describe a log record for programs, with the contract's fields."""
    if entry is None:
        return None
    told: dict[str, Any] = {
        "timestamp": entry.timestamp,
        "level": entry.level,
        "message": entry.message,
    }
    return told | {"metadata": entry.metadata} if entry.metadata else told
