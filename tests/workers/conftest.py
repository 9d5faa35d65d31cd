"""What several tests of heartbeats and of the function cache begin with."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from bls_agent.workers import BacktestWorkerHeartbeat, FunctionCache


@pytest.fixture
def said() -> BacktestWorkerHeartbeat:
    """The heartbeat of a worker with an id of its own."""
    return BacktestWorkerHeartbeat.create(worker_id=f"回测-{secrets.token_hex(4)}")


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[FunctionCache]:
    """A cache on the server that the tests share."""
    async with FunctionCache(redis_url, timeout=5) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A function's name that no other test uses."""
    return f"行情.{secrets.token_hex(4)}"
