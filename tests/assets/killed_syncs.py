"""Synchronisations that are killed, one after the other, each one write later.

A program: URL and step. Each child synchronises 200 assets and ends itself by SIGKILL
before a write. What stands in Redis then is what the next child begins with, so the
children go through every state between two writes. After each one it is looked whether
every reader finds each asset either old or new.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import anyio
from anyio import to_thread
from redis import Redis

from bls_agent.assets import AssetSync, parse_manifest
from bls_agent.assets.manifest import index_entry, metadata_fields
from bls_agent.assets.sources import blob_sha
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Reply, Request
from tests.assets.memory_source import MemorySource, manifest

OWNER = "bls_agent:{asset:sync:state}:owner"
WRITES = {"EVALSHA", "EVAL", "HSET", "SET"}
OLD = {f"{n:03}.yaml": manifest(f"a{n:03}", author="x") for n in range(200)}
NEW = {
    f"{n:03}.yaml": manifest(f"a{n:03}", "2.0.0", "skill" if n % 3 else "prompt")
    for n in range(10, 210)
}
PARSED = {text: parse_manifest(text, "x") for text in (*OLD.values(), *NEW.values())}


async def parse_at_once(function: Any, *arguments: Any) -> object:
    """Give what was read before: two hundred children do not read it all again."""
    return PARSED[arguments[0]] if function is parse_manifest else function(*arguments)


def die_before(writes: int) -> None:
    """Send writes one by one, and end this process instead of the last of them."""
    send, left = Connection.call_many, writes

    async def call_many(self: Connection, requests: Sequence[Request]) -> list[Reply]:
        nonlocal left
        if requests[0][0] not in WRITES or OWNER in requests[0][1:4:2]:
            return await send(self, requests)
        replies: list[Reply] = []
        for request in requests:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            replies += await send(self, [request])
        return replies

    Connection.call_many = call_many  # type: ignore[method-assign]


async def synchronise(url: str, files: dict[str, bytes]) -> None:
    async with AssetSync(url, MemorySource(files)) as sync:
        report = await sync.run()
    assert report.status == "complete", report


def in_child(url: str, writes: int) -> bool:
    """Synchronise in a child that dies at a write; say whether it came to its end."""
    child = os.fork()
    if not child:
        die_before(writes)
        anyio.run(synchronise, url, NEW)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or not status, status
    return not status


def expect(
    files: dict[str, bytes],
) -> dict[bytes, tuple[dict[bytes, bytes], bytes, bytes]]:
    """Give the hash, the index entry and the category of each asset."""
    expected = {}
    for path, text in files.items():
        one = PARSED[text]
        fields = metadata_fields(one, path, blob_sha(text))
        named = {name.encode(): value for name, value in fields.items()}
        expected[one.id.encode()] = named, index_entry(one), one.category.encode()
    return expected


def look(redis: Any, old: Any, new: Any) -> int:
    """Check that each asset is old or new in all keys; say how many are new."""
    pipe = redis.pipeline(transaction=False)
    pipe.hgetall("asset:index")
    for category in ("prompt", "skill"):
        pipe.smembers(f"asset:category:{category}")
    ids = sorted(old.keys() | new.keys())
    for one in ids:
        pipe.hgetall(b"asset:metadata:" + one)
    index, prompts, skills, *hashes = pipe.execute()
    count = 0
    for one, fields in zip(ids, hashes, strict=True):
        times = [fields.pop(name, b"") for name in (b"created_at", b"updated_at")]
        if one in old.keys() & new.keys():
            assert all(times), one
        categories = [
            name
            for name, ids in ((b"prompt", prompts), (b"skill", skills))
            if one in ids
        ]
        found = (fields, index[one], *categories) if one in index else None
        assert found is not None or not (fields or categories), one
        assert found in (old.get(one), new.get(one)), (one, found)
        count += found == new.get(one)
    return count


def main(url: str, step: int) -> None:
    """Go through all states; print how many there were."""
    to_thread.run_sync = parse_at_once  # type: ignore[assignment]
    redis: Any = Redis.from_url(url, protocol=2)
    anyio.run(synchronise, url, OLD)
    commit = redis.hget("asset:sync:state", "last_commit_sha")
    old, new = expect(OLD), expect(NEW)
    seen: list[int] = []
    everything = len(old.keys() | new.keys())

    def kill_before(writes: int) -> None:
        assert not in_child(url, writes)
        seen.append(look(redis, old, new))
        assert redis.hget("asset:sync:state", "last_commit_sha") == commit
        redis.delete(OWNER)  # its time is over

    for writes in (0, 1):
        kill_before(writes)
    while seen[-1] < everything:
        kill_before(min(1 + step, everything - seen[-1] + 1))
    kill_before(2)  # between the report and the state
    assert in_child(url, 3)
    look(redis, old, new)
    assert seen == sorted(seen)
    state = redis.hgetall("asset:sync:state")
    assert state[b"sync_status"] == b"idle"
    assert state[b"last_commit_sha"] != commit
    assert redis.llen("asset:sync:changed") == 410
    sys.stdout.write(f"{len(seen)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
