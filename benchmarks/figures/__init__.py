"""What is compared: each module is one figure; here is their order."""

from __future__ import annotations

from benchmarks.figures import (
    assets,
    cache,
    commands,
    crawl,
    fleet,
    heartbeats,
    idle,
    latency,
    log_calls,
    observed,
    peers,
    runs_crowd,
    runs_following,
    runs_streaming,
    runs_writing,
    service,
    shipping,
)
from benchmarks.figures.figure import Figure

__all__ = ["FIGURES", "Figure"]

FIGURES = {
    figure.name: figure
    for figure in (
        log_calls.FIGURE,
        shipping.FIGURE,
        commands.FIGURE,
        observed.FIGURE,
        service.FIGURE,
        latency.FIGURE,
        idle.FIGURE,
        fleet.FIGURE,
        heartbeats.FIGURE,
        peers.FIGURE,
        cache.FIGURE,
        runs_writing.FIGURE,
        runs_following.FIGURE,
        runs_streaming.FIGURE,
        runs_crowd.FIGURE,
        assets.FIGURE,
        crawl.FIGURE,
    )
}
