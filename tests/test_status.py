"""The status key: bytes, TTL, changes at once, last words, and never over another type."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, Console, ProjectAgent, Settings, Status
from bls_agent.core.settings import Mode
from bls_agent.devserver import DevServer
from bls_agent.testing.link import Act, Direction, FaultProxy
from tests.harness import (
    cut_connections,
    eventually,
    needs_selectors,
    records,
    status_of,
    url_with_rights,
)


async def test_status_is_set_and_refreshed(
    redis_url: str, redis: Redis, project: str
) -> None:
    """在线 with its TTL, refreshed before a third of it has passed."""
    key = f"{project}_项目状态"
    agent = ProjectAgent(project, redis=redis_url, status_interval=0.1, status_ttl=2)
    async with agent:
        await agent.ready(5)
        assert await redis.get(key) == "在线".encode()
        assert await redis.type(key) == b"string"
        assert 1_000 < await redis.pttl(key) <= 2_000
        await eventually(lambda: agent.stats().status_writes >= 5)
        assert await redis.pttl(key) > 1_500
    assert await redis.get(key) == "离线".encode()
    assert await redis.ttl(key) == -1


@pytest.mark.parametrize("status", list(Status), ids=lambda s: s.name)
async def test_a_change_is_written_at_once(
    redis_url: str, redis: Redis, project: str, status: Status
) -> None:
    """set_status shows long before the next refresh, also from another thread."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=20)
    async with agent:
        await agent.ready(5)
        agent.set_status(Status.ERROR if status is Status.ONLINE else Status.ONLINE)
        thread = threading.Thread(target=agent.set_status, args=(status,))
        thread.start()
        await eventually(lambda: _is(redis, project, status), 1)
        thread.join()
        assert agent.status is status


async def test_a_late_status_does_not_replace_a_newer_one(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The server closes the connection of a write that had no reply in time."""
    late: list[int] = []

    def examine(number: int, direction: Direction, data: bytes) -> list[Act]:
        is_chosen = direction is Direction.REQUESTS and "故障".encode() in data
        if not is_chosen or late:
            return [data]
        late.append(number)
        return [1.5, data]

    async with FaultProxy(redis_url) as proxy:
        agent = ProjectAgent(project, redis=proxy.url, redis_timeout=0.3)
        async with agent:
            await agent.ready(5)
            proxy.examine = examine
            agent.set_status(Status.FAULT)
            await eventually(lambda: len(late) == 1)
            await eventually(lambda: _is(redis, project, Status.FAULT))
            agent.set_status(Status.ONLINE)
            await eventually(lambda: _is(redis, project, Status.ONLINE))
            await eventually(lambda: late[0] not in proxy.connections)
            assert await _is(redis, project, Status.ONLINE)


async def _is(redis: Redis, project: str, status: Status) -> bool:
    return await status_of(redis, project) == status.value


async def _settled(agent: ProjectAgent) -> None:
    """Wait until the connections that it needs are there."""
    await eventually(
        lambda: (
            agent.stats().connections["blocking"]
            and agent.stats().connections["liveness"]
        )
    )
    for status in (Status.ERROR, Status.ONLINE):
        await _write(agent, status)


@pytest.mark.parametrize("replicas", [False, True])
@pytest.mark.parametrize("mode", ["blocking", "compat", "reliable"])
async def test_opening_writes_the_status_once(
    redis_url: str, console: Console, project: str, mode: Mode, replicas: bool
) -> None:
    """However many connections are made, until one is lost."""
    agent = ProjectAgent(project, redis=redis_url, mode=mode, replicas=replicas)
    agent.health_check("database")(lambda: True)
    async with agent:
        await agent.ready(5)
        for _ in range(3):
            assert (await console.call(project, "ping")).succeeded
        assert agent.stats().status_writes == 1


async def _write(agent: ProjectAgent, status: Status) -> None:
    """Set a status and wait until something was written."""
    before = agent.stats().status_writes
    agent.set_status(status)
    await eventually(lambda: agent.stats().status_writes > before)


async def test_a_change_while_another_one_is_written(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Taken back while the server is slow to write it, the former status is back soon."""
    agent = ProjectAgent(project, redis=own_server.url, status_interval=20)
    async with agent:
        await _settled(agent)
        before = agent.stats().status_writes
        own_server.freeze()
        agent.set_status(Status.FAULT)
        await anyio.sleep(0.1)  # the write is on its way, and no event tells so
        agent.set_status(Status.ONLINE)
        own_server.thaw()
        await eventually(lambda: agent.stats().status_writes >= before + 2, 3)
        await eventually(lambda: _is(admin, project, Status.ONLINE), 3)


async def test_setting_the_same_again_writes_nothing(
    redis_url: str, project: str
) -> None:
    """A host may set its status as often as it likes."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=20)
    async with agent:
        await _settled(agent)
        before = agent.stats().status_writes
        for _ in range(100):
            agent.set_status(Status.ONLINE)
            await anyio.sleep(0.001)
        await _write(agent, Status.ERROR)
        assert agent.stats().status_writes - before < 5


@pytest.mark.parametrize(
    ("error", "last_word"),
    [
        (KeyError("库存"), "故障"),
        (SystemExit(3), "故障"),
        (SystemExit(0), "离线"),
        (SystemExit(), "离线"),
        (KeyboardInterrupt(), "离线"),
        (asyncio.CancelledError(), "离线"),
    ],
    ids=repr,
)
async def test_last_words(
    redis_url: str, redis: Redis, project: str, error: BaseException, last_word: str
) -> None:
    """The body's exception leaves unchanged, and the last word says what it means."""
    caught: BaseException | None = None
    try:
        async with ProjectAgent(project, redis=redis_url):
            raise error
    except BaseException as found:
        caught = found
    assert caught is error
    assert await status_of(redis, project) == last_word
    assert await redis.ttl(f"{project}_项目状态") == -1


async def test_another_type_is_left_alone(
    redis_url: str, redis: Redis, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A list under the status key is never overwritten, and it is said once."""
    key = f"{project}_项目状态"
    await redis.rpush(key, "somebody's data")
    agent = ProjectAgent(project, redis=redis_url)
    async with agent:
        await eventually(lambda: agent.stats().status_failures > 0)
        agent.set_status(Status.ERROR)
    assert await redis.lrange(key, 0, -1) == [b"somebody's data"]
    said = [r for r in caplog.records if "another type" in r.getMessage()]
    assert len(said) == 1


@needs_selectors
async def test_another_type_is_left_alone_by_a_user_who_may_not_read(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Redis refuses SET with GET, so the agent looks at the type before its first SET."""
    key = f"{project}_项目状态"
    await admin.rpush(key, "somebody's data")
    rules = ("+@all", "~*控制*", "~bls_agent*", f"%W~{key}")
    url = await url_with_rights(admin, own_server, *rules)
    async with ProjectAgent(project, redis=url) as agent:
        await eventually(lambda: agent.stats().status_failures > 0)
        agent.set_status(Status.ERROR)
    assert await admin.lrange(key, 0, -1) == [b"somebody's data"]


async def test_out_of_memory_keeps_the_status_alive(project: str) -> None:
    """Where SET is refused for lack of memory, EXPIRE keeps a true status alive."""
    with DevServer() as server:
        async with Redis.from_url(server.url, protocol=2) as redis:
            agent = ProjectAgent(
                project, redis=server.url, status_interval=0.2, status_ttl=1
            )
            async with agent:
                await agent.ready(5)
                await redis.config_set("maxmemory", "1")
                until = anyio.current_time() + 1.7
                while anyio.current_time() < until:
                    assert await status_of(redis, project) == "在线"
                    await anyio.sleep(0.05)
                agent.set_status(Status.ERROR)  # refused: the old one must lapse
                await eventually(lambda: _gone(redis, project), 3)
                await redis.config_set("maxmemory", "0")
                await eventually(lambda: _is(redis, project, Status.ERROR), 3)


async def _gone(redis: Redis, project: str) -> bool:
    return await status_of(redis, project) is None


async def test_the_console_reads_it(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Console.status and projects agree with the key; a foreign value is no status."""
    async with ProjectAgent(project, redis=redis_url) as agent:
        await agent.ready(5)
        assert await console.status(project) is Status.ONLINE
        assert (await console.projects())[project] is Status.ONLINE
    await redis.set(f"{project}_项目状态", "运行中")
    with pytest.raises(Exception, match="bad_status"):
        await console.status(project)
    assert (await console.projects())[project] is None
    await redis.delete(f"{project}_项目状态")
    assert await console.status(project) is None


@pytest.mark.parametrize(
    "word", ["故障", "fault", " Fault ", Status.FAULT, "FAULT"], ids=repr
)
def test_a_status_may_be_a_word(word: str) -> None:
    """The word of the protocol, or the English one, in any case."""
    agent = ProjectAgent("订单系统")
    agent.set_status(word)
    assert agent.status is Status.FAULT


class Nasty:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "value",
    ["运行中", "onlin", "", None, 1, [], Nasty()],
    ids=["foreign", "typo", "empty", "none", "number", "list", "nasty"],
)
def test_what_is_no_status_is_refused(value: Any) -> None:
    """The error names the four, and the status stays."""
    agent = ProjectAgent("订单系统")
    agent.set_status(Status.ERROR)
    with pytest.raises(ConfigurationError, match=r"在线 \(online\), 离线 \(offline\)"):
        agent.set_status(value)
    assert agent.status is Status.ERROR


def test_wrong_intervals_are_refused() -> None:
    """An interval beyond half of the TTL is a clear error."""
    with pytest.raises(ConfigurationError, match="half of status_ttl"):
        ProjectAgent("订单系统", status_interval=31, status_ttl=60)
    with pytest.raises(ConfigurationError, match="half of status_ttl"):
        Settings(status_interval=31)


@pytest.mark.parametrize(("interval", "said"), [(30, 1), (20, 0)])
async def test_the_contracts_own_pair(
    redis_url: str, redis: Redis, project: str, interval: int, said: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Every 30 s with EX 60 is allowed; what that costs is said once."""
    agent = ProjectAgent(
        project, redis=redis_url, status_interval=interval, status_ttl=60
    )
    async with agent:
        await agent.ready(5)
        assert 50 < await redis.ttl(f"{project}_项目状态") <= 60
    told = [r for r in caplog.records if "one lost refresh" in r.getMessage()]
    assert len(told) == said


async def test_a_server_that_forgot_is_told_again_soon(project: str) -> None:
    """After a restart without data the status is back with the first connection."""
    with DevServer() as server:
        agent = ProjectAgent(project, redis=server.url)
        async with agent:
            await agent.ready(5)
            server.kill()
            await anyio.sleep(0.3)  # an outage lasts
            server.restart()
            async with Redis.from_url(server.url, protocol=2) as redis:
                await eventually(lambda: _is(redis, project, Status.ONLINE), 3.5)


def _say_foreign(caplog: pytest.LogCaptureFixture) -> int:
    return sum("another process also writes" in r.getMessage() for r in caplog.records)


async def _foreign_records(redis: Redis, project: str) -> list[dict[str, Any]]:
    found = await records(redis, project)
    return [r for r in found if "another process also writes" in r["message"]]


@pytest.mark.parametrize(
    ("value", "ttl"),
    [("故障", 2), ("离线", None)],
    ids=["another value", "last word"],
)
async def test_somebody_else_who_refreshes_the_key(
    redis_url: str,
    redis: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
    value: str,
    ttl: int | None,
) -> None:
    """A second writer is seen and said once, in both logs, with the remedy."""
    agent = ProjectAgent(project, redis=redis_url, status_interval=0.3, status_ttl=1)
    async with agent:
        await agent.ready(5)
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                while True:
                    await redis.set(f"{project}_项目状态", value, ex=ttl)
                    await anyio.sleep(0.05)

            tasks.start_soon(write)
            await eventually(lambda: _say_foreign(caplog) > 0, 5)
            before = agent.stats().status_writes
            await eventually(lambda: agent.stats().status_writes > before + 2)
            tasks.cancel_scope.cancel()
        assert await agent.flush(5)
    assert _say_foreign(caplog) == 1
    (told,) = await _foreign_records(redis, project)
    assert told["level"] == "warn"
    assert told["metadata"]["key"] == f"{project}_项目状态"
    assert "replicas=True" in told["message"]


async def test_what_is_no_somebody_else(
    own_server: DevServer,
    admin: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A predecessor, cuts, frozen and restarted servers, memory, stalls, own changes."""
    key = f"{project}_项目状态"
    await admin.set(key, "故障", ex=3600)  # a predecessor's
    agent = ProjectAgent(
        project,
        redis=own_server.url,
        status_interval=0.1,
        status_ttl=1,
        stall_after=0.2,
        redis_timeout=0.3,
    )
    async with agent:
        await agent.ready(5)
    async with agent:
        await agent.ready(5)
        for status in (Status.ERROR, Status.FAULT, Status.ONLINE):
            await _write(agent, status)
        await cut_connections(admin)
        await _writes_again(agent)
        own_server.freeze()
        agent.set_status(Status.ERROR)
        await anyio.sleep(0.5)  # the write is doubtful, and no event tells so
        own_server.thaw()
        await _writes_again(agent)
        await admin.config_set("maxmemory", "1")
        await anyio.sleep(0.3)  # EXPIRE keeps it alive
        await admin.config_set("maxmemory", "0")
        await _writes_again(agent)
        for _ in range(2):
            time.sleep(0.5)
            await _writes_again(agent)
        await admin.delete(key)
        await _writes_again(agent)
        own_server.kill()
        await anyio.sleep(0.2)  # an outage lasts
        own_server.restart()
        await _writes_again(agent)
    assert _say_foreign(caplog) == 0


async def _writes_again(agent: ProjectAgent) -> None:
    """Wait until the status was written twice more."""
    before = agent.stats().status_writes
    await eventually(lambda: agent.stats().status_writes >= before + 2, 15)


async def test_a_reason_is_logged_before_the_status(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A new reason is one record, and so is its end; the status has the four values."""
    agent = ProjectAgent(project, redis=redis_url, error_window=60)
    async with agent:
        await agent.ready(5)
        agent.set_status("fault", reason="no database, password=geheim")
        agent.set_status("fault", reason="no database, password=geheim")
        await eventually(lambda: _is(redis, project, Status.FAULT))
        agent.set_status(Status.ONLINE)
        await eventually(lambda: _is(redis, project, Status.ONLINE))
        await agent.flush()
    first, second = await records(redis, project)
    text = "no database, password=[redacted]"
    assert (first["level"], first["message"]) == (
        "error",
        f"the service reports 故障: {text}",
    )
    assert first["metadata"]["statusReason"] == text
    assert (second["level"], second["message"]) == ("info", "the service reports 在线")
    assert second["metadata"]["statusReason"] == ""


async def test_the_exception_that_ends_the_service_is_the_reason(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The last record has it without secrets; an end in order leaves none."""
    with pytest.raises(ConnectionError):
        async with ProjectAgent(project, redis=redis_url):
            raise ConnectionError("no database, password=geheim")
    (record,) = await records(redis, project)
    reason = "ConnectionError: no database, password=[redacted]"
    assert record["level"] == "error"
    assert record["message"] == f"the service was ended by {reason}"
    assert record["metadata"]["statusReason"] == reason
    assert "test_status.py" in record["metadata"]["error"]["traceback"]
    assert await status_of(redis, project) == "故障"
    with pytest.raises(SystemExit):
        async with ProjectAgent(project, redis=redis_url):
            raise SystemExit(0)
    assert len(await records(redis, project)) == 1


async def test_a_status_without_a_reason_logs_nothing(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Without a reason a change is written to the status key alone; a wrong one is refused."""
    async with ProjectAgent(project, redis=redis_url) as agent:
        for status in Status:
            agent.set_status(status)
        with pytest.raises(ConfigurationError, match="reason"):
            agent.set_status(Status.FAULT, reason=1)  # type: ignore[arg-type]
        assert agent.status is Status.ERROR
    assert await records(redis, project) == []
