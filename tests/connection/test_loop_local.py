"""One thing for each event loop, while loops come and go in many threads."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from bls_agent.connection.access import Access, LoopLocal
from bls_agent.crawl import RequestQueue, SeenFilter
from bls_agent.devserver import DevServer
from bls_agent.runs import EventStore
from bls_agent.workers import BacktestWorkerHeartbeat, FunctionCache, Heartbeat
from bls_agent.workers.heartbeat_writer import WRITERS
from tests.harness import are_blocked, eventually

THREADS = 8
LOOPS = 12  # in each thread, one after the other


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def in_many_loops(
    use: Callable[[int], Coroutine[Any, Any, None]],
) -> list[BaseException]:
    """Run it in many event loops in many threads; give what was raised."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        for _ in range(LOOPS):
            try:
                asyncio.run(use(number))
            except Exception as error:
                raised.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.usefixtures("_hasty")
def test_what_belongs_to_closed_loops_is_let_go() -> None:
    """Given to whoever comes next, once; nothing grows."""
    left: list[object] = []
    kept: LoopLocal[asyncio.AbstractEventLoop] = LoopLocal(left.append)

    async def use(_: int) -> None:
        assert kept.find() is None
        mine = asyncio.get_running_loop()
        assert kept.get(asyncio.get_running_loop) is mine
        assert kept.find() is mine

    assert in_many_loops(use) == []
    assert len(left) == len(set(left)) == THREADS * LOOPS - len(kept.values())
    assert len(kept.values()) <= THREADS


@pytest.mark.usefixtures("_hasty")
def test_a_cached_function_in_many_loops(own_server: DevServer) -> None:
    """One cache for all threads: no loop that ends harms a call in another one."""
    cache = FunctionCache(own_server.url, timeout=5)

    @cache.cached(ttl=60, name="loops")
    async def double(number: int) -> int:
        return 2 * number

    async def use(number: int) -> None:
        assert await double(number) == 2 * number
        await cache.aclose()

    assert in_many_loops(use) == []


def test_loops_that_end_under_heartbeats_are_not_kept(own_server: DevServer) -> None:
    """The end of a loop cancels the task that beats before the one that would close it."""

    async def leave_open(number: int) -> None:
        said = BacktestWorkerHeartbeat.create(f"回测-{number}")

        async def work() -> None:
            async with Heartbeat(said, redis=own_server.url) as beat:
                await beat.ready()
                opened.set()
                await asyncio.sleep(60)

        opened = asyncio.Event()
        task = asyncio.create_task(work())
        await opened.wait()
        assert not task.done()

    before = len(WRITERS._by_loop.values())
    for number in range(5):
        asyncio.run(leave_open(number))
    assert len(WRITERS._by_loop.values()) <= before + 1


@pytest.mark.parametrize(
    "kind",
    [
        "asyncio",
        # uvloop warns while a loop is being closed, and does not survive an error there.
        pytest.param(
            "uvloop", marks=pytest.mark.filterwarnings("ignore::ResourceWarning")
        ),
    ],
)
def test_access_lets_go_of_closed_loops(own_server: DevServer, kind: str) -> None:
    """A store that is never closed keeps the connections of one loop at most."""
    make_loop = pytest.importorskip(kind).new_event_loop
    access = Access(own_server.url, "test")

    async def ping(*, last: bool) -> None:
        assert await access.pool.call("任务", "SET", "1") == b"OK"
        assert len(access._by_loop.values()) == 1
        if last:
            await access.aclose()

    for number in range(5):
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(ping(last=number == 4))
    gc.collect()
    assert len(access._by_loop.values()) == 0


@pytest.mark.parametrize("use", ["events", "queue", "filter", "cache"])
def test_a_closed_loop_leaves_nothing_behind(own_server: DevServer, use: str) -> None:
    """Whatever is used in one event loop after another, and never closed, does not grow."""
    store, queue = EventStore(own_server.url), RequestQueue(own_server.url, "爬虫")
    seen, cache = SeenFilter(own_server.url, "爬虫"), FunctionCache(own_server.url)

    @cache.cached(ttl=60, name="loops")
    async def double(number: int) -> int:
        return 2 * number

    async def use_once() -> None:
        match use:
            case "events":
                await store.exists(1)
            case "queue":
                await queue.size()
            case "filter":
                await seen.add("https://例.cn/")
            case _:
                await double(1)

    def count_after(loops: int) -> int:
        for _ in range(loops):
            asyncio.run(use_once())
        gc.collect()
        return len(gc.get_objects())

    async def close() -> None:
        await use_once()
        for one in (store, queue, seen, cache):
            await one.aclose()

    before = count_after(10)
    grown = count_after(30) - before
    asyncio.run(close())
    assert grown < 30


@pytest.mark.parametrize("how", ["cancelled", "abandoned"])
def test_a_loop_that_ends_while_a_request_is_awaited(
    own_server: DevServer, how: str
) -> None:
    """The connection that waited is closed at the server by whoever comes next."""
    queue = RequestQueue(own_server.url, "爬虫")
    tasks: list[asyncio.Task[None]] = []

    async def take() -> None:
        async with queue.take():
            pass

    async def wait_for_requests() -> None:
        tasks.append(asyncio.create_task(take()))
        async with Redis.from_url(own_server.url) as admin:
            await eventually(lambda: are_blocked(admin, 1))

    async def come_next() -> None:
        await queue.size()
        async with Redis.from_url(own_server.url) as admin:
            await eventually(lambda: are_blocked(admin, 0), 5.0)
        await queue.aclose()

    gc.disable()
    try:
        for _ in range(5):
            if how == "cancelled":
                asyncio.run(wait_for_requests())
            else:
                loop = asyncio.new_event_loop()
                loop.run_until_complete(wait_for_requests())
                loop.close()
        asyncio.run(come_next())
    finally:
        gc.enable()
        tasks.clear()
        gc.collect()  # here asyncio reports the tasks of the abandoned loops, in no other test
