"""Writes the events of a run through ``add_many`` or ``emit``."""

from __future__ import annotations

import time

from benchmarks.subjects.acting import Options, act, on_cue
from benchmarks.subjects.run_writer_bare import SOURCE, make_data
from bls_agent import EventStore
from bls_agent.runs import NewEvent


async def run(options: Options) -> dict[str, float]:
    """Write ``count`` events on each cue, and note how long it takes."""
    events = [
        NewEvent("agent", "tool_result", make_data(number), SOURCE)
        for number in range(options["count"])
    ]
    async with EventStore(options["url"]) as store:
        if options["way"] == "add_many":

            async def wave() -> float:
                began = time.perf_counter()
                await store.add_many(options["run"], events)
                return time.perf_counter() - began

            return {"seconds": sum(await on_cue(wave, options["waves"]))}
        async with store.run(options["run"], lifecycle=False) as writer:

            async def emit() -> float:
                began = time.perf_counter()
                for one in events:
                    writer.emit(one.category, one.action, one.data, source=one.source)
                if not await writer.flush(60):
                    raise RuntimeError(writer.stats())
                return time.perf_counter() - began

            found = {"seconds": sum(await on_cue(emit, options["waves"]))}
    return found


if __name__ == "__main__":
    act(run)
