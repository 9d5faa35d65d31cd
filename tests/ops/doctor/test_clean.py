"""Nothing is found where nothing is wrong, and nothing is written."""

from __future__ import annotations

import shlex
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from bls_agent import Console, EventStore, ProjectAgent
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import KEYS
from bls_agent.crawl import CrawlRequest, RequestQueue, SeenFilter
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.doctor.rule import Severity
from bls_agent.workers import (
    BacktestProgress,
    BacktestWorkerHeartbeat,
    DataWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    FunctionCache,
    Heartbeat,
    SchedulerHeartbeat,
    SyncProgress,
    TaskStatus,
    TaskTimerHeartbeat,
)
from tests.harness import eventually, execute, needs_selectors, server_version
from tests.ops.doctor.plants import PLANTS, at, good

# What the documents show, typed into redis-cli by somebody who has nothing else; a
# status without a TTL, too, which the console protocol allows.
BY_THE_DOCUMENTS = """
SET 订单系统_项目状态 在线
SET 库存系统_项目状态 离线 EX 60
RPUSH 订单系统_项目控制台 '{"timestamp":"2026-01-12T12:34:56.789Z","level":"info","message":"连接成功","metadata":{"module":"redis","host":"127.0.0.1"}}'
RPUSH 订单系统_项目控制台 '{"timestamp":"2026-01-12T12:34:57.000Z","level":"error","message":"没有附加信息"}'
RPUSH 订单系统_控制 '{"id":"cmd-1700000000000-abc123","timestamp":"2026-01-12T12:35:00.000Z","source":"BLS Project Console","command":"reload","args":{"force":true}}'
BLPOP 订单系统_控制 1
HSET asset:metadata:google_search id google_search version 1.2.0 category tool name 'Google 搜索' description '在 Google 上搜索内容' config_schema '[{"name":"query","label":"搜索词","type":"string","required":true}]' agent_specs '{"function_name":"google_search","description":"...","parameters":{}}' runtime '{"language":"python","entry":"main.py","handler":"run","dependencies":["requests"]}' github_path tools/search/google.yaml github_sha abc123def456... created_at 1704067200 updated_at 1704153600
SADD asset:category:tool google_search
HSET asset:index google_search '{"id":"google_search","name":"Google 搜索","category":"tool","version":"1.2.0","description":"在 Google 上搜索内容"}'
HSET asset:sync:state last_sync_time 1704153600 last_commit_sha abc123def456... synced_count 42 sync_status idle
RPUSH asset:sync:changed google_search weather_api
SETEX backtest:worker:worker_1 30 '{"status":"running","timestamp":"NOW","worker_id":"worker_1","running_tasks":3,"max_tasks":5,"started_at":"NOW","last_heartbeat":"NOW","task_uuids":[]}'
SETEX heartbeat:node:node_1 30 '{"status":"running","timestamp":"NOW","node_id":"node_1","host":"h","port":1,"active_strategies":0}'
SETEX ginkgo:task_status:t1 86400 running
SETEX ginkgo_func_cache_my_function_cache_key 3600 '{"result":1,"timestamp":"NOW","func_name":"my_function"}'
SADD tick_update_000001.SZ 2026-01-12 2026-01-13
EXPIRE tick_update_000001.SZ 2592000
XADD run:1:events 1704067200000-0 timestamp 2025-01-01T12:00:00.123Z sequence 1 source_agent_id global_supervisor source_agent_type global_supervisor source_agent_name 全局协调者 source_team_name '' event_category lifecycle event_action started data '{"task": "分析市场数据"}'
EXPIRE run:1:events 86400
ZADD crawlo:my_project:my_spider:queue:requests 0 request-1
HSET crawlo:my_project:my_spider:queue:requests:data request-1 '{"url":"https://example.org"}'
SADD crawlo:my_project:filter:fingerprint 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
SET something:else 1
"""


async def type_in(redis: Redis, lines: str) -> None:
    for line in lines.strip().splitlines():
        await execute(redis, *shlex.split(line.replace("NOW", at())))


def findings(report: Any) -> list[tuple[str, str]]:
    return [(f.rule, f.key) for f in report.findings]


async def test_keys_as_the_documents_show_them(
    admin: Redis, own_server: DevServer
) -> None:
    """No fault: one note, because a TTL is advised and not demanded."""
    await type_in(admin, BY_THE_DOCUMENTS)
    report = await examine(own_server.url)
    assert findings(report) == [("status-untimed", "订单系统_项目状态")]
    assert report.healthy
    assert (report.seen, report.foreign) == (18, 1)


FLEET: list[tuple[str, dict[str, Any]]] = [
    ("阻塞", {"mode": "blocking"}),
    ("兼容", {"mode": "compat"}),
    ("可靠", {"mode": "reliable"}),
    ("副本", {"mode": "reliable", "replicas": True, "instance": "a"}),
    ("副本", {"mode": "reliable", "replicas": True, "instance": "b"}),
]


async def test_live_agents(own_server: DevServer) -> None:
    """What this package writes keeps the contracts: while it works, and afterwards."""
    async with AsyncExitStack() as fleet, Console(own_server.url) as console:
        for project, options in FLEET:
            agent = ProjectAgent(project, redis=own_server.url, **options)

            @agent.command
            async def work(number: int) -> int:
                return number

            await fleet.enter_async_context(agent)
            await agent.ready(20)
            for number in range(3):
                outcome = await console.call(project, "work", {"number": number})
                assert outcome.succeeded
            await console.send(
                project, "work", {"number": 1}, record=True, sent_by="王芳"
            )
            agent.log.warn("wenig Platz", frei=3)
            await agent.flush(10)
        report = await examine(own_server.url)
        assert findings(report) == []
        assert report.healthy
        assert report.keys["project_status"] == 4
    assert findings(await examine(own_server.url)) == []


async def test_live_workers(own_server: DevServer) -> None:
    """Worker heartbeats and tasks keep their protocol: meanwhile, and afterwards."""
    kinds: tuple[Any, ...] = (
        BacktestWorkerHeartbeat, DataWorkerHeartbeat, ExecutionNodeHeartbeat,
        SchedulerHeartbeat, TaskTimerHeartbeat,
    )  # fmt: skip
    url = own_server.url
    async with AsyncExitStack() as fleet:
        for number, kind in enumerate(kinds):
            beat = Heartbeat(kind.create(f"工作-{number}"), redis=url, ttl=30 - number)
            await fleet.enter_async_context(beat)
            await beat.ready(10)
        generic = await fleet.enter_async_context(
            Heartbeat("下载", "上海-1", redis=url)
        )
        generic.update(page=7)
        await generic.ready(10)
        cache = await fleet.enter_async_context(FunctionCache(url))

        @cache.cached(ttl=60, lock=True)
        async def day_bars(code: str, n: int = 3) -> dict[str, int]:
            return {code: n}

        assert await day_bars("000001.SZ") == {"000001.SZ": 3}
        tasks = await fleet.enter_async_context(TaskStatus(url))
        await tasks.set("t-1", "回测中", progress=30, message="一半")
        await tasks.update("t-1", progress=100.0, owner="回测-1")
        backtests = await fleet.enter_async_context(BacktestProgress(url))
        await backtests.set("t-1", 12.5)
        days = await fleet.enter_async_context(SyncProgress(url))
        await days.add("tick", "000001.SZ", ["2026-01-12", "2026-01-13"])
        report = await examine(url)
        assert findings(report) == []
        assert report.keys["owner"] >= 5
        assert report.keys["func_cache"] == 1
        assert {row for row in KEYS if row.endswith("_heartbeat")} - report.keys.keys() == {
            "component_heartbeat", "process_heartbeat",
        }  # fmt: skip
    report = await examine(url)
    assert findings(report) == []
    assert report.keys["scheduler_heartbeat"] == 0


async def test_live_runs(own_server: DevServer) -> None:
    """Run events keep their protocol: meanwhile, and afterwards."""
    url = own_server.url
    async with EventStore(url) as store:
        await store.add_many(1, [("dispatch", "assigned", {"to": "研究小组"})] * 3)
        async with store.run(2, source={"agent_name": "分析师"}) as run:
            run.emit("llm", "stream", {"text": "茶"})
            async with store.run(2, lifecycle=False) as other:
                other.emit("agent", "reasoning", {"text": "雨"})
                await other.flush(10)
            await run.flush(10)
            async with store.run(3):
                report = await examine(url)
        assert findings(report) == []
        assert report.keys["run_events"] == report.keys["run_books"] == 3
        assert report.keys["owner"] == 2
    report = await examine(url)
    assert findings(report) == []
    assert report.keys["owner"] == 0


async def test_live_crawlers(own_server: DevServer) -> None:
    """Queues, filters and leases keep their protocol: waiting, taken, delayed, failed."""
    url = own_server.url
    async with (
        RequestQueue(url, "新闻", "daily", max_retries=0) as queue,
        RequestQueue(url, "{论坛}") as patient,
        SeenFilter(url, "新闻", ttl=60) as seen,
    ):
        for number in range(5):
            page = CrawlRequest(f"https://news.example/{number}")
            await queue.push(page, unique=True)
            await patient.push(page)
            await seen.add(page)
        for one in (queue, patient):
            async with one.take(5) as taken:
                assert taken is not None
                await taken.fail("HTTP 503")
        async with queue.take(5), patient.take(5):
            report = await examine(url)
        assert findings(report) == []
        assert report.keys["crawl_leases"] == report.keys["crawl_wake"] == 2
        assert report.keys["crawl_failed"] == report.keys["crawl_delayed"] == 1
        assert not report.foreign
    assert findings(await examine(url)) == []


async def test_one_project_alone(admin: Redis, own_server: DevServer) -> None:
    """Of the others nothing is said; twins of the project are its own."""
    for project in ("订单系统", "库存系统"):
        await execute(admin, "SET", f"{project}_项目状态", "?", "EX", 60)
        await execute(admin, "SET", f"{project}_控制".encode("gbk"), "x")
        place = f"bls_agent:{{{project}_控制}}:dead"
        await execute(admin, "RPUSH", place, "x")
    report = await examine(own_server.url, project="订单系统")
    twin = "订单系统_控制".encode("gbk").decode("utf-8", "surrogateescape")
    assert set(findings(report)) == {
        ("status-unknown", "订单系统_项目状态"),
        ("twin-key", twin),
        ("dead-letters", "bls_agent:{订单系统_控制}:dead"),
    }
    assert report.seen == 3


WRITING = {"set", "del", "expire", "persist", "rpush", "lpop", "eval", "evalsha"}


@needs_selectors
async def test_it_only_reads(admin: Redis, own_server: DevServer) -> None:
    """Of all commands it sends, none may write, and every key stays as it was."""
    for row in KEYS:
        for request in good(row):
            await execute(admin, *request)
    for plant in PLANTS:
        if not plant.rule.endswith(("uncapped", "backlog", "too-long")):
            for request in plant.requests():
                await _plant(admin, request)
    before = await _everything(admin)
    await execute(admin, "CONFIG", "RESETSTAT")
    report = await examine(own_server.url, project="")
    assert len(report.groups) > 10
    stats = await admin.info("commandstats")
    sent = {str(name).removeprefix("cmdstat_") for name in stats}
    for name in sent - {"config|resetstat", "info"}:
        described = await execute(admin, "COMMAND", "INFO", name)
        flags = {str(flag) for one in described.values() for flag in one["flags"]}
        assert flags
        assert "write" not in flags, name
        assert not name.startswith(("keys", "eval", "fcall", "multi"))
    assert not sent & WRITING
    assert {"scan", "pttl", "getrange"} <= sent
    assert await _everything(admin) == before


async def _plant(redis: Redis, request: tuple[object, ...]) -> None:
    """Plant as far as the types of keys that are there already allow."""
    try:
        await execute(redis, *request)
    except ResponseError:
        return


async def _everything(redis: Redis) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {}
    for key in await execute(redis, "KEYS", "*"):
        expiry = await execute(redis, "PEXPIRETIME", key)
        found[key] = (await redis.dump(key), expiry)
    return found


@pytest.mark.skipif(server_version() < (7, 2), reason="NO-TOUCH came with 7.2")
async def test_reading_makes_no_key_younger(
    admin: Redis, own_server: DevServer
) -> None:
    """What an LRU policy would evict next stays what it was (Redis 7.2, Valkey)."""
    await admin.set("订单系统_项目状态", "离线")

    async def is_idle() -> bool:
        return int(await admin.object("IDLETIME", "订单系统_项目状态")) >= 1

    await eventually(is_idle)
    await examine(own_server.url)
    assert await is_idle()


async def test_large_values_cost_nothing(admin: Redis, own_server: DevServer) -> None:
    """A long list, a heavy string and heavy elements: a little of each is read."""
    script = (
        "local v = string.rep('x', ARGV[1])"
        " for i = 1, ARGV[2] do redis.call('RPUSH', KEYS[1], v) end"
    )
    for _ in range(30):  # each within the client's own deadline, on a busy machine, too
        await admin.eval(script, 1, "a_项目控制台", 100, 10_000)
    await admin.eval(script, 1, "b_项目控制台", 5_000_000, 4)
    await admin.setrange("ginkgo:task_status:1", 50_000_000, "x")
    await admin.expire("ginkgo:task_status:1", 60)
    await execute(admin, "CONFIG", "RESETSTAT")
    before = int((await admin.info("stats"))["total_net_output_bytes"])
    report = await examine(own_server.url)
    sent = int((await admin.info("stats"))["total_net_output_bytes"]) - before
    assert sent < 2_000_000
    assert {("log-too-long", "b_项目控制台"), ("log-uncapped", "a_项目控制台")} <= set(
        findings(report)
    )


async def test_what_is_shown_is_bounded(admin: Redis, own_server: DevServer) -> None:
    """Of one rule 20 findings are kept, and all are counted."""
    await admin.mset({f"p{n}_项目状态": "在线" for n in range(1_500)})
    seen: list[tuple[int, int]] = []
    report = await examine(own_server.url, progress=lambda *told: seen.append(told))
    group = {group.rule: group for group in report.groups}["status-untimed"]
    assert (group.count, len(group.findings), group.more) == (1_500, 20, 1_480)
    assert report.count(Severity.NOTE) >= 1_500
    assert seen[-1] == (1_500, 1_500)
    assert seen == sorted(seen)


async def test_redis_dies_in_between(admin: Redis, own_server: DevServer) -> None:
    """Half a look is no report: an outage is an outage."""
    await admin.mset({f"p{n}_项目状态": "离线" for n in range(5_000)})

    def kill(seen: int, total: int) -> None:
        if seen < total:
            own_server.kill()

    with pytest.raises(RedisUnavailableError) as caught:
        await examine(own_server.url, progress=kill)
    assert caught.value.kind == "connection"
