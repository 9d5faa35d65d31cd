"""Fixtures of all tests of runs: a run, a store, and a client that looks at the keys."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from bls_agent import EventStore
from bls_agent.runs.reading import RunKeys

__all__ = ["bare", "run_id", "store"]


@pytest.fixture
def run_id() -> int:
    """A run that is nobody else's."""
    return secrets.randbits(50)


@pytest.fixture
async def bare(redis_url: str, run_id: int) -> AsyncIterator[Redis]:
    """A client of redis-py as everybody's; it removes the run."""
    async with Redis.from_url(redis_url, protocol=2) as client:
        yield client
        await client.delete(*RunKeys(run_id).all)


@pytest.fixture
async def store(redis_url: str, bare: Redis) -> AsyncIterator[EventStore]:
    """A store at the shared server."""
    del bare  # which cleans up afterwards
    async with EventStore(redis_url) as opened:
        yield opened
