"""The agent's life: a guest that leaves nothing behind and changes nothing of its host."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, Console, ProjectAgent
from bls_agent.devserver import DevServer
from tests.harness import eventually, records, status_of, url_with_rights
from tests.programs import Program


async def test_it_opens_again(redis_url: str, console: Console, project: str) -> None:
    """Closed and opened again it works as before; opened twice it says so."""
    agent = ProjectAgent(project, redis=redis_url)
    for _ in range(3):
        async with agent:
            assert (await console.call(project, "ping")).succeeded
            with pytest.raises(ConfigurationError, match="open already"):
                await agent.__aenter__()
        assert agent.stats().mode == "closed"


async def test_closed_from_another_task(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Opened in one task, it may be closed in another."""
    agent = ProjectAgent(project, redis=redis_url)
    await asyncio.create_task(agent.__aenter__())
    await agent.ready(5)
    await asyncio.create_task(agent.aclose())
    assert await status_of(redis, project) == "离线"
    await agent.aclose()


async def test_run_in_a_task_group(redis_url: str, redis: Redis, project: str) -> None:
    """``await tg.start(agent.run)`` returns when the agent is online."""
    agent = ProjectAgent(project, redis=redis_url)
    async with anyio.create_task_group() as tasks:
        await tasks.start(agent.run)
        assert await status_of(redis, project) == "在线"
        tasks.cancel_scope.cancel()
    assert await status_of(redis, project) == "离线"


async def test_a_start_without_a_status_fails(project: str) -> None:
    """The agent was closed before Redis could be reached."""
    agent = ProjectAgent(project, redis="redis://127.0.0.1:1/0")

    async def close() -> None:
        await eventually(lambda: agent.stats().open)
        await agent.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        with pytest.raises(RuntimeError, match="started"):
            await tasks.start(agent.run)


@pytest.mark.parametrize("mode", ["blocking", "compat", "reliable"])
async def test_three_connections_at_most(
    redis_url: str, redis: Redis, console: Console, project: str, mode: Any
) -> None:
    """In every mode, after a command and a record."""
    name = f"n-{os.getpid()}"
    async with ProjectAgent(
        project, redis=redis_url, instance=name, mode=mode
    ) as agent:
        await agent.ready(5)
        assert (await console.call(project, "ping")).succeeded
        agent.log.info("x")
        await agent.flush()
        mine = [one for one in await redis.client_list() if name in one["name"]]
        assert 1 <= len(mine) <= 3


async def test_few_requests_when_idle(project: str, own_server: DevServer) -> None:
    """An idle agent sends at most one request a second."""
    async with (
        Redis.from_url(own_server.url, protocol=2) as redis,
        ProjectAgent(project, redis=own_server.url) as agent,
    ):
        await agent.ready(5)
        counts: list[int] = []
        for _ in range(
            3
        ):  # of what belongs to the start, or makes up for a busy machine
            before = (await redis.info("stats"))["total_commands_processed"]
            await anyio.sleep(3)  # the measured idle time
            after = (await redis.info("stats"))["total_commands_processed"]
            counts.append(after - before - 1)
            if counts[-1] <= 3:
                break
    assert min(counts) <= 3


SERVICE = """
import sys, anyio
from bls_agent import ProjectAgent
agent = ProjectAgent(sys.argv[1], redis=sys.argv[2], shutdown_timeout=5)

@agent.command
async def slow():
    print("started", flush=True)
    await anyio.sleep(float(sys.argv[3]))
    print("done", flush=True)

anyio.run(agent.run)
print("returned", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
async def test_a_signal_drains(
    redis_url: str, redis: Redis, console: Console, project: str, number: int
) -> None:
    """SIGTERM and SIGINT let the running handler end, write 离线 and return."""
    with Program("-c", SERVICE, project, redis_url, "0.3") as service:
        await console.send(project, "slow", create=True)
        assert service.line() == "started"
        service.send_signal(number)
        code, out, err = service.end(10)
    assert (code, out) == (0, "done\nreturned\n")
    assert len(err.splitlines()) == 3, "where Redis is, that the status stands, the end"
    assert await status_of(redis, project) == "离线"
    assert (await records(redis, project))[-1]["metadata"]["outcome"] == "succeeded"


TWO_SERVICES = """
import signal, sys, anyio
from bls_agent import ProjectAgent

def own(number, frame):
    pass

async def main():
    signal.signal(signal.SIGTERM, own)
    names = [f"{sys.argv[1]}-{name}" for name in "甲乙"]
    agents = [ProjectAgent(name, redis=sys.argv[2]) for name in names]
    async with anyio.create_task_group() as tasks:
        for agent in agents:
            await tasks.start(agent.run)
        print("started", flush=True)
    print(signal.getsignal(signal.SIGTERM) is own, flush=True)

anyio.run(main)
"""


async def test_a_signal_ends_all_agents_of_a_loop(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Afterwards the program has its own handler again."""
    with Program("-c", TWO_SERVICES, project, redis_url) as service:
        assert service.line() == "started"
        service.send_signal(signal.SIGTERM)
        code, out, _ = service.end(10)
    assert (code, out) == (0, "True\n")
    for name in "甲乙":
        assert await status_of(redis, f"{project}-{name}") == "离线"


async def test_a_signal_ends_an_agent_whose_neighbour_has_ended(
    redis_url: str, project: str
) -> None:
    """The neighbour was the first that asked for signals."""
    first, second = (ProjectAgent(f"{project}-{n}", redis=redis_url) for n in "甲乙")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(first.run)
            await tasks.start(second.run)
            await first.aclose()
            os.kill(os.getpid(), signal.SIGTERM)
    assert not second.stats().open


async def test_a_second_signal_hurries(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """A second SIGTERM cuts the handler's time short; the last word is still written."""
    with Program("-c", SERVICE, project, redis_url, "60") as service:
        await console.send(project, "slow", create=True)
        assert service.line() == "started"
        began = time.perf_counter()
        service.send_signal(signal.SIGTERM)
        await anyio.sleep(0.3)  # between the two signals of an impatient operator
        service.send_signal(signal.SIGTERM)
        assert service.end(10).code == 0
    assert time.perf_counter() - began < 5
    assert await status_of(redis, project) == "离线"
    assert (await records(redis, project))[-1]["metadata"]["outcome"] == "cancelled"


async def test_a_second_signal_hurries_what_cannot_be_put_back(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Redis refuses to take the waiting commands back, so they were started."""
    url = await url_with_rights(admin, own_server, "+@all", "-lpush", "~*", "&*")
    await admin.rpush(f"{project}_控制", *[b'{"command":"slow"}'] * 2)
    hurry = {"BLS_PREFETCH": "2", "BLS_MODE": "blocking"}
    with Program("-c", SERVICE, project, url, "1", env=hurry) as service:
        assert service.line() == "started"
        service.send_signal(signal.SIGTERM)
        assert service.line() == "done"
        assert service.line() == "started"
        service.send_signal(signal.SIGTERM)
        code, out, _ = service.end(10)
    assert (code, out) == (0, "returned\n")
    found = [r["metadata"].get("outcome") for r in await records(admin, project)]
    assert [one for one in found if one] == ["succeeded", "cancelled"]


async def test_the_environment_is_read_at_opening(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLS_* counts when the agent opens; a keyword beats it; nonsense is refused."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    agent = ProjectAgent(project, status_ttl=90)
    monkeypatch.setenv("BLS_STATUS_TTL", "30")
    monkeypatch.setenv("BLS_INSTANCE", "从环境来")
    async with agent:
        await agent.ready(5)
        assert agent.stats().instance == "从环境来"
    monkeypatch.setenv("BLS_CONCURRENCY", "many")
    with pytest.raises(ConfigurationError, match="BLS_CONCURRENCY"):
        async with ProjectAgent(project):
            pass


async def test_the_host_s_log_tells_nothing_of_a_good_life(
    redis_url: str, console: Console, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A life without trouble leaves no warning in the host's log."""
    caplog.set_level(logging.WARNING)
    async with ProjectAgent(project, redis=redis_url):
        await console.call(project, "ping")
    assert not [r for r in caplog.records if r.name.startswith("bls_agent")]


async def test_repr_is_a_diagnostic(project: str) -> None:
    """repr tells state and trouble, and never a password."""
    agent = ProjectAgent(project, redis="redis://user:geheim@127.0.0.1:1/0")
    assert repr(agent) == (
        f"<ProjectAgent {project!r} closed, 在线, 0 running, 0 queued, 0 dropped>"
    )


async def test_a_handler_that_resists_cancellation(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Closing does not wait for it longer than promised, and says 离线."""
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=0.2)
    started = anyio.Event()
    release = anyio.Event()

    @agent.command
    async def stubborn() -> None:
        started.set()
        with anyio.CancelScope(shield=True):
            await release.wait()

    async with agent:
        await console.send(project, "stubborn", create=True)
        await started.wait()
        began = time.perf_counter()
    assert time.perf_counter() - began < 4
    assert await status_of(redis, project) == "离线"
    release.set()


async def test_two_closers_and_a_reopening(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Whoever closes the old life does not take the new one away."""
    agent = ProjectAgent(project, redis=redis_url)
    await agent.__aenter__()

    async def close_and_open() -> None:
        await agent.aclose()
        await agent.__aenter__()

    await asyncio.gather(close_and_open(), agent.aclose(), return_exceptions=True)
    assert agent.stats().open
    assert (await console.call(project, "ping")).succeeded
    await agent.aclose()
    assert await status_of(redis, project) == "离线"


async def test_a_cancelled_close_and_a_reopening(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """The next life begins when the one before is over: no record twice."""
    agent = ProjectAgent(project, redis=redis_url)
    for _ in range(10):
        await agent.__aenter__()
        for n in range(50):
            agent.log.info("x", n=n)
        closing = asyncio.create_task(agent.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
    async with agent:
        assert (await console.call(project, "ping")).succeeded
        assert await status_of(redis, project) == "在线"
        await agent.flush()
    found = [r["metadata"].get("n") for r in await records(redis, project)]
    assert found[:-1] == [*range(50)] * 10


async def test_cancelled_twice_it_still_says_farewell(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A host that is cancelled again while it closes leaves 离线 all the same."""

    def serve() -> None:
        async def main() -> None:
            agent = ProjectAgent(project, redis=redis_url)
            task = asyncio.create_task(agent.run(handle_signals=False))
            await asyncio.sleep(0.1)  # it is online by then
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(main())

    await anyio.to_thread.run_sync(serve)
    assert await status_of(redis, project) == "离线"


async def test_a_hung_thread_does_not_deafen_the_next_life(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """A plain handler that outlives its event loop takes no slot of the next one."""
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=0)
    release = threading.Event()
    started = threading.Event()

    @agent.command(timeout=0.05)
    def hang() -> None:
        started.set()
        release.wait(10)

    def serve() -> None:
        async def main() -> None:
            async with agent:
                await anyio.to_thread.run_sync(started.wait)
                await asyncio.sleep(0.1)  # its time is over

        asyncio.run(main())

    await console.send(project, "hang", create=True)
    await anyio.to_thread.run_sync(serve)
    release.set()
    async with agent:
        assert (await console.call(project, "ping")).succeeded


async def test_flush_does_not_take_later_drops_for_its_own(project: str) -> None:
    """Records of before still wait: flush does not say complete."""
    agent = ProjectAgent(
        project, redis="redis://127.0.0.1:1/0", log_buffer=60, shutdown_timeout=0
    )
    async with agent:
        for _ in range(50):
            agent.log.error("waits")

        async def flood() -> None:
            for _ in range(500):
                agent.log.debug("dropped")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            assert not await agent.flush(0.3)


@pytest.mark.parametrize("cycles", range(8))
async def test_everything_cancelled_while_it_opens(
    redis_url: str, project: str, cycles: int
) -> None:
    """Also in the very cycle in which its loops begin: nobody complains, it is closed."""
    agent = ProjectAgent(project, redis=redis_url)
    mine = asyncio.all_tasks()
    opening = asyncio.create_task(agent.__aenter__())
    for _ in range(cycles):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - mine:
        task.cancel()
    await asyncio.wait([opening])
    await agent.aclose()
    gc.collect()
    await eventually(lambda: asyncio.all_tasks() == mine)
    async with agent:
        await agent.ready(5)
