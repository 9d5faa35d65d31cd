"""An agent that runs commands which do nothing, piece by piece."""

from __future__ import annotations

import asyncio
import time

from benchmarks.subjects.acting import Options, act, on_cue
from bls_agent import ProjectAgent


async def run(options: Options) -> dict[str, float]:
    """Run ``pieces`` times ``count`` commands.

    The clock of each piece runs from its first handler until the last outcome record
    is in Redis.
    """
    agent = ProjectAgent(
        options["project"],
        redis=options["url"],
        prefetch=options["prefetch"],
        mode=options.get("mode", "auto"),
    )
    count, handled, began, busy = options["count"], 0, 0.0, 0.0
    all_handled = asyncio.Event()

    @agent.command
    async def nothing() -> None:
        nonlocal handled, began, busy
        if not handled % count:
            began, busy = time.perf_counter(), time.process_time()
        handled += 1
        if not handled % count:
            all_handled.set()

    if options.get("observed"):
        from benchmarks.subjects.observing import observe  # noqa: PLC0415 - needs extras

        observe(agent, options["observed"])

    async def piece() -> tuple[float, float]:
        await all_handled.wait()
        all_handled.clear()
        # The last outcome is put after its handler has returned; no event tells.
        while agent.stats().outcomes["succeeded"] < handled:  # noqa: ASYNC110
            await asyncio.sleep(0)
        flushed = await agent.flush(30)
        if not flushed:
            raise RuntimeError(flushed)
        return time.perf_counter() - began, time.process_time() - busy

    async with agent:
        await agent.ready(10)
        pieces = await on_cue(piece, options["pieces"])
        seconds, busy_seconds = map(sum, zip(*pieces, strict=True))
        return {"seconds": seconds, "busy": busy_seconds}


if __name__ == "__main__":
    act(run)
