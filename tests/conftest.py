"""Real servers, fresh projects: what every test stands on."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from bls_agent import Console
from bls_agent.devserver import DevServer, serve_or_use


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """redis-py runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of the server that the tests share; BLS_REDIS_URL chooses another one."""
    with serve_or_use(os.environ) as url:
        yield url


@pytest.fixture
def own_server() -> Iterator[DevServer]:
    """A server of this test alone, to be killed, frozen and restarted."""
    with DevServer(append_only=True) as server:
        yield server


@pytest.fixture
def project() -> str:
    """A fresh project name."""
    return f"测试系统_{secrets.token_hex(4)}"


@pytest.fixture
async def redis(redis_url: str, project: str) -> AsyncIterator[Redis]:
    """A bare client, to look at the keys from outside; the project's are removed."""
    client = Redis.from_url(redis_url, protocol=2)
    yield client
    for suffix in ("项目状态", "项目控制台", "控制"):
        await client.delete(f"{project}_{suffix}")
    await client.aclose()


@pytest.fixture
async def console(redis_url: str) -> AsyncIterator[Console]:
    """The other end."""
    async with Console(redis_url) as opened:
        yield opened


@pytest.fixture
async def admin(own_server: DevServer) -> AsyncIterator[Redis]:
    """An administrator's client of a server of this test's own."""
    async with Redis.from_url(own_server.url, protocol=2) as client:
        yield client
