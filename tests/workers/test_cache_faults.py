"""The function cache while Redis is away, slow, frozen, or refuses."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.to_thread
import pytest
from redis.asyncio import Redis

from bls_agent.core.errors import RedisUnavailableError
from bls_agent.devserver import DevServer
from bls_agent.workers import FunctionCache
from tests.harness import eventually, execute, url_with_rights
from tests.kit import Cut, Direction, FaultProxy, Late

NOWHERE = "redis://127.0.0.1:1/0"


async def test_redis_away_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """The function is called every time, counted, and it is said once."""
    cache = FunctionCache(NOWHERE)

    @cache.cached(ttl=60)
    async def load(number: int) -> int:
        return number

    assert [await load(number) for number in range(50)] == list(range(50))
    stats = cache.stats(load)
    assert (stats.computed, stats.hits) == (50, 0)
    assert stats.redis_failures >= 50
    assert len([record for record in caplog.records if "Redis" in record.message]) == 1
    await cache.aclose()


def test_redis_away_from_plain_functions() -> None:
    """The same over threads."""
    cache = FunctionCache(NOWHERE)

    @cache.cached(ttl=60)
    def load(number: int) -> int:
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(load, range(50))) == list(range(50))
    assert cache.stats(load).computed == 50
    with pytest.raises(RedisUnavailableError):
        cache.clear_sync(load)
    cache.close_sync()


async def test_clear_raises_while_redis_is_away() -> None:
    """Nobody believes that something was removed."""
    cache = FunctionCache(NOWHERE)

    @cache.cached(ttl=60)
    async def load() -> None: ...

    with pytest.raises(RedisUnavailableError):
        await cache.clear(load)
    with pytest.raises(RedisUnavailableError):
        await cache.clear(load, *())  # no arguments: all of them
    await cache.aclose()


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_redis_frozen(own_server: DevServer, plain: bool) -> None:
    """The deadline is paid once; then nobody waits, until it answers again."""
    cache = FunctionCache(own_server.url, timeout=0.3)

    @cache.cached(ttl=60)
    async def load(number: int) -> int:
        return number

    @cache.cached(ttl=60)
    def load_plain(number: int) -> int:
        return number

    async def call(number: int) -> int:
        if plain:
            return await asyncio.to_thread(load_plain, number)
        return await load(number)

    function = load_plain if plain else load
    assert await call(1) == 1
    assert await call(1) == 1
    own_server.freeze()
    began = time.monotonic()
    try:
        assert await asyncio.gather(*(call(n) for n in range(20))) == list(range(20))
        assert [await call(n) for n in range(100)] == list(range(100))
    finally:
        took = time.monotonic() - began
        own_server.thaw()
    # 120 calls: without the memory of it 36 s. The deadline once, and a busy machine.
    assert took < 5
    assert cache._availability.away
    hits = cache.stats(function).hits

    async def is_back() -> bool:
        await call(1)
        return cache.stats(function).hits > hits

    await eventually(is_back)
    await cache.aclose()


async def test_while_away_one_probe_at_a_time(own_server: DevServer) -> None:
    """A frozen server gets one connection, however many call."""
    cache = FunctionCache(own_server.url, timeout=0.1)

    @cache.cached(ttl=60)
    async def load(number: int) -> int:
        return number

    await load(1)
    own_server.freeze()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            await asyncio.gather(*(load(n) for n in range(20)))
            await anyio.sleep(0.01)
    finally:
        own_server.thaw()
    async with Redis.from_url(own_server.url, protocol=2) as admin:
        made = (await admin.info("stats"))["total_connections_received"]
    assert made < 10
    await cache.aclose()


async def test_a_read_only_user(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Writes that are refused are counted; the function's results are given."""
    url = await url_with_rights(admin, own_server, "~*", "+get", "+pttl", "+client")
    async with FunctionCache(url) as cache:

        @cache.cached(ttl=60)
        async def load() -> str:
            return "value"

        assert [await load(), await load()] == ["value"] * 2
        stats = cache.stats(load)
        assert (stats.computed, stats.hits, stats.redis_failures) == (2, 0, 2)
        (warning,) = [one for one in caplog.messages if "is not cached" in one]
        assert "(no_permission)" in warning
        with pytest.raises(RedisUnavailableError):
            await cache.clear(load)


async def test_out_of_memory(own_server: DevServer, admin: Redis) -> None:
    """Reading goes on, what cannot be written is counted."""
    async with FunctionCache(own_server.url) as cache:

        @cache.cached(ttl=60)
        async def load(code: str) -> str:
            return code

        await load("before")
        await admin.config_set("maxmemory", 1)
        assert [await load("before"), await load("after"), await load("after")] == [
            "before", "after", "after",
        ]  # fmt: skip
        stats = cache.stats(load)
        assert (stats.hits, stats.computed, stats.redis_failures) == (1, 3, 2)
        await admin.config_set("maxmemory", 0)


async def test_a_connection_that_is_cut_is_not_noticed(
    own_server: DevServer, admin: Redis
) -> None:
    """What was under way is asked once more: no call fails to hit."""
    async with FunctionCache(own_server.url, timeout=5) as cache:

        @cache.cached(ttl=60)
        async def load(number: int) -> int:
            return number

        for number in range(20):
            await load(number)
        for _ in range(10):
            for client in await admin.client_list():
                if client["name"].startswith("bls-agent:cache"):
                    await execute(admin, "CLIENT", "KILL", "ID", client["id"])
            await asyncio.gather(*(load(number) for number in range(20)))
        stats = cache.stats(load)
        assert (stats.computed, stats.hits, stats.redis_failures) == (20, 200, 0)


async def test_a_request_under_way_is_sent_once_more(own_server: DevServer) -> None:
    """A connection that ends under a request costs a hit nothing."""
    async with (
        FaultProxy(own_server.url) as proxy,
        FunctionCache(proxy.url, timeout=5) as cache,
    ):

        @cache.cached(ttl=60)
        async def load(number: int) -> int:
            return number

        await asyncio.gather(*(load(number) for number in range(5)))
        for _ in range(3):
            cut = proxy.arm(Cut(direction=Direction.REQUESTS, command="GET"))
            results = await asyncio.gather(*(load(n) for n in range(5)))
            assert results == list(range(5))
            assert cut.fired == 1
        stats = cache.stats(load)
        assert (stats.hits, stats.computed, stats.redis_failures) == (15, 5, 0)


async def test_one_connection_for_everybody(
    own_server: DevServer, admin: Redis
) -> None:
    """A thousand callers at once, one connection and few writes."""
    async with FunctionCache(own_server.url, timeout=5) as cache:

        @cache.cached(ttl=60)
        async def load(number: int) -> int:
            return number

        results = await asyncio.gather(*(load(number) for number in range(1000)))
        assert results == list(range(1000))
        mine = [
            c for c in await admin.client_list() if c["name"].startswith("bls-agent")
        ]
        assert len(mine) == 1


async def test_closed_again_and_again(own_server: DevServer, admin: Redis) -> None:
    """Each call after a close opens a connection, and each close leaves none."""
    cache = FunctionCache(own_server.url)

    @cache.cached(ttl=60)
    async def load(number: int) -> int:
        return number

    async def is_closed() -> bool:
        names = [client["name"] for client in await admin.client_list()]
        return not any(name.startswith("bls-agent") for name in names)

    for _ in range(3):
        assert await load(1) == 1
        assert not await is_closed()
        await cache.aclose()
        await eventually(is_closed)


async def test_a_cancelled_caller_does_not_cut_the_connection(
    own_server: DevServer, admin: Redis
) -> None:
    """The others' replies keep their order."""
    async with FunctionCache(own_server.url, timeout=5) as cache:

        @cache.cached(ttl=60)
        async def load(number: int) -> int:
            return number

        for _ in range(30):
            calls = [asyncio.ensure_future(load(number)) for number in range(20)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            assert await asyncio.gather(*calls[1::2]) == list(range(1, 20, 2))
        made = (await admin.info("stats"))["total_connections_received"]
        assert made <= 4


@pytest.mark.parametrize("plain", [False, True])
async def test_cleared_while_a_result_is_on_its_way(
    own_server: DevServer, *, plain: bool
) -> None:
    """What was computed before is not there afterwards, however late it arrives."""
    source = "old"

    async def load() -> str:
        return source

    def load_plainly() -> str:
        return source

    async with FaultProxy(own_server.url) as proxy:
        cache = FunctionCache(proxy.url, timeout=5)
        function: Any = load_plainly if plain else load
        give = cache.cached(ttl=60, name="late")(function)

        async def ask() -> Any:
            return await (anyio.to_thread.run_sync(give) if plain else give())

        late = proxy.arm(Late(direction=Direction.REQUESTS, command="SET", seconds=0.3))
        first = asyncio.create_task(ask())
        await eventually(lambda: late.fired == 1)
        source = "new"
        await cache.clear(give)
        assert await ask() == "new"  # nor is it given to who asks from now on
        assert await first == "old"
        assert await ask() == "new"
        await cache.aclose()


async def test_cleared_after_a_write_that_has_no_connection(
    own_server: DevServer,
) -> None:
    """What could not be sent within the timeout is not sent later."""
    source = "old"
    async with (
        FaultProxy(own_server.url) as proxy,
        FunctionCache(proxy.url, timeout=0.5) as cache,
    ):

        @cache.cached(ttl=60)
        async def load() -> str:
            if source == "old":  # two connections end, and two open in 0.4 s each
                requests = Direction.REQUESTS
                proxy.arm(Cut(direction=requests, command="SET", times=2))
                slow = Late(direction=requests, command="CLIENT", seconds=0.2, times=4)
                proxy.arm(slow)
            return source

        assert await load() == "old"
        await cache.clear(load)
        source = "new"

        async def is_hit() -> bool:
            await load()
            return cache.stats(load).hits > 0

        await eventually(is_hit)
        assert await load() == "new"
