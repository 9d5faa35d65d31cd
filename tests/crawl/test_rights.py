"""The rights of a crawler, and of a reader of its queues, are enough, and no more."""

from __future__ import annotations

import contextlib

import pytest
from redis.asyncio import Redis

from bls_agent import BlsError, ConfigurationError, RedisRefusedError
from bls_agent.core.acl import KeyAccess, crawl_acl_rules, crawl_rights
from bls_agent.core.errors import WrongTypeError
from bls_agent.core.keys import KEYS
from bls_agent.crawl import CrawlRequest, RequestQueue, SeenFilter, cleanup
from bls_agent.crawl.overview import QueueOverview
from bls_agent.devserver import DevServer
from tests.acl_rules import documented_rules, each_right, may, refused, rules_without
from tests.harness import needs_selectors, url_with_rights

PAGE = CrawlRequest("https://news.example/1")


class WorkerError(Exception):
    """What a worker's own code raises."""


async def take_once(queue: RequestQueue, *, fails: bool = False) -> None:
    with contextlib.suppress(WorkerError):
        async with queue.take(5) as taken:
            assert taken is not None
            if fails:
                raise WorkerError


async def write_everything(url: str, project: str = "news") -> None:
    """All that crawlers do: finish, fail, give back, wait, filter, clean up."""
    queue = RequestQueue(url, project, lease=0.5, max_retries=0)
    patient = RequestQueue(url, project, retry_delay=0.01)
    async with queue, patient:
        assert await queue.push(PAGE, unique=True)
        assert not await queue.push(PAGE, unique=True)
        await take_once(queue, fails=True)
        assert len(await queue.failed()) == 1
        assert await queue.requeue_failed() == 1
        async with queue.take(5) as taken:
            assert taken is not None
            await taken.give_back()
        await take_once(patient, fails=True)
        await take_once(patient)
        async with queue.take(0.05) as taken:
            assert taken is None
        assert (await queue.stats()).acknowledged == 1
    for ttl in (None, 60.0):
        async with SeenFilter(url, project, "s", ttl=ttl, kind="item") as seen:
            assert await seen.add("a")
            assert await seen.contains("a")
            await seen.clear()
    async with RequestQueue(url, project, "odd") as queue:
        with pytest.raises(WrongTypeError):
            await queue.push(PAGE)
    async with RequestQueue(url, project) as queue, queue.take(5) as taken:
        assert taken is None or (await cleanup(url, project)).in_flight
    assert (await cleanup(url, project, dry_run=False)).removed


async def read_everything(url: str, project: str = "news") -> None:
    """All that a reader does."""
    async with QueueOverview(url) as overview:
        names = await overview.find()
        assert names
        await overview.read(names)
    async with RequestQueue(url, project) as queue:
        await queue.stats()
        await queue.failed()
    async with SeenFilter(url, project) as seen:
        await seen.contains("a")
        await seen.size()


@pytest.fixture
async def _odd_key(admin: Redis) -> None:
    """A queue whose key holds something else."""
    await admin.set("crawlo:news:odd:queue:requests", "x")


@pytest.mark.usefixtures("_odd_key")
@needs_selectors
async def test_the_rights_are_enough(own_server: DevServer, admin: Redis) -> None:
    """Nothing is refused, to a crawler or to a reader; a reader cannot write."""
    url = await url_with_rights(admin, own_server, *crawl_acl_rules("news"))
    await write_everything(url)
    await read_everything(url)
    assert await refused(admin) == []
    rules = crawl_acl_rules("news", write=False)
    url = await url_with_rights(admin, own_server, *rules)
    await read_everything(url)
    assert await refused(admin) == []
    async with RequestQueue(url, "news") as queue:
        with pytest.raises(RedisRefusedError):
            await queue.push(PAGE)


@pytest.mark.usefixtures("_odd_key")
async def test_flat_rules_are_enough(own_server: DevServer, admin: Redis) -> None:
    """For Redis 6, without selectors; of all projects."""
    rules = crawl_acl_rules(selectors=False)
    assert not any("(" in rule for rule in rules)
    url = await url_with_rights(admin, own_server, *rules)
    await write_everything(url)
    await read_everything(url)
    assert await refused(admin) == []


@pytest.mark.usefixtures("_odd_key")
@needs_selectors
@pytest.mark.parametrize(("right", "command"), [*each_right(crawl_rights("news"))])
async def test_no_right_is_too_many(
    right: KeyAccess, command: str, own_server: DevServer, admin: Redis
) -> None:
    """Without any one of them something is refused to a crawler, or to a reader."""
    rules = rules_without(crawl_rights("news"), right, command)
    url = await url_with_rights(admin, own_server, *rules)
    if not right.writes:
        await write_everything(own_server.url)
    with contextlib.suppress(BlsError, AssertionError, pytest.fail.Exception):
        await (write_everything if right.writes else read_everything)(url)
    assert await refused(admin) != []


@needs_selectors
@pytest.mark.parametrize("names", [("news", None), ("news", "daily"), ("{n*}", "x")])
async def test_other_keys_stay_closed(
    names: tuple[str, str | None], own_server: DevServer, admin: Redis
) -> None:
    """A crawler reaches no key of anything else, nor of a project named alike."""
    await url_with_rights(admin, own_server, *crawl_acl_rules(*names))
    others = [("newspaper", None), ("news2", "daily"), ("{nx}", "x"), ("daily", "news")]
    if names[1]:
        others += [(names[0], None), (names[0], f"{names[1]}2")]
    keys = [row.locate(**dict.fromkeys(row.fields, "x")) for row in KEYS.values()]
    for project, spider in others:
        requests = KEYS["crawl_requests"].locate(project=project, spider=spider)
        keys += [
            requests,
            f"bls_agent:{{{requests}}}:leases",
            f"bls_agent:{requests}:wake",
        ]
    for key in keys:
        for words in (
            ["HGETALL", key],
            ["ZCARD", key],
            ["DEL", key],
            ["SET", key, "x"],
        ):
            assert not await may(admin, *words), key


def test_names_that_no_pattern_can_hold() -> None:
    """A blank, and what no queue can be called."""
    for names in (("a b", None), ("a", "b c"), ("a:b", None)):
        with pytest.raises(ConfigurationError):
            crawl_acl_rules(*names)


def test_the_document_shows_both_lines() -> None:
    """As they are printed."""
    lines = documented_rules()
    assert " ".join(crawl_acl_rules()) in lines
    assert " ".join(crawl_acl_rules(write=False)) in lines
