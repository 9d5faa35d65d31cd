"""taskiq with the list broker of taskiq-redis: BRPOP, and a task each.

Without a result backend, which is its default, it keeps no results.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker

from benchmarks.subjects.acting import Options, act, say
from benchmarks.subjects.peers.work import Tally, feed, feed_on_cue

MAX_ASYNC_TASKS = 100


async def run(options: Options) -> dict[str, Any]:
    """Fill the queue, feed it on cue, or work."""
    tally = Tally(options["count"])
    broker = ListQueueBroker(options["url"], queue_name=options["queue"])

    @broker.task(task_name="nothing")
    async def nothing() -> None:
        tally.handle()

    @broker.task(task_name="note")
    async def note(at: int) -> None:
        tally.handle(at)

    broker.is_worker_process = options["part"] == "work"
    await broker.startup()
    if options["part"] == "fill":
        await feed(nothing.kiq, options["count"])
    elif options["part"] == "feed":
        await feed_on_cue(note.kiq, options["count"])
    else:
        await work(broker, tally)
    await broker.shutdown()
    return tally.result()


async def work(broker: ListQueueBroker, tally: Tally) -> None:
    """Handle what comes until the tally is complete."""
    receiving = run_receiver_task(
        broker, max_async_tasks=MAX_ASYNC_TASKS, validate_params=False
    )
    working = asyncio.create_task(receiving)
    say(ready=True)
    await tally.complete.wait()
    working.cancel()
    await asyncio.wait([working])


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # it warns of the cancellation that ends it
    act(run)
