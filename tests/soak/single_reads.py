"""A loop of the document's single reads under a writer of 500 events a second.

The writer is a process of its own and keeps its pace whatever Redis says: by ``emit``,
which never waits, or by ``add_many`` of what has become due.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from bls_agent.devserver import DevServer
from bls_agent.runs import EventStore

ROOT: Final = Path(__file__).parents[2]
PACE: Final = 500.0  # events in a second
TICK: Final = 0.001  # seconds
WORK: Final = 0.003  # seconds that the reader does something else between two reads
WAYS: Final = ("emit", "add_many")
LONGEST: Final = 120.0  # seconds for all of it


@dataclass
class Read:
    """What came of it.

    Attributes:
        written: How many events were written.
        found: Their numbers, as they were read.
        pace: How many a second came into being, by their ids.
        calls: How many single reads it took.
    """

    written: int
    found: list[int] = field(default_factory=list)
    pace: float = 0.0
    calls: int = 0

    @property
    def missed(self) -> int:
        """How many were not read."""
        return self.written - len(set(self.found))

    @property
    def is_in_order(self) -> bool:
        """Whether each was read once, in order."""
        return self.found == sorted(set(self.found))


async def read_in_a_loop(
    url: str, run_id: int, way: str, events: int, pace: float = PACE
) -> Read:
    """Read with ``tail`` and ``subscribe`` what another process writes.

    Args:
        url: Of the server.
        run_id: The run; events that it has already are not counted.
        way: How to write, of ``WAYS``.
        events: How many.
        pace: How many in a second.
    """
    done, times = Read(events), list[int]()
    async with EventStore(url) as store:
        last, is_over = await store.tail(run_id), False
        words = [str(one) for one in ("write", url, run_id, way, events, pace)]
        command = [sys.executable, "-m", "tests.soak.single_reads", *words]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            with anyio.fail_after(LONGEST):
                while not is_over:
                    done.calls += 1
                    has_ended = process.poll() is not None
                    fresh = await store.subscribe(run_id, last, block_ms=1_000)
                    is_over = has_ended and not fresh  # its end was missed
                    for event in fresh:
                        last, is_over = event.id, event.closes
                        if event.category == "agent":
                            done.found.append(event.data["n"])
                            times.append(int(event.id.partition("-")[0]))
                    await anyio.sleep(WORK)  # what comes now must not be missed
        finally:
            process.kill()
            process.wait()
    done.pace = 1000 * (len(times) - 1) / max(1, times[-1] - times[0])
    return done


async def _write(url: str, run_id: int, way: str, events: int, pace: float) -> None:
    async with EventStore(url, maxlen=10 * events) as store:
        if way == "emit":
            async with store.run(run_id, coalesce=0) as run:
                async for due in _paced(events, pace):
                    for number in due:
                        run.emit("agent", "reasoning", {"n": number})
            return
        async for due in _paced(events, pace):
            await store.add_many(
                run_id, [("agent", "reasoning", {"n": number}) for number in due]
            )
        await store.add(run_id, "system", "close")


async def _paced(events: int, pace: float) -> AsyncIterator[range]:
    """Give the numbers that are due since the last time."""
    began, done = time.monotonic(), 0
    while done < events:
        due = min(events, int((time.monotonic() - began) * pace) + 1)
        if due > done:
            yield range(done, due)
            done = due
        await anyio.sleep(TICK)


def _main(events: int) -> None:
    with DevServer() as own:
        for run_id, way in enumerate(WAYS):
            done = anyio.run(read_in_a_loop, own.url, run_id, way, events)
            print(
                f"{way}: {done.pace:.0f} events/s, {events:,} of them in {done.calls:,} "
                f"single reads: {done.missed} missed",
                end="; " if way != WAYS[-1] else "\n",
            )
            assert not done.missed
            assert done.is_in_order


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        address, run, how, count, speed = sys.argv[2:]
        anyio.run(_write, address, int(run), how, int(count), float(speed))
    else:
        _main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000)
