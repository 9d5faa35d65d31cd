"""With fewer rights, or an older server, the agent works; what is weaker is said."""

from __future__ import annotations

import time

import anyio
from redis.asyncio import Redis

from bls_agent import ProjectAgent, Status
from bls_agent.devserver import DevServer
from tests.harness import History, eventually, records, status_of, url_with_rights


async def test_blpop_refused_and_lpop_not(project: str) -> None:
    """auto with prefetch on a server without BLPOP: what LPOP has taken is run."""
    with DevServer(options=("--rename-command", "BLPOP", "")) as server:
        async with Redis.from_url(server.url, protocol=2) as admin:
            history = History()
            agent = ProjectAgent(project, redis=server.url, prefetch=4)
            history.attach(agent)
            for _ in range(6):
                await history.push(admin, project)
            async with agent:
                await eventually(lambda: len(history.handled) == 6)
                await eventually(lambda: agent.stats().mode == "compat")
            await history.check(admin, project)


async def test_lpop_refused(own_server: DevServer, admin: Redis, project: str) -> None:
    """prefetch without the right to LPOP takes commands one by one."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-lpop")
    history = History()
    agent = ProjectAgent(project, redis=url, prefetch=8)
    history.attach(agent)
    for _ in range(20):
        await history.push(admin, project)
    async with agent:
        await eventually(lambda: history.handled == history.pushed)
        assert agent.stats().mode == "blocking"


async def test_status_without_the_right_to_read(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """A status key that may only be written is written all the same."""
    url = await url_with_rights(admin, own_server, "%W~*", "+@all")
    agent = ProjectAgent(project, redis=url, mode="compat")
    async with agent:
        await agent.ready(5)
        agent.set_status(Status.ERROR)
        await eventually(lambda: _is(admin, project, "报错"))
    assert await status_of(admin, project) == "离线"


async def _is(redis: Redis, project: str, status: str) -> bool:
    return await status_of(redis, project) == status


async def test_lpush_refused_at_the_stop(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """What cannot be given back is run within shutdown_timeout, once."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-lpush")
    history = History()
    agent = ProjectAgent(project, redis=url, prefetch=8)
    history.attach(agent)
    started = History()

    @agent.command
    async def hold() -> None:
        started.handled.append(0)
        await anyio.sleep(0.1)

    await admin.rpush(f"{project}_控制", b'{"command":"hold"}')
    for _ in range(7):
        await history.push(admin, project)
    async with agent:
        await eventually(lambda: started.handled == [0])
    assert history.handled == history.pushed
    await history.check(admin, project)


async def test_client_commands_refused(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Without CLIENT a stop waits for the end of the block, and loses nothing."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-client")
    history = History()
    agent = ProjectAgent(project, redis=url)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        for _ in range(3):
            await history.push(admin, project)
        await eventually(lambda: len(history.handled) == 3)
        began = time.perf_counter()
    assert time.perf_counter() - began < 3.5
    await history.check(admin, project)


async def test_after_an_ambiguous_write_without_the_right_to_read(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Where the tail cannot be searched it is sent again, and counted."""
    url = await url_with_rights(
        admin, own_server, f"%W~{project}_项目控制台", "~*_项目状态", "~*_控制", "+@all"
    )
    agent = ProjectAgent(project, redis=url, redis_timeout=0.3)
    async with agent:
        await agent.ready(5)
        agent.log.info("first")
        assert await agent.flush(5)
        own_server.freeze()
        agent.log.info("ambiguous")
        await eventually(lambda: not agent.stats().connections["data"])
        own_server.thaw()
        assert await agent.flush(10)
        assert agent.stats().logs_maybe_repeated == 1
    found = [r["message"] for r in await records(admin, project)]
    assert found.count("first") == 1
    assert found.count("ambiguous") in (1, 2)


async def test_a_record_that_is_refused_for_good_does_not_hold_the_stop(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """A console key of another type: closing does not wait for what cannot be written."""
    await admin.set(f"{project}_项目控制台", "somebody's data")
    agent = ProjectAgent(project, redis=own_server.url)
    async with agent:
        await agent.ready(5)
        agent.log.info("waits")
        began = time.perf_counter()
        assert not await agent.flush(5)
    assert time.perf_counter() - began < 1
    assert await status_of(admin, project) == "离线"


async def test_a_script_that_may_not_look(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """compat where EVAL is allowed and what the script does is not: LREM cuts."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-lindex")
    history = History()
    agent = ProjectAgent(project, redis=url, mode="compat")
    history.attach(agent)
    for _ in range(3):
        await history.push(admin, project)
    async with agent:
        await eventually(lambda: len(history.handled) == 3)
    await history.check(admin, project)
