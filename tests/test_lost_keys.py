"""Somebody takes the keys away under a running agent: it goes on and puts them back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.devserver import DevServer
from tests.harness import eventually, records, status_of

INTERVAL = 0.3


def keys(project: str) -> list[str]:
    return [f"{project}_{suffix}" for suffix in ("项目状态", "项目控制台", "控制")]


async def flush(admin: Redis, project: str) -> None:
    await admin.flushall()


async def delete(admin: Redis, project: str) -> None:
    await admin.delete(*keys(project))


async def rename(admin: Redis, project: str) -> None:
    for key in keys(project):
        if await admin.exists(key):
            await admin.rename(key, f"{key}.away")


async def evict(admin: Redis, project: str) -> None:
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    await admin.config_set("maxmemory", "1")
    await eventually(lambda: _is_gone(admin, project))
    await admin.config_set("maxmemory", "0")


async def _is_gone(admin: Redis, project: str) -> bool:
    await admin.execute_command("PUBLISH", "x", "y")  # type: ignore[no-untyped-call]
    return not await admin.exists(*keys(project))


@pytest.mark.parametrize("harm", [flush, delete, rename, evict])
@pytest.mark.parametrize("mode", ["blocking", "compat"])
async def test_keys_that_are_lost_come_back(
    own_server: DevServer,
    admin: Redis,
    project: str,
    harm: Callable[[Redis, str], Awaitable[None]],
    mode: str,
) -> None:
    """The status within one interval; the records' numbers and the commands go on."""
    agent = ProjectAgent(
        project,
        redis=own_server.url,
        mode=mode,  # type: ignore[arg-type]
        status_interval=INTERVAL,
        status_ttl=2,
        reconnect_max=INTERVAL,
    )
    async with Console(own_server.url) as console, agent:
        await agent.ready(5)
        agent.log.info("before")
        assert (await console.call(project, "ping")).succeeded
        (first, _) = [r["metadata"]["agent"] for r in await records(admin, project)]
        await harm(admin, project)
        assert await status_of(admin, project) in (None, "在线")

        async def is_online() -> bool:
            return await status_of(admin, project) == "在线"

        await eventually(is_online, 4 * INTERVAL + 1)
        assert 0 < await admin.ttl(f"{project}_项目状态") <= 2
        agent.log.info("after")
        assert await agent.flush()
        assert (await console.call(project, "ping")).succeeded
        found = [r["metadata"]["agent"] for r in await records(admin, project)]
        numbers = [int(one.partition("#")[2]) for one in [first, *found]]
        assert numbers == sorted(set(numbers))
        stats = agent.stats()
        assert not stats.faults
        assert stats.logs_dropped == {}
        assert stats.logs_accepted == stats.logs_delivered + stats.logs_queued
