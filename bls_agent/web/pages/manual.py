"""What a project's agent can do, as it told when it was asked ``help``.

``help`` is sent when somebody asks for it; agents in other languages may not know it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from bls_agent.codec import JSONValue
from bls_agent.project.messages import LogEntry
from bls_agent.web.pages.fields import Form, read_form

__all__ = [
    "HELP",
    "Entry",
    "Manual",
    "Manuals",
    "find_manual",
    "read_manual",
]

HELP: Final = "help"
MOST_ENTRIES: Final = 300
MOST_MANUALS: Final = 500  # projects whose commands are remembered
KEPT: Final = 600.0  # seconds for which an agent is not asked again
LONGEST_NAME: Final = 200
LONGEST_TEXT: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command.

    Attributes:
        name: Its name.
        description: What it is for.
        form: The fields of its arguments; ``None`` if they are only JSON.
    """

    name: str
    description: str = ""
    form: Form | None = None


@dataclass(frozen=True, kw_only=True)
class Manual:
    """What an agent can do.

    Attributes:
        entries: Its commands; none if it did not answer.
        told_at: When, by a clock that never jumps.
        asked: Whether it was asked, as far as is known.
    """

    entries: tuple[Entry, ...]
    told_at: float
    asked: bool = True


def read_manual(result: JSONValue) -> tuple[Entry, ...]:
    """Read the answer to ``help``; empty if it is no list of commands."""
    if not isinstance(result, list):
        return ()
    entries: dict[str, Entry] = {}
    for item in result[:MOST_ENTRIES]:
        entry = _read_entry(item)
        if entry is not None:
            entries.setdefault(entry.name, entry)
    return tuple(sorted(entries.values(), key=lambda entry: entry.name))


def _read_entry(item: JSONValue) -> Entry | None:
    if not isinstance(item, dict):
        return None
    told = cast("dict[str, Any]", item)
    name, said = told.get("name"), told.get("description")
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        return None
    return Entry(
        name=name,
        description=said[:LONGEST_TEXT] if isinstance(said, str) else "",
        form=read_form(told.get("parameters")),
    )


def find_manual(log: Sequence[LogEntry]) -> tuple[Entry, ...]:
    """Find the newest answer to ``help`` among records; empty if there is none."""
    for entry in reversed(log):
        outcome = entry.outcome
        if outcome is not None and outcome.succeeded and outcome.command == HELP:
            return read_manual(outcome.result)
    return ()


class Manuals:
    """Remembers the manuals of projects for a while, and that somebody was silent."""

    def __init__(self) -> None:
        """Begin with none."""
        self._manuals: OrderedDict[str, Manual] = OrderedDict()

    def get(self, project: str, now: float) -> Manual | None:
        """Give what is remembered and not too old."""
        manual = self._manuals.get(project)
        if manual is None or now - manual.told_at > KEPT:
            return None
        return manual

    def put(self, project: str, entries: tuple[Entry, ...], now: float) -> Manual:
        """Remember what an agent has told, or that it told nothing."""
        manual = Manual(entries=entries, told_at=now)
        self._manuals[project] = manual
        self._manuals.move_to_end(project)
        while len(self._manuals) > MOST_MANUALS:
            self._manuals.popitem(last=False)
        return manual
