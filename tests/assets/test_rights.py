"""The rights of a synchronisation, and of a reader, are enough, and no more."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import BlsError, RedisRefusedError
from bls_agent.assets import AssetLibrary, AssetSync, parse_manifest
from bls_agent.core.acl import ASSET_RIGHTS, KeyAccess, asset_acl_rules
from bls_agent.core.keys import KEYS
from bls_agent.devserver import DevServer
from tests.acl_rules import documented_rules, each_right, may, refused, rules_without
from tests.assets.memory_source import MemorySource, manifest
from tests.harness import needs_selectors, url_with_rights

OWNER = "bls_agent:{asset:sync:state}:owner"


async def write_everything(url: str) -> None:
    """All that a synchronisation does, with a lease to renew and one to wait for."""
    source = MemorySource(
        {"a.yaml": manifest("a", author="x"), "b.yaml": manifest("b")}
    )

    async def slow(head: Any) -> Any:
        await anyio.sleep(0.3)
        return await tree(head)

    tree, source.tree = source.tree, slow  # type: ignore[method-assign]
    async with AssetSync(url, source, lease=0.6) as sync:
        assert (await sync.run()).status == "complete"
        source.files = {"a.yaml": manifest("a", "2.0.0", "skill")}
        assert (await sync.run(force=True)).status == "complete"
        other = AssetSync(url, source)
        async with other, sync._hold_lease():
            with pytest.raises(BlsError, match="living process"):
                await other.run()
        one = parse_manifest(manifest("c"), "c.yaml")
        await sync.library.save(one, path="c.yaml", sha="1")
        assert await sync.library.delete("c")


async def read_everything(url: str) -> None:
    """All that a reader does."""
    async with AssetLibrary(url, cache=True) as library:
        for _ in range(2):
            assert await library.get("a") is not None
        assert [one.id for one in await library.list()] == ["a"]
        assert await library.search("a")
        assert (await library.sync_state()).report is not None
        assert await library.changes()
        with anyio.move_on_after(0.1):
            async for _ in library.watch():
                pass


@needs_selectors
async def test_the_rights_are_enough(own_server: DevServer, admin: Redis) -> None:
    """Nothing is refused, to a synchronisation or to a reader; a reader cannot write."""
    await write_everything(await url_with_rights(admin, own_server, *asset_acl_rules()))
    assert await refused(admin) == []
    url = await url_with_rights(admin, own_server, *asset_acl_rules(write=False))
    await read_everything(url)
    assert await refused(admin) == []
    async with AssetLibrary(url) as library:
        with pytest.raises(RedisRefusedError):
            await library.delete("a")


async def test_flat_rules_are_enough(own_server: DevServer, admin: Redis) -> None:
    """For Redis 6, without selectors."""
    rules = asset_acl_rules(selectors=False)
    assert not any("(" in rule for rule in rules)
    url = await url_with_rights(admin, own_server, *rules)
    await write_everything(url)
    await read_everything(url)
    assert await refused(admin) == []


@needs_selectors
@pytest.mark.parametrize(("right", "command"), [*each_right(ASSET_RIGHTS)])
async def test_no_right_is_too_many(
    right: KeyAccess, command: str, own_server: DevServer, admin: Redis
) -> None:
    """Without any one of them something is refused to a synchronisation, or to a reader."""
    rules = rules_without(ASSET_RIGHTS, right, command)
    url = await url_with_rights(admin, own_server, *rules)
    if not right.writes:
        await write_everything(own_server.url)
    with contextlib.suppress(BlsError, AssertionError, pytest.fail.Exception):
        await (write_everything if right.writes else read_everything)(url)
    assert await refused(admin) != []


@needs_selectors
async def test_other_keys_stay_closed(own_server: DevServer, admin: Redis) -> None:
    """A synchronisation reaches no key of anything else."""
    await url_with_rights(admin, own_server, *asset_acl_rules())
    for name, row in KEYS.items():
        if name.startswith("asset_") and name != "asset_search_index":
            continue
        key = row.locate(**dict.fromkeys(row.fields, "x"))
        for words in (["HGETALL", key], ["DEL", key], ["SET", key, "x"]):
            assert not await may(admin, *words), name


def test_the_document_shows_both_lines() -> None:
    """As they are printed."""
    lines = documented_rules()
    assert " ".join(asset_acl_rules()) in lines
    assert " ".join(asset_acl_rules(write=False)) in lines
