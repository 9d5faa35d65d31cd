"""FastStream with a Redis list: BLPOP and a call each, or LPOP with a count.

It keeps no results. With ``batch`` the handler is called once for up to so many
messages, which it has to go through by itself.
"""

from __future__ import annotations

from typing import Any

from faststream.redis import ListSub, RedisBroker

from benchmarks.subjects.acting import Options, act, say
from benchmarks.subjects.peers.work import Tally, feed, feed_on_cue

POLLING_INTERVAL = 0.01  # of batches, which are polled for; its default is 0.1


async def run(options: Options) -> dict[str, Any]:
    """Fill the queue, feed it on cue, or work."""
    tally, queue = Tally(options["count"]), options["queue"]
    broker = RedisBroker(options["url"], logger=None, apply_types=False)
    async with broker:
        if options["part"] == "fill":
            await feed(lambda: broker.publish(0, list=queue), options["count"])
        elif options["part"] == "feed":
            await feed_on_cue(
                lambda at: broker.publish(at, list=queue), options["count"]
            )
        else:
            subscribe(broker, tally, queue, options.get("batch", 0))
            await broker.start()
            say(ready=True)
            await tally.complete.wait()
    return tally.result()


def subscribe(broker: RedisBroker, tally: Tally, queue: str, batch: int) -> None:
    """Register the handler of single messages, or of batches of them."""
    if not batch:

        @broker.subscriber(list=queue)
        async def note(at: int) -> None:
            tally.handle(at)

        return

    many = ListSub(
        queue, batch=True, max_records=batch, polling_interval=POLLING_INTERVAL
    )

    @broker.subscriber(list=many)
    async def note_all(messages: list[int]) -> None:
        for at in messages:
            tally.handle(at)


if __name__ == "__main__":
    act(run)
