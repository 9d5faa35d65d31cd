"""The wall clock may jump: only the time that stands in records jumps with it."""

from __future__ import annotations

import time
from datetime import datetime

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import Console, OutcomeKind, ProjectAgent
from bls_agent.project.messages import LogEntry
from tests.harness import cut_connections, eventually, status_of

DAY = 86_400.0


def seconds_between(first: LogEntry, second: LogEntry) -> float:
    begin, end = (datetime.fromisoformat(one.timestamp) for one in (first, second))
    return (end - begin).total_seconds()


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0, 3 * DAY, -3 * DAY])
async def test_a_jump_changes_nothing_but_timestamps(
    redis_url: str, redis: Redis, console: Console, project: str, jump: float
) -> None:
    """Refreshing, time limits, backoff and following go on as if nothing had been."""
    agent = ProjectAgent(
        project, redis=redis_url, status_interval=0.2, status_ttl=1, reconnect_max=0.5
    )
    offset = 0.0

    def clock() -> float:
        return time.time() + offset

    agent._state.clock = agent._state.stream.now = clock
    seen: list[LogEntry] = []

    @agent.command(timeout=0.1)
    async def slow() -> None:
        await anyio.sleep_forever()

    async def follow() -> None:
        async for entry in console.follow_logs(project):
            seen.append(entry)  # noqa: PERF401 - looked at while it grows

    async def said(text: str) -> bool:
        return any(entry.message == text for entry in seen)

    async with agent, anyio.create_task_group() as tasks:
        await agent.ready(5)
        tasks.start_soon(follow)

        async def follows() -> bool:
            agent.log.info("before")
            return await said("before")

        await eventually(follows)
        await agent.flush()
        offset = jump
        agent.log.info("after")
        await eventually(lambda: said("after"))
        before = next(e for e in seen if e.message == "before")
        after = next(e for e in seen if e.message == "after")
        assert abs(seconds_between(before, after) - jump) < 5
        async with Console(redis_url) as other:
            began = time.monotonic()
            outcome = await other.call(project, "slow", timeout=5.0)
            assert outcome.kind is OutcomeKind.TIMED_OUT
            assert 100 <= outcome.duration_ms < 1_000
            writes = agent.stats().status_writes
            await eventually(lambda: agent.stats().status_writes >= writes + 3)
            assert time.monotonic() - began < 5
            assert await cut_connections(redis)
            assert (await other.call(project, "ping", timeout=5.0)).succeeded
        assert await status_of(redis, project) == "在线"
        agent.log.info("at the end")
        await eventually(lambda: said("at the end"))
        tasks.cancel_scope.cancel()
    said_by_host = [e.message for e in seen if e.outcome is None]
    assert list(dict.fromkeys(said_by_host)) == ["before", "after", "at the end"]
