"""scrapy-redis: pickles in a sorted set, fingerprints in a set; it blocks, as in Scrapy.

Its scheduler asks the duplicate filter and then pushes; a request is gone when it is taken.
"""

from __future__ import annotations

from typing import Any

from scrapy import Request, Spider
from scrapy_redis.connection import get_redis
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.crawling import HEADERS, crawl, meta_of, url_of


class CrawlSpider(Spider):
    """A spider with the method that pages are given to."""

    name = "crawl"

    def parse(self, response: Any) -> None:
        """Is never called."""


async def run(options: Options) -> dict[str, Any]:
    """Push, then go round."""
    server, project = get_redis(url=options["url"]), options["project"]
    spider = CrawlSpider()
    queue = PriorityQueue(server, spider, f"{project}:requests")
    dupefilter = RFPDupeFilter(server, f"{project}:dupefilter")

    def page(number: int) -> Request:
        return Request(
            url_of(number),
            headers=HEADERS,
            meta=meta_of(number),
            callback=spider.parse,
        )

    async def push(number: int) -> None:
        request = page(number)
        if not dupefilter.request_seen(request):
            queue.push(request)

    async def cycle(number: int) -> None:
        queue.push(page(number))
        if not queue.pop().url:
            raise ValueError(number)

    return await crawl(push, cycle, options)


if __name__ == "__main__":
    act(run)
