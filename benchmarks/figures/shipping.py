"""Records per second into the console list: an agent beside a bare RPUSH loop."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks.figures.figure import Figure
from benchmarks.stage import BenchmarkError, Performance, Stage
from benchmarks.summary import Goal, Round
from bls_agent.core.keys import PROJECT_CONSOLE
from bls_agent.core.settings import Settings
from bls_agent.runtime.batch_writer import BATCH_ITEMS

__all__ = ["FIGURE"]

OURS, BARE = "bls-agent", "bare loop"
RATE = "records/s"
LIMIT = Settings.log_list_limit
WAVES = 10
COUNT = 8_000  # records at once: they fit into the default buffer


def play(stage: Stage) -> Round:
    """Let the agent ship, and the bare loop the bytes that the agent wrote, in turn."""
    waves = 2 if stage.quick else WAVES
    with stage.project() as ours, stage.project() as bare, ExitStack() as stack:
        console, prepared = (
            PROJECT_CONSOLE.build(project=each) for each in (bare, ours)
        )

        def start(subject: str, waves: int, **told: Any) -> Performance:
            performance = stack.enter_context(
                stage.perform(subject, count=COUNT, waves=waves, **told)
            )
            performance.hear("ready")
            return performance

        agent = start("shipping_agent", waves + 1, project=ours)
        agent.take_turn()
        told = {"prepared": prepared, "batch": BATCH_ITEMS, "limit": LIMIT}
        loop = start("shipping_bare", waves, console=console, **told)
        for _ in range(waves):
            agent.take_turn()
            loop.take_turn()
        seconds = {
            OURS: agent.result()["seconds"],
            BARE: loop.result()["seconds"],
        }
        lengths = [stage.redis.llen(key) for key in (prepared, console)]
    if lengths != [LIMIT, LIMIT]:
        message = f"the lists should hold {LIMIT} records, and hold {lengths}"
        raise BenchmarkError(message)
    return {name: {RATE: waves * COUNT / each} for name, each in seconds.items()}


FIGURE = Figure(
    name="shipping",
    title="Records shipped per second",
    about=(
        f"{COUNT:,} records wait in the agent's buffer, encoded; the clock runs until "
        f"the last one is in Redis; {WAVES} times. In turn a bare loop writes the very bytes "
        f"that the agent wrote, {BATCH_ITEMS} with one `RPUSH` as the agent does, and "
        "the same `LTRIM` in the same round trip."
    ),
    rounds=5,
    play=play,
    goals=(Goal("records/s", OURS, RATE, "at least", 0.8, (BARE,)),),
)
