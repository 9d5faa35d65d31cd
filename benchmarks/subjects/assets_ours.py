"""A library of many assets: synchronised first, then unchanged, and read meanwhile."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
from redis.asyncio import Redis

from benchmarks.subjects.acting import Options, act
from bls_agent.assets import AssetLibrary, AssetSync, Head, SourceFile, SyncStep
from bls_agent.assets.sources import blob_sha

PIECES = 5
MANIFEST = """\
id: tool_{number}
version: "1.2.0"
category: tool
name: 网页搜索 {number}
description: 在网页上搜索内容，返回标题和摘要
config_schema: [{{name: query, label: 搜索词, type: string, required: true}}]
agent_specs: {{function_name: tool_{number}, description: …, parameters: {{type: object}}}}
runtime: {{language: python, entry: main.py, handler: run, dependencies: [requests]}}
"""


class Files:
    """A source in memory: what is measured is Redis and the reading of manifests."""

    name, base_path = "memory", ""

    def __init__(self, count: int) -> None:
        """Make the files."""
        texts = (MANIFEST.format(number=number).encode() for number in range(count))
        self._texts = {f"tools/{n}.yaml": text for n, text in enumerate(texts)}

    async def head(self) -> Head:
        """Always the same commit."""
        return Head("c" * 40)

    async def tree(self, head: Head) -> Sequence[SourceFile]:
        """List them."""
        del head
        return [
            SourceFile(path, blob_sha(text), len(text))
            for path, text in self._texts.items()
        ]

    async def fetch(
        self, head: Head, files: Sequence[SourceFile]
    ) -> AsyncGenerator[tuple[SourceFile, bytes]]:
        """Give them."""
        del head
        for file in files:
            yield file, self._texts[file.path]

    async def aclose(self) -> None:
        """Nothing is open."""


async def run(options: Options) -> dict[str, float]:
    """Synchronise for the first time while somebody lists, then twice more."""
    count: int = options["count"]
    began = [0.0]

    def note(step: SyncStep) -> None:
        if step.phase == "download":
            began[0] = time.perf_counter()

    source: Any = Files(count)
    async with (
        AssetLibrary(options["url"]) as library,
        AssetSync(options["url"], source, on_progress=note) as sync,
    ):
        started = time.perf_counter()
        longest = 0.0
        async with anyio.create_task_group() as tasks:

            async def look() -> None:
                nonlocal longest
                seen = 0
                while True:
                    asked = time.perf_counter()
                    now = len(await library.list())
                    longest = max(longest, time.perf_counter() - asked)
                    if now < seen:
                        raise RuntimeError(f"{now} assets after {seen}")
                    seen = now
                    await anyio.sleep(0.5)

            tasks.start_soon(look)
            report = await sync.run()
            ended = time.perf_counter()
            tasks.cancel_scope.cancel()
        await sync.run()
        async with library.pool.to("asset:index") as connection:
            before = await calls(connection)
            again = await sync.run()
            requests = await calls(connection) - before - 1  # INFO itself
        listing, one_by_one = await list_in_turn(library, options["url"])
    if (len(report.created), again.status) != (count, "unchanged"):
        raise RuntimeError(f"{report.status}: {report.reason}, then {again.status}")
    return {
        "first": ended - started,
        "writing": ended - began[0],
        "longest": longest,
        "requests": requests,
        "listing": listing,
        "one_by_one": one_by_one,
    }


async def calls(connection: Any) -> int:
    """Count the requests that the server has executed."""
    told = (await connection.call("INFO", "stats")).decode()
    lines = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    return int(lines["total_commands_processed"])


async def list_in_turn(library: AssetLibrary, url: str) -> tuple[float, float]:
    """Give the seconds of a list, and of one HGETALL after the other, in five pieces."""
    ids = [one.id for one in await library.list()]
    ours = others = 0.0
    async with Redis.from_url(url, protocol=2) as redis:
        client: Any = redis
        for piece in range(PIECES):
            began = time.perf_counter()
            await library.list()
            listed = time.perf_counter()
            for asset_id in ids[piece::PIECES]:
                await client.hgetall(f"asset:metadata:{asset_id}")
            ours += listed - began
            others += time.perf_counter() - listed
    return ours / PIECES, others


if __name__ == "__main__":
    act(run)
