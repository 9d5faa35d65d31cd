"""The proxy between a real client and a real server: each fault does what it says."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from typing import Any, Self

import anyio
import pytest

from bls_agent import ConfigurationError, Console, ProjectAgent
from bls_agent.connection.endpoint import packer
from bls_agent.testing import FaultProxy as PublicProxy
from tests.harness import eventually
from tests.kit import (
    Cut,
    Delay,
    Direction,
    FaultProxy,
    History,
    Hold,
    Lose,
    Rate,
    Refuse,
    Slices,
    Swallow,
)

REQUESTS, REPLIES = Direction.REQUESTS, Direction.REPLIES


class Peer:
    """A bare connection: what is sent and what comes back, byte for byte."""

    def __init__(self, proxy: PublicProxy) -> None:
        self.proxy = proxy

    async def __aenter__(self) -> Self:
        opened = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        self.reader, self.writer = opened
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def send(self, *words: str) -> None:
        self.writer.write(packer()(words))

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readexactly(size)

    async def read_rest(self) -> bytes:
        """Everything until the connection is closed."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    async def hears_nothing(self, seconds: float = 0.05) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return not await self.reader.read(1)
        except TimeoutError:
            return True


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(redis_url, seed=7) as proxy:
        yield proxy


@pytest.fixture
async def peer(proxy: FaultProxy) -> AsyncIterator[Peer]:
    async with Peer(proxy) as peer:
        yield peer


async def test_without_faults_nothing_is_changed(
    proxy: FaultProxy, project: str
) -> None:
    """An agent and a console work through it, and nothing is recorded."""
    history = History()
    agent = ProjectAgent(project, redis=proxy.url)
    history.attach(agent)
    agent.command("mark")(lambda: "x" * 100_000)
    async with agent, Console(proxy.url) as console:
        outcome = await console.call(project, "mark", timeout=5)
    assert outcome.succeeded
    assert len(history) == 2
    assert proxy.fired == []
    await eventually(lambda: not proxy.connections)


@pytest.mark.parametrize("at", [0, 4])
async def test_a_reply_is_cut(proxy: FaultProxy, peer: Peer, at: int) -> None:
    """After exactly so many bytes, and only that of the command that was named."""
    cut = proxy.arm(Cut(at=at, command="PING"))
    peer.send("ECHO", "one")
    peer.send("PING")
    assert await peer.read_rest() == b"$3\r\none\r\n" + b"+PONG\r\n"[:at]
    assert (cut.fired, proxy.fired) == (1, ["PING"])


async def test_a_request_is_cut(proxy: FaultProxy, peer: Peer, project: str) -> None:
    """The server gets a part and does nothing; with all of its bytes it does it."""
    request = packer()(("RPUSH", project, "x"))
    for at, length in ((len(request) - 1, b":0\r\n"), (len(request), b":1\r\n")):
        proxy.arm(Cut(direction=REQUESTS, at=at, command="RPUSH"))
        async with Peer(proxy) as other:
            other.send("RPUSH", project, "x")
            assert await other.read_rest() in (b"", b":1\r\n")

        async def has_come(length: bytes = length) -> bool:
            peer.send("LLEN", project)
            return await peer.read(4) == length

        await eventually(has_come)
    peer.send("DEL", project)
    await peer.read(4)


async def test_a_reply_is_lost(proxy: FaultProxy, peer: Peer) -> None:
    """It vanishes, and what follows it; another connection is not concerned."""
    proxy.arm(Lose(command="PING"))
    peer.send("ECHO", "one")
    assert await peer.read(9) == b"$3\r\none\r\n"
    peer.send("PING")
    peer.send("ECHO", "two")
    async with Peer(proxy) as other:
        other.send("PING")
        assert await other.read(7) == b"+PONG\r\n"
    with pytest.raises(TimeoutError), anyio.fail_after(0.2):
        await peer.read(1)


async def test_everything_is_delayed(proxy: FaultProxy, peer: Peer) -> None:
    """Both ways together; many requests at once take no longer than one."""
    begin = time.monotonic()
    async with proxy.during(Delay(0.1)):
        for _ in range(20):
            peer.send("PING")
            await asyncio.sleep(0.002)  # a packet each
        await peer.read(7 * 20)
    assert 0.2 <= time.monotonic() - begin < 0.2 * 20


async def test_the_rate_is_limited(proxy: FaultProxy, peer: Peer) -> None:
    """So many bytes per second."""
    async with proxy.during(Rate(10_000, direction=REPLIES)):
        begin = time.monotonic()
        peer.send("ECHO", "x" * 2_000)
        await peer.read(2_000)
        assert time.monotonic() - begin >= 0.15


@pytest.mark.parametrize(
    ("kind", "value"), [(Slices, 0), (Slices, 1.5), (Rate, 0), (Rate, float("nan"))]
)
def test_a_link_that_carries_nothing_is_refused(kind: Any, value: Any) -> None:
    """At once, and not in the task of a connection."""
    with pytest.raises(ConfigurationError):
        kind(value)


async def test_slices_change_nothing(proxy: FaultProxy, peer: Peer) -> None:
    """One byte at a time, all of them, in order."""
    async with proxy.during(Slices()):
        peer.send("ECHO", "abc" * 50)
        assert await peer.read(158) == b"$150\r\n" + b"abc" * 50 + b"\r\n"


async def test_a_condition_ends_in_the_middle_of_a_reply(
    proxy: FaultProxy, peer: Peer
) -> None:
    """The rest of the reply arrives at once, instead of in 100 s."""
    async with proxy.during(Rate(100, direction=REPLIES)):
        peer.send("ECHO", "x" * 10_000)
        assert await peer.read(8) == b"$10000\r\n"
    assert await peer.read(10_002) == b"x" * 10_000 + b"\r\n"


@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
async def test_what_is_held_comes_later(
    proxy: FaultProxy, peer: Peer, direction: Direction
) -> None:
    """A partition that heals: nothing is lost."""
    async with proxy.during(Hold(direction=direction)):
        peer.send("PING")
        assert await peer.hears_nothing()
    assert await peer.read(7) == b"+PONG\r\n"


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_comes_while_listening_ends_is_closed(
    redis_url: str, turns: int
) -> None:
    """Its socket is not left to the garbage collector, at whatever turn it came."""
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what earlier tests have left is no matter of this one
    async with FaultProxy(redis_url) as proxy:
        with socket.socket() as client:
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(("127.0.0.1", proxy.port))
            for _ in range(turns):
                await asyncio.sleep(0)
            proxy.start(Refuse())
            await eventually(lambda: not proxy.connections)
            await asyncio.sleep(0)
    with warnings.catch_warnings(record=True, action="always") as caught:
        gc.collect()
    assert [str(one.message) for one in caught] == []


async def test_a_swallowed_request_is_never_executed(
    proxy: FaultProxy, peer: Peer, project: str
) -> None:
    """Half-open: the socket stays, the connection is deaf for good, new ones are not."""
    async with proxy.during(Swallow(direction=REQUESTS)):
        peer.send("RPUSH", project, "x")
        assert await peer.hears_nothing()
    peer.send("PING")
    assert await peer.hears_nothing()
    async with Peer(proxy) as other:
        other.send("EXISTS", project)
        assert await other.read(4) == b":0\r\n"


async def test_a_swallowed_reply_was_executed(
    proxy: FaultProxy, peer: Peer, project: str
) -> None:
    """The other half: the server did it, nobody hears of it."""
    async with proxy.during(Swallow(direction=REPLIES)):
        peer.send("RPUSH", project, "x")
        assert await peer.hears_nothing()
    async with Peer(proxy) as other:
        other.send("DEL", project)
        assert await other.read(4) == b":1\r\n"


async def test_the_server_keeps_a_zombie(proxy: FaultProxy, project: str) -> None:
    """A client that goes away behind a dead link leaves its connection at the server."""
    async with Peer(proxy) as gone:
        gone.send("BLPOP", project, "0")
        await gone.hears_nothing()
        swallow = proxy.start(Swallow(direction=REQUESTS))
        gone.send("PING")
        await gone.hears_nothing()
    await proxy.end(swallow)
    async with Peer(proxy) as other:
        other.send("RPUSH", project, "x")
        other.send("EXISTS", project)
        assert await other.read(8) == b":1\r\n:0\r\n"


async def test_a_side_that_reads_no_more_keeps_no_socket_open() -> None:
    """The link breaks while bytes wait for a server that does not read them."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        target = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        async with PublicProxy(target) as proxy, Peer(proxy) as other:
            await eventually(lambda: bool(proxy._links))
            (link,) = proxy._links.values()
            transport = link._ways[REQUESTS][1].transport
            other.writer.write(bytes(16 * 1024 * 1024))
            await eventually(lambda: transport.get_write_buffer_size() > 0)
            proxy.break_all()
            await eventually(lambda: not proxy._links)
            await asyncio.sleep(0)  # asyncio closes a socket in the next turn
            assert transport.get_extra_info("socket").fileno() == -1


async def test_new_connections_are_refused(proxy: FaultProxy, peer: Peer) -> None:
    """Those that are there live on; later they are accepted again at the same port."""
    url = proxy.url
    async with proxy.during(Refuse()):
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        peer.send("PING")
        assert await peer.read(7) == b"+PONG\r\n"
    async with Peer(proxy) as other:
        other.send("PING")
        assert await other.read(7) == b"+PONG\r\n"
    assert proxy.url == url


@pytest.mark.parametrize("reset", [False, True])
async def test_all_connections_break(
    proxy: FaultProxy, peer: Peer, reset: bool
) -> None:
    """All that are there, by FIN or by RST; new ones work."""
    peer.send("PING")
    await peer.read(7)
    assert proxy.break_all(reset=reset) == 1
    with pytest.raises(ConnectionResetError) if reset else nullcontext():
        assert await peer.read_rest() == b""
    async with Peer(proxy) as other:
        other.send("PING")
        assert await other.read(7) == b"+PONG\r\n"


async def test_healing_ends_everything(proxy: FaultProxy, peer: Peer) -> None:
    """Conditions and rules alike."""
    proxy.start(Hold())
    proxy.start(Refuse())
    proxy.arm(Lose(times=None))
    await proxy.heal()
    peer.send("PING")
    assert await peer.read(7) == b"+PONG\r\n"
    async with Peer(proxy):
        pass
    assert proxy.fired == []


async def test_the_end_of_one_condition_leaves_its_equal_on(
    proxy: FaultProxy, peer: Peer
) -> None:
    """An inner block that holds, too, does not release what the outer block holds."""
    async with proxy.during(Hold()):
        async with proxy.during(Hold()):
            peer.send("PING")
        assert await peer.hears_nothing()
    assert await peer.read(7) == b"+PONG\r\n"


async def test_nothing_is_left_behind(redis_url: str) -> None:
    """Closing the proxy ends its tasks, whatever was on."""
    before = asyncio.all_tasks()
    async with FaultProxy(redis_url) as proxy, Peer(proxy) as peer:
        proxy.start(Swallow())
        peer.send("PING")
        await peer.hears_nothing()
    assert asyncio.all_tasks() == before


async def test_a_cancelled_block_ends_as_its_scope_asks(redis_url: str) -> None:
    """However far connections are, no cancellation passes the scope that asked for it."""
    for turns in range(15):
        for count in range(1, 6):
            async with (
                anyio.create_task_group() as group,
                FaultProxy(redis_url) as proxy,
            ):
                peers = [
                    await asyncio.open_connection("127.0.0.1", proxy.port)
                    for _ in range(count)
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
                group.cancel_scope.cancel()
            for _, writer in peers:
                writer.close()


async def test_the_url_keeps_login_and_database(redis_url: str) -> None:
    """Only host and port are the proxy's own."""
    _, _, place = redis_url.partition("://")
    host, _, _ = place.partition("/")
    async with FaultProxy(f"redis://me:p%40w@{host}/3?a=b") as proxy:
        assert proxy.url == f"redis://me:p%40w@127.0.0.1:{proxy.port}/3?a=b"
        assert str(proxy.seed) in repr(proxy)
        assert "p%40w" not in repr(proxy)


@pytest.mark.parametrize("cycles", range(4, 10))  # before that it is still asyncio's
async def test_a_connection_that_has_just_begun_is_closed(
    redis_url: str, cycles: int
) -> None:
    """However far it came when the proxy ends, nothing of it is left to the collector."""
    async with FaultProxy(redis_url) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port))
        for _ in range(cycles):
            await asyncio.sleep(0)
    with client:
        client.settimeout(5)
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""
    gc.collect()
