"""Compatibility mode and the automatic choice of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.settings import Mode
from bls_agent.devserver import DevServer
from bls_agent.project.receive.compat import CompatReceiver
from tests.harness import (
    History,
    command_bytes,
    eventually,
    execute,
    records,
    status_of,
    url_with_rights,
)


async def test_every_command_is_handled_and_trimmed(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Commands run one at a time in order; each is trimmed after it has ended."""
    agent = ProjectAgent(project, redis=redis_url, mode="compat", concurrency=4)
    history = History()
    history.attach(agent)
    seen_during: list[int] = []

    @agent.command
    async def look() -> None:
        seen_during.append(await redis.llen(f"{project}_控制"))

    for _ in range(50):
        await history.push(redis, project)
    async with agent:
        assert agent.stats().mode == "compat"
        await eventually(lambda: len(history.handled) == 50)
        assert (await console.call(project, "look")).succeeded
        assert seen_during == [1], "the command stays in the list while it runs"
        await eventually(lambda: _empty(redis, project))
        assert await status_of(redis, project) == "在线"
    assert history.handled == history.pushed


async def _empty(redis: Redis, project: str) -> bool:
    return not await redis.exists(f"{project}_控制")


@pytest.mark.parametrize(
    ("payload", "outcome"),
    [
        (b"no json", "discarded"),
        (b'{"command":"raises"}', "failed"),
        (b'{"command":"slow"}', "timed_out"),
        (b'{"command":"nobody"}', "unknown"),
    ],
    ids=["malformed", "raises", "times out", "unknown"],
)
async def test_every_final_outcome_trims(
    redis_url: str, redis: Redis, project: str, payload: bytes, outcome: str
) -> None:
    """A poisoned command does not block for ever: it ends once and is cut."""
    agent = ProjectAgent(project, redis=redis_url, mode="compat")
    history = History()
    history.attach(agent)

    @agent.command
    async def raises() -> None:
        raise KeyError("库存")

    @agent.command(timeout=0.05)
    async def slow() -> None:
        await anyio.sleep_forever()

    await redis.rpush(f"{project}_控制", payload)
    await history.push(redis, project)
    async with agent:
        await eventually(lambda: history.handled == [0])
        await agent.flush()
        found = await records(redis, project)
        assert [r["metadata"]["outcome"] for r in found].count(outcome) == 1
        await eventually(lambda: _empty(redis, project))


async def test_a_cancelled_command_stays(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A command that was cancelled by the stop is not trimmed and runs again."""
    agent = ProjectAgent(project, redis=redis_url, mode="compat", shutdown_timeout=0.1)
    started = 0

    @agent.command
    async def endless() -> None:
        nonlocal started
        started += 1
        if started == 1:
            await anyio.sleep_forever()

    await redis.rpush(f"{project}_控制", b'{"command":"endless"}')
    async with agent:
        await eventually(lambda: started == 1)
    assert await redis.llen(f"{project}_控制") == 1
    async with agent:
        await eventually(lambda: _empty(redis, project))
    assert started == 2


async def test_a_second_consumer_is_said_now_and_then(
    redis_url: str, redis: Redis, project: str
) -> None:
    """It meets us at every other command; that is said once a minute, not each time."""
    agent = ProjectAgent(project, redis=redis_url, mode="compat")
    ended: list[int] = []

    @agent.command
    async def rob(number: int) -> None:
        await redis.ltrim(f"{project}_控制", 1, -1)
        ended.append(number)

    async with agent:
        for number in range(5):
            await redis.rpush(f"{project}_控制", command_bytes(number, "rob"))
        await eventually(lambda: ended == [0, 1, 2, 3, 4])
        await agent.flush()
    said = [r["message"] for r in await records(redis, project) if r["level"] == "warn"]
    assert len([text for text in said if "second consumer" in text]) == 1


@pytest.mark.parametrize(
    ("rules", "weakest"),
    [
        (("+@all",), False),
        (("+@all", "-@scripting"), False),
        (("+@all", "-@scripting", "-lrem"), True),
    ],
    ids=["script", "lrem", "ltrim"],
)
async def test_the_weaker_ways_to_cut(
    own_server: DevServer,
    admin: Redis,
    project: str,
    rules: tuple[str, ...],
    weakest: bool,
) -> None:
    """Where scripts are refused LREM cuts, where that is refused LTRIM: said once."""
    url = await url_with_rights(admin, own_server, "~*", *rules)
    agent = ProjectAgent(project, redis=url, mode="compat")
    history = History()
    history.attach(agent)
    for _ in range(20):
        await history.push(admin, project)
    async with agent:
        await eventually(lambda: len(history.handled) == 20)
        await eventually(lambda: _empty(admin, project))
        await agent.flush()
    assert history.handled == history.pushed
    said = [r["message"] for r in await records(admin, project) if r["level"] == "warn"]
    assert len([text for text in said if "without looking" in text]) == weakest


@pytest.mark.parametrize("refusal", ["acl", "unknown"])
async def test_auto_takes_compat_where_blpop_is_refused(
    project: str, refusal: str
) -> None:
    """auto: NOPERM or an unknown BLPOP leads to compat, said once in the console list."""
    options = ("--rename-command", "BLPOP", "") if refusal == "unknown" else ()
    with DevServer(options=options) as server:
        async with Redis.from_url(server.url, protocol=2) as admin:
            url = server.url
            if refusal == "acl":
                url = await url_with_rights(admin, server, "~*", "+@all", "-blpop")
            agent = ProjectAgent(project, redis=url)
            history = History()
            history.attach(agent)
            async with agent:
                await eventually(lambda: agent.stats().mode == "compat")
                for _ in range(5):
                    await history.push(admin, project)
                await eventually(lambda: len(history.handled) == 5)
                await eventually(lambda: _empty(admin, project))
                await agent.flush()
            said = [r for r in await records(admin, project) if r["level"] == "warn"]
            assert len(said) == 1
            assert said[0]["metadata"]["mode"] == "compat"


async def test_auto_tries_blpop_again_after_a_reconnect(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """When the right comes back, a reconnect brings BLPOP back, and nothing runs twice."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-blpop")
    agent = ProjectAgent(project, redis=url)
    history = History()
    history.attach(agent)
    async with agent:
        await eventually(lambda: agent.stats().mode == "compat")
        await execute(admin, "ACL", "SETUSER", "agent", "+blpop")
        for client in await admin.client_list():
            if client["name"].endswith(":data"):
                await execute(admin, "CLIENT", "KILL", "ID", client["id"])
        await eventually(lambda: agent.stats().mode == "blocking")
        for _ in range(2):
            await history.push(admin, project)
        await eventually(lambda: len(history.handled) == 2)
    await history.check(admin, project)


@pytest.mark.parametrize(("mode", "blpop"), [("compat", "+blpop"), ("auto", "-blpop")])
async def test_a_command_that_has_timed_out_does_not_run_again(
    own_server: DevServer, admin: Redis, project: str, mode: Mode, blpop: str
) -> None:
    """Its handler ignores the cancellation, also when the agent stops."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", blpop)
    agent = ProjectAgent(project, redis=url, mode=mode, shutdown_timeout=0.1)
    runs, released = 0, anyio.Event()

    @agent.command(timeout=0.05)
    async def stubborn() -> None:
        nonlocal runs
        runs += 1
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    await admin.rpush(f"{project}_控制", b'{"command":"stubborn"}')
    async with agent:
        await eventually(lambda: agent.stats().outcomes == {"timed_out": 1})
    released.set()
    assert await admin.llen(f"{project}_控制") == 0
    assert runs == 1


async def test_other_refusals_do_not_change_the_mode(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A control key of another type is no reason for compat; it is left alone."""
    await redis.set(f"{project}_控制", "somebody's data")
    agent = ProjectAgent(project, redis=redis_url)
    async with agent:
        await agent.ready(5)
        await anyio.sleep(0.2)  # time in which a wrong switch would happen
        assert agent.stats().mode == "blocking"
        assert not agent.stats().faults
    assert await redis.get(f"{project}_控制") == b"somebody's data"


@pytest.mark.parametrize("mode", ["blocking", "compat", "auto"])
async def test_same_bytes_in_every_mode(
    redis_url: str, redis: Redis, project: str, mode: Mode
) -> None:
    """The same command gives the same record in every mode, but for ids and times."""
    agent = ProjectAgent(project, redis=redis_url, mode=mode, instance="节点")
    history = History()
    history.attach(agent)
    await redis.rpush(f"{project}_控制", command_bytes(7))
    async with agent:
        await eventually(lambda: history.handled == [7])
        await agent.flush()
    (record,) = await records(redis, project)
    assert list(record) == ["timestamp", "level", "message", "metadata"]
    del record["timestamp"]
    assert record.pop("metadata").pop("durationMs") > 0
    assert record == {"level": "info", "message": "command 'mark' succeeded"}


async def test_a_cut_that_is_cancelled_half_way_is_in_doubt(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The server has cut already when we are cancelled: nobody else is accused of it."""
    endpoint = Endpoint.of(redis_url)
    connections = AgentConnections(endpoint, "n", timeout=5.0, reconnect_max=2.0)
    said: list[str] = []
    receiver = CompatReceiver(
        connections, f"{project}_控制", lambda text, _: said.append(text)
    )
    cuts = receiver._cuts
    was_cut = anyio.Event()

    async def cut_and_hang(payload: bytes) -> bool:
        await cuts[0](payload)
        was_cut.set()
        await anyio.sleep_forever()
        return True

    history = History()
    await history.push(redis, project)
    await history.push(redis, project)
    try:
        (message,) = await receiver.receive(1)
        receiver._cuts = (cut_and_hang,)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.settle, message)
            await was_cut.wait()
            tasks.cancel_scope.cancel()
        receiver._cuts = cuts
        await receiver.finish()
        assert said == []
        assert await history.waiting(redis, project) == [1]
    finally:
        await connections.aclose()
