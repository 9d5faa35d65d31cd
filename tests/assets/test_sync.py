"""Synchronising: what is written, what is kept, what a failure leaves behind."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import settings
from redis.asyncio import Redis

from bls_agent import (
    LeaseHeldError,
    ProjectAgent,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.assets import (
    AssetSync,
    DirectorySource,
    Head,
    SourceFile,
    SyncReport,
    SyncStep,
)
from bls_agent.devserver import DevServer
from tests.assets.memory_source import MemorySource, manifest
from tests.harness import eventually
from tests.kit import Cut, Direction, FaultProxy, Late
from tests.programs import run_python

STATE = "asset:sync:state"
REPORT = "bls_agent:{asset:sync:state}:report"
OWNER = "bls_agent:{asset:sync:state}:owner"
TOOL = b"""\
{id: t, version: 1.0.0, category: tool, name: t,
 config_schema: [{name: a, label: a, type: string}],
 agent_specs: {function_name: t, description: t, parameters: {type: object}},
 runtime: {language: python, entry: main.py}}
"""


@pytest.fixture
def source() -> MemorySource:
    """Ten prompts, a to j."""
    return MemorySource({f"{name}.yaml": manifest(name) for name in "abcdefghij"})


@pytest.fixture
async def sync(own_server: DevServer, source: MemorySource) -> AsyncIterator[AssetSync]:
    async with AssetSync(own_server.url, source) as opened:
        yield opened


async def ids(sync: AssetSync) -> str:
    return "".join(one.id for one in await sync.library.list())


async def is_idle(sync: AssetSync) -> bool:
    return (await sync.library.sync_state()).sync_status == "idle"


async def commit_of(sync: AssetSync) -> str:
    return (await sync.library.sync_state()).last_commit_sha


async def test_first_and_next(
    sync: AssetSync, source: MemorySource, admin: Redis
) -> None:
    """All files at first, then the changed ones alone, then none; the state says it."""
    report = await sync.run()
    assert (report.status, report.created, report.total) == (
        "complete",
        tuple("abcdefghij"),
        10,
    )
    state = await sync.library.sync_state()
    assert state.last_commit_sha == report.commit == (await source.head()).commit
    assert state.synced_count == 10
    assert state.sync_status == "idle"
    assert state.last_sync_time is not None
    assert abs(state.last_sync_time - (await admin.time())[0]) <= 1
    assert set(await admin.hgetall(STATE)) == {
        b"last_sync_time", b"last_commit_sha", b"synced_count", b"sync_status"
    }  # fmt: skip
    assert state.report is not None
    assert replace(state.report, seconds=0) == replace(report, seconds=0)
    source.asked.clear()
    before = await admin.info("commandstats")
    assert (await sync.run()).status == "unchanged"
    assert source.asked == ["head"]
    stats = await admin.info("commandstats")
    calls = {
        name: stats[name]["calls"] - before.get(name, {"calls": 0})["calls"]
        for name in stats
    }
    assert sum(calls.values()) <= 15
    assert "cmdstat_hset" not in {name for name, count in calls.items() if count}
    source.files["a.yaml"] = manifest("a", "1.1.0", "skill")
    source.files["k.yaml"] = manifest("k")
    del source.files["b.yaml"]
    source.asked.clear()
    report = await sync.run()
    assert (report.created, report.updated, report.deleted) == (("k",), ("a",), ("b",))
    assert source.asked == ["head", "tree", "fetch", "a.yaml", "k.yaml"]
    assert await ids(sync) == "acdefghijk"
    assert await sync.library.changes(3) == ["a", "k", "b"]
    assert [one.id for one in await sync.library.list("skill")] == ["a"]


async def test_a_broken_file_keeps_its_asset(
    sync: AssetSync, source: MemorySource, admin: Redis
) -> None:
    """No parsing, no validity, no download, half a download, a link: all others go on.

    While the id of a file cannot be read, nothing is deleted.
    """
    await sync.run()
    first = await commit_of(sync)
    before = {name: await sync.library.get(name) for name in "abcde"}
    source.files |= {
        "a.yaml": b"id: [", "b.yaml": b"id: b\nversion: x\nname: b\ncategory: prompt",
        "c.yaml": manifest("c", "2.0.0"), "d.yaml": manifest("d", "2.0.0"), "e.yaml": b"../x",
        "f.yaml": manifest("f", "2.0.0"), "k.yaml": manifest("k"),
    }  # fmt: skip
    source.failing, source.torn, source.links = {"c.yaml"}, {"d.yaml"}, {"e.yaml"}
    del source.files["j.yaml"]
    report = await sync.run()
    assert report.status == "failed"
    assert (report.created, report.updated, report.deleted) == (("k",), ("f",), ())
    assert report.kept == tuple("abcdej")
    assert {fault.path: fault.line for fault in report.broken} == {
        "a.yaml": 1, "b.yaml": 2, "c.yaml": 0, "d.yaml": 0, "e.yaml": 0,
    }  # fmt: skip
    assert all(fault.reason for fault in report.broken)
    assert {name: await sync.library.get(name) for name in "abcde"} == before
    state = await sync.library.sync_state()
    assert (state.sync_status, state.last_commit_sha) == ("failed", first)
    assert state.report is not None
    assert state.report.broken == report.broken
    assert "5 files could not be used" in state.report.reason
    source.asked.clear()
    assert (await sync.run()).broken == report.broken
    assert source.asked[3:] == ["a.yaml", "b.yaml", "c.yaml", "d.yaml"]
    source.failing, source.torn, source.links = set(), set(), set()
    source.files |= {f"{name}.yaml": manifest(name, "3.0.0") for name in "abe"}
    report = await sync.run()
    assert (report.status, report.updated) == ("complete", tuple("abcde"))
    assert report.deleted == ("j",)
    assert await commit_of(sync) == report.commit


@pytest.mark.parametrize("step", ["head", "tree", "fetch"])
async def test_a_source_that_fails(
    sync: AssetSync, source: MemorySource, step: str
) -> None:
    """Nothing is touched, the reason is kept, and it is tried again."""
    await sync.run()
    commit = await commit_of(sync)
    source.files["a.yaml"] = manifest("a", "2.0.0")
    source.failing = {step}
    report = await sync.run()
    assert (report.status, report.reason) == ("failed", "memory: 502; try again in 7 s")
    state = await sync.library.sync_state()
    assert (state.sync_status, state.last_commit_sha) == ("failed", commit)
    assert state.report is not None
    assert state.report.reason == report.reason
    source.failing = set()
    assert (await sync.run()).updated == ("a",)
    assert (await sync.library.sync_state()).sync_status == "idle"


async def test_many_deletions_need_force(sync: AssetSync, source: MemorySource) -> None:
    """More than a fifth, or an empty repository, changes nothing; a fifth is fine."""
    await sync.run()
    files = dict(source.files)
    for gone in ("abc", "abcdefghij"):
        source.files = {
            path: text for path, text in files.items() if path[0] not in gone
        }
        source.files["new.yaml"] = manifest("new")
        report = await sync.run()
        assert report.status == "failed"
        assert f"{len(gone)} of 10 assets would be deleted" in report.reason
        assert (report.created, report.deleted, report.kept) == ((), (), tuple(gone))
        assert await ids(sync) == "abcdefghij"
    source.files = {path: text for path, text in files.items() if path[0] not in "ab"}
    assert (await sync.run()).deleted == ("a", "b")
    source.files = {}
    report = await sync.run(force=True)
    assert (report.status, report.total) == ("complete", 0)
    assert await ids(sync) == ""


async def test_two_files_with_one_id(sync: AssetSync, source: MemorySource) -> None:
    """Both are named, the asset stays as it is, run after run; renaming one ends it."""
    await sync.run()
    before = await sync.library.get("a")
    source.files["z/a.yaml"] = manifest("a", "9.0.0")
    for _ in range(2):
        report = await sync.run()
        assert [fault.path for fault in report.broken] == ["a.yaml", "z/a.yaml"]
        assert (report.status, report.kept, report.updated) == ("failed", ("a",), ())
        assert await sync.library.get("a") == before
    source.files["z/a.yaml"] = manifest("z")
    assert (await sync.run()).created == ("z",)


async def test_moved_and_renamed(sync: AssetSync, source: MemorySource) -> None:
    """A file that moves keeps its asset; one whose id changes leaves none behind."""
    await sync.run()
    before = await sync.library.get("a")
    source.files["tools/a.yaml"] = source.files.pop("a.yaml")
    source.files["b.yaml"] = manifest("new")
    report = await sync.run()
    assert (report.updated, report.created, report.deleted) == (
        ("a",),
        ("new",),
        ("b",),
    )
    after = await sync.library.get("a")
    assert before is not None
    assert after is not None
    assert after.github_path == "tools/a.yaml"
    assert after.created_at == before.created_at
    source.files["c2.yaml"] = b"id: ["
    del source.files["c.yaml"]
    report = await sync.run()
    assert (report.kept, report.deleted) == (("c",), ())
    source.files["c2.yaml"] = b"id: c\nversion: 1"
    del source.files["d.yaml"]
    report = await sync.run()
    assert (report.kept, report.deleted) == (("c",), ("d",))


async def test_moved_onto_the_path_of_another_asset(
    sync: AssetSync, source: MemorySource
) -> None:
    """If the moved file cannot be downloaded, its asset is kept, and so is the other."""
    await sync.run()
    before = await sync.library.get("b")
    source.files["a.yaml"] = source.files.pop("b.yaml")
    source.failing = {"a.yaml"}
    report = await sync.run()
    assert (report.status, report.kept, report.deleted) == ("failed", ("a", "b"), ())
    assert await sync.library.get("b") == before
    assert await ids(sync) == "abcdefghij"
    source.failing = set()
    report = await sync.run()
    assert (report.status, report.updated, report.deleted) == (
        "complete",
        ("b",),
        ("a",),
    )
    after = await sync.library.get("b")
    assert before is not None
    assert after is not None
    assert after.github_path == "a.yaml"
    assert after.created_at == before.created_at


async def test_another_base_path_is_a_change(
    sync: AssetSync, source: MemorySource
) -> None:
    """Of the same commit, too: a wrong folder of the first run hides no asset later."""
    source.files = {f"lib/{path}": text for path, text in source.files.items()}
    source.files["docs/page.yaml.txt"] = b"no manifest"
    source.base_path = "docs"
    report = await sync.run()
    assert (report.status, report.total, report.base_path) == ("complete", 0, "docs")
    source.base_path = "lib"
    assert (await sync.run(dry_run=True)).created == tuple("abcdefghij")
    report = await sync.run()
    assert (report.status, report.total) == ("complete", 10)
    assert (await sync.run()).status == "unchanged"
    state = await sync.library.sync_state()
    assert state.report is not None
    assert state.report.base_path == "lib"


async def test_what_others_broke_is_mended(
    sync: AssetSync, source: MemorySource, admin: Redis
) -> None:
    """With the next commit, or at once by force; what is equal is not written."""
    await sync.run()
    await admin.delete("asset:metadata:a")
    await admin.hset("asset:index", "b", "{")
    await admin.srem("asset:category:prompt", "c")
    await admin.sadd("asset:category:tool", "d")
    await admin.hset("asset:metadata:e", "name", "other")
    await admin.hset("asset:index", mapping={b"x": b"{}", b"\xff": b"{}"})
    source.files["f.yaml"] = manifest("f", "2.0.0")
    report = await sync.run()
    assert (report.created, report.updated) == (("a",), tuple("bcdef"))
    assert report.deleted == ("x",)
    changes = await admin.llen("asset:sync:changed")
    await admin.set("asset:metadata:g", "", get=False)
    await admin.delete("asset:metadata:g", "asset:metadata:h")
    await admin.set("asset:metadata:g", "somebody's")
    report = await sync.run(force=True)
    assert (report.created, report.updated) == (("h",), ())
    assert report.status == "failed"
    assert "wrong_type" in report.broken[0].reason
    assert await admin.llen("asset:sync:changed") == changes + 1
    await admin.delete("asset:metadata:g")
    assert (await sync.run()).created == ("g",)


@pytest.mark.parametrize(
    "spoil",
    [("HSET", "agent_specs", "{broken"), ("HSET", "config_schema", "{}"), ("HDEL", "runtime"),
     ("HSET", "created_at", "yesterday")],
    ids=["broken", "type", "gone", "time"],
)  # fmt: skip
async def test_a_damaged_hash_is_mended(
    sync: AssetSync, source: MemorySource, admin: Redis, spoil: tuple[str, ...]
) -> None:
    """With the next commit, or at once by force, though its file has not changed."""
    source.files["t.yaml"] = TOOL
    await sync.run()
    client: Any = admin
    before = await client.hgetall("asset:metadata:t")

    async def damage() -> None:
        command, *words = spoil
        await client.execute_command(command, "asset:metadata:t", *words)

    async def mended() -> Any:
        found = await client.hgetall("asset:metadata:t")
        kept = () if "created_at" in spoil else (b"created_at",)
        names = before.keys() - {b"updated_at", b"created_at"} | set(kept)
        assert {name: found[name] for name in names} == {
            name: before[name] for name in names
        }
        return found

    await damage()
    assert (await sync.run()).status == "unchanged"
    source.files["k.yaml"] = manifest("k")
    report = await sync.run()
    assert (report.created, report.updated) == (("k",), ("t",))
    assert (await mended())[b"created_at"].isdigit()
    await damage()
    assert (await sync.run(force=True)).updated == ("t",)
    await mended()


async def test_a_name_that_is_no_text(tmp_path: Path, own_server: DevServer) -> None:
    """A file or folder whose name is no UTF-8 is one broken file in the report."""
    (tmp_path / "a.yaml").write_bytes(manifest("a"))
    (tmp_path / os.fsdecode(b"\xfe")).mkdir()
    for name in (b"\xff.yaml", b"\xfe/b.yaml"):
        (tmp_path / os.fsdecode(name)).write_bytes(manifest("b"))
    async with AssetSync(own_server.url, DirectorySource(tmp_path)) as sync:
        report = await sync.run()
        assert (report.status, report.created) == ("failed", ("a",))
        assert len(report.broken) == 2
        assert str(report).encode()
        state = await sync.library.sync_state()
        assert (state.sync_status, state.is_interrupted) == ("failed", False)
        assert state.report is not None
        assert state.report.broken == report.broken


async def test_a_reason_that_is_no_text(sync: AssetSync, source: MemorySource) -> None:
    """Whatever a source says of a failure, the state is written."""
    source.name = "folder \udcff"
    source.failing = {"tree"}
    assert (await sync.run()).status == "failed"
    state = await sync.library.sync_state()
    assert state.sync_status == "failed"
    assert state.report is not None
    assert "502" in state.report.reason


async def test_on_a_server_without_scripts(source: MemorySource) -> None:
    """The library is written and read all the same; no lease keeps others out."""
    names = ("EVAL", "EVALSHA")
    options = [word for name in names for word in ("--rename-command", name, "")]
    with DevServer(options=options) as server:
        async with AssetSync(server.url, source, lease=0.3) as sync:
            report = await sync.run()
            assert (report.status, report.created) == ("complete", tuple("abcdefghij"))
            assert (await sync.run()).status == "unchanged"
            del source.files["a.yaml"]
            source.files["b.yaml"] = manifest("b", "2.0.0", "skill")
            report = await sync.run()
            assert (report.updated, report.deleted) == (("b",), ("a",))
            assert await ids(sync) == "bcdefghij"
            assert [one.id for one in await sync.library.list("skill")] == ["b"]
            assert await is_idle(sync)


async def test_a_dry_run_writes_nothing(
    sync: AssetSync, source: MemorySource, admin: Redis
) -> None:
    """It reports the plan, also one that would be refused."""
    report = await sync.run(dry_run=True)
    assert (report.status, report.created) == ("planned", tuple("abcdefghij"))
    assert await admin.keys("*") == []
    await sync.run()
    assert (await sync.run(dry_run=True)).status == "unchanged"
    source.files.clear()
    report = await sync.run(dry_run=True)
    assert report.deleted == tuple("abcdefghij")
    assert "10 of 10" in report.reason


async def test_one_at_a_time(
    sync: AssetSync, own_server: DevServer, admin: Redis
) -> None:
    """A second one is told, or waits; a dead one's lease ends; nothing sticks."""
    await admin.set(OWNER, "another", px=60_000)
    with pytest.raises(LeaseHeldError) as caught:
        await sync.run()
    assert caught.value.remaining is not None
    assert 10 < caught.value.remaining <= 15
    await admin.hset(STATE, "sync_status", "syncing")
    await admin.pexpire(OWNER, 150)
    async with AssetSync(own_server.url, sync.source, wait=5) as patient:
        assert (await patient.run()).status == "complete"
    assert await admin.exists(OWNER) == 0


async def test_a_deposed_one_writes_nothing(
    sync: AssetSync, source: MemorySource, admin: Redis
) -> None:
    """What had the lease and lost it, frozen for a while, stops at its next write."""
    await sync.run()
    source.files["a.yaml"] = manifest("a", "2.0.0")
    commit = await commit_of(sync)

    class Slow(MemorySource):
        async def tree(self, head: Head) -> Sequence[SourceFile]:
            await admin.set(OWNER, "another")
            return await super().tree(head)

    sync.source = Slow(source.files)
    report = await sync.run()
    assert report.status == "failed"
    assert "lease is lost" in report.reason
    asset = await sync.library.get("a")
    assert asset is not None
    assert asset.version == "1.0.0"
    assert await admin.get(OWNER) == b"another"
    assert await commit_of(sync) == commit


async def test_the_lease_is_renewed(
    own_server: DevServer, source: MemorySource, admin: Redis
) -> None:
    """A synchronisation that takes longer than its lease keeps it; lost, it ends."""
    lost = False

    class Slow(MemorySource):
        async def tree(self, head: Head) -> Sequence[SourceFile]:
            for _ in range(6):
                await anyio.sleep(0.1)
                assert await admin.exists(OWNER)
            if lost:
                await admin.delete(OWNER)
                await anyio.sleep_forever()
            return await super().tree(head)

    async with AssetSync(own_server.url, Slow(source.files), lease=0.4) as sync:
        assert (await sync.run()).status == "complete"
        lost = True
        with anyio.fail_after(10):
            report = await sync.run(force=True)
        assert "lease is lost" in report.reason


async def test_an_interruption_is_recorded(
    sync: AssetSync, source: MemorySource, admin: Redis
) -> None:
    """Cancelled, or failed by a fault of the source's own: it says so and lets go."""

    class Hanging(MemorySource):
        async def tree(self, head: Head) -> Sequence[SourceFile]:
            await anyio.sleep_forever()
            return await super().tree(head)

    sync.source = Hanging(source.files)
    with anyio.move_on_after(0.2) as scope:
        await sync.run()
    assert scope.cancelled_caught
    state = await sync.library.sync_state()
    assert state.sync_status == "failed"
    assert state.report is not None
    assert state.report.reason == "it was interrupted"
    assert await admin.exists(OWNER) == 0
    sync.source = source
    source.files = {"a.yaml": None}  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        await sync.run()
    assert await admin.exists(OWNER) == 0


async def test_a_lease_that_was_just_taken_is_given_back(
    own_server: DevServer, source: MemorySource, admin: Redis
) -> None:
    """Cancelled before the reply came that the lease is taken: another one may run at once."""
    async with (
        FaultProxy(own_server.url) as proxy,
        AssetSync(proxy.url, source) as sync,
    ):
        await sync.run()
        proxy.arm(Late(command="EVALSHA", seconds=0.5))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sync.run)

            async def is_taken() -> bool:
                return bool(await admin.exists(OWNER))

            await eventually(is_taken)
            tasks.cancel_scope.cancel()
        async with AssetSync(own_server.url, source) as other:
            assert (await other.run()).status == "unchanged"


async def test_progress(
    sync: AssetSync, source: MemorySource, own_server: DevServer
) -> None:
    """Files and bytes as they come, assets as they are written."""
    steps: list[SyncStep] = []
    async with AssetSync(own_server.url, source, on_progress=steps.append) as told:
        await told.run()
    size = sum(map(len, source.files.values()))
    assert steps[0] == SyncStep("read")
    assert steps[1].done == 1
    assert steps[-2] == SyncStep("download", 10, 10, size)
    assert steps[-1] == SyncStep("write", 10, 10)


async def test_forever(
    own_server: DevServer,
    source: MemorySource,
    admin: Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Changes are records, a failure is one warning, and neither Redis nor source ends it."""
    async with AssetSync(own_server.url, source, timeout=1.0, lease=0.5) as sync:
        with caplog.at_level(logging.INFO, "bls_agent.assets"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sync.run_forever, 0.01)
                await eventually(lambda: len(caplog.records) == 1)
                source.failing = {"tree"}
                source.files["a.yaml"] = b"id: ["
                await eventually(lambda: len(caplog.records) == 2)
                tasks.cancel_scope.cancel()
            async with anyio.create_task_group() as tasks:
                source.failing = set()
                tasks.start_soon(sync.run_forever, 0.01)
                await eventually(lambda: len(caplog.records) == 3)
                source.asked.clear()
                await eventually(lambda: source.asked.count("tree") > 3)
                own_server.kill()
                await eventually(lambda: len(caplog.records) == 4)
                own_server.restart()
                source.files["a.yaml"] = manifest("a", "2.0.0")
                await eventually(
                    lambda: (
                        len(caplog.records) >= 5
                        and caplog.records[-1].levelname == "INFO"
                    )
                )
                tasks.cancel_scope.cancel()
        texts = [record.getMessage() for record in caplog.records]
        assert "10 created, 0 updated, 0 deleted" in texts[0]
        assert "502" in texts[1]
        assert "a.yaml:1" in texts[2]
        assert "1 updated" in texts[-1]


@pytest.mark.parametrize(
    ("step", "wait", "pause"), [("head", 9e9, 3_600), ("a.yaml", 70, 70), ("", 70, 6)]
)
async def test_how_long_forever_pauses(
    sync: AssetSync,
    source: MemorySource,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    wait: float,
    pause: float,
) -> None:
    """As long as the source asks, also for one file, but an hour at most."""
    pauses: list[float] = []
    sleep = anyio.sleep

    async def record(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(min(seconds, 60))

    source.failing, source.wait = {step}, wait
    monkeypatch.setattr(anyio, "sleep", record)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sync.run_forever, 6)
        await eventually(lambda: any(one >= 6 for one in pauses))
        tasks.cancel_scope.cancel()
    assert max(pauses) == pause


async def test_a_state_that_is_somebody_elses(
    sync: AssetSync, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left alone, said once, and tried again until it is away."""
    await admin.set(STATE, "somebody's")
    with pytest.raises(WrongTypeError):
        await sync.run()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sync.run_forever, 0.01)
        await eventually(lambda: "WrongTypeError" in caplog.text)
        assert await admin.get(STATE) == b"somebody's"
        await admin.delete(STATE)
        await eventually(lambda: is_idle(sync))
        tasks.cancel_scope.cancel()
    assert await ids(sync) == "abcdefghij"


async def test_a_report_that_is_somebody_elses(sync: AssetSync, admin: Redis) -> None:
    """It is left alone and named in the report that is returned."""
    await admin.rpush(REPORT, "x")
    report = await sync.run()
    assert report.status == "failed"
    assert REPORT in report.reason
    assert await admin.lrange(REPORT, 0, -1) == [b"x"]
    assert await admin.hget(STATE, "sync_status") == b"failed"
    await admin.delete(REPORT)
    assert (await sync.run()).status == "complete"


async def test_a_lease_that_is_no_lease(sync: AssetSync, admin: Redis) -> None:
    """Its key is named."""
    await admin.rpush(OWNER, "x")
    with pytest.raises(WrongTypeError) as caught:
        await sync.run()
    assert caught.value.key == OWNER
    assert await admin.lrange(OWNER, 0, -1) == [b"x"]


async def test_in_an_agent(
    own_server: DevServer, source: MemorySource, admin: Redis
) -> None:
    """The records stand in the agent's log, over its server and credentials."""
    async with (
        ProjectAgent("资产", redis=own_server.url) as agent,
        AssetSync(agent, source) as sync,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sync.run_forever)
            await eventually(lambda: sync._logged is not None)
            tasks.cancel_scope.cancel()
        await agent.flush()
        records = await admin.lrange("资产_项目控制台", 0, -1)
    assert any(b"10 created" in record for record in records)


CUTS = [  # the first EVALSHA takes the lease, those behind the download write
    pytest.param(command, behind, direction, id=f"{command}-{behind}-{direction.name}")
    for command in ("HGETALL", "HSET", "HMGET", "EVALSHA", "TIME")
    for behind in (["", "download"] if command == "EVALSHA" else [""])
    for direction in Direction
]


@pytest.mark.parametrize(("command", "behind", "direction"), CUTS)
async def test_the_link_is_cut(
    own_server: DevServer,
    source: MemorySource,
    command: str,
    behind: str,
    direction: Direction,
) -> None:
    """In a request or in its reply: the commit is never ahead, the next run completes."""

    cuts = [Cut(command=command, direction=direction, at=3)]

    def arm(step: SyncStep) -> None:
        if step.phase == behind and step.done == step.total and cuts:
            proxy.arm(cuts.pop())

    async with (
        AssetSync(own_server.url, source) as direct,
        FaultProxy(own_server.url) as proxy,
        AssetSync(proxy.url, source, wait=5, lease=1, on_progress=arm) as sync,
    ):
        await direct.run()
        source.files |= {f"{name}.yaml": manifest(name, "2.0.0") for name in "abcde"}
        del source.files["j.yaml"]
        arm(SyncStep(""))
        before = await commit_of(direct)
        try:
            report = await sync.run()
        except RedisUnavailableError:
            report = SyncReport(status="failed")
        state = await direct.library.sync_state()
        assert state.last_commit_sha == (
            report.commit if report.status == "complete" else before
        )
        found = {one.id: one.version for one in await direct.library.list()}
        for name in "abcde":
            asset = await direct.library.get(name)
            assert asset is not None
            assert asset.version == found[name]
        assert (await sync.run()).status in {"complete", "unchanged"}
        assert {one.version for one in await direct.library.list()} == {
            "1.0.0",
            "2.0.0",
        }
        assert await ids(direct) == "abcdefghi"


async def test_redis_forgets(
    sync: AssetSync, source: MemorySource, admin: Redis
) -> None:
    """Emptied, it is filled again, whatever the source says of changes."""
    await sync.run()
    await admin.flushall()
    assert len((await sync.run()).created) == 10


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_killed_between_any_two_writes(own_server: DevServer) -> None:
    """Readers see each asset old or new, the commit is never ahead, the last one completes.

    Every 30th state; all of them with --hypothesis-profile=thorough.
    """
    thorough = settings.default.max_examples > 50 if settings.default else False
    step = 1 if thorough else 30
    words = ("-m", "tests.assets.killed_syncs", own_server.url, str(step))
    ended = run_python(*words, timeout=600)
    assert ended.code == 0
    assert int(ended.out) >= 210 // step
