"""A thousand followers of one run, beside a thousand bare XREAD loops."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.figures.figure import Figure
from benchmarks.figures.runs_writing import new_run, remove_run
from benchmarks.stage import BenchmarkError, Performance, Stage
from benchmarks.summary import Goal, Round
from bls_agent.core.keys import RUN_EVENTS

__all__ = ["FIGURE"]

KIB: Final = 1024
OURS, BARE = "bls-agent", "bare XREAD loops"
RATE, EACH = "events per CPU second", "each follower, KiB"
TOGETHER: Final = 25  # events in one write: 500 a second, as a writer gathers them
# How they come → how many at once, seconds between two writes, and how many writes.
PACES: Final = {"one by one": (1, 0.4, 40), "25 at once": (TOGETHER, 1.0, 12)}
ALONE: Final = f"{OURS}, one by one"
FIELDS: Final[dict[Any, Any]] = {
    "timestamp": "2026-01-12T12:35:00.000Z",
    "source_agent_id": "analyst",
    "source_agent_type": "worker",
    "source_agent_name": "分析师",
    "source_team_name": "研究小组",
    "event_category": "llm",
    "event_action": "stream",
    "data": '{"text":"茶的价格上涨了三成，因为春天的雨水太少。"}',
}


def play(stage: Stage) -> Round:
    """Let both follow runs of their own that are written live, one after the other."""
    count = 50 if stage.quick else 1_000
    return {
        f"{name}, {pace}": _follow(stage, subject, count, pace)
        for pace in PACES
        for name, subject in ((OURS, "run_followers"), (BARE, "run_followers_bare"))
    }


def _follow(stage: Stage, subject: str, count: int, pace: str) -> dict[str, float]:
    together, pause, writes = PACES[pace]
    if stage.quick:
        pause, writes = 0.05, 5
    run_id, before = new_run(), _count_connections(stage)
    told: dict[str, Any] = {"run": run_id, "count": count, "events": together * writes}
    with ExitStack() as stack:
        performance = stack.enter_context(stage.perform(subject, **told))
        performance.hear("ready")
        connections = _count_connections(stage) - before
        began = _server_seconds(stage)
        for number in range(writes):
            time.sleep(pause)
            _write(stage, run_id, number * together, together)
        measured = _check(performance, count * together * writes)
        busy = measured["busy"] + _server_seconds(stage) - began
    remove_run(stage, run_id)
    return {
        RATE: count * together * writes / busy,
        "connections": float(connections),
        EACH: measured["next"] / KIB,
    }


def _write(stage: Stage, run_id: int, last: int, count: int) -> None:
    key = RUN_EVENTS.build(run_id=run_id)
    with stage.redis.pipeline(transaction=True) as pipe:
        for number in range(last + 1, last + count + 1):
            pipe.xadd(key, {**FIELDS, "sequence": str(number)})
        pipe.execute()


def _server_seconds(stage: Stage) -> float:
    told = stage.redis.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def _check(performance: Performance, expected: int) -> dict[str, Any]:
    """Give the result, if everybody was given everything.

    Raises:
        BenchmarkError: Somebody was not.
    """
    measured = performance.result()
    if measured["events"] != expected:
        message = f"{measured['events']:,} events instead of {expected:,} were given"
        raise BenchmarkError(message)
    return measured


def _count_connections(stage: Stage) -> int:
    found: int = stage.redis.info("clients")["connected_clients"]
    return found


FIGURE = Figure(
    name="runs-following",
    title="A thousand followers of one run",
    about=(
        "A thousand tasks of one process follow the same run, until each has been given "
        "all events: 40 that come one by one, 0.4 s apart; and 300 that come 25 at once, "
        "as a writer of 500 a second sends them. Counted is what each task was given, by "
        "second of processor time of that process and of the server. Memory: resident "
        "memory that each but the first one added. Bare: a client of redis-py with its "
        "own connection for each, `XREAD BLOCK` in a loop; it decodes nothing. One after "
        "the other; the pauses are long enough for each of them to be done."
    ),
    rounds=3,
    play=play,
    goals=(
        *(
            Goal(
                f"events per CPU second, {pace}",
                f"{OURS}, {pace}",
                RATE,
                "at least",
                10.0,
                (f"{BARE}, {pace}",),
            )
            for pace in PACES
        ),
        Goal("connections of all followers", ALONE, "connections", "at most", 2.0),
        Goal("each follower, KiB", ALONE, EACH, "at most", 20.0),
    ),
)
