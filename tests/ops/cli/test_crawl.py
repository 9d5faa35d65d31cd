"""``bls-agent crawl``: queues, what failed in them, and what is left of them."""

from __future__ import annotations

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent.crawl import CrawlRequest, RequestQueue, SeenFilter
from bls_agent.devserver import DevServer
from tests.ops.cli.conftest import Bls
from tests.ops.cli.terminal import live_table

SECRET = "https://user:geheim@news.example/1"


async def fail_one(queue: RequestQueue, url: str = SECRET) -> None:
    await queue.push(CrawlRequest(url, headers={"Authorization": "geheim"}))
    async with queue.take(5) as taken:
        assert taken is not None
        await taken.fail("HTTP 503\x1b[2J")


@pytest.fixture
def news(own_server: DevServer) -> RequestQueue:
    return RequestQueue(own_server.url, "新闻", "daily", max_retries=0)


async def test_stats(
    bls: Bls, own_server: DevServer, admin: Redis, news: RequestQueue
) -> None:
    """Of all, of a project, of a spider; one that cannot be read; none at all."""
    url = own_server.url
    empty = await bls("crawl", url=url)
    assert (empty.code, empty.text) == (0, "")
    assert "No crawl queue" in empty.said
    async with news, RequestQueue(url, "shop") as shop:
        await fail_one(news)
        await news.push(CrawlRequest(SECRET))
        await shop.push(CrawlRequest(SECRET))
        async with shop.take(5):
            ran = await bls("crawl", "stats", url=url)
    lines = ["shop\t\t0\t0\t1\t0\t1\t0", "新闻\tdaily\t1\t0\t0\t1\t2\t0"]
    assert (ran.code, ran.text.splitlines()) == (0, lines)
    told = await bls("crawl", "stats", "新闻", "--spider", "daily", "--json", url=url)
    assert orjson.loads(told.out)["failed"] == 1
    assert orjson.loads(told.out)["spider"] == "daily"
    await admin.set("crawlo:old:queue:requests", "x")
    ran = await bls("crawl", "stats", "old", url=url, lang="zh")
    assert (ran.code, "无法读取：wrong_type" in ran.text) == (3, True)
    told = await bls("crawl", "stats", "old", "--json", url=url)
    assert orjson.loads(told.out) == {
        "project": "old", "spider": None, "problem": "wrong_type",
    }  # fmt: skip


async def test_a_queue_that_is_not_there(
    bls: Bls, own_server: DevServer, news: RequestQueue
) -> None:
    """Names that are alike; a spider without its project."""
    async with news:
        await news.push(CrawlRequest(SECRET))
    for words in (
        ["stats", "新聞"],
        ["failed", "新聞"],
        ["requeue", "新聞"],
        ["cleanup", "新聞"],
    ):
        ran = await bls("crawl", *words, url=own_server.url)
        assert (ran.code, ran.text) == (1, "")
        assert "no crawl queue 新聞" in ran.said
        assert "新闻" in ran.said
    ran = await bls("crawl", "failed", "新闻", "--spider", "daiyl", url=own_server.url)
    assert (ran.code, "daily" in ran.said) == (1, True)
    ran = await bls("crawl", "failed", "新闻", url=own_server.url)
    assert (ran.code, "Did you mean 新闻 --spider daily" in ran.said) == (1, True)
    ran = await bls("crawl", "stats", "--spider", "daily", url=own_server.url)
    assert ran.code == 2
    ran = await bls("crawl", "failed", "a:b", url=own_server.url)
    assert ran.code in (1, 2)


async def test_failed_and_requeue(
    bls: Bls, own_server: DevServer, admin: Redis, news: RequestQueue
) -> None:
    """Without credentials, headers and escapes; queued again; what cannot be read stays."""
    words = ("新闻", "--spider", "daily")
    async with news:
        await fail_one(news)
        await admin.rpush("crawlo:新闻:daily:queue:failed", b"\x80\x04}.")
        ran = await bls("crawl", "failed", *words, url=own_server.url)
        rows = [line.split("\t") for line in ran.text.splitlines()]
        assert ran.code == 0
        assert [row[1:] for row in rows] == [
            ["0", "unreadable", "the entry cannot be read"],
            ["1", "GET https://***@news.example/1", "HTTP 503\\x1b[2J"],
        ]
        told = await bls(
            "crawl", "failed", *words, "-n", "2", "--json", url=own_server.url
        )
        assert b"geheim" not in told.out + ran.out
        assert orjson.loads(told.out.splitlines()[1])["method"] == "GET"
        ran = await bls("crawl", "requeue", *words, url=own_server.url)
        assert (ran.code, ran.text) == (1, "Queued again: 1\n")
        assert "stay" in ran.said
        stats = await news.stats()
        assert (stats.waiting, stats.failed) == (1, 1)
        await admin.delete("crawlo:新闻:daily:queue:failed")
        told = await bls("crawl", "requeue", *words, "--json", url=own_server.url)
        assert (told.code, orjson.loads(told.out)) == (
            0, {"project": "新闻", "spider": "daily", "requeued": 0, "left": 0},
        )  # fmt: skip
        ran = await bls("crawl", "failed", *words, url=own_server.url)
        assert (ran.code, ran.text) == (0, "")
        assert "No request has failed" in ran.said


async def test_requests_that_fail_again_meanwhile(
    bls: Bls,
    own_server: DevServer,
    news: RequestQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker fails a request again before the rest is counted: nothing is left over."""
    requeue = RequestQueue.requeue_failed

    async def requeue_and_fail(queue: RequestQueue) -> int:
        count = await requeue(queue)
        worker = RequestQueue(own_server.url, "新闻", "daily", max_retries=0)
        async with worker, worker.take(5) as taken:
            assert taken is not None
            await taken.fail("HTTP 503")
        return count

    async with news:
        await fail_one(news)
        monkeypatch.setattr(RequestQueue, "requeue_failed", requeue_and_fail)
        words = ("crawl", "requeue", "新闻", "--spider", "daily", "--json")
        told = await bls(*words, url=own_server.url)
        assert (told.code, orjson.loads(told.out)["left"]) == (0, 0)
        assert (await news.stats()).failed == 1


async def test_cleanup(
    bls: Bls, own_server: DevServer, admin: Redis, news: RequestQueue
) -> None:
    """A plan first; nothing goes without --yes; then exactly the queue's keys."""
    url, words = own_server.url, ("crawl", "cleanup", "新闻", "--spider", "daily")
    async with SeenFilter(url, "新闻") as seen:  # of the project, not of its spider
        await seen.add("a")
    async with news:
        await news.push(CrawlRequest(SECRET), unique=True)
        async with news.take(5):
            plan = await bls(*words, url=url)
            assert plan.code == 2
            assert "1\tcrawl_processing\t" in plan.text
            assert "Nothing was deleted" in plan.said
            assert "living workers: 1" in plan.said
            told = await bls(*words, "--json", url=url)
            assert told.code == 2
            assert orjson.loads(told.out)["keys"]["crawl_leases"] == 1
            assert orjson.loads(told.out)["removed"] == 0
    ran = await bls(*words, "--yes", url=url, lang="zh")
    assert (ran.code, "已删除的键：" in ran.said) == (0, True)
    assert await admin.keys("*") == ["crawlo:新闻:filter:fingerprint".encode()]
    told = await bls("crawl", "cleanup", "新闻", "-y", "--json", url=url)
    assert orjson.loads(told.out)["removed"] == 1
    assert await admin.dbsize() == 0


@pytest.mark.parametrize(
    "words", [("stats",), ("failed",), ("requeue",), ("cleanup", "--yes")]
)
async def test_an_empty_spider_is_no_project_s_queue(
    bls: Bls, own_server: DevServer, admin: Redis, words: tuple[str, ...]
) -> None:
    """A variable of the shell that is not set does not name the project's own queue."""
    async with RequestQueue(own_server.url, "新闻") as queue:
        await queue.push(CrawlRequest(SECRET))
    before = await admin.dbsize()
    ran = await bls("crawl", *words, "新闻", "--spider", "", url=own_server.url)
    assert (ran.code, ran.text) == (2, "")
    assert "The spider's name is empty" in ran.said
    assert await admin.dbsize() == before


async def test_a_live_table(own_server: DevServer, news: RequestQueue) -> None:
    async with news:
        await news.push(CrawlRequest(SECRET))
    with live_table("crawl", "stats", "--watch", url=own_server.url) as shown:
        shown.until("daily")
