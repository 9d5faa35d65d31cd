"""Stopping and cancelling: bounded in time, and no command is lost or run twice."""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import suppress
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import Console, OutcomeKind, ProjectAgent
from bls_agent.devserver import DevServer
from tests.harness import History, eventually, producing, records, status_of
from tests.kit import Cut, Direction, FaultProxy

ROUNDS = 100  # `make chaos` makes ten thousand


async def test_clean_stops_under_load_lose_nothing(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Clean stops under load: 0 lost, 0 twice, and the order is kept."""
    history = History()
    rng = random.Random(7)
    agent = ProjectAgent(project, redis=redis_url, mode="blocking", prefetch=4)
    history.attach(agent)
    async with producing(history, redis, project, 0.0005):
        for _ in range(ROUNDS):
            async with agent:
                await anyio.sleep(rng.uniform(0, 0.01))
    await history.check(redis, project)
    assert history.handled == sorted(history.handled)


async def test_a_handler_that_ended_late_takes_no_time_from_others(
    redis_url: str, project: str
) -> None:
    """Cancellations that it left on its task do not reach a handler at the stop."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=2, mode="blocking")
    tasks: list[asyncio.Task[object]] = []
    begun = anyio.Event()

    @agent.command(timeout=0.2)
    async def careless() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await anyio.sleep(0)
        await anyio.sleep_forever()

    @agent.command
    async def slow() -> bool:
        begun.set()
        await anyio.sleep(0.5)
        return True

    async with Console(redis=redis_url) as console:
        async with agent:
            for _ in range(2):
                outcome = await console.call(project, "careless", timeout=10)
                assert outcome.kind is OutcomeKind.TIMED_OUT
            assert [task.cancelling() for task in tasks] == [0, 0]
            await console.send(project, "slow")
            await begun.wait()
        assert agent.stats().outcomes["succeeded"] == 1


async def test_every_task_cancelled_at_once(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A loop that cancels all its tasks, as asyncio.run does at its end, loses nothing."""
    history = History()
    rng = random.Random(3)
    async with producing(history, redis, project, 0.0005):
        for _ in range(40):
            delay = rng.uniform(0.005, 0.02)

            def serve(delay: float = delay) -> None:
                async def main() -> None:
                    agent = ProjectAgent(project, redis=redis_url, mode="blocking")
                    history.attach(agent)
                    task = asyncio.create_task(agent.run(handle_signals=False))
                    await asyncio.sleep(delay)
                    del task

                asyncio.run(main())

            await anyio.to_thread.run_sync(serve)
    await history.check(redis, project)
    assert await status_of(redis, project) == "离线"


async def test_idle_agent_closes_at_once(redis_url: str, project: str) -> None:
    """An idle agent whose read is parked closes within 100 ms; on a busy machine once."""
    agent = ProjectAgent(project, redis=redis_url, mode="blocking")
    took = math.inf
    for _ in range(5):
        async with agent:
            await agent.ready(5)
            await eventually(lambda: agent.stats().connections["blocking"])
            await anyio.sleep(0.1)  # let the read park; there is no event to wait for
            began = time.perf_counter()
        took = min(took, time.perf_counter() - began)
        if took < 0.1:
            break
    assert took < 0.1


async def test_running_handler_gets_its_time(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """A handler that runs when the agent stops is waited for, and reported."""
    agent = ProjectAgent(project, redis=redis_url)
    started = anyio.Event()
    ended: list[str] = []

    @agent.command
    async def long() -> None:
        started.set()
        await anyio.sleep(0.3)
        ended.append("long")

    async with agent:
        await console.send(project, "long", create=True)
        await started.wait()
    assert ended == ["long"]
    assert (await records(redis, project))[-1]["metadata"]["outcome"] == "succeeded"


async def test_handler_beyond_its_time_is_cancelled(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """A handler that does not end within shutdown_timeout is cancelled and reported."""
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=0.2)
    started = anyio.Event()

    @agent.command
    async def endless() -> None:
        started.set()
        await anyio.sleep_forever()

    async with agent:
        await console.send(project, "endless", create=True)
        await started.wait()
        began = time.perf_counter()
    assert 0.2 <= time.perf_counter() - began < 5
    assert (await records(redis, project))[-1]["metadata"]["outcome"] == "cancelled"


async def test_prefetched_commands_go_back_in_order(
    redis_url: str, redis: Redis, project: str
) -> None:
    """What was taken and not started stands again at the head of the list, in order."""
    agent = ProjectAgent(project, redis=redis_url, mode="blocking", prefetch=8)
    history = History()
    started = anyio.Event()

    @agent.command
    async def hold() -> None:
        started.set()
        await anyio.sleep(0.1)

    await redis.rpush(f"{project}_控制", b'{"command":"hold"}')
    for _ in range(10):
        await history.push(redis, project)
    async with agent:
        await started.wait()
        assert len(await history.waiting(redis, project)) == 3
    assert await history.waiting(redis, project) == list(range(10))


async def test_a_cancelled_handler_has_time_to_clean_up(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A quarter of a second is enough, and the outcome is written afterwards."""
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=0.1)
    started, cleaned = anyio.Event(), False

    @agent.command
    async def work() -> None:
        nonlocal cleaned
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            for _ in range(5):
                await anyio.sleep(0.05)
            cleaned = True

    await redis.rpush(f"{project}_控制", b'{"command":"work"}')
    async with agent:
        await started.wait()
    assert cleaned
    assert agent.stats().outcomes == {"cancelled": 1}
    assert (await records(redis, project))[-1]["metadata"]["outcome"] == "cancelled"


@pytest.mark.parametrize("mode", ["blocking", "compat", "reliable"])
async def test_closing_does_not_wait_for_a_redis_that_is_away(
    own_server: DevServer, project: str, mode: Any
) -> None:
    """With no handler it takes about a second, and not the ten of shutdown_timeout."""
    async with ProjectAgent(project, redis=own_server.url, mode=mode) as agent:
        await agent.ready(5)
        own_server.kill()
        agent.log.info("said while Redis is away")
        await eventually(lambda: not any(agent.stats().connections.values()))
        began = time.perf_counter()
    assert time.perf_counter() - began < 4


@pytest.mark.parametrize("freeze", [False, True], ids=["killed", "frozen"])
async def test_stop_is_bounded_whatever_redis_does(
    own_server: DevServer, project: str, freeze: bool
) -> None:
    """With Redis dead or frozen the whole stop takes shutdown_timeout + 2 s at most."""
    agent = ProjectAgent(project, redis=own_server.url, shutdown_timeout=0.5)
    async with agent:
        await agent.ready(5)
        if freeze:
            own_server.freeze()
        else:
            own_server.kill()
        agent.log.info("said while Redis is away")
        began = time.perf_counter()
    assert time.perf_counter() - began < 4.5


async def test_a_doubtful_give_back(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """What may stand in the list again is reported, and not run."""
    control, count = f"{project}_控制", 10
    pushed = [b'{"command":"tick","args":{}}'] * count
    go, runs = anyio.Event(), 0

    async with FaultProxy(own_server.url) as proxy:
        agent = ProjectAgent(project, redis=proxy.url, prefetch=3)

        @agent.command
        async def tick() -> None:
            nonlocal runs
            runs += 1
            await go.wait()

        await admin.rpush(control, *pushed)
        async with agent, anyio.create_task_group() as tasks:
            await eventually(lambda: runs == 1)
            assert await admin.llen(control) == count - 3
            proxy.arm(Cut(direction=Direction.REQUESTS, command="LPUSH"))

            async def end_when_cut() -> None:
                await eventually(lambda: bool(proxy.fired))
                go.set()

            tasks.start_soon(end_when_cut)
            tasks.start_soon(agent.aclose)
        assert proxy.fired
    cancelled = agent.stats().outcomes.get("cancelled", 0)
    assert runs + await admin.llen(control) + cancelled == count
    assert cancelled == 2
    assert runs == 1
