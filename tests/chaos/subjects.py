"""What is no agent, at work through a bad link: runs, a heartbeat, a cache, a sync.

A subject is one function. It works until it is cancelled, and writes down each piece of
work when it was handed over (``PUSHED``) and when its effect was seen (``STARTED``). So
the faults of servers and links, and the invariants, are those of agents.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, TypeAlias

import anyio
import orjson
from redis.exceptions import RedisError, ResponseError

from bls_agent import EventStore
from bls_agent.assets import AssetLibrary, AssetSync
from bls_agent.core.errors import BlsError
from bls_agent.core.keys import RUN_EVENTS
from bls_agent.runs import StreamEvent
from bls_agent.workers import BacktestWorkerHeartbeat, FunctionCache, Heartbeat
from tests.assets.memory_source import MemorySource, manifest
from tests.chaos.modes import Damage, Mode
from tests.chaos.stage import DRAIN_LIMIT, Stage
from tests.kit import Promise, Step, Tally

PAUSE = 0.03  # seconds between two pieces of work
RUN = 7
LONGEST_CALL = 15.0  # seconds that a cached call may take on a busy machine
CALLERS = 5

Play: TypeAlias = Callable[["SubjectStage"], Coroutine[Any, Any, None]]


def nothing(damage: Damage, concurrency: int, prefetch: int) -> Promise:
    """Nothing is lost, and nothing comes twice."""
    del damage, concurrency, prefetch
    return Promise()


class SubjectStage(Stage):
    """One subject under load.

    Attributes:
        timeout: Seconds of one request of the subject.
    """

    timeout = 1.0

    @asynccontextmanager
    async def load(self, **options: Any) -> AsyncGenerator[Any]:
        """Run the subject; then wait until the effect of all its work was seen."""
        self.timeout = options.get("redis_timeout", self.timeout)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(PLAYS[self.mode.name], self)
            yield None
            self._producing = False
            await self._produced.wait()
            if not await self.wait(self.is_done, DRAIN_LIMIT):
                self.complain(f"work still waits after {DRAIN_LIMIT:g} s")
            tasks.cancel_scope.cancel()

    def is_done(self) -> bool:
        """Return whether the effect of all work was seen.

        Where the server forgets, what it has forgotten is never seen: the last piece of
        work is enough, because nothing is hurt any more.
        """
        tally = Tally.of(self.history)
        if self.damage.server_forgets:
            return not tally.sent or max(tally.sent, key=int) in tally.handled
        return not tally.lost

    async def numbers(self) -> AsyncGenerator[int]:
        """Yield the numbers of pieces of work, until the faults are over."""
        for number in count(1):
            await anyio.sleep(PAUSE)
            while self.resting:
                await anyio.sleep(PAUSE)
            if not self._producing:
                self._produced.set()
                return
            self.history.note(Step.MAYBE_PUSHED, str(number))
            yield number

    def pushed(self, number: int) -> None:
        """Write down that a piece of work was handed over."""
        self.history.note(Step.PUSHED, str(number))

    def seen(self, number: int) -> None:
        """Write down that the effect of a piece of work was seen."""
        self.history.note(Step.STARTED, str(number))

    def check_order(self, numbers: list[int]) -> None:
        """Complain where something came twice or out of order."""
        if not self.damage.server_forgets and numbers != sorted(set(numbers)):
            self.complain("events came twice, or out of order")


async def write_run(stage: SubjectStage) -> None:
    """Write a run; an event is seen when it stands in the stream, which holds it once."""
    async with (
        EventStore(stage.proxy.url, timeout=stage.timeout) as store,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(watch_stream, stage)
        async with store.run(RUN, shutdown_timeout=2.0) as run:
            async for number in stage.numbers():
                run.emit("agent", "tool_call", {"n": number})
                stage.pushed(number)
            await anyio.sleep_forever()


async def watch_stream(stage: SubjectStage) -> None:
    """Look at the stream over a link of its own."""
    known: set[int] = set()
    while True:
        await anyio.sleep(PAUSE)
        with suppress(RedisError, OSError):
            entries: Any = await stage.redis.xrange(RUN_EVENTS.build(run_id=RUN))
            data = [orjson.loads(fields.get(b"data") or b"{}") for _, fields in entries]
            numbers = [each["n"] for each in data if each and "n" in each]
            stage.check_order(numbers)
            for number in sorted(set(numbers) - known):
                stage.seen(number)
            known.update(numbers)


async def follow_run(stage: SubjectStage) -> None:
    """Follow a run that a peer writes; every event comes once, in order."""
    numbers: list[int] = []
    async with (
        EventStore(stage.proxy.url, timeout=stage.timeout) as store,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(write_as_peer, stage)
        async for one in store.follow(RUN):
            if isinstance(one, StreamEvent):
                numbers.append(int(one.id.partition("-")[0]))
                stage.check_order(numbers)
                stage.seen(numbers[-1])
            elif not stage.damage.server_forgets:
                stage.complain(f"the follower was told {one!r}")
    if not stage.damage.server_forgets:
        stage.complain("the follower ended")


async def write_as_peer(stage: SubjectStage) -> None:
    """Write events straight to the server; the id makes a repetition harmless."""
    key = RUN_EVENTS.build(run_id=RUN)
    async for number in stage.numbers():
        fields: dict[Any, Any] = {"event_category": "llm", "event_action": "stream",
            "timestamp": "2026-01-12T12:35:00.000Z", "data": "{}"}  # fmt: skip
        while True:
            try:
                await stage.redis.xadd(key, fields, id=f"{number}-0")
                break
            except ResponseError as error:
                if "equal or smaller" in str(error):
                    break
                await anyio.sleep(PAUSE)
            except (RedisError, OSError):
                await anyio.sleep(PAUSE)
        stage.pushed(number)


async def beat(stage: SubjectStage) -> None:
    """Change a heartbeat all the time; what counts is that the newest one is seen."""
    heartbeat = BacktestWorkerHeartbeat.create(worker_id="回测-混沌")
    async with (
        Heartbeat(
            heartbeat,
            redis=stage.proxy.url,
            interval=0.2,
            ttl=5.0,
            timeout=stage.timeout,
        ) as beating,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(watch_heartbeat, stage, heartbeat.key)
        last = 0
        async for last in stage.numbers():
            beating.update(running_tasks=last)
        stage.pushed(last)
        await anyio.sleep_forever()


async def watch_heartbeat(stage: SubjectStage, key: str) -> None:
    """Look at the key over a link of its own."""
    newest = 0
    while True:
        await anyio.sleep(PAUSE)
        with suppress(RedisError, OSError):
            value = await stage.redis.get(key)
            number = orjson.loads(value)["running_tasks"] if value else 0
            if number < newest and value:
                stage.complain(f"{number} was shown after {newest}")
            if number > newest:
                newest = number
                stage.seen(number)


async def call_cached(stage: SubjectStage) -> None:
    """Call a cached function; each caller gets the right result, and soon."""
    cache = FunctionCache(stage.proxy.url, timeout=stage.timeout)

    @cache.cached(ttl=60)
    async def square(number: int) -> int:
        await anyio.sleep(0)
        return number * number

    async def call(number: int) -> None:
        while True:
            await anyio.sleep(PAUSE)
            with anyio.move_on_after(LONGEST_CALL) as scope:
                try:
                    if await square(number) != number * number:
                        stage.complain("a caller got a wrong result")
                except Exception as error:
                    stage.complain(f"a caller got {error!r}")
            if scope.cancelled_caught:
                stage.complain(f"a call took more than {LONGEST_CALL:g} s")

    stage._produced.set()  # hits are counted as they come
    async with cache, anyio.create_task_group() as tasks:
        for number in range(CALLERS):
            tasks.start_soon(call, number)
        hits = 0
        while True:  # a hit is what has to come back after a fault
            await anyio.sleep(PAUSE)
            for hit in range(hits + 1, cache.stats(square).hits + 1):
                stage.history.note(Step.MAYBE_PUSHED, str(hit))
                stage.seen(hit)
                stage.pushed(hit)
            hits = cache.stats(square).hits


async def synchronise(stage: SubjectStage) -> None:
    """Change a manifest all the time; after each sync readers have the new version."""
    source = MemorySource.of({})
    async with (
        AssetSync(stage.proxy.url, source, lease=1.0, timeout=stage.timeout) as sync,
        AssetLibrary(stage.server.url, timeout=stage.timeout) as library,
    ):
        async for number in stage.numbers():
            version = f"1.0.{number}"
            source.files["提示.yaml"] = manifest("prompt-1", version)
            stage.pushed(number)
            while not await is_synced(sync, library, version):
                await anyio.sleep(PAUSE)
            stage.seen(number)
        await anyio.sleep_forever()


async def is_synced(sync: AssetSync, library: AssetLibrary, version: str) -> bool:
    """Synchronise, and return whether a reader finds this version everywhere."""
    with suppress(BlsError):
        await sync.run()
        asset = await library.get("prompt-1")
        versions = [summary.version for summary in await library.list()]
        return asset is not None and [asset.version] == versions == [version]
    return False


PLAYS: dict[str, Play] = {
    "run": write_run,
    "follow": follow_run,
    "heartbeat": beat,
    "cache": call_cached,
    "sync": synchronise,
}
SUBJECTS = {name: Mode(name, {}, nothing) for name in PLAYS}
