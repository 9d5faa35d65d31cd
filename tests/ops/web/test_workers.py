"""The page of workers: its cards, its tasks, its interface."""

from __future__ import annotations

import html
import secrets
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds import workers as worker_feed
from bls_agent.ops.web.feeds.workers import STATES, make_worker_card
from bls_agent.ops.web.requests import quote_name
from bls_agent.workers import Worker, WorkerRegistry, WorkerStatus
from tests.corpus.loader import load_heartbeats
from tests.harness import eventually
from tests.ops.web.serving import console_of, served, told_in
from tests.ops.web.test_streams import following, next_of

KEY = "backtest:worker:"


def beat(status: str = "running", **fields: Any) -> bytes:
    return orjson.dumps({"status": status, **fields})


def read(
    payload: bytes | None, ttl: float | None = 25.0, worker: str = "回测-1"
) -> Any:
    key = (KEY + worker).encode("utf-8", "surrogatepass")
    return Worker.read("backtest_worker_heartbeat", key, payload, ttl)


@pytest.mark.parametrize("status", WorkerStatus)
def test_each_status_is_a_state(status: WorkerStatus) -> None:
    """With its colour; who has fallen silent is silent, whatever it said last."""
    card = make_worker_card(read(beat(status)))
    assert (card["state"], card["kind"]) == (status, STATES[status])
    assert make_worker_card(read(beat(status), 10.0))["state"] == "stale"
    assert make_worker_card(read(beat(status), None))["problem"] == "no_ttl"


def test_figures() -> None:
    """The few things that a heartbeat counts; ages go on."""
    payload = beat(running_tasks=2, max_tasks=5, task_uuids=["均线", "b"])
    card = make_worker_card(read(payload), elapsed=3.0)
    assert card["figures"] == [
        ["running_tasks", "2"],
        ["max_tasks", "5"],
        ["task_uuids", "均线, b"],
    ]
    assert (card["age"], card["ttl"], card["said"]) == (8.0, 22.0, "")
    assert make_worker_card(read(beat()))["figures"] == []  # what nobody said is no 0


def test_a_kind_that_the_contract_leaves_open() -> None:
    """It is there, and what it says is shown as it is."""
    worker = Worker.read("process_heartbeat", b"ginkgo:heartbeat:7", b"alive", 25.0)
    card = make_worker_card(worker)
    assert (card["state"], card["said"], card["id"]) == ("present", "alive", "7")


def test_a_kind_of_ones_own() -> None:
    """Its name stands before the id; its fields are shown by name and value."""

    def card_of(payload: bytes) -> Any:
        key = "heartbeat:下载:上海-1".encode()
        return make_worker_card(Worker.read("generic_heartbeat", key, payload, 25.0))

    card = card_of(beat("stopping", 页=3, running_tasks="x", task_uuids=5))
    assert (card["id"], card["state"], card["said"]) == ("下载:上海-1", "stopping", "")
    figures = [["页", "3"], ["running_tasks", "x"], ["task_uuids", "5"]]
    assert card["figures"] == figures
    card = card_of('{"status":"忙","页":{"a":1}}'.encode())
    assert card["figures"] == [["status", "忙"], ["页", '{"a":1}']]
    assert (card["state"], card_of(b"alive")["said"]) == ("present", "alive")


def test_whatever_stands_there_is_a_card() -> None:
    """Of a bounded size, with nothing in it to obey."""
    for name, item in load_heartbeats().items():
        worker = Worker.read(
            item.kind, f"heartbeat:node:{name}".encode(), item.payload, 25.0
        )
        card = make_worker_card(worker)
        assert (card["state"] == "broken") == bool(item.problem), name
        assert len(orjson.dumps(card)) < 8_000, name
        figures = [text for pair in card["figures"] for text in pair]
        assert all(text.isprintable() for text in (card["id"], card["said"], *figures))


@pytest.fixture
async def fresh(redis: Redis) -> AsyncIterator[str]:
    """A fresh id; its keys are removed."""
    name = f"回测_{secrets.token_hex(4)}"
    yield name
    async for key in redis.scan_iter(f"{KEY}{name}*"):
        await redis.delete(key)


async def test_the_page_and_the_interface(
    redis_url: str, redis: Redis, fresh: str
) -> None:
    """Both show good, silent and broken ones side by side, in both languages."""
    await redis.set(f"{KEY}{fresh}", beat(running_tasks=1), ex=30)
    await redis.set(f"{KEY}{fresh}-silent", beat(), ex=5)
    await redis.set(f"{KEY}{fresh}-<b>", b"\xff", ex=30)
    await redis.rpush(f"{KEY}{fresh}-list", b"x")
    async with console_of(redis_url) as client:
        page = (await client.get("/workers?lang=en")).text
        assert html.escape(f"{fresh}-<b>") in page
        assert f"{fresh}-<b>" not in page
        states = {
            card["id"].removeprefix(fresh): card["state"]
            for card in told_in(page)["workers"]
            if card["id"].startswith(fresh)
        }
        broken = dict.fromkeys(("-<b>", "-list"), "broken")
        assert states == {"": "running", "-silent": "stale"} | broken
        assert "Backtest workers" in page
        assert "回测工作进程" in (await client.get("/workers?lang=zh")).text
        assert "此页面需要 JavaScript" in (await client.get("/workers?lang=zh")).text
        answer = (await client.get("/api/workers")).json()["workers"]
    found = {one["id"]: one for one in answer if one["id"].startswith(fresh)}
    good = found[fresh]
    assert (good["status"], good["problem"], good["stale"]) == ("running", "", False)
    assert good["heartbeat"] == {"status": "running", "running_tasks": 1}
    assert (good["kind"], good["key"]) == ("backtest_worker_heartbeat", KEY + fresh)
    assert 0 <= good["age"] < 10 < good["ttl"]
    assert found[f"{fresh}-silent"]["stale"]
    assert found[f"{fresh}-list"]["problem"] == "wrong_type"
    assert found[f"{fresh}-<b>"]["heartbeat"] == {"raw": "\ufffd"}


async def plant_tasks(redis: Redis) -> None:
    """Two tasks of a worker, one that only its worker names, and ones that are odd."""
    status, at = "ginkgo:task_status:", "2026-01-12T12:00:00Z"
    await redis.set(f"{KEY}回测-1", beat(task_uuids=["均线-7", 5]), ex=30)
    await redis.set(
        f"{status}均线-8",
        beat(worker="回测-1", progress=42, timestamp=at, message="<b>"),
    )
    failed = beat("失败", worker="回测-1", message="Error: password=geheim123")
    await redis.set(f"{status}均线-9", failed)
    await redis.set("backtest:task:均线-7:progress", beat("回测中", progress=120))
    await redis.set(f"{status}半截", b'{"status":"run')
    await redis.rpush(f"{status}<i>", b"x")
    await redis.set(f"{status}别人的", beat("done", worker="回测-2"))


async def test_tasks(  # noqa: PLR0915 - one story
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list for each state, bars on the card of the worker, and all as data."""
    redis = Redis.from_url(own_server.url, protocol=2)
    async with console_of(own_server.url) as client:
        assert "还没有任务" in (await client.get("/tasks?lang=zh")).text
        await plant_tasks(redis)

        async def looked_again() -> bool:
            found = told_in((await client.get("/workers")).text)["workers"]
            tasks = (await client.get("/fragments/tasks")).text
            return bool(found) and "均线-9" in tasks

        await eventually(looked_again, 10)
        page = (await client.get("/tasks?lang=en")).text
        assert "Broken 2 · Failed 1 · Running 2 · Done 1" in page
        order = [page.index(f'id="{one}"') for one in ("broken", "failed", "running")]
        assert order == sorted(order)
        assert '<progress max="1" value="0.42">' in page
        assert '<progress max="1" value="1.0">' in page  # 120 % is no longer bar
        assert "running · 42 % · 回测-1" in page
        assert "wrong key type" in page
        assert "no JSON: {&#34;status&#34;:&#34;run" in page
        assert "<i>" not in page
        assert "geheim123" not in page
        page = (await client.get("/tasks?worker=回测-2&lang=en")).text
        assert ("别人的" in page, "均线" in page) == (True, False)
        page = (await client.get("/tasks?worker=回测-1&lang=en")).text
        assert "Failed 1 · Running 2" in page  # as its card counts them
        assert ("均线-7" in page, "别人的" in page) == (True, False)
        page = (await client.get("/tasks?q=%20均线-8&lang=en")).text
        assert ("均线-8" in page, "均线-9" in page) == (True, False)
        page = (await client.get("/fragments/tasks?q=无&lang=en")).text
        assert "No task matches the filter." in page
        answer = (await client.get("/api/tasks")).json()
        assert answer["complete"]
        (eight,) = (one for one in answer["tasks"] if one["id"] == "均线-8")
        assert (eight["state"], eight["worker"]) == ("running", "回测-1")
        assert (eight["progress"], eight["message"]) == (42, "<b>")
        assert eight["age"] > 0
        cards = told_in((await client.get("/workers")).text)["workers"]
        (tasks,) = (card["tasks"] for card in cards if card["id"] == "回测-1")
        assert tasks["counts"] == {"failed": 1, "running": 2}
        assert [(bar["id"], bar["part"]) for bar in tasks["bars"]] == [
            ("均线-8", 0.42),
            ("均线-7", 1.0),
        ]
    whole = WorkerRegistry.tasks
    monkeypatch.setattr(WorkerRegistry, "tasks", lambda one: whole(one, 1))
    async with console_of(own_server.url) as client:
        assert (
            "10,000 tasks were read; there are more"
            in (await client.get("/tasks?lang=en")).text
        )
        assert not (await client.get("/api/tasks")).json()["complete"]
        own_server.kill()

        async def away() -> bool:
            return 'class="complaint"' in (await client.get("/fragments/tasks")).text

        await eventually(away, 10)
        assert (await client.get("/api/tasks")).status_code == 503
    await redis.aclose()


async def test_bars_follow_the_tasks(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card is sent again when a task of its worker changes, comes or goes."""
    monkeypatch.setattr(worker_feed, "INTERVAL", 0.1)
    monkeypatch.setattr(worker_feed, "TASK_INTERVAL", 0.1)
    redis = Redis.from_url(own_server.url, protocol=2)
    await redis.set(f"{KEY}a", beat(), ex=30)
    with served(WebConfig(redis=own_server.url, port=0)) as console:
        async with following(f"{console.url}events/workers") as events:
            assert (await told(events, "a"))["tasks"] is None
            for part in (0.1, 0.9):
                value = beat(worker="a", progress=100 * part)
                await redis.set("ginkgo:task_status:1", value)
                assert (await told(events, "a"))["tasks"]["bars"][0]["part"] == part
            await redis.delete("ginkgo:task_status:1")
            assert (await told(events, "a"))["tasks"] is None
    await redis.aclose()


async def test_a_heartbeat_alone_is_an_age(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that falls silent and comes back is a card; its refreshes are ages."""
    monkeypatch.setattr(worker_feed, "INTERVAL", 0.1)
    redis = Redis.from_url(own_server.url, protocol=2)
    await redis.set(f"{KEY}a", beat(), ex=30)
    with served(WebConfig(redis=own_server.url, port=0)) as console:
        async with following(f"{console.url}events/workers") as events:
            assert (await told(events, "a"))["state"] == "running"
            await redis.expire(f"{KEY}a", 10)
            assert (await told(events, "a"))["state"] == "stale"
            await redis.set(f"{KEY}a", beat(), ex=30)
            assert (await told(events, "a"))["state"] == "running"
            ages: dict[str, float] = {}
            while quote_name(f"{KEY}a") not in ages:
                said = secrets.token_hex(4)
                await redis.set(f"{KEY}a", beat(timestamp=said), ex=30)
                ages = (await change(events))["ages"]
            assert ages[quote_name(f"{KEY}a")] < 10
    await redis.aclose()


async def change(events: AsyncIterator[Any]) -> Any:
    return (await next_of(events, "workers"))[1]


async def told(events: AsyncIterator[Any], worker: str) -> Any:
    """Wait until a worker's card is told."""
    while True:
        for card in (await change(events))["workers"]:
            if card["id"] == worker:
                return card
