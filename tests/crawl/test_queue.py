"""The request queue: the document's bytes, order, leases, retries, bad input."""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, RedisUnavailableError, WrongTypeError
from bls_agent.core.codec import decode_object
from bls_agent.crawl import (
    CrawlRequest,
    RedisKeyManager,
    RequestQueue,
    TakenRequest,
    fingerprint,
)
from bls_agent.devserver import DevServer
from bls_agent.testing.link import Act
from tests.engines import ClusterTopology
from tests.harness import are_blocked, eventually, execute
from tests.kit import Cut, Delay, Direction, FaultProxy, Late, Rate, Rule, Swallow
from tests.kit.resp import Piece

Keys = dict[str, Any]
PAGE = CrawlRequest("https://例子.测试/新闻?页=1")


@pytest.fixture
def name() -> str:
    return f"新闻_{secrets.token_hex(4)}"


@pytest.fixture
async def queue(redis_url: str, name: str) -> AsyncIterator[RequestQueue]:
    async with RequestQueue(redis_url, name, retry_delay=0.02) as opened:
        yield opened


def page(number: int) -> CrawlRequest:
    return CrawlRequest(f"https://example.org/{number}")


async def contents(redis: Any, name: str) -> Keys:
    """The document's keys of a project, as a reader of the document sees them."""
    found: Keys = {}
    async for key in redis.scan_iter(f"crawlo:{name}:*", count=1_000):
        short = key.decode().removeprefix(f"crawlo:{name}:")
        match (await redis.type(key)).decode():
            case "zset":
                found[short] = await redis.zrange(key, 0, -1, withscores=True)
            case "hash":
                found[short] = await redis.hgetall(key)
            case "list":
                found[short] = await redis.lrange(key, 0, -1)
            case "set":
                found[short] = await redis.smembers(key)
            case _:
                found[short] = await redis.get(key)
    return found


async def drain(queue: RequestQueue) -> list[str]:
    """Take and finish everything that may be taken now; give the ends of the URLs."""
    urls: list[str] = []
    while True:
        async with queue.take(timeout=0) as taken:
            if taken is None:
                return urls
            urls.append(taken.request.url.rpartition("/")[2])


# --- the document's keys


async def test_a_request_on_its_way_through_the_keys(
    queue: RequestQueue, redis: Any, name: str
) -> None:
    """Sorted set and hash beside it; taken: the processing pair; finished: nothing."""
    before = time.time()
    assert await queue.push(PAGE, priority=2, unique=True)
    found = await contents(redis, name)
    ((member, score),) = found["queue:requests"]
    assert score == 2
    assert found["queue:requests:data"] == {member: PAGE.encode()}
    assert found["filter:fingerprint"] == {fingerprint(PAGE).encode()}
    assert len(found) == 3

    async with queue.take() as taken:
        assert taken is not None
        assert (taken.request, taken.attempt, taken.priority) == (PAGE, 1, 2)
        assert taken.valid
        found = await contents(redis, name)
        ((held, ends),) = found["queue:processing"]
        assert held == member
        assert before + 55 < ends < time.time() + 65
        assert found["queue:processing:data"] == {member: PAGE.encode()}
        assert len(found) == 3
    assert set(await contents(redis, name)) == {"filter:fingerprint"}
    stats = await queue.stats()
    assert (stats.pushed, stats.taken, stats.acknowledged) == (1, 1, 1)


async def test_the_lowest_priority_comes_first_and_the_oldest_of_one(
    queue: RequestQueue,
) -> None:
    """Whole numbers, fractions, negative ones; within one in the order of the pushes."""
    for number, priority in enumerate((1, 0, -5, 0.5, 0, 1)):
        await queue.push(page(number), priority)
    await queue.push_many([page(6), page(7)])
    assert await queue.size() == 8
    assert await drain(queue) == ["2", "1", "4", "6", "7", "3", "0", "5"]


async def test_many_pushes_at_once_keep_their_order(queue: RequestQueue) -> None:
    """What more than one step takes is all there, in order."""
    assert await queue.push_many(page(number) for number in range(601)) == 601
    assert await drain(queue) == [str(number) for number in range(601)]


# --- duplicates


async def test_a_duplicate_is_not_queued(queue: RequestQueue) -> None:
    """GET and POST of one URL are two requests; without ``unique`` nothing is compared."""
    post = CrawlRequest(PAGE.url, method="POST")
    assert await queue.push(PAGE, unique=True)
    assert not await queue.push(PAGE, unique=True)
    assert await queue.push_many([post, PAGE, post], unique=True) == 1
    assert await queue.push(PAGE)
    assert await queue.size() == 3


async def test_of_equal_pushes_at_once_one_is_new(
    queue: RequestQueue, redis_url: str, name: str
) -> None:
    """Of two processes' worth of queues, too: test and write are one step."""
    async with RequestQueue(redis_url, name) as other:
        for number in range(50):
            pushes = (
                one.push(page(number), unique=True) for one in [queue, other] * 10
            )
            assert sum(await asyncio.gather(*pushes)) == 1
    assert await queue.size() == 50


# --- ends of a block


async def test_a_failure_is_tried_again_three_times(
    queue: RequestQueue, redis: Any, name: str
) -> None:
    """Each time with priority + 1 and a longer delay, then it is in the failed list."""
    await queue.push(PAGE, priority=1)
    seen: list[tuple[int, float]] = []

    async def fail() -> None:
        async with queue.take(timeout=5) as taken:
            assert taken is not None
            seen.append((taken.attempt, taken.priority))
            raise ValueError("kaputt: password=geheim123")

    for _ in range(4):
        with pytest.raises(ValueError, match="kaputt"):
            await fail()
        if len(seen) < 4:
            assert (await queue.stats()).delayed == 1
            found = await contents(redis, name)
            (retries,) = [key for key in found if "retries" in key]
            assert found[retries] == str(len(seen)).encode()
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)]
    found = await contents(redis, name)
    assert list(found) == ["queue:failed"]
    entry = orjson.loads(found["queue:failed"][0])
    assert entry["request"] == orjson.loads(PAGE.encode())
    assert "geheim123" not in entry["reason"]
    assert entry["reason"].startswith("ValueError: kaputt")
    assert (entry["attempts"], entry["priority"]) == (4, 4)
    (failed,) = await queue.failed()
    assert failed.request == PAGE
    assert (failed.attempts, failed.priority) == (4, 4)
    assert abs(failed.failed_at - time.time()) < 60

    assert await queue.requeue_failed() == 1
    assert sorted(await contents(redis, name)) == [
        "queue:requests",
        "queue:requests:data",
    ]
    assert await drain(queue) == [PAGE.url.rpartition("/")[2]]


async def test_an_error_that_has_no_text(queue: RequestQueue) -> None:
    """It leaves the block unchanged, and the request is tried again."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise OSError

    await queue.push(PAGE)
    with pytest.raises(MuteError):
        async with queue.take():
            raise MuteError
    assert (await queue.stats()).delayed == 1


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("404", "404"),
        (503, "503"),
        (None, "null"),
        (ValueError("kaputt"), "ValueError: kaputt"),
        ({"status": 503}, '{"status":503}'),
    ],
    ids=repr,
)
async def test_a_reason_that_is_no_text(
    redis_url: str, name: str, reason: object, shown: str
) -> None:
    """It becomes one, because the block has to go on also after the last attempt."""
    async with RequestQueue(redis_url, name, max_retries=0) as queue:
        await queue.push(PAGE)
        async with queue.take() as taken:
            assert taken is not None
            assert await taken.fail(reason)
        (failed,) = await queue.failed()
        assert (failed.request, failed.reason) == (PAGE, shown)


async def test_the_delay_doubles_with_each_retry(
    redis_url: str, redis: Any, name: str
) -> None:
    """Between half of it and all of it; from the seventh on it is a minute at most."""
    processing = f"crawlo:{name}:queue:processing"
    async with RequestQueue(
        redis_url, name, retry_delay=2.0, max_retries=2_000
    ) as queue:
        await queue.push(PAGE)
        for attempt in (*range(1, 8), 1_100):
            async with queue.take(timeout=5) as taken:
                assert taken is not None
                assert taken.attempt == attempt
                before = await server_time(redis)
                await taken.fail("503")
                after = await server_time(redis)
            ((member, due),) = await redis.zrange(processing, 0, -1, withscores=True)
            longest = min(60, 2 * 2 ** (attempt - 1))
            assert due - before > longest / 2 - 0.01
            assert due - after < longest + 0.01
            await redis.zadd(processing, {member: 1})  # its delay is over
            if attempt == 7:
                retries = f"crawlo:{name}:queue:failed:retries:{member.decode()}"
                await redis.set(retries, 1_099)


async def server_time(redis: Any) -> float:
    seconds, microseconds = await redis.time()
    return float(seconds + microseconds / 1e6)


async def test_the_failed_list_keeps_the_newest(
    redis_url: str, redis: Any, name: str
) -> None:
    """Ten thousand; each further one cuts what is too much at the old end."""
    key = f"crawlo:{name}:queue:failed"
    await redis.rpush(key, *range(10_002))
    async with RequestQueue(redis_url, name, max_retries=0) as queue:
        await queue.push(PAGE)
        async with queue.take() as taken:
            assert taken is not None
            await taken.fail("404")
        assert await redis.llen(key) == 10_000
        assert await redis.lindex(key, 0) == b"3"
        (failed,) = await queue.failed(limit=1)
        assert failed.request == PAGE


async def test_the_delay_of_a_retry_passes_before_it_comes_back(
    redis_url: str, name: str
) -> None:
    """Not earlier than half of it, and without any push the waiting worker gets it."""
    async with RequestQueue(redis_url, name, retry_delay=0.4) as queue:
        await queue.push(PAGE)
        async with queue.take() as taken:
            assert taken is not None
            began = time.monotonic()
            assert await taken.fail("503")
        async with queue.take(timeout=0) as nothing:
            assert nothing is None
        async with queue.take(timeout=5) as again:
            assert again is not None
            assert 0.2 <= time.monotonic() - began < 2
            assert again.attempt == 2


async def test_a_cancelled_block_gives_back_at_once(queue: RequestQueue) -> None:
    """To the same place, and the attempt does not count."""
    await queue.push_many([page(1), page(2)])
    taken_now = asyncio.Event()

    async def crawl() -> None:
        async with queue.take():
            taken_now.set()
            await anyio.sleep_forever()

    task = asyncio.create_task(crawl())
    await taken_now.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with queue.take(timeout=0) as taken:
        assert taken is not None
        assert (taken.request, taken.attempt) == (page(1), 1)


async def test_a_cancelled_wait_loses_nothing(queue: RequestQueue) -> None:
    """Whenever it is cancelled: what arrives meanwhile is somebody else's."""

    async def crawl(found: list[str]) -> None:
        while True:
            async with queue.take() as taken:
                assert taken is not None
                found.append(taken.request.url)

    found: list[str] = []
    for number in range(60):
        task = asyncio.create_task(crawl(found))
        push = asyncio.create_task(queue.push(page(number)))
        for _ in range(number % 12):
            await asyncio.sleep(0)
        if number % 3 == 0:
            await push
        task.cancel()
        await asyncio.gather(task, push, return_exceptions=True)
    await drain_into(queue, found)
    assert sorted(found) == sorted(page(number).url for number in range(60))


async def test_a_reply_for_a_cancelled_wait_goes_back_at_once(
    redis_url: str, name: str
) -> None:
    """Also if this worker holds another request, and waits for nothing more."""
    async with (
        FaultProxy(redis_url) as proxy,
        RequestQueue(proxy.url, name) as queue,
        RequestQueue(redis_url, name) as other,
    ):
        await queue.push_many([page(1), page(2)])
        async with queue.take() as held:
            assert held is not None
            async with proxy.during(Delay(0.3)):
                with anyio.move_on_after(0.1):
                    async with queue.take():
                        pytest.fail("the reply was not late")
                with anyio.fail_after(5):
                    async with other.take() as taken:
                        assert taken is not None
                        assert (taken.request, taken.attempt) == (page(2), 1)


async def test_more_ends_at_once_than_one_write_holds(queue: RequestQueue) -> None:
    """All are confirmed, also while this worker holds a request for longer."""
    count = 502
    await queue.push_many(page(number) for number in range(count))
    taken_all, confirmed = anyio.Event(), list[bool]()
    holding = 0

    async def crawl() -> None:
        nonlocal holding
        async with queue.take() as taken:
            assert taken is not None
            holding += 1
            if holding == count:
                taken_all.set()
            await taken_all.wait()
            confirmed.append(await taken.ack())

    async with anyio.create_task_group() as tasks, queue.take() as longest:
        assert longest is not None
        holding += 1
        for _ in range(count - 1):
            tasks.start_soon(crawl)
        await eventually(lambda: len(confirmed) == count - 1, 4)
    assert all(confirmed)


async def drain_into(queue: RequestQueue, found: list[str]) -> None:
    while True:
        async with queue.take(timeout=0) as taken:
            if taken is None:
                return
            found.append(taken.request.url)


async def test_an_end_by_hand_stays(queue: RequestQueue) -> None:
    """Leaving the block does not end a request a second time."""
    await queue.push_many([page(1), page(2), page(3)])
    async with queue.take() as taken:
        assert taken is not None
        assert await taken.ack()
        assert not await taken.fail("too late")
    async with queue.take() as taken:
        assert taken is not None
        assert await taken.give_back()
    async with queue.take() as taken:
        assert taken is not None
        assert taken.request == page(2)
        assert await taken.fail("404")
    stats = await queue.stats()
    assert (stats.acknowledged, stats.waiting, stats.delayed) == (1, 1, 1)


async def test_leaving_the_queue_gives_back(redis_url: str, name: str) -> None:
    """What a closed queue held may be taken by another one at once."""
    async with RequestQueue(redis_url, name) as queue:
        await queue.push(PAGE)
        held = await queue.take().__aenter__()
        assert held is not None
    async with RequestQueue(redis_url, name) as other, other.take(timeout=0) as taken:
        assert taken is not None
        assert taken.attempt == 1
    assert not held.valid


async def test_closing_ends_a_wait(redis_url: str, name: str) -> None:
    """A task that waits in another one's closed queue is told so."""
    queue = RequestQueue(redis_url, name)

    async def wait() -> None:
        async with queue.take():
            pass

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await queue.aclose()
    with pytest.raises(RedisUnavailableError, match="the queue was closed"):
        await task


async def test_closing_waits_for_what_is_under_way(own_server: DevServer) -> None:
    """A push is answered, and what was taken for a task that waits goes back."""
    async with FaultProxy(own_server.url, seed=7) as proxy:
        queue = RequestQueue(proxy.url, "新闻")
        await queue.push(PAGE)
        await drain(queue)  # the server knows the scripts
        wait = asyncio.create_task(drain_one(queue))
        push = asyncio.create_task(queue.push(PAGE))
        proxy.arm(Late(command="EVALSHA", seconds=0.2))
        await eventually(lambda: bool(proxy.fired))
        await queue.aclose()
        with anyio.fail_after(5):
            assert await push
            with pytest.raises(RedisUnavailableError, match="the queue was closed"):
                await wait
    async with RequestQueue(own_server.url, "新闻") as other:
        stats = await other.stats()
    assert (stats.waiting, stats.in_flight) == (1, 0)


async def test_the_end_of_the_event_loop_gives_back(redis_url: str, name: str) -> None:
    """As after Ctrl-C: it cancels what is giving back already, and the queue's task."""

    async def crawl() -> None:
        queue = RequestQueue(redis_url, name)
        count = 0

        async def hold() -> None:
            nonlocal count
            async with queue.take():
                count += 1
                await anyio.sleep_forever()

        tasks = [asyncio.create_task(hold()) for _ in range(20)]
        await eventually(lambda: count == 10)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:  # as asyncio.run does
            task.cancel()
        await asyncio.wait(left)
        await queue.aclose()

    async with RequestQueue(redis_url, name) as other:
        await other.push_many(map(page, range(10)))
        await asyncio.to_thread(asyncio.run, crawl())
        stats = await other.stats()
    assert (stats.waiting, stats.in_flight) == (10, 0)


# --- leases


def hold_a_request(url: str, name: str) -> None:
    """A worker in a process of its own that takes one request and never ends it."""

    async def hold() -> None:
        queue = RequestQueue(url, name, lease=0.5)
        async with queue.take() as taken:
            assert taken is not None
            while True:
                await asyncio.sleep(0.05)

    asyncio.run(hold())


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_request_of_a_dead_or_frozen_worker_returns(
    redis_url: str, name: str, fault: signal.Signals
) -> None:
    """At the end of its lease, to a worker that waits, with priority + 1."""
    worker = multiprocessing.get_context("spawn").Process(
        target=hold_a_request, args=(redis_url, name)
    )
    async with RequestQueue(redis_url, name, lease=0.5) as queue:
        await queue.push(PAGE)
        worker.start()
        try:

            async def is_taken() -> bool:
                return (await queue.stats()).in_flight == 1

            await eventually(is_taken)
            with anyio.move_on_after(1.0):  # longer than the lease: it is renewed
                async with queue.take() as early:
                    assert early is None
            assert worker.pid is not None
            os.kill(worker.pid, fault)
            async with queue.take(timeout=10) as taken:
                assert taken is not None
                assert (taken.attempt, taken.priority) == (2, 1)
            assert (await queue.stats()).expired == 1
        finally:
            worker.kill()
            worker.join()


async def test_a_worker_that_stood_still_has_lost_its_request(
    redis_url: str, name: str
) -> None:
    """Its acknowledgement does not end what another worker has been given."""
    has_taken, may_end = threading.Event(), threading.Event()

    async def take_over() -> None:
        async with RequestQueue(redis_url, name) as other:
            async with other.take(timeout=10) as taken:
                assert taken is not None
                assert taken.attempt == 2
                has_taken.set()
                await asyncio.to_thread(may_end.wait, 10)
                assert taken.valid
            assert (await other.stats()).acknowledged == 1

    async with RequestQueue(redis_url, name, lease=0.5) as frozen:
        await frozen.push(PAGE)
        async with frozen.take() as late:
            assert late is not None
            with ThreadPoolExecutor(1) as threads:
                end = threads.submit(asyncio.run, take_over())
                assert has_taken.wait(10)  # this event loop stands still meanwhile
                assert not late.valid
                assert not await late.ack()
                assert (await frozen.stats()).in_flight == 1
                may_end.set()
                end.result(10)


async def test_a_late_end_leaves_the_next_lease_alone(
    redis_url: str, redis: Any, name: str
) -> None:
    """The event loop that took a request twice goes on renewing the second lease."""
    processing = f"crawlo:{name}:queue:processing"
    async with RequestQueue(redis_url, name, lease=0.5) as queue:
        await queue.push(PAGE)
        async with queue.take() as late:
            assert late is not None
            ((member, _),) = await redis.zrange(processing, 0, -1, withscores=True)
            await redis.zadd(processing, {member: 1})  # the lease has ended
            async with queue.take() as taken:
                assert taken is not None
                assert not await late.ack()
                ends = await redis.zscore(processing, member)

                async def is_renewed() -> bool:
                    return bool(await redis.zscore(processing, member) > ends)

                await eventually(is_renewed, 5)
                assert taken.valid


@pytest.mark.parametrize("late", ["taken", "renewed"])
async def test_a_lease_counts_from_the_sending_of_its_request(
    own_server: DevServer, admin: Any, late: str
) -> None:
    """A reply that is late makes it no longer: the server ends it not before us."""
    processing = "crawlo:新闻:queue:processing"

    async def has_ended(ends: float) -> bool:
        return await server_time(admin) >= ends

    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", lease=2, timeout=1) as queue,
    ):
        await queue.push(PAGE)
        await drain(queue)  # the server knows the scripts
        await queue.push(PAGE)
        delay = Late(command="EVALSHA", seconds=0.6)
        if late == "taken":
            proxy.arm(delay)
        async with queue.take() as taken:
            assert taken is not None
            assert taken.valid
            if late == "renewed":
                armed = proxy.arm(delay)
                await eventually(lambda: bool(armed.fired), 5)
            proxy.start(Swallow(direction=Direction.REQUESTS))  # no renewal arrives
            ((_, ends),) = await admin.zrange(processing, 0, -1, withscores=True)
            await eventually(lambda: has_ended(ends), 5)
            assert not taken.valid


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_a_forked_child_holds_nothing(redis_url: str, name: str) -> None:
    """What it inherits is not valid, and it ends nothing of its parent's."""
    async with RequestQueue(redis_url, name) as queue:
        await queue.push(PAGE)
        async with queue.take() as taken:
            assert taken is not None
            child = os.fork()
            if not child:
                ok = False
                try:
                    end = taken.ack()
                    with pytest.raises(StopIteration, match="False"):
                        end.send(None)  # at once: nothing is asked
                    ok = not taken.valid
                finally:
                    os._exit(not ok)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0
            assert taken.valid
        assert (await queue.stats()).acknowledged == 1


async def test_large_requests_over_a_narrow_link(own_server: DevServer) -> None:
    """They come few at a time: the first leases would end while the last arrive."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", lease=0.6) as queue,
        RequestQueue(own_server.url, "新闻") as producer,
    ):
        large = CrawlRequest(PAGE.url, method="POST", body=b"x" * 2**20)
        await producer.push_many([large] * 8)
        await drain(queue)  # it is connected
        await producer.push_many([large] * 8)
        proxy.start(Rate(bytes_per_second=8e6))
        attempts: list[int] = []

        async def take_one() -> None:
            async with queue.take() as taken:
                assert taken is not None
                attempts.append(taken.attempt)

        with anyio.fail_after(20):
            await asyncio.gather(*(take_one() for _ in range(8)))
        assert attempts == [1] * 8


async def test_what_kills_every_worker_ends_in_the_failed_list(
    redis_url: str, redis: Any, name: str
) -> None:
    """A lease that ended counts as an attempt."""
    async with RequestQueue(redis_url, name, max_retries=1) as queue:
        await queue.push(PAGE)
        processing = f"crawlo:{name}:queue:processing"
        for attempt in (1, 2):
            taken = await queue.take(timeout=5).__aenter__()
            assert taken is not None
            assert taken.attempt == attempt
            ((member, _),) = await redis.zrange(processing, 0, -1, withscores=True)
            await redis.zadd(processing, {member: 1})  # its worker is long gone
        async with queue.take(timeout=0) as nothing:
            assert nothing is None

        async def has_failed() -> bool:
            return len(await queue.failed()) == 1

        await eventually(has_failed)
        (failed,) = await queue.failed()
        assert (failed.request, failed.attempts) == (PAGE, 2)
        assert "lease ended too often" in failed.reason


@pytest.mark.parametrize("is_lost", [False, True], ids=["failed", "lost"])
@pytest.mark.parametrize("value", ["1.0", "abc", "", "-9", "99999999999"])
async def test_a_number_of_retries_that_is_no_number(
    redis_url: str, redis: Any, name: str, value: str, is_lost: bool
) -> None:
    """Another program's value is replaced: the retries come to an end."""
    processing = f"crawlo:{name}:queue:processing"
    async with RequestQueue(redis_url, name, max_retries=2, retry_delay=0.01) as queue:
        await queue.push(PAGE)
        for attempt in (1, 2, 3):
            taken = await queue.take(timeout=5).__aenter__()
            assert taken is not None
            assert taken.attempt == attempt
            ((member, _),) = await redis.zrange(processing, 0, -1, withscores=True)
            key = RedisKeyManager(name).get_failed_retries_key(member)
            if attempt == 1:
                await redis.set(key, value)
            if is_lost:
                await redis.zadd(processing, {member: 1})  # its worker is long gone
            else:
                assert await taken.fail("503")
        async with queue.take(timeout=0) as nothing:
            assert nothing is None

        async def has_failed() -> bool:
            return [one.attempts for one in await queue.failed()] == [3]

        await eventually(has_failed)


@pytest.mark.parametrize("is_lost", [False, True], ids=["failed", "lost"])
async def test_retries_of_another_type_are_left_alone(
    queue: RequestQueue, redis: Any, name: str, is_lost: bool
) -> None:
    """The request is handed out again, and the key of the other program stays."""
    processing = f"crawlo:{name}:queue:processing"
    await queue.push(PAGE)
    taken = await queue.take(timeout=5).__aenter__()
    assert taken is not None
    ((member, _),) = await redis.zrange(processing, 0, -1, withscores=True)
    key = RedisKeyManager(name).get_failed_retries_key(member)
    await redis.rpush(key, "x")
    if is_lost:
        await redis.zadd(processing, {member: 1})  # its worker is long gone
    else:
        assert await taken.fail("503")
    async with queue.take(timeout=5) as again:
        assert again is not None
        assert again.request == PAGE
    assert await redis.lrange(key, 0, -1) == [b"x"]


async def test_simple_mode_is_done_when_taken(
    redis_url: str, redis: Any, name: str
) -> None:
    """As the document has it; a failure is in the failed list at once."""
    async with RequestQueue(redis_url, name, mode="simple") as queue:
        await queue.push_many([page(1), page(2), page(3)])
        async with queue.take() as taken:
            assert taken is not None
            found = await contents(redis, name)
            assert set(found) == {"queue:requests", "queue:requests:data"}
        with pytest.raises(ValueError, match="kaputt"):
            async with queue.take():
                raise ValueError("kaputt")
        (failed,) = await queue.failed()
        assert (failed.request, failed.attempts) == (page(2), 1)
        async with queue.take() as taken:
            assert taken is not None
            assert await taken.give_back()
            assert not await taken.ack()
            assert taken.request == page(3)
        assert await drain(queue) == ["3"]
        assert sorted(await contents(redis, name)) == ["queue:failed"]


async def test_simple_mode_puts_back_what_nobody_waits_for(
    own_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the link dies with the first try; no error of asyncio's is left."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(own_server.url, "新闻") as other,
    ):
        queue = RequestQueue(proxy.url, "新闻", mode="simple", timeout=1)
        await queue.push(PAGE)
        await drain(queue)  # the server knows the scripts
        await other.push(PAGE)
        proxy.arm(Late(command="EVALSHA", seconds=0.3))
        wait = asyncio.create_task(drain_one(queue))

        async def is_taken() -> bool:
            return (await other.stats()).taken == 2

        await eventually(is_taken)
        wait.cancel()
        proxy.arm(Cut(command="EVALSHA", direction=Direction.REQUESTS))
        with pytest.raises(asyncio.CancelledError):
            await wait
        await queue.aclose()
        assert len(proxy.fired) == 2
        assert await drain(other) == [PAGE.url.rpartition("/")[2]]
        gc.collect()
    assert "never retrieved" not in caplog.text


# --- waiting


async def test_a_waiting_worker_gets_a_push_at_once(
    own_server: DevServer, admin: Redis
) -> None:
    """By a blocking read: while nothing comes, it asks the server once in two seconds."""
    async with (
        RequestQueue(own_server.url, "新闻") as queue,
        RequestQueue(own_server.url, "新闻") as producer,
    ):
        await producer.push(PAGE)
        await drain(queue)
        times: list[float] = []

        async def wait() -> None:
            async with queue.take() as taken:
                assert taken is not None
                times.append(time.monotonic())

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
            await eventually(lambda: are_blocked(admin, 1))
            before = (await admin.info("stats"))["total_commands_processed"]
            await anyio.sleep(0.5)
            after = (await admin.info("stats"))["total_commands_processed"]
            assert after - before < 20
            pushed_at = time.monotonic()
            await producer.push_many([page(number) for number in range(3)])
        assert max(times) - pushed_at < 1


@pytest.mark.parametrize("count", [2, 3])
async def test_what_is_pushed_while_a_reply_is_under_way(
    own_server: DevServer, admin: Redis, count: int
) -> None:
    """The reply knows nothing of it: two who wait get it, and one who looks once."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻") as queue,
        RequestQueue(own_server.url, "新闻") as producer,
    ):
        await drain(queue)  # the server knows the script
        waits = [asyncio.create_task(drain_one(queue))]
        await eventually(lambda: are_blocked(admin, 1))
        armed = proxy.arm(Late(command="EVALSHA", seconds=0.5))
        waits.append(asyncio.create_task(drain_one(queue)))
        await eventually(lambda: armed.fired == 1)
        await producer.push_many(page(number) for number in range(count))
        with anyio.fail_after(2.2):  # a look of its own comes after 2 s
            if count > len(waits):
                async with queue.take(timeout=0) as taken:
                    assert taken is not None
            await asyncio.gather(*waits)


async def test_waiting_workers_of_many_processes_share_one_push_of_many(
    redis_url: str, name: str
) -> None:
    """One wake is enough for all: each that finds more wakes the next one."""
    queues = [RequestQueue(redis_url, name) for _ in range(5)]
    done: dict[str, float] = {}

    async def wait(queue: RequestQueue) -> None:
        async with queue, queue.take() as taken:
            assert taken is not None
            done[taken.request.url] = time.monotonic()
            await eventually(lambda: len(done) == 5)

    async with anyio.create_task_group() as tasks:
        for queue in queues:
            tasks.start_soon(wait, queue)
        await anyio.sleep(0.1)
        async with RequestQueue(redis_url, name) as producer:
            pushed_at = time.monotonic()
            await producer.push_many(page(number) for number in range(5))
    assert max(done.values()) - pushed_at < 1.5  # a look of its own comes after 2 s


async def test_a_blocking_read_has_a_time_that_old_servers_understand(
    queue: RequestQueue, redis: Any, name: str
) -> None:
    """Before Redis 6 the time of BLPOP must be a whole number."""
    words: list[str] = []
    async with redis.monitor() as monitor, anyio.create_task_group() as tasks:
        tasks.start_soon(drain_one, queue)
        with anyio.fail_after(10):
            async for seen in monitor.listen():
                words = seen["command"].split()
                if words[0] == "BLPOP" and name[-8:] in seen["command"]:
                    break
        tasks.cancel_scope.cancel()
    assert words[-1].isdigit()


async def test_a_push_by_a_peer_that_knows_no_wake_is_noticed(
    queue: RequestQueue, redis: Any, name: str
) -> None:
    """Sorted set and hash are enough."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drain_one, queue)
        await anyio.sleep(0.1)
        await redis.hset(f"crawlo:{name}:queue:requests:data", "peer-1", PAGE.encode())
        await redis.zadd(f"crawlo:{name}:queue:requests", {"peer-1": 0})
        with anyio.fail_after(5):
            await eventually(lambda: not tasks._tasks)  # type: ignore[attr-defined]


async def drain_one(queue: RequestQueue) -> None:
    async with queue.take() as taken:
        assert taken is not None


@pytest.mark.parametrize("timeout", [0, 0.2])
async def test_nothing_in_time(queue: RequestQueue, timeout: float) -> None:
    began = time.monotonic()
    async with queue.take(timeout) as taken:
        assert taken is None
    assert timeout <= time.monotonic() - began < timeout + 2


# --- Redis away


async def test_a_worker_waits_through_a_restart(own_server: DevServer) -> None:
    """What it holds stays its own, its acknowledgement is sent when Redis is back."""
    async with RequestQueue(own_server.url, "新闻", timeout=1) as queue:
        await queue.push_many([page(1), page(2)])
        async with queue.take() as taken:
            assert taken is not None
            own_server.kill()
            with pytest.raises(RedisUnavailableError):
                async with queue.take(timeout=0.1):
                    pass
            with pytest.raises(RedisUnavailableError):
                await queue.push(page(3))
        own_server.restart()
        async with queue.take() as taken:
            assert taken is not None
            assert (taken.request, taken.attempt) == (page(2), 1)

        async def is_done() -> bool:
            stats = await queue.stats()
            return stats.acknowledged == 2 and stats.in_flight == 0

        await eventually(is_done)


async def test_a_request_whose_reply_was_lost_comes_back(own_server: DevServer) -> None:
    """Taken at the server, never given to anybody: it is put back, not waited for."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", timeout=1) as queue,
    ):
        await queue.push(PAGE)
        await drain(queue)  # the server knows the scripts
        await queue.push(PAGE)
        proxy.arm(Cut(command="EVALSHA", direction=Direction.REPLIES))
        began = time.monotonic()
        async with queue.take(timeout=20) as taken:
            assert taken is not None
            assert (taken.request, taken.attempt) == (PAGE, 1)
        assert proxy.fired
        assert time.monotonic() - began < 15  # the lease is a minute


async def test_an_end_whose_reply_was_lost_is_an_end(own_server: DevServer) -> None:
    """It is sent again, and found done."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", timeout=1) as queue,
    ):
        await queue.push_many([page(1), page(2)])
        async with queue.take() as taken:
            assert taken is not None
            assert await taken.ack()  # the server knows the script
        async with queue.take() as taken:
            assert taken is not None
            proxy.arm(Cut(command="EVALSHA", direction=Direction.REPLIES))
            assert await taken.ack()
            assert proxy.fired
        assert (await queue.stats()).acknowledged == 2


async def test_a_request_that_comes_after_its_lease_is_left_to_others(
    own_server: DevServer,
) -> None:
    """A worker that stood still between its take and the reply does not begin."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", lease=0.5) as late,
        RequestQueue(own_server.url, "新闻") as other,
    ):
        await drain(late)  # the server knows the script
        await other.push(PAGE)
        ended = anyio.Event()
        proxy.arm(Late(command="EVALSHA", seconds=0.8))
        async with anyio.create_task_group() as tasks:

            async def take_late() -> None:
                async with late.take(timeout=0.1) as taken:
                    assert taken is None
                ended.set()

            tasks.start_soon(take_late)
            await eventually(lambda: bool(proxy.fired))
            async with other.take() as taken:
                assert taken is not None
                assert taken.attempt == 2
                with anyio.fail_after(10):
                    await ended.wait()
                assert taken.valid
                assert await taken.ack()


async def test_an_end_that_arrives_after_the_lease_is_none(
    own_server: DevServer,
) -> None:
    """What nobody knows of is not called finished when another worker may have it."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", lease=0.5) as cut_off,
        RequestQueue(own_server.url, "新闻") as other,
    ):
        await cut_off.push(PAGE)
        async with cut_off.take() as taken, anyio.create_task_group() as tasks:
            assert taken is not None
            proxy.arm(Cut(command="EVALSHA", direction=Direction.REQUESTS))
            proxy.arm(
                Late(seconds=0.4, times=None)
            )  # the next connection takes its time
            found: list[bool] = []

            async def acknowledge() -> None:
                found.append(await taken.ack())

            tasks.start_soon(acknowledge)
            async with other.take() as again:
                assert again is not None
                await eventually(lambda: bool(found))
                assert found == [False]
                assert await again.ack()


@dataclass(frozen=True, kw_only=True)
class RefuseScript(Rule):
    """The server gets another script instead of ours, which answers with an error."""

    direction: Direction = Direction.REQUESTS
    command: str | None = "EVALSHA"
    error: str = ""

    def apply(self, piece: Piece) -> list[Act]:
        """Send the other script in the place of the first bytes."""
        script = f"return redis.error_reply('{self.error}')"
        words = b"".join(
            b"$%d\r\n%b\r\n" % (len(word), word.encode())
            for word in ("EVAL", script, "0")
        )
        return [b"*3\r\n" + words] if piece.offset == 0 else []


REFUSALS = [
    "NOPERM this user has no permissions",
    "NOAUTH Authentication required.",
    "MOVED 1 127.0.0.1:1",
    "READONLY You cannot write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "ERR of another kind",
]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        *((error, "ack") for error in REFUSALS),
        (REFUSALS[0], "fail"),
        (REFUSALS[0], "give_back"),
    ],
)
async def test_a_refused_end_is_sent_again(
    own_server: DevServer, error: str, end: str
) -> None:
    """One refusal, of whatever kind, does not throw the end of a request away."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", max_retries=0) as queue,
        RequestQueue(own_server.url, "新闻") as other,
    ):
        await queue.push_many([page(1), page(2)])
        async with queue.take() as warm_up:
            assert warm_up is not None
            assert await warm_up.ack()  # the server knows the scripts
        async with queue.take() as taken:
            assert taken is not None
            armed = proxy.arm(RefuseScript(error=error))
            assert await (taken.fail("404") if end == "fail" else getattr(taken, end)())
            assert armed.fired
        stats = await other.stats()
        assert stats.in_flight == 0
        assert (stats.acknowledged, stats.failed, stats.waiting) == (
            1 + (end == "ack"),
            int(end == "fail"),
            int(end == "give_back"),
        )


async def test_an_end_without_a_right_waits_for_the_right(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a refusal to another task comes in between, until the lease is over.

    The log names the missing right, once.
    """
    await execute(admin, "ACL", "SETUSER", "crawler", "on", ">geheim", "~*", "+@all")
    url = own_server.url.replace("redis://", "redis://crawler:geheim@")
    async with RequestQueue(url, "新闻", lease=2) as queue:
        await queue.push_many([page(1), page(2)])
        async with queue.take() as late, queue.take() as taken:
            assert late is not None
            assert taken is not None
            await execute(admin, "ACL", "SETUSER", "crawler", "-evalsha", "-eval")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(taken.ack)
                with pytest.raises(RedisUnavailableError, match="no_permission"):
                    async with queue.take():
                        pass
                await execute(admin, "ACL", "SETUSER", "crawler", "+@all")
            assert (await queue.stats()).acknowledged == 1
            await execute(admin, "ACL", "SETUSER", "crawler", "-evalsha", "-eval")
            began = time.monotonic()
            assert not await late.ack()  # the right does not come back in time
            assert 0.5 < time.monotonic() - began < 4
            await execute(admin, "ACL", "SETUSER", "crawler", "+@all")
        async with queue.take() as again:
            assert again is not None
            assert again.attempt == 2
    (warning,) = [one for one in caplog.messages if "(no_permission)" in one]
    assert warning.startswith("the crawl queue is not served: ")


async def test_simple_mode_repeats_a_refused_failure_for_the_time_of_a_lease(
    own_server: DevServer,
) -> None:
    """Then it is dropped: a refusal that never ends must not fill the memory."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        RequestQueue(proxy.url, "新闻", mode="simple", lease=0.5) as queue,
    ):
        await queue.push_many([page(1), page(2), page(3)])
        async with queue.take() as taken:
            assert taken is not None
            assert await taken.fail("the server knows the scripts")
        for number, times, is_done in ((2, 1, True), (3, None, False)):
            async with queue.take() as taken:
                assert taken is not None
                assert taken.request == page(number)
                armed = proxy.arm(RefuseScript(error=REFUSALS[0], times=times))
                began = time.monotonic()
                assert await taken.fail("404") is is_done
                assert time.monotonic() - began < 4  # the queue's timeout is 5 s
                assert armed.fired
                proxy.disarm(armed)
        failed = [one.request for one in await queue.failed()]
        assert failed == [page(2), page(1)]


async def test_memory_is_out(own_server: DevServer, admin: Any) -> None:
    """Nothing is taken or pushed, nothing is lost, and what was taken may be finished."""
    url = own_server.url
    async with RequestQueue(url, "新闻", timeout=1, max_retries=0) as queue:
        await queue.push_many([page(1), page(2), page(3)])
        async with queue.take() as failing, queue.take() as taken:
            assert failing is not None
            assert taken is not None
            await admin.config_set("maxmemory", "1")
            with pytest.raises(RedisUnavailableError, match="out_of_memory"):
                await queue.push(page(4))
            with pytest.raises(RedisUnavailableError, match="out_of_memory"):
                async with queue.take(timeout=0):
                    pass
            # An end that needs memory follows one that needs none.
            ends = await asyncio.gather(failing.fail("404"), taken.ack())
            assert [*ends] == [True, True]
        stats = await queue.stats()
        assert (stats.waiting, stats.failed, stats.acknowledged) == (1, 1, 1)
        await admin.config_set("maxmemory", "0")
        assert await drain(queue) == ["3"]


# --- bad input


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


async def test_what_no_worker_can_do_is_put_aside(
    queue: RequestQueue, redis: Any, name: str, tmp_path: Path
) -> None:
    """A peer's pickle, other JSON, a member without body: the next request comes."""
    manager = RedisKeyManager(name)
    bodies: Any = {
        "pickle": pickle.dumps(Bomb(tmp_path / "executed")),
        "other": b'{"no": "url"}',
        "broken": b"{",
        "url": b'{"url": "no scheme"}',
    }
    await redis.hset(manager.get_requests_data_key(), mapping=bodies)
    members: Any = dict.fromkeys([*bodies, "nothing", b"\xff\xfe"], -1)
    await redis.zadd(manager.get_requests_queue_key(), members)
    await queue.push(PAGE)
    async with queue.take(timeout=5) as taken:
        assert taken is not None
        assert taken.request == PAGE

    async def are_aside() -> bool:
        return len(await queue.failed()) == len(members)

    await eventually(are_aside)
    assert not (tmp_path / "executed").exists()
    failed = {orjson.loads(one.raw)["member"]: one for one in await queue.failed()}
    assert all(one.request is None for one in failed.values())
    assert failed["nothing"].reason == "it has no body"
    reason = "it cannot be read as a request: it has no url"
    assert failed["other"].reason == reason
    assert failed["broken"].reason.startswith("it cannot be read as a request: not_js")
    assert "raw_base64" in orjson.loads(failed["pickle"].raw)
    assert await queue.requeue_failed() == 0
    assert set(await contents(redis, name)) == {"queue:failed"}


async def test_a_request_of_a_peer_with_fields_of_its_own(
    queue: RequestQueue, redis: Any, name: str
) -> None:
    """It is done; what it holds besides stays with it when it is tried again."""
    manager = RedisKeyManager(name)
    body = b'{"url": "https://example.org/1", "body": null, "depth": 3}'
    await redis.hset(manager.get_requests_data_key(), "peer", body)
    await redis.zadd(manager.get_requests_queue_key(), {"peer": 0})
    for attempt in (1, 2):
        async with queue.take(timeout=5) as taken:
            assert taken is not None
            assert (taken.request, taken.attempt) == (page(1), attempt)
            found = await contents(redis, name)
            assert found["queue:processing:data"] == {b"peer": body}
            assert attempt == 2 or await taken.fail("503")


async def test_foreign_entries_of_the_failed_list_stay(
    queue: RequestQueue, redis: Any, name: str
) -> None:
    """They are shown as what they are, and not queued."""
    key = f"crawlo:{name}:queue:failed"
    await redis.rpush(key, b"\x80\x04}.", b"[]", b'{"request": 7, "attempts": "x"}')
    deep = b"[" * 990 + b"]" * 990
    await redis.rpush(
        key, b'{"request": {"url": "http://a/", "meta": {"a": %b}}}' % deep
    )
    await redis.rpush(key, b'{"reason": %b}' % deep)
    assert [one.request for one in await queue.failed()] == [None] * 5
    assert await queue.requeue_failed() == 0
    assert await redis.llen(key) == 5


ROWS = ["requests_queue", "requests_data", "processing_queue", "processing_data"]


@pytest.mark.parametrize("row", [*ROWS, "failed_queue", "filter_fingerprint"])
async def test_a_key_of_another_type_is_named(
    queue: RequestQueue, redis: Any, name: str, row: str
) -> None:
    """And left alone, with everything else of the queue."""
    key = getattr(RedisKeyManager(name), f"get_{row}_key")()
    await redis.set(key, "other")
    if row in ("requests_queue", "requests_data", "filter_fingerprint", "failed_queue"):
        with pytest.raises(WrongTypeError, match=key):
            await queue.push(PAGE, unique=True)
    if row not in ("filter_fingerprint", "failed_queue"):
        with pytest.raises(WrongTypeError, match=key):
            async with queue.take(timeout=5):
                pass
    assert await contents(redis, name) == {key.partition(f"{name}:")[2]: b"other"}


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("request_", [PAGE.url, PAGE.encode(), None, {"url": PAGE.url}])
async def test_a_text_is_no_request(
    queue: RequestQueue, request_: Any, unique: bool
) -> None:
    """A text can be encoded, too: it would be queued and fit no worker."""
    with pytest.raises(ConfigurationError, match="request"):
        await queue.push(request_, unique=unique)
    assert await queue.size() == 0


NUMBERS = [math.nan, math.inf, -math.inf, 10**400]


@pytest.mark.parametrize("priority", [*NUMBERS, True, "1", None])
async def test_a_priority_is_a_finite_number(
    queue: RequestQueue, priority: Any
) -> None:
    with pytest.raises(ConfigurationError, match="finite number"):
        await queue.push(PAGE, priority)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"lease": 0.1}, "lease"),
        ({"lease": math.nan}, "lease"),
        ({"lease": 100_000}, "lease"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"mode": "fast"}, "mode"),
        ({"retry_delay": 0}, "retry_delay"),
        ({"timeout": -1}, "timeout"),
        ({"project": "a:b"}, "project"),
        ({"spider": "queue"}, "spider"),
        ({"redis": "http://x"}, "redis"),
    ],
)
def test_wrong_arguments_fail_at_construction(
    wrong: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        RequestQueue(**({"redis": "redis://127.0.0.1:1", "project": "新闻"} | wrong))


@pytest.mark.parametrize("limit", [0, 10_001])
async def test_a_limit_is_a_number_of_entries(queue: RequestQueue, limit: int) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        await queue.failed(limit)


# --- where it is used


async def test_a_block_that_is_entered_again_has_nothing_old(
    queue: RequestQueue,
) -> None:
    """After a timeout there is no request, also if the round before had taken one."""
    await queue.push(PAGE)
    take = queue.take(timeout=0.05)
    async with take as taken:
        assert taken is not None
    async with take as taken:
        assert taken is None


async def test_the_oldest_failed_request_is_queued_first(
    queue: RequestQueue, redis_url: str, name: str
) -> None:
    """Among requests of equal priority; the priority number decides before the age."""
    async with RequestQueue(redis_url, name, max_retries=0) as failing:
        for number in range(4):
            await failing.push(page(number), 1 if number == 3 else 2)
            async with failing.take() as taken:
                assert taken is not None
                await taken.fail("404")
    assert await queue.requeue_failed() == 4
    urls: list[str] = []
    for _ in range(4):
        async with queue.take() as taken:
            assert taken is not None
            urls.append(taken.request.url)
    assert urls == [page(number).url for number in (3, 0, 1, 2)]


async def test_a_failed_request_comes_back_as_it_was(
    redis_url: str, redis: Any, name: str
) -> None:
    """Integers over 64 bits stay integers; what a peer has written besides is kept."""
    request = CrawlRequest(PAGE.url, meta={"id": 2**100, "all": [-(2**70), 1.5, "茶"]})
    peer = b'{"own" : [%d],\n "url": "https://example.org/1"}' % 2**90
    manager = RedisKeyManager(name)
    await redis.hset(manager.get_requests_data_key(), "peer", peer)
    await redis.zadd(manager.get_requests_queue_key(), {"peer": -1})
    async with RequestQueue(redis_url, name, max_retries=0) as queue:
        await queue.push(request)
        for _ in range(2):
            async with queue.take() as taken:
                assert taken is not None
                await taken.fail("404")
        newest, oldest = await queue.failed()
        assert (newest.request, oldest.request) == (request, page(1))
        assert decode_object(newest.raw)["request"] == decode_object(request.encode())
        assert decode_object(oldest.raw)["request"]["own"] == [2**90]
        assert await queue.requeue_failed() == 2
        queued = await redis.hvals(manager.get_requests_data_key())
        assert {"own": [2**90], "url": page(1).url} in map(decode_object, queued)
        async with queue.take() as first, queue.take() as second:
            assert first is not None
            assert second is not None
            assert [first.request, second.request] == [page(1), request]


async def test_two_requeue_at_once(
    queue: RequestQueue, redis_url: str, redis: Any, name: str
) -> None:
    """Each failed request is queued once."""
    async with RequestQueue(redis_url, name, max_retries=0) as failing:
        await failing.push_many(page(number) for number in range(250))
        for _ in range(250):
            async with failing.take() as taken:
                assert taken is not None
                await taken.fail("404")
    async with RequestQueue(redis_url, name) as other:
        both = await asyncio.gather(queue.requeue_failed(), other.requeue_failed())
    assert sum(both) == 250
    assert await queue.size() == 250
    assert await redis.llen(f"crawlo:{name}:queue:failed") == 0


def test_one_queue_in_several_event_loops(redis_url: str, name: str) -> None:
    """Without ``async with``, one loop after the other."""
    queue = RequestQueue(redis_url, name)

    async def use() -> str:
        await queue.push(PAGE)
        async with queue.take() as taken:
            assert isinstance(taken, TakenRequest)
        await queue.aclose()
        return taken.request.url

    assert [asyncio.run(use()) for _ in range(2)] == [PAGE.url] * 2


async def test_a_loop_that_ends_while_a_task_waits_leaves_no_connection(
    own_server: DevServer, admin: Redis
) -> None:
    """The next event loop that uses the queue closes what the last one left."""
    queue = RequestQueue(own_server.url, "新闻")

    async def wait_for_a_request() -> asyncio.Task[None]:
        waiting = asyncio.create_task(drain_one(queue))
        async with Redis.from_url(own_server.url, protocol=2) as client:
            await eventually(lambda: are_blocked(client, 1))
        return waiting

    for _ in range(5):
        waiting = await asyncio.to_thread(asyncio.run, wait_for_a_request())
        assert waiting.cancelled()
    await queue.push(PAGE)
    await queue.aclose()

    async def has_no_connection() -> bool:
        names = [one["name"] for one in await admin.client_list()]
        return not any(name.startswith("bls-crawl") for name in names)

    await eventually(has_no_connection, 5)


async def test_on_a_cluster() -> None:
    """The name needs a hash tag there; with one, everything is in one slot."""
    async with ClusterTopology() as topology:
        async with RequestQueue(topology.url, "新闻") as wrong:
            with pytest.raises(ConfigurationError, match="share one slot"):
                await wrong.push(PAGE)
            with pytest.raises(ConfigurationError, match=r"\{新闻\}"):
                await wrong.stats()
        async with RequestQueue(topology.url, "{新闻}", retry_delay=0.02) as queue:
            assert await queue.push(PAGE, unique=True)
            assert not await queue.push(PAGE, unique=True)
            async with queue.take() as taken:
                assert taken is not None
                await taken.fail("503")
            async with queue.take(timeout=5) as taken:
                assert taken is not None
                assert taken.attempt == 2
            assert (await queue.stats()).acknowledged == 1
