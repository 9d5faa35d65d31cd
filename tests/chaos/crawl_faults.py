"""Faults over a fleet of crawlers that share one queue.

Each request is handled, and none twice but those in the hands of a crawler that was hurt.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import anyio

from bls_agent.core.errors import BlsError
from bls_agent.crawl import CrawlRequest, RequestQueue
from tests.chaos.crawlers import (
    Damaged,
    crawl_with_all,
    find_handlings,
    find_leftovers,
    judge,
)
from tests.chaos.modes import CRAWLERS
from tests.chaos.process_faults import Children, children_of
from tests.chaos.stage import DRAIN_LIMIT, Stage
from tests.chaos.table import Short, fault
from tests.kit import Cut, Recovery, Step, Violation

LONGEST = 0.03  # seconds that a request takes at most
BUSY = 0.6  # the same for a crawler that is to be hurt with requests in its hands
STALL = 0.5  # seconds, a quarter of a lease
CRAWL = ("crawl",)


class CrawlStage(Stage):
    """Three crawlers in this process, a producer, and whoever joins them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.damaged: list[Damaged] = []
        self._names = 0

    @asynccontextmanager
    async def load(
        self, *, url: str | None = None, longest: float = LONGEST, **_: Any
    ) -> AsyncGenerator[Any]:
        """Run the crawlers while requests keep coming; then wait until all are handled.

        Args:
            url: Where the crawlers find the server; through the proxy by default.
            longest: Seconds that a request takes at most.
        """
        options = {
            "url": url or self.proxy.url,
            "project": self.project,
            "settings": self.mode.options,
            "tasks": self.mode.concurrency,
            "longest": longest,
        }
        async with (
            RequestQueue(self.server.url, self.project, timeout=1.0) as queue,
            anyio.create_task_group() as tasks,
        ):
            for number in range(CRAWLERS):
                who = f"crawler-{number}"
                tasks.start_soon(crawl_with_all, options, self.history, who, self.rng)
            tasks.start_soon(self._push_all, queue)
            tasks.start_soon(self._note_stalls)
            yield None
            self._producing = False
            await self._produced.wait()
            await self._drain(queue)
            tasks.cancel_scope.cancel()
        for left in await find_leftovers(self.redis, self.project):
            self.complain(left)

    async def _note_stalls(self) -> None:
        """Note each time in which this process stood still: it renewed no lease then.

        All crawlers and the rows beside them share its event loop, so that a busy
        machine can hold it up for longer than a lease.
        """
        while True:
            begin = time.monotonic()
            await anyio.sleep(STALL / 10)
            end = time.monotonic()
            if end - begin > STALL:
                self.damaged.append(Damaged(begin, end))
                self.damage.links += 1

    async def _push_all(self, queue: RequestQueue) -> None:
        """Push until told to stop; what is in doubt is pushed again, and is not new then."""
        while self._producing:
            await anyio.sleep(self.pick(0.03, 0.01))
            if self.resting:
                continue
            self._names += 1
            name = f"{self._names:06}"
            request = CrawlRequest(f"https://example.com/{name}")
            self.history.note(Step.MAYBE_PUSHED, name)
            while True:
                try:
                    await queue.push(request, unique=True)
                    break
                except BlsError:
                    await anyio.sleep(0.05)
            self.history.note(Step.PUSHED, name)
        self._produced.set()

    async def _drain(self, queue: RequestQueue) -> None:
        with anyio.move_on_after(DRAIN_LIMIT):
            while True:
                try:
                    stats = await queue.stats()
                    if not stats.waiting + stats.delayed + stats.in_flight:
                        return
                except BlsError:
                    pass
                await anyio.sleep(0.02)
        self.complain(f"requests still wait after {DRAIN_LIMIT:g} s")

    @asynccontextmanager
    async def hurt(
        self, *injuries: AbstractContextManager[None], who: str = ""
    ) -> AsyncGenerator[None]:
        """Hurt the server, the link of all crawlers, or one of them, during the block."""
        begin = time.monotonic()
        try:
            async with super().hurt(*injuries):
                yield
        finally:
            self.damaged.append(Damaged(begin, self.healed_at, who))
            if who:
                self.damage.killed += 1
            else:
                self.damage.links += 1

    def conclude(self) -> list[Violation]:
        """Judge each request that was handed out again, and how long that took."""
        handlings = find_handlings(self.history.events())
        for harm in self.damaged:
            again = [
                following.begin - harm.end
                for each in handlings.values()
                for one, following in itertools.pairwise(each)
                if harm.excuses(one)
            ]
            if harm.who and again:
                late = max(0.0, *again)
                self.history.evidence.recoveries.append(Recovery("a lease", late))
        if self.damage.server_forgets:
            return []
        told = judge(self.history, self.damaged)
        return [Violation("C1", text) for text in told]


@fault("F30-cut", "cut at random bytes of the replies", modes=CRAWL)
async def cut(stage: CrawlStage) -> None:
    async with stage.load():
        for _ in range(stage.pick(3, 60)):
            await stage.busy(stage.rng.randrange(1, 20))
            at = stage.rng.choice([0, 1, stage.rng.randrange(2, 200)])
            armed = stage.proxy.arm(Cut(command="EVALSHA", at=at))
            async with stage.hurt():
                if not await stage.wait(lambda armed=armed: bool(armed.fired), 10):  # type: ignore[misc]
                    stage.complain("no script was run")
            await stage.recovered(f"a reply cut at {at}")


@fault("F30-rights", "the crawlers' rights withdrawn for a while", modes=CRAWL)
async def rights(stage: CrawlStage) -> None:
    stage.server.ask("ACL", "SETUSER", "crawler", "on", ">word", "~*", "&*", "+@all")
    _, _, place = stage.proxy.url.partition("://")
    async with stage.load(url=f"redis://crawler:word@{place}"):
        for rule in stage.pick(["-@all"], ["-@all", "resetkeys", "-@all", "-evalsha"]):
            await stage.busy()
            async with stage.hurt(without(stage, rule)):
                await anyio.sleep(stage.pick(0.5, 3))
            await stage.recovered("rights withdrawn")


@contextmanager
def without(stage: CrawlStage, rule: str) -> Generator[None]:
    """Take some rights from the crawlers' user, and give them back."""
    stage.server.ask("ACL", "SETUSER", "crawler", rule)
    try:
        yield
    finally:
        stage.server.ask("ACL", "SETUSER", "crawler", "~*", "+@all")


@fault(
    "F30-dead",
    "SIGKILL of a crawler with requests in its hands",
    modes=CRAWL,
    short=Short.NONE,
)
async def dead(stage: CrawlStage) -> None:
    stage.damage.recovery = stage.pick(20, 5)
    async with children_of(stage) as children, stage.load():
        for _ in range(stage.pick(2, 60)):
            await kill_one(stage, children)
            await stage.recovered("SIGKILL")


@fault("F30-stopped", "SIGSTOP of a crawler, for as long as a lease", modes=CRAWL)
async def stopped(stage: CrawlStage) -> None:
    """It goes on while another crawler has its requests: it must not end their leases."""
    stage.damage.recovery = stage.pick(20, 5)
    async with children_of(stage) as children, stage.load(longest=BUSY):
        for seconds in stage.pick([2.0], [0.5, *[2.0] * 6, 5]):
            pid = await begin(stage, children)
            stage.resting = True  # what comes back would wait behind all others
            async with stage.hurt(who=str(pid)):
                os.kill(pid, signal.SIGSTOP)
                await anyio.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
            stage.resting = False
            await stage.recovered("SIGSTOP")


async def kill_one(stage: CrawlStage, children: Children) -> None:
    """Let one more crawler begin, and kill it at any moment of its work."""
    pid = await begin(stage, children)
    await anyio.sleep(stage.rng.uniform(0, BUSY / 2))
    async with stage.hurt(who=str(pid)):
        os.kill(pid, signal.SIGKILL)
        await children.wait(pid)


async def begin(stage: CrawlStage, children: Children) -> int:
    """Let one more crawler begin, in a process of its own; wait until it works."""
    pid = await children.go(
        kind="crawl",
        settings=stage.mode.options,
        tasks=stage.mode.concurrency,
        longest=BUSY,
    )
    await stage.wait(lambda: children.has_begun(pid), 10)
    return pid


@fault(
    "F30-both",
    "a crawler killed while the server or the link is hurt",
    modes=CRAWL,
    short=Short.NONE,
)
async def both(stage: CrawlStage) -> None:
    stage.damage.recovery = 20.0
    async with children_of(stage) as children, stage.load():
        for _ in range(stage.pick(1, 20)):
            await stage.busy()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill_one, stage, children)
                tasks.start_soon(hurt_all, stage)
            await stage.recovered("two faults")


async def hurt_all(stage: CrawlStage) -> None:
    """Hurt the server or the link for up to a second, in any way."""
    await anyio.sleep(stage.rng.uniform(0, BUSY))
    name = stage.rng.choice(["frozen", "killed", "full", "demoted", "link"])
    injuries = [getattr(stage.server, name)()] if name != "link" else []
    async with stage.hurt(*injuries):
        if name == "link":
            stage.proxy.break_all()
        await anyio.sleep(stage.rng.uniform(0, 1))
