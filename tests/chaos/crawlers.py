"""Crawlers at work on one queue: what each does, and what was done twice without reason."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
from redis.asyncio import Redis

from bls_agent.core.errors import BlsError
from bls_agent.crawl import RequestQueue
from tests.kit import Event, History, Step

SLACK = 0.5  # seconds in which what a dying link still carried is worked on


async def crawl(
    queue: RequestQueue, history: History, who: str, rng: random.Random, longest: float
) -> None:
    """Take requests for ever; write down what is started, acknowledged and ended.

    Half of the requests are acknowledged by hand, so that the answer is known.

    Args:
        queue: From which to take.
        history: What happens is written here.
        who: The name of this task; each one has its own.
        rng: For all chance.
        longest: Seconds that a request takes at most.
    """
    while True:
        name = ""
        try:
            async with queue.take(1.0) as taken:
                if taken is None:
                    continue
                name = taken.request.url.rpartition("/")[2]
                history.note(Step.STARTED, name, who)
                await anyio.sleep(rng.uniform(0, longest))
                if rng.random() < 0.5 and await taken.ack():
                    history.note(Step.ACKED, name, who)
        except BlsError:  # Redis is away or refuses: a crawler tries again
            await anyio.sleep(0.05)
        finally:
            if name:
                history.note(Step.ENDED, name, who)


async def crawl_with_all(
    options: dict[str, Any], history: History, who: str, rng: random.Random
) -> None:
    """Be one crawler with several tasks, until it is cancelled."""
    queue = RequestQueue(options["url"], options["project"], **options["settings"])
    async with queue, anyio.create_task_group() as tasks:
        for number in range(options["tasks"]):
            name = f"{who}.{number}"
            tasks.start_soon(crawl, queue, history, name, rng, options["longest"])


@dataclass(frozen=True)
class Damaged:
    """A time in which crawlers were hurt.

    Attributes:
        begin: On the clock of ``time.monotonic()``.
        end: On the same clock.
        who: The one crawler that was hurt; ``""`` for all.
    """

    begin: float
    end: float
    who: str = ""

    def excuses(self, handling: Handling) -> bool:
        """Tell whether the request was in the hands of a hurt crawler."""
        mine = self.who in ("", handling.who.partition(".")[0])
        return (
            mine and handling.begin <= self.end + SLACK and handling.end >= self.begin
        )

    def delayed(self, handling: Handling) -> bool:
        """Tell whether a crawler had the request when it froze, and began afterwards."""
        mine = self.who == handling.who.partition(".")[0]
        return mine and self.end <= handling.begin <= self.end + SLACK


@dataclass
class Handling:
    """One time that a crawler worked on a request.

    Attributes:
        id: The request.
        who: The task of a crawler.
        begin: On the clock of ``time.monotonic()``.
        end: On the same clock; infinite where the crawler was killed.
        acked: Whether the queue said that the request was finished by this crawler.
    """

    id: str
    who: str
    begin: float
    end: float = math.inf
    acked: bool = False


def find_handlings(events: Iterable[Event]) -> dict[str, list[Handling]]:
    """Give each request's handlings in the order of their beginning."""
    found: dict[str, list[Handling]] = defaultdict(list)
    running: dict[str, Handling] = {}
    for event in events:
        if event.step is Step.STARTED:
            running[event.who] = Handling(event.id, event.who, event.at)
            found[event.id].append(running[event.who])
        elif event.step is Step.ACKED:
            running[event.who].acked = True
        elif event.step is Step.ENDED:
            running.pop(event.who).end = event.at
    return found


def judge(history: History, damage: list[Damaged]) -> Iterator[str]:
    """Say which requests were handed out once more, and should not have been."""
    for name, handlings in find_handlings(history.events()).items():
        for handling, following in itertools.pairwise(handlings):
            told = f"{name} was handed out once more, although {handling.who}"
            if any(each.delayed(following) for each in damage):
                continue
            if handling.acked:
                yield f"{told} had finished it"
            elif not any(each.excuses(handling) for each in damage):
                yield f"{told} was well while it worked on it"


async def find_leftovers(redis: Redis, project: str) -> list[str]:
    """Say what is in Redis still when all requests are handled, and should not be.

    The filter of duplicates stays for the next crawl, and the counters and the list of
    wakes may.
    """
    stays = (b":filter:fingerprint", b":counters", b":wake")
    return [
        f"{key.decode()} is still there"
        async for key in redis.scan_iter(f"*{project}*", count=1_000)
        if not key.endswith(stays)
    ]
