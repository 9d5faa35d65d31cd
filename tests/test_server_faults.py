"""States in which a server answers and does not serve: said once, paced, over by itself."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import anyio
import anyio.to_thread
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from bls_agent import Console, ProjectAgent, RedisUnavailableError, Status
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.endpoint import Endpoint, Request
from bls_agent.devserver import DevServer
from bls_agent.project.status.writer import StatusWriter
from tests.harness import (
    PASSWORD,
    History,
    cut_connections,
    eventually,
    execute,
    records,
    status_of,
    url_with_rights,
)
from tests.kit import HurtableServer

PAYLOAD = "内容-nobody-may-see-this"
WINDOW = 2.0  # seconds that a fault lasts
TRIES = 5  # of one command, a second


@dataclass
class Scene:
    """One server, what is wrong with it, and what an agent made of it."""

    name: str
    server: HurtableServer
    admin: Redis
    project: str

    async def config(self, *words: object) -> None:
        await execute(self.admin, "CONFIG", "SET", *words)

    async def tries(self) -> Counter[str]:
        """How often each command was tried, refused or not."""
        used = await self.admin.info("commandstats")
        return Counter(
            {
                name.removeprefix("cmdstat_"): stats["calls"]
                + stats.get("rejected_calls", 0)
                for name, stats in used.items()
            }
        )


Fault = Callable[[Scene], AsyncIterator[None]]
CUT = "connection "  # cut on purpose, so that the agent has to connect anew
FAULTS: dict[str, tuple[list[str], Fault]] = {}


def fault(kinds: str) -> Callable[[Fault], Fault]:
    """Note a fault: it lasts while its generator is suspended.

    Args:
        kinds: The causes that are said, in order.
    """

    def note(function: Fault) -> Fault:
        FAULTS[function.__name__] = (kinds.split(), function)
        return function

    return note


def injure(name: str) -> Fault:
    """Make a fault of an injury of the server, which blocks for a moment."""

    async def hurt(scene: Scene) -> AsyncIterator[None]:
        injury = getattr(scene.server, name)()
        await anyio.to_thread.run_sync(injury.__enter__)
        if name == "crowded":
            await cut_connections(scene.admin)
        yield
        await anyio.to_thread.run_sync(injury.__exit__, None, None, None)

    return hurt


FAULTS |= {
    "full": (["out_of_memory"], injure("full")),
    "without_disk": (["disk"], injure("without_disk")),
    "demoted": (["role_changed|read_only"], injure("demoted")),
    "without_replicas": (["no_replicas"], injure("without_replicas")),
    "crowded": ([*CUT.split(), "max_clients"], injure("crowded")),
}


@fault("busy")
async def busy(scene: Scene) -> AsyncIterator[None]:
    """A script that does not end, on a connection of its own."""
    await scene.config("lua-time-limit", 50)
    async with Redis.from_url(scene.server.url, protocol=2) as other:

        async def loop() -> None:
            with suppress(RedisError):
                await execute(other, "EVAL", "while true do end", 0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(loop)
            yield
            await execute(scene.admin, "SCRIPT", "KILL")


@fault(CUT + "auth")
async def password_set(scene: Scene) -> AsyncIterator[None]:
    """A password where there was none: NOAUTH."""
    await scene.config("requirepass", PASSWORD)
    await execute(scene.admin, "AUTH", PASSWORD)
    await cut_connections(scene.admin)
    yield
    await scene.config("requirepass", "")


@fault(CUT + "auth")
async def password_rotated(scene: Scene) -> AsyncIterator[None]:
    """Another password than the one that the agent has: WRONGPASS."""
    await execute(scene.admin, "ACL", "SETUSER", "agent", "resetpass", ">another")
    await cut_connections(scene.admin)
    yield
    await execute(scene.admin, "ACL", "SETUSER", "agent", f">{PASSWORD}")


@fault("no_permission")
async def right_taken_away(scene: Scene) -> AsyncIterator[None]:
    await execute(scene.admin, "ACL", "SETUSER", "agent", "-blpop")
    yield
    await execute(scene.admin, "ACL", "SETUSER", "agent", "+blpop")


@fault("timeout")
async def paused(scene: Scene) -> AsyncIterator[None]:
    await execute(scene.admin, "CLIENT", "PAUSE", int(WINDOW * 1000))
    yield


@fault("connection")
async def output_buffer(scene: Scene) -> AsyncIterator[None]:
    """A reply that is larger than a client may have: the server hangs up."""
    await scene.config("client-output-buffer-limit", "normal 1 0 0")
    await scene.admin.rpush(f"{scene.project}_控制", PAYLOAD * 5_000)
    yield
    await scene.config("client-output-buffer-limit", "normal 0 0 0")


def said_at(scene: Scene, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the host was told about this server, warnings and worse."""
    texts = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    return [text for text in texts if f":{scene.server.port}/" in text]


async def suffer(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Let an agent meet a fault in the middle of its work, and see it end."""
    kinds, fault = FAULTS[scene.name]
    url = await url_with_rights(scene.admin, scene.server, "~*", "+@all")
    if scene.name == "password_set":
        url = scene.server.url
    agent = ProjectAgent(
        scene.project,
        redis=url,
        mode="blocking",
        status_interval=1,
        redis_timeout=0.7,
    )
    history = History()
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        await history.push(scene.admin, scene.project)
        await eventually(lambda: history.handled == [0])
        agent.log.info("before")
        assert await agent.flush(5)
        before = await scene.tries()
        async with asynccontextmanager(fault)(scene):
            agent.log.info("during", text=PAYLOAD)
            agent.set_status(Status.ERROR)
            await eventually(lambda: len(said_at(scene, caplog)) >= len(kinds))
            await anyio.sleep(WINDOW)
        tried = await scene.tries() - before
        for command in ("set", "rpush", "blpop"):
            assert tried[command] < TRIES * (WINDOW + 1), (command, tried)
        for command in ("auth", "client|id"):  # each of three connections, anew
            assert tried[command] < 3 * TRIES * WINDOW, (command, tried)
        said = said_at(scene, caplog)
        for text, kind in zip(said, kinds, strict=True):
            assert re.search(rf"\(({kind})\)", text)
        for secret in (PASSWORD, PAYLOAD, "another"):
            assert secret not in str(said)
        await history.push(scene.admin, scene.project)
        await eventually(lambda: history.handled == [0, 1], 4)
        assert await agent.flush(4)
        await eventually(lambda: shows(scene, "报错"), 4)
        assert said_at(scene, caplog) == said
        assert not agent.stats().faults
    found = [r["message"] for r in await records(scene.admin, scene.project)]
    assert found.count("during") == 1
    assert await status_of(scene.admin, scene.project) == "离线"


async def shows(scene: Scene, status: str) -> bool:
    return await status_of(scene.admin, scene.project) == status


async def test_each_fault_of_a_server(
    project: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The right class, one message without secrets, few tries, over by itself."""
    monkeypatch.setattr("bls_agent.core.backoff.PERMANENT_DELAY", (0.3, 0.5))
    failed: dict[str, str] = {}

    async def try_one(name: str) -> None:
        with HurtableServer() as server:
            async with Redis.from_url(server.url, protocol=2) as admin:
                scene = Scene(name, server, admin, project)
                try:
                    await suffer(scene, caplog)
                except Exception as error:
                    failed[name] = f"{error!r} {said_at(scene, caplog)}"

    async with anyio.create_task_group() as tasks:
        for name in FAULTS:
            tasks.start_soon(try_one, name)
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())


WRONG: dict[str, tuple[object, ...]] = {
    "string": ("SET", "somebody's data"),
    "list": ("RPUSH", "somebody's data"),
    "set": ("SADD", "somebody's data"),
    "zset": ("ZADD", 1, "somebody's data"),
    "hash": ("HSET", "whose", "somebody's data"),
    "stream": ("XADD", "*", "whose", "somebody's data"),
}


async def test_each_key_of_each_wrong_type(
    own_server: DevServer,
    admin: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is left alone and said once; what the other keys are for goes on; it heals."""
    monkeypatch.setattr("bls_agent.core.backoff.PERMANENT_DELAY", (0.3, 0.5))
    right = {"项目状态": "string", "项目控制台": "list", "控制": "list"}
    pairs = [p for p in product(right, WRONG) if right[p[0]] != p[1]]

    async def meet(suffix: str, kind: str) -> None:
        name = f"{project}{kind}{suffix[-1]}"
        key = f"{name}_{suffix}"
        command, *words = WRONG[kind]
        await execute(admin, command, key, *words)
        before = await admin.dump(key)
        history = History()
        agent = ProjectAgent(name, redis=own_server.url)
        history.attach(agent)
        async with agent:
            agent.log.info("here")
            if suffix != "控制":
                await history.push(admin, name)
                await eventually(lambda: history.handled == [0])
            if suffix != "项目状态":
                await agent.ready(5)
            if suffix != "项目控制台":
                assert await agent.flush(5)
            await eventually(
                lambda: len([r for r in caplog.records if key in r.getMessage()]) == 1
            )
            assert await admin.dump(key) == before
            await admin.delete(key)
            await history.push(admin, name)
            await eventually(lambda: history.handled == history.pushed, 3)
            await agent.ready(3)
            await eventually(lambda: not agent.stats().logs_queued, 3)
        told = [r for r in caplog.records if key in r.getMessage()]
        assert len(told) == 1
        assert "somebody" not in told[0].getMessage()
        assert await status_of(admin, name) == "离线"

    for suffix in right:
        async with anyio.create_task_group() as agents:
            for other, kind in pairs:
                if other == suffix:  # not all at once, for the sake of the machine
                    agents.start_soon(meet, suffix, kind)


async def test_out_of_memory_with_commands_under_way(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Commands run, the status stays, what does not fit is dropped and counted."""
    agent = ProjectAgent(
        project,
        redis=own_server.url,
        status_interval=0.3,
        status_ttl=1,
        log_buffer=20,
        mode="blocking",
    )
    history = History()
    history.attach(agent)
    release = anyio.Event()

    @agent.command
    async def hold() -> None:
        await release.wait()

    async with agent:
        await agent.ready(5)
        await admin.rpush(f"{project}_控制", b'{"command":"hold"}')
        await eventually(lambda: agent.stats().commands_running == 1)
        for _ in range(5):
            await history.push(admin, project)
        await admin.config_set("maxmemory", 1)
        release.set()
        for number in range(100):
            agent.log.info("during", n=number)
        await eventually(lambda: history.handled == history.pushed)
        async with watching(admin, project) as seen:
            await anyio.sleep(1.6)
        assert seen == {"在线"}
        stats = agent.stats()
        dropped = sum(stats.logs_dropped.values())
        assert dropped >= 80
        total = stats.logs_delivered + dropped + stats.logs_queued
        assert stats.logs_accepted == total
        await admin.config_set("maxmemory", 0)
        assert await agent.flush(4)
        agent.log.info("after")  # with it comes what was dropped before
        assert await agent.flush(4)
    told = [r["metadata"] for r in await records(admin, project) if "metadata" in r]
    assert sum(sum(m["dropped"].values()) for m in told if "dropped" in m) == dropped
    assert await status_of(admin, project) == "离线"
    assert await admin.ttl(f"{project}_项目状态") == -1


@pytest.mark.parametrize("refusal", ["out_of_memory", "no_permission"])
async def test_a_refresh_of_two_steps_does_not_follow_the_last_word(
    own_server: DevServer, admin: Redis, project: str, refusal: str
) -> None:
    """The end comes between SET and EXPIRE, or between the guarded SET and the plain."""
    connections = AgentConnections(
        Endpoint.of(own_server.url), "test", timeout=2, reconnect_max=1
    )
    writer = StatusWriter(connections, f"{project}_项目状态", ttl=3)
    await writer.write(Status.OFFLINE)
    send = connections.liveness.call_many
    interrupted = False
    ended = anyio.Event()

    async def end() -> None:
        await writer.write_final(Status.OFFLINE)
        ended.set()

    async with anyio.create_task_group() as tasks:

        async def call_many(requests: Sequence[Request]) -> list[Any]:
            nonlocal interrupted
            if requests[0][0] == "SET" and not interrupted:
                interrupted = True
                tasks.start_soon(end)
                with anyio.move_on_after(0.3):  # it has to wait for this refresh
                    await ended.wait()
                return [RedisUnavailableError(refusal, "refused")]
            return await send(requests)

        connections.liveness.call_many = call_many  # type: ignore[method-assign]
        with suppress(RedisUnavailableError):
            await writer.write(Status.OFFLINE)
    await writer.write(Status.ONLINE)  # late, and therefore nothing
    await connections.aclose()
    assert interrupted
    assert await status_of(admin, project) == "离线"
    assert await admin.ttl(f"{project}_项目状态") == -1


@asynccontextmanager
async def watching(admin: Redis, project: str) -> AsyncIterator[set[str | None]]:
    """Look at the status every few milliseconds while the block runs."""
    seen: set[str | None] = set()

    async def look() -> None:
        while True:
            seen.add(await status_of(admin, project))
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        yield seen
        tasks.cancel_scope.cancel()


async def test_a_command_that_is_longer_than_the_server_takes(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """proto-max-bulk-len: an error without the payload, and the next command goes."""
    await admin.config_set("proto-max-bulk-len", 1024 * 1024)
    async with Console(own_server.url) as console:
        args = {"text": PAYLOAD * 100_000}
        with pytest.raises(RedisUnavailableError) as caught:
            await console.send(project, "fill", args, create=True, size_limit=2**30)
        assert caught.value.kind in ("protocol", "connection")
        assert PAYLOAD not in str(caught.value)
        await console.send(project, "fill", create=True)
    assert await admin.llen(f"{project}_控制") == 1


async def test_a_command_that_the_server_does_not_know(
    project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis quotes the arguments in its answer; no log of the host shows them."""
    with DevServer(options=("--rename-command", "RPUSH", "")) as server:
        agent = ProjectAgent(project, redis=server.url)
        async with agent:
            await agent.ready(5)
            agent.log.info("here", text=PAYLOAD)
            await eventually(lambda: "(unknown_command)" in caplog.text)
    assert PAYLOAD not in caplog.text
    assert "with args" not in caplog.text
    assert len(caplog.records) == 1


async def test_loading(project: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that still reads its file: said once, few tries, then all is well."""
    with DevServer(append_only=True) as server:
        async with Redis.from_url(server.url, protocol=2) as admin:
            pipeline: Any = admin.pipeline(transaction=False)
            for number in range(6_000):
                pipeline.set(f"filler:{number}", "x")
            await pipeline.execute()
        slow = DevServer(
            append_only=True,
            port=server.port,
            options=("--dir", str(server.folder), "--key-load-delay", "400"),
        )
        server.kill()
        agent = ProjectAgent(project, redis=server.url)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, slow.start)
            try:
                await eventually(lambda: is_loading(server.url))
                async with agent:
                    await eventually(lambda: bool(caplog.records))
                    await agent.ready(8)
                    assert agent.stats().status_failures < 15
            finally:
                await anyio.to_thread.run_sync(slow.stop)
    (said,) = [r.getMessage() for r in caplog.records]
    assert "(loading)" in said


async def is_loading(url: str) -> bool:
    once = Retry(NoBackoff(), 0)
    async with Redis.from_url(url, protocol=2, retry=once) as client:
        try:
            await client.ping()
        except (RedisError, OSError) as error:
            return "loading" in str(error).lower()
    return False
