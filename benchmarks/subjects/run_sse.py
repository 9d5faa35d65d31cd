"""Serves runs over HTTP with ``RunEventsApp``."""

from __future__ import annotations

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.serving import serve
from bls_agent import EventStore
from bls_agent.integrations.run_events import RunEventsApp, allow_all


async def run(options: Options) -> dict[str, float]:
    """Serve until the stage has seen enough."""
    store = EventStore(options["url"])
    return await serve(RunEventsApp(store, authorize=allow_all))


if __name__ == "__main__":
    act(run)
