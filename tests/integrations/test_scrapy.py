"""Scrapy over a crawl queue: processes share it, one may die, and a crawl resumes.

Scrapy is imported by processes of their own, and here only when a test begins: no other
test is to wait for Twisted.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from bls_agent.core.backoff import Backoff
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError
from bls_agent.crawl import CrawlRequest, RequestQueue
from bls_agent.devserver import DevServer
from tests.harness import eventually, url_with_rights
from tests.soak.scrapy_fleet import Crawler, Site, crawl_and_kill, serve

if TYPE_CHECKING:
    from scrapy import Request, Spider

CRAWL_KEYS = "crawlo:{}:*"
CYCLE: dict[str, Any] = {}
CYCLE["again"] = CYCLE


def new_project() -> str:
    return f"爬虫_{secrets.token_hex(4)}"


def keys_of(redis_url: str, project: str) -> list[bytes]:
    with Redis.from_url(redis_url, protocol=2) as redis:
        return list(redis.scan_iter(CRAWL_KEYS.format(project)))


def test_a_killed_process_loses_no_page(redis_url: str) -> None:
    """Two processes share the pages; those that a killed one had are fetched again."""
    with serve(Site(120, pause=0.005)) as site:
        figures = crawl_and_kill(redis_url, site)
    assert figures["by killed"] >= 24
    assert figures["by second"] >= 24


def test_a_crawl_that_was_stopped_resumes(redis_url: str) -> None:
    """Each page once over all runs; a run behind the end has nothing to do.

    With an empty ``SPIDER_NAME`` the crawl uses the keys of the project alone.
    """
    project = new_project()
    with (
        serve(Site(40, pause=0.01)) as site,
        Crawler(redis_url, site, project, "stopped", SPIDER_NAME="") as stopped,
        Crawler(redis_url, site, project, "resumed", SPIDER_NAME="") as resumed,
        Crawler(redis_url, site, project, "late", SPIDER_NAME="") as late,
    ):
        stopped.begin()
        site.wait_for(10, "stopped")
        stopped.stop()
        stats, _ = stopped.result()
        assert stats["finish_reason"] == "shutdown"
        resumed.begin()
        stats, log = resumed.result()
        assert "Joining a crawl" in log
        late.begin()
        idle, _ = late.result()
    assert stats["finish_reason"] == idle["finish_reason"] == "finished"
    assert len(site.hits) == 40
    assert site.again() == []
    assert site.fetched_by("resumed") == stats["scheduler/dequeued/redis"]
    assert site.fetched_by("late") == 0
    assert idle["dupefilter/filtered"] == 1  # its start request
    key = f"crawlo:{project}:filter:fingerprint"
    assert keys_of(redis_url, project) == [key.encode()]


def test_requests_in_memory_retries_and_the_end(redis_url: str) -> None:
    """A lambda stays in memory and is said once; a start request is retried as ever.

    All of it on a reactor that has no event loop of asyncio.
    """
    project = new_project()
    options = {
        "lambda": True,
        "CLEANUP_REDIS_DATA": True,
        "RETRY_TIMES": 1,
        "TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor",
    }
    with (
        serve(Site(6, busy={"/page/0"})) as site,
        Crawler(redis_url, site, project, "all", **options) as crawler,
    ):
        crawler.begin()
        stats, log = crawler.result()
    assert stats["retry/count"] == 1
    assert {page for page in site.hits if len(site.hits[page]) > 1} == {
        "/page/0",  # it was busy
        "/page/1",  # once more for the lambda: memory knows nothing of Redis
    }
    assert stats["scheduler/unserializable"] == 1  # the second is a duplicate
    assert stats["scheduler/dequeued/memory"] == 1
    assert log.count("stays in the memory of this process") == 1
    assert "Callbacks must be methods of the spider" in log
    assert keys_of(redis_url, project) == []


async def test_requests_that_scrapy_refuses_stop_no_process(redis_url: str) -> None:
    """More of them than a process takes ahead: they fail, and the crawl ends."""
    from bls_agent.integrations.scrapy import AHEAD  # noqa: PLC0415 - see above

    project = new_project()
    with (
        serve(Site(3)) as site,
        Crawler(
            redis_url, site, project, "all", SPIDER_NAME="", BLS_CRAWL_MAX_RETRIES=0
        ) as crawler,
    ):
        async with RequestQueue(redis_url, project) as queue:
            for number in range(AHEAD + 1):
                url = f"{site.url}/page/{number}?q=页"
                rest = {"encoding": "nope"} if number % 2 else {"headers": {"A": [1]}}
                await queue.push(CrawlRequest(url, meta={"crawl_queue": rest}))
            crawler.begin()
            stats, log = await asyncio.to_thread(crawler.result)
            assert (await queue.stats()).failed == AHEAD + 1
    assert stats["finish_reason"] == "finished"
    assert len(site.hits) == 3
    assert "cannot be crawled: unknown encoding" in log


@pytest.fixture
def spider() -> Spider:
    from scrapy import Spider  # noqa: PLC0415 - see above

    class OneSpider(Spider):
        name = "one"

        def parse_item(self, response: Any) -> None:
            """Do nothing."""

        def give_up(self, failure: Any) -> None:
            """Do nothing."""

    return OneSpider()


def request(**options: Any) -> Request:
    from scrapy import Request  # noqa: PLC0415 - see above

    return Request("https://example.com/页", **options)


def test_a_request_comes_back_as_it_was(spider: Any) -> None:
    """All that Scrapy knows of it, and JSON between."""
    from scrapy.http import JsonRequest  # noqa: PLC0415 - see above

    from bls_agent.integrations import scrapy as ours  # noqa: PLC0415

    given = JsonRequest(
        "https://example.com/页",
        data={"a": [1]},
        method="PUT",
        headers={"Accept": ["a/b", "c/d"], "X-Name": "名"},
        cookies=[{"name": "k", "value": "v"}],
        meta={"depth": 2, "deep": {"list": [1.5, None]}},
        encoding="gb18030",
        priority=-3,
        dont_filter=True,
        callback=spider.parse_item,
        errback=spider.give_up,
        flags=["f"],
        cb_kwargs={"page": 1},
    )
    payload = ours.write_request(given, spider).encode()
    found = ours.read_request(CrawlRequest.decode(payload), spider)
    assert found.meta.pop("crawl_queue") is True
    assert type(found) is type(given)
    assert found.to_dict(spider=spider) == given.to_dict(spider=spider)


def test_other_programs_queue_requests_too(spider: Any) -> None:
    """Scrapy takes what knows nothing of Scrapy."""
    from bls_agent.integrations import scrapy as ours  # noqa: PLC0415

    pushed = CrawlRequest("https://example.com/", "post", {"A": "b"}, b"x", {"n": 1})
    found = ours.read_request(pushed, spider)
    assert (found.method, found.body, found.meta["n"]) == ("POST", b"x", 1)
    assert found.headers["A"] == b"b"
    assert found.callback is None
    named = CrawlRequest("https://example.com/", callback="parse_item")
    assert ours.read_request(named, spider).callback == spider.parse_item


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"callback": lambda _: None}, "is not an instance method"),
        ({"meta": {"at": dt.date(2026, 1, 12)}}, r"meta\['at'\].*no date"),
        ({"meta": {"a": [{1: 2}]}}, r"meta\['a'\].*keys"),
        ({"cb_kwargs": {"x": {1}}}, r"cb_kwargs'\]\['x'\].*no set"),
        ({"cookies": {"k": b"v"}}, r"cookies'\]\['k'\].*no bytes"),
        ({"meta": {"nan": float("nan")}}, "meta"),
        ({"meta": CYCLE}, "contains itself"),
        ({"body": b"x" * 2**21}, "body"),
    ],
)
def test_what_json_cannot_hold_is_named(
    spider: Any, options: dict[str, Any], told: str
) -> None:
    """It is never changed in silence, and never pickled."""
    from bls_agent.integrations import scrapy as ours  # noqa: PLC0415

    with pytest.raises(ValueError, match=told):
        ours.write_request(request(**options), spider)


@pytest.mark.parametrize(
    ("callback", "rest"),
    [
        ("parse_nothing", {}),
        (None, {"_class": "this.Class"}),
        (None, {"_class": "os.system"}),
        (None, {"errback": "nothing"}),
    ],
)
def test_what_the_spider_has_not_is_refused(
    spider: Any, callback: str | None, rest: dict[str, str]
) -> None:
    """Nothing is imported for a name that stands in Redis."""
    from bls_agent.integrations import scrapy as ours  # noqa: PLC0415

    pushed = CrawlRequest(
        "https://example.com/", meta={"crawl_queue": rest}, callback=callback
    )
    with pytest.raises(ValueError, match=callback or rest.popitem()[1]):
        ours.read_request(pushed, spider)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "PROJECT_NAME"),
        ({"PROJECT_NAME": "a:b"}, "a:b"),
        ({"PROJECT_NAME": "a", "SPIDER_NAME": "queue"}, "queue"),
        ({"PROJECT_NAME": "a", "BLS_REDIS_URL": "nowhere"}, "nowhere"),
        ({"PROJECT_NAME": "a", "BLS_CRAWL_LEASE": -1}, "lease"),
        ({"PROJECT_NAME": "a", "BLS_CRAWL_LEASE": "abc"}, "BLS_CRAWL_LEASE"),
        ({"PROJECT_NAME": "a", "BLS_CRAWL_MAX_RETRIES": "3.5"}, "BLS_CRAWL_MAX_RET"),
        (
            {"PROJECT_NAME": "a", "SCHEDULER": "scrapy.core.scheduler.Scheduler"},
            "SCHEDULER",
        ),
    ],
)
def test_bad_settings_are_refused(
    spider: Any, settings: dict[str, object], told: str
) -> None:
    """Before anything is crawled."""
    from scrapy.utils.test import get_crawler  # noqa: PLC0415 - see above

    from bls_agent.integrations.scrapy import CrawlScheduler  # noqa: PLC0415

    addon = {"bls_agent.integrations.scrapy.CrawlAddon": 500}
    crawler = get_crawler(spider.__class__, {"ADDONS": addon, **settings})
    crawler.spider = spider
    with pytest.raises(ConfigurationError, match=told):
        CrawlScheduler.from_crawler(crawler)


async def test_a_redis_that_is_away_is_said_at_once(spider: Any) -> None:
    """Opening fails, and closing behind it ends all the same."""
    from scrapy.utils.test import get_crawler  # noqa: PLC0415 - see above

    from bls_agent.integrations.scrapy import CrawlScheduler  # noqa: PLC0415

    settings = {
        "ADDONS": {"bls_agent.integrations.scrapy.CrawlAddon": 500},
        "PROJECT_NAME": new_project(),
        "BLS_REDIS_URL": "redis://127.0.0.1:1/0",
    }
    crawler = get_crawler(type(spider), settings)
    crawler.spider = spider
    scheduler = CrawlScheduler.from_crawler(crawler)
    loop = asyncio.get_running_loop()
    with pytest.raises(RedisUnavailableError):
        await scheduler.open(spider).asFuture(loop)
    await scheduler.close("failed").asFuture(loop)


async def test_a_refusal_is_told_and_has_long_pauses(
    own_server: DevServer,
    admin: AsyncRedis,
    spider: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the right to scripts nothing is taken or queued, and the log says why."""
    from scrapy.utils.test import get_crawler  # noqa: PLC0415 - see above

    from bls_agent.integrations.scrapy import CrawlScheduler  # noqa: PLC0415

    pauses: list[float] = []

    class Pauses(Backoff):
        def failed(self, *, permanent: bool = False, longest: bool = False) -> float:
            pauses.append(super().failed(permanent=permanent, longest=longest))
            return pauses[-1]

    monkeypatch.setattr("bls_agent.integrations.scrapy.Backoff", Pauses)
    monkeypatch.setattr("bls_agent.integrations.scrapy.CLOSE_TIME", 0.1)
    rights = ("~*", "+@all", "-evalsha", "-eval")
    settings = {
        "ADDONS": {"bls_agent.integrations.scrapy.CrawlAddon": 500},
        "PROJECT_NAME": new_project(),
        "BLS_REDIS_URL": await url_with_rights(admin, own_server, *rights),
    }
    crawler = get_crawler(type(spider), settings)
    crawler.spider = spider
    scheduler = CrawlScheduler.from_crawler(crawler)
    loop = asyncio.get_running_loop()
    await scheduler.open(spider).asFuture(loop)
    assert scheduler.enqueue_request(request())
    texts = ["requests are not taken: ", "requests are not queued: "]
    await eventually(lambda: all(one in caplog.text for one in texts))
    told = [one for one in caplog.messages if one.startswith(tuple(texts))]
    assert len(told) == 2
    assert all("(no_permission)" in one for one in told)
    await scheduler.close("finished").asFuture(loop)
    assert pauses
    assert min(pauses) >= 30


async def test_an_empty_spider_name_is_the_project(redis_url: str, spider: Any) -> None:
    """The filter of items uses the keys of the project alone."""
    from scrapy.utils.test import get_crawler  # noqa: PLC0415 - see above

    from bls_agent.integrations.scrapy import CrawlDedupPipeline  # noqa: PLC0415

    project = new_project()
    settings = {
        "BLS_REDIS_URL": redis_url,
        "PROJECT_NAME": project,
        "SPIDER_NAME": "",
    }
    crawling = get_crawler(type(spider), settings)
    crawling.spider = spider
    pipeline = CrawlDedupPipeline.from_crawler(crawling)
    await pipeline.process_item({"标题": "茶价上涨"}, spider)
    await pipeline.close_spider(spider)
    key = f"crawlo:{project}:item:fingerprint"
    assert keys_of(redis_url, project) == [key.encode()]


async def test_an_item_that_was_here_before_is_dropped(
    redis_url: str, spider: Any
) -> None:
    """As Scrapy has it done, beside the keys of the spider's queue."""
    from scrapy.exceptions import DropItem  # noqa: PLC0415 - see above
    from scrapy.utils.test import get_crawler  # noqa: PLC0415

    from bls_agent.integrations.scrapy import CrawlDedupPipeline  # noqa: PLC0415

    project = new_project()
    options = {"BLS_REDIS_URL": redis_url, "PROJECT_NAME": project, "REDIS_TTL": 60}
    crawler = get_crawler(spider.__class__, options)
    crawler.spider = spider
    pipeline = CrawlDedupPipeline.from_crawler(crawler)
    item = {"标题": "茶价上涨"}
    assert await pipeline.process_item(item, spider) is item
    with pytest.raises(DropItem, match=r"^[0-9a-f]{64}$"):
        await pipeline.process_item({"标题": "茶价上涨"}, spider)
    await pipeline.close_spider(spider)
    assert keys_of(redis_url, project) == [
        f"crawlo:{project}:one:item:fingerprint".encode()
    ]
