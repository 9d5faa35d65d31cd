"""Everything that can be opened, opened while Redis is away: the host goes on at once."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, cast

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketAttribute, SocketStream

from bls_agent import (
    Console,
    EventStore,
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.assets import AssetLibrary, AssetSync, DirectorySource
from bls_agent.crawl import CrawlRequest, RequestQueue, SeenFilter
from bls_agent.workers import (
    DataWorkerHeartbeat,
    FunctionCache,
    Heartbeat,
    TaskStatus,
    WorkerRegistry,
    WorkerStatus,
)

TIMEOUT: Final = 0.2  # seconds of a request, and of leaving
DEADLINE: Final = 8.0  # seconds of a cell, beside others

# What becomes of one connection, after it was accepted.
Way = Callable[[SocketStream], Awaitable[None]]


async def be_silent(stream: SocketStream) -> None:
    """Read, and answer nothing."""
    async for _ in stream:
        pass


async def close(stream: SocketStream) -> None:
    await stream.aclose()


async def reset(stream: SocketStream) -> None:
    """Break the connection off: RST."""
    raw = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def in_greeting(end: Way, answer: bytes = b"") -> Way:
    """Answer the greeting with some bytes, then end the connection."""

    async def serve(stream: SocketStream) -> None:
        await stream.receive(1)
        if answer:
            await stream.send(answer)
        await end(stream)

    return serve


def answer_each(answer: bytes) -> Way:
    """Answer whatever is asked with the same error."""

    async def serve(stream: SocketStream) -> None:
        async for data in stream:
            await stream.send(answer * data.count(b"*"))

    return serve


LOADING: Final = b"-LOADING Redis is loading the dataset in memory\r\n"
FULL: Final = b"-ERR max number of clients reached\r\n"
PROTECTED: Final = b"-DENIED Redis is running in protected mode\r\n"
NO_PASSWORD: Final = b"-NOAUTH Authentication required.\r\n"
HTTP: Final = b"HTTP/1.1 400 Bad Request\r\n\r\n"

WAYS: dict[str, Way | None] = {
    "nobody listens": None,
    "silent": be_silent,
    "closed at once": close,
    "reset at once": reset,
    "closed in the greeting": in_greeting(close),
    "reset in the greeting": in_greeting(reset),
    "half a reply": in_greeting(close, b"+O"),
    "loading": answer_each(LOADING),
    "full": in_greeting(close, FULL),
    "protected": in_greeting(close, PROTECTED),
    "a password is wanted": answer_each(NO_PASSWORD),
    "no Redis": in_greeting(close, HTTP),
}


@asynccontextmanager
async def away(way: Way | None) -> AsyncGenerator[str]:
    """Give the URL of a server that is away in this way."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)

    async def serve(stream: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            async with stream:
                await cast("Way", way)(stream)

    async with listener, anyio.create_task_group() as tasks:
        if way is None:
            await listener.aclose()
        else:
            tasks.start_soon(listener.serve, serve)
        yield f"redis://127.0.0.1:{port}/0"
        tasks.cancel_scope.cancel()


async def open_agent(url: str) -> None:
    async with ProjectAgent("a", redis=url, shutdown_timeout=TIMEOUT) as agent:
        agent.log.info("here")


async def open_thread(url: str) -> None:
    agent = ProjectAgent("b", redis=url, shutdown_timeout=TIMEOUT)

    def live() -> None:
        with agent.in_thread():
            agent.log.info("here")

    await anyio.to_thread.run_sync(live)


async def open_heartbeat(url: str) -> None:
    value = DataWorkerHeartbeat.create("c", WorkerStatus.RUNNING)
    async with Heartbeat(value, redis=url, timeout=TIMEOUT) as heartbeat:
        heartbeat.update(status=WorkerStatus.STOPPING)


async def open_run(url: str) -> None:
    async with (
        EventStore(url, timeout=TIMEOUT) as store,
        store.run(1, shutdown_timeout=TIMEOUT) as run,
    ):
        run.emit("a", "b")
        assert not run.is_owner


async def open_plain_run(url: str) -> None:
    def write() -> None:
        store = EventStore(url, timeout=TIMEOUT)
        with store.run(2, shutdown_timeout=TIMEOUT) as run:
            run.emit("a", "b")

    await anyio.to_thread.run_sync(write)


async def open_events(url: str) -> None:
    """A store of events: it says that Redis is away, or ``None`` where that is wanted."""
    async with EventStore(url, timeout=TIMEOUT) as store:
        with pytest.raises(RedisUnavailableError):
            await store.exists(1)
        with suppress(RedisRefusedError):  # a wrong password, as the documents say
            assert await store.follow(1).batch(TIMEOUT) == []
    async with EventStore(url, timeout=TIMEOUT, on_error="none") as store:
        assert await store.add(1, "a", "b") is None


async def open_cache(url: str) -> None:
    async with FunctionCache(url, timeout=TIMEOUT) as cache:

        @cache.cached
        async def double(number: int) -> int:
            return 2 * number

        assert await double(2) == 4


async def open_queue(url: str) -> None:
    async with RequestQueue(url, "d", timeout=TIMEOUT) as queue:
        with pytest.raises(RedisUnavailableError):
            await queue.push(CrawlRequest("http://a/"))
        with pytest.raises(RedisUnavailableError):
            async with queue.take(0):
                pass


async def open_filter(url: str) -> None:
    async with SeenFilter(url, "d", timeout=TIMEOUT) as seen:
        with pytest.raises(RedisUnavailableError):
            await seen.add("a")


async def open_library(url: str) -> None:
    async with AssetLibrary(url, timeout=TIMEOUT) as library:
        with pytest.raises(RedisUnavailableError):
            await library.list()


async def open_sync(url: str) -> None:
    source = DirectorySource(Path(__file__).parent / "corpus")
    async with AssetSync(url, source, timeout=TIMEOUT) as sync:
        with pytest.raises(RedisUnavailableError):
            await sync.run()
        with anyio.move_on_after(TIMEOUT) as scope:
            await sync.run_forever(0.05)
        assert scope.cancelled_caught


async def open_workers(url: str) -> None:
    async with WorkerRegistry(url, timeout=TIMEOUT) as registry:
        with pytest.raises(RedisUnavailableError):
            await registry.alive()
    async with TaskStatus(url, timeout=TIMEOUT) as tasks:
        with pytest.raises(RedisUnavailableError):
            await tasks.set("e", "running")


async def open_console(url: str) -> None:
    async with Console(url, timeout=TIMEOUT) as console:
        with pytest.raises(RedisUnavailableError):
            await console.projects()


SUBJECTS: dict[str, Callable[[str], Awaitable[None]]] = {
    "agent": open_agent,
    "thread": open_thread,
    "heartbeat": open_heartbeat,
    "run": open_run,
    "plain run": open_plain_run,
    "event store": open_events,
    "cache": open_cache,
    "queue": open_queue,
    "filter": open_filter,
    "library": open_library,
    "sync": open_sync,
    "workers": open_workers,
    "console": open_console,
}


@pytest.mark.parametrize("way", WAYS)
async def test_opened_while_redis_is_away(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs by itself opens and lives on; what asks raises RedisUnavailableError."""
    monkeypatch.setattr("bls_agent.connection.endpoint.CONNECT_TIMEOUT", 2 * TIMEOUT)
    failures: dict[str, Exception] = {}

    async def open_one(subject: str, url: str) -> None:
        try:
            with anyio.fail_after(DEADLINE):
                await SUBJECTS[subject](url)
        except Exception as error:  # all cells are shown together
            failures[subject] = error

    async with away(WAYS[way]) as url, anyio.create_task_group() as tasks:
        for subject in SUBJECTS:
            tasks.start_soon(open_one, subject, url)
    assert failures == {}
