"""Crawl queues beside scrapy-redis, and beside a sorted set without any lease."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any, Final, cast

from benchmarks.figures.figure import Figure
from benchmarks.stage import BenchmarkError, Stage
from benchmarks.summary import Goal, Round

__all__ = ["FIGURE"]

OURS, PEER, BARE = "bls-agent", "scrapy-redis", "ZADD and ZPOPMIN"
CYCLES, PUSHES = "push + take + ack/s", "unique pushes/s"
BYTES = "bytes per queued request"
WORKERS = 8
TASKS = 16
PIECES = 4
VERSIONS = ("scrapy-redis", "scrapy", "redis", "hiredis")


class Side:
    """Eight processes over one queue.

    Attributes:
        seconds: How long they worked since the last reset.
    """

    def __init__(
        self, stage: Stage, subject: str, python: str, stack: ExitStack
    ) -> None:
        """Start the processes; the stack ends them and removes the keys."""
        count = 40 if stage.quick else 1_000
        self.project = f"压测爬虫_{secrets.token_hex(4)}"
        self.pages = WORKERS * count // 2  # each is pushed by two of the processes
        self.seconds = 0.0
        stack.callback(clear, stage, self.project)
        told = {"count": count, "pages": self.pages, "pieces": PIECES, "tasks": TASKS}
        self.workers = [
            stack.enter_context(
                stage.perform(
                    subject,
                    python=python,
                    project=self.project,
                    worker=number,
                    **told,
                )
            )
            for number in range(WORKERS)
        ]

    def be_ready(self) -> None:
        """Wait until all processes wait for a cue."""
        self.seconds = 0.0
        for worker in self.workers:
            worker.hear("ready")

    def take_turn(self) -> None:
        """Let all processes do a piece at the same time."""
        began = time.perf_counter()
        for worker in self.workers:
            worker.cue()
        for worker in self.workers:
            worker.hear("done")
        self.seconds += time.perf_counter() - began


def play(stage: Stage) -> Round:
    """Let eight processes of each side push pages, and then push, take and finish more."""
    subjects: dict[str, tuple[str, str]] = {
        OURS: ("crawl_ours", sys.executable),
        BARE: ("crawl_bare", sys.executable),
    }
    if python := stage.python_of("scrapy"):
        subjects[PEER] = ("peers.scrapy_redis_peer", python)
    else:
        print("scrapy-redis is not installed: see `make bench`", file=sys.stderr)
    found: dict[str, dict[str, float]] = {name: {} for name in subjects}
    with ExitStack() as stack:
        sides = {
            name: Side(stage, *subject, stack) for name, subject in subjects.items()
        }
        take_turns(sides.values())
        for name, side in sides.items():
            held, queued = weigh(stage, side.project)
            if queued != side.pages:
                raise BenchmarkError(f"{name}: {queued} of {side.pages} are queued")
            if name != BARE:  # which asks no filter of duplicates
                found[name][PUSHES] = 2 * side.pages / side.seconds
                found[name][BYTES] = held / queued
        take_turns(sides.values())
        for name, side in sides.items():
            if weigh(stage, side.project)[1] != side.pages:
                raise BenchmarkError(f"{name}: requests were lost")
            found[name][CYCLES] = 2 * side.pages / side.seconds
            for worker in side.workers:
                worker.result()
    return found


def take_turns(sides: Collection[Side]) -> None:
    """Let the sides work piece by piece, each idle while another one works."""
    for side in sides:
        side.be_ready()
    for _ in range(PIECES):
        for side in sides:
            side.take_turn()


def keys_of(stage: Stage, project: str) -> list[bytes]:
    """Give all keys of a side."""
    return list(stage.redis.scan_iter(match=f"*{project}*", count=1_000))


def weigh(stage: Stage, project: str) -> tuple[int, int]:
    """Give the bytes of all keys, and how many requests are queued."""
    total = queued = 0
    for key in keys_of(stage, project):
        total += cast("int", stage.redis.memory_usage(key, samples=0))
        if key.endswith(b":requests"):
            queued = stage.redis.zcard(key)
    return total, queued


def clear(stage: Stage, project: str) -> None:
    """Remove all keys of a side."""
    if keys := keys_of(stage, project):
        stage.redis.unlink(*keys)


def describe(stage: Stage) -> str:
    """Give the versions of the peer."""
    python = stage.python_of("scrapy")
    if python is None:
        return "No peer is installed."
    versions: dict[str, Any] = stage.measure(
        "peers.versions", python=python, packages=VERSIONS
    )
    told = ", ".join(f"{name} {each}" for name, each in versions.items())
    return f"Installed: {told}."


ABOUT: Final = (
    "Eight processes of each side work at the same time; the sides take turns. First "
    "each pushes 1,000 pages with two headers and three entries in their meta, each page "
    "pushed by two processes and queued once; then each pushes, takes and finishes 1,000 "
    "pages more. The queue of this package is used by 16 tasks of a process at once, as "
    "by an asyncio crawler: it writes JSON, holds each page by a lease, and its pushes, "
    "takes and acknowledgements travel together. scrapy-redis is used as by Scrapy, whose "
    "scheduler blocks: `RFPDupeFilter.request_seen` and `PriorityQueue.push`, then "
    "`PriorityQueue.pop`, which is all: it pickles, and a page that was taken is lost with "
    "its process. ZADD and ZPOPMIN: redis-py and orjson, 16 tasks, no lease and no "
    "duplicate filter. Bytes: MEMORY USAGE of all keys behind the first part, the "
    "fingerprints included."
)

FIGURE = Figure(
    name="crawl",
    title="Crawl queues",
    about=ABOUT,
    rounds=5,
    play=play,
    goals=(
        Goal("push + take + ack/s beside it", OURS, CYCLES, "at least", 2.0, (PEER,)),
        Goal("unique pushes/s beside it", OURS, PUSHES, "at least", 2.0, (PEER,)),
        Goal("beside no lease at all", OURS, CYCLES, "at least", 0.5, (BARE,)),
    ),
    describe=describe,
)
