"""Crawl queues beside scrapy-redis, and beside a sorted set without any lease."""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import ExitStack
from typing import Any, Final, cast

from benchmarks.figures.figure import Figure
from benchmarks.stage import BenchmarkError, Performance, Stage
from benchmarks.summary import Goal, Round

__all__ = ["FIGURE"]

OURS, PEER, BARE = "bls-agent", "scrapy-redis", "ZADD and ZPOPMIN"
CYCLES, PUSHES = "push + take + ack/s", "unique pushes/s"
BYTES = "bytes per queued request"
WORKERS = 8
TASKS = 16
VERSIONS = ("scrapy-redis", "scrapy", "redis", "hiredis")


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
    return {
        name: run_side(stage, subject, python)
        for name, (subject, python) in subjects.items()
    }


def run_side(stage: Stage, subject: str, python: str) -> dict[str, float]:
    """Give what one side reached, with eight processes at once."""
    count = 50 if stage.quick else 1_000
    project = f"压测爬虫_{secrets.token_hex(4)}"
    pages = WORKERS * count // 2  # each is pushed by two of the processes
    told = {"project": project, "count": count, "pages": pages, "tasks": TASKS}
    try:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(
                    stage.perform(subject, python=python, worker=number, **told)
                )
                for number in range(WORKERS)
            ]
            pushing = take_turns(workers)
            held, queued = weigh(stage, project)
            cycling = take_turns(workers)
            for worker in workers:
                worker.result()
        if queued != pages and subject != "crawl_bare":
            raise BenchmarkError(f"{subject}: {queued} requests of {pages} are queued")
        if weigh(stage, project)[1] != queued:
            raise BenchmarkError(f"{subject}: requests were lost")
    finally:
        clear(stage, project)
    found = {CYCLES: WORKERS * count / cycling}
    if subject != "crawl_bare":  # knows no duplicates
        found |= {PUSHES: WORKERS * count / pushing, BYTES: held / queued}
    return found


def take_turns(workers: list[Performance]) -> float:
    """Let all processes do the same thing at the same time; give the seconds it took."""
    for worker in workers:
        worker.hear("ready")
    began = time.perf_counter()
    for worker in workers:
        worker.cue()
    for worker in workers:
        worker.hear("done")
    return time.perf_counter() - began


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
    "Eight processes of each side work at the same time, one side after the other. First "
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
