"""The rights of a worker, and of whoever looks on, are enough for the room, and no more."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from bls_agent import RedisRefusedError
from bls_agent.core.acl import worker_acl_rules
from bls_agent.core.keys import KEYS, Contract
from bls_agent.devserver import DevServer
from bls_agent.workers import (
    BacktestProgress,
    BacktestWorkerHeartbeat,
    FunctionCache,
    Heartbeat,
    SyncProgress,
    TaskStatus,
    WorkerRegistry,
)
from tests.acl_rules import documented_rules, may, refused
from tests.harness import needs_selectors, url_with_rights


async def write_everything(url: str, name: str) -> None:
    """All that a worker does."""
    async with Heartbeat(url, BacktestWorkerHeartbeat.create(name)) as beat:
        await beat.ready(10)
        async with TaskStatus(url) as tasks, BacktestProgress(url) as backtests:
            await tasks.set("t", "running")
            await tasks.update("t", progress=3)
            await backtests.set("t", 50.0)
            await read_everything(url, name)
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


async def read_everything(url: str, name: str) -> None:
    """All that somebody does who looks on."""
    async with WorkerRegistry(url) as registry:
        assert [one.id for one in await registry.alive()] == [name]
    async with TaskStatus(url) as tasks, BacktestProgress(url) as backtests:
        assert await tasks.get("t") is not None
        assert await backtests.get("t") is not None
        assert await tasks.list()
    async with SyncProgress(url) as days:
        await days.contains("tick", "a", "2026-01-01")
        await days.summary("tick", "a", ["2026-01-01"])


@needs_selectors
@pytest.mark.parametrize("name", ["回测-1", "回测{a}", "a:b*[?]"])
async def test_a_workers_rights_are_enough(
    own_server: DevServer, admin: Redis, name: str
) -> None:
    """Nothing is refused, whatever its id."""
    url = await url_with_rights(admin, own_server, *worker_acl_rules())
    await write_everything(url, name)
    assert await refused(admin) == []


async def test_flat_rules_are_enough(own_server: DevServer, admin: Redis) -> None:
    """For Redis 6, without selectors."""
    rules = worker_acl_rules(selectors=False)
    assert not any("(" in rule for rule in rules)
    url = await url_with_rights(admin, own_server, *rules)
    await write_everything(url, "回测-1")
    assert await refused(admin) == []


@needs_selectors
async def test_whoever_looks_on_cannot_write(
    own_server: DevServer, admin: Redis
) -> None:
    """Everything can be read, nothing written."""
    url = await url_with_rights(admin, own_server, *worker_acl_rules(write=False))
    beat = BacktestWorkerHeartbeat.create("回测-1")
    await admin.set(beat.key, beat.to_json(), ex=30)
    for row in ("task_status", "backtest_task_progress"):
        await admin.set(KEYS[row].build(task_id="t"), '{"status":"running"}', ex=30)
    await admin.sadd("tick_update_a", *(f"{y}-01-01" for y in range(1000, 6000)))
    await read_everything(url, "回测-1")
    assert await refused(admin) == []
    async with TaskStatus(url) as tasks:
        with pytest.raises(RedisRefusedError):
            await tasks.set("t", "failed")


@needs_selectors
async def test_other_keys_stay_closed(own_server: DevServer, admin: Redis) -> None:
    """A worker reaches no key of another contract."""
    await url_with_rights(admin, own_server, *worker_acl_rules())
    for name, row in KEYS.items():
        if row.contract in (Contract.WORKERS, Contract.OWN):
            continue
        key = row.locate(**dict.fromkeys(row.fields, "x"))
        assert not await may(admin, "GETRANGE", key, 0, 1), name
    assert not await may(admin, "KEYS", "*")


def test_the_document_shows_the_rules() -> None:
    """Those of a worker, and of whoever looks."""
    lines = documented_rules()
    assert " ".join(worker_acl_rules()) in lines
    assert " ".join(worker_acl_rules(write=False)) in lines
