"""``GET /metrics``: what a scrape holds, for whom, and what it leaves out."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from prometheus_client import parser
from redis.asyncio import Redis

from bls_agent.assets import AssetLibrary
from bls_agent.devserver import DevServer
from bls_agent.ops.fleet import Condition
from bls_agent.ops.web import metrics
from bls_agent.ops.web.auth import parse_users, token_line
from bls_agent.ops.web.exposition import MEDIA_TYPE
from bls_agent.ops.web.feeds import watch
from bls_agent.ops.web.metrics import FAMILIES
from bls_agent.runs import EventStore
from tests.assets.test_library import prompt
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.harness import eventually
from tests.ops.cli.test_acl import leave_a_failure
from tests.ops.web.serving import HASH, OWN, console_of

Samples = dict[tuple[str, ...], float]
parse: Any = parser.text_string_to_metric_families
RUNNING = '{"status": "running"}'
SENT = "2026-01-12T12:35:00.000Z"
PARTS = ("projects", "workers", "tasks", "runs", "crawl", "assets")
PROMTOOL = shutil.which("promtool")
SCRAPER = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}


async def scrape(client: httpx.AsyncClient, **headers: str) -> Samples:
    """Name and values of labels of each sample → value."""
    answer = await client.get("/metrics", headers=SCRAPER | headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, MEDIA_TYPE)
    return samples_of(answer)


def samples_of(answer: httpx.Response) -> Samples:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(answer.text)
        for sample in family.samples
    }


@pytest.fixture
async def redis(own_server: DevServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(own_server.url, protocol=2) as client:
        yield client


async def test_the_whole_fleet_is_in_one_scrape(
    own_server: DevServer, redis: Redis
) -> None:
    """Each family has its samples, with the states that the pages show."""
    await redis.set("订单系统_项目状态", "在线", ex=60)
    await redis.set("报表_项目状态", "故障", ex=60)
    await redis.rpush("失联_项目控制台", '{"message": "x"}')
    await redis.rpush("订单系统_控制", f'{{"id": "1", "timestamp": "{SENT}"}}', "{}")
    await redis.rpush("bls_agent:{订单系统_控制}:dead", "{}", "{}", "{}")
    for worker, ttl in (("甲", 60), ("乙", 9)):
        await redis.set(f"heartbeat:下载:{worker}", RUNNING, ex=ttl)
    await redis.set("ginkgo:task_status:均线-7", "running", ex=60)
    async with EventStore(own_server.url) as store:
        await store.add(7, "llm", "stream", {"text": "你好"})
    async with AssetLibrary(own_server.url) as library:
        await library.save(prompt("a"), path="a.yaml", sha="1")
    await leave_a_failure(own_server.url)
    expected: Samples = {
        ("bls_console_redis_up",): 1,
        ("bls_project_up", "订单系统"): 1,
        ("bls_project_up", "报表"): 1,
        ("bls_project_up", "失联"): 0,
        ("bls_project_status", "失联", "stale"): 1,
        ("bls_project_queue_length", "订单系统"): 2,
        ("bls_project_queue_age_seconds", "报表"): 0,
        ("bls_project_errors_total", "失联"): 0,
        ("bls_dead_letters", "订单系统"): 3,
        ("bls_worker_up", "下载", "甲"): 1,
        ("bls_worker_up", "下载", "乙"): 0,
        ("bls_tasks", "running"): 1,
        ("bls_tasks", "failed"): 0,
        ("bls_runs", "open"): 1,
        ("bls_crawl_queue_length", "news", "", "failed"): 1,
        ("bls_crawl_requests_total", "news", "", "pushed"): 1,
        ("bls_asset_sync_status", "never"): 1,
        **{("bls_console_part_up", part): 1 for part in PARTS},
        **{
            ("bls_project_status", "订单系统", state): state is Condition.ONLINE
            for state in Condition
        },
    }
    async with console_of(own_server.url) as client:
        first = await scrape(client)
        assert {key: first.get(key) for key in expected} == expected
        assert 0 <= first["bls_project_status_age_seconds", "订单系统"] < 60
        assert ("bls_asset_sync_age_seconds",) not in first

        errors = [f'{{"level": "error", "message": "{number}"}}' for number in range(3)]
        await redis.rpush("失联_项目控制台", *errors)
        await redis.hset("asset:sync:state", "sync_status", "idle")
        await redis.hset("asset:sync:state", "last_sync_time", "1768221300")

        async def is_read() -> bool:
            now = await scrape(client)
            return (
                now["bls_project_errors_total", "失联"] == 3
                and now.get(("bls_project_queue_age_seconds", "订单系统"), 0) > 10**7
                and now.get(("bls_asset_sync_age_seconds",), 0) > 10**7
            )

        await eventually(is_read)
        answer = await client.get("/metrics", headers={"accept": "text/plain"})
    names = {name for name, *_ in samples_of(answer)}
    assert names == {family.name for family in FAMILIES}
    if PROMTOOL:
        lint = [PROMTOOL, "check", "metrics"]
        checked = subprocess.run(
            lint, check=False, input=answer.content, capture_output=True
        )
        assert (checked.returncode, checked.stderr) == (0, b"")


async def test_while_redis_is_away_nothing_is_claimed(
    own_server: DevServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first read and in an outage a scrape says so, and has nothing else."""
    monkeypatch.setattr(watch, "READY", 0.05)
    await redis.set("订单系统_项目状态", "在线", ex=60)
    nothing = {("bls_console_redis_up",): 0} | {
        ("bls_console_part_up", part): 0 for part in PARTS
    }
    own_server.freeze()
    async with console_of(own_server.url) as client:
        assert await scrape(client) == nothing
        own_server.thaw()

        async def knows_all() -> bool:
            now = await scrape(client)
            ups = [now["bls_console_part_up", part] for part in PARTS]
            return all(ups) and ("bls_project_up", "订单系统") in now

        await eventually(knows_all)
        own_server.kill()

        async def knows_nothing() -> bool:
            return await scrape(client) == nothing

        await eventually(knows_nothing, timeout=8)  # as soon as one feed knows


async def test_any_name_becomes_a_label(own_server: DevServer, redis: Redis) -> None:
    """Quotes, line ends, bytes that are no UTF-8, 2 kB: each is one series, and parses."""
    names = [*HOSTILE_TEXTS.values(), 'a"b\\n\\\nc', "长" * 700]
    for name in names:
        key = f"{name}_项目状态".encode("utf-8", "surrogatepass")
        await redis.set(key, "在线", ex=60)
    await redis.set("订单".encode("gbk") + "_项目状态".encode(), "在线")
    async with console_of(own_server.url) as client:
        await eventually(lambda: _sees(client, len(names) + 1))
        found = await scrape(client)
    labels = {name for family, name, *_ in _wide(found) if family == "bls_project_up"}
    assert labels >= {*names[:-1], "\\xb6\\xa9\\xb5\\xa5"}
    assert max(len(label.encode()) for label in labels) <= 512


def _wide(found: Samples) -> list[tuple[str, ...]]:
    return [key for key in found if len(key) > 1]


async def _sees(client: httpx.AsyncClient, count: int) -> bool:
    found = await scrape(client)
    return len([key for key in found if key[0] == "bls_project_up"]) == count


async def test_the_number_of_series_has_a_limit(
    own_server: DevServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of too many things the ill ones stay, and the rest is counted."""
    monkeypatch.setattr(metrics, "MOST", 2)
    for number in range(5):
        await redis.set(f"甲{number}_项目状态", "故障" if number > 3 else "在线")
        await redis.set(f"heartbeat:下载:{number}", RUNNING, ex=60 if number < 4 else 5)
    async with console_of(own_server.url) as client:
        found = await scrape(client)
    assert {key for key in found if key[0].endswith("_up") and "甲" in key[-1]} == {
        ("bls_project_up", "甲4"),
        ("bls_project_up", "甲0"),
    }
    assert found["bls_console_left_out", "projects"] == 3
    assert found["bls_console_left_out", "workers"] == 3
    assert found["bls_worker_up", "下载", "4"] == 0


async def test_a_token_is_enough_to_scrape(own_server: DevServer, redis: Redis) -> None:
    """With the roles of its line, at no page, and in no login of people."""
    for name in ("订单系统", "机密系统"):
        await redis.set(f"{name}_项目状态", "在线")
    users = parse_users(
        "\n".join(
            (
                f"值班:{HASH}",
                token_line("prometheus", "x" * 43, "viewer"),
                token_line("订单组", "b" * 43, "viewer=订单*"),
                token_line("外人", "c" * 43, "viewer=无*"),
            )
        )
    )
    async with console_of(own_server.url, users=users) as client:

        def bearer(token: str) -> dict[str, str]:
            return {"authorization": f"Bearer {token}"}

        whole = await scrape(client, **bearer("b" * 43))
        assert ("bls_project_up", "订单系统") in whole
        assert ("bls_project_up", "机密系统") not in whole
        assert "bls_runs" not in {name for name, *_ in whole}
        nothing = await scrape(client, **bearer("c" * 43))
        assert not {name for name, *_ in nothing if "console" not in name}
        for headers, path, status in (
            ({}, "/metrics", 401),
            (bearer("a" * 43), "/metrics", 401),
            (bearer(users["prometheus"].hash), "/metrics", 401),
            (bearer("b" * 43), "/api/projects", 200),
            (bearer("b" * 43), "/api/runs", 403),
            (bearer("b" * 43), "/", 303),
        ):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == status, (path, headers)
        form = {"user": "订单组", "password": "b" * 43, "next": "/"}
        answer = await client.post("/login", data=form, headers={"origin": OWN})
        assert answer.status_code == 401
        basic = httpx.BasicAuth("订单组", "b" * 43)
        assert (await client.get("/metrics", auth=basic)).status_code == 401
