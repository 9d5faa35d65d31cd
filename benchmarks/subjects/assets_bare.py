"""The same assets written one at a time, as the protocol's examples do."""

from __future__ import annotations

import time
from typing import Any

from redis.asyncio import Redis

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.assets_ours import MANIFEST
from bls_agent.assets import AssetLibrary, parse_manifest
from bls_agent.assets.manifest import index_entry, metadata_fields


async def run(options: Options) -> dict[str, float]:
    """Write each asset with its own requests."""
    count: int = options["count"]
    one = parse_manifest(MANIFEST.format(number=0).encode(), "tools/0.yaml")
    assets: list[tuple[str, dict[Any, Any], bytes]] = []
    for number in range(count):
        made = one.model_copy(update={"id": f"tool_{number}"})
        fields = metadata_fields(made, f"tools/{number}.yaml", "0" * 40)
        assets.append((made.id, fields, index_entry(made)))
    async with Redis.from_url(options["url"], protocol=2) as redis:
        client: Any = redis
        began = time.perf_counter()
        for asset_id, fields, summary in assets:
            key = f"asset:metadata:{asset_id}"
            await client.hget(key, "github_sha")
            await client.hset(key, mapping=fields)
            await client.sadd("asset:category:tool", asset_id)
            await client.hset("asset:index", asset_id, summary)
            await client.rpush("asset:sync:changed", asset_id)
        written = time.perf_counter()
    async with AssetLibrary(options["url"]) as library:
        if len(await library.list()) != count:
            raise RuntimeError("not all assets were written")
    return {"writing": written - began}


if __name__ == "__main__":
    act(run)
