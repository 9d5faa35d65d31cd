"""Many idle agents in one process."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.resident import be_idle, rss


async def run(options: Options) -> dict[str, float]:
    """Open one agent, then all others at once, and be idle with them."""
    before = rss()
    from bls_agent import ProjectAgent  # noqa: PLC0415 - its memory is measured

    async with AsyncExitStack() as stack:

        async def live(number: int) -> None:
            project = f"{options['project']}_{number}"
            agent = ProjectAgent(project, redis=options["url"])
            await stack.enter_async_context(agent)
            await agent.ready(60)

        return await be_idle(live, before, options)


if __name__ == "__main__":
    act(run)
