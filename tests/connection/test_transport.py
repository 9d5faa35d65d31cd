"""One connection for many callers: order, cancelled callers, deadlines, bad links, TLS, loops."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import RedisUnavailableError
from bls_agent.connection.blocking import BlockingConnection
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint, packer
from bls_agent.connection.route import Route
from bls_agent.connection.transport import FAST, SLOWEST, ChannelState, Pace
from bls_agent.devserver import DevServer
from tests.harness import are_blocked, eventually, execute
from tests.kit import Cut, FaultProxy, Flip, Rate

LONG = b"x" * 300_000


async def test_every_caller_gets_its_own_reply(own_server: DevServer) -> None:
    """Two thousand requests at once, every third given up: none mixed up, one connection."""
    connection = Connection(Endpoint.of(own_server.url), "test", timeout=30)
    right: list[int] = []

    async def ask(number: int) -> None:
        assert await connection.call("ECHO", number) == str(number).encode()
        right.append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(2_000)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert set(range(2_000)) - set(range(0, 2_000, 3)) <= set(right)
    assert connection.generation == 1
    await connection.aclose()


async def test_a_blocking_read_cancelled_at_random_loses_nothing(
    connection: Connection, own_server: DevServer
) -> None:
    """Three thousand elements against random cancellations: all come, in order."""
    rng, found = random.Random(7), list[int]()
    reader = BlockingConnection(connection)

    async def pop() -> None:
        if not connection.pending:
            await reader.post([("BLPOP", "队列", 5), ("LPOP", "队列", 3)])
        while connection.pending:
            reply = await reader.collect() or []
            found.extend(int(one) for one in reply if one.isdigit())

    async with Redis.from_url(own_server.url) as producer:

        async def push() -> None:
            for number in range(0, 3_000, 5):
                await producer.rpush("队列", *range(number, number + 5))

        pushing = asyncio.create_task(push())
        while len(found) < 3_000:
            with anyio.move_on_after(rng.choice([0, 0.0002, 0.001, 1])):
                await pop()
        await pushing
    assert found == list(range(3_000))
    assert connection.generation == 1


async def test_what_is_asked_meanwhile_leaves_in_one_write(
    connection: Connection,
) -> None:
    """Fifty callers cost two writes, not fifty."""
    await connection.open()
    channel: Any = connection.channel
    sizes: list[int] = []
    write = channel._transport.write
    channel._transport = _Watched(channel._transport, sizes)
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(connection.call, "ECHO", number)
    assert len(sizes) == 2
    assert sum(sizes) == sum(len(packer()(("ECHO", n))) for n in range(50))
    channel._transport = write.__self__


class _Watched:
    def __init__(self, transport: Any, sizes: list[int]) -> None:
        self._transport = transport
        self._sizes = sizes

    def write(self, data: bytes) -> None:
        self._sizes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_a_cancelled_request_keeps_its_deadline(
    connection: Connection, own_server: DevServer
) -> None:
    """A dead connection is noticed although whoever asked has gone."""
    await connection.call("PING")
    own_server.freeze()
    try:
        with anyio.move_on_after(0.05):
            await connection.call("RPUSH", "队列", "x")
        assert connection.unanswered
        assert not connection.orphans
        await eventually(lambda: len(connection.orphans.waiting) == 1, timeout=3)
        assert not connection.connected
    finally:
        own_server.thaw()
    assert await connection.call("PING") == b"PONG"
    assert connection.generation == 2


async def test_who_came_late_may_ask_again(
    connection: Connection, own_server: DevServer
) -> None:
    """The oldest request has timed out; a younger one has only lost its connection."""
    await connection.call("PING")
    own_server.freeze()
    told: dict[str, str] = {}

    async def ask(name: str) -> None:
        with pytest.raises(RedisUnavailableError) as caught:
            await connection.call("ECHO", name)
        told[name] = caught.value.kind
        assert caught.value.ambiguous

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "old")
            await anyio.sleep(0.5)
            tasks.start_soon(ask, "young")
    finally:
        own_server.thaw()
    assert told == {"old": "timeout", "young": "connection"}


async def test_what_was_not_sent_is_not_ambiguous(connection: Connection) -> None:
    """A connection that ends in the same turn of the loop has not sent what waited."""
    await connection.open()
    first = asyncio.create_task(connection.call("PING"))
    second = asyncio.create_task(connection.call("PING"))
    await asyncio.sleep(0)
    channel: Any = connection.channel
    channel.fail(ConnectionError("cut"))
    replies = await asyncio.gather(first, second, return_exceptions=True)
    assert [getattr(one, "ambiguous", None) for one in replies] == [True, False]


@pytest.mark.parametrize("at", [0, 1, 3, 6])
async def test_a_reply_that_is_cut(own_server: DevServer, at: int) -> None:
    """Each caller is told; nobody gets another one's reply afterwards."""
    async with FaultProxy(own_server.url, seed=at) as proxy:
        connection = Connection(Endpoint.of(proxy.url), "test", timeout=1)
        await connection.open()
        proxy.arm(Cut(command="GET", at=at))
        async with Redis.from_url(own_server.url) as admin:
            await admin.set("键", "wert")
        replies = await asyncio.gather(
            connection.call("GET", "键"),
            connection.call("ECHO", "a"),
            return_exceptions=True,
        )
        assert all(
            isinstance(one, RedisUnavailableError) and one.kind == "connection"
            for one in replies
        )
        assert len(connection.orphans.waiting) == 1
        assert await connection.read("GET", "键") == b"wert"
        await connection.aclose()


async def test_garbage_ends_the_connection(own_server: DevServer) -> None:
    """What is no reply, or a reply that nobody waits for, is no reply to the next one."""
    async with FaultProxy(own_server.url, seed=3) as proxy:
        connection = Connection(Endpoint.of(proxy.url), "test", timeout=1)
        await connection.open()
        proxy.arm(Flip(command="ECHO", at=0))
        with pytest.raises(RedisUnavailableError) as caught:
            await connection.call("ECHO", "a")
        assert caught.value.kind in ("garbled", "timeout")
        assert await connection.call("ECHO", "b") == b"b"
        channel: Any = connection.channel
        channel.data_received(b"+unasked\r\n")
        assert not connection.connected
        assert await connection.call("ECHO", "c") == b"c"
        await connection.aclose()


async def test_a_push_is_no_reply(connection: Connection) -> None:
    """What a server sends unasked in front of a reply ends the connection."""
    await connection.open()
    channel: Any = connection.channel
    asking = asyncio.create_task(connection.call("ECHO", "a"))
    await asyncio.sleep(0)
    channel.data_received(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n")
    with pytest.raises(RedisUnavailableError, match="nobody asked for"):
        await asking
    assert await connection.call("ECHO", "b") == b"b"
    assert connection.generation == 2


async def test_large_requests_wait_for_one_another(own_server: DevServer) -> None:
    """On a narrow link what waits is not buffered, and small requests come through."""
    async with FaultProxy(own_server.url, seed=5) as proxy:
        connection = Connection(Endpoint.of(proxy.url), "test", timeout=2)
        await connection.open()
        channel: Any = connection.channel
        async with proxy.during(Rate(2_000_000)), anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(connection.call, "SET", f"键{number}", LONG)
            await anyio.sleep(0.05)
            assert channel._transport.get_write_buffer_size() <= 3 * len(LONG)
            assert await connection.call("PING") == b"PONG"
        assert connection.generation == 1
        await connection.aclose()


async def test_a_server_that_reads_nothing_gets_no_heap_of_requests(
    own_server: DevServer,
) -> None:
    """However many ask at once, little more than one request is on its way."""
    connection = Connection(Endpoint.of(own_server.url), "test", timeout=10)
    await connection.open()
    channel: Any = connection.channel
    own_server.freeze()
    try:
        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(connection.call, "SET", f"键{number}", LONG)
            await eventually(lambda: channel.state is ChannelState.CONGESTED)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            assert channel._transport.get_write_buffer_size() <= 3 * len(LONG)
            tasks.cancel_scope.cancel()
    finally:
        own_server.thaw()
    assert await connection.call("PING") == b"PONG"
    await connection.aclose()


async def test_what_has_not_left_is_not_executed_later(
    own_server: DevServer, admin: Redis
) -> None:
    """A request of which the server has read one half when its connection ends."""
    connection = Connection(Endpoint.of(own_server.url), "half", timeout=10)
    await connection.open()
    channel: Any = connection.channel
    own_server.freeze()
    asking = asyncio.create_task(connection.call("SET", "键", bytes(48_000_000)))
    try:
        await eventually(lambda: channel._transport.get_write_buffer_size() > 0)
        await connection.drop()
        with pytest.raises(RedisUnavailableError):
            await asking
    finally:
        own_server.thaw()

    async def is_gone() -> bool:
        return "half" not in [client["name"] for client in await admin.client_list()]

    await eventually(is_gone)
    assert await admin.exists("键") == 0
    await connection.aclose()


async def test_a_dead_link_is_noticed_soon_after_a_long_request(
    own_server: DevServer,
) -> None:
    """The time that a long request had is not the next one's."""
    connection = Connection(Endpoint.of(own_server.url), "test", timeout=0.2)
    await connection.open()
    channel: Any = connection.channel
    await eventually(lambda: channel._timer is None)  # nobody waits for anything
    await connection.call("SET", "键", LONG)  # had 4.7 seconds
    own_server.freeze()
    try:
        began = anyio.current_time()
        with pytest.raises(RedisUnavailableError, match="timeout"):
            await connection.call("GET", "键")
        assert anyio.current_time() - began < 2
    finally:
        own_server.thaw()
    await connection.aclose()


async def test_a_connection_that_ends_with_its_first_replies() -> None:
    """It is no connection: the caller is told in time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"ID" not in await reader.read(65_536):
            writer.write(b"+OK\r\n")
        writer.write(b"+OK\r\n:7\r\n+unasked\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Connection(Endpoint.of(f"redis://127.0.0.1:{port}"), "test", timeout=1)
    with anyio.fail_after(10), pytest.raises(RedisUnavailableError):
        await connection.call("PING")
    await connection.aclose()
    server.close()


async def test_strict_means_no_extension(own_server: DevServer) -> None:
    """A reply as long as some of it comes has time, unless the timeout is strict."""
    async with Redis.from_url(own_server.url) as admin:
        await admin.set("键", LONG)
    async with FaultProxy(own_server.url, seed=8) as proxy:
        patient = Connection(Endpoint.of(proxy.url), "test", timeout=0.3)
        strict = Connection(Endpoint.of(proxy.url), "test", timeout=0.3, strict=True)
        await patient.open()
        await strict.open()
        async with proxy.during(Rate(300_000)):
            assert await patient.call("GET", "键") == LONG
            began = anyio.current_time()
            with pytest.raises(RedisUnavailableError, match="timeout"):
                await strict.call("GET", "键")
            assert anyio.current_time() - began < 0.9
        await patient.aclose()
        await strict.aclose()


async def test_strict_counts_from_the_sending(own_server: DevServer) -> None:
    """A request behind another one has no more time, if the timeout is strict."""
    async with Redis.from_url(own_server.url) as admin:
        await admin.set("键", LONG[:24_000])

    async def read_twice(*, strict: bool) -> list[Any]:
        place = Endpoint.of(proxy.url)
        connection = Connection(place, "test", timeout=2, strict=strict)
        await connection.open()
        reads = [asyncio.ensure_future(connection.call("GET", "键")) for _ in range(2)]
        replies: list[Any] = await asyncio.gather(*reads, return_exceptions=True)
        await connection.aclose()
        return replies

    rate = Rate(20_000)  # a reply takes 1.2 s
    async with FaultProxy(own_server.url, seed=8) as proxy, proxy.during(rate):
        patient, (first, second) = await asyncio.gather(
            read_twice(strict=False), read_twice(strict=True)
        )
    assert patient == [LONG[:24_000]] * 2
    assert first == LONG[:24_000]
    assert second.kind == "timeout"


def test_how_long_a_request_may_take() -> None:
    """Long ones have more time, and still more when one did not pass."""
    pace = Pace(1.0)
    assert pace.time_for(100) == 1.0
    size = int(4 * FAST)
    assert pace.time_for(size) == pytest.approx(4.0)
    pace.learn(size, None)
    assert pace.time_for(int(FAST)) == pytest.approx(4.0)
    for _ in range(9):
        pace.learn(size, None)
    assert pace.time_for(int(3 * SLOWEST)) == pytest.approx(3.0)
    assert pace.time_for(size) == 16.0
    pace.learn(size, 0.0)  # answered within one step of the loop's clock
    assert pace.time_for(size) == pytest.approx(4.0)
    assert Pace(1.0, strict=True).time_for(size) == 1.0


async def test_closing_tells_whoever_waits(
    connection: Connection, admin: Redis
) -> None:
    """In order: nobody is left waiting, and nothing is remembered as lost."""
    reader = BlockingConnection(connection)
    await reader.post([("BLPOP", "队列", 30)])
    await eventually(lambda: are_blocked(admin, 1))
    reading = asyncio.create_task(reader.collect())
    await asyncio.sleep(0)
    await connection.aclose()
    with pytest.raises(RedisUnavailableError, match="closed"):
        await reading
    assert not connection.orphans
    assert connection.pending == 0
    await eventually(lambda: are_blocked(admin, 0))


async def test_closing_while_the_server_is_sought(own_server: DevServer) -> None:
    """No connection is left that was opened after the end."""

    class SlowRoute(Route):
        async def find(self) -> Endpoint:
            await anyio.sleep(0.2)
            return await super().find()

    route = SlowRoute(Endpoint.of(own_server.url))
    connection = Connection(route, "test", timeout=1)
    asking = asyncio.create_task(connection.call("PING"))
    await asyncio.sleep(0.05)
    await connection.aclose()
    with pytest.raises(RedisUnavailableError):
        await asking
    assert not connection.engaged


async def test_a_connection_that_nobody_holds_is_closed(
    own_server: DevServer, admin: Redis
) -> None:
    """The event loop alone keeps no connection open."""
    connection = Connection(Endpoint.of(own_server.url), "forgotten", timeout=1)
    await connection.call("PING")
    del connection
    gc.collect()

    async def is_gone() -> bool:
        names = [client["name"] for client in await admin.client_list()]
        return "forgotten" not in names

    await eventually(is_gone)


async def test_others_are_answered_when_a_reply_ends_the_connection(
    own_server: DevServer, admin: Redis
) -> None:
    """A server that has become a replica answers what was asked before it is left."""
    connection = Connection(Endpoint.of(own_server.url), "test", timeout=1)
    await connection.call("SET", "键", "1")
    await execute(admin, "REPLICAOF", "127.0.0.1", "1")
    refused, read = await asyncio.gather(
        connection.call("SET", "键", "2"),
        connection.call("GET", "键"),
        return_exceptions=True,
    )
    assert isinstance(refused, RedisUnavailableError)
    assert refused.kind == "read_only"
    assert read == b"1"
    await execute(admin, "REPLICAOF", "NO", "ONE")
    assert await connection.call("SET", "键", "3") == b"OK"
    assert connection.generation == 2
    assert not connection.orphans
    await connection.aclose()


async def test_the_clock_looks_twice(connection: Connection) -> None:
    """What has arrived while the event loop stood still is no silence."""
    await connection.call("PING")
    asking = asyncio.create_task(connection.call("PING"))
    await asyncio.sleep(0)
    time.sleep(1.5)
    assert await asking == b"PONG"
    assert connection.generation == 1


def test_under_uvloop(redis_url: str) -> None:
    """The same protocol over uvloop's transports."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        connection = Connection(Endpoint.of(redis_url), "test", timeout=2)
        reader = BlockingConnection(connection)
        replies = await asyncio.gather(
            *(connection.call("ECHO", n) for n in range(500))
        )
        assert replies == [str(n).encode() for n in range(500)]
        for _ in range(20):
            with anyio.move_on_after(0.001):
                if not connection.pending:
                    await reader.post([("BLPOP", "uvloop-nichts", 1)])
                await reader.collect()
        assert await reader.collect() is None
        await connection.call("SET", "uvloop-lang", LONG, "EX", 5)
        assert await connection.call("GET", "uvloop-lang") == LONG
        await connection.drop()
        assert await connection.call("PING") == b"PONG"
        await connection.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
