"""What every crawler of the benchmarks does, whatever its queue is.

Nothing but the standard library: it also runs where only a peer is installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from benchmarks.subjects.acting import Options, on_cue

__all__ = ["HEADERS", "crawl", "meta_of", "url_of"]

HEADERS = {"Referer": "https://news.example.com/list", "Accept-Language": "zh-CN,zh"}

Step = Callable[[int], Awaitable[None]]


def url_of(number: int) -> str:
    """Give the URL of a page."""
    return f"https://news.example.com/{number // 1000}/{number}.html?page=1&from=list"


def meta_of(number: int) -> dict[str, Any]:
    """Give what a crawler wants to find again with a page."""
    return {"depth": 3, "category": "财经", "list_page": number // 20}


async def crawl(push: Step, cycle: Step, options: Options) -> dict[str, Any]:
    """On each cue push some pages, each also pushed by a neighbour; later go round.

    Args:
        push: Queues a page, unless it is known.
        cycle: Queues a page, takes one and finishes it.
        options: Number of this ``worker``, how many ``pages`` all have together, how many
            of them and how many new ones each has (``count``) in so many ``pieces``, and
            ``tasks`` at once.
    """
    worker, pages, count = options["worker"], options["pages"], options["count"]

    async def run(step: Step, numbers: Iterator[int]) -> None:
        for number in numbers:
            await step(number)

    async def piece(step: Step, left: Iterator[int]) -> None:
        numbers = islice(left, count // options["pieces"])
        await asyncio.gather(*(run(step, numbers) for _ in range(options["tasks"])))

    first = worker * count // 2
    shared = (number % pages for number in range(first, first + count))
    await on_cue(lambda: piece(push, shared), options["pieces"])
    first = pages + worker * count
    own = iter(range(first, first + count))
    await on_cue(lambda: piece(cycle, own), options["pieces"])
    return {}
