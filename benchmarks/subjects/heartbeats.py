"""Many workers of one process that say that they live."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.resident import be_idle, rss


async def run(options: Options) -> dict[str, float]:
    """Open one heartbeat, then all others at once, and let them beat."""
    before = rss()
    from bls_agent.workers import (  # noqa: PLC0415 - its memory is measured
        BacktestWorkerHeartbeat,
        Heartbeat,
    )

    async with AsyncExitStack() as stack:

        async def live(number: int) -> None:
            name = f"{options['project']}_{number}"
            said = BacktestWorkerHeartbeat.create(worker_id=name)
            beat = await stack.enter_async_context(
                Heartbeat(said, redis=options["url"])
            )
            await beat.ready(60)

        return await be_idle(live, before, options)


if __name__ == "__main__":
    act(run)
