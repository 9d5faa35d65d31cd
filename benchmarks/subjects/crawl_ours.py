"""Pages through the request queue of this package, as an asyncio crawler uses it."""

from __future__ import annotations

from typing import Any

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.crawling import HEADERS, crawl, meta_of, url_of
from bls_agent.crawl import CrawlRequest, RequestQueue


async def run(options: Options) -> dict[str, Any]:
    """Push, then go round."""
    async with RequestQueue(options["url"], options["project"], "crawl") as queue:

        def page(number: int) -> CrawlRequest:
            return CrawlRequest(
                url_of(number), headers=HEADERS, meta=meta_of(number), callback="parse"
            )

        async def push(number: int) -> None:
            await queue.push(page(number), unique=True)

        async def cycle(number: int) -> None:
            await queue.push(page(number))
            async with queue.take() as taken:
                if taken is None or not taken.request.url:
                    raise ValueError(taken)

        return await crawl(push, cycle, options)


if __name__ == "__main__":
    act(run)
