"""The benchmarks: how values become verdicts, and that a run tells the truth."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.figures import FIGURES
from benchmarks.figures.commands import check_outcomes
from benchmarks.figures.idle import count_commands
from benchmarks.figures.latency import P50, P99, WARM_UP, summarise
from benchmarks.stage import BenchmarkError, Stage
from benchmarks.summary import (
    Goal,
    judge,
    quantile,
    show_goals,
    spread_of,
)

ROOT = Path(__file__).parents[1]
FASTER = Goal("faster", "ours", "rate", "at least", 2.0, ("bare", "other"))
QUICKER = Goal("quicker", "ours", "time", "at most", 1.0, ("bare", "other"))
SMALL = Goal("small", "ours", "size", "at most", 1.0)


@pytest.fixture
def stage(redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage on the server that the tests share, with no peer anywhere."""
    opened = Stage(redis_url, quick=True, peers=tmp_path)
    yield opened
    opened.close()


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmarks as people do."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 5), (0.51, 6), (0.99, 10), (1.0, 10)]
)
def test_a_quantile_is_one_of_the_values(share: float, expected: float) -> None:
    """It is the smallest value that at least this share does not exceed."""
    assert quantile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == expected


def test_the_best_of_the_others_counts() -> None:
    """More is better for a rate, less for a time."""
    measured = {
        "ours": {"rate": 60.0, "time": 6.0},
        "bare": {"rate": 10.0, "time": 2.0},
        "other": {"rate": 20.0, "time": 3.0},
    }
    assert FASTER.value(measured) == 3.0
    assert QUICKER.value(measured) == 3.0


def test_a_ratio_is_taken_within_a_round() -> None:
    """A machine that is slow in one round is so for both: the ratio stays."""
    rounds = [
        {"ours": {"rate": 20.0}, "bare": {"rate": 10.0}},
        {"ours": {"rate": 200.0}, "bare": {"rate": 100.0}},
        {"ours": {"rate": 90.0}, "bare": {"rate": 30.0}},
    ]
    verdict = judge(FASTER, rounds)
    assert verdict.found == spread_of([2.0, 2.0, 3.0])
    assert verdict.reached  # of the medians it would be 90 / 30


@pytest.mark.parametrize(
    ("goal", "measured", "word"),
    [
        (FASTER, {"ours": {"rate": 19.9}, "bare": {"rate": 10.0}}, "**missed**"),
        (FASTER, {"ours": {"rate": 20.0}, "bare": {"rate": 10.0}}, "reached"),
        (QUICKER, {"ours": {"time": 1.1}, "bare": {"time": 1.0}}, "**missed**"),
        (SMALL, {"ours": {"size": 0.9}}, "reached"),
        (SMALL, {"ours": {"size": 1.1}}, "**missed**"),
        (FASTER, {"ours": {"rate": 20.0}}, "not measured"),
    ],
)
def test_a_missed_goal_is_shown_as_missed(
    goal: Goal, measured: dict[str, dict[str, float]], word: str
) -> None:
    """The table says reached, missed, or that there was nobody to compare with."""
    row = show_goals([judge(goal, [measured])]).splitlines()[-1]
    assert row.endswith(f"| {word} |")
    assert word != "not measured" or "| - |" in row


def test_the_first_commands_do_not_count() -> None:
    """Latencies are in microseconds, without those of the warm-up."""
    slow, fast = [9_000_000] * WARM_UP, [2_000, 1_000, 3_000]
    assert summarise(slow + fast) == {P50: 2.0, P99: 3.0}


def test_looking_at_redis_is_not_counted() -> None:
    """Commands between two looks, without the looks themselves."""
    before = {"cmdstat_info": {"calls": 1}, "cmdstat_set": {"calls": 4}}
    after = {
        "cmdstat_info": {"calls": 2},
        "cmdstat_set": {"calls": 7},
        "cmdstat_blpop": {"calls": 20},
    }
    assert count_commands(before, after) == {"SET": 3, "BLPOP": 20}
    assert count_commands(after, after) == {}


def test_a_run_without_all_outcomes_does_not_count(stage: Stage) -> None:
    """Each command needs one record that says it succeeded."""
    with stage.project() as project:
        console = f"{project}_项目控制台"
        for number, outcome in enumerate(["succeeded", "succeeded", "failed"]):
            metadata = {"commandId": f"cmd-{number}", "outcome": outcome}
            stage.redis.rpush(console, json.dumps({"metadata": metadata}))
        check_outcomes(stage, project, 2)
        with pytest.raises(BenchmarkError, match="2 outcome records for 3 commands"):
            check_outcomes(stage, project, 3)
    assert not stage.redis.exists(console)


def test_a_subject_that_fails_gives_no_figure(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its process ends with a traceback, and that is said instead of a result."""
    with pytest.raises(BenchmarkError, match="shipping_bare ended with 1"):
        stage.measure("shipping_bare", batch=0)
    assert "KeyError" in capfd.readouterr().err


def test_a_quick_figure_runs() -> None:
    """The cheapest figure gives machine, values, verdict, and exit code 0."""
    done = benchmarks("shipping", "--quick")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert "redis" in shown[0]
    assert f"### {FIGURES['shipping'].title}" in shown
    assert [line.split(" | ")[0] for line in shown if "| bare" in line] == [
        "| bare loop"
    ]
    verdicts = [line for line in shown if line.startswith("| records/s")]
    assert len(verdicts) == 1
    assert verdicts[0].endswith(("| reached |", "| **missed** |"))


def test_an_unknown_figure_is_refused() -> None:
    """The names of all figures are told."""
    done = benchmarks("logs")
    assert done.returncode == 2
    assert all(name in done.stderr for name in FIGURES)


def test_the_document_shows_every_figure() -> None:
    """docs/performance.md has a table for each, under its title."""
    document = (ROOT / "docs/performance.md").read_text("utf-8")
    for figure in FIGURES.values():
        assert f"### {figure.title}" in document
        for goal in figure.goals:
            assert f"| {goal.text} |" in document


def imported(folder: Path) -> set[str]:
    """Every library that the files of a folder import."""
    nodes = [
        node
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    ]
    names = {
        alias.name
        for one in nodes
        if isinstance(one, ast.Import)
        for alias in one.names
    }
    names |= {one.module or "" for one in nodes if isinstance(one, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def test_make_bench_installs_what_the_figures_import() -> None:
    """In a fresh clone nothing else is there: no figure stops for a missing library."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installs = re.search(
        r"'\.\[(.+)\]' --group bench-ours\n", (ROOT / "Makefile").read_text()
    )
    assert installs is not None
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    wanted = [*project["project"]["dependencies"], *groups["bench"]]
    wanted += [one for one in groups["bench-ours"] if isinstance(one, str)]
    wanted += [one for extra in installs[1].split(",") for one in extras[extra]]
    present = {re.split(r"[\[>=; ]", one)[0].replace("-", "_") for one in wanted}
    present = {name.removesuffix("_sdk") for name in present}  # opentelemetry.sdk
    folders = [ROOT / "benchmarks" / name for name in (".", "figures", "subjects")]
    found = set[str]().union(*map(imported, folders))
    assert found - {"benchmarks", "bls_agent", "tests"} - present == set()
