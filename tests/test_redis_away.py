"""Redis killed, frozen or absent: the host does not notice, everything resumes."""

from __future__ import annotations

import logging
import re
import statistics
import time
import tracemalloc
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent, RedisUnavailableError, Status
from bls_agent.devserver import DevServer
from tests.engines import free_ports
from tests.harness import (
    History,
    eventually,
    records,
    status_of,
)
from tests.kit import FaultProxy, Rate

DEADLINE = 0.8  # seconds, of a request and of connecting, while nobody answers


def client_of(server: DevServer) -> Redis:
    return Redis.from_url(server.url, protocol=2, socket_timeout=2)


async def numbers(redis: Redis, project: str) -> list[int]:
    """The ``n`` of every record that has one, in list order."""
    found = await records(redis, project)
    return [r["metadata"]["n"] for r in found if "n" in r.get("metadata", {})]


async def test_frozen_beyond_every_deadline(
    own_server: DevServer, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log calls cost the host nothing meanwhile, all is delivered once afterwards."""
    monkeypatch.setattr("bls_agent.connection.endpoint.CONNECT_TIMEOUT", DEADLINE)
    limits: dict[str, Any] = {"log_list_limit": 1_000_000, "redis_timeout": DEADLINE}
    agent = ProjectAgent(project, redis=own_server.url, **limits)
    history = History()
    history.attach(agent)
    costs: list[float] = []  # seconds of this thread's work
    waits: list[float] = []
    async with agent, client_of(own_server) as redis:
        await agent.ready(5)
        await history.push(redis, project)
        agent.log.info(
            "opens the wire, so that the next batch is in flight when it freezes"
        )
        assert await agent.flush(5)
        own_server.freeze()
        until = anyio.current_time() + 4 * DEADLINE  # requests', then connections'
        while anyio.current_time() < until:
            for _ in range(5):
                began, worked = time.monotonic(), time.thread_time()
                agent.log.info("frozen", n=len(costs))
                costs.append(time.thread_time() - worked)
                waits.append(time.monotonic() - began)
            await anyio.sleep(0.01)
        own_server.thaw()
        assert await agent.flush(10)
        await history.push(redis, project)
        await eventually(lambda: len(history.handled) == 2, 10)
        assert await numbers(redis, project) == list(range(len(costs)))
        assert await status_of(redis, project) == "在线"
        assert statistics.median(costs) <= 0.001
        assert max(waits) < DEADLINE, "a call has waited for the server"
        used = await redis.info("commandstats")
        looked = used.get("cmdstat_client|list") or used["cmdstat_client"]  # Redis 6
        assert looked["calls"] >= 1, "is the old one gone?"
        assert agent.stats().logs_maybe_repeated == 0
    await _closed(own_server, project, "离线")


async def _closed(server: DevServer, project: str, status: str) -> None:
    async with client_of(server) as redis:
        assert await status_of(redis, project) == status


@pytest.mark.parametrize("rate", [40_000, 100_000])
async def test_the_log_over_a_narrow_link(
    own_server: DevServer, project: str, rate: int
) -> None:
    """A batch has the time that its bytes need, also after a cut: nothing twice."""
    async with FaultProxy(own_server.url, seed=1) as proxy:
        agent = ProjectAgent(
            project, redis=proxy.url, redis_timeout=0.1, reconnect_max=0.2
        )
        async with agent:
            await agent.ready(5)
            agent.log.info("before", n=-1)
            assert await agent.flush(5)
            async with proxy.during(Rate(rate)):
                for n in range(100):
                    agent.log.info("x" * 100, n=n)
                await eventually(lambda: bool(agent.stats().logs_queued))
                proxy.break_all()
                flushed = await agent.flush(20)
            stats = agent.stats()
    assert flushed
    assert stats.logs_maybe_repeated == 0
    async with client_of(own_server) as redis:
        assert await numbers(redis, project) == list(range(-1, 100))


async def test_absent_at_the_start(project: str) -> None:
    """Redis absent: opening neither fails nor waits; once it is there all arrives."""
    port = free_ports(1)[0]
    agent = ProjectAgent(project, redis=f"redis://127.0.0.1:{port}/0")
    history = History()
    history.attach(agent)
    began = time.perf_counter()
    async with agent:
        assert time.perf_counter() - began < 2
        agent.log.info("said before", n=0)
        agent.set_status(Status.ERROR)
        with pytest.raises(RedisUnavailableError):
            await agent.ready(0.3)
        assert not await agent.flush(0.1)
        with DevServer(port=port) as server:
            appeared = time.perf_counter()
            await agent.ready(5)
            assert time.perf_counter() - appeared < 2.5
            async with client_of(server) as redis:
                assert await status_of(redis, project) == "报错"
                await history.push(redis, project)
                await eventually(lambda: history.handled == [0], 5)
                assert await agent.flush(5)
                assert await numbers(redis, project) == [0]
            await agent.aclose()


def returns(caplog: pytest.LogCaptureFixture) -> list[float]:
    """The seconds of each message that Redis answers again."""
    texts = [record.getMessage() for record in caplog.records]
    found = [re.fullmatch(r"Redis answers again after ([\d.]+) s", t) for t in texts]
    return [float(one[1]) for one in found if one]


@pytest.mark.parametrize("kind", ["agent", "lifespan"])
async def test_an_agent_logs_the_end_of_an_outage(
    own_server: DevServer, project: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with its length, for all its connections."""
    caplog.set_level(logging.INFO, "bls_agent.connection")
    agent = ProjectAgent(project, redis=own_server.url, reconnect_max=0.2)
    async with agent if kind == "agent" else agent.lifespan(None):
        await agent.ready(10)
        began = time.monotonic()
        own_server.kill()
        await eventually(lambda: "unavailable" in caplog.text)
        own_server.restart()
        await eventually(lambda: bool(returns(caplog)))
        agent.log.info("back")
        assert await agent.flush(10)
        async with Console(own_server.url) as console:
            assert (await console.call(project, "ping")).succeeded
    (seconds,) = returns(caplog)
    assert 0 <= seconds <= time.monotonic() - began + 0.1  # it is rounded


async def test_a_console_logs_the_end_of_an_outage(
    own_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with its length; a lost connection that is replaced at once is no outage."""
    caplog.set_level(logging.INFO, "bls_agent.connection")
    async with Console(own_server.url, timeout=1) as console:
        await console.projects()
        own_server.restart()
        await console.projects()
        assert not returns(caplog)
        began = time.monotonic()
        own_server.kill()
        for _ in range(2):
            with pytest.raises(RedisUnavailableError):
                await console.projects()
        own_server.restart()
        for _ in range(2):
            await console.projects()
        (seconds,) = returns(caplog)
        assert 0 <= seconds <= time.monotonic() - began + 0.1  # it is rounded


async def test_memory_stays_within_the_bound(project: str) -> None:
    """A flood while Redis is absent: memory within the bound, drops counted exactly."""
    bound = 1024 * 1024
    agent = ProjectAgent(
        project,
        redis=f"redis://127.0.0.1:{free_ports(1)[0]}/0",
        log_buffer=1_000_000,
        log_buffer_bytes=bound,
        shutdown_timeout=0,
    )
    async with agent:
        tracemalloc.start()
        try:
            for number in range(12_000):
                agent.log.info("flood " + "x" * 200, n=number)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        stats = agent.stats()
    assert held < bound * 2
    assert stats.logs_queued_bytes <= bound
    assert stats.logs_accepted == 12_000
    dropped = sum(stats.logs_dropped.values())
    assert stats.logs_accepted == stats.logs_delivered + dropped + stats.logs_queued
    assert dropped > 6_000


async def test_drops_are_told_in_the_list(own_server: DevServer, project: str) -> None:
    """After an outage one record in the list says how many were dropped, and why."""
    agent = ProjectAgent(project, redis=own_server.url, log_buffer=10)
    async with agent:
        await agent.ready(5)
        own_server.kill()
        for number in range(100):
            agent.log.info("lost or kept", n=number)
        agent.log.error("kept, being an error", n=100)
        own_server.restart()
        assert await agent.flush(10)
        async with client_of(own_server) as redis:
            found = await records(redis, project)
    summaries = [r for r in found if "dropped" in r.get("metadata", {})]
    kept = [r["metadata"]["n"] for r in found if "n" in r.get("metadata", {})]
    assert [s["metadata"]["dropped"] for s in summaries] == [
        {"buffer_full": 101 - len(kept)}
    ]
    assert kept[-1] == 100


async def test_tries_are_paced(project: str) -> None:
    """While nobody listens the agent tries fewer than five times a second."""
    agent = ProjectAgent(
        project, redis=f"redis://127.0.0.1:{free_ports(1)[0]}/0", shutdown_timeout=0
    )
    async with agent:
        for _ in range(50):
            agent.set_status(Status.ERROR)
            agent.set_status(Status.ONLINE)
            await anyio.sleep(0.06)
        failures = agent.stats().reconnect_failures
    assert 1 <= failures < 15
