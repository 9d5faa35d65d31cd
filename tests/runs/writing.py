"""What happens to runs in many tests: they are written, and taken over."""

from __future__ import annotations

from typing import Any

import anyio
from redis.asyncio import Redis

from bls_agent.runs import (
    EventStore,
    RunWriter,
    StreamEvent,
)
from bls_agent.runs.reading import RunKeys
from tests.harness import eventually, execute


async def write(store: EventStore, run_id: int, count: int = 1) -> list[str]:
    """Write some events; give their ids."""
    return await store.add_many(run_id, [("llm", "stream", {"n": 1})] * count)


async def take_over(run: RunWriter, redis: Redis, keys: RunKeys) -> None:
    """Let somebody else have a run, and wait until its writer knows."""
    await run.flush()
    await redis.set(keys.owner, "somebody", px=60_000)
    await redis.hset(keys.books, "owner", "somebody")
    await eventually(lambda: not run.is_owner)


async def take(follower: Any, count: int) -> list[int]:
    """The sequences of so many events; nothing else may come."""
    found: list[int] = []
    with anyio.fail_after(30):
        while len(found) < count:
            for one in await follower.batch():
                assert isinstance(one, StreamEvent), one
                found.append(one.sequence)
    return found


async def written(store: EventStore, run_id: int) -> list[str]:
    """The names of a run's events."""
    return [event.name for event in await store.get_events(run_id)]


async def entries(admin: Redis, key: str) -> Any:
    """Return the id of each entry, with names and values in turn."""
    found: Any = await execute(admin, "XRANGE", key, "-", "+")
    return [
        (number, [part for pair in fields.items() for part in pair])
        if isinstance(fields, dict)
        else (number, fields)
        for number, fields in found
    ]
