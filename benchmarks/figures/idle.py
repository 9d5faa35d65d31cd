"""What an idle agent asks of Redis, and whether it grows."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.figures.figure import Figure
from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round
from bls_agent.devserver import DevServer

__all__ = ["FIGURE", "count_commands"]

OURS = "bls-agent"
RATE = "commands/s"
MARGIN = 1  # seconds for which the agent stays longer than it is looked at


def count_commands(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """Give what was called between two looks, but for the looking itself.

    Args:
        before: INFO commandstats at the beginning.
        after: INFO commandstats at the end.
    """
    calls = {
        name: stat["calls"] - before.get(name, {}).get("calls", 0)
        for name, stat in after.items()
        if name != "cmdstat_info"
    }
    return {
        name.removeprefix("cmdstat_").upper(): number
        for name, number in calls.items()
        if number
    }


def play(stage: Stage) -> Round:
    """Look at a server that has one idle agent and nobody else."""
    seconds = 3 if stage.quick else 40
    with DevServer() as server:
        alone = Stage(server.url, loop=stage.loop)
        alone.redis.info("commandstats")  # the greeting of our own connection is over
        with (
            alone.project() as project,
            alone.perform(
                "idle_agent", project=project, seconds=seconds + MARGIN
            ) as performance,
        ):
            performance.hear("idle")
            before = alone.redis.info("commandstats")
            time.sleep(seconds)
            after = alone.redis.info("commandstats")
            grown = performance.result()["grown"]
        alone.close()
    rates = {
        f"{name}/s": number / seconds
        for name, number in count_commands(before, after).items()
    }
    total = sum(rates.values())
    return {OURS: {RATE: total, **rates, "memory grown, KiB": grown / 1024}}


FIGURE = Figure(
    name="idle",
    title="An idle agent",
    about=(
        "One agent with default settings, alone at a server of its own, for 40 s: the "
        "difference of two `INFO commandstats` without the `INFO` itself, and of the "
        "agent's resident memory."
    ),
    rounds=2,
    play=play,
    goals=(Goal("Redis commands per idle second", OURS, RATE, "at most", 1.0),),
)
