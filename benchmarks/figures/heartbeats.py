"""Five thousand heartbeats in one process: processor, round trips, memory."""

from __future__ import annotations

import time

from benchmarks.figures.figure import Figure
from benchmarks.stage import BenchmarkError, Stage
from benchmarks.summary import Goal, Round

__all__ = ["FIGURE"]

KIB = 1024
OURS, BARE = "bls-agent", "by hand"
SHARE, TRIPS = "share of a core, %", "round trips/s"


def play(stage: Stage) -> Round:
    """Let all heartbeats of ours beat, then as many written by hand."""
    count, seconds = (200, 2) if stage.quick else (5_000, 30)
    found = {}
    for name, subject in ((OURS, "heartbeats"), (BARE, "heartbeats_bare")):
        with (
            stage.project() as project,
            stage.perform(
                subject, project=project, count=count, seconds=seconds
            ) as performance,
        ):
            performance.hear("idle")
            began, trips = time.monotonic(), _count_round_trips(stage)
            time.sleep(seconds / 2)
            elapsed = time.monotonic() - began
            trips = _count_round_trips(stage) - trips - 1
            _check(stage, project, count)
            measured = performance.result()
        found[name] = {
            SHARE: 100 * measured["share"],
            TRIPS: trips / elapsed,
            "each one, KiB": measured["next"] / KIB,
            "opened, s": measured["opening"],
            "all grown while beating, KiB": measured["grown"] / KIB,
        }
    return found


def _count_round_trips(stage: Stage) -> int:
    """Ask how often the server has read something from anybody."""
    found: int = stage.redis.info("stats")["total_reads_processed"]
    return found


def _check(stage: Stage, project: str, count: int) -> None:
    """Make sure that every worker is alive.

    Raises:
        BenchmarkError: One is missing.
    """
    keys = [f"backtest:worker:{project}_{number}" for number in range(count)]
    alive = stage.redis.exists(*keys)
    if alive != count:
        message = f"{alive} of {count} workers are alive"
        raise BenchmarkError(message)


FIGURE = Figure(
    name="heartbeats",
    title="Five thousand heartbeats in one process",
    about=(
        "One heartbeat is opened, then 4,999 more at once; then all beat for 30 s with "
        "the contract's 30 s to live and a beat about every 9 s. Round trips: how often "
        "the server had something to read from anybody, half of that time. Memory: what "
        "each but the first one added. By hand: one client with one connection, for "
        "each worker a task that writes with `SET … EX` every 10 s, as the contract shows "
        "it; nobody owns anything there."
    ),
    rounds=2,
    play=play,
    goals=(
        Goal("share of a core, %", OURS, SHARE, "at most", 50.0),
        Goal("… beside SET … EX by hand", OURS, SHARE, "at most", 1.0, (BARE,)),
        Goal("round trips/s", OURS, TRIPS, "at most", 20.0),
    ),
)
