"""Threads that log without a pause while the agent closes and opens again."""

from __future__ import annotations

import secrets
import sys
import threading
import time

import anyio
import orjson
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.devserver import DevServer

THREADS = 4
TIMEOUT = 0.3


async def flood_while_closing(url: str, rounds: int) -> float:
    """Close an agent so many times in a flood of records; give the longest close.

    Whatever was put is in the list, was dropped and counted, or still waits; nothing
    stands there twice uncounted.

    Args:
        url: Where Redis is.
        rounds: How often.
    """
    project = f"收尾_{secrets.token_hex(4)}"
    agent = ProjectAgent(
        project, redis=url, shutdown_timeout=TIMEOUT, log_buffer=3_000,
        log_list_limit=10_000_000,
    )  # fmt: skip
    ended = threading.Event()
    errors: list[BaseException] = []

    def chatter() -> None:
        try:
            while not ended.is_set():
                agent.log.info("chatter")
                time.sleep(0.0002)  # as a program does that has other things to do
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=chatter) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    longest = 0.0
    try:
        for _ in range(rounds):
            async with agent:
                await agent.ready(5)
                await anyio.sleep(0.02)
                began = time.perf_counter()
            longest = max(longest, time.perf_counter() - began)
            stats = agent.stats()
            settled = stats.logs_delivered + sum(stats.logs_dropped.values())
            assert stats.logs_accepted == settled + stats.logs_queued
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not errors
    await _check(agent, url, project)
    return longest


async def _check(agent: ProjectAgent, url: str, project: str) -> None:
    """Hold what stands in the list against the account."""
    async with agent:
        assert await agent.flush(10)
    stats = agent.stats()
    async with Redis.from_url(url, protocol=2) as redis:
        found = await redis.lrange(f"{project}_项目控制台", 0, -1)
        await redis.delete(f"{project}_项目控制台", f"{project}_项目状态")
    records = {orjson.loads(one)["metadata"]["agent"]: one for one in found}
    numbers = [int(one.partition("#")[2]) for one in records]
    assert numbers == list(range(1, len(numbers) + 1))
    # A batch that a close has cancelled on its way may come twice, and is counted.
    assert len(found) - len(records) <= stats.logs_maybe_repeated
    chatter = sum(b"chatter" in one for one in records.values())
    assert chatter == stats.logs_delivered


if __name__ == "__main__":
    with DevServer() as server:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
        took = anyio.run(flood_while_closing, server.url, count)
    print(f"{count} closes in a flood, the longest took {took:.2f} s")
    assert took < TIMEOUT + 2
