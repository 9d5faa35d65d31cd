"""What is wrong with a server: decided from what it says, and asked of real ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import anyio
import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from bls_agent import ProjectAgent
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.doctor.report import Report, word
from bls_agent.ops.doctor.server import SERVER_RULES, Facts
from bls_agent.ops.texts import LANGUAGES, load_texts
from tests.harness import (
    PASSWORD,
    eventually,
    execute,
    needs_selectors,
    url_with_rights,
)
from tests.kit import HurtableServer
from tests.ops.doctor.plants import (
    CONTROL,
    LONG_AGO,
    PLACE,
    PROJECT,
    STATUS,
    command,
    record,
)

SAVING = ("--save", "3600", "1")
GOOD = {
    "redis_version": "7.0.15", "aof_enabled": "1", "role": "master", "loading": "0",
    "used_memory": "500", "connected_clients": "5", "rdb_last_bgsave_status": "ok",
}  # fmt: skip


def facts(
    info: Mapping[str, str] = {}, config: Mapping[str, str] = {}, **more: Any
) -> Facts:
    return Facts(address="redis://r", info=GOOD | dict(info), config=config, **more)


LIMIT = {"maxmemory": "1000"}
CASES: list[tuple[str, Facts]] = [
    ("server-too-old", facts({"redis_version": "4.0.9"})),
    ("server-old", facts({"redis_version": "6.0.16"})),
    ("server-family", facts({"executable": "/usr/bin/keydb-server"})),
    ("server-slow", facts(rtt=0.2)),
    ("server-clock", facts(offset=-3600.0)),
    ("evicts-all", facts(LIMIT | {"maxmemory_policy": "allkeys-lru"})),
    ("evicts-timed", facts(LIMIT | {"maxmemory_policy": "volatile-ttl"})),
    ("memory-full", facts(LIMIT | {"used_memory": "950"})),
    ("clients-full", facts({"connected_clients": "95"}, {"maxclients": "100"})),
    ("not-persistent", facts({"aof_enabled": "0"}, {"save": ""})),
    ("save-failed", facts({"rdb_last_bgsave_status": "err"})),
    ("read-only", facts({"role": "slave", "master_host": "m", "master_port": "1"})),
    ("idle-timeout", facts(config={"timeout": "300"})),
    ("small-bulk", facts(config={"proto-max-bulk-len": "1048576"})),
    ("server-loading", facts({"loading": "1"})),
    ("cluster-fails", facts({"cluster_state": "fail"})),
    ("one-node", facts({"cluster_enabled": "1"}, whole=False)),
    ("not-looked-at", facts(refused={"INFO": "no_permission"})),
]


@pytest.mark.parametrize(("code", "said"), CASES, ids=[code for code, _ in CASES])
def test_a_server_is_judged_by_what_it_says(code: str, said: Facts) -> None:
    """One fault, one finding, in both languages."""
    found = [finding for rule in SERVER_RULES if (finding := rule.judge(said))]
    assert [finding.rule for finding in found] == [code]
    assert all(word(found[0], load_texts("doctor", language)) for language in LANGUAGES)


def test_every_rule_has_a_case() -> None:
    """And a server without a fault breaks none."""
    assert [code for code, _ in CASES] == [rule.code for rule in SERVER_RULES]
    assert not any(rule.judge(facts()) for rule in SERVER_RULES)
    unknown = Facts(address="redis://r")
    assert not any(rule.judge(unknown) for rule in SERVER_RULES)


def test_a_policy_without_a_limit_evicts_nothing() -> None:
    """maxmemory 0 means no limit."""
    said = facts({"maxmemory": "0", "maxmemory_policy": "allkeys-lru"})
    assert not any(rule.judge(said) for rule in SERVER_RULES)


@pytest.mark.parametrize(
    ("info", "family", "version"),
    [
        ({"redis_version": "7.0.15"}, "redis", "7.0.15"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"},
         "valkey", "9.1.2"),
        ({"redis_version": "6.2.11", "dragonfly_version": "df-v1"}, "dragonfly", "6.2.11"),
    ],
    ids=["redis", "valkey", "dragonfly"],
)  # fmt: skip
def test_family_and_version(info: dict[str, str], family: str, version: str) -> None:
    """A Valkey tells its own version and that of the Redis whose commands it knows."""
    said = Facts(address="", info=info)
    assert (said.family, said.version) == (family, version)


def rules_of(report: Report) -> set[str]:
    """What is found, but for what an old server does not tell."""
    return {finding.rule for finding in report.findings}


LIVE = [
    ("not-persistent", ()),
    ("evicts-all", ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")),
    ("evicts-timed", ("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")),
    ("memory-full", ("--maxmemory", "800kb")),
    ("idle-timeout", ("--timeout", "300")),
    ("small-bulk", ("--proto-max-bulk-len", "1mb")),
    ("clients-full", ("--maxclients", "10")),
    ("read-only", ("--replicaof", "127.0.0.1", "1")),
]


@pytest.mark.parametrize(("code", "options"), LIVE, ids=[code for code, _ in LIVE])
async def test_a_real_server_with_a_fault(code: str, options: tuple[str, ...]) -> None:
    """What is wrong by its configuration is found by asking it."""
    saving = SAVING if code != "not-persistent" else ()
    with DevServer(options=(*saving, *options)) as server, ExitStack() as clients:
        for _ in range(8 if code == "clients-full" else 0):
            client = clients.enter_context(SyncRedis.from_url(server.url))
            clients.enter_context(client.client()).ping()
        report = await examine(server.url)
    assert rules_of(report) == {code}
    assert report.healthy is (code in ("not-persistent", "idle-timeout", "small-bulk"))


async def test_a_save_that_failed(own_server: DevServer, admin: Redis) -> None:
    """Its folder cannot be written."""
    await admin.set("订单系统_项目状态", "离线")
    (own_server.folder / "dump.rdb").mkdir()
    (own_server.folder / "dump.rdb" / "x").touch()
    await admin.bgsave()

    async def has_failed() -> bool:
        told = await admin.info("persistence")
        return str(told["rdb_last_bgsave_status"]) == "err"

    await eventually(has_failed)
    assert "save-failed" in rules_of(await examine(own_server.url))


async def test_a_clock_that_is_ahead(own_server: DevServer) -> None:
    """The server's clock counts, and the difference is told."""
    report = await examine(own_server.url, clock=lambda: time.time() - 3600)
    assert rules_of(report) == {"server-clock"}
    assert abs(report.servers[0].offset - 3600) < 5


async def test_a_server_that_is_loading() -> None:
    """It has said what it is; that its keys were not searched is told beside it."""
    with HurtableServer(options=SAVING) as server:
        server.ask("SET", STATUS, "未知")
        loading = server.loading()
        await anyio.to_thread.run_sync(loading.__enter__)
        try:
            report = await examine(server.url)
        finally:
            await anyio.to_thread.run_sync(loading.__exit__, None, None, None)
    slow = {"server-slow"}  # Redis 6.2 answers late while it reads its data
    assert rules_of(report) - slow == {"server-loading", "scan-refused"}
    assert not report.healthy


async def test_a_connection_that_is_lost_during_the_search(
    admin: Redis, own_server: DevServer
) -> None:
    """Another process may have answered the rest, so keys may be missing."""
    await admin.mset({f"filler:{number}": "x" for number in range(3_000)})
    looks = list[int]()

    def cut(seen: int, total: int) -> None:
        looks.append(seen)
        if len(looks) == 1:
            with SyncRedis.from_url(own_server.url) as client:
                client.client_kill_filter(_type="normal", skipme=True)

    report = await examine(own_server.url, progress=cut)
    assert len(looks) > 1
    (found,) = report.findings
    assert (found.rule, found.severity) == ("scan-broken", "warning")
    assert (await examine(own_server.url)).healthy


async def test_commands_of_a_paused_agent(admin: Redis, own_server: DevServer) -> None:
    """They wait, and the doctor says for whom."""
    agent = ProjectAgent(PROJECT, redis=own_server.url, instance="接单 1号")
    async with agent:
        await agent.ready(10)
        await execute(admin, "RPUSH", CONTROL, command(command="pause", args={}))

        async def is_shown() -> bool:
            return bool(await execute(admin, "HLEN", f"{PLACE}:intake"))

        await eventually(is_shown)
        await execute(admin, "RPUSH", CONTROL, command(id="2", timestamp=LONG_AGO))
        report = await examine(own_server.url)
    (found,) = [one for one in report.findings if one.rule == "commands-untaken"]
    assert found.values["status"] == "在线 (接单 1号 paused)"


async def test_nobody_is_there() -> None:
    """An outage is an error of ours, and no report."""
    with pytest.raises(RedisUnavailableError):
        await examine("redis://127.0.0.1:1/0", timeout=1.0)


async def test_a_wrong_password(admin: Redis, own_server: DevServer) -> None:
    """Refused for good."""
    url = await url_with_rights(admin, own_server, "+@all")
    with pytest.raises(RedisRefusedError):
        await examine(url.replace(PASSWORD, "other"))


async def test_an_agents_own_user(admin: Redis, own_server: DevServer) -> None:
    """With no more than that it looks at what it may, and says what it may not."""
    await admin.set(STATUS, "未知")
    rules = ("-@all", "+ping", "+get", "+pttl", "+getrange", f"~{PROJECT}*")
    url = await url_with_rights(admin, own_server, *rules)
    report = await examine(url, project=PROJECT)
    assert rules_of(report) == {
        "keys-unread", "not-looked-at", "scan-refused", "status-unknown"
    }  # fmt: skip
    assert not report.healthy


async def test_without_scan_no_project_is_known(
    admin: Redis, own_server: DevServer
) -> None:
    """Nothing was looked at: that is not healthy."""
    url = await url_with_rights(admin, own_server, "-@all", "+ping", "~*")
    report = await examine(url)
    assert rules_of(report) == {"not-looked-at", "scan-refused"}
    assert not report.healthy


async def test_a_project_that_is_not_there(own_server: DevServer) -> None:
    """A misspelt name is no healthy project."""
    report = await examine(own_server.url, project="订单糸统")
    assert rules_of(report) == {"project-absent"}
    assert not report.healthy


async def test_keys_that_may_not_be_read(admin: Redis, own_server: DevServer) -> None:
    """They are counted, with why."""
    await admin.set(STATUS, "未知")
    await execute(admin, "RPUSH", f"{PROJECT}_控制", "x")
    url = await url_with_rights(admin, own_server, "+@all", "resetkeys", "~别的*")
    report = await examine(url)
    found = [f for f in report.findings if f.rule == "keys-unread"]
    assert [f.values["what"] for f in found] == ["no_permission: 2"]
    assert not report.healthy  # nobody knows what stands there: one is broken


INTERLEAVED = [record(metadata={"agent": agent}) for agent in ("a#1", "b#1", "a#2")]


async def test_who_is_connected_counts(admin: Redis, own_server: DevServer) -> None:
    """A predecessor that still wrote while its successor began is no second agent."""
    await execute(admin, "RPUSH", f"{PROJECT}_项目控制台", *INTERLEAVED)
    await execute(admin, "CLIENT", "SETNAME", "bls-agent:b:data")
    assert "two-agents" not in rules_of(await examine(own_server.url))


@needs_selectors
async def test_without_a_list_of_clients_the_log_counts(
    admin: Redis, own_server: DevServer
) -> None:
    """Whose records come after another's and before it is alive."""
    await execute(admin, "RPUSH", f"{PROJECT}_项目控制台", *INTERLEAVED)
    url = await url_with_rights(admin, own_server, "+@all", "-client|list", "~*")
    assert rules_of(await examine(url)) == {"two-agents"}
    await execute(admin, "LTRIM", f"{PROJECT}_项目控制台", 0, 1)
    assert rules_of(await examine(url)) == set()


async def test_replicas_are_no_fault(admin: Redis, own_server: DevServer) -> None:
    """Who shares a name on purpose has a roster."""
    url = own_server.url
    async with AsyncExitStack() as agents:
        for name in ("eins", "zwei"):
            agent = ProjectAgent(PROJECT, redis=url, instance=name, replicas=True)
            await agents.enter_async_context(agent)
            await agent.ready(10)
            agent.log.info("hier")
            await agent.flush(10)
        assert rules_of(await examine(url)) == set()


async def test_two_agents_of_one_name(admin: Redis, own_server: DevServer) -> None:
    """Real ones, that do not know of each other."""
    url = own_server.url
    async with AsyncExitStack() as agents:
        for name in ("eins", "zwei 号"):
            agent = ProjectAgent(PROJECT, redis=url, instance=name)
            await agents.enter_async_context(agent)
            await agent.ready(10)
            agent.log.info("hier")
            await agent.flush(10)
        found = [f for f in (await examine(url)).findings if f.rule == "two-agents"]
    assert [f.values["instances"] for f in found] == ["eins, zwei 号"]
