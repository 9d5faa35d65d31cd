"""``lock=True``: a missing value is computed once in the fleet."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent.workers import FunctionCache
from tests.harness import eventually
from tests.programs import Program

WORKER = """
import asyncio, sys, time
import redis
from bls_agent.workers import FunctionCache
from bls_agent.workers.caching.cached_function import CachedFunction
cache = FunctionCache({url!r}, timeout=5)
counter = redis.Redis.from_url({url!r})

@cache.cached(ttl=60, name={name!r}, lock=True, lock_ttl={lock_ttl}, lock_timeout=20)
async def load(code):
    counter.incr({runs!r})
    {body}
    return [code]

@cache.cached(ttl=60, name={name!r} + ".plain", lock=True, lock_ttl={lock_ttl}, lock_timeout=20)
def load_plain(code):
    counter.incr({runs!r})
    time.sleep(0.3)
    return [code]

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    if {plain}:
        return [await asyncio.to_thread(load_plain, "a") for _ in range(3)]
    return await asyncio.gather(*(load("a") for _ in range(50)))

print("ended", asyncio.run(main())[0], flush=True)
"""


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[FunctionCache]:
    """Another process's, as far as Redis can tell."""
    async with FunctionCache(redis_url, timeout=5) as opened:
        yield opened


@contextmanager
def worker(
    url: str, name: str, *, plain: bool = False, lock_ttl: float = 10,
    body: str = "await asyncio.sleep(0.3)",
) -> Iterator[Program]:  # fmt: skip
    """A process that calls when it is told to."""
    code = WORKER.format(
        url=url, name=name, runs=f"test:{name}:runs", plain=plain, body=body, lock_ttl=lock_ttl,
    )  # fmt: skip
    with Program("-c", code) as program:
        assert program.line() == "ready"
        yield program


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_two_processes_compute_once(
    redis_url: str, redis: Redis, name: str, plain: bool
) -> None:
    """The one that does not compute gets the other's value."""
    with (
        worker(redis_url, name, plain=plain) as one,
        worker(redis_url, name, plain=plain) as two,
    ):
        one.send()
        two.send()
        assert one.line() == two.line() == "ended ['a']"
    assert await redis.get(f"test:{name}:runs") == b"1"
    assert not [key async for key in redis.scan_iter(f"*{name}*:owner")]
    await redis.delete(f"test:{name}:runs")


@pytest.mark.parametrize("blow", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_leader_that_freezes_or_dies_is_replaced(
    redis_url: str, redis: Redis, name: str, blow: signal.Signals
) -> None:
    """After the lease's TTL; what a frozen one computes is not wanted any more."""
    runs = f"test:{name}:runs"
    hang = "await asyncio.sleep(0 if counter.get('RUNS') != b'1' else 1)".replace(
        "RUNS", runs
    )
    with (
        worker(redis_url, name, lock_ttl=0.6, body=hang) as one,
        worker(redis_url, name, lock_ttl=0.6, body=hang) as two,
    ):
        one.send()

        async def is_leading() -> bool:
            return await redis.get(runs) == b"1"

        await eventually(is_leading)
        one.send_signal(blow)
        two.send()
        assert two.line() == "ended ['a']"
        assert await redis.get(runs) == b"2"
        (key,) = [key async for key in redis.scan_iter(f"ginkgo_func_cache_{name}_*")]
        stored = await redis.get(key)
        if blow is signal.SIGSTOP:
            one.send_signal(signal.SIGCONT)
            assert one.line() == "ended ['a']"
            assert await redis.get(key) == stored
    await redis.delete(runs)


async def test_who_waits_in_vain_computes(
    cache: FunctionCache, other: FunctionCache, redis: Redis, name: str
) -> None:
    """After ``lock_timeout``, although another one goes on."""
    started, go_on = anyio.Event(), anyio.Event()

    async def load() -> str:
        started.set()
        await go_on.wait()
        return "slow"

    async def quick() -> str:
        return "quick"

    slow = cache.cached(ttl=60, name=name, lock=True)(load)
    fast = other.cached(ttl=60, name=name, lock=True, lock_timeout=0.2)(quick)
    leader = asyncio.ensure_future(slow())
    await started.wait()
    assert await fast() == "quick"
    assert other.stats(fast).computed == 1
    go_on.set()
    assert await leader == "slow"


async def test_a_leader_that_fails_lets_the_next_one_try(
    cache: FunctionCache, other: FunctionCache, name: str
) -> None:
    """At once, not after the lease's TTL."""
    started, go_on = anyio.Event(), anyio.Event()

    async def load() -> str:
        started.set()
        await go_on.wait()
        raise ValueError("no")

    async def right() -> str:
        return "right"

    failing = cache.cached(ttl=60, name=name, lock=True, lock_ttl=60)(load)
    working = other.cached(ttl=60, name=name, lock=True, lock_ttl=60)(right)
    leader = asyncio.ensure_future(failing())
    await started.wait()
    follower = asyncio.ensure_future(working())
    go_on.set()
    with pytest.raises(ValueError, match="no"):
        await leader
    with anyio.fail_after(10):
        assert await follower == "right"


async def test_the_lease_is_renewed_while_the_function_runs(
    cache: FunctionCache, other: FunctionCache, name: str
) -> None:
    """A long computing is nobody else's, and neither of a plain function."""
    runs: list[str] = []
    waits = threading.Event()

    async def load() -> str:
        runs.append("async")
        await anyio.sleep(1.3)
        return "value"

    def load_plain() -> str:
        runs.append("plain")
        waits.wait(1.3)
        return "value"

    async def both(each: FunctionCache) -> list[str]:
        one = each.cached(ttl=60, name=name, lock=True, lock_ttl=0.8)(load)
        two = each.cached(ttl=60, name=f"{name}.p", lock=True, lock_ttl=0.8)(load_plain)
        return list(await asyncio.gather(one(), asyncio.to_thread(two)))

    results = await asyncio.gather(both(cache), both(other))
    assert list(results) == [["value"] * 2] * 2
    assert sorted(runs) == ["async", "plain"]
