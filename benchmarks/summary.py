"""From measured values to tables: medians, spreads, ratios, verdicts. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = [
    "Goal",
    "Round",
    "Spread",
    "Verdict",
    "format_number",
    "judge",
    "quantile",
    "show_goals",
    "show_values",
    "spread_of",
]

Round: TypeAlias = Mapping[str, Mapping[str, float]]
"""What one round gave: subject → measure → value."""

NOTHING: Final = "-"
HUNDRED: Final = 100  # from here on digits after the point say nothing


@dataclass(frozen=True)
class Spread:
    """Several values of the same thing.

    Attributes:
        median: The middle one.
        low: The least.
        high: The greatest.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Give ``median (low to high)``; one value alone has no spread."""
        middle = format_number(self.median)
        if self.low == self.high:
            return middle
        return f"{middle} ({format_number(self.low)} to {format_number(self.high)})"


@dataclass(frozen=True)
class Goal:
    """What a measure of a subject should be, by itself or beside other subjects.

    Attributes:
        text: What is asked, for people.
        subject: Who is judged.
        measure: By which value.
        sense: Whether more or less is better.
        limit: The value, or the ratio, that is just good enough.
        against: The subjects beside it; the best of each round counts. None: the
            value itself is judged.
    """

    text: str
    subject: str
    measure: str
    sense: Literal["at least", "at most"]
    limit: float
    against: tuple[str, ...] = ()

    def value(self, measured: Round) -> float | None:
        """Give the value or ratio of one round, ``None`` if somebody is missing."""
        own = measured.get(self.subject, {}).get(self.measure)
        if own is None or not self.against:
            return own
        others = [
            measured[name][self.measure]
            for name in self.against
            if self.measure in measured.get(name, {})
        ]
        if not others:
            return None
        best = max(others) if self.sense == "at least" else min(others)
        return own / best if best else None


@dataclass(frozen=True)
class Verdict:
    """Whether a goal was reached: the median decides.

    Attributes:
        goal: What was asked.
        found: What was found; ``None`` if nothing was measured.
        reached: Whether it is enough.
    """

    goal: Goal
    found: Spread | None
    reached: bool


def quantile(values: Sequence[float], share: float) -> float:
    """Give the smallest value that at least this share of the values do not exceed.

    Args:
        values: At least one.
        share: Between 0 and 1.
    """
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[max(rank, 1) - 1]


def spread_of(values: Iterable[float]) -> Spread:
    """Give median, least and greatest of at least one value."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found))


def judge(goal: Goal, rounds: Sequence[Round]) -> Verdict:
    """Judge a goal by the median of what each round gave.

    A ratio is taken within a round, where both sides met the same machine, and never
    between medians.
    """
    values = [value for each in rounds if (value := goal.value(each)) is not None]
    if not values:
        return Verdict(goal, None, reached=False)
    found = spread_of(values)
    enough = goal.sense == "at least"
    reached = found.median >= goal.limit if enough else found.median <= goal.limit
    return Verdict(goal, found, reached)


def show_values(rounds: Sequence[Round]) -> str:
    """Give a table with a row for each subject and a column for each measure."""
    subjects = list(dict.fromkeys(name for each in rounds for name in each))
    measures = list(
        dict.fromkeys(
            measure for each in rounds for row in each.values() for measure in row
        )
    )
    rows = [
        [subject, *(_cell(rounds, subject, measure) for measure in measures)]
        for subject in subjects
    ]
    return _table(["", *measures], rows)


def _cell(rounds: Sequence[Round], subject: str, measure: str) -> str:
    values = [
        each[subject][measure] for each in rounds if measure in each.get(subject, {})
    ]
    return str(spread_of(values)) if values else NOTHING


def show_goals(verdicts: Sequence[Verdict]) -> str:
    """Give a table with a row for each goal."""
    rows = [
        [
            verdict.goal.text,
            _limit(verdict.goal),
            NOTHING if verdict.found is None else str(verdict.found),
            _word(verdict),
        ]
        for verdict in verdicts
    ]
    return _table(["goal", "asked", "found", ""], rows)


def _limit(goal: Goal) -> str:
    sign = "≥" if goal.sense == "at least" else "≤"
    # A ratio is a number of times.
    return f"{sign} {goal.limit:g}{' ×' if goal.against else ''}"  # noqa: RUF001


def _word(verdict: Verdict) -> str:
    if verdict.found is None:
        return "not measured"
    return "reached" if verdict.reached else "**missed**"


def format_number(value: float) -> str:
    """Give three digits that count, or all of a greater number's own."""
    if abs(value) >= HUNDRED:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
