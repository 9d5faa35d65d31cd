"""What a log call costs its caller: the agent's beside the standard library's."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.figures.figure import Figure
from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round, quantile

__all__ = ["FIGURE"]

OURS = "agent.log.info"
HANDLER = "logging, BLSHandler"
SIMPLE, BOUNDED = "logging, SimpleQueue", "logging, Queue(10000)"
P50, P99 = "p50 µs", "p99 µs"
THREAD_P50, THREAD_P99 = "p50 µs, other thread", "p99 µs, other thread"


def play(stage: Stage) -> Round:
    """Let the subjects log in turn, from the loop's thread and from another one."""
    pieces, count = (1, 1_000) if stage.quick else (4, 2_000)
    parts = {
        OURS: ("log_calls_agent", "log"),
        SIMPLE: ("log_calls_stdlib", "SimpleQueue"),
        BOUNDED: ("log_calls_stdlib", "Queue"),
        HANDLER: ("log_calls_agent", "logging"),
    }
    with ExitStack() as stack:
        subjects = {}
        for name, (subject, through) in parts.items():
            project = stack.enter_context(stage.project())
            told = {"project": project, "through": through}
            subjects[name] = stack.enter_context(
                stage.perform(subject, count=count, pieces=pieces, **told)
            )
            subjects[name].hear("ready")
        for _ in range(pieces):
            for performance in subjects.values():
                performance.take_turn()
        return {name: summarise(each.result()) for name, each in subjects.items()}


def summarise(taken: dict[str, list[int]]) -> dict[str, float]:
    """Give the quantiles in microseconds."""
    return {
        P50: quantile(taken["loop"], 0.5) / 1_000,
        P99: quantile(taken["loop"], 0.99) / 1_000,
        THREAD_P50: quantile(taken["thread"], 0.5) / 1_000,
        THREAD_P99: quantile(taken["thread"], 0.99) / 1_000,
    }


FIGURE = Figure(
    name="log-calls",
    title="What a log call costs its caller",
    about=(
        "A message and three fields, in bursts of 20 calls with a millisecond between "
        "them, in which the consumer works: the agent ships to Redis; a `QueueListener` "
        "builds the same JSON and throws it away. `SimpleQueue` is compared with, "
        "because it is written in C and the fastest there is; it is unbounded, and the "
        "listener keeps it short. `Queue(10000)` is as bounded as the agent's buffer. "
        "The first two columns: calls made on the event loop's own thread. The four take "
        "turns."
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("a log call, p50", OURS, P50, "at most", 1.0, (SIMPLE,)),
        Goal("a log call, p99", OURS, P99, "at most", 1.0, (SIMPLE,)),
        Goal("… in another thread, p50", OURS, THREAD_P50, "at most", 1.0, (SIMPLE,)),
        Goal("… in another thread, p99", OURS, THREAD_P99, "at most", 1.0, (SIMPLE,)),
    ),
)
