"""An agent that notes how long each command was on its way to the handler."""

from __future__ import annotations

import asyncio
import time

from benchmarks.subjects.acting import Options, act, say
from bls_agent import ProjectAgent


async def run(options: Options) -> dict[str, list[int]]:
    """Handle ``count`` commands; gives nanoseconds from push to handler."""
    agent = ProjectAgent(
        options["project"], redis=options["url"], prefetch=options.get("prefetch", 1)
    )
    taken: list[int] = []
    all_handled = asyncio.Event()

    @agent.command
    async def note(at: int) -> None:
        taken.append(time.monotonic_ns() - at)
        if len(taken) == options["count"]:
            all_handled.set()

    async with agent:
        await agent.ready(10)
        say(ready=True)
        await all_handled.wait()
    return {"nanoseconds": taken}


if __name__ == "__main__":
    act(run)
