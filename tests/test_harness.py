"""What the tests leave on the server that they share."""

from __future__ import annotations

from functools import partial
from typing import Any

from redis.asyncio import Redis

from bls_agent import ProjectAgent
from tests.harness import eventually, is_there, remove_keys


async def test_nothing_of_a_project_is_left(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Also what a replica has beside the three documented keys; others keep theirs."""
    other = f"{project[:-1]}!"
    await redis.set(f"{other}_项目状态", "在线", ex=5)
    async with ProjectAgent(project, redis=redis_url, replicas=True, mode="reliable"):
        roster = f"bls_agent:{{{project}_项目状态}}:instances"
        await eventually(partial(is_there, redis, roster))
        left: Any = await redis.hgetall(roster)
    await redis.hset(roster, mapping=left)  # as a replica that was killed leaves it
    await remove_keys(redis, project)
    assert await redis.keys(f"*{project}*") == []
    assert await redis.exists(f"{other}_项目状态")
