"""A million records at once, from eight threads: bounded memory, an exact account."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from dataclasses import dataclass

import anyio
import orjson
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.devserver import DevServer
from tests.soak.rounds import resident

THREADS = 8
SAMPLE = 64  # one call in so many is timed


@dataclass(frozen=True)
class Burst:
    """What a burst did.

    Attributes:
        accepted: Records put.
        delivered: Records written.
        dropped: Records given up.
        told: Records given up, as the list tells.
        seconds: Until the last was put.
        grown_kib: Most memory beyond that of before.
        p50_us: Median thread CPU of one call in microseconds.
        p99_us: And its 99th percentile.
    """

    accepted: int
    delivered: int
    dropped: int
    told: int
    seconds: float
    grown_kib: int
    p50_us: float
    p99_us: float


def _produce(agent: ProjectAgent, thread: int, count: int, costs: list[int]) -> None:
    info, clock = agent.log.info, time.thread_time_ns
    for number in range(count):
        if number % SAMPLE:
            info("订单已处理", thread=thread, number=number)
        else:
            began = clock()
            info("订单已处理", thread=thread, number=number)
            costs.append(clock() - began)


async def burst(url: str, records: int) -> Burst:
    """Put so many records from eight threads as fast as they can.

    Args:
        url: Where Redis is.
        records: How many, in all threads together.
    """
    project = f"洪流_{secrets.token_hex(4)}"
    agent = ProjectAgent(project, redis=url, log_list_limit=2 * records + 1_000)
    costs: list[list[int]] = [[] for _ in range(THREADS)]
    async with Redis.from_url(url, protocol=2) as redis, agent:
        await agent.ready(5)
        before = most = resident()
        began = time.perf_counter()
        threads = [
            threading.Thread(
                target=_produce, args=(agent, n, records // THREADS, costs[n])
            )
            for n in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, resident())
            stats = agent.stats()
            assert stats.logs_queued <= 10_000
            settled = stats.logs_delivered + sum(stats.logs_dropped.values())
            assert stats.logs_accepted == settled + stats.logs_queued
            await anyio.sleep(0.01)
        seconds = time.perf_counter() - began
        agent.log.info("the last one")
        assert await agent.flush(60)
        stats = agent.stats()
        told = written = 0
        order = [-1] * THREADS
        for item in await redis.lrange(f"{project}_项目控制台", 0, -1):
            metadata = orjson.loads(item)["metadata"]
            if "dropped" in metadata:
                told += sum(metadata["dropped"].values())
                continue
            written += 1
            if "thread" in metadata:
                assert metadata["number"] > order[metadata["thread"]]
                order[metadata["thread"]] = metadata["number"]
        await redis.delete(f"{project}_项目控制台")
    dropped = sum(stats.logs_dropped.values())
    assert stats.logs_accepted == records // THREADS * THREADS + 1
    assert stats.logs_accepted == stats.logs_delivered + dropped
    assert stats.logs_delivered == written
    assert told == dropped
    sorted_costs = sorted(cost for each in costs for cost in each)
    return Burst(
        stats.logs_accepted, stats.logs_delivered, dropped, told, seconds, most - before,
        sorted_costs[len(sorted_costs) // 2] / 1_000,
        sorted_costs[len(sorted_costs) * 99 // 100] / 1_000,
    )  # fmt: skip


if __name__ == "__main__":
    with DevServer() as server:
        number = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
        print(anyio.run(burst, server.url, number))
