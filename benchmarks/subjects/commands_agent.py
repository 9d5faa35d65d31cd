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
    count, handled, began = options["count"], 0, 0.0
    all_handled = asyncio.Event()

    @agent.command
    async def nothing() -> None:
        nonlocal handled, began
        if not handled % count:
            began = time.perf_counter()
        handled += 1
        if not handled % count:
            all_handled.set()

    async def piece() -> float:
        await all_handled.wait()
        all_handled.clear()
        # The last outcome is put after its handler has returned; no event tells.
        while agent.stats().outcomes["succeeded"] < handled:  # noqa: ASYNC110
            await asyncio.sleep(0)
        flushed = await agent.flush(30)
        if not flushed:
            raise RuntimeError(flushed)
        return time.perf_counter() - began

    async with agent:
        await agent.ready(10)
        return {"seconds": sum(await on_cue(piece, options["pieces"]))}


if __name__ == "__main__":
    act(run)
