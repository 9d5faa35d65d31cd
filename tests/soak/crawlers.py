"""Eight crawlers share one queue while they are killed and the server is restarted.

The server keeps what it has answered (AOF): each request is handled, and none twice but
those that were in the hands of a crawler that was killed or cut off. At the end nothing
of the queue is left in Redis.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
from redis.asyncio import Redis

from bls_agent.core.errors import RedisUnavailableError
from bls_agent.crawl import CrawlRequest, RequestQueue
from bls_agent.devserver import DevServer
from tests.chaos.crawlers import Damaged, find_handlings, find_leftovers, judge
from tests.chaos.nursery import Nursery
from tests.kit import History

PROJECT = "抓取"
CRAWLERS = 8
TASKS = 16  # of each crawler
AT_ONCE = 1_000  # requests in one push


@dataclass
class Crawled:
    """What came of it.

    Attributes:
        requests: How many there were.
        handled: How many of them were handled.
        again: Handlings beyond the first of each request.
        broken: What was promised and not so.
        seconds: From the first push to the last acknowledgement.
    """

    requests: int
    handled: int = 0
    again: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


class _Crawl:
    """One run."""

    def __init__(
        self, server: DevServer, requests: int, lease: float, rng: random.Random
    ) -> None:
        self.server = server
        self.requests = requests
        self.lease = lease
        self.rng = rng
        self.queue = RequestQueue(server.url, PROJECT, timeout=2.0)
        self.nursery = Nursery()
        self.damaged: list[Damaged] = []
        self.living: list[int] = []

    async def begin(self, history: Path) -> None:
        """Let one more crawler begin."""
        pid = await self.nursery.go(
            kind="crawl",
            seed=self.rng.randrange(2**32),
            url=self.server.url,
            project=PROJECT,
            history=str(history),
            settings={"lease": self.lease, "timeout": 2.0},
            tasks=TASKS,
            longest=0.002,
        )
        self.living.append(pid)

    async def push(self) -> None:
        """Push all requests; what is in doubt is pushed again, and is not new then."""
        for start in range(0, self.requests, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, self.requests))
            urls = [f"https://example.com/{number}" for number in numbers]
            while True:
                try:
                    await self.queue.push_many(map(CrawlRequest, urls), unique=True)
                    break
                except RedisUnavailableError:
                    await anyio.sleep(0.05)

    async def finished(self) -> int:
        """How many requests were acknowledged, as the queue counts."""
        while True:
            try:
                return (await self.queue.stats()).acknowledged
            except RedisUnavailableError:
                await anyio.sleep(0.05)

    async def disturb(self, faults: list[str], history: Path) -> None:
        """Spread the faults over the run."""
        for at, fault in enumerate(faults, 1):
            while await self.finished() < self.requests * at // (len(faults) + 2):
                await anyio.sleep(0.01)
            if fault == "kill":
                pid = self.living.pop(self.rng.randrange(len(self.living)))
                begin = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                await self.nursery.wait(pid)
                self.damaged.append(Damaged(begin, time.monotonic(), str(pid)))
                await self.begin(history)
            else:
                begin = time.monotonic()
                await anyio.to_thread.run_sync(self.server.kill)
                await anyio.sleep(0.2)
                await anyio.to_thread.run_sync(self.server.restart)
                self.damaged.append(Damaged(begin, time.monotonic()))

    async def wait_for_the_end(self) -> bool:
        """Wait until no request waits or is in anybody's hands; tell whether that came."""
        with anyio.move_on_after(60 + 2 * self.lease):
            while True:
                stats = await self.queue.stats()
                if not stats.waiting + stats.delayed + stats.in_flight:
                    return True
                await anyio.sleep(0.02)
        return False


async def crawl_through_kills(
    server: DevServer,
    requests: int,
    *,
    kills: int,
    restarts: int = 1,
    lease: float = 5.0,
    crawlers: int = CRAWLERS,
    seed: int = 7,
) -> Crawled:
    """Push so many requests, and crawl them through so many faults.

    Args:
        server: With ``append_only``.
        requests: How many.
        kills: How often a crawler is killed by SIGKILL, and another one begins.
        restarts: How often the server is killed and started again.
        lease: Of a request, in seconds.
        crawlers: Processes that crawl at the same time.
        seed: For the moments.
    """
    run = _Crawl(server, requests, lease, random.Random(seed))
    faults = ["kill"] * kills + ["restart"] * restarts
    run.rng.shuffle(faults)
    done = Crawled(requests)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "history.jsonl")
        async with run.queue, run.nursery:
            for _ in range(crawlers):
                await run.begin(path)
            began = time.monotonic()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.push)
                tasks.start_soon(run.disturb, faults, path)
            if not await run.wait_for_the_end():
                done.broken.append("requests still wait")
            done.seconds = time.monotonic() - began
            for pid in run.living:
                os.kill(pid, signal.SIGKILL)
                await run.nursery.wait(pid)
        history = await anyio.to_thread.run_sync(History.load, path)
    async with Redis.from_url(server.url) as redis:
        done.broken += await find_leftovers(redis, PROJECT)
    found = find_handlings(history)
    done.handled = len(found)
    done.again = sum(map(len, found.values())) - len(found)
    done.broken += judge(history, run.damaged)
    return done


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with DevServer(append_only=True, options=("--appendfsync", "no")) as own:
        came = anyio.run(lambda: crawl_through_kills(own, number, kills=30))
    print(*came.broken[:20], sep="\n", file=sys.stderr)
    assert came.handled == number, f"{number - came.handled} of {number} not handled"
    assert not came.broken
    print(
        f"{CRAWLERS} crawlers, {number:,} requests, 30 SIGKILLs, one restart: all handled, "
        f"{came.again} again, {number / came.seconds:,.0f} requests/s"
    )
