"""The console's side: projects by SCAN, names of others, following across trimming."""

from __future__ import annotations

from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import (
    ConfigurationError,
    Console,
    LogEntry,
    NoOutcomeError,
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
    Status,
    WrongTypeError,
)
from bls_agent.devserver import DevServer
from bls_agent.rights import console_acl_rules
from tests.harness import (
    cut_connections,
    eventually,
    needs_selectors,
    url_with_rights,
)


async def test_what_send_writes(redis: Redis, console: Console, project: str) -> None:
    """A command has exactly the contract's fields in the contract's order."""
    sent = await console.send(project, "reload", {"force": True})
    await console.send(project, "ping", id="cmd-1")
    first, second = await redis.lrange(f"{project}_控制", 0, -1)
    told = orjson.loads(first)
    assert list(told) == ["id", "timestamp", "source", "command", "args"]
    assert told["id"] == sent.id
    assert told["source"] == "BLS Project Console"
    assert told["args"] == {"force": True}
    assert sent.id.startswith("cmd-")
    assert len(sent.id.split("-")[2]) == 6
    assert list(orjson.loads(second)) == ["id", "timestamp", "source", "command"]


@pytest.mark.parametrize(
    ("project", "command", "args"),
    [
        ("", "x", None),
        ("a\n", "x", None),
        ("订单", " ", None),
        ("订单", "x", {"a": {1}}),
    ],
    ids=["empty name", "newline", "blank command", "args JSON cannot hold"],
)
async def test_what_cannot_be_sent_is_refused(
    console: Console, project: str, command: str, args: dict[str, Any] | None
) -> None:
    """A name or an argument that must not be written is a clear error, nothing is sent."""
    with pytest.raises(ConfigurationError):
        await console.send(project, command, args)


async def test_projects_with_nasty_names(own_server: DevServer) -> None:
    """Names with glob characters, braces, suffixes, bytes that are no UTF-8: all listed."""
    names = [
        "a*b",
        "a?",
        "[x]",
        "{a}",
        "}{",
        "a b",
        "项目状态_项目状态",
        "é",
        "e\u0301",
        "🚀",
        "\\",
    ]
    async with Redis.from_url(own_server.url, protocol=2) as redis:
        for name in names:
            await redis.set(f"{name}_项目状态", "在线")
        await redis.rpush("只有日志_项目控制台", "{}")
        await redis.rpush("只有命令_控制", "{}")
        await redis.set(b"\xb6\xa9\xb5\xa5" + "_项目状态".encode(), "离线")
        await redis.rpush("表_项目状态", "a list")
        await redis.mset({f"other:{i}": "x" for i in range(5_000)})
        async with Console(own_server.url) as console:
            found = await console.projects()
            assert set(names) < set(found)
            assert found["只有日志"] is None
            assert found["表"] is None
            gbk = next(name for name in found if "\udcb6" in name)
            assert str(await console.status(gbk)) == "离线"
            assert str(await console.status("a*b")) == "在线"
            with pytest.raises(WrongTypeError):
                await console.status("表")
        used = await redis.info("commandstats")
        assert "cmdstat_keys" not in used


@needs_selectors
async def test_projects_with_the_rights_for_one(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Whose status may not be read is left out; if nobody's may, that is said."""
    for name in (project, f"{project}-别人"):
        await admin.set(f"{name}_项目状态", "在线")
    alone = await url_with_rights(admin, own_server, *console_acl_rules(project))
    async with Console(alone) as console:
        assert await console.projects() == {project: Status.ONLINE}
    nobody = await url_with_rights(admin, own_server, *console_acl_rules("谁也不是"))
    async with Console(nobody) as console:
        with pytest.raises(RedisRefusedError):
            await console.projects()


async def test_down_is_not_empty(own_server: DevServer, project: str) -> None:
    """With Redis away every reading method raises; none says "nothing"."""
    console = Console(own_server.url)
    own_server.kill()
    for read in (
        console.projects,
        lambda: console.status(project),
        lambda: console.logs(project),
        lambda: console.send(project, "x"),
    ):
        with pytest.raises(RedisUnavailableError):
            await read()
    own_server.restart()
    assert await console.logs(project) == []
    await console.aclose()


async def test_a_call_without_an_answer(
    console: Console, redis: Redis, project: str
) -> None:
    """Nobody there: NoOutcomeError after the timeout; the command stays in the list."""
    with pytest.raises(NoOutcomeError) as caught:
        await console.call(project, "ping", timeout=0.1)
    assert isinstance(caught.value, TimeoutError)
    assert await redis.llen(f"{project}_控制") == 1


class Following:
    """Follows a project's log in the background and keeps what came."""

    def __init__(self, console: Console, project: str, **options: int) -> None:
        self._entries = console.follow_logs(project, interval=0.01, **options)
        self.entries: list[LogEntry] = []

    async def run(self) -> None:
        async for entry in self._entries:
            self.entries.append(entry)

    @property
    def texts(self) -> list[str]:
        return [entry.message for entry in self.entries if not entry.is_gap]

    @property
    def gaps(self) -> list[int | None]:
        return [e.metadata["gap"]["missing"] for e in self.entries if e.is_gap]


async def test_following_a_name_that_is_no_utf_8(
    redis: Redis, console: Console, project: str
) -> None:
    """A name that nobody of ours may have can be looked at all the same."""
    name = project.encode() + b"\xb6\xa9"
    key = name + "_项目控制台".encode()
    strange = name.decode("utf-8", "surrogateescape")
    await redis.rpush(key, '{"message":"hier"}')
    async for entry in console.follow_logs(strange, last=1):
        assert entry.message == "hier"
        break
    assert (await console.log_page(strange)).entries[0].message == "hier"
    assert await console.instances(strange) == {}
    await redis.delete(key)


async def test_following_is_exact_for_records_with_ids(
    redis_url: str, console: Console, project: str
) -> None:
    """Thousands of records through a list of 200: none twice, and every hole is told."""
    agent = ProjectAgent(
        project, redis=redis_url, log_list_limit=200, log_buffer=100_000
    )
    async with agent, anyio.create_task_group() as tasks:
        agent.log.info("early")
        await agent.flush()
        following = Following(console, project, last=5)
        tasks.start_soon(following.run)
        await eventually(lambda: following.texts == ["early"])
        for n in range(3_000):
            agent.log.info(str(n))
            if n % 40 == 0:
                await anyio.sleep(0.001)
        await agent.flush()
        await eventually(lambda: following.texts[-1] == "2999")
        tasks.cancel_scope.cancel()
    seen = [int(text) for text in following.texts[1:]]
    assert seen == sorted(set(seen))
    assert len(seen) + sum(gap or 0 for gap in following.gaps) == 3_000


async def test_following_across_cuts_and_a_restart(
    own_server: DevServer, project: str
) -> None:
    """Cut connections and a restart of the server: nothing missed, nothing twice."""
    agent = ProjectAgent(project, redis=own_server.url, log_buffer=100_000)
    async with (
        agent,
        Console(own_server.url) as console,
        anyio.create_task_group() as tasks,
    ):
        await agent.ready(5)
        following = Following(console, project)
        tasks.start_soon(following.run)
        await anyio.sleep(0.1)  # the follower fixes its place
        for n in range(600):
            agent.log.info(str(n))
            await anyio.sleep(0.001)
            if n == 200:
                async with Redis.from_url(own_server.url, protocol=2) as redis:
                    await cut_connections(redis)
            if n == 400:
                own_server.kill()
                own_server.restart()
        assert await agent.flush(10)
        await eventually(lambda: bool(following.texts) and following.texts[-1] == "599")
        tasks.cancel_scope.cancel()
    assert following.texts == [str(n) for n in range(600)]
    assert following.gaps == []


async def test_following_records_without_ids(
    redis: Redis, console: Console, project: str
) -> None:
    """Foreign records, equal ones too, are followed; a lost place is a visible gap."""
    key = f"{project}_项目控制台"
    same = b'{"level":"info","message":"same"}'
    await redis.rpush(key, same, same)
    async with anyio.create_task_group() as tasks:
        following = Following(console, project)
        tasks.start_soon(following.run)
        await anyio.sleep(0.1)  # the follower fixes its place
        await redis.rpush(key, same)
        await eventually(lambda: len(following.texts) == 1)
        await redis.rpush(key, b'{"message":"a"}', b"no json")
        await eventually(lambda: following.texts == ["same", "a", "no json"])
        async with redis.pipeline() as pipe:
            await pipe.delete(key)  # only queued, as the next one
            await pipe.rpush(key, b'{"message":"new list"}')
            await pipe.execute()
        await eventually(lambda: following.texts[-1] == "new list")
        await redis.delete(key)
        await eventually(lambda: following.gaps == [None, None])
        await redis.rpush(key, b'{"message":"newer list"}')
        await eventually(lambda: following.texts[-1] == "newer list")
        tasks.cancel_scope.cancel()
    assert following.gaps == [None, None]


@pytest.mark.parametrize("timeout", ["5", 0, -1.0, float("inf"), float("nan"), True])
async def test_a_wrong_timeout_is_refused_before_anything_is_sent(
    redis_url: str, redis: Redis, project: str, console: Console, timeout: Any
) -> None:
    """It is a mistake in the program, and no outage."""
    with pytest.raises(ConfigurationError, match="timeout"):
        Console(redis_url, timeout=timeout)
    with pytest.raises(ConfigurationError, match="timeout"):
        await console.call(project, "ping", timeout=timeout)
    assert await redis.llen(f"{project}_控制") == 0
