"""A thousand idle agents in one process: memory, processor, connections."""

from __future__ import annotations

from benchmarks.figures.figure import Figure
from benchmarks.stage import Stage
from benchmarks.summary import Round

__all__ = ["FIGURE"]

KIB, MIB = 1024, 1024 * 1024


def play(stage: Stage) -> Round:
    """Let a thousand agents be idle, then a thousand projects written by hand."""
    count, seconds = (50, 2) if stage.quick else (1_000, 12)
    found = {}
    for name, subject in (("bls-agent", "fleet_agent"), ("by hand", "fleet_bare")):
        with (
            stage.project() as project,
            stage.perform(
                subject, project=project, count=count, seconds=seconds
            ) as performance,
        ):
            performance.hear("idle")
            clients = stage.redis.info("clients")
            measured = performance.result()
        found[name] = {
            "first one, MiB": measured["first"] / MIB,
            "each other one, KiB": measured["next"] / KIB,
            "connections each": (clients["connected_clients"] - 1) / count,
            "opened, s": measured["opening"],
            "share of a core, %": 100 * measured["share"],
            "all grown while idle, KiB": measured["grown"] / KIB,
        }
    return found


FIGURE = Figure(
    name="fleet",
    title="A thousand agents in one process",
    about=(
        "One agent is opened, then 999 more at once, until each has written its first "
        "status; then they are idle for 12 s. Memory is resident memory beyond that of "
        "a Python process with a running event loop: the first one with all that had "
        "to be imported, then what each other one added. By hand: per project a client, "
        "a task in `BLPOP` and a task that refreshes the status, and nothing else."
    ),
    rounds=2,
    play=play,
)
