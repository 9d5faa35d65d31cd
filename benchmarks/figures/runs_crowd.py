"""Events of one run to a thousand clients over HTTP."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.figures.figure import Figure
from benchmarks.figures.runs_following import FIELDS
from benchmarks.figures.runs_writing import new_run, remove_run
from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round, quantile
from bls_agent.core.keys import RUN_EVENTS

__all__ = ["FIGURE"]

OURS, BARE = "bls-agent", "bare generator"
SUBJECTS: Final = {OURS: "run_sse", BARE: "run_sse_bare"}
P50, P99 = "p50 ms", "p99 ms"
SERVER, CLIENT = "server, CPU µs each", "clients, CPU µs each"
PAUSE: Final = 0.5  # seconds between two events: everybody has had the one before
SETTLING: Final = 1.0  # seconds until what follows the opening is over


def play(stage: Stage) -> Round:
    """Let both serve a crowd of their own, one after the other."""
    count, events = (50, 5) if stage.quick else (1_000, 20)
    return {
        name: _serve(stage, subject, count, events)
        for name, subject in SUBJECTS.items()
    }


def _serve(stage: Stage, subject: str, count: int, events: int) -> dict[str, float]:
    run_id = new_run()
    told: dict[str, Any] = {"run": run_id, "count": count, "events": events}
    with ExitStack() as stack:
        server = stack.enter_context(stage.perform(subject))
        port = server.hear("port")["port"]
        _add(stage, run_id, 1)
        crowd = stage.perform("run_sse_crowd", port=port, **told)
        clients = stack.enter_context(crowd)
        clients.hear("following")
        time.sleep(0.1 if stage.quick else SETTLING)
        before = server.busy
        for number in range(events):
            _add(stage, run_id, number + 2)
            time.sleep(PAUSE / 10 if stage.quick else PAUSE)
        measured = clients.result()
        busy = server.busy - before
    remove_run(stage, run_id)
    taken = [each / 1_000_000 for each in measured["nanoseconds"]]
    return {
        P50: quantile(taken, 0.5),
        P99: quantile(taken, 0.99),
        SERVER: busy / len(taken) * 1_000_000,
        CLIENT: measured["busy"] / len(taken) * 1_000_000,
    }


def _add(stage: Stage, run_id: int, number: int) -> None:
    data = json.dumps({"at": time.monotonic_ns()}, separators=(",", ":"))
    entry: dict[Any, Any] = {**FIELDS, "sequence": str(number), "data": data}
    stage.redis.xadd(RUN_EVENTS.build(run_id=run_id), entry)


FIGURE = Figure(
    name="runs-crowd",
    title="Events of a run to a thousand clients over HTTP",
    about=(
        "The same two servers, one after the other, each with a thousand clients of one "
        "run, to which 20 events are added, one every 0.5 s. Each client takes the "
        "difference when it has read the frame. All clients are one process that does "
        "nothing but `epoll`, `recv` and a search for the time, because it shares the "
        "machine with the server; what both use of a processor is told for each frame."
    ),
    rounds=3,
    play=play,
    goals=(
        Goal("event → each of 1,000 clients, p99, ms", OURS, P99, "at most", 250.0),
    ),
)
