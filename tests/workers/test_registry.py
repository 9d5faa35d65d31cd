"""Who is alive, on real servers: keys as peers write them, outages, rights, changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, RedisRefusedError, RedisUnavailableError
from bls_agent.connection.access import Access
from bls_agent.core.backoff import Backoff
from bls_agent.devserver import DevServer
from bls_agent.runtime.lease import make_token
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    Heartbeat,
    TaskTimerHeartbeat,
    WorkerChange,
    WorkerRegistry,
    reading,
    registry as module,
)
from bls_agent.workers.heartbeat_fields import KINDS
from tests.harness import eventually, url_with_rights

QUICK = 0.02
GBK = "订单".encode("gbk")


def written(kind: str, name: str) -> str:
    """What a worker of this kind writes."""
    create: Any = getattr(KINDS[kind], "create")  # noqa: B009
    return str(create(name).to_json())


async def plant(admin: Redis) -> None:
    """Keys as workers and bare redis-cli write them."""
    for kind, number in (("backtest_worker_heartbeat", 2), ("task_timer_heartbeat", 1)):
        for one in range(number):
            create: Any = getattr(KINDS[kind], "create")  # noqa: B009
            await admin.set(create(f"w-{one}").key, written(kind, f"w-{one}"), ex=30)
    await admin.set("heartbeat:node:[a-z]*?\\", "{}", ex=10)
    await admin.set("heartbeat:node:a:b\nc", "alive", ex=60)
    await admin.set(b"heartbeat:scheduler:" + GBK, b"\xff", ex=30)
    await admin.set(
        "heartbeat:data_worker:forever", written("data_worker_heartbeat", "x")
    )
    await admin.set("heartbeat:component:feed:1", "ok", ex=30)
    await admin.set("heartbeat:下[载]:上海:1", '{"页":3}', ex=30)
    await admin.set("ginkgo:heartbeat:4711", "1768221296.7", ex=30)


async def plant_foreign(admin: Redis) -> None:
    """Keys that look like heartbeats from far away, and others."""
    await admin.set("bls_agent:{heartbeat:node:a}:owner", "token", ex=30)
    await admin.mset(
        {
            "heartbeat:unknown": "{}", "heartbeat:node:": "{}", "heartbeats:node:a": "",
            "backtest:task:a:progress": "{}", "ginkgo:task_status:1": "{}",
            "x:heartbeat:node:a": "{}",
        }
    )  # fmt: skip
    await admin.set(b"heartbeat:\xff", "")
    await admin.mset({f"foreign:{number}": "x" for number in range(3_000)})


async def test_everybody_is_found(own_server: DevServer, admin: Redis) -> None:
    """Whatever peers wrote is shown as it is; nothing is written, no KEYS asked."""
    await plant(admin)
    await plant_foreign(admin)
    before = (await admin.info("persistence"))["rdb_changes_since_last_save"]
    async with WorkerRegistry(own_server.url) as registry:
        workers = await registry.alive()
    told = [(worker.kind, worker.id, worker.problem) for worker in workers]
    assert told == [
        ("backtest_worker_heartbeat", "w-0", ""),
        ("backtest_worker_heartbeat", "w-1", ""),
        ("component_heartbeat", "feed:1", ""),
        ("data_worker_heartbeat", "forever", "no_ttl"),
        ("execution_node_heartbeat", "[a-z]*?\\", "bad_field"),
        ("execution_node_heartbeat", "a:b\nc", "not_json"),
        ("process_heartbeat", "4711", ""),
        ("scheduler_heartbeat", GBK.decode("utf-8", "surrogateescape"), "not_utf8"),
        ("task_timer_heartbeat", "w-0", ""),
        ("下[载]", "上海:1", ""),
    ]
    by_id = {worker.id: worker for worker in workers}
    assert 0 <= (by_id["w-1"].age or 0) < 5
    assert by_id["[a-z]*?\\"].stale
    assert (by_id["a:b\nc"].age, by_id["a:b\nc"].stale) == (None, False)
    assert by_id["a:b\nc"].raw == {"raw": "alive"}
    assert (await admin.info("persistence"))["rdb_changes_since_last_save"] == before
    asked = await admin.info("commandstats")
    assert "cmdstat_keys" not in asked
    assert asked["cmdstat_scan"]["calls"] < 8  # one search for all kinds


class Kind(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    """Kinds of workers, as older programs declare them."""

    DOWNLOAD = "下[载]"
    NODE = "node"


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        (BacktestWorkerHeartbeat, ["w-0", "w-1"]),
        ("backtest_worker_heartbeat", ["w-0", "w-1"]),
        ("backtest_worker", ["w-0", "w-1"]),
        (TaskTimerHeartbeat, ["w-0"]),
        ("component_heartbeat", ["feed:1"]),
        ("process_heartbeat", ["4711"]),
        ("下[载]", ["上海:1"]),
        (Kind.DOWNLOAD, ["上海:1"]),
        (Kind.NODE, ["[a-z]*?\\", "a:b\nc"]),
        ("generic", ["上海:1"]),
        ("node", ["[a-z]*?\\", "a:b\nc"]),
        ("下", []),
    ],
)
async def test_one_kind_alone(
    own_server: DevServer, admin: Redis, kind: Any, ids: list[str]
) -> None:
    """By its class, by the name of its row, or by the kind in its key."""
    await plant(admin)
    async with WorkerRegistry(own_server.url) as registry:
        assert [worker.id for worker in await registry.alive(kind)] == ids


@pytest.mark.parametrize("kind", ["", " a", "a:b", 3, dict, object()])
async def test_another_kind_is_refused(kind: Any) -> None:
    """At once, also by a watch that nobody has begun to read; nothing is opened."""
    registry = WorkerRegistry("redis://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="kind"):
        registry.watch(kind)
    with pytest.raises(ConfigurationError, match="kind"):
        await registry.alive(kind)
    with pytest.raises(ConfigurationError, match="interval"):
        registry.watch(interval=0)


async def test_keys_of_other_types(own_server: DevServer, admin: Redis) -> None:
    """Each is named, and hides no other one."""
    await plant(admin)
    pipeline: Any = admin.pipeline(transaction=False)
    expected: dict[str, str] = {}
    for type_, request in {
        "list": ("RPUSH", "x"), "set": ("SADD", "x"), "hash": ("HSET", "a", "b"),
        "zset": ("ZADD", 1, "x"), "stream": ("XADD", "*", "a", "b"),
    }.items():  # fmt: skip
        pipeline.execute_command(request[0], f"heartbeat:node:{type_}", *request[1:])
        expected[type_] = "wrong_type"
    await pipeline.execute()
    async with WorkerRegistry(own_server.url) as registry:
        workers = await registry.alive()
    assert len(workers) == 10 + len(expected)
    assert {w.id: w.problem for w in workers if w.id in expected} == expected


async def test_who_expires_after_the_search_is_absent(redis_url: str) -> None:
    """Nothing is shown of a key that is not there any more."""
    access = Access(redis_url, "test")
    gone = {b"heartbeat:node:gone": "execution_node_heartbeat"}
    assert await module._read(access.pool, gone, {}) == {}
    await access.aclose()


async def test_an_outage_is_no_empty_fleet(own_server: DevServer, admin: Redis) -> None:
    """It raises; the registry goes on when Redis is back."""
    await plant(admin)
    async with WorkerRegistry(own_server.url, timeout=2) as registry:
        assert len(await registry.alive()) == 10
        own_server.kill()
        with pytest.raises(RedisUnavailableError):
            await registry.alive()
        own_server.restart()
        assert len(await registry.alive()) == 10


async def test_what_may_not_be_read_is_left_out(
    own_server: DevServer, admin: Redis
) -> None:
    """SCAN, GETRANGE and PTTL are enough; if nothing may be read it is said."""
    await plant(admin)
    commands = ("+scan", "+getrange", "+pttl")
    url = await url_with_rights(admin, own_server, *commands, "~backtest:worker:*")
    async with WorkerRegistry(url) as registry:
        assert [one.id for one in await registry.alive()] == ["w-0", "w-1"]
        with pytest.raises(RedisRefusedError, match="no_permission"):
            await registry.alive("task_timer_heartbeat")
        with pytest.raises(RedisRefusedError):
            await anext(registry.watch("task_timer_heartbeat"))


@pytest.mark.parametrize("lease", ["forbidden", "wrong_type"])
async def test_a_lease_that_cannot_be_read_hides_nobody(
    own_server: DevServer, admin: Redis, lease: str
) -> None:
    """The default of the kind is then the full TTL, also of a worker that is stale."""
    await admin.set(*node("甲"), ex=10)
    await admin.rpush(f"bls_agent:{{{node('甲')[0]}}}:owner", "x")
    url = own_server.url
    if lease == "forbidden":
        commands = ("+scan", "+getrange", "+pttl")
        url = await url_with_rights(admin, own_server, *commands, "~heartbeat:*")
    async with WorkerRegistry(url) as registry:
        (worker,) = await registry.alive()
        assert worker.stale
        assert (await anext(registry.watch())).what == "joined"


class Watching:
    """A watch in a task of its own, and what it has told."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self.registry = registry
        self.changes: list[WorkerChange] = []
        self._moved = anyio.Event()

    async def run(self) -> None:
        async for change in self.registry.watch(interval=QUICK):
            self.changes.append(change)
            self._moved.set()
            self._moved = anyio.Event()

    @property
    def told(self) -> list[str]:
        """What has happened to whom."""
        return [f"{c.what} {c.worker.id if c.worker else ''}" for c in self.changes]

    async def until(self, *told: str) -> None:
        """Wait until exactly this was told since the last time."""
        with anyio.fail_after(20):
            while len(self.changes) < len(told):
                await self._moved.wait()
        assert self.told == list(told)
        self.changes.clear()


@pytest.fixture
async def watching(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Watching]:
    """A quick watch over a server of this test alone."""
    monkeypatch.setattr("bls_agent.workers.registry.SEARCH_PAUSE", QUICK)
    async with WorkerRegistry(own_server.url, timeout=1) as registry:
        watching = Watching(registry)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watching.run)
            yield watching
            tasks.cancel_scope.cancel()


def node(name: str, **fields: Any) -> tuple[str, str]:
    """Key and value of an execution node."""
    beat = ExecutionNodeHeartbeat.create(name, **fields)
    return beat.key, beat.to_json()


async def test_a_watch_tells_what_happens(watching: Watching, admin: Redis) -> None:
    """Joined, changed, left by DEL and by expiry, also what is wrong."""
    await admin.set(*node("甲"), ex=30)
    await watching.until("joined 甲")
    await admin.set(*node("甲"), ex=30)
    await admin.set(*node("甲", active_strategies=2), ex=30)
    await watching.until("changed 甲")
    await admin.delete(node("甲")[0])
    await watching.until("left 甲")
    await admin.set(*node("乙"), ex=30)
    await watching.until("joined 乙")
    await admin.pexpire(node("乙")[0], 1)
    await watching.until("left 乙")
    await admin.rpush(node("丙")[0], "x")
    await watching.until("joined 丙")
    await admin.delete(node("丙")[0])
    await watching.until("left 丙")


async def test_a_silent_worker_is_stale_and_comes_back(
    watching: Watching, admin: Redis
) -> None:
    """Half a TTL without a refresh, then one."""
    await admin.set(*node("甲"), ex=30)
    await watching.until("joined 甲")
    await admin.pexpire(node("甲")[0], 14_900)  # as if it were 15 s later
    await watching.until("stale 甲")
    await admin.expire(node("甲")[0], 30)
    await watching.until("back 甲")


async def test_an_outage_is_told_once_and_nobody_leaves_by_it(
    watching: Watching,
    own_server: DevServer,
    admin: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever lost its key with the server has half a TTL to write it again."""
    await admin.mset(dict([node("a"), node("b")]))
    await watching.until("joined a", "joined b")
    await admin.config_set("appendonly", "no")
    for place in own_server.folder.glob("appendonly*"):
        place.rename(own_server.folder / f"lost-{place.name}")
    pauses: list[float] = []

    def failed(_: Backoff) -> float:
        pauses.append(QUICK)
        return QUICK

    monkeypatch.setattr(Backoff, "failed", failed)
    own_server.kill()
    await eventually(lambda: len(pauses) > 3)
    await watching.until("unavailable ")
    own_server.restart()
    await watching.until("available ")
    assert await admin.dbsize() == 0
    await admin.set(*node("a", port=9), ex=30)
    await watching.until("changed a")
    await admin.set(*node("c"), ex=30)
    await watching.until("joined c")


async def test_after_an_outage_everybody_is_searched_for_at_once(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came meanwhile does not wait for the search that would be due."""
    monkeypatch.setattr("bls_agent.workers.registry.SEARCH_PAUSE", 600.0)
    await admin.set(*node("a"), ex=30)
    async with WorkerRegistry(own_server.url) as registry:
        changes = registry.watch(interval=QUICK)
        assert (await anext(changes)).what == "joined"
        await admin.set(*node("b"), ex=30)  # nobody searches now
        own_server.kill()
        assert (await anext(changes)).what == "unavailable"
        own_server.restart()
        with anyio.fail_after(20):
            told = [(await anext(changes)).what for _ in range(2)]
        assert told == ["available", "joined"]
        await changes.aclose()


async def test_a_quick_restart_is_an_outage_too(
    watching: Watching, admin: Redis
) -> None:
    """Between two looks: only the lost connection tells of it."""
    await admin.set(*node("甲"), ex=30)
    await watching.until("joined 甲")
    pipeline: Any = admin.pipeline(transaction=True)
    pipeline.flushall()
    pipeline.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await pipeline.execute()
    await admin.set(*node("乙"), ex=30)
    await watching.until("joined 乙")
    await admin.set(*node("甲", port=9), ex=30)
    await watching.until("changed 甲")


async def test_a_frozen_server_is_an_outage(
    watching: Watching, own_server: DevServer, admin: Redis
) -> None:
    """After the deadline of a request."""
    await admin.set(*node("甲"), ex=30)
    await watching.until("joined 甲")
    own_server.freeze()
    await watching.until("unavailable ")
    own_server.thaw()
    await watching.until("available ")


async def names_of(admin: Redis) -> list[str]:
    """Names of the connections that are open."""
    return [client["name"] for client in await admin.client_list()]


async def left_tasks(body: Callable[[], Awaitable[None]]) -> set[asyncio.Task[Any]]:
    """Tasks that are there after something was done, and were not before."""
    before = asyncio.all_tasks()
    await body()
    await anyio.lowlevel.checkpoint()
    return asyncio.all_tasks() - before


async def test_a_watch_that_is_left_leaves_nothing(
    own_server: DevServer, admin: Redis
) -> None:
    """No task; another watch of the same registry goes on."""
    await admin.set(*node("甲"), ex=30)
    async with WorkerRegistry(own_server.url) as registry:
        other = registry.watch(interval=QUICK)
        assert (await anext(other)).what == "joined"

        async def begin_and_leave() -> None:
            changes = registry.watch(interval=QUICK)
            assert (await anext(changes)).what == "joined"
            with anyio.move_on_after(5 * QUICK):
                await anext(changes)
            await changes.aclose()

        assert not await left_tasks(begin_and_leave)
        await admin.delete(node("甲")[0])
        assert (await anext(other)).what == "left"
        await other.aclose()
        assert "bls-workers" in await names_of(admin)

    async def is_closed() -> bool:
        return "bls-workers" not in await names_of(admin)

    await eventually(is_closed)


@pytest.mark.parametrize("ttl", [3.0, 20.0, 300.0])
async def test_a_lease_tells_another_ttl(own_server: DevServer, ttl: float) -> None:
    """Who gives another TTL than the contract's says so beside its key: one look is enough."""
    beat = BacktestWorkerHeartbeat.create("回测-1")
    async with (
        Heartbeat(beat, redis=own_server.url, ttl=ttl),
        WorkerRegistry(own_server.url) as registry,
    ):
        (worker,) = await registry.alive()
    assert not worker.stale
    assert worker.age is not None
    assert 0 <= worker.age < ttl / 3
    assert worker.ttl is not None
    assert worker.age + worker.ttl == pytest.approx(ttl)


async def test_a_lease_tells_that_a_worker_is_silent(
    own_server: DevServer, admin: Redis
) -> None:
    """What is left of a long TTL may look fresh by the default; also a watch reads the lease."""
    key, value = node("甲")
    await admin.set(f"bls_agent:{{{key}}}:owner", make_token(60.0), px=29_000)
    await admin.set(key, value, px=29_000)
    async with WorkerRegistry(own_server.url) as registry:
        (worker,) = await registry.alive()
        watched = (await anext(registry.watch())).worker
    for one in (worker, watched):
        assert one is not None
        assert one.stale
        assert one.age == pytest.approx(31, abs=3)


@pytest.mark.parametrize(
    "lease", ["", "x", "a 1 b viele", "a 1 b " + "9" * 400, "a ended"]
)
async def test_a_strange_lease_tells_nothing(
    admin: Redis, own_server: DevServer, lease: str
) -> None:
    """Then the contract's TTL is what counts."""
    beat = BacktestWorkerHeartbeat.create("回测-1")
    await admin.set(beat.key, beat.to_json(), ex=5)
    await admin.set(f"bls_agent:{{{beat.key}}}:owner", lease)
    async with WorkerRegistry(own_server.url) as registry:
        (worker,) = await registry.alive()
    assert worker.stale


async def test_many_large_values_are_cut(
    admin: Redis, own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet of large values costs a bounded memory; usual ones are read in any case."""
    monkeypatch.setattr(reading, "PLENTY", 40_000)
    monkeypatch.setattr(reading, "TOGETHER", 2)
    for number in range(8):
        text = "x" * (20_000 if number else 10)
        beat = BacktestWorkerHeartbeat.create(f"回测-{number}", task_uuids=[text])
        await admin.set(beat.key, beat.to_json(), ex=30)
    async with WorkerRegistry(own_server.url) as registry:
        found = await registry.alive()
    problems = {worker.id: worker.problem for worker in found}
    assert len(problems) == 8
    assert problems["回测-0"] == ""
    assert {*problems.values()} == {"", "too_large"}
    assert sum(len(worker.payload) for worker in found) < 120_000


async def test_a_search_rests_four_times_as_long_as_it_took(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million keys are not searched all the time; a few at least every two seconds."""
    now, took, begun = 100.0, 3.0, 0

    async def find(_: object) -> dict[bytes, str]:
        nonlocal now, begun
        now, begun = now + took, begun + 1
        return {}

    monkeypatch.setattr(anyio, "current_time", lambda: now)
    search = module._search_for(None)
    async with WorkerRegistry(own_server.url) as registry:
        monkeypatch.setattr(registry, "_find", find)
        _, due = await registry._fetch(search, {}, 100.0)
        assert due == 103 + 12
        assert await registry._fetch(search, {}, due) == ({}, due)
        assert begun == 1
        now, took = due, 0.1
        _, due = await registry._fetch(search, {}, due)
        assert due - now == pytest.approx(2)
