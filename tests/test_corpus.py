"""Every message of the corpus ends as its line says, and the good command behind it runs."""

from __future__ import annotations

import gc
import time

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from tests.corpus.loader import CorpusItem, add_handlers, load_commands
from tests.harness import eventually, records

ITEMS = load_commands()
GROUPS = sorted({item.group for item in ITEMS})
STALL = 0.2  # seconds; 0.01 to 0.04 alone, and neighbours share caches and memory
MORE_TRIES = 3  # on a machine where the same work takes longer at times


def make_agent(project: str, url: str) -> ProjectAgent:
    agent = ProjectAgent(project, redis=url, log_buffer_bytes=64 * 1024 * 1024)
    add_handlers(agent)

    @agent.command
    async def good() -> str:
        return "ran"

    return agent


class StallWatch:
    """Measures how long the event loop's thread worked without coming round, at most.

    By the thread's own clock: what others take of the machine is no stall of ours.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.thread_time()
        while True:
            await anyio.sleep(0.001)
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            last = now


async def check_item(
    redis: Redis, project: str, agent: ProjectAgent, item: CorpusItem
) -> None:
    """Push one item and a good command, and compare the two records."""
    await redis.delete(f"{project}_项目控制台")
    good = agent.stats().outcomes.get("succeeded", 0) + 1 + (item.expect == "succeeded")
    await redis.rpush(f"{project}_控制", item.payload, b'{"command":"good"}')
    try:
        await eventually(lambda: agent.stats().outcomes.get("succeeded", 0) >= good)
    except TimeoutError:
        pytest.fail(f"{item.name} did not end: {await records(redis, project)}")
    await agent.flush()
    first, second = await records(redis, project)
    told = first["metadata"]
    assert told["outcome"] == item.expect, item.name
    assert second["metadata"]["command"] == "good"
    if item.expect == "discarded":
        assert told["error"]["reason"] == item.reason, item.name
        assert told["error"]["size"] == len(item.payload)
        assert told["error"]["firstBytes"].isascii()
        assert first["level"] == "error"
    if item.fields:
        assert sorted(told["error"]["fields"]) == list(item.fields), item.name


async def play(redis_url: str, redis: Redis, project: str, group: str) -> float:
    """Push every item of a group, and give the longest stall."""
    agent = make_agent(project, redis_url)
    watch = StallWatch()
    gc.collect()
    gc.freeze()  # the objects of a thousand other tests are not what is measured
    async with agent, anyio.create_task_group() as tasks:
        await agent.ready(5)
        tasks.start_soon(watch.run)
        for item in ITEMS:
            if item.group == group:
                await check_item(redis, project, agent, item)
        tasks.cancel_scope.cancel()
    gc.unfreeze()
    assert not agent.stats().faults
    return watch.longest


@pytest.mark.parametrize("group", GROUPS)
async def test_corpus(redis_url: str, redis: Redis, project: str, group: str) -> None:
    """No exception, no stall; one record of the right kind for each item of a group."""
    stall = await play(redis_url, redis, project, group)
    if group == "size":
        return
    for _ in range(MORE_TRIES):
        if stall < STALL:
            break
        stall = await play(redis_url, redis, project, group)
    assert stall < STALL
