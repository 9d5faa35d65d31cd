"""arq: jobs in a sorted set that a worker polls.

Results are switched off by ``keep_result=0``. Its default of two polls a second would
be its latency, so it polls a hundred times a second.
"""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.subjects.acting import Options, act, say
from benchmarks.subjects.peers.work import Tally, feed, feed_on_cue

MAX_JOBS = 100
POLL_DELAY = 0.01


async def run(options: Options) -> dict[str, Any]:
    """Fill the queue, feed it on cue, or work."""
    settings, queue = RedisSettings.from_dsn(options["url"]), options["queue"]
    if options["part"] == "work":
        return await work(settings, options)
    pool = await create_pool(settings, default_queue_name=queue)
    if options["part"] == "fill":
        await feed(lambda: pool.enqueue_job("nothing"), options["count"])
    else:
        await feed_on_cue(lambda at: pool.enqueue_job("note", at), options["count"])
    await pool.aclose()
    return {}


async def work(settings: RedisSettings, options: Options) -> dict[str, Any]:
    """Handle ``count`` jobs."""
    tally = Tally(options["count"])

    async def nothing(_context: dict[Any, Any]) -> None:
        tally.handle()

    async def note(_context: dict[Any, Any], at: int) -> None:
        tally.handle(at)

    async def started(_context: dict[Any, Any]) -> None:
        say(ready=True)

    worker = Worker(
        [func(nothing, name="nothing"), func(note, name="note")],
        queue_name=options["queue"],
        redis_settings=settings,
        on_startup=started,
        handle_signals=False,
        keep_result=0,
        log_results=False,
        max_jobs=MAX_JOBS,
        poll_delay=POLL_DELAY,
    )
    working = asyncio.create_task(worker.async_run())
    await tally.complete.wait()
    working.cancel()
    await asyncio.wait([working])
    return tally.result()


if __name__ == "__main__":
    act(run)
