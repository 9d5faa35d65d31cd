"""Events of a run to a client over HTTP: live, and all that are kept at once."""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.figures.figure import Figure
from benchmarks.figures.latency import P50, P99, WARM_UP, summarise
from benchmarks.figures.runs_following import FIELDS
from benchmarks.figures.runs_writing import new_run, remove_run
from benchmarks.stage import Performance, Stage
from benchmarks.summary import Goal, Round
from bls_agent.core.keys import RUN_EVENTS

__all__ = ["FIGURE"]

OURS, BARE = "bls-agent", "bare generator"
SUBJECTS: Final = {OURS: "run_sse", BARE: "run_sse_bare"}
REPLAY = "replay of 10,000 events, s"
KEPT: Final = 10_000
PAUSE: Final = 0.004  # seconds between two events, about
PORTION: Final = 1_000


def play(stage: Stage) -> Round:
    """Let both send the same events, to a client of their own each, in turn."""
    live = WARM_UP + (100 if stage.quick else 1_000)
    kept, replays = (1_000, 1) if stage.quick else (KEPT, 5)
    runs = {name: (new_run(), new_run()) for name in SUBJECTS}
    with ExitStack() as stack:
        clients: dict[str, Performance] = {}
        for name, subject in SUBJECTS.items():
            server = stack.enter_context(stage.perform(subject))
            port = server.hear("port")["port"]
            follow, replay = runs[name]
            _fill(stage, replay, kept)
            _add(stage, follow, 1)
            told = {"port": port, "follow": follow, "replay": replay}
            clients[name] = stack.enter_context(
                stage.perform(
                    "run_sse_client", **told, live=live + 1, kept=kept, replays=replays
                )
            )
            clients[name].hear("following")
        _write(stage, [follow for follow, _ in runs.values()], live)
        for client in clients.values():
            client.hear("ready")
        for _ in range(replays):
            for client in clients.values():
                client.take_turn()
        results = {name: client.result() for name, client in clients.items()}
    for run_id in (run_id for pair in runs.values() for run_id in pair):
        remove_run(stage, run_id)
    return {
        name: {
            **summarise(result["nanoseconds"]),
            REPLAY: KEPT / kept * result["seconds"] / replays,
        }
        for name, result in results.items()
    }


def _add(stage: Stage, run_id: int, number: int) -> None:
    data = json.dumps({"at": time.monotonic_ns()})
    entry: dict[Any, Any] = {**FIELDS, "sequence": str(number), "data": data}
    stage.redis.xadd(RUN_EVENTS.build(run_id=run_id), entry)


def _write(stage: Stage, runs: list[int], count: int) -> None:
    """Add an event to each run in turn, with the time and the next sequence number."""
    chance = random.Random(count)
    for number in range(2, count + 2):
        for run_id in runs:
            time.sleep(PAUSE * chance.uniform(0.5, 1.5))
            _add(stage, run_id, number)


def _fill(stage: Stage, run_id: int, count: int) -> None:
    key = RUN_EVENTS.build(run_id=run_id)
    for first in range(1, count + 1, PORTION):
        with stage.redis.pipeline(transaction=False) as pipe:
            for number in range(first, min(count, first + PORTION - 1) + 1):
                entry: dict[Any, Any] = {**FIELDS, "sequence": str(number)}
                pipe.xadd(key, entry)
            pipe.execute()


FIGURE = Figure(
    name="runs-streaming",
    title="Events of a run to a client over HTTP",
    about=(
        "Server-sent events through uvicorn, in a process of its own each: "
        "`RunEventsApp` beside a bare generator of Starlette's that loops around "
        "`XREAD BLOCK` and writes the same frames. An event is added about every 4 ms to "
        "the run of each in turn, with the time in it; the client, a process of its own, "
        "takes the difference when it has read the frame. Then a client that connects "
        "and reads a run of 10,000 events to its end, 5 times in turn."
    ),
    rounds=3,
    play=play,
    goals=(
        Goal("event → client, p50", OURS, P50, "at most", 1.4, (BARE,)),
        Goal("event → client, p99", OURS, P99, "at most", 2.0, (BARE,)),
    ),
)
