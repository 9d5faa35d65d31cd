"""Real servers, fresh projects: what every test stands on."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from importlib import import_module
from typing import Any

import hypothesis
import pytest
from redis.asyncio import Redis

from bls_agent import Console
from bls_agent.devserver import DevServer, serve_or_use
from tests.harness import remove_keys

# What is made once for all tests of a module is made in one process alone.
TOGETHER = (
    "doctor/test_command.py",
    "doctor/test_plants.py",
    "test_architecture.py",
    "test_chaos_short.py",
    "test_cluster.py",
    "test_exports.py",
    "test_import.py",
    "test_sentinel.py",
    "test_words.py",
)

# Tests that take seconds each. They come first, so that none of them is left at the end,
# when only one process has something to do.
SLOW = (
    "integrations/test_scrapy.py",
    "ops/cli/test_conformance.py",
    "test_examples.py",
    "test_hosts.py",
    "testing/test_fleet.py",
)

# A busy machine is no fault of the package: no example has a deadline. Each run draws
# other examples; --hypothesis-profile=thorough draws many.
for name, examples in (("steady", 50), ("thorough", 2_000)):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("steady")

# A shell without job control has its background programs ignore SIGINT, and what the
# tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep what is collected out of the garbage collector's sight: it stays to the end.

    Thousands of tests are a quarter of a million objects, which every full collection
    would go through again: a fifth of the processor time of the tests themselves.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests first; the order is the same otherwise."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(SLOW))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process the next test, or the next module that stays together."""
    make: Any = import_module("xdist.scheduler").LoadScopeScheduling
    scheduler = make(config, log)
    scheduler._split_scope = unit_of
    return scheduler


def unit_of(nodeid: str) -> str:
    """Give the name under which tests go to the same process."""
    module = nodeid.partition("::")[0]
    if "test_browser" in module:
        return "browsers"  # one after the other: a Chromium keeps a core busy
    return module if module.endswith(TOGETHER) else nodeid


@pytest.fixture(autouse=True)
def _same_logger() -> Iterator[None]:
    """Give the package's logger back as it was: a program run in here may set it up."""
    logger = logging.getLogger("bls_agent")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


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
    """A server of this test alone, to be killed, frozen and restarted.

    What it has answered was written, and a process that is killed loses none of that;
    to have it on the disk itself, too, would take milliseconds for each write.
    """
    with DevServer(append_only=True, options=("--appendfsync", "no")) as server:
        yield server


@pytest.fixture
def project() -> str:
    """A fresh project name."""
    return f"测试系统_{secrets.token_hex(4)}"


@pytest.fixture
async def bare(redis_url: str) -> AsyncIterator[Redis]:
    """A bare client, to look at keys that no project has."""
    async with Redis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
async def redis(redis_url: str, project: str) -> AsyncIterator[Redis]:
    """A bare client, to look at the keys from outside; the project's are removed."""
    client = Redis.from_url(redis_url, protocol=2)
    yield client
    await remove_keys(client, project)
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
