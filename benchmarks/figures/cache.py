"""Hits of a cached function, beside other packages that cache functions in Redis."""

from __future__ import annotations

import secrets
import sys
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.figures.figure import Figure
from benchmarks.figures.latency import P50, P99, summarise
from benchmarks.stage import Performance, Stage
from benchmarks.summary import Goal, Round

__all__ = ["FIGURE"]

OURS = "bls-agent"
ALONE, TOGETHER = "hits/s, 1 caller", "hits/s, 50 callers"
PEERS: Final = {"aiocache": "peers.aiocache_peer", "cashews": "peers.cashews_peer"}
CALLERS = 50
PIECES = 8
VERSIONS = ("aiocache", "cashews", "redis", "hiredis", "orjson")


def play(stage: Stage) -> Round:
    """Let everybody call a function whose results are stored, piece by piece in turn."""
    singles, each = (100, 10) if stage.quick else (500, 40)
    told: dict[str, Any] = {"singles": singles, "each": each, "pieces": PIECES}
    with ExitStack() as stack:

        def start(module: str, **more: Any) -> Performance:
            namespace = f"压测缓存_{secrets.token_hex(4)}"
            started = stack.enter_context(
                stage.perform(module, namespace=namespace, **told, **more)
            )
            started.hear("ready")
            return started

        performances = {OURS: start("cache_ours")}
        if python := stage.python_of("caches"):
            for name, module in PEERS.items():
                performances[name] = start(module, python=python)
        else:
            print("no peer is installed: see `make bench`", file=sys.stderr)
        for _ in range(PIECES):
            for performance in performances.values():
                performance.take_turn()
        results = {name: one.result() for name, one in performances.items()}
    return {name: _measures(result, each) for name, result in results.items()}


def _measures(result: dict[str, Any], each: int) -> dict[str, float]:
    noted: list[int] = result["nanoseconds"]
    return {
        **summarise(noted),
        ALONE: len(noted) / sum(noted) * 1e9,
        TOGETHER: PIECES * CALLERS * each / result["seconds"],
    }


def describe(stage: Stage) -> str:
    """Give the versions of the peers."""
    python = stage.python_of("caches")
    if python is None:
        return "No peer is installed."
    versions = stage.measure("peers.versions", python=python, packages=VERSIONS)
    told = ", ".join(f"{name} {each}" for name, each in versions.items())
    return f"Installed: {told}."


_OTHERS = tuple(PEERS)

FIGURE = Figure(
    name="cache",
    title="Hits of a cached function",
    about=(
        "A coroutine function with two arguments and a result of about 300 bytes of JSON, "
        "cached by a decorator; its results for 50 arguments are in Redis. One caller "
        "after the other, and then fifty tasks at once, each with arguments of its own. "
        "Everybody with a pool of up to 50 connections, the cache of this package with "
        'its one. aiocache: `Cache.REDIS`, `JsonSerializer`; cashews: `pickle_type="json"`.'
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("a hit, p50", OURS, P50, "at most", 1.0, _OTHERS),
        Goal("a hit, p99", OURS, P99, "at most", 1.0, _OTHERS),
        Goal("hits/s of one caller", OURS, ALONE, "at least", 1.0, _OTHERS),
        Goal("hits/s of fifty", OURS, TOGETHER, "at least", 1.0, _OTHERS),
    ),
    describe=describe,
)
