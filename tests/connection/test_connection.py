"""Connections: who refuses what, what stays secret, what a cancelled read keeps."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis as sync_redis
from redis import asyncio as redis_py
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent, RedisRefusedError, RedisUnavailableError
from bls_agent.connection import orphans
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.blocking import BlockingConnection
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.orphans import OrphanedConnection, OrphanedConnections
from bls_agent.devserver import DevServer
from tests.harness import (
    PASSWORD,
    History,
    are_blocked,
    eventually,
    execute,
    needs_selectors,
    status_of,
    url_with_rights,
)
from tests.kit import Cut, Direction, FaultProxy, Hold, Lose, Rate


async def test_a_cancelled_read_stays_owed(
    connection: Connection, admin: Redis
) -> None:
    """Cancelling a parked read loses nothing: the next collect gets the reply."""
    reader = BlockingConnection(connection)
    await reader.post([("BLPOP", "队列", 5)])
    for _ in range(100):
        with anyio.move_on_after(0.001):
            await reader.collect()
    with pytest.raises(TimeoutError):
        await reader.collect(0.01)
    assert reader.pending == 1
    await admin.rpush("队列", "一")
    assert await reader.collect(5) == ["队列".encode(), "一".encode()]
    assert connection.pending == 0


async def test_who_waits_for_a_turn_is_told_in_time(
    connection: Connection, own_server: DevServer
) -> None:
    """Requests that wait for one another do not wait for all their deadlines."""
    await connection.call("PING")
    own_server.freeze()
    failed: list[float] = []

    async def ask() -> None:
        began = anyio.current_time()
        with pytest.raises(RedisUnavailableError, match="timeout"):
            await connection.call("PING")
        failed.append(anyio.current_time() - began)

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask)
    finally:
        own_server.thaw()
    assert len(failed) == 8
    assert max(failed) < 5  # not eight times the deadline


@pytest.mark.parametrize("reconnects", [False, True])
async def test_a_reply_that_arrives_while_the_connection_is_left(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, *, reconnects: bool
) -> None:
    """As in a failover: the reply counts, and nothing is owed of what was left."""
    reader = BlockingConnection(connection)

    async def leave_while_reading() -> None:
        channel: Any = connection.channel
        read = channel.collect

        async def read_and_leave(patience: float | None = None) -> Any:
            try:
                return await read(patience)
            finally:
                await connection.drop()
                if reconnects:
                    await reader.post([("ECHO", "新")])

        monkeypatch.setattr(channel, "collect", read_and_leave)

    async def check() -> None:
        assert reader.pending == reconnects
        if reconnects:
            assert await reader.collect() == "新".encode()
        assert reader.pending == 0

    await reader.post([("ECHO", "旧")])
    await leave_while_reading()
    assert await reader.collect() == "旧".encode()
    await check()
    await reader.post([("NO-SUCH",)])
    await leave_while_reading()
    with pytest.raises(RedisRefusedError):
        await reader.collect()
    await check()


async def test_connecting_takes_one_round_trip_and_resp2(
    connection: Connection, admin: Redis
) -> None:
    """A new connection speaks RESP2 and sends neither HELLO nor SETINFO."""
    await admin.config_resetstat()
    await connection.call("PING")
    used = await admin.info("commandstats")
    assert "cmdstat_hello" not in used
    assert "cmdstat_client|setinfo" not in used
    (mine,) = [c for c in await admin.client_list() if c["name"] == "test"]
    assert mine.get("resp", "2") == "2"  # Redis 6 does not tell


async def test_a_stale_connection_is_replaced_before_use(
    connection: Connection, admin: Redis
) -> None:
    """A connection that the server closed while it was idle costs no failure."""
    await connection.call("PING")
    await execute(admin, "CLIENT", "KILL", "ID", connection.client_id)
    await anyio.sleep(0.05)  # the loop sees the end of file
    assert await connection.call("PING") == b"PONG"


@pytest.mark.parametrize("name", ["_parser", "_reader", "_writer"])
async def test_a_redis_py_that_is_laid_out_differently(
    own_server: DevServer, name: str
) -> None:
    """The error names the attribute, the version, and the versions that were tried."""

    class Renamed(redis_py.Connection):
        async def connect(self) -> None:
            await super().connect()  # type: ignore[no-untyped-call]
            self.found = getattr(self, name)
            delattr(self, name)

        async def disconnect(self, *args: Any, **options: Any) -> None:
            setattr(self, name, self.found)
            await super().disconnect(*args, **options)

    def make() -> Any:
        return Renamed(port=own_server.port, protocol=2)

    connection = Connection(Endpoint("redis://h:1/0", make), "test", timeout=1)
    with pytest.raises(RedisRefusedError) as caught:
        await connection.call("PING")
    assert caught.value.kind == "unsupported_client"
    for word in (f"'{name}'", sync_redis.__version__, "5.2 to 8.1"):
        assert word in str(caught.value)


async def test_a_read_is_repeated_once_after_a_loss(own_server: DevServer) -> None:
    """The second connection answers it; after a second loss, and for a call, it fails."""
    async with FaultProxy(own_server.url, seed=1) as proxy:
        connection = Connection(Endpoint.of(proxy.url), "test", timeout=5)
        await connection.call("SET", "键", "wert")
        proxy.arm(Cut(command="GET", at=0))
        assert await connection.read("GET", "键") == b"wert"
        assert connection.generation == 2
        proxy.arm(Cut(command="GET", at=0, times=2))
        with pytest.raises(RedisUnavailableError):
            await connection.read("GET", "键")
        assert connection.generation == 3
        proxy.arm(Cut(command="GET", at=0))
        with pytest.raises(RedisUnavailableError):
            await connection.call("GET", "键")
        await connection.aclose()


async def test_a_read_is_not_repeated_after_its_deadline(own_server: DevServer) -> None:
    """Its caller has waited long enough."""
    async with FaultProxy(own_server.url, seed=1) as proxy:
        connection = Connection(Endpoint.of(proxy.url), "test", timeout=0.5)
        await connection.call("SET", "键", "wert")
        proxy.arm(Lose(command="GET", direction=Direction.REPLIES))
        with pytest.raises(RedisUnavailableError) as caught:
            await connection.read("GET", "键")
        assert caught.value.kind == "timeout"
        await connection.aclose()


def test_at_most_eight_lost_connections_are_remembered() -> None:
    """The oldest are forgotten; those that were put back are all kept."""
    remembered = OrphanedConnections()
    server = Endpoint.of("redis://127.0.0.1:1")
    lost = [OrphanedConnection(number, "", server) for number in range(12)]
    for one in lost:
        remembered.add(one)
    assert remembered.waiting == lost[4:]
    remembered.restore(lost[:4])
    assert remembered.waiting == lost


async def test_a_read_is_not_repeated_after_a_close(own_server: DevServer) -> None:
    """Nobody would close the connection that it would open."""
    connection = Connection(Endpoint.of(own_server.url), "test", timeout=5)
    await connection.call("PING")
    kinds: list[str] = []

    async def read() -> None:
        with pytest.raises(RedisUnavailableError) as caught:
            await connection.read("GET", "键")
        kinds.append(caught.value.kind)

    own_server.freeze()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await connection.aclose()
        own_server.thaw()
    assert kinds == ["closed"]
    assert connection.generation == 1
    assert not connection.engaged


async def test_long_requests_and_replies_have_time(own_server: DevServer) -> None:
    """No link is too narrow for them, and a dead one is noticed at the deadline."""
    long = b"x" * 20_000
    async with FaultProxy(own_server.url, seed=1) as proxy:
        connection = Connection(Endpoint.of(proxy.url), "test", timeout=0.2)
        await connection.call("PING")
        async with proxy.during(Rate(40_000)):
            with pytest.raises(RedisUnavailableError, match="timeout"):
                await connection.call("SET", "键", long)
            assert await connection.call("SET", "键", long) == b"OK"
            # One that is a bit longer passes, too.
            assert await connection.call("SET", "键", long + long[:2_000]) == b"OK"
            assert await connection.call("GET", "键")  # as long as some of it comes
            assert connection.generation == 2
        assert await connection.call("SET", "键", long) == b"OK"  # this one was quick
        async with proxy.during(Hold()):
            began = time.perf_counter()
            with pytest.raises(RedisUnavailableError, match="timeout"):
                await connection.call("SET", "键", long)
            assert time.perf_counter() - began < 1.2
        for _ in range(9):
            connection._pace.learn(
                len(long), None
            )  # replies are lost one after the other
        assert connection._pace.time_for(len(long)) == pytest.approx(16 * 0.2), (
            "not 12.5 s"
        )
        await connection.aclose()


@pytest.mark.parametrize(
    ("setup", "request_", "kind", "permanent"),
    [
        ((), ("NOSUCH", "geheim"), "unknown_command", True),
        ((), ("LPOP",), "unsupported", True),
        ((("SET", "k", "v"),), ("RPUSH", "k", "x"), "wrong_type", True),
        (
            (("CONFIG", "SET", "maxmemory", "1"),),
            ("SET", "k", "v"),
            "out_of_memory",
            False,
        ),
        (
            (("CONFIG", "SET", "min-replicas-to-write", "1"),),
            ("SET", "k", "v"),
            "no_replicas",
            False,
        ),
        ((("REPLICAOF", "127.0.0.1", "1"),), ("SET", "k", "v"), "read_only", False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_real_refusals_have_their_class(
    connection: Connection,
    admin: Redis,
    setup: tuple[tuple[str, ...], ...],
    request_: tuple[str, ...],
    kind: str,
    permanent: bool,
) -> None:
    """Each refusal of a real server ends in its class and repeats no argument."""
    for command in setup:
        await execute(admin, *command)
    with pytest.raises(RedisUnavailableError) as caught:
        await connection.call(*request_)
    assert caught.value.kind == kind
    assert not caught.value.ambiguous
    assert isinstance(caught.value, RedisRefusedError) is permanent
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["password", "none", "user"])
async def test_wrong_credentials_are_permanent_and_stay_secret(
    own_server: DevServer,
    admin: Redis,
    project: str,
    wrong: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refused login is said once, tried slowly, and no password shows anywhere."""
    await admin.config_set("requirepass", "richtig")
    credentials = {"password": f":{PASSWORD}@", "none": "", "user": f"wer:{PASSWORD}@"}[
        wrong
    ]
    url = f"redis://{credentials}127.0.0.1:{own_server.port}/0"
    caplog.set_level(logging.DEBUG, "bls_agent")
    agent = ProjectAgent(project, redis=url, shutdown_timeout=0)
    async with agent:
        await eventually(lambda: agent.stats().reconnect_failures == 1)
        await anyio.sleep(0.5)  # time in which an impatient client would try again
        assert agent.stats().reconnect_failures == 1
        shown = repr(agent) + repr(agent.stats())
    with pytest.raises(RedisRefusedError) as caught:
        await Console(url).logs(project)
    assert caught.value.kind == "auth"
    everything = shown + caplog.text + repr(caught.value) + repr(Endpoint.of(url))
    assert PASSWORD not in everything
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


@pytest.mark.parametrize("kind", ["asyncio", "sync", "asyncio-url", "password"])
async def test_borrowed_clients(
    own_server: DevServer, admin: Redis, project: str, kind: str
) -> None:
    """From a client come address and credentials; it is neither blocked nor closed."""
    if kind == "password":
        await execute(
            admin, "ACL", "SETUSER", "agent", "on", f">{PASSWORD}", "~*", "+@all"
        )
    address: dict[str, Any] = {"host": "127.0.0.1", "port": own_server.port, "db": 3}
    client: object
    if kind == "sync":
        client = sync_redis.Redis(**address)
    elif kind == "asyncio-url":
        client = Redis.from_url(own_server.url.replace("/0", "/3"), socket_timeout=0.1)
    elif kind == "password":
        client = Redis(**address, username="agent", password=PASSWORD)
    else:
        client = Redis(**address, decode_responses=True, socket_timeout=0.1)
    history = History()
    agent = ProjectAgent(project, redis=client)
    history.attach(agent)
    async with Redis(**address, protocol=2) as outside, agent:
        await agent.ready(5)
        assert await status_of(outside, project) == "在线"
        await history.push(outside, project)
        await eventually(lambda: history.handled == [0])
    if isinstance(client, Redis):
        assert await client.ping()
        await client.aclose()
    elif isinstance(client, sync_redis.Redis):
        assert client.ping()
        client.close()


async def test_a_unix_socket(project: str, tmp_path: Path) -> None:
    """unix:// works as a URL and from a borrowed client."""
    path = tmp_path / "redis.sock"
    with DevServer(options=("--unixsocket", str(path))):
        await eventually(path.exists)
        for where in (f"unix://{path}?db=2", Redis(unix_socket_path=str(path), db=2)):
            async with (
                ProjectAgent(project, redis=where) as agent,
                Console(where) as console,
            ):
                await agent.ready(5)
                assert (await console.call(project, "ping")).succeeded
            if isinstance(where, Redis):
                await where.aclose()


async def test_lost_connections_are_let_go_at_the_server(
    own_server: DevServer, admin: Redis
) -> None:
    """A BLPOP of a connection that we lost is unblocked, so that it eats nothing."""
    place = Endpoint.of(own_server.url)
    connections = AgentConnections(place, "test", timeout=1, reconnect_max=1)
    stranger = Connection(place, "test:blocking", timeout=1)
    other = Connection(place, "other", timeout=1)
    await other.open()
    await BlockingConnection(stranger).post([("BLPOP", "队列", 30)])
    await eventually(lambda: are_blocked(admin, 1))
    connections.blocking.orphans.add(OrphanedConnection(stranger.client_id, "", place))
    assert await connections.kill_orphans(connections.blocking, kill=False)
    await eventually(lambda: are_blocked(admin, 0))
    assert await BlockingConnection(stranger).collect() is None
    connections.blocking.orphans.add(OrphanedConnection(other.client_id, "", place))
    assert await connections.kill_orphans(connections.blocking, kill=True)
    assert await other.call("PING") == b"PONG"
    assert other.generation == 1, "an id that is a stranger's by now is not used"
    for connection in (stranger, other):
        await connection.aclose()
    await connections.aclose()


@needs_selectors  # Redis 6 cannot take one subcommand away
async def test_what_was_not_killed_is_not_gone(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks hears it, until nothing of it can arrive any more."""
    rights = ("~*", "+@all", "-client|kill", "-client|unblock", "-client|list")
    url = await url_with_rights(admin, own_server, *rights)
    connections = AgentConnections(Endpoint.of(url), "test", timeout=1, reconnect_max=1)
    connection = connections.data
    for _ in range(20):
        await connection.open()
        await connection.drop()
        for _ in range(2):
            assert not await connections.kill_orphans(connection, kill=True)
            assert not connection.orphans
    assert len(connection.orphans.unkillable) <= 8
    monkeypatch.setattr(orphans, "MAY_ARRIVE", 0.0)
    assert await connections.kill_orphans(connection, kill=True)
    await connection.open()
    await connection.drop()
    monkeypatch.undo()
    assert not await connections.kill_orphans(connection, kill=True)
    await connections.aclose()


@needs_selectors  # Redis 6 cannot take one subcommand away
@pytest.mark.parametrize("missing", ["-client|list", "-client|setname"])
async def test_a_lost_connection_without_the_right_to_look(
    own_server: DevServer, admin: Redis, project: str, missing: str
) -> None:
    """With the rights of the docs a lost BLPOP is killed by id and address."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", missing)
    place = Endpoint.of(url)
    connections = AgentConnections(place, "test", timeout=1, reconnect_max=1)
    zombie = Connection(place, "test:blocking", timeout=1)
    await BlockingConnection(zombie).post([("BLPOP", project, 30)])
    await eventually(lambda: are_blocked(admin, 1))
    name = await zombie_address(admin, zombie)
    connections.blocking.orphans.add(
        OrphanedConnection(zombie.client_id, "127.0.0.1:1", place)
    )
    await connections.kill_orphans(connections.blocking, kill=False)
    assert await are_blocked(admin, 1), "the same id at another address is a stranger"
    connections.blocking.orphans.add(OrphanedConnection(zombie.client_id, name, place))
    assert await connections.kill_orphans(connections.blocking, kill=False)
    await eventually(lambda: are_blocked(admin, 0))
    await zombie.drop()
    assert zombie.orphans.waiting[0].address == name
    await connections.aclose()


async def zombie_address(admin: Redis, connection: Connection) -> str:
    """The address of a connection as the server sees it."""
    clients = await admin.client_list()
    return next(str(c["addr"]) for c in clients if int(c["id"]) == connection.client_id)
