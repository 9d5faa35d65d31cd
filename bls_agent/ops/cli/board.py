"""The live table of all projects, as values: what stands in it and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bls_agent.ops.cli.screen import Cell
from bls_agent.ops.cli.views import shown_status, span
from bls_agent.ops.fleet import Condition, Presence, ProjectView
from bls_agent.ops.texts import Texts

__all__ = ["FIELDS", "arrange", "cells_of", "fields_for", "summary"]

# Field → the columns of a terminal from which it is shown.
FIELDS: Final = {
    "project": 0,
    "status": 0,
    "age": 40,
    "queue": 50,
    "rate": 60,
    "errors": 60,
    "last_error": 90,
}
ALARMS: Final = (Condition.FAULT, Condition.ERROR)


@dataclass(frozen=True)
class _Row:
    """The fields of one project, each with its style."""

    view: ProjectView
    texts: Texts
    people: bool

    def cell(self, field: str) -> Cell:
        made: Cell = getattr(self, f"_{field}")()
        return made

    def _project(self) -> Cell:
        return self.view.project

    def _status(self) -> Cell:
        return shown_status(self.view, self.texts, meaning_too=self.people)

    def _queue(self) -> Cell:
        queue = "?" if self.view.queue is None else str(self.view.queue)
        return (queue, "yellow") if self.view.queue else queue

    def _rate(self) -> Cell:
        about = "~" if self.view.estimated else ""
        return f"{about}{self.view.rate:.1f}/s" if self.view.records else "-"

    def _errors(self) -> Cell:
        return (str(self.view.errors), "red") if self.view.errors else "0"

    def _last_error(self) -> Cell:
        return self.view.last_error.message if self.view.last_error else ""

    def _age(self) -> Cell:
        """How long ago the status was written, or how long the log has been silent."""
        view = self.view
        if view.presence is Presence.FRESH:
            known = view.age_exact or view.age is None
            return f"{'' if known else '~'}{span(view.age)}"
        return span(view.last_record_age), "dim"


def arrange(views: Iterable[ProjectView]) -> list[ProjectView]:
    """Put the worst first."""
    return sorted(views, key=lambda v: (v.condition.place, -v.errors, v.project))


def fields_for(columns: int) -> list[str]:
    """Choose what fits a terminal; what matters least goes first."""
    return [field for field, least in FIELDS.items() if columns >= least]


def cells_of(
    view: ProjectView, texts: Texts, fields: Sequence[str], *, people: bool = True
) -> list[Cell]:
    """Give one project's cells, for people or for programs."""
    row = _Row(view, texts, people)
    return [row.cell(field) for field in fields]


def summary(views: Sequence[ProjectView], texts: Texts) -> str:
    """Count the projects by how they are, in one line."""
    bad = sum(view.condition in ALARMS for view in views)
    silent = sum(view.status is None for view in views)
    return texts["top_summary"].format(count=len(views), bad=bad, silent=silent)
