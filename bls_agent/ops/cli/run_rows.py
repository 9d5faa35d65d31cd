"""Runs in words, as rows of a table and as JSON: for ``runs list``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bls_agent.core.codec import cut_text, format_timestamp
from bls_agent.ops.cli.screen import Cell
from bls_agent.ops.cli.views import span
from bls_agent.ops.texts import Texts
from bls_agent.runs import RunList, RunState, RunSummary

__all__ = [
    "FIELDS",
    "count_runs",
    "describe_run",
    "is_well",
    "run_cells",
    "run_fields",
    "say_left_out",
]

# Field → the columns of a terminal from which it is shown.
FIELDS: Final = {
    "id": 0,
    "state": 0,
    "events": 40,
    "age": 0,
    "started": 90,
    "ttl": 100,
    "last": 70,
    "about": 60,
}
STYLES: Final = {
    RunState.RUNNING: "green",
    RunState.OPEN: "cyan",
    RunState.LOST: "bold yellow",
    RunState.COMPLETED: "",
    RunState.FAILED: "bold red",
    RunState.CANCELLED: "dim",
    RunState.CLOSED: "dim",
}
LONGEST: Final = 200  # bytes of what a run is about, at a terminal
LATEST: Final = 253_402_300_800.0  # the year 10,000: what no calendar knows


def is_well(run: RunSummary) -> bool:
    """Tell whether its writer lives, or has ended it."""
    return run.state is not RunState.LOST


def run_fields(columns: int) -> list[str]:
    """Choose what fits a terminal; what matters least goes first."""
    return [field for field, least in FIELDS.items() if columns >= least]


@dataclass(frozen=True)
class _Row:
    """The fields of one run, each with its style."""

    run: RunSummary
    texts: Texts
    people: bool
    now: float

    def cell(self, field: str) -> Cell:
        made: Cell = getattr(self, f"_{field}")()
        return made

    def _id(self) -> Cell:
        return str(self.run.run_id)

    def _state(self) -> Cell:
        state = self.run.state
        shown = self.texts[f"run_state_{state.value}"] if self.people else state.value
        return (shown, STYLES[state]) if STYLES[state] else shown

    def _events(self) -> Cell:
        return str(self.run.length)

    def _age(self) -> Cell:
        at = self.run.last_at
        if not self.people:
            return _stamp(at)
        return "-" if at is None or at >= LATEST else span(self.now - at)

    def _started(self) -> Cell:
        at = self.run.started_at
        if not self.people or at is None or at >= LATEST:
            return _stamp(at)
        local = datetime.fromtimestamp(at, UTC).astimezone()
        return local.strftime("%m-%d %H:%M:%S")

    def _ttl(self) -> Cell:
        ttl = self.run.ttl
        return span(ttl) if self.people or ttl is None else f"{ttl:.0f}"

    def _last(self) -> Cell:
        return cut_text(self.run.last, LONGEST) if self.people else self.run.last

    def _about(self) -> Cell:
        run = self.run
        if run.error:
            text = f"{run.task}: {run.error}" if run.task else run.error
            return cut_text(text, LONGEST) if self.people else text
        return cut_text(run.task, LONGEST) if self.people else run.task


def _stamp(at: float | None) -> str:
    return "-" if at is None or at >= LATEST else format_timestamp(at)


def run_cells(
    run: RunSummary,
    texts: Texts,
    fields: Sequence[str],
    now: float,
    *,
    people: bool = True,
) -> list[Cell]:
    """Give one run's cells, for people or for programs.

    Args:
        run: The run.
        texts: The catalogue ``cli``.
        fields: Which cells.
        now: Seconds since 1970.
        people: Whether in words, and cut.
    """
    row = _Row(run, texts, people, now)
    return [row.cell(field) for field in fields]


def describe_run(run: RunSummary, **more: object) -> dict[str, Any]:
    """Describe a run for programs."""
    return {**run.to_dict(), "healthy": is_well(run), **more}


def count_runs(found: RunList, texts: Texts) -> str:
    """Count the runs by how they stand, in one line."""
    states = [run.state for run in found]
    told = texts["runs_summary"].format(
        count=found.total,
        running=states.count(RunState.RUNNING),
        lost=states.count(RunState.LOST),
        failed=states.count(RunState.FAILED),
    )
    more = found.total - len(found)
    return f"{told} · {texts['runs_more'].format(count=more)}" if more > 0 else told


def say_left_out(left_out: Iterable[tuple[str, int]], texts: Texts) -> str:
    """Say what has the key of a run and is none, in one line."""
    return ", ".join(
        texts[f"runs_left_out_{why}"].format(count=count) for why, count in left_out
    )
