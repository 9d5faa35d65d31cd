"""What the pages with all cards of one kind have in common."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.assets import AssetLibrary
from bls_agent.crawl import CrawlRequest, RequestQueue
from bls_agent.devserver import DevServer
from bls_agent.ops.web.config import WebConfig
from bls_agent.ops.web.feeds import crawl as crawl_feed, watch
from bls_agent.ops.web.requests import quote_name
from bls_agent.runs import EventStore
from tests.assets.test_library import prompt
from tests.harness import eventually, execute
from tests.ops.web.serving import OWN, console_of, served
from tests.ops.web.test_streams import WATCHES, Event, following, next_of

NOTICE = '<div id="{}" class="banner" role="alert"{}>'
NOTHING = '<p id="nothing" class="nothing" hidden>'
NAMES = ["workers", "runs", "assets", "crawl"]
LISTINGS = pytest.mark.parametrize("name", NAMES)
PAGES = pytest.mark.parametrize("name", ["projects", *NAMES])  # the wallboard, too
NOTHING_YET = {  # in the place of the cards
    "workers": "No worker yet",
    "runs": "No run yet",
    "assets": "No asset yet[^<]* YAML [^<]*<code>bls-agent assets sync",
    "crawl": "No crawl queue yet",
}
# How often an answer without Redis says "Not known": once in the texts for the scripts.
NOT_KNOWN = {
    "/runs/1?lang=en": 1,
    "/api/runs/1": 0,
    "/api/runs/1/events": 0,
    "/assets/a?lang=en": 2,
    "/api/assets/a": 0,
    "/crawl/a?lang=en": 3,  # the counts, and the failed requests
}

# What was written: a card, and how it is shown afterwards, or None where it is removed.
Written = AsyncGenerator[tuple[str, dict[str, str] | None]]


async def write_workers(redis: Redis) -> Written:
    """Of two workers one starts and fails, the other one ends."""
    for name, status in (("a", "running"), ("b", "starting"), ("b", "error")):
        key = f"backtest:worker:{name}"
        await redis.set(key, orjson.dumps({"status": status}), ex=30)
        yield quote_name(key), {"state": status}
    await redis.delete("backtest:worker:a")
    yield quote_name("backtest:worker:a"), None


async def write_runs(redis: Redis) -> Written:
    """Of two runs one is completed and one is deleted."""
    async with EventStore(redis) as store:
        for run_id in (1, 2):
            await store.add(run_id, "lifecycle", "started")
            yield str(run_id), {"state": "open"}
        await store.add(1, "lifecycle", "completed")
        yield "1", {"state": "completed"}
        await store.delete(2)
        yield "2", None


async def write_assets(redis: Redis) -> Written:
    """Of two assets one gets another name and one is deleted."""
    async with AssetLibrary(redis) as library:
        for asset, name in (("a", "a"), ("b", "b"), ("b", "乙")):
            await library.save(prompt(asset, name=name), path=f"{asset}.yaml", sha=name)
            yield asset, {"name": name}
        await library.delete("a")
        yield "a", None


async def write_queues(redis: Redis) -> Written:
    """Of two queues one is worked on and one is deleted."""
    async with RequestQueue(redis, "news") as queue:
        await queue.push(CrawlRequest("https://news.example/1"))
        yield "news", {"state": "waiting"}
        await redis.rpush("crawlo:shop:queue:failed", "x")
        yield "shop", {"project": "shop"}
        async with queue.take(5):
            yield "news", {"state": "working"}
        yield "news", {"state": "empty"}
        await redis.delete("crawlo:shop:queue:failed")
        yield "shop", None


WRITERS = {
    "workers": write_workers,
    "runs": write_runs,
    "assets": write_assets,
    "crawl": write_queues,
}


@LISTINGS
async def test_cards_are_followed(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The whole picture, what comes, changes and goes; one connection for all."""
    monkeypatch.setattr(f"bls_agent.ops.web.feeds.{name}.INTERVAL", 0.05)
    monkeypatch.setattr(crawl_feed, "SEARCH", 0.05)
    monkeypatch.setattr(watch, "REST", 0.0)

    async def one_connection() -> bool:
        names = [client["name"] for client in await admin.client_list()]
        return names.count(f"bls-{name}") == 1

    kind = WATCHES[name]
    async with aclosing(WRITERS[name](admin)) as writing:
        first, _ = await anext(writing)
        with served(WebConfig(redis=own_server.url, port=0)) as console:
            url = f"{console.url}events/{name}"
            async with following(url) as events, following(url) as others:
                for follower in (events, others):
                    _, picture = await next_of(follower, kind)
                    assert picture["whole"]
                    assert [key_of(card) for card in picture[kind]] == [first]
                async for key, shown in writing:
                    while not is_told(await next_of(events, kind), key, shown):
                        pass
                await eventually(one_connection, 10)  # the writer's are closed
            await eventually(lambda: console.app.web.streams.open == 0, 10)


def is_told(event: Event, key: str, shown: dict[str, str] | None) -> bool:
    """Whether a card is sent as it is shown now, or is removed; no other one may be sent."""
    kind, change = event
    cards = {key_of(card): card for card in change[kind]}
    assert kind == "queues" or cards.keys() <= {key}  # rates change by themselves
    if shown is None:
        return bool(change["gone"] == [key])
    return bool(shown.items() <= cards.get(key, {}).items())


def key_of(card: dict[str, Any]) -> Any:
    """What names a card; a run's has an id only."""
    return card.get("key", card.get("id"))


async def test_nothing_there_yet(own_server: DevServer) -> None:
    """A sentence says when a card appears; the interface has an empty list."""
    async with console_of(own_server.url) as client:
        for name, sentence in NOTHING_YET.items():
            page = (await client.get(f"/{name}?lang=en")).text
            assert re.search(f'<p id="nothing" class="nothing">{sentence}', page), name
            answer = (await client.get(f"/api/{name}")).json()
            assert answer[WATCHES[name]] == [], name
        page = (await client.get("/assets?lang=en")).text
        assert "none yet" in page  # no synchronisation


@PAGES
async def test_redis_away(name: str) -> None:
    """The page says so, and the interface is no empty list."""
    async with console_of("redis://127.0.0.1:1") as client:
        page = await client.get(f"{path_of(name)}?lang=en")
        assert page.status_code == 200
        assert NOTICE.format("away", "") in page.text
        assert NOTICE.format("forbidden", " hidden") in page.text
        assert NOTHING in page.text
        # For the scripts, in the place of the cards, and of the last synchronisation.
        unknown = 3 if name == "assets" else 2
        assert page.text.count("Not known") == unknown
        assert (await client.get(f"/api/{name}")).status_code == 503


async def test_redis_away_from_one_of_them() -> None:
    """Not known is neither empty nor absent, and nothing is said to have been done."""
    async with console_of("redis://127.0.0.1:1") as client:
        for path, unknown in NOT_KNOWN.items():
            answer = await client.get(path)
            assert answer.status_code == 503, path
            assert answer.text.count("Not known") == unknown, path
        path = "/fragments/requeue/a?lang=en"
        sent = await client.post(path, headers={"origin": OWN})
        assert "Not queued again: " in sent.text


def path_of(name: str) -> str:
    return "/" if name == "projects" else f"/{name}"


@PAGES
async def test_a_user_who_may_not_read_them(own_server: DevServer, name: str) -> None:
    """Neither an empty list nor an outage: the page says which rights are missing."""
    async with Redis.from_url(own_server.url, protocol=2) as redis:
        await redis.set("订单_项目状态", "在线")
        await redis.set("backtest:worker:a", "{}", ex=30)
        await redis.xadd("run:1:events", {"a": "b"})
        await redis.zadd("crawlo:news:queue:requests", {"r": 1})
        rules = ("on", ">geheim", "+@all", "~bls*")
        await execute(redis, "ACL", "SETUSER", "op", *rules)
    async with console_of(own_server.url.replace("://", "://op:geheim@")) as client:
        page = (await client.get(f"{path_of(name)}?lang=en")).text
        said = "[^<]* may not read [^<]*: bls-agent acl --"
        assert re.search(NOTICE.format("forbidden", "") + said, page)
        assert NOTICE.format("away", " hidden") in page
        assert NOTHING in page
        assert (await client.get(f"/api/{name}")).status_code == 503


async def test_a_user_who_may_no_longer_read_statuses(
    own_server: DevServer, admin: Redis
) -> None:
    """The page of a project keeps what it knew, and says which rights are missing."""
    await admin.set("订单_项目状态", "在线")
    await execute(admin, "ACL", "SETUSER", "op", "on", ">geheim", "+@all", "~*")
    url = own_server.url.replace("://", "://op:geheim@")
    path = f"/projects/{quote_name('订单')}?lang=en"
    async with console_of(url) as client:

        async def is_shown(forbidden: str, away: str) -> bool:
            answer = await client.get(path)
            assert answer.status_code == 200
            assert NOTICE.format("away", away) in answer.text
            return NOTICE.format("forbidden", forbidden) in answer.text

        await eventually(lambda: is_shown(" hidden", " hidden"))
        await execute(admin, "ACL", "SETUSER", "op", "resetkeys", "~bls*")
        await eventually(lambda: is_shown("", " hidden"))
        page = (await client.get(path)).text
        assert "may not read projects" in page
        assert page.count("Not known: Redis does not answer") == 1  # for the scripts
        assert "bls-agent acl --console" in page
