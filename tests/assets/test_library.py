"""The library in Redis: bytes of the document, one step for each write, tolerant reading."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, RedisUnavailableError, WrongTypeError
from bls_agent.assets import AssetLibrary, AssetManifest, SyncState, parse_manifest
from bls_agent.assets.library import find_added
from bls_agent.core.errors import RedisRefusedError
from bls_agent.devserver import DevServer
from tests.engines import ClusterTopology
from tests.harness import eventually, url_with_rights

TOOL = """\
id: google_search
version: "1.2.0"
category: tool
name: Google 搜索
description: 在 Google 上搜索内容
author: 数据组
config_schema: [{name: query, label: 搜索词, type: string, required: true}]
agent_specs: {function_name: google_search, description: …, parameters: {type: object}}
runtime: {language: python, entry: main.py, handler: run, dependencies: [requests]}
"""
PATH, SHA = "tools/search/google.yaml", "abc123def456"
Keys = dict[Any, Any]


@pytest.fixture
async def library(own_server: DevServer) -> AsyncIterator[AssetLibrary]:
    async with AssetLibrary(own_server.url) as opened:
        yield opened


def tool(**changes: object) -> AssetManifest:
    """The document's example, changed."""
    fields = parse_manifest(TOOL.encode(), PATH).model_dump(exclude_unset=True)
    kept = {
        name: value for name, value in (fields | changes).items() if value is not ...
    }
    return AssetManifest.model_validate(kept)


def prompt(asset_id: str, **fields: str) -> AssetManifest:
    given = {"id": asset_id, "version": "1.0.0", "category": "prompt", "name": asset_id}
    return AssetManifest.model_validate(given | fields)


async def everything(admin: Any) -> Keys:
    """Every key, as a reader of the document sees it."""
    found: Keys = {}
    for key in sorted(await admin.keys("asset:*")):
        match await admin.type(key):
            case b"hash":
                found[key.decode()] = await admin.hgetall(key)
            case b"set":
                found[key.decode()] = await admin.smembers(key)
            case _:
                found[key.decode()] = await admin.lrange(key, 0, -1)
        assert await admin.ttl(key) == -1
    return found


async def test_what_is_saved_is_read(library: AssetLibrary, admin: Redis) -> None:
    """Each field, as it was saved; both times are the server's."""
    assert await library.save(tool(), path=PATH, sha=SHA) == "created"
    now, _ = await admin.time()
    asset = await library.get("google_search")
    assert asset is not None
    assert asset.name == "Google 搜索"
    saved = tool().model_dump(exclude_unset=True)
    assert asset.config_schema == saved["config_schema"]
    assert asset.agent_specs == saved["agent_specs"]
    assert asset.runtime == saved["runtime"]
    assert (asset.github_path, asset.github_sha) == (PATH, SHA)
    assert asset.created_at == asset.updated_at
    assert asset.created_at is not None
    assert abs(now - asset.created_at) <= 1
    assert await library.get("nothing") is None


async def test_what_a_change_changes(library: AssetLibrary, admin: Redis) -> None:
    """created_at stays, removed fields go, the category moves; others' fields stay."""
    await library.save(tool(), path=PATH, sha="1")
    key = "asset:metadata:google_search"
    await admin.hset(
        key, mapping={"created_at": "1704067200", "updated_at": "1", "stars": "5"}
    )
    changed = tool(category="skill", author=..., runtime=..., config_schema=[])
    assert await library.save(changed, path=PATH, sha="2") == "updated"
    fields = await admin.hgetall(key)
    assert fields[b"created_at"] == b"1704067200"
    assert int(fields[b"updated_at"]) > 1704067200
    assert fields[b"stars"] == b"5"
    assert not {b"author", b"runtime", b"config_schema"} & set(fields)
    assert await admin.smembers("asset:category:skill") == {b"google_search"}
    assert await admin.exists("asset:category:tool") == 0
    assert [one.category for one in await library.list()] == ["skill"]
    assert await library.changes() == ["google_search"] * 2


async def test_saving_again_changes_nothing(
    library: AssetLibrary, admin: Redis
) -> None:
    """So a save may be repeated; but what somebody broke meanwhile is mended."""
    await library.save(tool(), path=PATH, sha=SHA)
    before = await everything(admin)
    assert await library.save(tool(), path=PATH, sha=SHA) == "same"
    assert await everything(admin) == before
    await admin.hdel("asset:index", "google_search")
    await admin.srem("asset:category:tool", "google_search")
    await admin.sadd("asset:category:prompt", "google_search")
    await admin.hset("asset:metadata:google_search", "created_at", "yesterday")
    assert await library.save(tool(), path=PATH, sha=SHA) == "updated"
    found = await everything(admin)
    assert found["asset:index"] == before["asset:index"]
    assert found["asset:category:tool"] == {b"google_search"}
    assert "asset:category:prompt" not in found
    assert found["asset:metadata:google_search"][b"created_at"].isdigit()


async def test_deleting(library: AssetLibrary, admin: Redis) -> None:
    """All of it goes, also what is left of one; the change is told."""
    await library.save(tool(), path=PATH, sha=SHA)
    assert await library.delete("google_search")
    assert not await library.delete("google_search")
    assert await everything(admin) == {"asset:sync:changed": [b"google_search"] * 2}
    await admin.sadd("asset:category:skill", "half")
    assert await library.delete("half")
    assert await admin.exists("asset:category:skill") == 0


async def test_a_thousand_changes_are_kept(library: AssetLibrary, admin: Redis) -> None:
    """The newest last, in the list and in the feed of those who wait."""
    await admin.rpush("asset:sync:changed", *(f"x{n}" for n in range(1_200)))
    await library.save(prompt("p"), path="p.yaml", sha="1")
    assert await admin.llen("asset:sync:changed") == 1_000
    assert await library.changes(3) == ["x1198", "x1199", "p"]
    for n in (0, 1_001):
        with pytest.raises(ConfigurationError):
            await library.changes(n)


@pytest.mark.parametrize(
    "key",
    ["asset:metadata:p", "asset:index", "asset:category:skill", "asset:sync:changed"],
)
async def test_a_key_of_another_type_stops_the_whole_write(
    library: AssetLibrary, admin: Redis, key: str
) -> None:
    """Nothing is written then, and nothing is written over."""
    await admin.set(key, "somebody's")
    with pytest.raises(RedisUnavailableError) as caught:
        await library.save(prompt("p"), path="p.yaml", sha="1")
    assert caught.value.kind == "wrong_type"
    assert await admin.keys("*") == [key.encode()]


async def test_out_of_memory_stops_the_whole_write(
    library: AssetLibrary, admin: Redis
) -> None:
    """An asset is old or new, also then; it can still be deleted."""
    await library.save(tool(), path=PATH, sha="1")
    before = await everything(admin)
    await admin.config_set("maxmemory", 1)
    for changed in (tool(version="2.0.0"), tool(category="skill"), prompt("p")):
        with pytest.raises(RedisUnavailableError) as caught:
            await library.save(changed, path=PATH, sha="2")
        assert caught.value.kind == "out_of_memory"
    assert await everything(admin) == before
    assert await library.delete("google_search")
    assert await library.list() == []


async def test_listing_and_searching(library: AssetLibrary) -> None:
    """By category, and by words in id, name, category and description."""
    await library.save(tool(), path=PATH, sha="1")
    for name, text in (("b", "Search the WEB"), ("a", "总结文本"), ("web", "")):
        await library.save(prompt(name, description=text), path=f"{name}.yaml", sha="1")
    assert [one.id for one in await library.list()] == [
        "a",
        "b",
        "google_search",
        "web",
    ]
    assert [one.id for one in await library.list("tool")] == ["google_search"]
    assert [one.id for one in await library.search("web")] == ["web", "b"]
    assert [one.id for one in await library.search("搜索 GOOGLE")] == ["google_search"]
    assert [one.id for one in await library.search("prompt 总结")] == ["a"]
    assert await library.search("zebra") == []
    with pytest.raises(ConfigurationError):
        await library.list("tools")


async def test_what_cannot_be_read_hides_nothing_else(
    library: AssetLibrary, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out, and named in the log, once."""
    await library.save(prompt("good"), path="g.yaml", sha="1")
    broken = {
        "no_json": b"{", "list": b"[]", "other": b'{"id":"x","name":"x","category":"tool","version":"1"}',
        "short": b'{"id":"short"}', "typed": b'{"id":"typed","name":1,"category":"a","version":"1"}',
        "\udcff": b"\xff", "two": b'{"id":"two"},{"id":"three"}',
        "half": b'{"id":"half","name":"a"', "rest": b'"version":"1"}',
    }  # fmt: skip
    await admin.hset("asset:index", mapping={name.encode("utf-8", "surrogateescape"): value for name, value in broken.items()})  # fmt: skip
    await admin.set("asset:metadata:wrong", "x")
    fields: Keys = {"id": "odd", "version": "1.0.0", "category": "tool", "name": "odd"}
    await admin.hset("asset:metadata:odd", mapping={**fields, "name": ""})
    await admin.hset("asset:metadata:half", mapping={"id": "half"})
    with caplog.at_level(logging.WARNING, "bls_agent"):
        for _ in range(2):
            assert [one.id for one in await library.list()] == ["good"]
            assert len((await library.read_index())[1]) == len(broken)
            for name in ("wrong", "odd", "half"):
                assert await library.get(name) is None
    assert len(caplog.records) == len(broken) + 3


PEER: Keys = {"id": "z", "version": "1.0.0", "category": "prompt", "name": "z"}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1704067200", 1704067200), ("1704067200.75", 1704067200),
        ("2024-01-01T00:00:00Z", 1704067200), ("2024-01-01T08:00:00+08:00", 1704067200),
        ("2024-01-01 00:00:00", 1704067200), ("2024-01-01", 1704067200),
        ("20240101T000000Z", 1704067200), ("2024-01-01_00:00:00,5", 1704067200),
        ("2024-01-01t00:00:00Z", 1704067200),
    ],
)  # fmt: skip
async def test_the_time_of_another_program_is_kept(
    library: AssetLibrary, admin: Redis, written: str, seconds: int
) -> None:
    """A fraction or ISO text is read, and a later save does not touch it."""
    await admin.hset("asset:metadata:z", mapping={**PEER, "created_at": written})
    asset = await library.get("z")
    assert asset is not None
    assert (asset.created_at, asset.faults) == (seconds, {})
    assert await library.save(prompt("z"), path="z.yaml", sha="1") == "updated"
    assert await admin.hget("asset:metadata:z", "created_at") == written.encode()


@pytest.mark.parametrize(
    "written", ["9" * 25, "2024-99-99", "2026-02-30", "2024-01-01x", "1.2.3", "gestern"]
)
async def test_a_time_that_cannot_be_read_is_repaired(
    library: AssetLibrary, admin: Redis, written: str
) -> None:
    """The next save writes the current time, also if nothing else has changed."""
    await library.save(prompt("z"), path="z.yaml", sha="1")
    await admin.hset("asset:metadata:z", "created_at", written)
    assert await library.save(prompt("z"), path="z.yaml", sha="1") == "updated"
    asset = await library.get("z")
    assert asset is not None
    assert not asset.faults


async def test_an_asset_without_an_index_entry(
    library: AssetLibrary,
    own_server: DevServer,
    admin: Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What another program wrote by MULTI, HSET and SADD is found by its category.

    A key of another type is left out with a warning; a missing right is an error.
    """
    await library.save(prompt("a"), path="a.yaml", sha="1")
    async with admin.pipeline(transaction=True) as multi:
        _ = multi.hset("asset:metadata:z", mapping={**PEER, "description": "长" * 101})
        _ = multi.sadd("asset:category:prompt", "z", "gone", "other", "typed")
        await multi.execute()
    await admin.hset("asset:metadata:other", mapping={**PEER, "category": "tool"})
    await admin.set("asset:metadata:typed", "x")
    listed = await library.list("prompt")
    assert listed[0].id == "a"
    assert listed[1:] == [("z", "z", "prompt", "1.0.0", "长" * 100)]
    assert await library.list("tool") == []
    assert [one.id for one in await library.list()] == ["a"]
    assert await library.list("prompt") == listed
    (warning,) = [one for one in caplog.messages if "left out" in one]
    assert warning.startswith("the asset 'typed' is left out: ")
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-hmget")
    async with AssetLibrary(url) as without_right:
        with pytest.raises(RedisRefusedError, match="no_permission"):
            await without_right.list("prompt")


@pytest.mark.parametrize("asset_id", ["cafe\u0301", "a ", " a", "a\n", "x" * 600])
async def test_the_id_of_a_peer(
    library: AssetLibrary, admin: Redis, asset_id: str
) -> None:
    """It is read, also if this package would not write it."""
    peer = {**PEER, "id": asset_id}
    await admin.hset(f"asset:metadata:{asset_id}", mapping=peer)
    await admin.sadd("asset:category:prompt", asset_id)
    assert [one.id for one in await library.list("prompt")] == [asset_id]
    asset = await library.get(asset_id)
    assert asset is not None
    assert (asset.id, asset.name) == (asset_id, "z")


async def test_deleting_from_an_unknown_category(
    library: AssetLibrary, admin: Redis
) -> None:
    """The id leaves the set that the hash names, too."""
    await admin.hset("asset:metadata:z", mapping={**PEER, "category": "workflow"})
    await admin.sadd("asset:category:workflow", "z", "y")
    assert await library.delete("z")
    assert await admin.smembers("asset:category:workflow") == {b"y"}


async def test_the_state(library: AssetLibrary, admin: Redis) -> None:
    """A dead synchronisation shows; a report that cannot be read is none."""
    assert await library.sync_state() == SyncState()
    await admin.hset(
        "asset:sync:state", mapping={"sync_status": "syncing", "synced_count": "many"}
    )
    found = await library.sync_state()
    assert found.is_interrupted
    assert found.synced_count is None
    await admin.set("bls_agent:{asset:sync:state}:owner", "a", ex=5)
    await admin.set("bls_agent:{asset:sync:state}:report", "{}")
    found = await library.sync_state()
    assert not found.is_interrupted
    assert found.report is None
    fault = {"path": "a.yaml", "reason": "x"}
    whole: Keys = {
        "status": "failed", "created": [], "updated": [], "deleted": [], "kept": ["a"],
        "broken": [fault],
    }  # fmt: skip
    odd_ones: list[Keys] = [
        {"kept": 1}, {"kept": [1]}, {"reason": 5}, {"source": None}, {"seconds": "1"},
        {"total": None}, {"broken": [fault | {"unknown": 1}]},
        {"broken": [fault | {"field": 3}]},
    ]  # fmt: skip
    for odd in ({}, *odd_ones):
        key = "bls_agent:{asset:sync:state}:report"
        await admin.set(key, orjson.dumps(whole | odd))
        assert ((await library.sync_state()).report is None) == bool(odd)
    await admin.delete("asset:sync:state")
    await admin.set("asset:sync:state", "x")
    with pytest.raises(WrongTypeError):
        await library.sync_state()


async def test_watching(
    library: AssetLibrary,
    own_server: DevServer,
    admin: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every change arrives, whoever made it, also behind an outage."""
    monkeypatch.setattr("bls_agent.assets.library.LIST_INTERVAL", 0.02)
    await library.save(prompt("before"), path="p.yaml", sha="0")
    told: list[str] = []

    async def follow() -> None:
        async for one in library.watch():
            told.append(one)  # noqa: PERF401 - seen while it grows

    async def reads() -> int:
        stats: Any = (await admin.info("commandstats")).get("cmdstat_lrange", {})
        return int(stats.get("calls", 0))

    async def has_read() -> bool:
        return await reads() > 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await eventually(has_read)
        await library.save(prompt("a"), path="p.yaml", sha="1")
        await eventually(lambda: told == ["a"])
        await library.save(prompt("a"), path="p.yaml", sha="2")
        await admin.rpush("asset:sync:changed", "a", "foreign")
        await library.delete("a")
        await eventually(lambda: told == ["a", "a", "a", "foreign", "a"])
        own_server.kill()
        own_server.restart()
        async with AssetLibrary(own_server.url) as other:
            await other.save(prompt("b"), path="p.yaml", sha="1")
        await eventually(lambda: told[5:] == ["b"])
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("before", "now", "added"),
    [
        ("", "", ""),
        ("", "ab", "ab"),
        ("ab", "ab", ""),
        ("ab", "abab", "ab"),
        ("abc", "bcd", "d"),
        ("abc", "def", "def"),
        ("abc", "", ""),
        ("abca", "abcaa", "a"),
    ],
)
def test_what_was_added_to_a_list(before: str, now: str, added: str) -> None:
    """Its front is trimmed while its end grows."""
    parts = [[one.encode() for one in text] for text in (before, now, added)]
    assert find_added(parts[0], parts[1]) == parts[2]


@pytest.mark.parametrize(
    ("path", "sha"), [("../p.yaml", "1"), ("/p.yaml", "1"), ("p.yaml", "")]
)
async def test_what_cannot_be_saved(library: AssetLibrary, path: str, sha: str) -> None:
    """A path that leads elsewhere, no SHA, an id that is none."""
    with pytest.raises(ConfigurationError):
        await library.save(prompt("p"), path=path, sha=sha)
    for no_id in ("", None, b"a"):
        with pytest.raises(ConfigurationError, match=r"^id: "):
            await library.get(no_id)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        await library.delete("a\n")


async def test_on_a_cluster() -> None:
    """Each key in its slot: the same contents, and repeated writes change nothing."""
    async with ClusterTopology() as topology, AssetLibrary(topology.url) as library:
        assert await library.save(tool(), path=PATH, sha="1") == "created"
        assert await library.save(tool(), path=PATH, sha="1") == "same"
        changed = tool(category="skill", author=...)
        assert await library.save(changed, path=PATH, sha="2") == "updated"
        asset = await library.get("google_search")
        assert asset is not None
        assert (asset.category, asset.author) == ("skill", "")
        assert [one.category for one in await library.list()] == ["skill"]
        members = (
            ("SMEMBERS", "asset:category:tool"),
            ("SMEMBERS", "asset:category:skill"),
        )
        assert await library.pool.read_many(members) == [[], [b"google_search"]]
        assert await library.sync_state() == SyncState()
        assert await library.delete("google_search")
        assert not await library.delete("google_search")
        assert await library.get("google_search") is None
        assert await library.list() == []
        assert await library.pool.read_many(members) == [[], []]
        assert await library.changes() == ["google_search"] * 3


@pytest.fixture
def lesser_server() -> Iterator[DevServer]:
    """A server that does not know scripts."""
    names = ("EVAL", "EVALSHA")
    options = [word for name in names for word in ("--rename-command", name, "")]
    with DevServer(options=options) as server:
        yield server


async def test_on_a_server_without_scripts(lesser_server: DevServer) -> None:
    """The same keys are written; saving again changes nothing."""
    async with (
        AssetLibrary(lesser_server.url) as library,
        Redis.from_url(lesser_server.url, protocol=2) as admin,
    ):
        assert await library.save(tool(), path=PATH, sha="1") == "created"
        assert await library.save(tool(), path=PATH, sha="1") == "same"
        changed = tool(category="skill", author=..., runtime=...)
        await admin.hset("asset:metadata:google_search", "created_at", "1704067200.5")
        assert await library.save(changed, path=PATH, sha="2") == "updated"
        found = await everything(admin)
        metadata = found.pop("asset:metadata:google_search")
        assert metadata[b"created_at"] == b"1704067200.5"
        assert not {b"author", b"runtime"} & set(metadata)
        assert found.pop("asset:index").keys() == {b"google_search"}
        assert found == {
            "asset:category:skill": {b"google_search"},
            "asset:sync:changed": [b"google_search"] * 2,
        }
        await admin.set("asset:metadata:wrong", "x")
        with pytest.raises(RedisUnavailableError) as caught:
            await library.save(prompt("wrong"), path="p.yaml", sha="1")
        assert caught.value.kind == "wrong_type"
        assert await library.delete("google_search")
        assert not await library.delete("google_search")
        assert await library.list() == []
