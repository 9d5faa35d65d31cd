"""What happens to commands when Redis dies, in each mode: the table of docs/promises.md."""

from __future__ import annotations

from typing import get_args

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.core.settings import Mode
from bls_agent.devserver import DevServer
from tests.harness import command_bytes, eventually, records


@pytest.mark.parametrize("mode", get_args(Mode))
async def test_killed_while_a_handler_runs(
    own_server: DevServer, project: str, mode: Mode
) -> None:
    """The handler ends during the outage, once; its outcome and the next come later."""
    agent = ProjectAgent(project, redis=own_server.url, mode=mode, command_timeout=60)
    started: list[int] = []
    runs, goes_on = anyio.Event(), anyio.Event()

    @agent.command
    async def mark(number: int) -> int:
        started.append(number)
        runs.set()
        await goes_on.wait()
        return number

    async with agent:
        await agent.ready(5)
        async with Redis.from_url(own_server.url, protocol=2) as redis:
            await redis.rpush(f"{project}_控制", command_bytes(1), command_bytes(2))
        with anyio.fail_after(10):
            await runs.wait()
        own_server.kill()
        await eventually(lambda: not any(agent.stats().connections.values()))
        goes_on.set()
        await eventually(lambda: agent.stats().outcomes.get("succeeded") == 1)
        assert started == [1]
        own_server.restart()
        await eventually(lambda: agent.stats().outcomes.get("succeeded") == 2, 10)
        assert await agent.flush(5)
    assert started == [1, 2]
    async with Redis.from_url(own_server.url, protocol=2) as redis:
        found = [one["metadata"] for one in await records(redis, project)]
        ended = [one["result"] for one in found if one.get("outcome") == "succeeded"]
        assert ended == [1, 2]
        assert not await redis.exists(f"{project}_控制")
