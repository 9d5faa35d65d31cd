"""The pages of runs: their cards, their streams, their interface."""

from __future__ import annotations

import html
import secrets
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2 as httpx
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.web import streams
from bls_agent.ops.web.config import Limits, WebConfig
from bls_agent.ops.web.feeds import watch
from bls_agent.ops.web.feeds.runs import (
    LONGEST_EVENT,
    STATES,
    RunFeed,
    encode_event,
    make_run_card,
)
from bls_agent.ops.web.streams import EVENT_SIZE, write_followed
from bls_agent.runs import (
    EventStore,
    Gap,
    GapReason,
    RunState,
    RunSummary,
    StreamEvent,
    WriterLost,
    gaps,
)
from bls_agent.runs.reading import RunKeys
from tests.harness import eventually
from tests.ops.web.serving import Served, console_of, served, told_in
from tests.ops.web.test_streams import following, next_of

SOURCE = {"agent_name": "分析师"}


def event(name: str, number: int, /, source: str = "", **data: Any) -> StreamEvent:
    """An event as a follower gives it."""
    category, _, action = name.partition(".")
    fields: list[bytes] = [
        b"timestamp", b"2026-01-01T00:00:00.000Z", b"sequence", b"%d" % number,
        b"source_agent_name", source.encode(), b"event_category", category.encode(),
        b"event_action", action.encode(), b"data", orjson.dumps(data),
    ]  # fmt: skip
    return StreamEvent.decode(7, b"%d-0" % number, fields)


def summary(run_id: int = 7, state: str = "open", last: int = 5) -> RunSummary:
    """A run as the store sees it."""
    return RunSummary(
        run_id, RunState(state), 3, 3, "1000-0", f"{last * 1000}-0", 60.0, "分析"
    )


# --- decided without I/O


@pytest.mark.parametrize("state", RunState)
def test_each_state_is_a_card(state: RunState) -> None:
    """With its colour; ages by the clock of the ids."""
    card = make_run_card(summary(state=state), 10.0)
    assert (card["state"], card["kind"]) == (state, STATES[state])
    assert (card["id"], card["path"]) == ("7", "/runs/7")
    assert (card["started"], card["age"], card["ttl"]) == (9.0, 5.0, 60.0)
    assert make_run_card(summary(2**63 - 1), 0.0)["id"] == "9223372036854775807"
    assert make_run_card(RunSummary(1, state, 0), 0.0)["age"] is None
    assert card["at"] == 5.0


def test_order_of_cards() -> None:
    """What runs keeps its place; the others stand by their last event."""
    runs = [summary(1, "running", 9), summary(2, "open", 3), summary(3, "failed", 8)]
    runs += [summary(4, "running", 1), summary(5, "closed", 8)]
    cards = [make_run_card(run, 10.0) for run in runs]
    cards.sort(key=RunFeed.place_of)
    assert [card["id"] for card in cards] == ["4", "1", "5", "3", "2"]


def test_events_share_frames() -> None:
    """In their order, the place behind each frame; gaps and losses stand between."""
    found: list[Any] = [
        event("a.b", 1),
        event("a.b", 2),
        Gap(7, GapReason.TRIMMED, "2-0", "9-0", 6),
        event("a.b", 9),
        WriterLost(7, "9-0"),
    ]
    frames = [frame.decode() for frame in write_followed(found)]
    assert [frame.partition("\n")[0] for frame in frames] == [
        "id: 2-0", "event: gap", "id: 9-0", "event: lost",
    ]  # fmt: skip
    assert '"id":"1-0"' in frames[0]
    assert '"id":"2-0"' in frames[0]
    assert '"missing":6' in frames[1]
    large = [event("a.b", n, text="x" * 60_000) for n in range(1, 11)]
    frames = [frame.decode() for frame in write_followed([*large])]
    assert len(frames) == 3
    assert max(map(len, frames)) < EVENT_SIZE + 1_000
    assert write_followed([]) == []


def test_an_event_has_a_bound_and_says_what_is_wrong() -> None:
    """What is long is cut, what is no event shows what stands there."""
    plain = event("a.b", 1, n=1)
    assert encode_event(plain) is plain.json
    written = encode_event(event("a.b", 1, text="x" * 200_000))
    assert len(written) <= LONGEST_EVENT
    assert orjson.loads(written)["cut"] is True
    odd = StreamEvent.decode(7, b"1-0", [b"\xff", b"\xfe", b"data", b"[1]"])
    told = orjson.loads(encode_event(odd))
    assert told["raw"] == {"\\xff": "\\xfe", "data": "[1]"}
    assert "data" in told["faults"]
    assert told["data"] == {}


# --- pages and interface


@pytest.fixture
async def run_id(redis: Redis) -> AsyncIterator[int]:
    """A fresh run; its keys are removed."""
    run_id = secrets.randbits(52)
    yield run_id
    await redis.delete(*RunKeys(run_id).all)


async def test_the_pages_and_the_interface(redis_url: str, run_id: int) -> None:
    """Both show runs, in both languages, with nothing to obey."""
    async with EventStore(redis_url) as store:
        await store.add(run_id, "lifecycle", "started", {"task": "<b>早报"}, SOURCE)
        await store.add(run_id, "lifecycle", "failed", {"error": "<i>坏"})
        await store.add(run_id, "system", "close")
        events = await store.get_events(run_id)
    async with console_of(redis_url) as client:
        for path in ("/runs", f"/runs/{run_id}"):
            page = (await client.get(f"{path}?lang=en")).text
            assert html.escape("<b>早报") in page
            assert html.escape("<i>坏") in page
            assert "<b>早报" not in page
            told = told_in(page)
            (card,) = [
                one for one in told.get("runs", [told]) if one["id"] == str(run_id)
            ]
            assert (card["kind"], card["state"]) == ("fault", "failed")
            assert 'href="/runs"' in page
        assert f"运行 {run_id}" in (await client.get(f"/runs/{run_id}?lang=zh")).text
        told = (await client.get("/api/runs?limit=1000")).json()
        (found,) = [one for one in told["runs"] if one["runId"] == run_id]
        assert told["total"] >= 1
        assert found["state"] == "failed"
        assert found["source"]["agent_name"] == "分析师"
        one = (await client.get(f"/api/runs/{run_id}")).json()
        assert one | {"ttl": 0} == found | {"ttl": 0}
        page = (await client.get(f"/api/runs/{run_id}/events")).json()
    assert page == {
        "runId": run_id,
        "next": None,
        "events": [orjson.loads(one.json) for one in events],
    }


async def test_pages_of_events(redis_url: str, run_id: int) -> None:
    """Forwards and backwards, each event once; what is no place is refused."""
    url = f"/api/runs/{run_id}/events"
    async with EventStore(redis_url) as store, console_of(redis_url) as client:
        ids = await store.add_many(run_id, [("a", "b")] * 25)
        assert await walk(client, url, "after", None) == ids
        assert await walk(client, url, "before", ids[-1]) == ids[:-1]
        assert await walk(client, url, "after", ids[9]) == ids[10:]
        for query in ("after=x", "before=-1", "limit=0", f"after={ids[0]}&before=1-0"):
            assert (await client.get(f"{url}?{query}")).status_code == 400, query
        large = [("a", "b", {"text": "x" * 60_000})] * 100
        await store.add_many(run_id, large)
        page = (await client.get(f"{url}?limit=1000")).json()
        assert len(page["events"]) < 125
        assert page["next"] == page["events"][-1]["id"]


async def walk(
    client: httpx.AsyncClient, url: str, name: str, place: str | None
) -> list[str]:
    """Read page after page; give the ids in order."""
    found: list[str] = []
    while True:
        query = "" if place is None else f"&{name}={place}"
        page = (await client.get(f"{url}?limit=7{query}")).json()
        ids = [one["id"] for one in page["events"]]
        found = ids + found if name == "before" else found + ids
        place = page["next"]
        if place is None:
            return found


@pytest.mark.parametrize(
    "run",
    ["x", "-1", "01", "1.0", "٣", "9223372036854775808", "1" * 5_000, "a/b", "%0a"],
)
async def test_what_is_no_run(redis_url: str, run: str) -> None:
    """There is nothing under such an address, and no fault of ours."""
    async with console_of(redis_url) as client:
        for path in (
            "/runs/{}",
            "/api/runs/{}",
            "/api/runs/{}/events",
            "/events/runs/{}",
        ):
            assert (await client.get(path.format(run))).status_code == 404


async def test_a_run_that_is_not_there(
    redis_url: str, redis: Redis, run_id: int
) -> None:
    """Its page waits for it; the interface says that there is none, or no stream."""
    async with console_of(redis_url) as client:
        page = await client.get(f"/runs/{run_id}?lang=en")
        assert page.status_code == 200
        assert f'<p id="absent" class="notice">There is no run {run_id}' in page.text
        for path in (f"/api/runs/{run_id}", f"/api/runs/{run_id}/events"):
            assert (await client.get(path)).status_code == 404
        await redis.rpush(f"run:{run_id}:events", "x")
        for path in (
            "/runs/{}",
            "/api/runs/{}",
            "/api/runs/{}/events",
            "/events/runs/{}",
        ):
            assert (await client.get(path.format(run_id))).status_code == 409


# --- streams


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow one another at once."""
    monkeypatch.setattr(watch, "REST", 0.0)
    monkeypatch.setattr(streams, "HEAD", 0.05)
    monkeypatch.setattr(streams, "QUIET_HEAD", 0.1)
    monkeypatch.setattr(streams, "LOOK", 0.1)
    monkeypatch.setattr(gaps, "UNSEEN", 0.2)
    monkeypatch.setattr(gaps, "UNOWNED", 0.5)


async def numbers_until(events: AsyncIterator[Any], last: int) -> list[int]:
    """The sequences that come, up to this one."""
    found: list[int] = []
    while last not in found:
        _, batch = await next_of(events, "events")
        found += [one["sequence"] for one in batch]
    return found


def url_of(console: Served, run_id: int, rest: str = "") -> str:
    return f"{console.url}events/runs/{run_id}{rest}"


@pytest.mark.usefixtures("quick")
async def test_a_run_is_followed_to_its_end(own_server: DevServer) -> None:
    """How it stands, where older events are, the newest, what comes, and the end."""
    async with EventStore(own_server.url) as store:
        with served(WebConfig(redis=own_server.url, port=0)) as console:
            async with following(url_of(console, 1)) as events:
                assert await next_of(events, "run") == ("run", None)
                assert await next_of(events, "begin") == ("begin", {"before": None})
                await store.add_many(1, [("a", "b")] * 5)
                assert await numbers_until(events, 5) == [1, 2, 3, 4, 5]
                while (await next_of(events, "run"))[1]["length"] != 5:
                    pass
                async with following(url_of(console, 1)) as others:
                    await store.add(1, "lifecycle", "completed")
                    await store.add(1, "system", "close")
                    assert await numbers_until(others, 7) == [*range(1, 8)]
                    assert await next_of(others, "end") == ("end", {"reason": "closed"})
                assert await numbers_until(events, 7) == [6, 7]
                _, card = await next_of(events, "run")
                assert card["state"] == "completed"
                assert await next_of(events, "end") == ("end", {"reason": "closed"})
            async with following(url_of(console, 1)) as events:
                assert await numbers_until(events, 7) == [*range(1, 8)]
                assert (await next_of(events, "end"))[1] == {"reason": "closed"}


async def test_a_place_is_gone_on_from(own_server: DevServer, admin: Redis) -> None:
    """By the header of a browser or by the address; what is no place is refused."""
    async with EventStore(own_server.url) as store:
        ids = await store.add_many(1, [("a", "b")] * 9)
        with served(WebConfig(redis=own_server.url, port=0)) as console:
            async with following(url_of(console, 1, f"?after={ids[3]}")) as events:
                assert await numbers_until(events, 9) == [5, 6, 7, 8, 9]
            headers = {"last-event-id": ids[6]}
            url = url_of(console, 1, f"?after={ids[3]}")
            async with following(url, headers=headers) as events:
                assert await numbers_until(events, 9) == [8, 9]
            await admin.xtrim("run:1:events", minid=ids[6], approximate=False)
            async with following(url_of(console, 1, f"?after={ids[3]}")) as events:
                _, gap = await next_of(events, "gap", "events")
                assert (gap["reason"], gap["after"]) == ("trimmed", ids[3])
                assert await numbers_until(events, 9) == [7, 8, 9]
            async with httpx.AsyncClient() as client:
                for place in ("x", "1-1-1", "$", "%0a", "9" * 30):
                    answer = await client.get(url_of(console, 1, f"?after={place}"))
                    assert answer.status_code == 400, place
                for text in ("x", "1-0-", "<script>"):
                    answer = await client.get(
                        url_of(console, 1), headers={"last-event-id": text}
                    )
                    assert answer.status_code == 400, text


@pytest.mark.usefixtures("quick")
async def test_a_lost_writer_and_an_outage_are_told(
    own_server: DevServer, admin: Redis
) -> None:
    """And that the run is gone."""
    keys = RunKeys(1)
    async with EventStore(own_server.url) as store:
        await store.add(1, "lifecycle", "started")
        await admin.hset(keys.books, "owner", "dead")
        with served(WebConfig(redis=own_server.url, port=0)) as console:
            async with following(url_of(console, 1)) as events:
                _, card = await next_of(events, "run")
                assert card["state"] == "lost"
                assert (await next_of(events, "lost"))[1]["run_id"] == 1
                own_server.kill()
                assert (await next_of(events, "unavailable"))[1]["kind"]
                own_server.restart()
                await next_of(events, "available")
                await store.add(1, "a", "b")
                assert await numbers_until(events, 2) == [2]
                await store.delete(1)
                assert await next_of(events, "end") == ("end", {"reason": "gone"})


async def test_a_long_run_begins_with_its_newest_rows(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as a page holds; the place before them is told."""
    monkeypatch.setattr(streams, "WHOLE", 100)
    async with EventStore(own_server.url) as store:
        await store.add_many(1, [("a", "b")] * 1_000)
        with served(WebConfig(redis=own_server.url, port=0)) as console:
            async with following(url_of(console, 1)) as events:
                _, begin = await next_of(events, "begin")
                numbers = await numbers_until(events, 1_000)
                assert numbers == [*range(numbers[0], 1_001)]
                assert len(numbers) == 100
            async with httpx.AsyncClient(base_url=console.url) as client:
                place = f"before={begin['before']}&limit=1000"
                page = (await client.get(f"api/runs/1/events?{place}")).json()
            assert page["events"][-1]["sequence"] == numbers[0] - 1


async def test_streams_have_beats_and_an_end(own_server: DevServer) -> None:
    """As every stream of the console; one connection waits for all of them."""
    limits = Limits(heartbeat=0.2)
    async with EventStore(own_server.url) as store:
        await store.add(1, "a", "b")
        with served(WebConfig(redis=own_server.url, port=0, limits=limits)) as console:
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(follow_to_the_end, url_of(console, number % 2))
                await eventually(lambda: console.app.web.streams.open == 5, 10)
                async with following(url_of(console, 1)) as events:
                    assert await next_of(events, "beat") == ("beat", {})
                console.app.close_streams()
            await eventually(lambda: console.app.web.streams.open == 0, 10)


async def follow_to_the_end(url: str) -> None:
    async with following(url) as events:
        async for _ in events:
            pass
