"""Commands and latency beside other packages that run commands out of Redis."""

from __future__ import annotations

import random
import secrets
import sys
import time
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from benchmarks.figures.commands import check_outcomes, make_commands
from benchmarks.figures.figure import Figure
from benchmarks.figures.latency import P50, P99, WARM_UP, summarise
from benchmarks.stage import Performance, Stage
from benchmarks.summary import Goal, Round

__all__ = ["FIGURE"]

RATE = "commands/s"
OURS = "bls-agent, prefetch=8"
BATCHES = "FastStream, batches of 8"
PEERS: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "arq": ("arq", {}),
    "taskiq-redis": ("taskiq", {}),
    "FastStream": ("faststream", {}),
    BATCHES: ("faststream", {"batch": 8}),
}
POLLING = {"arq", BATCHES}
SINGLE = tuple(name for name in PEERS if name != BATCHES)
PAUSE = 0.005  # seconds between two pushes, about
VERSIONS = ("arq", "taskiq", "taskiq-redis", "faststream", "redis", "hiredis")

Subject: TypeAlias = tuple[str, dict[str, Any]]
"""A module of ``subjects/``, and what it is told."""


def play(stage: Stage) -> Round:
    """Let everybody empty a queue, and then wait for single commands.

    Those that block get their commands in turn and meet the same machine. Those that
    poll are alone, because they would disturb the others; their latency is their pause.
    """
    present = {}
    for name, (peer, options) in PEERS.items():
        if python := stage.python_of(peer):
            present[name] = (f"peers.{peer}_peer", {"python": python, **options})
        else:
            print(f"{name} is not installed: see `make bench`", file=sys.stderr)
    many, few = (500, 50) if stage.quick else (4_000, 500)
    rates = {OURS: run_ours(stage, many)} | {
        name: run_peer(stage, subject, many) for name, subject in present.items()
    }
    blocking = {name: each for name, each in present.items() if name not in POLLING}
    noted = time_in_turn(stage, blocking, few, ours=True)
    for name in set(present) - set(blocking):
        noted |= time_in_turn(stage, {name: present[name]}, few, ours=False)
    return {name: {RATE: rates[name], **summarise(noted[name])} for name in rates}


def run_ours(stage: Stage, count: int) -> float:
    """Give commands per second, each with its outcome record."""
    with stage.project() as project:
        stage.push(project, make_commands(count))
        with stage.perform(
            "commands_agent", project=project, count=count, pieces=1, prefetch=8
        ) as performance:
            performance.take_turn()
            seconds = performance.result()["seconds"]
        check_outcomes(stage, project, count)
    return float(count / seconds)


def run_peer(stage: Stage, subject: Subject, count: int) -> float:
    """Let a peer fill a queue and empty it; gives commands per second."""
    module, told = subject
    told = {"queue": fresh_queue(), "count": count, **told}
    stage.measure(module, part="fill", **told)
    return float(count / stage.measure(module, part="work", **told)["seconds"])


def time_in_turn(
    stage: Stage, subjects: dict[str, Subject], count: int, *, ours: bool
) -> dict[str, list[int]]:
    """Push to everybody in turn; gives nanoseconds from the client's call to handler."""
    count += WARM_UP
    with ExitStack() as stack:

        def start(module: str, **told: Any) -> Performance:
            started = stack.enter_context(stage.perform(module, count=count, **told))
            started.hear("ready")
            return started

        workers, feeders = {}, []
        if ours:
            project = stack.enter_context(stage.project())
            workers[OURS] = start("latency_agent", project=project, prefetch=8)
            feeders.append(start("console_feeder", project=project))
        for name, (module, options) in subjects.items():
            told = {"queue": fresh_queue(), **options}
            workers[name] = start(module, part="work", **told)
            feeders.append(start(module, part="feed", **told))
        chance = random.Random(count)
        for _ in range(count):
            for feeder in feeders:
                time.sleep(PAUSE * chance.uniform(0.5, 1.5))
                feeder.cue()
        return {name: each.result()["nanoseconds"] for name, each in workers.items()}


def fresh_queue() -> str:
    """Give a name that no queue has had."""
    return f"压测队列_{secrets.token_hex(4)}"


def describe(stage: Stage) -> str:
    """Give the versions of the peers, each with those of its client."""
    told = []
    for peer in dict.fromkeys(peer for peer, _ in PEERS.values()):
        if python := stage.python_of(peer):
            versions = stage.measure("peers.versions", python=python, packages=VERSIONS)
            told.append(" ".join(f"{name} {each}" for name, each in versions.items()))
    return f"Installed: {'; '.join(told)}." if told else "No peer is installed."


FIGURE = Figure(
    name="peers",
    title="Beside other packages",
    about=(
        "The same commands, each pushed by the package's own client and run by its own "
        "worker, in one process, from the first handler to the last; the agent's clock "
        "stops only when its last outcome record is in Redis, and nobody else reports "
        "anything. Then a command about every 5 ms, to each of those that block in turn "
        "and to those that poll alone, timed from before the client's call to the "
        "handler. arq: `keep_result=0`, `max_jobs=100`, `poll_delay=0.01`; "
        "taskiq-redis: `ListQueueBroker`, no result backend, `max_async_tasks=100`, "
        "`validate_params=False`; FastStream: a list, `apply_types=False`; in the last "
        "row its handler is called once for up to eight messages "
        "(`ListSub(batch=True, max_records=8, polling_interval=0.01)`)."
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("commands/s beside the best of them", OURS, RATE, "at least", 3.0, SINGLE),
        Goal(
            "… with batch handlers among them",
            OURS,
            RATE,
            "at least",
            3.0,
            (*SINGLE, BATCHES),
        ),
        Goal(
            "latency p50 beside the best", OURS, P50, "at most", 1.0, (*SINGLE, BATCHES)
        ),
        Goal(
            "latency p99 beside the best", OURS, P99, "at most", 1.0, (*SINGLE, BATCHES)
        ),
    ),
    describe=describe,
)
