"""Redis behind Sentinel: whoever the master is, every mode keeps its promises."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import pytest
from anyio import to_thread
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from bls_agent import Console, NoOutcomeError, ProjectAgent, RedisRefusedError, Status
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.orphans import OrphanedConnection
from bls_agent.connection.route import Route
from bls_agent.connection.topology import Routes
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.fleet import Fleet
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    Heartbeat,
    WorkerRegistry,
)
from tests.engines import (
    DOWN_AFTER,
    LOOPBACK,
    OneSentinel,
    SentinelTopology,
    ask,
    until,
)
from tests.harness import eventually
from tests.load import MODES, check_end, under_load

OUTAGE = DOWN_AFTER + 3.0 + 45.0  # seconds; the last of them for a slow machine


@pytest.fixture(scope="module")
async def topology() -> AsyncIterator[SentinelTopology]:
    """A topology that its tests leave in good health."""
    async with SentinelTopology() as opened:
        yield opened


@pytest.fixture
async def own_topology() -> AsyncIterator[SentinelTopology]:
    """A topology of this test alone."""
    async with SentinelTopology() as opened:
        yield opened


def record_outage(
    load: Any, since: float, record_property: Callable[..., None]
) -> None:
    """Print how long no command was handled, by mode."""
    for subject in load.subjects:
        silence = subject.longest_silence(since)
        print(f"{subject.mode}: {silence:.2f} s")  # noqa: T201 - a figure to be read
        record_property(f"outage_{subject.mode}", round(silence, 2))


async def test_a_doctor_examines_the_master(
    topology: SentinelTopology, project: str
) -> None:
    """By the sentinels' URL: neither a sentinel nor a replica."""
    async with ProjectAgent(project, redis=topology.url) as agent:
        await agent.ready(10)
        report = await examine(topology.url, project=project)
    assert report.seen >= 1
    assert "read-only" not in {group.rule for group in report.groups}


async def test_an_agent_and_a_console_find_the_master(
    topology: SentinelTopology, project: str
) -> None:
    """Status, log, commands and the console, by URL and by a borrowed client."""
    make_sentinel: Callable[..., Any] = Sentinel
    sentinels = make_sentinel([(LOOPBACK, s.port) for s in topology.sentinels])
    client = sentinels.master_for(topology.service)
    for number, where in enumerate((topology.url, client)):
        name = f"{project}-{number}"
        agent = ProjectAgent(name, redis=where)
        async with agent, Console(where) as console:
            await agent.ready(10)
            assert (await console.call(name, "ping")).succeeded
            assert await console.status(name) is Status.ONLINE
            assert (await console.projects())[name] is Status.ONLINE
            agent.log.info("hier")
            await agent.flush()
            entries = await console.logs(name)
            assert "hier" in [entry.message for entry in entries]
            assert len(agent.stats().connections) == 3
            async with Fleet(where) as fleet:
                assert (await fleet.look())[name].status is Status.ONLINE
        async with Console(where) as console:
            assert await console.status(name) is Status.OFFLINE
    await client.aclose()


async def test_failover_by_command(
    topology: SentinelTopology, project: str, record_property: Callable[..., None]
) -> None:
    """SENTINEL FAILOVER demotes the master while BLPOP waits: all modes follow."""
    async with under_load(topology.url, project) as load:
        await load.alive(time.monotonic(), 10)
        before, began = topology.master, time.monotonic()
        await topology.failover()
        await topology.left(before)
        left = time.monotonic()
        await load.alive(left, OUTAGE)
        record_outage(load, began, record_property)
        await check_end(load, [began, left, *_between(began, left)])


async def test_workers_are_watched_through_a_failover(
    topology: SentinelTopology, project: str
) -> None:
    """Nobody has left because the master is another one; what comes then is told."""
    beat = ExecutionNodeHeartbeat.create(project)
    told: list[str] = []

    async def write(port: int, **fields: int) -> None:
        async with Redis(port=port, protocol=2) as client:
            await client.set(beat.key, beat.changed(**fields).to_json(), ex=60)

    async def watch(registry: WorkerRegistry) -> None:
        async for change in registry.watch(ExecutionNodeHeartbeat, interval=0.05):
            told.append(change.what)  # noqa: PERF401 - it is read meanwhile

    await write(topology.master.port)
    async with (
        WorkerRegistry(topology.url) as registry,
        anyio.create_task_group() as tg,
    ):
        tg.start_soon(watch, registry)
        await eventually(lambda: told == ["joined"])
        master = await topology.failover()
        await write(master.port, active_strategies=3)
        await eventually(lambda: "changed" in told)
        tg.cancel_scope.cancel()
    assert set(told) <= {"joined", "unavailable", "available", "changed"}
    assert told.count("joined") == told.count("changed") == 1


async def test_the_old_master_lives_on_for_a_while(
    topology: SentinelTopology, project: str
) -> None:
    """After SENTINEL FAILOVER it says nothing for 8 s: the sentinels are asked.

    By the agent and by the console: what is sent to the old master is lost.
    """
    agent = ProjectAgent(project, redis=topology.url)
    async with agent, Console(topology.url) as console:
        await agent.ready(10)
        assert (await console.call(project, "ping")).succeeded
        master = await topology.failover()
        with anyio.fail_after(6):
            async with Redis.from_url(master.url, protocol=2) as client:
                await client.rpush(f"{project}_控制", b'{"command":"ping"}')
                await eventually(lambda: agent.stats().outcomes == {"succeeded": 2})
            called = False
            while not called:
                with suppress(NoOutcomeError, RedisUnavailableError):
                    outcome = await console.call(project, "ping", timeout=1)
                    called = outcome.succeeded


def _between(began: float, ended: float) -> list[float]:
    """Moments close enough to each other to excuse what fell between two."""
    count = int((ended - began) / 0.2) + 1
    return [began + number * 0.2 for number in range(count)]


async def test_a_heartbeat_follows_the_master(topology: SentinelTopology) -> None:
    """After SENTINEL FAILOVER it is kept alive on the new one, by the same owner."""
    said = BacktestWorkerHeartbeat.create(worker_id="回测-1")
    async with Heartbeat(said, redis=topology.url, ttl=3) as beat:
        assert beat.owned
        master = await topology.failover()
        async with Redis.from_url(master.url, protocol=2) as client:

            async def kept() -> bool:
                return await client.pttl(said.key) > 2_500 and beat.owned

            writes = beat.stats().writes
            await eventually(lambda: beat.stats().writes > writes + 2, 15.0)
            await eventually(kept, 15.0)
            assert beat.stats().losses == 0
            await beat.aclose()
            assert await client.exists(said.key) == 0


async def test_the_master_is_killed(
    own_topology: SentinelTopology, project: str, record_property: Callable[..., None]
) -> None:
    """kill -9 of the master, and its return as one that believes it still is one."""
    async with under_load(own_topology.url, project) as load:
        await load.alive(time.monotonic(), 10)
        before = own_topology.master
        killed = time.monotonic()
        await to_thread.run_sync(before.kill)
        await own_topology.switched(before)
        switched = time.monotonic()
        await load.alive(switched, OUTAGE)
        await to_thread.run_sync(before.restart)
        back = time.monotonic()
        await load.alive(back, OUTAGE)
        record_outage(load, killed, record_property)
        await check_end(load, [killed])
        assert own_topology.master is not before


async def test_the_master_hangs(
    own_topology: SentinelTopology, project: str, record_property: Callable[..., None]
) -> None:
    """A frozen master ends no connection; that another one took over is noticed."""
    async with under_load(own_topology.url, project) as load:
        await load.alive(time.monotonic(), 10)
        before = own_topology.master
        frozen = time.monotonic()
        before.freeze()
        try:
            await own_topology.switched(before)
            switched = time.monotonic()
            await load.alive(switched, OUTAGE)
            record_outage(load, frozen, record_property)
            await check_end(load, [frozen])
        finally:
            before.thaw()


async def test_sentinels_go_one_by_one(
    topology: SentinelTopology, project: str
) -> None:
    """One sentinel is enough to begin; without any the agent waits and comes back."""
    first, second, third = topology.sentinels
    first.kill()
    agent = ProjectAgent(project, redis=topology.url)
    try:
        async with agent:
            await agent.ready(10)
            second.kill()
            third.kill()
            ask(topology.master_port, "CLIENT", "KILL", "TYPE", "normal")
            await eventually(lambda: agent.stats().reconnect_failures > 0)
            with pytest.raises(RedisUnavailableError, match="no sentinel answers") as e:
                await Console(topology.url).status(project)
            assert e.value.kind == "no_sentinel"
            assert not isinstance(e.value, RedisRefusedError)
            third.start()
            agent.log.info("zurück")
            assert await agent.flush(10)
    finally:
        first.start()
        second.start()
        await until(lambda: all(ask(s.port, "PING") for s in topology.sentinels))


async def test_a_service_that_nobody_knows(
    topology: SentinelTopology, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong name is refused for good, said once, with the name."""
    url = topology.url.replace(topology.service, "orders")
    with pytest.raises(RedisRefusedError, match="a master named 'orders'") as caught:
        await Console(url).status(project)
    assert caught.value.kind == "no_such_service"
    agent = ProjectAgent(project, redis=url)
    async with agent:
        await eventually(lambda: agent.stats().reconnect_failures > 0)
    assert caplog.text.count("a master named 'orders'; trying again") == 1


async def test_sentinels_name_a_master_that_is_away_or_none(project: str) -> None:
    """An address where nobody listens, and one of a replica: unavailable, tried again."""
    with DevServer() as master, DevServer() as other:
        async with SentinelTopology.alone(master) as alone:
            route = Routes(Endpoint.of(alone.url)).to("")
            connection = Connection(route, "test", timeout=1)
            await connection.open()
            await connection.aclose()
            ask(master.port, "REPLICAOF", LOOPBACK, other.port)
            with pytest.raises(RedisUnavailableError, match="is no master") as caught:
                await connection.open()
            assert (caught.value.kind, caught.value.connecting) == ("not_master", True)
            assert caught.value.address == f"redis://{LOOPBACK}:{master.port}/0"
            master.kill()
            with pytest.raises(RedisUnavailableError) as caught:
                await connection.open()
            assert caught.value.connecting


async def two_sentinels_of(
    server: DevServer, stack: AsyncExitStack, *lines: str
) -> tuple[list[OneSentinel], Route]:
    """Start two sentinels that do not know each other. Return them and their route.

    The first one has these lines of configuration.
    """
    alone = SentinelTopology.alone
    made = (alone(server, *lines), alone(server))
    named = [await stack.enter_async_context(one) for one in made]
    hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in named)
    return named, Routes(Endpoint.of(f"redis+sentinel://{hosts}/main")).to("")


async def test_one_sentinel_is_believed() -> None:
    """An open connection is left if the sentinel that is asked names another master."""
    async with AsyncExitStack() as stack:
        old, new = (stack.enter_context(DevServer()) for _ in range(2))
        named, route = await two_sentinels_of(old, stack)
        server = Endpoint.of(old.url)
        assert (await route.resolve(server)).address == old.url
        named[0].point_to(new)
        assert (await route.resolve(server)).address == new.url
        named[0].kill()
        assert await route.resolve(server) is server
        assert (await route.resolve(server)).address == old.url
        await route.aclose()


async def test_one_sentinel_refuses_and_another_is_away() -> None:
    """Only if all sentinels refuse, a connection waits longer before the next try."""
    async with AsyncExitStack() as stack:
        master = stack.enter_context(DevServer())
        named, route = await two_sentinels_of(master, stack, "requirepass geheim")
        named[1].kill()
        with pytest.raises(RedisUnavailableError, match="Authentication") as caught:
            await route.find()
        assert caught.value.kind == "no_sentinel"
        assert not isinstance(caught.value, RedisRefusedError)


@pytest.mark.parametrize("how", ["hangs", "is dead"])
async def test_what_was_lost_at_a_replaced_master(how: str) -> None:
    """Only what was sent to a server that has ended can no longer be executed."""
    with DevServer() as old, DevServer() as new:
        async with SentinelTopology.alone(old) as alone:
            connections = AgentConnections(
                Endpoint.of(alone.url), "test", timeout=1, reconnect_max=1
            )
            data, server = connections.data, Endpoint.of(old.url)
            zombie = Connection(server, "test", timeout=1)
            await zombie.open()
            data.orphans.add(OrphanedConnection(zombie.client_id, "", server))
            alone.point_to(new)
            (old.freeze if how == "hangs" else old.kill)()
            is_harmless = await connections.kill_orphans(data, kill=True)
            assert is_harmless is (how == "is dead")
            assert not data.orphans
            if how == "hangs":
                old.thaw()
            await zombie.aclose()
            await data.route.aclose()
            await connections.aclose()


async def test_no_connection_stays_at_a_sentinel(project: str) -> None:
    """An agent that asks a sentinel again and again leaves it when the agent closes."""
    with DevServer() as master:
        async with SentinelTopology.alone(master) as alone:

            def is_asked() -> bool:
                return b"name=bls-agent:sentinel" in ask(alone.port, "CLIENT", "LIST")

            async with ProjectAgent(project, redis=alone.url) as agent:
                await agent.ready(10)
                await eventually(is_asked)
                # Kept, because a connection that is garbage closes, too.
                connections = agent._session and agent._session.connections
            assert connections is not None
            await eventually(lambda: not is_asked(), 2)


async def test_a_sentinel_that_stays_behind_is_left() -> None:
    """It names a dead master again and again: a connection follows it once at most."""
    async with AsyncExitStack() as stack:
        old, new = (stack.enter_context(DevServer()) for _ in range(2))
        named, route = await two_sentinels_of(old, stack)
        connection = Connection(route, "test", timeout=1)

        async def follows() -> bool:
            while not connection.connected:
                with suppress(RedisUnavailableError):
                    await connection.open()
            assert connection.server is not None
            return await connection.leave_for(await route.resolve(connection.server))

        assert not await follows()
        named[1].point_to(new)
        old.kill()
        await eventually(lambda: not connection.connected)
        with anyio.fail_after(10):
            assert [await follows() for _ in range(3)] == [True, False, False]
        await connection.aclose()
        await route.aclose()


async def test_sentinels_with_a_password(project: str) -> None:
    """Server and sentinel each get their own; a wrong one is refused, and not shown."""
    with DevServer(options=("--requirepass", "geheim-1")) as master:
        auth = ("requirepass geheim-2", "sentinel auth-pass main geheim-1")
        async with SentinelTopology.alone(master, *auth) as alone:
            host, _, service = alone.url.partition("://")[2].partition("/")
            url = f"redis+sentinel://:geheim-1@{host}/{service}"
            agent = ProjectAgent(project, redis=f"{url}?sentinel_password=geheim-2")
            async with agent:
                await agent.ready(10)
            with pytest.raises(RedisRefusedError, match="Authentication") as caught:
                await Console(url).status(project)
            assert caught.value.kind == "no_sentinel"
            wrong = f"{url}?sentinel_password=geheim-3"
            with pytest.raises(RedisRefusedError) as caught:
                await Console(wrong).status(project)
            assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
async def test_an_old_master_that_still_answers_is_left(
    project: str,
    mode: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Cut off from the others, it keeps its connections; the sentinels know better."""
    with DevServer() as old, DevServer() as new:
        async with SentinelTopology.alone(old) as alone:
            agent = ProjectAgent(project, redis=alone.url, mode=mode)
            async with agent, Console(new.url) as console:
                await agent.ready(10)
                alone.point_to(new)

                async def is_online() -> bool:
                    return await console.status(project) is Status.ONLINE

                with anyio.fail_after(10):
                    pinged = await console.call(project, "ping", create=True)
                    assert pinged.succeeded
                await eventually(is_online)
    left = [text for text in caplog.messages if text.startswith("leaving ")]
    assert len(left) == 1, "said once, not by each of its connections"
