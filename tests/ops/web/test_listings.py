"""What the pages with all cards of one kind have in common."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from bls_agent.devserver import DevServer
from tests.harness import execute
from tests.ops.web.serving import console_of

NOTICE = '<div id="{}" class="banner" role="alert"{}>'
NOTHING = '<p id="nothing" class="nothing" hidden>'
LISTINGS = pytest.mark.parametrize("name", ["workers", "runs", "assets", "crawl"])


@LISTINGS
async def test_redis_away(name: str) -> None:
    """The page says so, and the interface is no empty list."""
    async with console_of("redis://127.0.0.1:1") as client:
        page = await client.get(f"/{name}?lang=en")
        assert page.status_code == 200
        assert NOTICE.format("away", "") in page.text
        assert NOTICE.format("forbidden", " hidden") in page.text
        assert NOTHING in page.text
        assert (await client.get(f"/api/{name}")).status_code == 503


async def test_redis_away_from_one_run() -> None:
    """Neither its page nor its events are empty."""
    async with console_of("redis://127.0.0.1:1") as client:
        for path in ("/runs/1", "/api/runs/1", "/api/runs/1/events"):
            assert (await client.get(path)).status_code == 503


@LISTINGS
async def test_a_user_who_may_not_read_them(own_server: DevServer, name: str) -> None:
    """Neither an empty list nor an outage: the page says which rights are missing."""
    async with Redis.from_url(own_server.url, protocol=2) as redis:
        await redis.set("backtest:worker:a", "{}", ex=30)
        await redis.xadd("run:1:events", {"a": "b"})
        await redis.zadd("crawlo:news:queue:requests", {"r": 1})
        rules = ("on", ">geheim", "+@all", "~bls*")
        await execute(redis, "ACL", "SETUSER", "op", *rules)
    async with console_of(own_server.url.replace("://", "://op:geheim@")) as client:
        page = (await client.get(f"/{name}?lang=en")).text
        assert NOTICE.format("forbidden", "") in page
        assert NOTICE.format("away", " hidden") in page
        assert NOTHING in page
        assert (await client.get(f"/api/{name}")).status_code == 503
