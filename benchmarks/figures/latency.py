"""From push to handler: an agent beside a bare BLPOP loop."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.figures.figure import Figure
from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round, quantile
from bls_agent.core.keys import CONTROL

__all__ = ["FIGURE", "P50", "P99", "WARM_UP", "summarise"]

OURS, BARE = "bls-agent", "bare loop"
P50, P99 = "p50 µs", "p99 µs"
PAUSE = 0.003  # seconds between two pushes, about
WARM_UP = 50  # first commands, which do not count


def summarise(nanoseconds: list[int]) -> dict[str, float]:
    """Give the quantiles in microseconds, without the first commands."""
    counted = [each / 1_000 for each in nanoseconds[WARM_UP:]]
    return {P50: quantile(counted, 0.5), P99: quantile(counted, 0.99)}


def play(stage: Stage) -> Round:
    """Let both wait for the same producer, which serves them in turn."""
    count = WARM_UP + (300 if stage.quick else 1_500)
    with ExitStack() as stack:
        performances, controls = {}, []
        for name, subject in ((OURS, "latency_agent"), (BARE, "latency_bare")):
            project = stack.enter_context(stage.project())
            controls.append(CONTROL.build(project=project))
            performances[name] = stack.enter_context(
                stage.perform(
                    subject, project=project, control=controls[-1], count=count
                )
            )
            performances[name].hear("ready")
        stage.measure("producer", controls=controls, count=count, pause=PAUSE)
        return {
            name: summarise(performance.result()["nanoseconds"])
            for name, performance in performances.items()
        }


FIGURE = Figure(
    name="latency",
    title="From push to handler",
    about=(
        "A producer in a process of its own pushes a command about every 3 ms, to the "
        "agent and to the bare loop in turn, with the time of its push as an argument; "
        "the handler takes the difference. Nobody has anything else to do."
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("push → handler, p50", OURS, P50, "at most", 1.5, (BARE,)),
        Goal("push → handler, p99", OURS, P99, "at most", 1.5, (BARE,)),
    ),
)
