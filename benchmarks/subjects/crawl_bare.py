"""Pages through a sorted set: ZADD and ZPOPMIN, nothing else; a dead worker loses them."""

from __future__ import annotations

from typing import Any, cast

import orjson
from redis.asyncio import Redis

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.crawling import HEADERS, crawl, meta_of, url_of


async def run(options: Options) -> dict[str, Any]:
    """Push, then go round."""
    key = f"{options['project']}:requests"
    async with Redis.from_url(options["url"], protocol=2) as redis:

        async def push(number: int) -> None:
            page = {
                "url": url_of(number),
                "headers": HEADERS,
                "meta": meta_of(number),
                "callback": "parse",
            }
            await redis.zadd(key, {orjson.dumps(page): 0})

        async def cycle(number: int) -> None:
            await push(number)
            popped = await redis.zpopmin(key)
            ((found, _),) = cast("list[tuple[bytes, float]]", popped)
            if not orjson.loads(found)["url"]:
                raise ValueError(found)

        return await crawl(push, cycle, options)


if __name__ == "__main__":
    act(run)
