"""The program behind ``make load``: that it works, and how it judges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.load.__main__ import Row
from benchmarks.load.process import slope

ROOT = Path(__file__).parents[3]


def test_a_slope_is_that_of_the_line() -> None:
    """Flat is zero, and noise is not growth."""
    assert slope([(0.0, 5), (1.0, 5), (2.0, 5)]) == 0
    assert slope([(0.0, 0), (1.0, 10), (2.0, 20)]) == 10
    assert slope([(0.0, 10), (1.0, 0), (2.0, 10)]) == 0
    assert slope([(0.0, 10)]) == 0


def test_a_goal_that_is_missed_is_shown() -> None:
    """And what only informs is not judged."""
    assert Row("memory", "5 GB", "< 1 GB", met=False).show().endswith("| **no** |")
    assert Row("events", "5 / s").show() == "| events | 5 / s |  |  |"


def test_a_short_run_gives_figures() -> None:
    """Small and quick; whether goals are met is for the long run."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", "--minutes", "0.02", "--projects", "20",
         "--logging", "5", "--wallboards", "2", "--followers", "2", "--lists", "2"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for what in ("CPU of the console", "wallboard", "memory", "connections at Redis"):
        assert f"\n| {what}" in ran.stdout
