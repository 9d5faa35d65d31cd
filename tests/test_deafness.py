"""A waiting connection that has gone deaf is noticed and replaced, whatever it says."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import anyio.abc
import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.devserver import DevServer
from bls_agent.project.receive import blocking
from tests.harness import (
    PASSWORD,
    History,
    eventually,
    parked,
    status_of,
    url_with_rights,
)
from tests.kit import Delay, Direction, FaultProxy, Rate

BLOCK, MARGIN = 1, 0.5  # seconds, shorter than in life
NOTICED = BLOCK + 3  # seconds after the cut
SPARE = 15  # seconds more on a busy machine


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[DevServer, Redis, FaultProxy]]:
    """A server, an administrator with a connection of its own, and a link."""
    with DevServer() as server:
        client = Redis.from_url(server.url, protocol=2)
        async with client as admin, FaultProxy(server.url, seed=1) as link:
            yield server, admin, link


async def half_open(project: str, ways: tuple[Direction, ...], prefetch: int) -> None:
    """All connections deaf at once during BLPOP, liveness, too: a new one in time."""
    async with linked() as (_, admin, link):
        agent = ProjectAgent(
            project,
            redis=f"redis://127.0.0.1:{link.port}/0",
            prefetch=prefetch,
            redis_timeout=1,
        )
        history = History()
        history.attach(agent)
        async with agent:
            await agent.ready(5)
            await eventually(lambda: parked(admin))
            made = link.accepted
            link.deafen(*ways)
            for _ in range(3 * prefetch):
                await history.push(admin, project)
            await eventually(
                lambda: history.pushed[-1] in history.handled, NOTICED + SPARE
            )
            assert 1 <= link.accepted - made <= 4, "one new connection each, about"
            await history.push(admin, project)
            await eventually(lambda: history.pushed[-1] in history.handled, SPARE)
        lost = set(history.pushed) - set(history.handled)
        assert len(lost) <= prefetch
        assert len(history.handled) == len(set(history.handled))
        assert await status_of(admin, project) == "离线"


async def refused(project: str) -> None:
    """A refusal of UNBLOCK is an answer of a living server, too."""
    async with linked() as (server, admin, link):
        await url_with_rights(admin, server, "~*", "+@all", "-client", "-ping")
        agent = ProjectAgent(
            project,
            redis=f"redis://agent:{PASSWORD}@127.0.0.1:{link.port}/0",
            redis_timeout=1,
        )
        history = History()
        history.attach(agent)
        async with agent:
            await agent.ready(5)
            await eventually(lambda: parked(admin))
            link.deafen(Direction.REPLIES)
            for _ in range(3):
                await history.push(admin, project)
            await eventually(
                lambda: history.pushed[-1] in history.handled, NOTICED + SPARE
            )
        assert len(set(history.pushed) - set(history.handled)) <= 1


async def slow_link(project: str, delay: float) -> None:
    """A slow link is not a dead one: no connection is made anew, nothing is lost.

    Args:
        project: Its name.
        delay: Seconds in each direction.
    """
    async with linked() as (_, admin, link):
        slow = link.start(Delay(delay))
        agent = ProjectAgent(
            project,
            redis=f"redis://127.0.0.1:{link.port}/0",
            status_interval=5,
            status_ttl=30,
        )
        history = History()
        history.attach(agent)
        async with agent:
            await agent.ready(10)
            await eventually(lambda: agent.stats().connections["blocking"])
            await history.push(admin, project)
            await eventually(lambda: history.handled == history.pushed, SPARE)
            await anyio.sleep(BLOCK + 1 + 3 * delay)  # a block without a command
            assert await status_of(admin, project) == "在线"
            assert link.accepted == len(agent.stats().connections)
            await link.end(slow)  # so that the end is quick
        await history.check(admin, project)


async def frozen(project: str) -> None:
    """No answer from anybody: the read stays parked, few connections are tried."""
    async with linked() as (server, admin, link):
        agent = ProjectAgent(project, redis=f"redis://127.0.0.1:{link.port}/0")
        history = History()
        history.attach(agent)
        async with agent:
            await agent.ready(5)
            await eventually(lambda: parked(admin))
            made = link.accepted
            await history.push(admin, project)
            await eventually(lambda: history.handled == [0])
            server.freeze()
            await anyio.sleep(NOTICED)
            assert link.accepted - made <= 4, "and not one each moment"
            server.thaw()
            await history.push(admin, project)
            await eventually(lambda: history.handled == history.pushed, SPARE)
        await history.check(admin, project)


WAYS = ((Direction.REQUESTS,), (Direction.REPLIES,), tuple(Direction))


async def test_each_way_to_be_deaf(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at the same time, because each of them takes its seconds."""
    monkeypatch.setattr(blocking, "BLOCK", BLOCK)
    monkeypatch.setattr(blocking, "MARGIN", MARGIN)
    failed: dict[str, str] = {}

    async def note(name: str, scenario: Awaitable[None]) -> None:
        try:
            await scenario
        except Exception as error:
            failed[name] = "".join(traceback.format_exception(error))

    async with anyio.create_task_group() as tasks:
        for ways in WAYS:
            for prefetch in (1, 4):
                name = f"half open: {ways}, prefetch {prefetch}"
                tasks.start_soon(note, name, half_open(project, ways, prefetch))
        tasks.start_soon(note, "refused", refused(project))
        tasks.start_soon(note, "slow link", slow_link(project, 0.3))
        tasks.start_soon(note, "frozen", frozen(project))
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())


async def stop_on_a_deaf_connection(
    project: str, mode: Literal["blocking", "reliable"]
) -> None:
    """The read that is parked is deaf, everybody else hears: the stop does not wait."""
    async with linked() as (_, admin, link):
        url = f"redis://127.0.0.1:{link.port}/0"
        agent = ProjectAgent(project, redis=url, mode=mode)
        async with agent:
            await agent.ready(5)
            await eventually(lambda: parked(admin))
            clients = [c for c in await admin.client_list() if ":" in c["name"]]
            clients.sort(key=lambda client: int(client["id"]))
            waiting = {
                number
                for number, client in enumerate(clients, start=1)
                if client["name"].endswith(":blocking")
            }
            assert waiting
            link.deafen(Direction.REPLIES, numbers=waiting)
            await admin.config_resetstat()
            began = anyio.current_time()
        assert anyio.current_time() - began < 6
        calls = await admin.info("commandstats")
        # Before Redis 7 all of CLIENT is one command.
        counted = {"cmdstat_client|unblock", "cmdstat_client"} & calls.keys()
        assert [calls[name]["calls"] < 10 for name in counted] == [True]
        assert await status_of(admin, project) == "离线"


async def test_a_deaf_connection_does_not_hold_the_stop(project: str) -> None:
    """It is released once or twice, and given up after a grace."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_a_deaf_connection, project, "blocking")
        tasks.start_soon(stop_on_a_deaf_connection, f"{project}2", "reliable")


async def test_a_large_command_over_a_narrow_link(
    own_server: DevServer, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its reply trickles in, the link is not given up for being late."""
    for name in ("BLOCK", "MARGIN"):
        monkeypatch.setattr(blocking, name, 0.2)
    heard: list[int] = []
    async with FaultProxy(own_server.url, seed=1) as proxy:
        agent = ProjectAgent(project, redis=proxy.url, mode="blocking")

        @agent.command
        async def load(text: str) -> None:
            heard.append(len(text))

        async with agent, Console(own_server.url) as console:
            await agent.ready(5)
            async with proxy.during(Rate(40_000)):
                args = {"text": "x" * 100_000}
                await console.send(project, "load", args, size_limit=200_000)
                await eventually(lambda: heard == [100_000], 15)
