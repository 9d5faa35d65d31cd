"""How long our own keys really live, held against the table of keys."""

from __future__ import annotations

import hashlib

import anyio
import orjson
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.core.keys import (
    BROADCAST,
    CONTROL,
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    INSTANCES,
    OWNER,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    SEEN,
    KeyTemplate,
    place_beside,
)
from bls_agent.core.settings import Settings
from bls_agent.devserver import DevServer
from tests.harness import command_bytes, eventually, is_there

PROJECT = "订单系统"
STATUS = PROJECT_STATUS.build(project=PROJECT)
LOG = PROJECT_CONSOLE.build(project=PROJECT)
QUEUE = CONTROL.build(project=PROJECT)
PLACE = place_beside(QUEUE)
FRESH = 0.5  # of its TTL that a key has left at least while this test looks


async def check_life(admin: Redis, row: KeyTemplate, key: str) -> None:
    """Check that a key which was written just now expires as its row says."""
    await eventually(lambda: is_there(admin, key))
    left = await admin.pttl(key)
    if row.ttl is None:
        assert left == -1, key
    else:
        assert FRESH * row.ttl < left / 1000 <= row.ttl, key


async def test_keys_of_a_reliable_agent(own_server: DevServer, admin: Redis) -> None:
    """Queue, in-flight list and the books beside it, and what a dead process left."""
    agent = ProjectAgent(
        PROJECT, redis=own_server.url, mode="reliable", instance="a", concurrency=2
    )
    goes_on = anyio.Event()

    @agent.command
    async def mark(number: int) -> int:
        if number:
            await goes_on.wait()
        return number

    inflight = INFLIGHT.build(place=PLACE, instance="a")
    dead = INFLIGHT.build(place=PLACE, instance="dead")
    deliveries = DELIVERIES.build(place=PLACE)
    digest = hashlib.sha1(command_bytes(2)).hexdigest()
    await admin.hset(deliveries, f"{dead}/{digest}", "9")
    await admin.rpush(dead, command_bytes(2), command_bytes(1))
    await admin.hset(INFLIGHT_LISTS.build(place=PLACE), dead, 2)
    await admin.rpush(QUEUE, command_bytes(0))
    async with agent:
        await check_life(admin, SEEN, SEEN.build(place=PLACE))
        await check_life(admin, DEAD_LETTERS, DEAD_LETTERS.build(place=PLACE))
        await check_life(admin, DELIVERIES, deliveries)
        await check_life(admin, INFLIGHT, inflight)
        await check_life(admin, INFLIGHT_LISTS, INFLIGHT_LISTS.build(place=PLACE))
        await check_life(admin, PROJECT_STATUS, STATUS)
        await check_life(admin, PROJECT_CONSOLE, LOG)
        lease = await admin.pttl(OWNER.build(place=place_beside(inflight)))
        assert 0 < lease / 1000 <= Settings.lease_ttl
        await admin.rpush(QUEUE, command_bytes(3), command_bytes(4))
        await check_life(admin, CONTROL, QUEUE)
        goes_on.set()


async def test_keys_of_replicas(own_server: DevServer, admin: Redis) -> None:
    """The list of replicas, and the inbox of one that does not read it."""
    names = ("a", "b")
    agents = [
        ProjectAgent(PROJECT, redis=own_server.url, replicas=True, instance=name)
        for name in names
    ]
    busy = anyio.Event()
    for agent in agents:
        agent.command("hold")(busy.wait)
    inboxes = [BROADCAST.build(place=PLACE, instance=name) for name in names]
    hold = orjson.dumps({"command": "hold", "broadcast": True})
    async with agents[0], agents[1]:
        await check_life(admin, INSTANCES, INSTANCES.build(place=place_beside(STATUS)))
        await eventually(lambda: _is_read_by(admin, 2))
        await admin.rpush(QUEUE, hold, hold)

        async def waits() -> bool:
            return await admin.exists(*inboxes) > 0

        await eventually(waits)
        (inbox,) = [key for key in inboxes if await admin.exists(key)][:1]
        await check_life(admin, BROADCAST, inbox)
        busy.set()


async def _is_read_by(admin: Redis, count: int) -> bool:
    return await admin.hlen(INSTANCES.build(place=place_beside(STATUS))) == count
