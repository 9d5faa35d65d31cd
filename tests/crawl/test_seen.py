"""The duplicate filters on a real server: who adds first, TTL, Redis away."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent.core.errors import (
    ConfigurationError,
    DuplicateItem,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.crawl import (
    CrawlRequest,
    DedupPipeline,
    RedisKeyManager,
    SeenFilter,
    fingerprint,
)
from bls_agent.devserver import DevServer
from tests.harness import eventually, execute, is_gone, url_with_rights
from tests.kit import Cut, FaultProxy, Late

PAGE = "https://example.org/a?b=1"
WORKERS = 20
ROUNDS = 1_000


@pytest.fixture
async def seen(redis: Redis, redis_url: str, project: str) -> AsyncIterator[SeenFilter]:
    """A filter whose key is removed in the end."""
    async with SeenFilter(redis_url, project) as opened:
        yield opened
    await redis.delete(opened.key)


async def test_the_contracts_set(seen: SeenFilter, redis: Redis, project: str) -> None:
    """A set of fingerprints under the contract's key; each is new once."""
    assert seen.key == f"crawlo:{project}:filter:fingerprint"
    assert await seen.add("a") is True
    assert await seen.add("a") is False
    assert await seen.add_many(["b", "a", "c", "b"]) == [True, False, True, False]
    assert await redis.smembers(seen.key) == {b"a", b"b", b"c"}
    assert await redis.ttl(seen.key) == -1
    assert [await seen.contains(one) for one in "ax"] == [True, False]
    assert await seen.size() == 3
    await seen.clear()
    assert await seen.size() == 0
    assert await seen.add_many([]) == []


async def test_requests_and_their_fingerprints(seen: SeenFilter) -> None:
    """A request is its fingerprint; GET and POST of one URL are two."""
    get, post = CrawlRequest(PAGE), CrawlRequest(PAGE, "POST")
    assert await seen.add_many([get, post]) == [True, True]
    assert await seen.add(fingerprint(get)) is False
    assert await seen.contains(post)


@pytest.mark.parametrize("ttl", [None, 60])
async def test_exactly_one_is_told_that_it_is_new(
    redis: Redis, redis_url: str, project: str, ttl: float | None
) -> None:
    """Twenty connections add the same thousand at once: each is new for one of them."""
    names = [f"page-{number}" for number in range(ROUNDS)]
    filters = [SeenFilter(redis_url, project, ttl=ttl) for _ in range(WORKERS)]
    answers: list[list[bool]] = []

    async def add(one: SeenFilter) -> None:
        async with one:
            found: dict[str, bool] = {}
            order = random.sample(names, ROUNDS)  # else the first is always ahead
            for begin in range(0, ROUNDS, 50):
                part = order[begin : begin + 50]
                found |= zip(part, await one.add_many(part), strict=True)
            answers.append([found[name] for name in names])

    try:
        async with anyio.create_task_group() as group:
            for one in filters:
                group.start_soon(add, one)
    finally:
        await redis.delete(filters[0].key)
    assert [sum(column) for column in zip(*answers, strict=True)] == [1] * ROUNDS
    assert sum(map(any, answers)) > 1  # they really raced


async def test_one_filter_in_many_tasks(seen: SeenFilter) -> None:
    """Also over one connection, and one at a time."""
    answers: list[bool] = []

    async def add(name: str) -> None:
        answers.append(await seen.add(name))

    for number in range(5):
        async with anyio.create_task_group() as group:
            for _ in range(WORKERS):
                group.start_soon(add, f"page-{number}")
    assert sum(answers) == 5


async def test_a_large_batch(seen: SeenFilter) -> None:
    """More than leave in one write."""
    names = [str(number) for number in range(2_500)]
    assert await seen.add_many(iter(names)) == [True] * 2_500
    assert await seen.add_many(names) == [False] * 2_500


async def test_the_ttl_begins_with_the_first(
    redis: Redis, redis_url: str, project: str
) -> None:
    """Later ones do not make the set live longer; a set without gets one."""
    async with SeenFilter(redis_url, project, "s", ttl=0.3, kind="item") as seen:
        assert seen.key == f"crawlo:{project}:s:item:fingerprint"
        assert await seen.add("a")
        first = await redis.pttl(seen.key)
        assert 0 < first <= 300
        assert not await seen.add("a")
        assert await seen.add("b")
        assert await redis.pttl(seen.key) <= first
        await eventually(lambda: is_gone(redis, seen.key))
        assert await seen.add("a")
        await redis.persist(seen.key)
        await seen.add("b")
        assert 0 < await redis.pttl(seen.key) <= 300
        await redis.delete(seen.key)


@pytest.mark.parametrize(
    ("on_error", "new", "known"), [("new", True, False), ("seen", False, True)]
)
async def test_redis_is_away(on_error: Any, new: bool, known: bool) -> None:
    """Everything is new, or seen, or the error is raised; it works again afterwards."""
    with DevServer() as server:
        away = SeenFilter(server.url, "p", on_error=on_error, timeout=2)
        raising = SeenFilter(server.url, "p")
        async with away, raising:
            assert await away.add("a")
            server.kill()
            assert await away.add("a") is new
            assert await away.add_many(["a", "b"]) == [new, new]
            assert await away.contains("a") is known
            for ask in (raising.add("a"), raising.contains("a"), away.size()):
                with pytest.raises(RedisUnavailableError):
                    await ask
            server.restart()
            assert await away.add("a") is True
            assert await away.add("a") is False


@pytest.mark.parametrize(("ttl", "command"), [(None, "SADD"), (60, "EVALSHA")])
async def test_the_connection_is_lost_in_a_large_batch(
    own_server: DevServer, ttl: float | None, command: str
) -> None:
    """The answers of the first write count; only the rest is reported as seen."""
    async with (
        FaultProxy(own_server.url, seed=7) as proxy,
        SeenFilter(proxy.url, "p", ttl=ttl, on_error="seen") as seen,
    ):
        assert await seen.add("a")  # the server knows the script
        proxy.arm(Late(command=command, seconds=0, times=1_000))
        proxy.arm(Cut(command=command))
        names = [str(number) for number in range(2_500)]
        assert await seen.add_many(names) == [True] * 1_000 + [False] * 1_500


@pytest.mark.parametrize("ttl", [None, 60])
async def test_a_refusal_is_always_raised(
    own_server: DevServer, admin: Redis, ttl: float | None
) -> None:
    """Another type, a missing right: on_error does not hide what will not pass."""
    url = await url_with_rights(admin, own_server, "~crawlo:p:*", "+@all", "-sadd")
    mine = SeenFilter(own_server.url, "p", ttl=ttl, on_error="new")
    async with mine, SeenFilter(url, "p", ttl=ttl, on_error="new") as theirs:
        with pytest.raises(RedisRefusedError, match="no_permission"):
            await theirs.add("a")
        await admin.set(mine.key, "somebody else's")
        for ask in (mine.add("a"), mine.add_many(["a"] * 3), mine.contains("a")):
            with pytest.raises(WrongTypeError, match="than set"):
                await ask
        with pytest.raises(WrongTypeError):
            await mine.size()
        assert await admin.get(mine.key) == b"somebody else's"
        assert await admin.ttl(mine.key) == -1


@pytest.mark.parametrize("one", ["", None, 5, b"a", "\ud800"], ids=repr)
async def test_what_is_no_fingerprint(one: Any) -> None:
    """It is refused before anything is asked."""
    with pytest.raises(ConfigurationError, match="fingerprint is text"):
        await SeenFilter("redis://127.0.0.1:1", "p").add(one)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "page"},
        {"on_error": "ignore"},
        {"ttl": 0},
        {"ttl": "1"},
        {"spider": "a:b"},
    ],
    ids=repr,
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    """They are refused at construction."""
    with pytest.raises(ConfigurationError, match=rf"^{next(iter(wrong))}: "):
        SeenFilter("redis://127.0.0.1:1", "p", **wrong)


# --- Bloom filters


@pytest.fixture
def bloom_server() -> Iterator[DevServer]:
    """A server whose set commands bear the names of the Bloom filter's.

    No module with real ones is at hand. This holds what we send and how we read it, not
    what a module does.
    """
    names = {"SADD": "BF.ADD", "SISMEMBER": "BF.EXISTS", "SCARD": "BF.CARD"}
    words = [w for old, new in names.items() for w in ("--rename-command", old, new)]
    with DevServer(options=words) as server:
        yield server


@pytest.mark.parametrize("ttl", [None, 60])
async def test_a_bloom_filter(bloom_server: DevServer, ttl: float | None) -> None:
    """It has a key of its own, beside the contract's set."""
    async with (
        SeenFilter(bloom_server.url, "p", bloom=True, kind="item", ttl=ttl) as seen,
        Redis.from_url(bloom_server.url, protocol=2) as client,
    ):
        assert seen.key == "bls_agent:{crawlo:p:item:fingerprint}:bloom"
        assert seen.key == RedisKeyManager("p").get_own_key(
            "crawl_bloom", "crawl_item_fingerprint"
        )
        assert await seen.add_many(["a", "b", "a"]) == [True, True, False]
        assert [await seen.contains(one) for one in "ax"] == [True, False]
        assert await seen.size() == 2
        assert await client.keys() == [seen.key.encode()]
        assert (await client.ttl(seen.key) > 0) == (ttl is not None)
        await seen.clear()
        await client.set(seen.key, "x")
        with pytest.raises(WrongTypeError, match="a Bloom filter"):
            await seen.add("a")


@pytest.mark.parametrize("ttl", [None, 60])
async def test_no_bloom_filters_on_the_server(
    redis_url: str, ttl: float | None
) -> None:
    """The error says what to do, whatever on_error says."""
    seen = SeenFilter(redis_url, "p", bloom=True, ttl=ttl, on_error="new")
    async with seen:
        for ask in (seen.add("a"), seen.contains("a"), seen.size()):
            with pytest.raises(ConfigurationError, match="Load valkey-bloom"):
                await ask


# --- items


class Crawler:
    """As much of Scrapy's as a pipeline may know."""

    def __init__(self, **settings: object) -> None:
        self.settings = settings


@pytest.mark.parametrize("cleanup", [None, "0", False, "True", 1, True], ids=repr)
async def test_a_pipeline_by_settings(
    redis: Redis, redis_url: str, project: str, cleanup: object
) -> None:
    """An item passes once, an equal one is dropped; at the close all may be forgotten."""
    crawler = Crawler(
        REDIS_URL=redis_url, PROJECT_NAME=project, SPIDER_NAME="s",
        REDIS_TTL="60", CLEANUP_REDIS_DATA=cleanup,
    )  # fmt: skip
    key = f"crawlo:{project}:s:item:fingerprint"
    pipeline = DedupPipeline.from_crawler(crawler)
    item = {"title": "茶", "price": 1}
    assert await pipeline.process_item(item) is item
    with pytest.raises(DuplicateItem, match="was there before") as caught:
        await pipeline.process_item({"price": 1, "title": "茶"}, object())
    assert await redis.smembers(key) == {caught.value.fingerprint.encode()}
    assert 0 < await redis.ttl(key) <= 60
    await (pipeline.close_spider(object()) if cleanup else pipeline.aclose())
    assert await redis.delete(key) == (cleanup in {None, "0", False})


@pytest.mark.parametrize(
    "wrong",
    [
        {"REDIS_TTL": "soon"},
        {"CLEANUP_REDIS_DATA": "maybe"},
        {"REDIS_TTL": -1},
        {"REDIS_TTL": 10**400},
    ],
    ids=repr,
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    """They are refused when the pipeline is made."""
    with pytest.raises(ConfigurationError):
        DedupPipeline.from_settings(wrong)


async def test_what_makes_items_equal(
    redis: Redis, redis_url: str, project: str
) -> None:
    """One field may be enough; what cannot be told apart is refused."""
    seen = SeenFilter(redis_url, project, kind="item")
    pipeline = DedupPipeline(seen, cleanup=True, identify=lambda item: item["id"])
    assert await pipeline.process_item({"id": "1", "at": object()})
    with pytest.raises(DuplicateItem):
        await pipeline.process_item({"id": "1"})
    with pytest.raises(ConfigurationError):
        await DedupPipeline(seen).process_item({"at": object()})
    assert (await execute(redis, "TYPE", seen.key)) == b"set"
    await pipeline.aclose()
    assert await redis.exists(seen.key) == 0
