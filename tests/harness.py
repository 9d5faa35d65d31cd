"""What fault tests share: waiting for events with a deadline, and who did what."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import orjson
import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from bls_agent import ProjectAgent, testing
from bls_agent.devserver import DevServer, find_server_binary

PASSWORD = "geheim-密码-geheim"


def server_version() -> tuple[int, ...]:
    """Version of the server that the tests start; Valkey's are above Redis's 7.2."""
    said = subprocess.run(
        [find_server_binary(os.environ), "--version"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = re.search(r"v=([\d.]+)", said)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


needs_selectors = pytest.mark.skipif(
    server_version() < (7,), reason="ACLs with selectors, and %W~, came with Redis 7"
)


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], timeout: float = 30.0
) -> None:
    """Wait until a condition holds; a busy machine has more time than users' tests."""
    await testing.eventually(condition, timeout)


def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait in a thread until a condition holds, or fail after the deadline."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


async def parked(redis: Redis) -> bool:
    """Return whether a connection waits in a blocking read."""
    return any("b" in client["flags"] for client in await redis.client_list())


async def next_millisecond() -> None:
    """Wait until what a server of this machine writes next has a later id."""
    now = time.time_ns() // 1_000_000
    await eventually(lambda: time.time_ns() // 1_000_000 > now + 1)


def command_bytes(number: int, name: str = "mark") -> bytes:
    """A command as a console would push it."""
    return orjson.dumps(
        {
            "id": f"cmd-{number}",
            "timestamp": "2026-01-12T12:35:00.000Z",
            "source": "BLS Project Console",
            "command": name,
            "args": {"number": number},
        }
    )


@dataclass
class History:
    """Which commands were pushed and which were handled, in order."""

    pushed: list[int] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)

    def attach(self, agent: ProjectAgent, name: str = "mark") -> None:
        """Let an agent handle the commands of :meth:`push`."""

        async def mark(number: int) -> None:
            self.handled.append(number)

        agent.command(name)(mark)

    async def push(self, redis: Redis, project: str) -> None:
        """Push the next command."""
        number = len(self.pushed)
        self.pushed.append(number)
        await redis.rpush(f"{project}_控制", command_bytes(number))

    async def waiting(self, redis: Redis, project: str) -> list[int]:
        """The commands that still wait in the list."""
        items = await redis.lrange(f"{project}_控制", 0, -1)
        return [orjson.loads(item)["args"]["number"] for item in items]

    async def check(self, redis: Redis, project: str) -> None:
        """Assert that none was lost and none was handled twice."""
        counts = Counter(self.handled)
        twice = {number: count for number, count in counts.items() if count > 1}
        assert not twice
        left = await self.waiting(redis, project)
        lost = set(self.pushed) - set(counts) - set(left)
        assert not lost
        assert not set(counts) & set(left)


@asynccontextmanager
async def producing(
    history: History, redis: Redis, project: str, pause: float
) -> AsyncIterator[None]:
    """Push commands in the background while the block runs."""

    async def push() -> None:
        while True:
            with anyio.CancelScope(shield=True):
                await history.push(redis, project)
            await anyio.sleep(pause)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(push)
        yield
        tasks.cancel_scope.cancel()


async def records(redis: Redis, project: str) -> list[dict[str, Any]]:
    """The console list, decoded."""
    items = await redis.lrange(f"{project}_项目控制台", 0, -1)
    return [orjson.loads(item) for item in items]


async def status_of(redis: Redis, project: str) -> str | None:
    """The status value, ``None`` also while Redis is away."""
    try:
        value = cast("bytes | None", await redis.get(f"{project}_项目状态"))
    except (RedisError, OSError):
        return None
    return None if value is None else value.decode()


@contextmanager
def sampled(
    url: str, key: str, read: Callable[[bytes], str] = bytes.decode
) -> Iterator[list[str]]:
    """Give what a thread sees under a key while the block runs, each change once."""
    seen: list[str] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            value = cast("bytes | None", client.get(key))
            word = read(value) if value else "nothing"
            if seen[-1:] != [word]:
                seen.append(word)

    with BlockingRedis.from_url(url, protocol=2) as client:
        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join()


async def is_there(redis: Redis, key: str) -> bool:
    """Whether a key exists."""
    return await redis.exists(key) == 1


async def is_gone(redis: Redis, key: str) -> bool:
    """Whether a key does not exist."""
    return await redis.exists(key) == 0


async def execute(redis: Redis, *words: object) -> Any:
    """Send any request; redis-py leaves its own method for that untyped."""
    client: Any = redis
    return await client.execute_command(*words)


async def remove_keys(redis: Redis, project: str) -> None:
    """Remove every key of a project, also those that lie beside the documented ones."""
    if keys := [key async for key in redis.scan_iter(f"*{project}*", 1_000)]:
        await redis.delete(*keys)


async def cut_connections(redis: Redis) -> int:
    """Kill every connection of the agents at the server; say how many there were."""
    found = [
        client["id"]
        for client in await redis.client_list()
        if client["name"].startswith("bls-agent:")
    ]
    for number in found:
        await execute(redis, "CLIENT", "KILL", "ID", number)
    return len(found)


async def url_with_rights(admin: Redis, server: DevServer, *rules: str) -> str:
    """Make a user with exactly these rights and give the URL that logs in as it."""
    await execute(
        admin, "ACL", "SETUSER", "agent", "reset", "on", f">{PASSWORD}", *rules
    )
    return f"redis://agent:{PASSWORD}@127.0.0.1:{server.port}/0"


async def are_blocked(admin: Redis, count: int) -> bool:
    """Whether so many clients wait at the server for something to come."""
    return bool((await admin.info("clients"))["blocked_clients"] == count)


def unsent_records(agent: ProjectAgent) -> list[dict[str, Any]]:
    """Take the records that wait to be written, decoded."""
    items = agent._state.stream.delivery.buffer.take(10_000, 1 << 30)
    return [orjson.loads(item.payload) for item in items]


def cyclic_cause() -> Exception:
    """Make an exception that is its own cause's cause."""
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first
