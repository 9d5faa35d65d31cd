"""What happens to runs in many tests: they are written, and taken over."""

from __future__ import annotations

from redis.asyncio import Redis

from bls_agent.runs import EventStore, RunWriter
from bls_agent.runs.reading import RunKeys
from tests.harness import eventually


async def write(store: EventStore, run_id: int, count: int = 1) -> list[str]:
    """Write some events; give their ids."""
    return await store.add_many(run_id, [("llm", "stream", {"n": 1})] * count)


async def take_over(run: RunWriter, redis: Redis, keys: RunKeys) -> None:
    """Let somebody else have a run, and wait until its writer knows."""
    await run.flush()
    await redis.set(keys.owner, "somebody", px=60_000)
    await redis.hset(keys.books, "owner", "somebody")
    await eventually(lambda: not run.is_owner)
