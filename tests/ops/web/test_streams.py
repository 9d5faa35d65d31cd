"""Server-sent events from a real server: everybody hears everything, and all of it ends."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any
from urllib.parse import quote

import anyio
import httpx2 as httpx
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.devserver import DevServer
from bls_agent.ops.web import server, streams
from bls_agent.ops.web.app import create_app
from bls_agent.ops.web.config import Limits, WebConfig
from bls_agent.ops.web.feeds import logs, watch
from bls_agent.ops.web.feeds.watch import Item
from tests.event_source import EventSourceParser
from tests.harness import eventually
from tests.ops.web.serving import PASSWORD, USERS, Served, served

Event = tuple[str, Any]
WATCHES = {  # the last part of the address → the kind of its events
    "fleet": "fleet",
    "workers": "workers",
    "runs": "runs",
    "assets": "assets",
    "crawl": "queues",
}


@pytest.fixture
def console(redis_url: str) -> Iterator[Served]:
    """A console that listens."""
    with served(WebConfig(redis=redis_url, port=0)) as running:
        yield running


@asynccontextmanager
async def following(url: str, **more: Any) -> AsyncIterator[AsyncIterator[Event]]:
    """Follow a stream; gives its events."""
    async with (
        httpx.AsyncClient(timeout=20, **more) as client,
        client.stream("GET", url) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["content-security-policy"]
        assert answer.headers["x-accel-buffering"] == "no"
        assert "server" not in answer.headers
        yield events_of(answer)


async def events_of(answer: httpx.Response) -> AsyncIterator[Event]:
    parser = EventSourceParser()
    async for piece in answer.aiter_bytes():
        for message in parser.feed(piece):
            yield message.type, orjson.loads(message.data)


async def next_of(events: AsyncIterator[Event], *kinds: str) -> Event:
    """The next event of one of these kinds."""
    with anyio.fail_after(15):
        async for kind, data in events:
            if kind in kinds:
                return kind, data
    pytest.fail(f"the stream ended before one of {kinds}")


def log_url(console: Served, project: str, rest: str = "") -> str:
    return f"{console.url}api/logs/stream?projectName={quote(project)}{rest}"


async def write(redis: Redis, project: str, *messages: str) -> None:
    records = [orjson.dumps({"message": message}) for message in messages]
    await redis.rpush(f"{project}_项目控制台", *records)


async def messages_until(events: AsyncIterator[Event], last: str) -> list[str]:
    """The messages that come, up to this one."""
    found: list[str] = []
    while last not in found:
        _, records = await next_of(events, "log")
        found += [record["message"] for record in records]
    return found


async def test_a_log_is_followed(console: Served, redis: Redis, project: str) -> None:
    """First the place, then the newest, then what comes: each once, in order."""
    await write(redis, project, *map(str, range(10)))
    async with following(log_url(console, project, "&limit=3")) as events:
        kind, place = await next_of(events, "place", "log")
        assert kind == "place"
        assert await messages_until(events, "9") == ["7", "8", "9"]
        await write(redis, project, "10", "11")
        assert await messages_until(events, "11") == ["10", "11"]
        async with httpx.AsyncClient() as client:
            query = f"projectName={quote(project)}&before={place['before']}"
            older = (await client.get(f"{console.url}api/logs?{query}")).json()
        assert [one["message"] for one in older["logs"]] == [str(n) for n in range(7)]


async def test_the_answer_to_help_is_cut(
    console: Served, redis_url: str, project: str
) -> None:
    """A built-in command's long outcome is shown in 1 KB; another one's is whole."""
    agent = ProjectAgent(project, redis=redis_url)
    agent.command("long")(lambda: "x" * 3_000)
    for number in range(30):
        agent.command(f"command-{number}")(lambda: None)
    async with agent, Console(agent) as caller:
        assert len((await caller.call(project, "help")).result) > 30
        await caller.call(project, "long")
        async with following(log_url(console, project)) as events:
            found: list[Any] = []
            while len(found) < 2:
                _, told = await next_of(events, "log")
                found += told
    first, second = found
    assert (first["cut"], first["metadata"]["outcome"]) == (True, "succeeded")
    assert first["metadata"]["command"] == "help"
    assert len(orjson.dumps(first)) <= 1_024
    assert len(second["metadata"]["result"]) == 3_000


async def test_one_reader_serves_all_followers(
    console: Served, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody who follows a list hears all of it from one reader; then it ends."""
    monkeypatch.setattr(logs, "GRACE", 0.1)
    await write(redis, project, *map(str, range(5)))
    heard: list[list[str]] = []

    async def follow() -> None:
        async with following(log_url(console, project)) as events:
            heard.append(await messages_until(events, "19"))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(follow)
        await eventually(lambda: console.app.web.streams.open == 10, 10)
        for n in range(5, 20):
            await write(redis, project, str(n))
        assert len(console.app.web.logs) == 1
    assert heard == [[str(n) for n in range(20)]] * 10
    await eventually(lambda: console.app.web.streams.open == 0, 10)
    await eventually(lambda: len(console.app.web.logs) == 0, 15)


async def test_a_slow_follower_gets_a_gap(
    redis_url: str, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He learns how many he missed and goes on; nothing is kept for him."""
    monkeypatch.setattr(logs, "MOST", 50)
    with served(WebConfig(redis=redis_url, port=0)) as console:
        await write(redis, project, "first")
        async with following(log_url(console, project)) as events:
            assert await messages_until(events, "first")
            feed = console.app.web.logs._feeds[project]
            await write(redis, project, *map(str, range(500)))
            _, gap = await next_of(events, "gap")
            assert await messages_until(events, "499") == [
                str(n) for n in range(450, 500)
            ]
            assert gap == {"missing": 450}
            assert feed.ring.end - feed.ring.begin <= 50
            assert console.app.web.counts["log_records_missed"] == 450


async def test_the_watch_ends_after_the_last_follower(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some time, and begins anew with the next one."""
    monkeypatch.setattr(watch, "GRACE", 0.1)
    with served(WebConfig(redis=redis_url, port=0)) as console:
        for _ in range(2):
            async with following(f"{console.url}events/workers") as events:
                assert (await next_of(events, "workers"))[1]["whole"]
                assert console.app.web.workers.running
            await eventually(lambda: not console.app.web.workers.running, 10)
        assert console.app.web.fleet.running  # the journal of changes never ends


async def test_an_outage_is_told_and_outlived(
    own_server: DevServer, project: str
) -> None:
    """All streams stay open, report that Redis is away, and go on when it is back."""
    redis = Redis.from_url(own_server.url, protocol=2)
    await write(redis, project, "before")
    with served(WebConfig(redis=own_server.url, port=0)) as console:
        async with AsyncExitStack() as stack:
            records = await stack.enter_async_context(
                following(log_url(console, project))
            )
            watches = {
                kind: await stack.enter_async_context(
                    following(f"{console.url}events/{name}")
                )
                for name, kind in WATCHES.items()
            }
            assert await messages_until(records, "before") == ["before"]
            for kind, events in watches.items():
                _, picture = await next_of(events, kind)
                assert (picture["whole"], picture["away"]) == (True, None)
            own_server.kill()
            _, away = await next_of(records, "unavailable")
            assert away["kind"]
            for kind, events in watches.items():
                while not (await next_of(events, kind))[1]["away"]:
                    pass
            own_server.restart()
            await write(redis, project, "before", "after")
            kind, _ = await next_of(records, "available", "log")
            if kind == "available":
                assert "after" in await messages_until(records, "after")
            for kind, events in watches.items():
                while (await next_of(events, kind))[1]["away"]:
                    pass
    await redis.aclose()


async def test_a_silent_stream_beats(
    redis_url: str, redis: Redis, project: str
) -> None:
    """So that proxies keep it, and pages know that it is alive."""
    await write(redis, project, "only")
    limits = Limits(heartbeat=0.2)
    with served(WebConfig(redis=redis_url, port=0, limits=limits)) as console:
        async with following(log_url(console, project)) as events:
            await messages_until(events, "only")
            for _ in range(2):
                assert await next_of(events, "beat") == ("beat", {})


async def test_streams_are_bounded(redis_url: str) -> None:
    """429 for one too many of a user, 503 of all; what ends makes room."""
    limits = Limits(user_streams=2, streams=2, heartbeat=0.2)
    with served(WebConfig(redis=redis_url, port=0, limits=limits)) as console:
        url = f"{console.url}events/fleet"
        async with following(url) as one, following(url) as other:
            await next_of(one, "fleet")
            await next_of(other, "fleet")
            async with httpx.AsyncClient() as client:
                answer = await client.get(url)
                assert answer.status_code == 429
                assert answer.headers["retry-after"]
                command = {"targetProjectName": "x", "command": "y", "wait": 1}
                answer = await client.post(f"{console.url}api/commands", json=command)
                assert answer.status_code in {404, 429}
        await eventually(lambda: console.app.web.streams.open == 0, 10)
        async with following(url) as again:
            await next_of(again, "fleet")


async def test_a_logout_ends_the_streams(redis_url: str) -> None:
    """What was opened in a session ends with it."""
    limits = Limits(heartbeat=0.2)
    config = WebConfig(redis=redis_url, port=0, users=USERS, limits=limits)
    with served(config) as console:
        base = console.url.rstrip("/")
        async with httpx.AsyncClient(base_url=base, headers={"origin": base}) as client:
            form = {"user": "operator", "password": PASSWORD}
            await client.post("/login", data=form)
            cookies = dict(client.cookies)
            async with following(f"{base}/events/fleet", cookies=cookies) as events:
                await next_of(events, "fleet")
                await client.post("/logout")
                with anyio.fail_after(10):
                    async for _ in events:
                        pass
            assert (await client.get("/events/fleet")).status_code == 401


async def test_everything_ends_at_once(
    redis_url: str, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty streams come to a proper end by themselves, and are not cut off."""
    monkeypatch.setattr(server, "GRACE", 6)  # these readers share our interpreter
    monkeypatch.setattr(streams, "PATIENCE", 5)
    await write(redis, project, "only")
    over = 0

    async def follow(url: str) -> None:
        nonlocal over
        async with following(url) as events:
            async for _ in events:
                pass
            over += 1

    def stop() -> float:
        began = time.monotonic()
        running.__exit__(None, None, None)
        return time.monotonic() - began

    running = served(WebConfig(redis=redis_url, port=0))
    console = running.__enter__()
    async with anyio.create_task_group() as tasks:
        for n in range(50):
            path = log_url(console, project) if n % 2 else f"{console.url}events/fleet"
            tasks.start_soon(follow, path)
        await eventually(lambda: console.app.web.streams.open == 50, 20)
        took = await anyio.to_thread.run_sync(stop)
    assert over == 50
    assert took < 8


def connect(console: Served, own: str = "127.0.0.1") -> socket.socket:
    """Connect from an address of this machine."""
    return socket.create_connection(("127.0.0.1", console.port), 10, (own, 0))


def closed(channel: socket.socket) -> bool:
    """Wait until the other side has closed a connection."""
    try:
        while channel.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


async def test_who_reads_no_event_is_dropped(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A browser that is stuck holds none of the streams that all share."""
    await write(redis, project, *["x" * 50_000] * 400)
    config = WebConfig(redis=redis_url, port=0, limits=Limits(stall=0.5))
    with served(config) as console, connect(console) as channel:
        query = f"projectName={quote(project)}&limit=400"
        request = f"GET /api/logs/stream?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        channel.sendall(request.encode())
        counts, streams = console.app.web.counts, console.app.web.streams
        await eventually(lambda: counts["streams_stalled"] == 1, 15)
        await eventually(lambda: streams.open == 0)


async def test_connections_are_bounded(redis_url: str) -> None:
    """One too many is answered with 503."""
    config = WebConfig(redis=redis_url, port=0, limits=Limits(connections=3))
    with served(config) as console:
        with connect(console), connect(console), connect(console) as third:
            third.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = await anyio.to_thread.run_sync(third.recv, 65_536)
            assert answer.startswith(b"HTTP/1.1 503 ")
        await eventually(lambda: not console.connections)
        async with httpx.AsyncClient() as client:
            answer_ = await client.get(f"{console.url}api/health")
            assert answer_.status_code == 200


async def test_what_is_no_http_is_refused(redis_url: str) -> None:
    """Other bytes, a head that is too long, an address that is not ASCII, two lengths."""
    with served(WebConfig(redis=redis_url, port=0)) as console:

        def ask(request: bytes) -> bytes:
            with connect(console) as channel:
                channel.sendall(request)
                return channel.recv(65_536)

        typed = "GET /api/logs?projectName=订单系统 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for request in (
            b"HELLO\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 90_000,
            typed.encode(),
        ):
            answer = await anyio.to_thread.run_sync(ask, request)
            assert answer.startswith(b"HTTP/1.1 400 ")
        smuggled = (
            b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        )
        answer = await anyio.to_thread.run_sync(ask, smuggled)
        assert answer.startswith(b"HTTP/1.1 411 ")
        assert b"connection: close" in answer
        assert answer.count(b"HTTP/1.1") == 1


async def test_who_lags_behind_holds_one_event(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The rest is kept once for all, and what was forgotten meanwhile is a gap."""
    await write(redis, project, "first")
    state = create_app(WebConfig(redis=redis_url)).web
    long = Item(b'"%s"' % (b"x" * 60_000), "log")
    async with anyio.create_task_group() as tasks:
        state.logs.open(tasks)
        async with aclosing(streams._log_events(state, project, 10)) as events:
            assert b"place" in await anext(events)
            assert b"first" in await anext(events)
            ring = state.logs._feeds[project].ring
            ring.add(*[long] * 50)
            assert len(await anext(events)) <= streams.EVENT_SIZE + 60_000
            ring.add(*[long] * 200)
            assert b"event: gap" in await anext(events)
        tasks.cancel_scope.cancel()
    await state.console.aclose()


async def test_a_stream_begins_behind_the_page(
    redis_url: str, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an outage was between its records; where the page ends nowhere is a gap."""
    monkeypatch.setattr(logs, "ALIGN", 60.0)
    await write(redis, project, "first")
    second = orjson.dumps({"message": "second", "metadata": {"agent": "web-1#1"}})
    state = create_app(WebConfig(redis=redis_url)).web
    async with anyio.create_task_group() as tasks:
        state.logs.open(tasks)
        with state.logs.join(project) as feed:
            await feed.begun.wait()
            feed.ring.add(Item(b"{}", "available"))
            await redis.rpush(f"{project}_项目控制台", second)
            with anyio.fail_after(10):
                assert (await feed.newest(10))[1] == 3
            await redis.rpush(f"{project}_项目控制台", second)  # the feed drops it
            monkeypatch.setattr(logs, "ALIGN", 0.1)
            async with aclosing(streams._log_events(state, project, 10)) as events:
                for text in (b"place", b"second", b"event: gap"):
                    assert text in await anext(events)
        tasks.cancel_scope.cancel()
    await state.console.aclose()
