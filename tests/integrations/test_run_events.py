"""Runs over HTTP: statuses, rights, origins, outages, and that nothing stays behind."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2 as httpx
import orjson
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis
from starlette.responses import Response

from bls_agent import EventStore
from bls_agent.integrations.run_events import (
    RunEventsApp,
    RunEventsResponse,
    allow_all,
)
from bls_agent.runs.sse import write_unnamed
from tests.event_source import EventSourceParser, Message
from tests.harness import eventually
from tests.integrations.serving import (
    Followed,
    WebProcess,
    asking,
    following,
    serving,
    write,
)

PAGE = "https://page.example"


UNNAMED = [
    (b'id: 1-0\nevent: llm.stream\ndata: {"x":1}\n\n', b'id: 1-0\ndata: {"x":1}\n\n'),
    (b'event: gap\ndata: {"a":1}\n\n', b'data: {"type":"gap","a":1}\n\n'),
    (b'event: a.b\ndata: "event: gap"\n\n' * 2, b'data: "event: gap"\n\n' * 2),
    (b"retry: 2000\n\n", b"retry: 2000\n\n"),
    (b": \n\n", b": \n\n"),
]


@pytest.mark.parametrize(("frames", "plain"), UNNAMED, ids=range(len(UNNAMED)))
def test_names_are_taken_out_of_frames(frames: bytes, plain: bytes) -> None:
    """Nothing else changes."""
    assert write_unnamed(frames) == plain


async def test_a_plain_onmessage_gets_everything(
    served: Served, store: EventStore, run_id: int
) -> None:
    """With ?unnamed=1 each event, a gap and the end are messages, each with its id."""
    url, _ = served
    ids = await write(store, run_id, 3)
    last = await store.add(run_id, "system", "close")
    path = f"{url}/runs/{run_id}/events/stream"
    async with httpx.AsyncClient(timeout=30) as client:
        for query in ("?unnamed=1", "?unnamed=true&last_event_id=0-0"):
            async with client.stream("GET", path + query) as answer:
                messages = await Followed(answer).rest()
            assert {message.type for message in messages} == {"message"}
            told = [orjson.loads(message.data) for message in messages]
            assert [event["id"] for event in told[:-1]] == [*ids, last]
            assert told[-1] == {"type": "close", "reason": "closed"}


@pytest.fixture
def served(redis_url: str) -> Iterator[tuple[str, RunEventsApp]]:
    """An application that lets everybody read, over TCP."""
    app = RunEventsApp(EventStore(redis_url), authorize=allow_all)
    with serving(app) as url:
        yield url, app


Served = tuple[str, RunEventsApp]


# Pages


async def test_pages_hold_each_event_once(store: EventStore, run_id: int) -> None:
    """A page begins behind the one before; the last one says so."""
    ids = await write(store, run_id, 7)
    async with asking(RunEventsApp(store, authorize=allow_all)) as client:
        found, after = list[str](), ""
        for size in (3, 3, 1):
            query = {"limit": 3} | ({"after": after} if after else {})
            answer = await client.get(f"/runs/{run_id}/events", params=query)
            assert answer.headers["content-type"] == "application/json"
            assert "no-store" in answer.headers["cache-control"]
            page = answer.json()
            assert len(page["events"]) == size
            found += [event["id"] for event in page["events"]]
            after = page["next"] or "none"
        assert after == "none"
        assert found == ids
        whole = (await client.get(f"/runs/{run_id}/events")).json()
        known = [event.to_dict() for event in await store.get_events(run_id)]
        assert whole == {"events": known, "next": None}
        empty = await client.get(f"/runs/{run_id}/events", params={"after": ids[-1]})
        assert empty.json() == {"events": [], "next": None}


async def test_a_page_of_large_events_ends_early(
    store: EventStore, run_id: int
) -> None:
    """And says where to go on; no answer is longer than the memory allows."""
    await store.add_many(run_id, [("a", "b", {"x": "x" * 60_000})] * 300)
    async with asking(RunEventsApp(store, authorize=allow_all)) as client:
        answer = await client.get(f"/runs/{run_id}/events", params={"limit": 1000})
    page = answer.json()
    assert len(answer.content) < 8_000_000
    assert 20 < len(page["events"]) < 300
    assert page["next"] == page["events"][-1]["id"]


BAD_NUMBERS = [
    "x", "-1", "+1", "1.0", "1_0", "٣", "%00", "9" * 19, "9" * 10_000, "%20", "007", "00",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_NUMBERS, ids=range(len(BAD_NUMBERS)))
@pytest.mark.parametrize("path", ["events", "events/stream"])
async def test_a_run_has_a_number(redis_url: str, text: str, path: str) -> None:
    """Anything else is refused with what would be right, before anybody is asked."""
    async with asking(RunEventsApp(EventStore(redis_url))) as client:
        answer = await client.get(f"/runs/{text}/{path}")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("run_id: ")
    assert len(answer.content) < 300
    assert "must be" in answer.json()["error"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "after=$", "after=-"]
)
async def test_a_page_has_bounds(store: EventStore, run_id: int, query: str) -> None:
    async with asking(RunEventsApp(store, authorize=allow_all)) as client:
        answer = await client.get(f"/runs/{run_id}/events?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(query.partition("=")[0])


async def test_what_is_not_there(store: EventStore, run_id: int) -> None:
    """404 for a run that nobody knows; 410 for who has had something of it."""
    async with asking(RunEventsApp(store, authorize=allow_all)) as client:
        for path, status in (
            (f"/runs/{run_id}/events", 404),
            (f"/runs/{run_id}/events?after=5-0", 410),
            (f"/runs/{run_id}/events/stream", 404),
            (f"/runs/{run_id}/events/stream?last_event_id=5-0", 410),
            ("/runs", 404),
            ("/", 404),
        ):
            answer = await client.get(path)
            assert answer.status_code == status, path
            assert answer.json()["error"]
        headers = {"Last-Event-ID": "5-0"}
        answer = await client.get(f"/runs/{run_id}/events/stream", headers=headers)
        assert answer.status_code == 410


# Streams


async def test_a_run_is_followed(
    served: Served, store: EventStore, run_id: int
) -> None:
    """What was, what comes, and the end; with the headers that streams need."""
    ids = await write(store, run_id, 3)
    async with following(served[0], run_id) as stream:
        headers = stream.answer.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "no-cache" in headers["cache-control"]
        assert "no-store" in headers["cache-control"]
        assert headers["x-accel-buffering"] == "no"
        assert "connection" not in headers
        assert not [name for name in headers if name.startswith("access-control")]
        await stream.until(3)
        assert stream.parser.retry == 2000
        ids += await write(store, run_id, 2)
        await stream.until(5)
        last = await store.add(run_id, "system", "close")
        assert last is not None
        messages = await stream.rest()
        assert stream.ids == [*ids, last]
        assert messages[-1] == Message("close", '{"reason":"closed"}', last)
        known = await store.get_events(run_id)
        assert [one.data for one in messages[:-1]] == [
            one.json.decode() for one in known
        ]
        assert [one.type for one in messages[:-1]] == [one.name for one in known]


async def test_a_reconnect_goes_on_behind(
    served: Served, store: EventStore, run_id: int
) -> None:
    """The header wins over the address; who has had the end gets 204."""
    ids = await write(store, run_id, 5)
    last = await store.add(run_id, "system", "close")
    assert last is not None
    url, path = served[0], f"/runs/{run_id}/events/stream"
    async with following(url, run_id, ids[2]) as stream:
        await stream.rest()
        assert stream.ids == [*ids[3:], last]
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.get(path, params={"last_event_id": ids[3]})
        assert answer.text.count("id: ") == 2
        query, header = {"last_event_id": ids[0]}, {"Last-Event-ID": last}
        answer = await client.get(path, params=query, headers=header)
        assert (answer.status_code, answer.content) == (204, b"")
        await store.add(run_id, "lifecycle", "started")  # somebody goes on all the same
        await store.add(run_id, "system", "close")
        answer = await client.get(path, headers=header)
        assert answer.status_code == 200
        assert answer.text.count("id: ") == 2


@pytest.mark.parametrize(
    "bad", ["$", "-", "+", "(", "(1-0", "1-0-0", "9" * 21 + "-0", "9" * 10_000]
)
async def test_a_bad_place_is_refused(store: EventStore, run_id: int, bad: str) -> None:
    """With 400, in the header as in the address, whether the run is there or not."""
    path = f"/runs/{run_id}/events/stream"
    async with asking(RunEventsApp(store, authorize=allow_all)) as client:
        for more in (
            {"headers": {"Last-Event-ID": bad}},
            {"params": {"last_event_id": bad}},
        ):
            answer = await client.get(path, **more)  # type: ignore[arg-type]
            assert answer.status_code == 400
            assert len(answer.content) < 400


async def test_a_run_can_be_waited_for(
    redis_url: str, store: EventStore, run_id: int
) -> None:
    """With ``wait`` the stream is open before the run begins."""
    app = RunEventsApp(EventStore(redis_url), authorize=allow_all, wait=True)
    with serving(app) as url:
        async with following(url, run_id) as stream:
            assert await stream.read()
            ids = await write(store, run_id, 1)
            await store.add(run_id, "system", "close")
            messages = await stream.rest()
            assert [one.type for one in messages][-1] == "close"
            assert stream.ids[0] == ids[0]
        async with httpx.AsyncClient(base_url=url) as client:
            answer = await client.get(f"/runs/{run_id + 1}/events")
            assert answer.status_code == 404


async def test_everybody_gets_everything(
    served: Served, store: EventStore, run_id: int
) -> None:
    """Followers of one run do not share its events out among them."""
    ids = await write(store, run_id, 5)
    found = list[list[str]]()

    async def follow() -> None:
        async with following(served[0], run_id) as stream:
            await stream.until(5)
            ready.append(1)
            await stream.rest()
            found.append(stream.ids)

    ready = list[int]()
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(follow)
        await eventually(lambda: len(ready) == 10)
        ids += await write(store, run_id, 50)
        last = await store.add(run_id, "system", "close")
    assert last is not None
    assert found == [[*ids, last]] * 10
    await eventually(lambda: served[1].streams == 0)


async def test_a_silent_run_has_a_heart(
    redis_url: str, store: EventStore, run_id: int
) -> None:
    await write(store, run_id, 1)
    app = RunEventsApp(EventStore(redis_url), authorize=allow_all, heartbeat=0.05)
    with serving(app) as url:
        async with following(url, run_id) as stream:
            while stream.parser.comments < 3:
                assert await stream.read()


async def test_a_route_of_ones_own(
    redis_url: str, store: EventStore, run_id: int
) -> None:
    """A FastAPI route gives the stream; the application's place is anywhere."""
    own = EventStore(redis_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with own:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/follow/{number}")
    async def follow(number: int) -> Response:
        return RunEventsResponse(own, number, headers={"X-Of-Mine": "yes"})

    app.mount("/api", RunEventsApp(own, authorize=allow_all))
    ids = await write(store, run_id, 2)
    await store.add(run_id, "system", "close")
    with serving(app) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            answer = await client.get(f"/follow/{run_id}")
            assert answer.headers["x-of-mine"] == "yes"
            assert answer.headers["cache-control"] == "no-cache, no-store"
            assert answer.text.count("id: ") == 3
            header = {"Last-Event-ID": ids[1]}
            answer = await client.get(f"/follow/{run_id}", headers=header)
            assert answer.text.count("id: ") == 1
            assert (await client.get(f"/follow/{run_id + 1}")).status_code == 404
            assert (await client.get("/follow/-1")).status_code == 400
            answer = await client.get(f"/api/runs/{run_id}/events/stream")
            assert answer.text.count("id: ") == 3
            answer = await client.get(f"/api/runs/{run_id}/events")
            assert len(answer.json()["events"]) == 3
            assert (await client.get(f"/runs/{run_id}/events")).status_code == 404


async def test_other_methods(served: Served, store: EventStore, run_id: int) -> None:
    """HEAD opens nothing; whatever changes things is not allowed."""
    await write(store, run_id, 1)
    async with httpx.AsyncClient(base_url=served[0], timeout=10) as client:
        for path in (f"/runs/{run_id}/events", f"/runs/{run_id}/events/stream"):
            answer = await client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                answer = await client.request(method, path)
                assert answer.status_code == 405
                assert "GET" in answer.headers["allow"]
        answer = await client.head(f"/runs/{run_id + 1}/events/stream")
        assert answer.status_code == 404
    await eventually(lambda: served[1].streams == 0)


async def test_an_old_protocol(served: Served, store: EventStore, run_id: int) -> None:
    """HTTP/1.0 gets the same, to the end of the connection."""
    await write(store, run_id, 1)
    await store.add(run_id, "system", "close")
    port = int(served[0].rsplit(":", 1)[1])
    async with await anyio.connect_tcp("127.0.0.1", port) as client:
        await client.send(f"GET /runs/{run_id}/events/stream HTTP/1.0\r\n\r\n".encode())
        with anyio.fail_after(10):
            whole = b"".join([part async for part in client])
    head, _, body = whole.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert [one.type for one in EventSourceParser().feed(body)] == [
        "llm.stream",
        "system.close",
        "close",
    ]


# Redis


async def test_what_is_no_run_is_told(
    store: EventStore, run_id: int, redis: Redis
) -> None:
    """409 where something else stands under the key."""
    await redis.set(f"run:{run_id}:events", "no stream", ex=60)
    async with asking(RunEventsApp(store, authorize=allow_all)) as client:
        for path in ("events", "events?after=1-0", "events/stream?last_event_id=1-0"):
            answer = await client.get(f"/runs/{run_id}/{path}")
            assert answer.status_code == 409, path


# Bounds, and the end


async def test_streams_are_bounded(
    redis_url: str, store: EventStore, run_id: int
) -> None:
    """503 for one too many; who comes back is told to wait, and not for ever refused."""
    ids = await write(store, run_id, 1)
    app = RunEventsApp(EventStore(redis_url), authorize=allow_all, max_streams=2)
    path, header = f"/runs/{run_id}/events/stream", {"Last-Event-ID": ids[0]}
    with serving(app) as url:
        async with (
            httpx.AsyncClient(base_url=url) as client,
            following(url, run_id) as one,
        ):
            async with following(url, run_id) as two:
                await one.until(1)
                await two.until(1)
                answer = await client.get(path)
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "10"
                answer = await client.get(path, headers=header)
                assert (answer.status_code, answer.text) == (200, "retry: 10000\n\n")
                assert answer.headers["content-type"].startswith("text/event-stream")
            await eventually(lambda: app.streams == 1)
            async with following(url, run_id) as two:
                await two.until(1)


async def test_who_leaves_leaves_nothing(
    served: Served, store: EventStore, run_id: int, redis: Redis
) -> None:
    """Neither a stream nor a connection, however he goes."""
    await write(store, run_id, 1)
    port = int(served[0].rsplit(":", 1)[1])
    async with following(served[0], run_id) as stream:
        await stream.until(1)
    before = await redis.info("clients")
    for _ in range(20):
        async with following(served[0], run_id) as stream:
            await stream.until(1)
        with socket.create_connection(("127.0.0.1", port)) as rude:
            rude.sendall(f"GET /runs/{run_id}/events/stream HTTP/1.1\r\n".encode())
            rude.sendall(b"Host: x\r\n\r\n")
            linger = b"\x01\0\0\0\0\0\0\0"
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # a reset
    await write(store, run_id, 1)
    await eventually(lambda: served[1].streams == 0)
    after = await redis.info("clients")
    assert after["connected_clients"] < before["connected_clients"] + 10


async def test_a_client_that_reads_nothing(
    redis_url: str, store: EventStore, run_id: int
) -> None:
    """Nothing grows for it, others are not slowed, and in the end it gets everything."""
    await store.add(run_id, "lifecycle", "started")
    own = EventStore(redis_url)
    sent, go_on = list[bytes](), anyio.Event()
    pieces = 0

    async def send(message: Any) -> None:
        nonlocal pieces
        if pieces == 2:
            await go_on.wait()
        pieces += 1
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await anyio.sleep_forever()

    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b""}
    text = {"text": "x" * 4_000}
    async with own, anyio.create_task_group() as tasks:
        tasks.start_soon(RunEventsResponse(own, run_id), scope, receive, send)
        await eventually(lambda: pieces == 2)
        tracemalloc.start()
        try:
            for _ in range(50):
                await store.add_many(run_id, [("llm", "stream", text)] * 100)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await store.add(run_id, "system", "close")
        go_on.set()
    assert held < 10_000_000  # of 20 MB
    parser = EventSourceParser()
    found = [one for piece in sent for one in parser.feed(piece)]
    known = await store.get_events(run_id)
    assert [one.last_event_id for one in found[:-1]] == [one.id for one in known]
    assert len(known) == 5_002


async def test_the_server_ends_streams(
    redis_url: str, store: EventStore, run_id: int
) -> None:
    """SIGTERM ends them in order, without ``close`` and without a word in the log."""
    ids = await write(store, run_id, 3)
    with WebProcess(redis_url) as web:
        async with (
            following(web.url, run_id) as one,
            following(web.url, run_id, ids[-1]) as other,
        ):
            await one.until(3)
            await other.read()
            assert await anyio.to_thread.run_sync(web.terminate) < 5
            assert [message.type for message in await one.rest()] == ["llm.stream"] * 3
            assert await other.rest() == []
        assert web.errors == b""


async def test_other_servers_end_streams_with_a_word(
    served: Served, store: EventStore, run_id: int
) -> None:
    """``close_streams`` ends what is open; who comes back is served again."""
    url, app = served
    await write(store, run_id, 1)
    async with following(url, run_id) as stream:
        await stream.until(1)
        # From the server's own loop, as its program would.
        loop = stream_loop(app)
        loop.call_soon_threadsafe(app.close_streams)
        assert [one.type for one in await stream.rest()] == ["llm.stream"]
    await eventually(lambda: app.streams == 0)
    async with following(url, run_id) as stream:
        await stream.until(1)


def stream_loop(app: RunEventsApp) -> Any:
    """The event loop in which an application's store is used."""
    return next(iter(app._store._access._by_loop._by_loop))
