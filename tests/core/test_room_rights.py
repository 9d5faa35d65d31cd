"""The rights of each room are enough for all that it does, and no more."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import BlsError, ConfigurationError, EventStore, RedisRefusedError
from bls_agent.assets import AssetLibrary, AssetSync, parse_manifest
from bls_agent.core.acl import (
    ASSET_RIGHTS,
    RUN_RIGHTS,
    KeyAccess,
    asset_acl_rules,
    crawl_acl_rules,
    crawl_rights,
    run_acl_rules,
    worker_acl_rules,
)
from bls_agent.core.errors import LeaseHeldError, WrongTypeError
from bls_agent.core.keys import KEYS, Contract
from bls_agent.crawl import CrawlRequest, RequestQueue, SeenFilter, cleanup
from bls_agent.crawl.overview import QueueOverview
from bls_agent.devserver import DevServer
from bls_agent.runs.writer_task import RunLease
from bls_agent.workers import (
    BacktestProgress,
    BacktestWorkerHeartbeat,
    FunctionCache,
    Heartbeat,
    RedisKeyBuilder,
    SyncProgress,
    TaskStatus,
    WorkerRegistry,
)
from tests.assets.memory_source import MemorySource, manifest
from tests.harness import (
    PASSWORD,
    eventually,
    execute,
    needs_selectors,
    url_with_rights,
)

DOCUMENT = Path(__file__).parents[2] / "docs/rights.md"
RUN, OTHER = 2**63 - 1, 7
PAGE = CrawlRequest("https://news.example/1")
WORKER = "回测-1"


# --- all that a room does, with rights to write and with rights to read


async def write_runs(url: str) -> None:
    async with EventStore(url, ttl=60) as store:
        await store.add(RUN, "lifecycle", "started", {"task": "分析"})
        await store.add_many(RUN, [("llm", "stream", {"text": "你好"})] * 3)
        assert await store.set_expire(RUN, 60)
        async with store.run(OTHER, lease=1.2) as run:
            run.emit("llm", "stream", {"text": "你好"})
            assert await run.flush(10)
            with pytest.raises(LeaseHeldError):
                async with store.run(OTHER):
                    pass
            held = run._run_lease
            assert held is not None
            await eventually(partial(is_renewed, held, held.due))
        assert await store.delete(OTHER)


async def is_renewed(held: RunLease, due: float) -> bool:
    return held.due > due


async def read_runs(url: str) -> None:
    async with EventStore(url) as store:
        events = await store.get_events(RUN)
        assert await store.get_events_after(RUN, events[0].id) == events[1:]
        assert (await store.page(RUN)).events == events
        assert (await store.page_back(RUN)).events == events
        assert await store.tail(RUN) == events[-1].id
        assert await store.subscribe(RUN, events[-2].id, 5_000) == events[-1:]
        assert await store.exists(RUN)
        assert await store.get_length(RUN) == len(events)
        assert RUN in [one.run_id for one in await store.runs()]
        assert await store.describe(RUN) is not None
        for place, behind in (("0-0", events), (events[1].id, events[2:])):
            follower = store.follow(RUN, place)
            with anyio.fail_after(10):
                assert await follower.batch() == behind
                assert await follower.batch(0.05) == []
            await follower.aclose()
        with anyio.move_on_after(0.05):  # one more while a read is parked: UNBLOCK
            await store.follow(OTHER).batch()


async def delete_run(url: str) -> None:
    async with EventStore(url) as store:
        await store.delete(RUN)


async def write_workers(url: str, name: str = WORKER) -> None:
    first = BacktestWorkerHeartbeat.create(name)
    async with Heartbeat(first, redis=url), Heartbeat("下载", name, redis=url) as beat:
        await beat.ready(10)
        async with TaskStatus(url) as tasks, BacktestProgress(url) as backtests:
            await tasks.set("t", "running")
            await tasks.update("t", progress=3)
            await backtests.set("t", 50.0)
            await read_workers(url, name)
            assert await tasks.delete("t")
            assert await backtests.delete("t")
        async with SyncProgress(url) as days:
            await days.add("tick", "a", [f"{y}-01-01" for y in range(1000, 6000)])
            assert len(await days.dates("tick", "a")) == 5_000
            await days.remove("tick", "a", "2026-01-01")
            assert await days.clear("tick", "a")
        await use_cache(url)


async def use_cache(url: str) -> None:
    async with FunctionCache(url) as cache:
        calls: list[int] = []

        @cache.cached(ttl=60, lock=True)
        async def double(n: int) -> int:
            calls.append(n)
            return 2 * n

        assert [await double(2), await double(2)] == [4, 4]
        assert len(calls) == 1
        assert await cache.clear(double) == 1


async def read_workers(url: str, name: str = WORKER) -> None:
    async with WorkerRegistry(url) as registry:
        assert {one.id for one in await registry.alive()} == {name}
        assert [task.id for task in (await registry.tasks()).tasks] == ["t"]
    async with TaskStatus(url) as tasks, BacktestProgress(url) as backtests:
        assert await tasks.get("t") is not None
        assert await backtests.get("t") is not None
        assert await tasks.list()
    async with SyncProgress(url) as days:
        await days.contains("tick", "a", "2026-01-01")
        await days.summary("tick", "a", ["2026-01-01"])


async def leave_workers(url: str) -> None:
    """What a worker that is alive has written."""
    beat = BacktestWorkerHeartbeat.create(WORKER)
    async with Redis.from_url(url) as redis:
        await redis.set(beat.key, beat.to_json(), ex=30)
        for row in ("task_status", "backtest_task_progress"):
            await redis.set(KEYS[row].build(task_id="t"), '{"status":"running"}', ex=30)
        days = (f"{y}-01-01" for y in range(1000, 6000))
        await execute(redis, "SADD", "tick_update_a", *days)


async def set_task(url: str) -> None:
    async with TaskStatus(url) as tasks:
        await tasks.set("t", "failed")


async def write_assets(url: str) -> None:
    """A synchronisation, with a lease to renew and one to wait for."""
    source = MemorySource(
        {"a.yaml": manifest("a", author="x"), "b.yaml": manifest("b")}
    )

    async def slow(head: Any) -> Any:
        await anyio.sleep(0.3)
        return await tree(head)

    tree, source.tree = source.tree, slow  # type: ignore[method-assign]
    async with AssetSync(url, source, lease=0.9) as sync:
        assert (await sync.run()).status == "complete"
        source.files = {"a.yaml": manifest("a", "2.0.0", "skill")}
        assert (await sync.run(force=True)).status == "complete"
        other = AssetSync(url, source)
        async with other, sync._hold_lease():
            with pytest.raises(BlsError, match="running process"):
                await other.run()
        one = parse_manifest(manifest("c"), "c.yaml")
        await sync.library.save(one, path="c.yaml", sha="1")
        assert await sync.library.delete("c")
        # As another program does it, without an index.
        fields = ("id", "d", "version", "1", "category", "skill", "name", "d")
        pool = sync.library.pool
        await pool.call("asset:metadata:d", "HSET", *fields)
        await pool.call("asset:category:skill", "SADD", "d")


async def read_assets(url: str) -> None:
    async with AssetLibrary(url) as library:
        for _ in range(2):
            assert await library.get("a") is not None
        assert [one.id for one in await library.list()] == ["a"]
        assert [one.id for one in await library.list("skill")] == ["a", "d"]
        assert await library.search("a")
        assert (await library.sync_state()).report is not None
        assert await library.changes()
        with anyio.move_on_after(0.1):
            async for _ in library.watch():
                pass


async def delete_asset(url: str) -> None:
    async with AssetLibrary(url) as library:
        await library.delete("a")


class WorkerError(Exception):
    """What a crawler's own code raises."""


async def take_once(queue: RequestQueue, *, fails: bool = False) -> None:
    with contextlib.suppress(WorkerError):
        async with queue.take(5) as taken:
            assert taken is not None
            if fails:
                raise WorkerError


async def write_crawl(url: str) -> None:
    """Crawlers finish, fail, give back, wait, filter, clean up."""
    queue = RequestQueue(url, "news", lease=0.5, max_retries=0)
    patient = RequestQueue(url, "news", retry_delay=0.01)
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
        async with SeenFilter(url, "news", "s", ttl=ttl, kind="item") as seen:
            assert await seen.add("a")
            assert await seen.contains("a")
            await seen.clear()
    async with RequestQueue(url, "news", "odd") as queue:
        with pytest.raises(WrongTypeError):
            await queue.push(PAGE)
    async with RequestQueue(url, "news") as queue, queue.take(0.05) as taken:
        assert taken is None or (await cleanup(url, "news")).in_flight
    assert (await cleanup(url, "news", dry_run=False)).removed


async def read_crawl(url: str) -> None:
    async with QueueOverview(url) as overview:
        names = await overview.find()
        assert names
        await overview.read(names)
    async with RequestQueue(url, "news") as queue:
        await queue.stats()
        await queue.failed()
    async with SeenFilter(url, "news") as seen:
        await seen.contains("a")
        await seen.size()


async def push_page(url: str) -> None:
    async with RequestQueue(url, "news") as queue:
        await queue.push(PAGE)


def crawl_rules(*, selectors: bool = True, write: bool = True) -> list[str]:
    """The rules of one project; the flat ones of all."""
    project = "news" if selectors else None
    return crawl_acl_rules(project, selectors=selectors, write=write)


Tour = Callable[[str], Awaitable[None]]


class Room(NamedTuple):
    """What the rights of a room are held against."""

    rules: Callable[..., list[str]]
    rights: Sequence[KeyAccess]  # each of which is needed
    write: Tour
    read: Tour
    refused: Tour  # what nobody may who only reads
    leave: Tour | None = None  # what is read, where writing leaves nothing behind


RUNS = Room(run_acl_rules, RUN_RIGHTS, write_runs, read_runs, delete_run)
ASSETS = Room(asset_acl_rules, ASSET_RIGHTS, write_assets, read_assets, delete_asset)
CRAWL = Room(crawl_rules, crawl_rights("news"), write_crawl, read_crawl, push_page)
WORKERS = Room(
    worker_acl_rules, (), write_workers, read_workers, set_task, leave_workers
)
ROOMS = {"runs": RUNS, "workers": WORKERS, "assets": ASSETS, "crawl": CRAWL}
every_room = pytest.mark.parametrize("room", ROOMS.values(), ids=list(ROOMS))


ODD_KEY = "crawlo:news:odd:queue:requests"  # of a queue, and holds something else
DATABASES = 16


@pytest.fixture
async def _odd_key(admin: Redis) -> None:
    await admin.set(ODD_KEY, "x")


# What a tour meets that lacks a right.
FAILURES = (BlsError, AssertionError, pytest.fail.Exception)


async def refused(admin: Redis) -> list[Any]:
    """What was refused to anybody."""
    return [one[one.index(b"object") + 1] for one in await execute(admin, "ACL", "LOG")]


async def may(admin: Redis, *words: object) -> bool:
    """Whether the agent's user may send a request."""
    said = await execute(admin, "ACL", "DRYRUN", "agent", *words)
    return said in (b"OK", "OK")


@pytest.mark.usefixtures("_odd_key")
@pytest.mark.parametrize(
    "selectors", [pytest.param(True, marks=needs_selectors), False]
)
@every_room
async def test_a_writers_rights_are_enough(
    room: Room, selectors: bool, own_server: DevServer, admin: Redis
) -> None:
    """Nothing is refused; without selectors, for Redis 6, either."""
    rules = room.rules(selectors=selectors)
    assert selectors or not any("(" in rule for rule in rules)
    url = await url_with_rights(admin, own_server, *rules)
    await room.write(url)
    if room.leave is None:
        await room.read(url)
    assert await refused(admin) == []


@needs_selectors
@pytest.mark.parametrize("name", ["回测{a}", "a:b*[?]"])
async def test_a_workers_rights_are_enough_whatever_its_id(
    own_server: DevServer, admin: Redis, name: str
) -> None:
    """Nothing is refused."""
    url = await url_with_rights(admin, own_server, *worker_acl_rules())
    await write_workers(url, name)
    assert await refused(admin) == []


@needs_selectors
@pytest.mark.parametrize("name", ["回测-1", "回测{a}", "a:b*[?]"])
async def test_one_workers_rights_are_enough_and_its_own(
    own_server: DevServer, admin: Redis, name: str
) -> None:
    """It does all that a worker does under its id, and keeps no other heartbeat."""
    url = await url_with_rights(admin, own_server, *worker_acl_rules(name))
    await write_workers(url, name)
    assert await refused(admin) == []
    for other in ("other", f"{name}1", name[:-1]):
        for key in (
            RedisKeyBuilder.backtest_worker_heartbeat(other),
            RedisKeyBuilder.scheduler_heartbeat(other),
            RedisKeyBuilder.generic_heartbeat("下载", other),
        ):
            assert not await may(admin, "SET", key, "x")
            assert not await may(admin, "DEL", key)
            assert await may(admin, "GETRANGE", key, 0, 1)
    assert not await may(admin, "SET", RedisKeyBuilder.process_heartbeat(1), "x")
    covered = RedisKeyBuilder.generic_heartbeat("下载", f"host:{name}")
    assert await may(admin, "SET", covered, "x"), "the document says so"


@pytest.mark.usefixtures("_odd_key")
@needs_selectors
@every_room
async def test_a_reader_cannot_write(
    room: Room, own_server: DevServer, admin: Redis
) -> None:
    """Everything can be read, nothing written."""
    await (room.leave or room.write)(own_server.url)
    url = await url_with_rights(admin, own_server, *room.rules(write=False))
    await room.read(url)
    assert await refused(admin) == []
    with pytest.raises(RedisRefusedError) as caught:
        await room.refused(url)
    assert caught.value.kind == "no_permission"


def commands_of(room: Room, *, write: bool) -> list[tuple[KeyAccess, str]]:
    """Every command on keys, with its row."""
    return [
        (right, command)
        for right in room.rights
        if right.keys and right.writes is write
        for command in right.commands.split()
    ]


def rules_without(room: Room, right: KeyAccess, command: str) -> list[str]:
    """The rules for reading, or for writing, less one command of a row."""
    rules = ["-@all"]
    for one in room.rights:
        if one.keys and one.writes is not right.writes:
            continue
        words = [
            word for word in one.commands.split() if (one, word) != (right, command)
        ]
        if one.keys and words:
            rules.append(one._replace(commands=" ".join(words)).selector)
        elif not one.keys:
            rules += [f"+{word}" for word in words]
    return rules


async def users_without_a_right(
    room: Room, tour: Tour, server: DevServer, admin: Redis, *, write: bool
) -> tuple[set[str], set[str]]:
    """Let each of many users lack one right, and return them and who was refused.

    Eight work at once, each writer in a database of its own.
    """
    databases = list(range(DATABASES if write else 1))
    at_once = anyio.Semaphore(DATABASES // 2)
    users: set[str] = set()

    async def take_tour(right: KeyAccess, command: str) -> None:
        user = f"user-{len(users)}-{command}"
        users.add(user)
        async with at_once:
            database = databases.pop() if write else 0
            rules = rules_without(room, right, command)
            await execute(
                admin, "ACL", "SETUSER", user, "reset", "on", f">{PASSWORD}", *rules
            )
            with contextlib.suppress(*FAILURES):
                await tour(
                    f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}/{database}"
                )
            if write:
                async with Redis(port=server.port, db=database) as own:
                    await own.flushdb()
                databases.append(database)

    rows = commands_of(room, write=write)
    for right, command in rows:
        if command == "eval":  # needed until somebody has loaded the scripts
            await take_tour(right, command)
    async with anyio.create_task_group() as tours:
        for right, command in rows:
            if command != "eval":
                tours.start_soon(take_tour, right, command)
    log = await execute(admin, "ACL", "LOG", 1_000)
    return users, {one[one.index(b"username") + 1].decode() for one in log}


@needs_selectors
@pytest.mark.parametrize("room", [RUNS, ASSETS, CRAWL], ids=["runs", "assets", "crawl"])
async def test_no_right_of_a_writer_is_too_many(
    room: Room, own_server: DevServer, admin: Redis
) -> None:
    """Without any one of them something is refused."""

    async def write_in_a_database(url: str) -> None:
        database = int(url.rpartition("/")[2])
        async with Redis(port=own_server.port, db=database) as own:
            await own.set(ODD_KEY, "x")
        await room.write(url)

    users, refused_users = await users_without_a_right(
        room, write_in_a_database, own_server, admin, write=True
    )
    assert users
    assert refused_users == users


@pytest.mark.usefixtures("_odd_key")
@needs_selectors
@pytest.mark.parametrize("room", [RUNS, ASSETS, CRAWL], ids=["runs", "assets", "crawl"])
async def test_no_right_of_a_reader_is_too_many(
    room: Room, own_server: DevServer, admin: Redis
) -> None:
    """Without any one of them something is refused."""
    await (room.leave or room.write)(own_server.url)
    users, refused_users = await users_without_a_right(
        room, room.read, own_server, admin, write=False
    )
    assert users
    assert refused_users == users


# Which keys are a writer's own, and what nobody may do with another one.
CLOSED: dict[str, tuple[Callable[[str], bool], str]] = {
    "runs": (lambda row: row == "run_events", "XRANGE - +|EXPIRE 1|UNLINK"),
    "workers": (
        lambda row: KEYS[row].contract in (Contract.WORKERS, Contract.OWN),
        "GETRANGE 0 1",
    ),
    "assets": (
        lambda row: row.startswith("asset_") and row != "asset_search_index",
        "HGETALL|DEL|SET x",
    ),
}


@needs_selectors
@pytest.mark.parametrize("name", CLOSED)
async def test_other_keys_stay_closed(
    name: str, own_server: DevServer, admin: Redis
) -> None:
    """A writer reaches no key of anything else."""
    is_own, requests = CLOSED[name]
    await url_with_rights(admin, own_server, *ROOMS[name].rules())
    for other, row in KEYS.items():
        if is_own(other):
            continue
        key = row.locate(**dict.fromkeys(row.fields, "x"))
        for request in requests.split("|"):
            command, *rest = request.split()
            assert not await may(admin, command, key, *rest), other
    assert not await may(admin, "KEYS", "*")


@needs_selectors
@pytest.mark.parametrize("names", [("news", None), ("news", "daily"), ("{n*}", "x")])
async def test_other_queues_stay_closed(
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
        beside = (f"bls_agent:{{{requests}}}:leases", f"bls_agent:{requests}:wake")
        keys += [requests, *beside]
    for key in keys:
        for words in (("HGETALL",), ("ZCARD",), ("DEL",), ("SET", "x")):
            assert not await may(admin, words[0], key, *words[1:]), key


def test_names_that_no_pattern_can_hold() -> None:
    """A blank, and what no queue can be called."""
    for names in (("a b", None), ("a", "b c"), ("a:b", None)):
        with pytest.raises(ConfigurationError):
            crawl_acl_rules(*names)


@pytest.mark.parametrize(
    "rules", [run_acl_rules, worker_acl_rules, asset_acl_rules, crawl_acl_rules]
)
def test_the_document_shows_both_lines(rules: Callable[..., list[str]]) -> None:
    """As they are printed."""
    lines = re.findall(r"^-@all .*$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert " ".join(rules()) in lines
    assert " ".join(rules(write=False)) in lines
