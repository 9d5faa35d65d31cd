"""What is known of a project, in words and as JSON: for ``status`` and ``top``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bls_agent.ops.cli.screen import Cell
from bls_agent.ops.cli.words import status_cell
from bls_agent.ops.fleet import Presence, ProjectView
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import LogEntry, Status

__all__ = [
    "describe_entry",
    "describe_view",
    "exists",
    "freshness",
    "is_healthy",
    "shown_status",
    "span",
    "status_name",
]

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
WELL: Final = frozenset({Status.ONLINE, Status.OFFLINE})


def exists(view: ProjectView) -> bool:
    """Tell whether there is any key of the project."""
    return view.presence is not Presence.NEVER or view.queue != 0


def is_healthy(view: ProjectView) -> bool:
    """Tell whether its status is 在线, or 离线 as its last word."""
    return view.status in WELL


def shown_status(view: ProjectView, texts: Texts, *, meaning_too: bool = True) -> Cell:
    """Give the status in words: also that there is none, or that it is none of the four."""
    if view.status is None and view.status_text:
        return texts["status_bad"].format(value=view.status_text), "bold red"
    if view.status is None:
        return texts[f"status_{view.presence.value}"], "yellow"
    return status_cell(view.status, texts, meaning_too=meaning_too)


def freshness(view: ProjectView, texts: Texts) -> str:
    """Say whether the status can be believed."""
    if not exists(view):
        return texts["presence_absent"]
    values = {"age": span(view.age), "ttl": span(view.ttl)}
    if view.presence is Presence.FRESH and view.age is None:
        return texts["presence_fresh_since"].format(**values)
    exact = "_exact" if view.presence is Presence.FRESH and view.age_exact else ""
    return texts[f"presence_{view.presence.value}{exact}"].format(**values)


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


def describe_view(view: ProjectView, **more: object) -> dict[str, Any]:
    """Describe a project for programs; seconds, ``null`` for what nobody can tell."""
    told: Mapping[str, Any] = {
        "projectName": view.project,
        "status": view.status,
        "statusName": status_name(view.status),
        "statusText": view.status_text,
        "healthy": is_healthy(view),
        "presence": view.presence,
        "age": _rounded(view.age),
        "ageExact": view.age_exact,
        "ttl": _rounded(view.ttl),
        "queue": view.queue,
        "records": view.records,
        "rate": round(view.rate, 3),
        "errors": view.errors,
        "estimated": view.estimated,
        "lastRecordAge": _rounded(view.last_record_age),
        "lastRecord": describe_entry(view.last_record),
        "lastError": describe_entry(view.last_error),
    }
    return {**told, **more}


def status_name(status: Status | None) -> str | None:
    """Give the English name of a status, for programs: ``online``, ``fault``."""
    return status.name.lower() if status is not None else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def describe_entry(entry: LogEntry | None) -> dict[str, Any] | None:
    """Describe a log record with the contract's fields."""
    if entry is None:
        return None
    told: dict[str, Any] = {
        "timestamp": entry.timestamp,
        "level": entry.level,
        "message": entry.message,
    }
    if entry.metadata:
        told["metadata"] = entry.metadata
    return told
