"""Finding the crawls in Redis, and removing exactly the keys of one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from bls_agent.core.errors import (
    ConfigurationError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.crawl import (
    CrawlRequest,
    Namespace,
    RedisKeyManager,
    RequestQueue,
    SeenFilter,
    cleanup,
    find_queues,
)
from bls_agent.crawl.keys import read_key
from bls_agent.devserver import DevServer
from tests.engines import ClusterTopology
from tests.harness import url_with_rights

# Names of which each is easily taken for another one.
NAMES = [
    ("p", None), ("p", "s"), ("p", "s2"), ("p2", None), ("p2", "s"), ("2", "p"),
    ("p*", None), ("p[12]", None), ("p?", "s*"), ("p\\", "s"), ("queue", None),
    ("新闻", "头条"), ("{p}", None), ("{p}", "s"), ("p}", None), ("crawlo", "p"),
]  # fmt: skip
SINGLE = 13


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    """A server whose keys are all counted."""
    with DevServer() as started:
        yield started


@pytest.fixture
async def client(server: DevServer) -> AsyncIterator[Redis]:
    """An empty server."""
    async with Redis.from_url(server.url, protocol=2) as opened:
        await opened.flushall()
        yield opened


def keys_of(project: str, spider: str | None) -> set[bytes]:
    """All keys of a namespace."""
    manager = RedisKeyManager(project, spider)
    retries = [manager.get_failed_retries_key(one) for one in ("1", "a:b", "[*]")]
    found = {key.encode() for key in [*manager.single_keys(), *retries]}
    assert len(found) == SINGLE + 3
    assert {read_key(key)[1:] for key in found} == {(project, spider)}  # type: ignore[index]
    return found


FOREIGN = {
    b"crawlo:p", b"crawlo:p:queue", b"crawlo:p:queue:other", b"crawlo:p:queue:queue:requests",
    b"crawlo:p:s:t:queue:requests", b"xcrawlo:p:queue:requests", b"Crawlo:p:queue:failed",
    b"bls_agent:{crawlo:p:queue:failed}:leases", b"bls_agent:{crawlo:p:queue:requests}:other",
    b"crawlo:p:queue:failed:retries", b"crawlo:\xff:queue:requests", b"p_\xe6\x8e\xa7",
    b"bls_agent:{crawlo:p:queue:requests}:inflight:leases",
}  # fmt: skip


@pytest.mark.parametrize(("project", "spider"), NAMES, ids=str)
async def test_exactly_the_keys_of_one_namespace(
    client: Redis, server: DevServer, project: str, spider: str | None
) -> None:
    """All of its keys are removed, whatever they hold; no neighbour's, nothing foreign."""
    namespaces = {name: keys_of(*name) for name in NAMES}
    everything = set().union(FOREIGN, *namespaces.values())
    await client.mset(dict.fromkeys(everything, "x"))
    before = await cleanup(server.url, project, spider)
    assert set(await client.keys()) == everything
    assert (before.dry_run, before.removed, before.found) == (True, 0, SINGLE + 3)
    assert (
        len(before.odd) == SINGLE - 2
    )  # all that are no strings, but for Bloom filters
    assert before.keys["crawl_failed_retries"] == 3
    assert before.keys["crawl_bloom"] == 2
    after = await cleanup(server.url, project, spider, dry_run=False)
    assert (after.dry_run, after.removed, after.keys) == (
        False,
        SINGLE + 3,
        before.keys,
    )
    assert set(await client.keys()) == everything - namespaces[project, spider]
    again = await cleanup(server.url, project, spider, dry_run=False)
    assert (again.removed, again.found, dict(again.keys), again.odd) == (0, 0, {}, ())


async def test_the_list_of_crawls(client: Redis, server: DevServer) -> None:
    """Each namespace of which one key is there, in order; nothing else."""
    assert await find_queues(server.url) == []
    for name in NAMES:
        await client.set(min(keys_of(*name)), "x")
    await client.mset(dict.fromkeys(FOREIGN, "x"))
    found = await find_queues(server.url)
    assert found == sorted(NAMES, key=lambda one: (one[0], one[1] or ""))
    assert isinstance(found[0], Namespace)
    assert (found[0].project, found[0].spider) == ("2", "p")


async def test_a_kind_of_key_is_enough(client: Redis, server: DevServer) -> None:
    """Of a queue that has run dry only its counters are left; it is listed."""
    for key in keys_of("p", "s"):
        await client.flushall()
        await client.set(key, "x")
        assert await find_queues(server.url) == [("p", "s")]


async def test_a_real_crawl(client: Redis, server: DevServer) -> None:
    """What the queue and the filters have written is gone; what is in use is said."""
    async with (
        RequestQueue(server.url, "p", "s") as queue,
        SeenFilter(server.url, "p", "s", kind="item") as seen,
    ):
        await seen.add("a")
        for number in range(3):
            await queue.push(CrawlRequest(f"https://a.b/{number}"), unique=True)
        async with queue.take() as taken:
            assert taken is not None
            report = await cleanup(server.url, "p", "s")
            assert (report.in_flight, report.odd) == (1, ())
            await taken.fail("closed")
        report = await cleanup(server.url, "p", "s")
        assert report.in_flight == 0  # it waits for the end of its backoff
        assert report.found == len(await client.keys())
    report = await cleanup(server.url, "p", "s", dry_run=False)
    assert report.removed == report.found > 5
    assert await client.keys() == []
    async with RequestQueue(server.url, "p", "s") as queue:
        assert await queue.push(CrawlRequest("https://a.b/1"), unique=True)


ODD_MEMBERS = [b"", b" ", b"\xff\xfe", b"x" * 600, b"a\nb", "e\u0301".encode(), b"a:b"]


@pytest.mark.parametrize("member", ODD_MEMBERS)
async def test_the_retries_of_an_odd_member_are_cleaned_up(
    client: Redis, server: DevServer, member: bytes
) -> None:
    """The next crawl begins at attempt 1, whatever a peer calls its requests."""
    manager = RedisKeyManager("p")

    async def push() -> None:
        body = CrawlRequest("https://a.b").encode()
        await client.hset(manager.get_requests_data_key(), member, body)
        await client.zadd(manager.get_requests_queue_key(), {member: 0})

    async with RequestQueue(server.url, "p") as queue:
        await push()
        async with queue.take(timeout=5) as taken:
            assert taken is not None
            await taken.fail("503")
        report = await cleanup(server.url, "p", dry_run=False)
        assert report.keys["crawl_failed_retries"] == 1
        assert await client.keys() == []
        await push()
        async with queue.take(timeout=5) as taken:
            assert taken is not None
            assert taken.attempt == 1


async def test_progress(client: Redis, server: DevServer) -> None:
    """It is told while it goes on, also where nothing is found for long."""
    keys = [f"crawlo:p:queue:failed:retries:{number}" for number in range(3_000)]
    await client.mset(dict.fromkeys(keys, "1"))
    await client.mset({f"other:{number}": "1" for number in range(3_000)})
    said: list[tuple[int, int]] = []
    report = await cleanup(
        server.url,
        "p",
        dry_run=False,
        on_progress=lambda *numbers: said.append(numbers),
    )
    assert report.removed == 3_000
    assert said == sorted(said)
    assert said[-1] == (3_000, 3_000)
    assert len(said) > 4
    assert await client.dbsize() == 3_000


async def test_it_is_refused(own_server: DevServer, admin: Redis) -> None:
    """A name that is none, a missing right, no Redis: an error, and nothing half done."""
    with pytest.raises(ConfigurationError):
        await cleanup(own_server.url, "a:b")
    await admin.set("crawlo:p:queue:failed:retries:1", "1")
    await admin.rpush("crawlo:p:queue:failed", "{}")
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-unlink")
    assert (await cleanup(url, "p")).found == 2
    with pytest.raises(RedisRefusedError, match="no_permission"):
        await cleanup(url, "p", dry_run=False)
    own_server.kill()
    for ask in (cleanup(own_server.url, "p", timeout=1), find_queues(own_server.url)):
        with pytest.raises(RedisUnavailableError):
            await ask


async def test_on_a_cluster() -> None:
    """Keys lie on all masters, and some namespaces in many slots."""
    async with ClusterTopology(replicas=0) as topology:
        port = topology.nodes[0].port
        async with RedisCluster(host="127.0.0.1", port=port, protocol=2) as client:
            for name in NAMES[:4]:
                for key in keys_of(*name):
                    await client.set(key, "x")
            assert await find_queues(topology.url) == NAMES[:4]
            report = await cleanup(topology.url, "p", dry_run=False)
            assert report.removed == SINGLE + 3
            assert await find_queues(topology.url) == NAMES[1:4]
            assert await client.dbsize(target_nodes="primaries") == 3 * (SINGLE + 3)
