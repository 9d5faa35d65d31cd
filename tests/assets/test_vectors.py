"""The vectors of the asset library, by the package's own readers and writers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from bls_agent import DecodeError
from bls_agent.assets import AssetLibrary, AssetManifest
from bls_agent.assets.records import Asset, AssetSummary
from bls_agent.core.keys import KEYS
from bls_agent.devserver import DevServer
from bls_agent.ops.conformance.vectors import Vector, read_bytes
from tests.corpus.loader import judge, pairs_of, vectors_of

VECTORS: Final = vectors_of("000")


@pytest.fixture
async def library(own_server: DevServer) -> AsyncIterator[AssetLibrary]:
    async with AssetLibrary(own_server.url) as opened:
        yield opened


def check_key(vector: Vector) -> None:
    values = vector.values
    row = KEYS[values["kind"]]
    assert row.build(**values["parts"]) == values["key"]
    assert (str(row.type), row.ttl) == (values["type"], values["ttl"])


def check_asset(vector: Vector) -> None:
    """A hash is read as an asset; optional fields that cannot be read are named."""
    result = vector.values["result"]
    if result["problem"]:
        with pytest.raises(DecodeError) as caught:
            Asset.read(pairs_of(vector))
        assert caught.value.reason == result["problem"]
        return
    asset = Asset.read(pairs_of(vector))
    assert sorted(asset.faults) == result["faults"]
    found = {name: getattr(asset, name) for name in result["asset"]}
    assert found == result["asset"]


def check_index(vector: Vector) -> None:
    """An entry of the index is read, or refused with its reason."""
    result = vector.values["result"]
    ((asset_id, payload),) = pairs_of(vector).items()
    if not result["problem"]:
        found = AssetSummary.read(asset_id, payload)
        assert found._asdict() == result["summary"]
        return
    with pytest.raises(DecodeError) as caught:
        AssetSummary.read(asset_id, payload)
    assert caught.value.reason == result["problem"]


CHECKS: Final[dict[str, Callable[[Vector], None]]] = {
    "key": check_key,
    "asset": check_asset,
    "index": check_index,
}


def test_every_check_is_known() -> None:
    checks = {vector.check for vector in VECTORS.values()}
    assert checks == {*CHECKS, "save", "state", "changes"}


@pytest.mark.parametrize("check", CHECKS)
def test_vectors(check: str) -> None:
    """Each vector, by the function that the package uses."""
    judge("000", check, CHECKS[check])


async def test_what_is_written(library: AssetLibrary, admin: Redis) -> None:
    """Every key of the protocol after one asset was saved; no key expires."""
    for id_, vector in vectors_of("000", "save").items():
        await admin.flushall()
        given, result = vector.values["given"], vector.values["result"]
        manifest = AssetManifest.model_validate(given["manifest"])
        assert await library.save(manifest, path=given["path"], sha=given["sha"])
        name = result["changed"]
        metadata = f"asset:metadata:{name}"
        category = f"asset:category:{result['category']}"
        index, changed = "asset:index", "asset:sync:changed"
        keys: Any = await admin.keys("asset:*")
        assert {key.decode() for key in keys} == {metadata, category, index, changed}
        assert {await admin.ttl(key) for key in keys} == {-1}, id_
        fields: Any = await admin.hgetall(metadata)
        assert fields.pop(b"created_at").isdigit(), id_
        assert fields.pop(b"updated_at").isdigit(), id_
        assert fields == pairs_of(vector), id_
        assert await admin.smembers(category) == {name.encode()}, id_
        entry = {name.encode(): result["index"].encode()}
        assert await admin.hgetall(index) == entry, id_
        assert await admin.lrange(changed, 0, -1) == [name.encode()], id_


async def test_changes(library: AssetLibrary, admin: Redis) -> None:
    """The id of each change, the newest last."""
    for id_, vector in vectors_of("000", "changes").items():
        await admin.flushall()
        values = vector.values
        for number, (what, name) in enumerate(values["given"]):
            if what == "delete":
                assert await library.delete(name)
                continue
            manifest = AssetManifest(
                id=name, version="1.0.0", category="prompt", name=name
            )
            saved = await library.save(manifest, path="a.yaml", sha=str(number))
            assert saved == f"{what}d", id_
        found = await admin.lrange(values["key"], 0, -1)
        assert found == [read_bytes(one) for one in values["value"]], id_
        assert await admin.ttl(values["key"]) == -1


async def test_the_state(library: AssetLibrary, admin: Redis) -> None:
    for id_, vector in vectors_of("000", "state").items():
        await admin.flushall()
        if fields := pairs_of(vector):
            await admin.hset("asset:sync:state", mapping=fields)
        state = await library.sync_state()
        for name, value in vector.values["result"].items():
            assert getattr(state, name) == value, (id_, name)


async def test_the_library_reads_them_all(library: AssetLibrary, admin: Redis) -> None:
    """Beside a good asset; a broken one hides neither that nor another."""
    good = AssetManifest(id="good", version="1.0.0", category="prompt", name="good")
    await library.save(good, path="a.yaml", sha="1")
    wanted = {"good"}
    for vector in vectors_of("000", "asset").values():
        await admin.delete("asset:metadata:z")
        pairs = pairs_of(vector)
        await admin.hset("asset:metadata:z", mapping=pairs)
        asset = await library.get("z")
        result = vector.values["result"]
        assert (asset is None) == bool(result["problem"]), vector.id
        if asset is not None:
            assert sorted(asset.faults) == result["faults"], vector.id
            assert all(asset.faults.values()), vector.id
        assert await library.get("good") is not None
    for vector in vectors_of("000", "index").values():
        ((asset_id, payload),) = pairs_of(vector).items()
        await admin.hset("asset:index", asset_id, payload)
        found = {one.id for one in await library.list()}
        broken = vector.values["result"]["problem"]
        assert found == (wanted if broken else wanted | {asset_id.decode()}), vector.id
        await admin.hdel("asset:index", asset_id)
