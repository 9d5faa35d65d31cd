"""An agent with default settings that has nothing to do."""

from __future__ import annotations

import asyncio
import gc

from benchmarks.subjects.acting import Options, act, say
from benchmarks.subjects.resident import rss
from bls_agent import ProjectAgent

SETTLING = 1.0  # seconds until what follows the opening is over


async def run(options: Options) -> dict[str, float]:
    """Be idle for so many ``seconds``; gives by how much the memory grew."""
    async with ProjectAgent(options["project"], redis=options["url"]) as agent:
        await agent.ready(10)
        await asyncio.sleep(SETTLING)
        gc.collect()
        before = rss()
        say(idle=True)
        await asyncio.sleep(options["seconds"])
        gc.collect()
        grown = rss() - before
    return {"grown": grown}


if __name__ == "__main__":
    act(run)
