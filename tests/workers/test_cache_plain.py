"""The function cache, for plain functions: threads, forks, running event loops, the end."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import anyio
import pytest
from redis import Redis

from bls_agent.core.errors import ConfigurationError
from bls_agent.workers import CacheStats, FunctionCache
from bls_agent.workers.caching.calls import SHARED_LOOP
from tests.harness import until
from tests.programs import run_python

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork")


@pytest.fixture
def cache(redis_url: str) -> Iterator[FunctionCache]:
    """A cache on the server that the tests share."""
    opened = FunctionCache(redis_url, timeout=5)
    yield opened
    opened.close_sync()


def computations_of(cache: FunctionCache) -> list[Any]:
    """What is being read or computed."""
    return [
        one for here in cache._calls._by_loop.values() for one in here.by_key.values()
    ]


def test_a_plain_function_is_kept(
    cache: FunctionCache, name: str, redis_url: str
) -> None:
    """Called once, and no coroutine."""
    runs = []

    @cache.cached(ttl=60, name=name)
    def load(code: str) -> None:
        """Load it."""
        runs.append(code)

    for _ in range(2):
        load("a")
    assert runs == ["a"]
    assert load.__doc__ == "Load it."
    assert cache.stats(load) == CacheStats(hits=1, misses=1, computed=1)
    with Redis.from_url(redis_url) as redis:
        (key,) = redis.scan_iter(f"ginkgo_func_cache_{name}_*")
        assert 50 < redis.ttl(key) <= 60
    assert cache.clear_sync(load, "b") == 0
    assert cache.clear_sync(load) == 1


def test_fifty_threads_compute_once(cache: FunctionCache, name: str) -> None:
    """Each gets a result of his own."""
    runs, barrier = [], threading.Barrier(50)

    @cache.cached(ttl=60, name=name)
    def load(code: str) -> list[str]:
        runs.append(code)
        return [code]

    def call() -> list[str]:
        barrier.wait()
        return load("a")

    with ThreadPoolExecutor(50) as pool:
        results = [each.result() for each in [pool.submit(call) for _ in range(50)]]
    assert results == [["a"]] * 50
    assert runs == ["a"]
    assert len({id(each) for each in results}) == 50
    stats = cache.stats(load)
    assert (stats.computed, stats.hits + stats.misses) == (1, 50)
    assert not computations_of(cache)


def test_threads_that_find_a_broken_value_wait_for_one(
    cache: FunctionCache, name: str, redis_url: str
) -> None:
    """Each of them decodes it; one computes the right one."""
    runs: list[bool] = []
    barrier = threading.Barrier(20)

    @cache.cached(ttl=60, name=name)
    def load() -> int:
        runs.append(threading.Event().wait(0.5 if runs else 0))
        return 1

    def call() -> int:
        barrier.wait()
        return load()

    load()
    with Redis.from_url(redis_url) as redis, ThreadPoolExecutor(20) as pool:
        (key,) = redis.scan_iter(f"ginkgo_func_cache_{name}_*")
        redis.set(key, b"broken")
        calls = [pool.submit(call) for _ in range(20)]
        assert [each.result() for each in calls] == [1] * 20
    assert len(runs) == 2
    assert not computations_of(cache)


def test_an_exception_goes_to_all_threads(cache: FunctionCache, name: str) -> None:
    """Each of them raises it, with a traceback that has not grown meanwhile."""
    runs, go = [], threading.Event()

    @cache.cached(ttl=60, name=name)
    def load() -> None:
        runs.append(1)
        go.wait()
        raise ValueError("no")

    with ThreadPoolExecutor(10) as pool:
        calls = [pool.submit(load) for _ in range(10)]
        until(lambda: len(runs) == 1)
        (computation,) = computations_of(cache)
        until(lambda: computation.waiting == 9)
        go.set()
        errors = [each.exception() for each in calls]
    assert len(runs) == 1
    assert {repr(error) for error in errors} == {"ValueError('no')"}
    (error,) = set(errors)
    assert error is not None
    assert len(traceback.extract_tb(error.__traceback__)) < 10


def test_a_leader_that_is_interrupted_is_replaced(
    cache: FunctionCache, name: str
) -> None:
    """What ends its thread does not end the others'."""
    runs, go = [], threading.Event()

    @cache.cached(ttl=60, name=name)
    def load() -> str:
        runs.append(1)
        if len(runs) == 1:
            go.wait()
            raise KeyboardInterrupt
        return "done"

    results: list[str] = []

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            load()

    leader = threading.Thread(target=lead)
    leader.start()
    until(lambda: len(runs) == 1)
    other = threading.Thread(target=lambda: results.append(load()))
    other.start()
    (computation,) = computations_of(cache)
    until(lambda: computation.waiting == 1)
    go.set()
    leader.join(10)
    other.join(10)
    assert results == ["done"]


def test_functions_that_need_each_other(cache: FunctionCache, name: str) -> None:
    """Called crosswise by two threads, no call waits for a call that waits for it."""
    both = threading.Barrier(2, timeout=5)
    runs: list[str] = []

    @cache.cached(ttl=60, name=f"{name}.one", ignore=("depth",))
    def one(depth: int = 0) -> str:
        runs.append("one")
        if depth:
            return "one"
        both.wait()
        return two(1)

    @cache.cached(ttl=60, name=f"{name}.two", ignore=("depth",))
    def two(depth: int = 0) -> str:
        runs.append("two")
        if depth:
            return "two"
        both.wait()
        return one(1)

    threads = [threading.Thread(target=each, daemon=True) for each in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    # Where one thread is late, its inner call is a hit, and nothing runs a second time.
    assert set(runs) == {"one", "two"}


def test_a_function_that_calls_itself_for_ever(cache: FunctionCache, name: str) -> None:
    """Its caller gets a RecursionError, and the next call begins anew."""
    ends = False

    @cache.cached(ttl=60, name=name)
    def again() -> int:
        return 1 if ends else again()

    # Otherwise the garbage of other tests may be finalised on the full stack.
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(RecursionError):
            again()
    finally:
        gc.enable()
    ends = True
    assert again() == 1


@pytest.mark.filterwarnings("error")
def test_recursion_that_ends_inside_of_a_call(cache: FunctionCache, name: str) -> None:
    """Wherever the stack is full, no coroutine is left that was never awaited."""

    @cache.cached(ttl=60, name=name)
    def again(count: int) -> int:
        return again(count + 1)

    def descend(frames: int) -> None:
        if frames:
            descend(frames - 1)
            return
        with pytest.raises(RecursionError):
            again(0)

    unraisable: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", unraisable.append)
        limit = sys.getrecursionlimit()
        gc.collect()
        gc.disable()  # the garbage of other tests needs frames, too
        sys.setrecursionlimit(len(traceback.extract_stack()) + 200)
        try:
            for frames in range(60):  # one call adds fewer frames than that
                descend(frames)
        finally:
            sys.setrecursionlimit(limit)
            gc.enable()
        gc.collect()
    assert unraisable == []


def test_the_lock_is_free_when_the_call_is_over(
    cache: FunctionCache, name: str, redis_url: str
) -> None:
    """A program that ends there leaves nobody waiting, also when the function raised."""

    @cache.cached(ttl=60, name=name, lock=True)
    def load(code: str) -> str:
        held.extend(redis.scan_iter(f"bls_agent:*{name}*"))
        return str(int(code))

    held: list[bytes] = []
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        for code in ("1", "2", "no number"):
            with suppress(ValueError):
                load(code)
            assert held, code
            assert not redis.exists(*held), code
            held.clear()


async def test_in_a_running_event_loop_nobody_waits_for_a_thread(
    cache: FunctionCache, name: str
) -> None:
    """The thread that computes needs this very loop: who waited would wait for ever."""
    loop = asyncio.get_running_loop()
    started, results = anyio.Event(), []

    @cache.cached(ttl=60, name=name, lock=True)
    def load() -> str:
        if threading.current_thread() is threading.main_thread():
            return "in the loop"
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
        asyncio.run_coroutine_threadsafe(finished.wait(), loop).result(10)
        return "in a thread"

    finished = anyio.Event()
    thread = threading.Thread(target=lambda: results.append(load()))
    thread.start()
    with anyio.fail_after(10):
        await started.wait()
        assert load() == "in the loop"
        finished.set()
        await asyncio.to_thread(thread.join)
    assert results == ["in a thread"]


def test_an_argument_may_be_called_as_one_of_clear(
    cache: FunctionCache, name: str
) -> None:
    """``function`` and ``self`` reach the cached function, not the thread."""

    @cache.cached(ttl=60, name=name)
    def load(function: str) -> str:
        return function

    assert load("sum") == "sum"
    assert cache.clear_sync(load, function="max") == 0
    assert cache.clear_sync(load, function="sum") == 1


async def test_clear_sync_is_refused_in_a_loop(cache: FunctionCache, name: str) -> None:
    """It would block it."""

    @cache.cached(ttl=60, name=name)
    def load() -> str:
        return ""

    with pytest.raises(ConfigurationError, match=r"await cache\.clear"):
        cache.clear_sync(load)
    assert load() == ""
    assert await cache.clear(load) == 1
    await cache.aclose()


def test_stale_on_error_in_a_thread(
    cache: FunctionCache, name: str, redis_url: str
) -> None:
    """As for coroutine functions."""
    results = iter(["value"])

    @cache.cached(ttl=10, name=name, stale_on_error=100)
    def load() -> str:
        for result in results:
            return result
        raise ValueError("away")

    load()
    with Redis.from_url(redis_url) as redis:
        (key,) = redis.scan_iter(f"ginkgo_func_cache_{name}_*")
        redis.expire(key, 50)
    assert load() == "value"
    assert cache.stats(load).stale_served == 1


def test_in_the_caches_own_thread(cache: FunctionCache, name: str) -> None:
    """As by a finaliser that happens to run there: it does not wait for itself."""

    @cache.cached(ttl=60, name=name)
    def load() -> str:
        return "value"

    async def call() -> str:
        return load()

    load()
    assert SHARED_LOOP.find().call(call) == "value"
    assert cache.stats(load) == CacheStats(misses=1, computed=1)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork(cache: FunctionCache, name: str) -> None:
    """The child has a connection and a thread of its own."""
    runs = []

    @cache.cached(ttl=60, name=name)
    def load(code: str) -> str:
        runs.append(code)
        return code

    load("parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if [load("parent"), load("child"), load("child"), *runs] == [
                "parent", "child", "child", "parent", "child",
            ]:  # fmt: skip
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [load("child"), load("parent")] == ["child", "parent"]
    assert runs == ["parent"]


AT_EXIT = """
import atexit, threading
from bls_agent.workers import FunctionCache
cache = FunctionCache({url!r})
@cache.cached(ttl=60, name={name!r})
def load(code): return code
class Late:
    def __del__(self): print("del", load("b"), flush=True)
late = Late()
atexit.register(lambda: print("atexit", load("a"), flush=True))
print(load("a"))
"""


def test_at_the_interpreters_end(redis_url: str, name: str) -> None:
    """A call at exit, and one in a finaliser after it, hold nothing up."""
    ended = run_python("-c", AT_EXIT.format(url=redis_url, name=name))
    assert ended.out.split("\n")[:2] == ["a", "atexit a"]
    assert ended.code == 0
    assert "Traceback" not in ended.err


def test_without_a_url(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, name: str
) -> None:
    """``cached`` of the room reads BLS_REDIS_URL at the first call."""
    monkeypatch.setenv("BLS_REDIS_URL", "nonsense")
    cache = FunctionCache()

    @cache.cached(name=name)
    def load() -> str:
        return "value"

    with pytest.raises(ConfigurationError):
        load()
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    assert [load(), load()] == ["value"] * 2
    assert cache.stats(load).hits == 1


def test_the_rooms_own_cache() -> None:
    """``cached`` is a method of ``cache``; nothing is read for it."""
    from bls_agent.workers import cache, cached  # noqa: PLC0415

    assert repr(cache) == "FunctionCache('BLS_REDIS_URL', timeout=0.5)"
    function: Any = cached(test_the_rooms_own_cache)
    assert cache.stats(function) == CacheStats()


@pytest.mark.parametrize("in_lock", [False, True])
def test_a_slow_load_holds_up_no_other_function(
    cache: FunctionCache, name: str, redis_url: str, in_lock: bool
) -> None:
    """``load`` is the user's code: it runs in a thread, also behind the fleet's lock."""
    loading, go, computing, computed = (threading.Event() for _ in range(4))

    def load(stored: int) -> int:
        loading.set()
        go.wait(20)
        return stored

    def compute() -> int:
        computing.set()
        computed.wait(20)
        return 1

    first = FunctionCache(redis_url, timeout=5)
    theirs = first.cached(ttl=60, name=name, lock=in_lock)(compute)
    ours = cache.cached(ttl=60, name=name, lock=in_lock, dump=int, load=load)(compute)
    other = cache.cached(ttl=60, name=f"{name}.other")(lambda: 2)
    with ThreadPoolExecutor(3) as pool:
        try:
            one = pool.submit(theirs)
            assert computing.wait(10)
            if not in_lock:  # else ours waits for the lock, and finds their result
                computed.set()
                assert one.result(10) == 1
            two = pool.submit(ours)
            if in_lock:
                until(lambda: any(one.lock for one in computations_of(cache)))
                computed.set()
            assert loading.wait(10)
            assert pool.submit(other).result(10) == 2
            assert not two.done()
        finally:
            computed.set()
            go.set()
        assert (one.result(10), two.result(10)) == (1, 1)
    first.close_sync()
