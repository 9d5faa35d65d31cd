"""A Redis Cluster: three keys on three nodes, slots that move, nodes that die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import Any, cast

import anyio
import pytest
from anyio import to_thread
from redis import Redis as BlockingRedis
from redis._parsers.base import BaseParser
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisError

from bls_agent import (
    ConfigurationError,
    Console,
    LeaseHeldError,
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
    Settings,
    Status,
)
from bls_agent.connection.access import Access
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.blocking import BlockingConnection
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint, RedisSource, Reply, Request
from bls_agent.connection.faults import ends_connection, translate
from bls_agent.connection.orphans import OrphanedConnection
from bls_agent.connection.pool import KEPT, ConnectionPool
from bls_agent.connection.scripts import END_LEASE
from bls_agent.connection.topology import (
    SlotRange,
    read_redirection,
    read_slots,
)
from bls_agent.core.acl import acl_rules
from bls_agent.core.codec import encode, format_timestamp
from bls_agent.core.keys import slot_of
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.fleet import Fleet, Presence
from bls_agent.runs import EventStore, StreamEvent
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    FunctionCache,
    Heartbeat,
    WorkerRegistry,
)
from tests.engines import (
    LOOPBACK,
    NODE_TIMEOUT,
    SLOTS,
    ClusterTopology,
    ask,
)
from tests.harness import History, eventually
from tests.load import MODES, Load, check_end, under_load

OUTAGE = NODE_TIMEOUT * 2 + 5.0 + 45.0  # seconds; the last of them for a slow machine


@pytest.fixture(scope="module")
async def topology() -> AsyncIterator[ClusterTopology]:
    """A cluster whose first node has a replica."""
    async with ClusterTopology() as opened:
        yield opened


def keys_of(project: str) -> list[str]:
    """The three keys of a project."""
    return [f"{project}_{suffix}" for suffix in ("控制", "项目状态", "项目控制台")]


def project_on(
    topology: ClusterTopology, node: DevServer, project: str, suffix: str = "控制"
) -> str:
    """Give a name whose control list, or another key of which, lies on a node."""
    served = topology.slots_of(node)
    names = (f"{project}-{number}" for number in range(10_000))
    return next(n for n in names if any(slot_of(f"{n}_{suffix}") in r for r in served))


# --- what is read


def test_the_map_of_slots_is_read() -> None:
    """Ranges and nodes; a node that leaves its host open is where it was asked."""
    reply = [
        [0, 5, [b"10.0.0.1", 1, b"id"], [b"10.0.0.2", 2, b"id", [b"hostname", b"x"]]],
        [6, 16383, [b"", 3, b"id"], [None, 4, b"id"], [b"?", 5, b"id"]],
    ]
    assert read_slots(reply, "here") == [
        SlotRange(0, 5, (("10.0.0.1", 1), ("10.0.0.2", 2))),
        SlotRange(6, 16383, (("here", 3), ("here", 4), ("here", 5))),
    ]


@pytest.mark.parametrize(
    ("reason", "node"),
    [
        ("3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("3999 ::1:6381", ("::1", 6381)),
        ("3999 :6381", ("here", 6381)),
        ("3999 cache.example:6381", ("cache.example", 6381)),
        ("something else", None),
    ],
)
def test_a_redirection_is_read(reason: str, node: tuple[str, int] | None) -> None:
    """Host and port, also without the host and with IPv6."""
    assert read_redirection(reason, "here") == node


@pytest.mark.parametrize(
    "key", ["foo", "订单系统_控制", "{a}b", "a{}b", "{", "a}b{c}", "\udcff", "a{b}{c}"]
)
async def test_a_slot_is_the_servers_slot(topology: ClusterTopology, key: str) -> None:
    """CRC16 of the hash tag, as CLUSTER KEYSLOT has it."""
    encoded = key.encode("utf-8", "surrogateescape")
    assert slot_of(key) == ask(topology.nodes[0].port, "CLUSTER", "KEYSLOT", encoded)


REPLIES = {
    "MOVED 1 h:2": ("moved", False, True),
    "ASK 1 h:2": ("ask", False, False),
    "TRYAGAIN Multiple keys request during rehashing": ("try_again", False, False),
    "CLUSTERDOWN Hash slot not served": ("cluster_down", False, True),
    "MASTERDOWN Link with MASTER is down": ("master_down", False, True),
    "READONLY You can't write against a replica": ("read_only", False, True),
    "UNBLOCKED force unblock, the instance state changed": (
        "role_changed",
        False,
        True,
    ),
    "ERR Error running script (call to f_3046b76b): @user_script:47: "
    "@user_script: 47: -READONLY You can't write against a read only replica.": (
        "read_only",
        False,
        True,
    ),
    "ERR Error running script (call to f_3046b76b): @user_script:47: "
    "@user_script: 47: -OOM command not allowed when used memory > 'maxmemory'.": (
        "out_of_memory",
        False,
        False,
    ),
    "@user_script: 70: -OOM command not allowed": ("out_of_memory", False, False),
    "ERR Error running script (call to f_3046b76b): @user_script:9: WRONGTYPE no": (
        "wrong_type",
        True,
        False,
    ),
    "LOADING Redis is loading the dataset in memory": ("loading", False, False),
    "ERR unknown command 'BLMOVE', with args beginning with: 'price_alert_bot_控制' ": (
        "unknown_command",
        True,
        False,
    ),
    "CROSSSLOT Keys in request don't hash to the same slot": (
        "cross_slot",
        True,
        False,
    ),
}


@pytest.mark.parametrize(("text", "fault"), REPLIES.items(), ids=list(REPLIES))
def test_what_a_changing_server_says_is_classed(
    text: str, fault: tuple[str, bool, bool]
) -> None:
    """All of it passes by itself, but for keys of two slots; who says so is left."""
    parse: Any = BaseParser.parse_error
    error = translate(parse(text), "")
    permanent = isinstance(error, RedisRefusedError)
    assert (error.kind, permanent, ends_connection(error)) == fault


# --- agents and consoles


async def test_an_agent_and_a_console_on_three_nodes(
    topology: ClusterTopology, project: str
) -> None:
    """Status, log, commands and the console, by URL and by a borrowed client."""
    client = RedisCluster(LOOPBACK, topology.nodes[1].port)
    places: tuple[RedisSource, ...] = (topology.url, client)
    for number, where in enumerate(places):
        names = [f"{project}-{number}-{n}" for n in range(12)]
        async with Console(where) as console:
            for name in names:
                await console.send(name, "nothing", create=True)
            found = await console.projects()
            assert {name: found[name] for name in names} == dict.fromkeys(names)
            agent = ProjectAgent(names[0], redis=where)
            async with agent:
                await agent.ready(10)
                assert (await console.call(names[0], "ping")).succeeded
                assert await console.status(names[0]) is Status.ONLINE
                assert (await console.projects())[names[0]] is Status.ONLINE
                assert len(agent.stats().connections) == 4
                assert agent.stats().mode == "blocking"
            assert await console.status(names[0]) is Status.OFFLINE
            assert len(console._pool._connections) <= 8
    await client.aclose()


async def test_a_fleet_on_three_nodes(topology: ClusterTopology, project: str) -> None:
    """Keys on every node are read together, over one connection to each; nothing is kept."""
    names = [f"{project}-舰队-{number}" for number in range(40)]
    error = encode({"level": "error", "timestamp": format_timestamp(time.time())})
    client = RedisCluster(LOOPBACK, topology.nodes[1].port)
    async with Fleet(topology.url) as fleet:
        assert not names & (await fleet.look()).keys()
        for name in names:
            await client.set(f"{name}_项目状态", "在线", ex=60)
            await client.rpush(f"{name}_项目控制台", "{}", error)
            await client.rpush(f"{name}_控制", "{}")
        views = await fleet.look()
        assert {(views[name].status, views[name].presence) for name in names} == {
            (Status.ONLINE, Presence.FRESH)
        }
        told = {(v.queue, v.records, v.errors) for n, v in views.items() if n in names}
        assert told == {(1, 2, 1)}
        async for change in fleet.watch():
            assert change.views.keys() >= set(names)
            break
        assert len(fleet._pool._nodes) == 3
        assert len(fleet._pool._connections) <= 1
    await client.aclose()


OLD_COMMAND = (
    b'{"id": "cmd-1", "timestamp": "2026-01-12T12:35:00.000Z",'
    b' "source": "BLS Project Console", "command": "reload"}'
)


async def test_workers_on_all_nodes(topology: ClusterTopology, project: str) -> None:
    """They are found and watched wherever their keys lie; the nodes share the reads."""
    names = [f"{project}-{number}" for number in range(40)]
    client = RedisCluster(LOOPBACK, topology.nodes[1].port)
    async with WorkerRegistry(topology.url) as registry:
        for name in names:
            beat = ExecutionNodeHeartbeat.create(name)
            await client.set(beat.key, beat.to_json(), ex=30)
        found = [one.id for one in await registry.alive(ExecutionNodeHeartbeat)]
        assert found == sorted(names)
        changes = registry.watch(ExecutionNodeHeartbeat, interval=0.05)
        assert [(await anext(changes)).what for _ in names] == ["joined"] * 40
        await client.delete(f"heartbeat:node:{names[7]}")
        left = await anext(changes)
        assert (left.what, left.worker and left.worker.id) == ("left", names[7])
        await changes.aclose()
    await client.aclose()


async def test_runs_are_followed_on_all_nodes(topology: ClusterTopology) -> None:
    """One waiting connection for each slot; a slot that moves takes its followers along."""
    runs = range(12)
    found: dict[tuple[int, int], list[int]] = {
        (run_id, number): [] for run_id in runs for number in range(2)
    }
    async with EventStore(topology.url) as store:

        async def follow(run_id: int, number: int) -> None:
            async for one in store.follow(run_id):
                assert isinstance(one, StreamEvent)
                found[run_id, number].append(one.sequence)

        async def write(action: str) -> None:
            for run_id in runs:
                await store.add(run_id, "system", action)

        async with anyio.create_task_group() as tasks:
            for who in found:
                tasks.start_soon(follow, *who)
            await write("warning")
            await eventually(lambda: all(each == [1] for each in found.values()))
            names = [
                client["name"]
                for node in topology.nodes
                for client in _clients_of(node)
            ]
            assert names.count("bls-runs:blocking") == len(runs)
            slot = slot_of("run:5:events")
            source = topology.owner(slot)
            target = topology.other_master(source)
            await to_thread.run_sync(topology.migrate, slot, target)
            await write("warning")
            await write("close")
        assert found == {who: [1, 2, 3] for who in found}
        await to_thread.run_sync(topology.migrate, slot, source)


def _clients_of(node: DevServer) -> list[dict[str, str]]:
    with BlockingRedis(LOOPBACK, node.port, protocol=2) as client:
        listed: list[dict[str, str]] = client.client_list()
    return listed


async def test_a_doctor_examines_every_node(
    topology: ClusterTopology, project: str
) -> None:
    """Keys of all masters are looked at, and what lies on different nodes is compared."""
    names = [f"{project}-{number}" for number in range(30)]
    async with RedisCluster(LOOPBACK, topology.nodes[1].port) as client:
        for name in names:
            await client.set(f"{name}_项目状态", "在线", ex=60)
            await client.rpush(f"{name}_控制", OLD_COMMAND)
    report = await examine(topology.url)
    assert len(report.servers) == 3
    untaken = {g.rule: g.count for g in report.groups}["commands-untaken"]
    assert untaken == 30
    alone = await examine(topology.url, project=names[7])
    assert alone.seen == 2
    one = await examine(topology.nodes[0].url)
    assert "one-node" in {group.rule for group in one.groups}
    assert one.seen < report.seen


async def test_a_fleet_while_slots_move(
    topology: ClusterTopology, project: str
) -> None:
    """Keys that wait for the end of a move, or have just moved, are read all the same."""
    client = RedisCluster(LOOPBACK, topology.nodes[1].port)
    await client.set(f"{project}_项目状态", "在线")
    slot = slot_of(f"{project}_项目状态")
    source, target = (owner := topology.owner(slot)), topology.other_master(owner)
    async with Fleet(topology.url) as fleet:
        assert (await fleet.look())[project].status is Status.ONLINE
        assert fleet._pool._routes.cluster
        fleet._pool._routes.cluster._fetched = float("inf")  # it does not ask again
        track = fleet._projects[project]

        async def read_status() -> None:
            async with fleet._turn:
                await fleet._read_statuses([track], fleet._now())

        await to_thread.run_sync(topology.begin_migration, slot, target)
        await read_status()
        assert track.view(fleet._now()).status is Status.ONLINE
        await client.set(f"{project}_项目状态", "报错")
        await to_thread.run_sync(topology.move_keys, slot, source, target)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_status)
            await to_thread.run_sync(topology.end_migration, slot, target)
        assert track.view(fleet._now()).status is Status.ERROR
        fleet._pool._routes.cluster.distrust()
        assert (await fleet.look())[project].status is Status.ERROR
    await client.aclose()


async def test_many_writes_while_slots_move(
    topology: ClusterTopology, project: str
) -> None:
    """Each key is written once, when its slot has arrived; a script that none knew runs."""
    client = RedisCluster(LOOPBACK, topology.nodes[1].port)
    names = [f"{project}:{number}" for number in range(60)]
    slot = slot_of(names[0])
    source, target = (owner := topology.owner(slot)), topology.other_master(owner)
    access = Access(topology.url, "test")
    requests = [("INCR", name) for name in names]
    assert await access.pool.call_many(requests) == [1] * 60
    await to_thread.run_sync(topology.begin_migration, slot, target)
    assert await access.pool.call_many(requests) == [2] * 60
    await to_thread.run_sync(topology.move_keys, slot, source, target)
    async with anyio.create_task_group() as tasks:

        async def write() -> None:
            assert await access.pool.call_many(requests) == [3] * 60

        tasks.start_soon(write)
        await to_thread.run_sync(topology.end_migration, slot, target)
    assert [await client.get(name) for name in names] == [b"3"] * 60
    runs = [([f"{{{name}}}:owner"], ["token"]) for name in names]
    assert await END_LEASE.run_many(access.pool, runs) == [0] * 60
    await access.aclose()
    await client.aclose()


async def test_one_node_taken_for_a_server(
    topology: ClusterTopology, project: str
) -> None:
    """redis:// at a node of a cluster is refused with the URL that would be right."""
    slot = slot_of(f"{project}_项目状态")
    other = topology.other_master(topology.owner(slot))
    async with Console(other.url) as console:
        with pytest.raises(RedisRefusedError, match=r"redis\+cluster://") as caught:
            await console.status(project)
    assert caught.value.kind == "cluster_node"


async def test_a_server_taken_for_a_cluster(project: str) -> None:
    """redis+cluster:// at a server of its own is refused for good."""
    with DevServer() as server:
        url = server.url.replace("redis://", "redis+cluster://")
        async with Console(url) as console:
            with pytest.raises(RedisRefusedError, match="cluster support disabled"):
                await console.status(project)


async def test_slots_move_under_load(topology: ClusterTopology, project: str) -> None:
    """Before, while and after the slots of all keys move: nothing lost, nothing twice."""
    async with under_load(topology.url, project) as load:
        await load.alive(time.monotonic(), 10)
        moves = [
            (slot_of(key), topology.other_master(topology.owner(slot_of(key))))
            for subject in load.subjects
            for key in keys_of(subject.project)
        ]
        sources = {}
        for slot, target in moves:
            sources[slot] = await to_thread.run_sync(
                topology.begin_migration, slot, target
            )
        for slot, target in moves:
            await to_thread.run_sync(topology.move_keys, slot, sources[slot], target)
        for slot, target in moves:
            await to_thread.run_sync(topology.move_keys, slot, sources[slot], target)
            await to_thread.run_sync(topology.end_migration, slot, target)
        await load.alive(time.monotonic(), OUTAGE)
        await check_end(load, [])


@pytest.mark.parametrize("mode", ["blocking", "reliable"])
async def test_a_waiting_read_follows_its_slot(
    topology: ClusterTopology, project: str, mode: Any
) -> None:
    """Parked on an empty list whose slot goes away and comes back; what runs is kept."""
    done: list[int] = []
    agent = ProjectAgent(project, redis=topology.url, mode=mode, prefetch=3)
    moved = anyio.Event()

    @agent.command
    async def mark(number: int) -> None:
        done.append(number)

    @agent.command
    async def hold(number: int) -> None:
        await moved.wait()
        done.append(number)

    slot = slot_of(f"{project}_控制")
    home = topology.owner(slot)
    guest = topology.other_master(home)
    async with agent, Console(topology.url) as console:
        await agent.ready(10)
        await eventually(lambda: agent.stats().connections["blocking"])
        for number, target in enumerate((guest, home)):
            await to_thread.run_sync(topology.migrate, slot, target)
            await console.send(project, "mark", {"number": number}, create=True)
            await eventually(lambda n=number: n in done, OUTAGE)  # type: ignore[misc]
        await console.send(project, "hold", {"number": 2}, create=True)
        await eventually(lambda: agent.stats().commands_running == 1)
        await to_thread.run_sync(topology.migrate, slot, guest)
        moved.set()
        await console.send(project, "mark", {"number": 3}, create=True)
        await eventually(lambda: len(done) == 4, OUTAGE)
        assert done == [0, 1, 2, 3]
        assert agent.stats().lease_losses == 0
    assert agent.stats().faults == 0
    stored: list[bytes] = ask(guest.port, "CLUSTER", "GETKEYSINSLOT", slot, 100)
    left = [key for key in stored if project.encode() in key]  # others share the slot
    assert len(left) == (1 if mode == "reliable" else 0)  # the ids that have ended


async def test_dead_letters(topology: ClusterTopology, project: str) -> None:
    """One script moves them, because their keys share the slot, wherever the slot is."""
    control = f"{project}_控制"
    slot = slot_of(control)
    home = topology.owner(slot)
    async with Console(topology.url) as console:
        for number in "123":
            await console.send(project, "mark", id=number, create=True)
        ask(home.port, "RENAME", control, f"bls_agent:{{{control}}}:dead")
        assert [one.id for one in await console.requeue(project, "2")] == ["2"]
        await to_thread.run_sync(topology.migrate, slot, topology.other_master(home))
        assert [one.id for one in await console.requeue(project, "1")] == ["1"]
        assert [one.id for one in await console.discard(project, all=True)] == ["3"]
        assert [one.id for one in await console.queue(project)] == ["2", "1"]
        assert await console.in_hand(project) == []


async def test_replicas_and_broadcasts(topology: ClusterTopology, project: str) -> None:
    """Replicas and inboxes beside their keys, while their slots move."""
    modes = [mode for mode in MODES if mode != "compat"]  # which wants to be alone
    histories = {mode: History() for mode in modes}
    async with Console(topology.url) as console, AsyncExitStack() as stack:
        for mode, history in histories.items():
            agent = ProjectAgent(
                project, redis=topology.url, instance=mode, mode=mode, replicas=True,
                status_ttl=5, status_interval=0.3,
            )  # fmt: skip
            history.attach(agent)
            await stack.enter_async_context(agent)
            await agent.ready(10)
        for number in range(3):
            await console.send(
                project, "mark", {"number": number}, broadcast=True, create=True
            )
            await eventually(
                lambda n=number: all(n in h.handled for h in histories.values()),  # type: ignore[misc]
                OUTAGE,
            )
            assert set(await console.instances(project)) == set(modes)
            for key in keys_of(project)[:2]:
                target = topology.other_master(topology.owner(slot_of(key)))
                await to_thread.run_sync(topology.migrate, slot_of(key), target)
        for history in histories.values():
            assert sorted(history.handled) == [0, 1, 2]
        await stack.aclose()
        assert await console.status(project) is Status.OFFLINE


async def test_keys_of_one_slot_on_its_way(
    topology: ClusterTopology, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not left is served; what is absent is refused, or waits for the move.

    A reply to a request that was executed is returned, even if the node hangs when the
    other request is sent again.
    """
    here, there = (f"{{{project}}}{name}" for name in ("here", "there"))
    slot = slot_of(here)
    source = topology.owner(slot)
    target = topology.other_master(source)
    connections = AgentConnections(
        Endpoint.of(topology.url),
        "test",
        timeout=1,
        reconnect_max=1,
        keys={"control": here, "data": here, "liveness": here},
    )
    connection = connections.control
    waiting = BlockingConnection(connections.blocking)
    await connection.call("RPUSH", here, 1)
    await to_thread.run_sync(topology.begin_migration, slot, target)
    assert await connection.call("RPUSH", here, 2) == 2
    requests = [("RPUSH", name, 0) for name in (here, there, here)]
    first, refused, last = await connection.call_many(requests)
    assert (first, refused.kind, refused.ambiguous, last) == (3, "ask", False, 4)
    with pytest.raises(RedisUnavailableError, match=r"\(ask\)"):
        await connection.call("RPUSH", there, 0)

    send_again = connection._send_again

    async def send_to_a_frozen_node(asked: Sequence[Request]) -> list[Reply]:
        source.freeze()
        try:
            return await send_again(asked)
        finally:
            source.thaw()

    with monkeypatch.context() as patched:
        patched.setattr(connection, "_send_again", send_to_a_frozen_node)
        found, failed = await connection.call_many([("LLEN", here), ("LLEN", there)])
    assert (found, failed.kind, failed.ambiguous) == (4, "timeout", True)
    for _ in range(2):
        await waiting.post([("LLEN", there), ("LLEN", here)])
        with pytest.raises(RedisUnavailableError, match=r"\(ask\)"):
            await waiting.collect()
        assert await waiting.collect() == 4
    await to_thread.run_sync(topology.move_keys, slot, source, target)
    await to_thread.run_sync(topology.end_migration, slot, target)
    assert await connection.call_many([("LLEN", here), ("LLEN", there)]) == [4, 0]
    await waiting.post([("LLEN", here)])
    with pytest.raises(RedisUnavailableError, match=r"\(moved\)"):
        await waiting.collect()
    await waiting.post([("LLEN", here)])
    assert await waiting.collect() == 4
    await connections.aclose()


async def test_tasks_ask_for_keys_of_one_slot_on_its_way(
    topology: ClusterTopology, project: str
) -> None:
    """A redirected task takes no other one along, and ends no other one's request."""
    here = f"{{{project}}}here"
    slot = slot_of(here)
    source = topology.owner(slot)
    target = topology.other_master(source)
    where = Endpoint.of(topology.url)
    keys = {"control": here, "data": here, "liveness": here}
    connections = AgentConnections(where, "test", timeout=5, reconnect_max=1, keys=keys)
    connection = connections.control
    await connection.call("RPUSH", here, 0)
    await to_thread.run_sync(topology.begin_migration, slot, target)
    done: Counter[str] = Counter({here: 1})

    async def push(key: str) -> None:
        for number in range(10):
            await connection.call("RPUSH", key, number)
            done[key] += 1

    async with anyio.create_task_group() as tasks:
        for key in (here, here, *(f"{{{project}}}there{n}" for n in range(4))):
            tasks.start_soon(push, key)
        await eventually(lambda: done[here] == 21)
        await to_thread.run_sync(topology.move_keys, slot, source, target)
        await to_thread.run_sync(topology.end_migration, slot, target)
    assert {key: await connection.call("LLEN", key) for key in done} == done
    assert connection.generation <= 3
    await connections.aclose()


async def test_locks_of_a_cache_leave_few_connections(
    topology: ClusterTopology, project: str
) -> None:
    """Each of many keys has a slot of its own, and a connection only while it is computed."""
    cache = FunctionCache(topology.url, timeout=5)

    @cache.cached(ttl=60, name=project, lock=True)
    async def give(number: int) -> int:
        return number

    async with cache:
        for number in range(40):
            assert await give(number) == number
        assert cache.stats(give).redis_failures == 0
        lists = [ask(node.port, "CLIENT", "LIST") for node in topology.nodes]
    assert sum(found.count(b"bls-agent:cache-lock") for found in lists) <= KEPT


async def test_heartbeats_on_three_nodes(topology: ClusterTopology) -> None:
    """Each with its lease on its own node; kept alive, and removed."""
    names = [f"回测-{number}" for number in range(12)]
    beats = [
        Heartbeat(
            BacktestWorkerHeartbeat.create(worker_id=name), redis=topology.url, ttl=1.5
        )
        for name in names
    ]
    client = RedisCluster.from_url(f"redis://{LOOPBACK}:{topology.nodes[0].port}")
    async with AsyncExitStack() as opened:
        for beat in beats:
            await opened.enter_async_context(beat)
        assert all(beat.owned for beat in beats)
        assert len({id(beat._writer) for beat in beats}) == 1
        keys = [beat.heartbeat.key for beat in beats]
        assert len({slot_of(key) * 3 // SLOTS for key in keys}) == 3
        with pytest.raises(LeaseHeldError):
            async with Heartbeat(beats[0].heartbeat, redis=topology.url):
                pytest.fail("entered")
        for key in keys:
            await eventually(partial(says, topology, key, b'"running"'), 5.0)
        await anyio.sleep(1.6)
        assert all(beat.owned for beat in beats)
    for key in keys:
        assert await client.exists(key) == 0
    await client.aclose()


def says(topology: ClusterTopology, key: str, word: bytes) -> bool:
    """Whether a key's value holds a word."""
    return word in peek(topology, key)


def peek(topology: ClusterTopology, key: str) -> bytes:
    """Read a key from the node that serves it."""
    for node in topology.nodes[:3]:
        with suppress(RedisError), BlockingRedis(port=node.port) as client:
            value = cast("bytes | None", client.get(key))
            return value or b""
    return b""


@pytest.mark.parametrize("options", [{"mode": "reliable"}, {"replicas": True}])
@pytest.mark.parametrize("ending", ["a}b", "{}b"])
async def test_a_name_beside_which_no_key_can_be_put(
    topology: ClusterTopology,
    project: str,
    options: dict[str, Any],
    ending: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused on a cluster as early as it is known; on one server such names work."""
    name = f"{project}{ending}"
    rule = r"on a cluster (mode='reliable'|replicas=True) .* Use a name without"
    with pytest.raises(ConfigurationError, match=rule) as caught:
        ProjectAgent(name, redis=topology.url, **options)
    assert (caught.value.name, caught.value.value) == ("project", name)
    with pytest.raises(ConfigurationError, match=rule):
        ProjectAgent(name, redis=topology.url, settings=Settings(**options))
    monkeypatch.setenv("BLS_REDIS_URL", topology.url)
    late = ProjectAgent(name, **options)
    with pytest.raises(ConfigurationError, match=rule):
        await late.__aenter__()
    for option, value in options.items():
        monkeypatch.setenv(f"BLS_{option.upper()}", str(value))
    late = ProjectAgent(name, redis=topology.url)
    with pytest.raises(ConfigurationError, match=rule):
        await late.__aenter__()
    async with ProjectAgent(name, mode="blocking", replicas=False) as agent:
        await agent.ready(10)
    async with (
        ProjectAgent(name, redis=redis_url, **options) as agent,
        Console(redis_url) as console,
    ):
        await agent.ready(10)
        assert (await console.call(name, "ping")).succeeded


@pytest.mark.parametrize("mode", MODES)
async def test_the_rights_of_the_docs_are_enough(
    topology: ClusterTopology, project: str, mode: Any
) -> None:
    """With those of docs/rights.md and docs/engines.md nothing is ever refused."""
    rules = acl_rules(project, mode, replicas=True)
    rules += ["+cluster|slots", "+client|list"]
    for node in topology.nodes:
        ask(node.port, "ACL", "SETUSER", "agent", "reset", "on", ">geheim", *rules)
        ask(node.port, "ACL", "LOG", "RESET")
    url = topology.url.replace("://", "://agent:geheim@")
    slot = slot_of(f"{project}_控制")
    source = topology.owner(slot)
    target = topology.other_master(source)
    async with (
        ProjectAgent(project, redis=url, prefetch=2, mode=mode, replicas=True) as agent,
        Console(topology.url) as console,
    ):
        await agent.ready(10)
        await to_thread.run_sync(topology.begin_migration, slot, target)
        await to_thread.run_sync(topology.move_keys, slot, source, target)
        await to_thread.run_sync(topology.end_migration, slot, target)
        assert (await console.call(project, "ping")).succeeded
    assert [ask(node.port, "ACL", "LOG") for node in topology.nodes] == [[]] * 4


async def test_a_slot_that_nobody_serves(
    topology: ClusterTopology, project: str
) -> None:
    """CLUSTERDOWN: the host does not notice, few tries, and on when it is served again."""
    # The owner has no replica. A replica in Redis 7.0.15 does not forget that its master
    # gave up a slot: if it takes over later, and the old master comes back and claims the
    # slot by its old epoch, it gives the slot away. The old master becomes a replica, and
    # the new one knows no owner of the slot any more.
    owner = topology.other_master(topology.master_with_replica())
    name = project_on(topology, owner, project, "项目控制台")
    slot = slot_of(f"{name}_项目控制台")
    agent = ProjectAgent(name, redis=topology.url)
    async with agent:
        await agent.ready(10)
        agent.log.info("vorher")
        assert await agent.flush(5)
        ask(owner.port, "CLUSTER", "DELSLOTS", slot)
        try:
            agent.log.info("während")
            assert not await agent.flush(1)
            assert agent.stats().logs_queued
        finally:
            ask(owner.port, "CLUSTER", "ADDSLOTS", slot)
        assert await agent.flush(10)
        assert agent.stats().faults == 0


async def test_what_was_lost_is_let_go_where_it_was(
    topology: ClusterTopology, project: str
) -> None:
    """A lost BLPOP is released on its node, though the key lives elsewhere by now."""
    key = f"{project}_控制"
    elsewhere = topology.other_master(topology.owner(slot_of(key)))
    own = project_on(topology, elsewhere, project)
    server = Endpoint.of(f"redis://{LOOPBACK}:{elsewhere.port}/0")
    zombie = Connection(server, "test:blocking", timeout=1)
    await zombie.open()
    await BlockingConnection(zombie).post([("BLPOP", f"{own}_控制", 30)])
    connections = AgentConnections(
        Endpoint.of(topology.url),
        "test",
        timeout=1,
        reconnect_max=1,
        keys={"control": key, "data": key, "liveness": key},
    )
    await connections.control.open()
    connections.blocking.orphans.add(OrphanedConnection(zombie.client_id, "", server))
    assert await connections.kill_orphans(connections.blocking, kill=False)
    with anyio.fail_after(5):
        assert await BlockingConnection(zombie).collect() is None
    await zombie.aclose()
    await connections.aclose()


async def test_frozen_nodes_do_not_delay_a_request(
    topology: ClusterTopology, project: str
) -> None:
    """Whoever served the key before is asked, if no node says in time who does now."""
    *others, owner = [topology.nodes[number] for number in (0, 1, 3, 2)]
    key = f"{project_on(topology, owner, project)}_控制"
    pool = ConnectionPool(Endpoint.of(topology.url), "test", timeout=0.3)
    async with aclosing(pool):
        assert await pool.read(key, "LLEN") == 0
        cluster = pool._routes.cluster
        assert cluster is not None
        for node in others:
            node.freeze()
        try:
            pool._glance_at = 0.0
            cluster.distrust()
            cluster._last = None
            began = time.monotonic()
            assert await pool.read(key, "LLEN") == 0
            assert time.monotonic() - began < 0.9  # one node alone would take a second
        finally:
            for node in others:
                node.thaw()
    await topology.ready()


@pytest.mark.parametrize("how", ["hanging", "killed"])
async def test_a_node_fails(
    topology: ClusterTopology,
    project: str,
    how: str,
    record_property: Callable[..., None],
) -> None:
    """A node with a replica is gone: what lies there goes on, the rest as before."""
    await topology.ready()
    victim = await to_thread.run_sync(topology.master_with_replica)
    names = [project_on(topology, victim, f"{project}-{mode}-") for mode in MODES]
    slot = slot_of(f"{names[0]}_控制")
    async with under_load(topology.url, project, also=names) as load:
        await load.alive(time.monotonic(), OUTAGE)
        failed = time.monotonic()
        if how == "killed":
            await to_thread.run_sync(victim.kill)
        else:
            victim.freeze()
        gone = time.monotonic()  # a busy machine takes its time to kill
        try:
            await topology.switched(slot, victim)
            await load.alive(time.monotonic(), OUTAGE)
            record_outages(load, failed, record_property)
        finally:
            await to_thread.run_sync(victim.restart if how == "killed" else victim.thaw)
        await load.alive(time.monotonic(), OUTAGE)
        await check_end(load, [failed, gone])


def record_outages(load: Load, since: float, record_property: Any) -> None:
    """Print how long no command was handled, by agent."""
    for subject in load.subjects:
        silence = subject.longest_silence(since)
        print(f"{subject.project}: {silence:.2f} s")  # noqa: T201 - a figure to be read
        record_property(f"outage_{subject.project}", round(silence, 2))
