"""How statuses, levels and times look at a terminal: the same in every command."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from bls_agent.core.codec import format_timestamp, parse_timestamp
from bls_agent.ops.cli.screen import Cell
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import Level, Status

__all__ = ["LEVEL_STYLES", "STATUS_STYLES", "clock_of", "now_clock", "status_cell"]

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


def status_cell(
    status: Status | None, texts: Texts, *, meaning_too: bool = True
) -> Cell:
    """Give a status in the contract's word, with its meaning where that is another.

    Args:
        status: The status.
        texts: The catalogue ``cli``.
        meaning_too: For people; programs want the contract's word alone.
    """
    if status is not None and not meaning_too:
        return status.value, STATUS_STYLES[status]
    if status is None:
        return texts["status_none"], "dim"
    meaning = texts[f"status_{status.name}"]
    shown = status.value if meaning == status else f"{status.value} {meaning}"
    return shown, STATUS_STYLES[status]


def clock_of(timestamp: str) -> str:
    """Give the local time of a record, whatever its writer takes for a time."""
    moment = parse_timestamp(timestamp)
    try:
        local: datetime | None = moment.astimezone() if moment else None
    except (OverflowError, OSError, ValueError):  # the year 1, the year 9999
        local = None
    return local.strftime("%m-%d %H:%M:%S") if local else f"{'--:--:--':>14}"


def now_clock(*, iso: bool = False) -> str:
    """Give the time of now: local for people, UTC as in the contract for programs."""
    now = datetime.now(UTC)
    if iso:
        return format_timestamp(now.timestamp())
    return now.astimezone().strftime("%m-%d %H:%M:%S")
