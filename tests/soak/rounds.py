"""Opening and closing again and again: nothing is left, here or at the server."""

from __future__ import annotations

import gc
import secrets
import sys
from pathlib import Path

import anyio
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.devserver import DevServer
from tests.harness import eventually
from tests.soak.cancellation import held


def resident() -> int:
    """Give the memory of this process in KiB."""
    with Path("/proc/self/status").open() as lines:
        return next(int(one.split()[1]) for one in lines if one.startswith("VmRSS"))


async def start_and_stop(url: str, rounds: int) -> int:
    """Open and close a new agent so many times; give the growth of memory in KiB.

    The growth is that of the second half: the first warms up.

    Args:
        url: Where Redis is.
        rounds: How often.
    """
    project = f"往返_{secrets.token_hex(4)}"

    async def one_round(console: Console) -> None:
        agent = ProjectAgent(project, redis=url)

        @agent.command
        def plain() -> None:
            agent.log.info("inside")

        @agent.health_check
        async def fine() -> None: ...

        async with agent:
            await console.call(project, "plain")

    async with Redis.from_url(url, protocol=2) as redis, Console(url) as console:
        await one_round(console)
        clients = len(await redis.client_list())
        before = held()
        middle = 0
        for number in range(rounds):
            if number == rounds // 2:
                gc.collect()
                middle = resident()
            await one_round(console)
        await eventually(lambda: held() <= before)
        growth = resident() - middle
        assert len(await redis.client_list()) == clients
        keys = sorted([key.decode() async for key in redis.scan_iter(f"{project}*")])
        assert keys == [f"{project}_项目控制台", f"{project}_项目状态"]
        assert [key async for key in redis.scan_iter(f"bls_agent:*{project}*")] == []
        await redis.delete(*keys)
    return growth


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with DevServer() as server:
        grown = anyio.run(start_and_stop, server.url, count)
    print(f"{count} rounds: nothing left, {grown} KiB grown in the second half")
    assert grown < 1_024, "memory grows with the rounds"
