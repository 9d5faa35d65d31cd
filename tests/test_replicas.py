"""Several processes of one project: one status, a list of the living, broadcasts to all."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import (
    Console,
    Level,
    LogEntry,
    NoOutcomeError,
    ProjectAgent,
    RedisUnavailableError,
    Status,
)
from bls_agent.devserver import DevServer
from bls_agent.project.commands.dispatcher import BROADCAST_MODE
from bls_agent.project.console.log import OutcomeCollector
from bls_agent.project.receive.receiver import Message
from bls_agent.project.status.replicas import list_living
from tests.harness import (
    History,
    command_bytes,
    cut_connections,
    eventually,
    execute,
    needs_selectors,
    records,
    status_of,
    url_with_rights,
)
from tests.programs import Program

ROSTER = "bls_agent:{{{project}_项目状态}}:instances"
INBOX = "bls_agent:{{{project}_控制}}:broadcast:{instance}"


def replica(project: str, url: str, instance: str, **options: Any) -> ProjectAgent:
    """One of several agents of a project; quick, so that tests are."""
    quick = {"status_ttl": 1, "status_interval": 0.2, "replicas": True}
    return ProjectAgent(project, redis=url, instance=instance, **{**quick, **options})


async def _shows(redis: Redis, project: str, status: str | None) -> bool:
    return await status_of(redis, project) == status


PROGRAM = """
import os, sys
import anyio
from bls_agent import ProjectAgent, Status
project, url, name = sys.argv[1:4]
agent = ProjectAgent(project, redis=url, instance=name, replicas=True,
                     status_ttl=1, status_interval=0.2)
@agent.command
def who() -> int:
    return os.getpid()
@agent.command
def say(status: str) -> None:
    agent.set_status(Status(status))
async def main():
    async with anyio.create_task_group() as tasks:
        await tasks.start(agent.run)
        print("ready", flush=True)
anyio.run(main)
"""


async def test_three_processes_live_and_die(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """One is killed, one is stopped, the last one out says 离线; none lies before."""
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(Program("-c", PROGRAM, project, redis_url, name))
            for name in ("甲", "乙", "丙")
        }
        for program in started.values():
            assert program.line() == "ready"
        assert set(await console.instances(project)) == {"甲", "乙", "丙"}
        ended = await console.call_all(project, "who", timeout=10)
        assert {name: o.result for name, o in ended.items()} == {
            name: program.pid for name, program in started.items()
        }
        started["甲"].kill()
        await eventually(lambda: _lives(console, project, {"乙", "丙"}), 5)
        assert await status_of(redis, project) == "在线"

        seen: set[str | None] = set()
        started["乙"].terminate()
        with anyio.move_on_after(1.5):
            while True:
                seen.add(await status_of(redis, project))
                await anyio.sleep(0.02)
        assert started["乙"].end().code == 0
        assert seen == {"在线"}
        assert await console.instances(project) == {"丙": Status.ONLINE}

        started["丙"].terminate()
        assert started["丙"].end().code == 0
        assert await status_of(redis, project) == "离线"
        assert await redis.ttl(f"{project}_项目状态") == -1
        assert await console.instances(project) == {}
        assert not await redis.exists(ROSTER.format(project=project))


async def _lives(console: Console, project: str, expected: set[str]) -> bool:
    return set(await console.instances(project)) == expected


async def test_the_worst_of_the_living_is_shown(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """故障 of one beats 在线 of the other, until it is withdrawn or its owner leaves."""
    first, second = (replica(project, redis_url, name) for name in ("甲", "乙"))
    async with first:
        await first.ready(5)
        async with second:
            await second.ready(5)
            second.set_status(Status.FAULT)
            await eventually(lambda: _shows(redis, project, "故障"))
            until = anyio.current_time() + 0.8
            while anyio.current_time() < until:
                assert await status_of(redis, project) == "故障"
                await anyio.sleep(0.02)
            assert await console.instances(project) == {
                "甲": Status.ONLINE,
                "乙": Status.FAULT,
            }
            second.set_status(Status.OFFLINE)
            await eventually(lambda: _shows(redis, project, "在线"))
            second.set_status(Status.ERROR)
            await eventually(lambda: _shows(redis, project, "报错"))
        assert await status_of(redis, project) == "在线"
        assert 0 < await redis.pttl(f"{project}_项目状态") <= 1_000
    assert await status_of(redis, project) == "离线"


async def test_the_last_word_of_a_failed_replica(
    redis_url: str, redis: Redis, project: str
) -> None:
    """故障 as a last word stays only if nobody else lives."""
    async with replica(project, redis_url, "甲") as first:
        await first.ready(5)
        with pytest.raises(KeyError):
            await _fail(replica(project, redis_url, "乙"))
        assert await status_of(redis, project) == "在线"
    with pytest.raises(KeyError):
        await _fail(replica(project, redis_url, "乙"))
    assert await status_of(redis, project) == "故障"
    assert await redis.ttl(f"{project}_项目状态") == -1


async def _fail(agent: ProjectAgent) -> None:
    async with agent:
        await agent.ready(5)
        raise KeyError("库存")


async def test_a_longer_life_is_not_cut_by_a_shorter_one(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The status lives as long as the replica with the longest TTL may be silent."""
    slow = replica(project, redis_url, "慢", status_ttl=60, status_interval=20)
    async with slow:
        await slow.ready(5)
        async with replica(project, redis_url, "快") as fast:
            await fast.ready(5)
            await eventually(lambda: fast.stats().status_writes >= 3)
            assert await redis.pttl(f"{project}_项目状态") > 50_000
        assert await redis.pttl(f"{project}_项目状态") > 50_000
        assert await redis.pttl(ROSTER.format(project=project)) > 50_000


async def test_two_processes_of_one_name(
    redis_url: str, redis: Redis, project: str
) -> None:
    """It is said, and the one that closes does not write 离线 over the other."""
    async with replica(project, redis_url, "同名") as first:
        await first.ready(5)
        async with replica(project, redis_url, "同名") as second:
            await second.ready(5)
            await eventually(lambda: _tell_twins(redis, project, 2))
        seen = {await status_of(redis, project) for _ in range(50)}
        assert seen == {"在线"}
        written = first.stats().status_writes  # the name is its own again after a while
        await eventually(lambda: first.stats().status_writes > written + 8)
    assert await status_of(redis, project) == "离线"


async def _tell_twins(redis: Redis, project: str, count: int) -> bool:
    found = [record["message"] for record in await records(redis, project)]
    return sum("two processes are called" in text for text in found) == count


async def _tells(redis: Redis, project: str, text: str) -> bool:
    return any(text in record["message"] for record in await records(redis, project))


async def test_another_type_is_left_alone(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The script does not overwrite a list under the status key either."""
    key = f"{project}_项目状态"
    await redis.rpush(key, "somebody's data")
    async with replica(project, redis_url, "甲") as agent:
        await eventually(lambda: agent.stats().status_failures > 0)
    assert await redis.lrange(key, 0, -1) == [b"somebody's data"]


async def test_out_of_memory_keeps_the_status_alive(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Where the script is refused for lack of memory, EXPIRE keeps a true status alive."""
    async with replica(project, own_server.url, "甲") as agent:
        await agent.ready(5)
        await admin.config_set("maxmemory", "1")
        until = anyio.current_time() + 2.0
        while anyio.current_time() < until:
            assert await status_of(admin, project) == "在线"
            await anyio.sleep(0.05)
        await admin.config_set("maxmemory", "0")
        await eventually(lambda: agent.stats().status_failures == 0)


@pytest.mark.parametrize(
    "rules",
    [("~*", "+@all", "-evalsha", "-eval"), ("~测试系统_*", "+@all")],
    ids=["no scripts", "no keys of ours"],
)
async def test_without_the_rights(
    own_server: DevServer, admin: Redis, project: str, rules: tuple[str, ...]
) -> None:
    """Each then writes as if it were alone, which is said once."""
    url = await url_with_rights(admin, own_server, *rules)
    async with replica(project, url, "甲") as agent:
        await agent.ready(5)
        assert await status_of(admin, project) == "在线"
        agent.set_status(Status.ERROR)
        await eventually(lambda: _shows(admin, project, "报错"))
        assert await agent.flush(5)
        found = [r for r in await records(admin, project) if "alone" in r["message"]]
        assert len(found) == 1
    assert await status_of(admin, project) == "离线"


async def test_a_stalled_replica_is_a_fault_of_all(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The watchdog's thread speaks through the same script, for its own instance."""
    stalled = replica(project, redis_url, "乙", stall_after=0.3)

    @stalled.command
    async def hang() -> None:
        time.sleep(2.0)

    with stalled.in_thread():
        await stalled.ready(5)
        async with Console(redis_url) as console:
            await redis.rpush(f"{project}_控制", '{"command": "hang"}')
            await eventually(lambda: _shows(redis, project, "故障"), 3)
            async with replica(project, redis_url, "甲", mode="compat") as other:
                await other.ready(5)
                assert await status_of(redis, project) == "故障"
                assert await console.instances(project) == {
                    "甲": Status.ONLINE,
                    "乙": Status.FAULT,
                }
                await eventually(lambda: _shows(redis, project, "在线"), 4)
                assert len(await console.instances(project)) == 2


@pytest.mark.parametrize("mode", ["blocking", "auto", "reliable"])
async def test_a_broadcast_reaches_each_once(
    redis_url: str, redis: Redis, console: Console, project: str, mode: str
) -> None:
    """Ten broadcasts among plain commands: each replica runs each of them once."""
    histories = {name: History() for name in "甲乙丙"}
    async with AsyncExitStack() as stack:
        for name, history in histories.items():
            agent = replica(project, redis_url, name, mode=mode)
            history.attach(agent)
            await stack.enter_async_context(agent)
            await agent.ready(5)
        for number in range(20):
            await console.send(
                project, "mark", {"number": number}, broadcast=number % 2 == 0
            )
        await eventually(
            lambda: sum(len(history.handled) for history in histories.values()) == 40
        )
    for number in range(20):
        times = sorted(h.handled.count(number) for h in histories.values())
        assert times == ([0, 0, 1] if number % 2 else [1, 1, 1])
    ended = [
        (record["metadata"]["agent"].partition("#")[0], record["metadata"]["commandId"])
        for record in await records(redis, project)
        if "outcome" in record["metadata"]
    ]
    assert len(ended) == len(set(ended)) == 40


async def test_a_clock_set_back_and_entries_of_nobody(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The dead count as long as they said, not longer; what is no entry is removed, and said."""
    roster, later = ROSTER.format(project=project), int(time.time() + 3_600) * 1000
    planted: dict[Any, Any] = {
        "死": f"ab.300 {later} 故障",
        "巨": f"ab.1000 {2**70} 在线",
        "乱": "garbage",
        "久": f"ab.{10**20} {later} 故障",
    }
    await redis.hset(roster, mapping=planted)
    async with replica(project, redis_url, "甲") as agent:
        await agent.ready(5)
        await eventually(lambda: _shows(redis, project, "在线"))
        assert 0 < await redis.pttl(f"{project}_项目状态") <= 1_000
        await eventually(lambda: _has(redis, roster, {"甲"}))
        assert await agent.flush(5)
        assert await _tells(redis, project, "held 2 entries that no replica writes")


async def _has(redis: Redis, roster: str, names: set[str]) -> bool:
    found: list[Any] = await redis.hkeys(roster)
    return {name.decode() for name in found} == names


async def _pretend_to_live(redis: Redis, project: str, instance: str) -> str:
    """Put an instance into the roster; give its inbox."""
    entry = f"ab.{10**11} {2**42} 在线"
    await redis.hset(ROSTER.format(project=project), instance, entry)
    return INBOX.format(project=project, instance=instance)


@pytest.mark.parametrize("mode", ["blocking", "compat", "reliable"])
async def test_what_is_passed_on(
    redis_url: str, redis: Redis, project: str, mode: str
) -> None:
    """The same command without the marker, into a list that is capped and expires."""
    inbox = await _pretend_to_live(redis, project, "远方")
    history = History()
    agent = replica(project, redis_url, "甲", mode=mode)
    history.attach(agent)
    told = {"command": "mark", "args": {"number": 7}, "broadcast": True, "extra": 1}
    async with agent:
        await redis.rpush(f"{project}_控制", orjson.dumps(told))
        await eventually(lambda: history.handled == [7])
        (copy,) = [orjson.loads(item) for item in await redis.lrange(inbox, 0, -1)]
        assert 0 < await redis.ttl(inbox) <= 300
    (ended,) = [r for r in await records(redis, project) if "outcome" in r["metadata"]]
    assert copy.pop("id") == ended["metadata"]["commandId"]
    assert copy.pop("passedOn")
    assert copy == {"command": "mark", "args": {"number": 7}, "extra": 1}
    assert await redis.llen(f"{project}_控制") == 0


async def test_without_replicas_the_marker_is_ignored(
    redis_url: str, redis: Redis, project: str
) -> None:
    """An agent that is alone runs the command, once, and touches no key of ours."""
    inbox = await _pretend_to_live(redis, project, "远方")
    history = History()
    agent = ProjectAgent(project, redis=redis_url)
    history.attach(agent)
    told = {"command": "mark", "args": {"number": 7}, "broadcast": True}
    async with agent:
        await redis.rpush(f"{project}_控制", orjson.dumps(told))
        await eventually(lambda: history.handled == [7])
    assert not await redis.exists(inbox)
    assert await redis.hlen(ROSTER.format(project=project)) == 1


async def test_copies_wait_while_no_handler_is_free(
    redis_url: str, redis: Redis, project: str
) -> None:
    """What an inbox holds is taken one by one, and never beyond concurrency."""
    inbox = INBOX.format(project=project, instance="甲")
    agent = replica(project, redis_url, "甲")
    free = anyio.Event()
    most, order = [0], list[int]()

    @agent.command
    async def mark(number: int) -> None:
        most[0] = max(most[0], agent.stats().commands_running)
        if number == 0:
            await free.wait()
        order.append(number)

    async with agent:
        await redis.rpush(f"{project}_控制", command_bytes(0))
        await eventually(lambda: agent.stats().commands_running == 1)
        await redis.rpush(inbox, *(command_bytes(number) for number in range(1, 6)))
        await redis.expire(inbox, 2)
        await eventually(lambda: _lives_longer(redis, inbox, 100))
        assert await redis.llen(inbox) == 5
        free.set()
        await eventually(lambda: len(order) == 6)
        await redis.rpush(inbox, command_bytes(5), command_bytes(6))
        await eventually(lambda: 6 in order)
    assert order == [0, 1, 2, 3, 4, 5, 6]  # the one that came twice ran once
    assert most == [1]


async def _slowly(ran: set[str], name: str) -> None:
    await anyio.sleep(0.1)
    ran.add(name)


async def test_a_busy_replica_runs_a_broadcast(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The copy does not wait until the backlog is done."""
    ran: set[str] = set()
    agents = {name: replica(project, redis_url, name) for name in "甲乙"}
    for name, agent in agents.items():
        agent.command("slow")(partial(_slowly, ran, ""))
        agent.command("mark")(partial(_slowly, ran, name))
    async with agents["甲"], agents["乙"]:
        for agent in agents.values():
            await agent.ready(5)
        control = f"{project}_控制"
        await redis.rpush(control, *[b'{"command":"slow"}'] * 300)
        await redis.lpush(control, b'{"command":"mark","broadcast":true}')
        await eventually(lambda: ran >= {"甲", "乙"}, 4)
        await redis.delete(control)


async def test_an_inbox_that_nobody_reads_is_bounded(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The newest 1,000 commands stay; the oldest are dropped."""
    inbox = INBOX.format(project=project, instance="乙")
    agent, deaf = (replica(project, redis_url, instance) for instance in "甲乙")
    free = anyio.Event()

    @deaf.command
    async def mark(number: int) -> None:
        del number
        await free.wait()

    @agent.command
    async def tell() -> None: ...

    async with deaf:
        await redis.rpush(f"{project}_控制", command_bytes(0))
        await eventually(lambda: deaf.stats().commands_running == 1)
        async with agent:
            await agent.ready(5)
            await redis.rpush(inbox, *("{}" for _ in range(1_200)))
            await redis.rpush(f"{project}_控制", b'{"command":"tell","broadcast":true}')
            await eventually(lambda: agent.stats().outcomes == {"succeeded": 1})
            assert await redis.llen(inbox) == 1_000
            assert b"tell" in (await redis.lindex(inbox, -1) or b"")
        await redis.delete(inbox)
        free.set()


@pytest.mark.parametrize("mode", ["compat", "reliable"])
async def test_a_copy_is_nothing_to_trim(
    redis_url: str, redis: Redis, project: str, mode: str
) -> None:
    """A copy settles nothing, and its id is not the window's: both lists are left alone."""
    inbox = INBOX.format(project=project, instance="甲")
    agent = replica(project, redis_url, "甲", mode=mode)
    history = History()
    history.attach(agent)
    await redis.rpush(inbox, command_bytes(100))
    async with agent:
        await eventually(lambda: history.handled == [100])
        for _ in range(3):
            await history.push(redis, project)
        await eventually(lambda: history.handled == [100, 0, 1, 2])
        await redis.rpush(inbox, command_bytes(1) + b" ")  # an id that has ended
        await eventually(lambda: history.handled == [100, 0, 1, 2, 1])
        await redis.rpush(f"{project}_控制", command_bytes(100))  # … as a copy only
        await eventually(lambda: history.handled == [100, 0, 1, 2, 1, 100])
        assert await agent.flush(5)
    assert not await _tells(redis, project, "another program trimmed")
    assert await redis.llen(f"{project}_控制") == 0


async def test_a_copy_waits_for_a_slot_and_is_reported_at_the_stop(
    redis_url: str, redis: Redis, project: str
) -> None:
    """One whose slot was taken meanwhile waits; at the stop it is reported cancelled."""
    agent = replica(project, redis_url, "甲")
    free = anyio.Event()
    history = History()
    history.attach(agent)

    @agent.command
    async def hold(number: int) -> None:
        await free.wait()
        raise KeyError(number)

    async with agent:
        session = agent._session
        assert session is not None
        await redis.rpush(f"{project}_控制", command_bytes(0, "hold"))
        await eventually(lambda: agent.stats().commands_running == 1)
        session.dispatcher.submit(Message(command_bytes(1), mode=BROADCAST_MODE))
        await anyio.sleep(0.1)  # it would have begun by now
        assert history.handled == []
        free.set()
        await eventually(lambda: history.handled == [1])
        free = anyio.Event()
        await redis.rpush(f"{project}_控制", command_bytes(2, "hold"))
        await eventually(lambda: agent.stats().commands_running == 1)
        session.dispatcher.submit(Message(command_bytes(3), mode=BROADCAST_MODE))
        session.stop(Status.OFFLINE)
        await eventually(lambda: session.dispatcher.stopping)
        free.set()
    assert history.handled == [1]
    ended = {
        record["metadata"]["commandId"]: record["metadata"]["outcome"]
        for record in await records(redis, project)
        if "outcome" in record["metadata"]
    }
    assert ended == {
        "cmd-0": "failed",
        "cmd-1": "succeeded",
        "cmd-2": "failed",
        "cmd-3": "cancelled",
    }


RIGHTS = """
-@all +ping +hello +select +time +client|id +client|setname +client|unblock +client|kill
(+set +expire %RW~{p}_项目状态)
(+rpush +ltrim +lrange %RW~{p}_项目控制台)
(+blpop +lpop +lpush +lrange +lrem %RW~{p}_控制)
(+hset +hdel +pexpire %RW~bls_agent:{{{p}_控制}}:intake)
(+evalsha +eval +hgetall +hset +hdel +type +set +pexpireat +expire ~{p}_项目状态 ~bls_agent:{{{p}_项目状态}}:*)
(+rpush +ltrim +expire +lpop +lrange +lrem ~bls_agent:{{{p}_控制}}:broadcast:*)
"""


@needs_selectors
async def test_the_documented_rights_are_enough(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Two replicas with exactly these rights: nothing is refused."""
    rules = RIGHTS.format(p=project).replace("\n(", "|(").replace("\n", " ").split("|(")
    selectors = [f"({rule.strip()}" for rule in rules[1:]]
    root = RIGHTS.strip().splitlines()[0].split()
    url = await url_with_rights(admin, own_server, *root, *selectors)
    histories = [History(), History()]
    async with AsyncExitStack() as stack:
        for name, history in zip("甲乙", histories, strict=True):
            agent = replica(project, url, name)
            history.attach(agent)
            await stack.enter_async_context(agent)
            await agent.ready(5)
        message = orjson.loads(command_bytes(1)) | {"broadcast": True}
        await admin.rpush(f"{project}_控制", orjson.dumps(message))
        await eventually(lambda: [h.handled for h in histories] == [[1], [1]])
    assert await status_of(admin, project) == "离线"
    refused = await execute(admin, "ACL", "LOG")
    assert [entry for entry in refused if b"client|list" not in entry] == []


async def _lives_longer(redis: Redis, key: str, seconds: int) -> bool:
    return bool(await redis.ttl(key) > seconds)


async def test_a_broadcast_that_cannot_be_passed_on(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """It is run here, and said; nothing raises."""
    rights = (f"~{project}_*", f"~bls_agent:{{{project}_项目状态}}:*", "+@all")
    url = await url_with_rights(admin, own_server, *rights)
    await _pretend_to_live(admin, project, "远方")
    history = History()
    agent = replica(project, url, "甲")
    history.attach(agent)
    told = {"command": "mark", "args": {"number": 7}, "broadcast": True}
    async with agent:
        await admin.rpush(f"{project}_控制", orjson.dumps(told))
        await eventually(lambda: history.handled == [7])
        assert await agent.flush(5)
        assert await _tells(admin, project, "has not reached every instance")
        assert await _tells(admin, project, "broadcasts do not reach this instance")


async def test_a_broadcast_that_is_nested_too_deep_for_a_copy(
    redis_url: str, redis: Redis, project: str
) -> None:
    """It can be read and not be written: it is run here, and ends with an outcome."""
    history = History()
    agent = replica(project, redis_url, "甲")
    history.attach(agent)
    told = b'{"command":"mark","args":{"number":7},"broadcast":true,"x":%b%b}'
    async with agent:
        await redis.rpush(f"{project}_控制", told % (b"[" * 1_000, b"]" * 1_000))
        await eventually(lambda: agent.stats().outcomes == {"succeeded": 1})
        assert await agent.flush(5)
        assert await _tells(redis, project, "has not reached every instance")
    assert history.handled == [7]


async def test_a_lost_reply_does_not_double_a_copy(
    own_server: DevServer, admin: Redis, console_of_own: Console, project: str
) -> None:
    """Connections are cut while broadcasts are passed on: none runs twice anywhere."""
    histories = [History(), History()]
    async with AsyncExitStack() as stack:
        for name, history in zip("甲乙", histories, strict=True):
            agent = replica(project, own_server.url, name)
            history.attach(agent)
            await stack.enter_async_context(agent)
            await agent.ready(5)
        for number in range(30):
            await console_of_own.send(
                project, "mark", {"number": number}, broadcast=True
            )
            if number % 10 == 5:
                await cut_connections(admin)
        await eventually(lambda: _is_empty(admin, f"{project}_控制"))
        await anyio.sleep(2.5)  # an inbox that is looked at twice more is empty
    for history in histories:
        assert len(history.handled) == len(set(history.handled)) > 20


@pytest.fixture
async def console_of_own(own_server: DevServer) -> AsyncIterator[Console]:
    """The other end of a server of this test's own."""
    async with Console(own_server.url) as opened:
        yield opened


async def _is_empty(redis: Redis, key: str) -> bool:
    return await redis.llen(key) == 0


async def test_call_takes_the_first_and_call_all_those_in_time(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """A dead instance that is still listed is missing in the answer, nothing more."""
    await _pretend_to_live(redis, project, "远方")
    async with replica(project, redis_url, "甲") as agent:
        await agent.ready(5)
        first = await console.call(project, "ping", broadcast=True)
        assert first.succeeded
        ended = await console.call_all(project, "ping", timeout=0.5)
        assert set(ended) == {"甲"}
    with pytest.raises(NoOutcomeError):
        await console.call_all(project, "ping", timeout=0.2)


def test_who_lives() -> None:
    """Expired, foreign and broken entries do not."""
    entries = {
        "乙": "t1 1001 故障",
        "甲": "t2 2000 在线",
        "过期": "t3 1000 在线",
        "无": "t4 x 在线",
        "长": f"t6 {'9' * 5_000} 在线",
        "外": "t5 5000 运行中",
        "空": "",
    }
    flat = [part.encode() for entry in entries.items() for part in entry]
    assert list_living(flat, 1_000) == {"乙": Status.FAULT, "甲": Status.ONLINE}
    assert list_living([], 0) == {}


def test_a_roll_call_takes_the_first_of_each() -> None:
    """Records of other commands, and second ones, do not count."""

    def told(agent: str, command_id: str, kind: str = "succeeded") -> LogEntry:
        metadata = {
            "agent": agent,
            "commandId": command_id,
            "command": "ping",
            "outcome": kind,
            "durationMs": 1,
        }
        return LogEntry(timestamp="t", level=Level.INFO, message="", metadata=metadata)

    roll = OutcomeCollector(frozenset({"甲", "乙"}), "c1")
    roll.add([told("甲#1", "c0"), told("甲#2", "c1"), told("甲#3", "c1", "failed")])
    complete = [roll.complete]
    roll.add([told("乙#1", "c1", "failed")])
    assert [*complete, roll.complete] == [False, True]
    assert {name: o.kind.value for name, o in roll.outcomes.items()} == {
        "甲": "succeeded",
        "乙": "failed",
    }


async def test_a_call_reads_less_often_during_an_outage() -> None:
    """A starting server is not flooded with connections."""
    reads = 0

    async def read() -> list[LogEntry]:
        nonlocal reads
        reads += 1
        raise RedisUnavailableError("connection", "refused", connecting=True)

    await OutcomeCollector().collect(read, 0.5)
    assert 1 < reads < 12


async def test_what_is_recognised_takes_no_room(redis_url: str, project: str) -> None:
    """A hundred copies are recognised if they come twice; their bytes are not kept."""
    inbox = INBOX.format(project=project, instance="甲")
    agent = replica(project, redis_url, "甲")
    sizes: list[int] = []

    @agent.command
    async def swell(padding: str) -> None:
        sizes.append(len(padding))

    count, size = 30, 500_000
    async with Redis.from_url(redis_url, protocol=2) as redis, agent:
        await agent.ready(5)
        tracemalloc.start()
        try:
            for number in range(count):
                told = {"id": f"{number}", "command": "swell"}
                padding = "x" * size
                copy = {
                    **told,
                    "timestamp": "",
                    "source": "",
                    "args": {"padding": padding},
                }
                await redis.rpush(inbox, orjson.dumps(copy))
            await eventually(lambda: len(sizes) == count)

            def is_free() -> bool:
                gc.collect()  # what is only waiting for that is not kept
                return tracemalloc.get_traced_memory()[0] < count * size / 5

            await eventually(is_free)
        finally:
            tracemalloc.stop()
