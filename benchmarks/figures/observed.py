"""What a command costs with metrics and spans, beside the same agent without."""

from __future__ import annotations

from benchmarks.figures.commands import RATE, take_turns
from benchmarks.figures.figure import Figure
from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round

__all__ = ["FIGURE"]

PLAIN, METRICS = "bls-agent", "bls-agent, metrics"
TENTH = "bls-agent, metrics and a tenth of the spans"
ALL = "bls-agent, metrics and all spans"
BARE = "bls-agent, a bare span of the SDK"
COST = "processor µs/command"
MOST = 1.25
PIECES = 3


def play(stage: Stage) -> Round:
    """Let the agents empty their lists in turn, piece by piece."""
    agents = {
        PLAIN: "",
        METRICS: "metrics",
        TENTH: "metrics, a tenth of the spans",
        ALL: "metrics, spans",
        BARE: "bare spans",
    }
    parts = {
        name: ("commands_agent", {"prefetch": 1, "observed": observed})
        for name, observed in agents.items()
    }
    return {
        name: {
            COST: 1e6 * each["busy"] / each["count"],
            RATE: each["count"] / each["seconds"],
        }
        for name, each in take_turns(stage, parts, PIECES).items()
    }


FIGURE = Figure(
    name="observed",
    title="A command that is observed",
    about=(
        "The commands of the figure above, three pieces in each round. *Metrics* is "
        "`AgentCollector` of the extra `prometheus`. *Spans* is `instrument` of the extra "
        "`otel`, with the SDK of OpenTelemetry, which makes, batches and drops a span of each "
        "command, or of one command in ten, as its sampler is set. *A bare span* is what the "
        "SDK alone costs: one span without attributes for each command, and no `instrument`. "
        "A command that does nothing is the worst case, because observing costs the same for "
        "each command."
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("cost with metrics", METRICS, COST, "at most", MOST, (PLAIN,)),
        Goal("… and a tenth of the spans", TENTH, COST, "at most", MOST, (PLAIN,)),
        Goal("… and all spans", ALL, COST, "at most", MOST, (PLAIN,)),
    ),
)
