"""The console's side: projects by SCAN, names of others, following across trimming."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import anyio
import orjson
import pytest
from anyio.abc import TaskGroup
from redis.asyncio import Redis

from bls_agent import (
    CommandTooLargeError,
    ConfigurationError,
    Console,
    LeaseHeldError,
    LogEntry,
    NoOutcomeError,
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
    Status,
    UnknownProjectError,
    WrongTypeError,
)
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.pool import ConnectionPool
from bls_agent.core.acl import console_acl_rules
from bls_agent.devserver import DevServer
from bls_agent.project.console.queue import read_backwards
from tests.harness import (
    cut_connections,
    eventually,
    execute,
    needs_selectors,
    url_with_rights,
)
from tests.kit import FaultProxy, Rate


async def test_what_send_writes(redis: Redis, console: Console, project: str) -> None:
    """A command has exactly the contract's fields in the contract's order."""
    sent = await console.send(project, "reload", {"force": True}, create=True)
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
        ("订单", "x", {"a": "长" * 30_000}),
    ],
    ids=["empty name", "newline", "blank command", "not JSON", "over 64 KB"],
)
async def test_what_cannot_be_sent_is_refused(
    console: Console, project: str, command: str, args: dict[str, Any] | None
) -> None:
    """A name or an argument that must not be written is a clear error, nothing is sent."""
    for create in (False, True):
        with pytest.raises(ConfigurationError):
            await console.send(project, command, args, create=create)


async def test_how_long_a_command_may_be(
    console: Console, redis: Redis, project: str
) -> None:
    """64 KB as the contract asks, to the byte; more where the fleet reads more."""
    empty = await console.send(project, "x", {"a": ""}, create=True, id="1")
    room = 65_535 - len(empty.encode())
    longest = await console.send(project, "x", {"a": "a" * room}, id="1")
    assert len(longest.encode()) == 65_535
    with pytest.raises(
        CommandTooLargeError, match=r"65,536 bytes.*size_limit"
    ) as caught:
        await console.send(project, "x", {"a": "a" * (room + 1)}, id="1")
    assert (caught.value.size, caught.value.limit) == (65_536, 65_535)
    for call in (console.call, console.call_all):
        with pytest.raises(CommandTooLargeError):
            await call(project, "x", {"a": "a" * 70_000})
    await console.send(project, "x", {"a": "a" * 70_000}, size_limit=100_000)
    assert await redis.llen(f"{project}_控制") == 3


@pytest.mark.parametrize("name", [None, b"p", ["p"], "\ud800"])
async def test_what_is_no_name(console: Console, name: Any) -> None:
    """Said as any other wrong argument."""
    with pytest.raises(ConfigurationError, match="project"):
        await console.send(name, "ping")


async def test_a_name_that_nobody_has(
    console: Console, redis: Redis, redis_url: str, project: str
) -> None:
    """No key is made by a misspelt name; any of the three keys is a sign of life."""
    for send in (console.send, console.call, console.call_all):
        with pytest.raises(UnknownProjectError, match="create=True") as caught:
            await send(project, "ping")
        assert caught.value.project == project
    assert not await redis.exists(f"{project}_控制", f"{project}_项目控制台")
    for suffix, kind in (
        ("项目状态", "set"),
        ("项目控制台", "rpush"),
        ("控制", "rpush"),
    ):
        await getattr(redis, kind)(f"{project}_{suffix}", "{}")
        async with Console(redis_url) as other:
            assert await other.exists(project)
            await other.send(project, "ping")
        await redis.delete(f"{project}_{suffix}", f"{project}_控制")
    assert not await console.exists(project)


async def test_a_name_in_another_form_that_exists(
    console: Console, redis: Redis, project: str
) -> None:
    """What the console lists it can command, also a name that we would not give."""
    name = f"{project}e\u0301"
    await redis.set(f"{name}_项目状态", "在线")
    await console.send(name, "ping")
    assert await redis.llen(f"{name}_控制") == 1
    with pytest.raises(ConfigurationError, match="NFC"):
        await console.send(f"{name}2", "ping")
    await console.forget(name, force=True)
    assert not await redis.exists(f"{name}_项目状态", f"{name}_控制")


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


@needs_selectors
@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "flat"])
@pytest.mark.parametrize("alone", [True, False], ids=["one", "all"])
async def test_forgetting_with_the_rights_for_it(
    own_server: DevServer, admin: Redis, project: str, selectors: bool, alone: bool
) -> None:
    """The rights with forget=True are enough, and those without are not."""
    place = f"bls_agent:{{{project}_控制}}"
    for key in (f"{project}_控制", f"{place}:inflight:死", f"{place}:dead"):
        await admin.rpush(key, "{}")
    await admin.set(f"bls_agent:{place}:inflight:活:owner", "x", ex=30)
    named = project if alone else None
    for forget in (False, True):
        rules = console_acl_rules(named, forget=forget, selectors=selectors)
        url = await url_with_rights(admin, own_server, *rules)
        async with Console(url) as console:
            if not forget:
                with pytest.raises(RedisRefusedError):
                    await console.forget(project, force=True)
                continue
            with pytest.raises(LeaseHeldError):
                await console.forget(project)
            assert len(await console.forget(project, force=True)) == 3


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


@pytest.mark.parametrize(
    ("status", "taken", "state", "said"),
    [
        (
            "离线",
            False,
            "offline",
            "offline since 2026-01-12T12:35:00.000Z: .* next start",
        ),
        (None, False, "offline", "offline since 2026"),
        ("在线", False, "waiting", "still stands in the queue"),
        ("在线", True, "taken", "it was taken"),
    ],
)
async def test_a_call_without_an_answer(
    console: Console,
    redis: Redis,
    project: str,
    status: str | None,
    taken: bool,
    state: str,
    said: str,
) -> None:
    """NoOutcomeError after the timeout says where the command is, and who is not there."""
    record = '{"timestamp":"2026-01-12T12:35:00.000Z","message":"bye"}'
    await redis.rpush(f"{project}_项目控制台", record)
    if status:
        await redis.set(f"{project}_项目状态", status)
    await redis.rpush(f"{project}_控制", *[b"no command"] * 150)
    async with anyio.create_task_group() as tasks:
        if taken:
            tasks.start_soon(drain, redis, f"{project}_控制", 151)
        with pytest.raises(NoOutcomeError, match=said) as caught:
            await console.call(project, "ping", timeout=1.0 if taken else 0.1)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.state == state
    assert await redis.llen(f"{project}_控制") == (0 if taken else 151)


async def drain(redis: Redis, key: str, count: int) -> None:
    """Take so many elements, as an agent that answers nothing."""
    taken = len(await redis.lpop(key, count) or ())
    for _ in range(count - taken):
        await redis.blpop([key], 5)


async def test_what_waits_can_be_seen_and_withdrawn(
    console: Console, redis: Redis, project: str
) -> None:
    """By its exact bytes, among strangers' elements; of what was taken None tells."""
    key = f"{project}_控制"
    await console.send(project, "first", {"n": 1}, id="a", create=True)
    await redis.rpush(key, b"\xff", b'{"command":5,"id":7}', b'["x"]')
    await redis.rpush(key, b'{"id":"big","args":{"a":"%s"}}' % (b"x" * 2_000_000))
    await redis.rpush(key, *[b'{"id": "b" , "command": "twice"}'] * 2)
    await console.send(project, "last", id="c")
    waiting = await console.queue(project)
    assert [one.id for one in waiting] == ["a", "", "7", "", "big", "b", "b", "c"]
    assert [one.command for one in waiting][::7] == ["first", "last"]
    assert waiting[0].args == {"n": 1}
    assert [one.id for one in await console.queue(project, 2)] == ["a", ""]
    withdrawn = await console.withdraw(project, "b")
    assert withdrawn is not None
    assert withdrawn.command == "twice"
    assert await console.withdraw(project, "b") is None
    assert await console.withdraw(project, "big")
    await redis.lpop(key)
    assert await console.withdraw(project, "a") is None
    assert await redis.llen(key) == 4
    with pytest.raises(ConfigurationError, match="id"):
        await console.withdraw(project, "")
    await redis.delete(key)
    await redis.set(key, "no list")
    for ask in (console.queue(project), console.withdraw(project, "a")):
        with pytest.raises(WrongTypeError):
            await ask


async def test_a_server_that_cannot_answer_shows_no_project(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """The name neither exists nor is remembered."""
    await admin.config_set("replica-serve-stale-data", "no")
    await execute(admin, "REPLICAOF", "127.0.0.1", "1")
    async with Console(own_server.url) as console:
        for ask in (console.exists(project), console.send(project, "x")):
            with pytest.raises(RedisUnavailableError, match="master_down"):
                await ask
        await execute(admin, "REPLICAOF", "NO", "ONE")
        with pytest.raises(UnknownProjectError):
            await console.send(project, "x")


async def test_two_consoles_withdraw_at_the_same_time(
    redis_url: str, redis: Redis, project: str
) -> None:
    """What one of them takes out moves the rest, and hides none of it from the other."""
    key = f"{project}_控制"
    payloads = [orjson.dumps({"id": str(n)}) for n in range(350)]
    await redis.rpush(key, *payloads)
    pool = ConnectionPool(Endpoint.of(redis_url), "two", timeout=5)
    found: list[str] = []
    try:
        async for _, command in read_backwards(pool, key):
            found.append(command.id)
            if len(found) == 50:
                for n in (*range(260, 340), 251):  # 251 is where the pages meet
                    await redis.lrem(key, 0, f'{{"id":"{n}"}}')
                await redis.rpush(key, b'{"id":"new"}')
    finally:
        await pool.aclose()
    assert set(map(str, range(250))) <= set(found)


@pytest.mark.parametrize("count", [50, 150, 1_000])
async def test_commands_are_put_back_during_a_search(
    redis_url: str, redis: Redis, project: str, count: int
) -> None:
    """They move all others, and hide none of them."""
    key = f"{project}_控制"
    await redis.rpush(key, *(orjson.dumps({"id": str(n)}) for n in range(1_000)))
    pool = ConnectionPool(Endpoint.of(redis_url), "back", timeout=5)
    found: list[str] = []
    try:
        async for _, command in read_backwards(pool, key):
            found.append(command.id)
            if len(found) == 150:
                await redis.lpush(key, *[b'{"id":"back"}'] * count)
    finally:
        await pool.aclose()
    assert set(map(str, range(1_000))) <= set(found)


async def test_a_search_ends_in_a_list_that_grows_faster_than_a_page(
    redis_url: str, redis: Redis, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 commands are pushed at each read of 100, and the first 300 are still found."""
    key = f"{project}_控制"
    await redis.rpush(key, *(orjson.dumps({"id": str(n)}) for n in range(300)))
    pool = ConnectionPool(Endpoint.of(redis_url), "grows", timeout=5)
    read = pool.read

    async def read_behind_pushes(*request: Any) -> Any:
        await redis.rpush(key, *(b'{"id":"new"}' for _ in range(150)))
        return await read(*request)

    found: set[str] = set()
    monkeypatch.setattr(pool, "read", read_behind_pushes)
    try:
        with anyio.fail_after(10):
            async for _, command in read_backwards(pool, key):
                found.add(command.id)
    finally:
        await pool.aclose()
    assert found == {*map(str, range(300)), "new"}


async def test_who_is_first_an_agent_or_the_one_who_withdraws(
    console: Console, redis: Redis, project: str
) -> None:
    """Each of 300 commands is taken by exactly one of the two."""
    key = f"{project}_控制"
    taken: list[str] = []
    for n in range(300):
        await console.send(project, "x", id=f"cmd-{n}", create=True)

    async def take() -> None:
        while isinstance(payload := await redis.lpop(key), bytes):
            taken.append(orjson.loads(payload)["id"])

    withdrawn: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        for n in reversed(range(300)):
            found = await console.withdraw(project, f"cmd-{n}")
            withdrawn += [found.id] if found else []
    assert sorted(taken + withdrawn) == sorted(f"cmd-{n}" for n in range(300))


async def test_an_agent_takes_while_all_are_withdrawn(
    console: Console, redis: Redis, project: str
) -> None:
    """Each of 300 commands, also those with equal bytes, is counted once."""
    key = f"{project}_控制"
    taken: list[str] = []
    await redis.rpush(key, *[f'{{"id":"{n // 2}"}}' for n in range(300)])

    async def take() -> None:
        payloads = [await redis.lpop(key) for _ in range(40)]
        found = (one for one in payloads if isinstance(one, bytes))
        taken.extend(orjson.loads(one)["id"] for one in found)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        withdrawn = [one.id for one in await console.withdraw_all(project)]
    assert withdrawn == sorted(withdrawn, key=int)
    counted = sorted(taken + withdrawn, key=int)
    assert counted == [str(n // 2) for n in range(300)]
    assert await console.withdraw_all(project) == []
    await redis.set(key, "no list")
    with pytest.raises(WrongTypeError):
        await console.withdraw_all(project)


@pytest.mark.parametrize("method", ["withdraw_all", "requeue", "discard"])
async def test_a_failover_halfway_is_told(
    own_server: DevServer, admin: Redis, project: str, method: str
) -> None:
    """The error says that some commands may be moved, because some are."""
    beside = "" if method == "withdraw_all" else f"bls_agent:{{{project}_控制}}:dead"
    key, count = beside or f"{project}_控制", 250
    await admin.rpush(key, *[f'{{"id":"{n}"}}' for n in range(count)])
    async with (
        FaultProxy(own_server.url) as link,
        Console(link.url) as console,
        anyio.create_task_group() as tasks,
    ):
        await console.exists(project)

        async def move_all() -> None:
            options = {"all": True} if beside else {}
            with pytest.raises(RedisUnavailableError) as caught:
                await getattr(console, method)(project, **options)
            assert (caught.value.kind, caught.value.ambiguous) == ("read_only", True)

        async def is_halfway() -> bool:
            return await admin.llen(key) < count

        async with link.during(Rate(40_000)):
            tasks.start_soon(move_all)
            await eventually(is_halfway)
            await admin.replicaof("127.0.0.1", "1")
    assert 0 < await admin.llen(key) < count


@pytest.mark.parametrize("own", [UUID(int=7), 7])
async def test_an_id_that_is_no_text(
    console: Console, redis_url: str, project: str, own: Any
) -> None:
    """A UUID or an integer becomes a text, by which the command and its end are found."""
    sent = await console.send(project, "ping", id=own, create=True)
    assert sent.id == str(own)
    assert await console.withdraw(project, sent.id) == sent
    async with ProjectAgent(project, redis=redis_url):
        call: Any = console.call
        assert (await call(project, "ping", id=own)).command_id == str(own)


async def test_a_project_that_was_found_is_not_looked_for_again(
    console: Console, redis: Redis, redis_url: str, project: str
) -> None:
    """So a project whose keys have expired can still be commanded."""
    keys = (f"{project}_项目状态", f"{project}_控制")
    await redis.set(keys[0], "在线")
    await console.send(project, "ping")
    await redis.delete(*keys)
    await console.send(project, "ping")
    await redis.delete(*keys)
    async with Console(redis_url) as other:
        with pytest.raises(UnknownProjectError):
            await other.send(project, "ping")


async def test_forgetting_a_project(
    console: Console, redis: Redis, redis_url: str, project: str
) -> None:
    """Every key that is its own, also those of replicas and reliable mode; no other."""
    options: dict[str, Any] = {"redis": redis_url, "mode": "reliable", "replicas": True}
    async with ProjectAgent(project, instance="一", **options) as agent:
        await agent.ready(5)
        assert (await console.call(project, "ping")).succeeded
        await console.call_all(project, "ping")
        with pytest.raises(LeaseHeldError, match="force=True"):
            await console.forget(project)
        assert await console.status(project) is Status.ONLINE
    place = f"bls_agent:{{{project}_控制}}"
    await redis.rpush(f"{place}:inflight:死", "{}")
    await redis.hset(f"{place}:inflight", f"{place}:inflight:死", "1")
    await redis.rpush(f"{place}:broadcast:死", "{}")
    await redis.rpush(f"{place}:dead", "{}")
    others = [f"{project}x_控制", f"bls_agent:{{{project}x_控制}}:inflight:一"]
    others += [f"bls_agent:{{x{project}_控制}}:seen", f"{project}_update_控制"]
    # Beside the list of a project with a nasty name, it looks like one of ours.
    others.append(f"{place}:inflight:别人_控制:inflight")
    for key in others:
        await redis.rpush(key, "x")
    deleted = await console.forget(project)
    assert {f"{project}_项目状态", f"{project}_项目控制台"} < set(deleted)
    assert {f"{place}:inflight:死", f"{place}:broadcast:死", f"{place}:dead"} < {
        *deleted
    }
    left = [key.decode() async for key in redis.scan_iter(f"*{project}*")]
    assert sorted(left) == sorted(others)
    assert await console.forget(project) == []
    await redis.delete(*others)


async def test_forgetting_what_somebody_holds(
    console: Console, redis: Redis, project: str
) -> None:
    """The list of an agent in mode reliable that lives is left alone, also by force."""
    place = f"bls_agent:{{{project}_控制}}"
    held = f"{place}:inflight:活"
    await redis.rpush(held, "{}")
    await redis.hset(f"{place}:inflight", held, "1")
    await redis.set(f"bls_agent:{held}:owner", "token", ex=30)
    await redis.set(f"{project}_项目状态", "离线")
    with pytest.raises(LeaseHeldError) as caught:
        await console.forget(project)
    assert 20 < (caught.value.remaining or 0) <= 30
    assert await console.forget(project, force=True) == [f"{project}_项目状态"]
    left = {key.decode() async for key in redis.scan_iter(f"*{project}*")}
    assert left == {held, f"{place}:inflight", f"bls_agent:{held}:owner"}
    await redis.delete(*left)


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


async def follow_from(
    agent: ProjectAgent, first: str, console: Console, tasks: TaskGroup
) -> Following:
    """Log a first record, and follow the log when this record was read."""
    agent.log.info(first)
    await agent.flush()
    following = Following(console, agent.project, last=5)
    tasks.start_soon(following.run)
    await eventually(lambda: following.texts == [first])
    return following


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
        following = await follow_from(agent, "early", console, tasks)
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


async def test_a_record_with_a_field_agent_of_its_own_is_no_gap(
    redis_url: str, console: Console, project: str
) -> None:
    """It has no id, so it uses no number, and no record counts as missing."""
    agent = ProjectAgent(project, redis=redis_url)
    async with agent, anyio.create_task_group() as tasks:
        following = await follow_from(agent, "before", console, tasks)
        agent.log.info("step", agent="planner")
        agent.log.info("after")
        await eventually(lambda: following.texts == ["before", "step", "after"])
        tasks.cancel_scope.cancel()
    assert following.gaps == []


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
