"""Mode `reliable`: nothing is lost, and what runs twice is within the promise."""

from __future__ import annotations

import hashlib
import re
import signal
import threading
from collections import Counter
from typing import Any

import anyio
import anyio.abc
import pytest
from redis.asyncio import Redis

from bls_agent import (
    CommandContext,
    ProjectAgent,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.connection.blocking import BlockingConnection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.settings import Settings
from bls_agent.devserver import DevServer
from bls_agent.project.receive import (
    reclaimer as reclaimer_module,
    reliable as reliable_module,
)
from bls_agent.project.receive.inflight import ListState
from bls_agent.project.receive.receiver import Start
from bls_agent.project.receive.reliable import ReliableReceiver
from tests.corpus.loader import add_handlers, load_commands
from tests.harness import (
    History,
    command_bytes,
    cut_connections,
    eventually,
    execute,
    producing,
    records,
    url_with_rights,
)
from tests.kit import FaultProxy, Late, Swallow
from tests.programs import Program, run_python

PROJECT = "订单系统"
CONTROL = "订单系统_控制"
BESIDE = "bls_agent:{订单系统_控制}"
LISTS = f"{BESIDE}:inflight"
DELIVERIES = f"{BESIDE}:deliveries"
SEEN = f"{BESIDE}:seen"
DEAD = f"{BESIDE}:dead"


def inflight(instance: str) -> str:
    return f"{BESIDE}:inflight:{instance}"


def owner(instance: str) -> str:
    return f"bls_agent:{inflight(instance)}:owner"


def make_agent(server: DevServer, **options: Any) -> ProjectAgent:
    options = {"instance": "a", "lease_ttl": 1.0, **options}
    return ProjectAgent(PROJECT, redis=server.url, mode="reliable", **options)


def ignore(*_: object) -> None:
    pass


def make_receiver(
    server: DevServer,
    instance: str,
    *,
    connections: AgentConnections | None = None,
    lease_ttl: float = 1.0,
    concurrency: int = 100,
) -> tuple[AgentConnections, ReliableReceiver]:
    """A receiver alone, to be stopped at any moment as a process may be."""
    connections = connections or AgentConnections(
        Endpoint.of(server.url), f"bls-agent:{instance}", timeout=2, reconnect_max=1
    )
    receiver = ReliableReceiver(
        connections,
        CONTROL,
        lambda *_: None,
        Settings(concurrency=concurrency, lease_ttl=lease_ttl),
        instance=instance,
        report=ignore,
    )
    return connections, receiver


async def die_holding(
    server: DevServer, redis: Redis, instance: str, count: int, concurrency: int = 100
) -> list[bytes]:
    """Take commands, and be dead for longer than the lease: give what was held."""
    connections, receiver = make_receiver(server, instance, concurrency=concurrency)
    messages = await receiver.receive(count)
    key = receiver.list.lease.owner_key
    for connection in connections.all:
        await connection.aclose()
    await redis.delete(key)
    assert len(messages) == count
    return [message.payload for message in messages]


async def drained(redis: Redis) -> bool:
    """Nothing waits and nothing runs; looked at in the order in which commands move."""
    if await redis.llen(CONTROL):
        return False
    return not [k for k in await redis.keys("*:inflight:*") if b"owner" not in k]


async def _has_length(redis: Redis, key: str, length: int) -> bool:
    return await redis.llen(key) == length


CHILD = """
import anyio, sys
from bls_agent import ProjectAgent, CommandContext
agent = ProjectAgent({project!r}, redis={url!r}, mode="reliable", lease_ttl=1.0,
                     instance={instance!r}, prefetch=2)
@agent.command
async def mark(number: int, context: CommandContext) -> None:
    print("started", number, context.delivery, flush=True)
    if {hold!r}:
        await anyio.sleep({hold!r})
    print("ended", number, flush=True)
anyio.run(agent.run)
"""


POISONED = """
import anyio, os
from bls_agent import ProjectAgent, CommandContext
agent = ProjectAgent({project!r}, redis={url!r}, mode="reliable", lease_ttl=30,
                     prefetch=8)
@agent.command
async def mark(number: int, context: CommandContext) -> None:
    if number in {poisoned!r}:
        os._exit(9)
    os.write(1, f"({{number}}, {{context.delivery}})\\n".encode())
anyio.run(agent.run)
"""


def child(server: DevServer, instance: str, hold: float) -> Program:
    """An agent in a process of its own."""
    code = CHILD.format(project=PROJECT, url=server.url, instance=instance, hold=hold)
    return Program("-c", code)


async def test_keys_while_a_command_runs(own_server: DevServer, admin: Redis) -> None:
    """Byte for byte: the command in our list, its name among the lists, our token with a TTL."""
    agent = make_agent(own_server)
    running, done = anyio.Event(), anyio.Event()

    @agent.command
    async def hold() -> None:
        running.set()
        await done.wait()

    payload = '{ "id":"订-1", "command":"hold" }'.encode()
    async with agent:
        await admin.rpush(CONTROL, payload)
        await running.wait()
        assert await admin.lrange(inflight("a"), 0, -1) == [payload]
        assert await admin.hgetall(LISTS) == {inflight("a").encode(): b"1"}
        assert 0 < await admin.pttl(owner("a")) <= 1_000
        assert not await admin.exists(CONTROL, SEEN, DELIVERIES, DEAD)
        done.set()
        await eventually(lambda: drained(admin))
        assert await admin.zrange(SEEN, 0, -1) == ["订-1".encode()]
        assert 0 < await admin.pttl(SEEN) <= 600_000
    assert not await admin.exists(LISTS, owner("a"), inflight("a"), CONTROL, DELIVERIES)


async def test_killed_in_a_handler(own_server: DevServer, admin: Redis) -> None:
    """SIGKILL in a handler: another one takes over all of it; only one delivery counts."""
    for number in range(6):
        await admin.rpush(CONTROL, command_bytes(number))
    with child(own_server, "victim", 60.0) as program:
        assert program.line() == "started 0 1"
        program.kill()
    agent = make_agent(own_server)
    seen: list[tuple[int, int]] = []

    @agent.command
    async def mark(number: int, context: CommandContext) -> None:
        seen.append((number, context.delivery))

    async with agent:
        await eventually(lambda: len(seen) == 6)
        await eventually(lambda: drained(admin))
        names = {inflight("a").encode()}
        await eventually(lambda: _is_members(admin, names))
    assert Counter(seen) == Counter(
        [(0, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]  # 1 waited behind 0
    )
    assert not await admin.exists(DELIVERIES, LISTS)


async def _is_members(redis: Redis, names: set[bytes]) -> bool:
    return set(await redis.hkeys(LISTS)) == names


async def test_restart_under_the_same_name(own_server: DevServer, admin: Redis) -> None:
    """At once it works with another list; what the dead one had follows with its lease."""
    await admin.rpush(CONTROL, command_bytes(1))
    with child(own_server, "a", 60.0) as program:
        assert program.line() == "started 1 1"
        program.kill()
    await admin.rpush(CONTROL, command_bytes(2))
    agent = make_agent(own_server)
    seen: list[tuple[int, int]] = []

    @agent.command
    async def mark(number: int, context: CommandContext) -> None:
        seen.append((number, context.delivery))

    async with agent:
        await eventually(lambda: (2, 1) in seen)
        names: list[Any] = await admin.hkeys(LISTS)
        suffixes = [name.decode().removeprefix(inflight("a")) for name in names]
        assert sum(bool(re.fullmatch("~[0-9a-f]{8}", one)) for one in suffixes) == 1
        await eventually(lambda: (1, 2) in seen)
    async with agent:
        await eventually(lambda: _owns(admin, "a"))
    assert len(seen) == 2


async def _owns(redis: Redis, instance: str) -> bool:
    return bool(await redis.exists(owner(instance)))


@pytest.mark.parametrize("after", ["clock", "poison"])
async def test_a_dead_lease_is_no_longer_than_it_was_made(
    own_server: DevServer, admin: Redis, after: str
) -> None:
    """A clock set back, or a hand in Redis: what a dead process held comes back all the same."""
    await admin.rpush(CONTROL, command_bytes(1))
    await die_holding(own_server, admin, "b", 1)
    lease = "ab12.300" if after == "clock" else ""
    await admin.set(owner("b"), lease, px=3_600_000 if after == "clock" else None)
    history = History()
    agent = make_agent(own_server)
    history.attach(agent)
    async with agent:
        await eventually(lambda: history.handled == [1])
    assert await drained(admin)


async def test_counts_that_are_none(
    own_server: DevServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever wrote them: such a delivery is the first, and it is said once."""
    payloads = [command_bytes(number) for number in range(3)]
    for payload, count in zip(payloads, ("nan", "-7", "9" * 400), strict=True):
        await admin.hset(DELIVERIES, hashlib.sha1(payload).hexdigest(), count)
    await admin.rpush(CONTROL, *payloads)
    agent = make_agent(own_server)
    seen: list[tuple[int, int]] = []

    @agent.command
    async def mark(number: int, context: CommandContext) -> None:
        seen.append((number, context.delivery))

    async with agent:
        await eventually(lambda: len(seen) == 3)
    assert seen == [(0, 1), (1, 1), (2, 1)]
    said = [r for r in caplog.records if DELIVERIES in r.getMessage()]
    assert len(said) == 1


async def test_its_own_back_at_once_when_the_lease_is_over(
    own_server: DevServer, admin: Redis
) -> None:
    """A restart after the lease ran out gets its own commands back, in their order."""
    payloads = [command_bytes(number) for number in range(5)]
    await admin.rpush(CONTROL, *payloads)
    assert await die_holding(own_server, admin, "a", 3) == payloads[:3]
    history = History()
    agent = make_agent(own_server, lease_ttl=60)
    history.attach(agent)
    async with agent:
        await eventually(lambda: len(history.handled) == 5)
        assert await _owns(admin, "a")
    assert history.handled == [0, 1, 2, 3, 4]


async def test_skip(own_server: DevServer, admin: Redis) -> None:
    """With on_redelivery="skip" it is not started again, also if it is sent again."""
    await admin.rpush(CONTROL, command_bytes(7))
    await die_holding(own_server, admin, "victim", 1)
    history = History()
    agent = make_agent(own_server, on_redelivery="skip")
    history.attach(agent)
    async with agent:
        await eventually(lambda: agent.stats().outcomes == {"abandoned": 1})
        await eventually(lambda: drained(admin))
        await agent.flush()
        found = (await records(admin, PROJECT))[-1]
        assert found["metadata"]["commandId"] == "cmd-7"
        assert found["metadata"]["command"] == "mark"
        assert found["level"] == "error"
        await admin.rpush(CONTROL, command_bytes(7))
        both = {"abandoned": 1, "duplicate": 1}
        await eventually(lambda: agent.stats().outcomes == both)
    assert not history.handled


async def test_a_slot_that_does_not_become_free(
    own_server: DevServer, admin: Redis
) -> None:
    """Behind a function that ignores its time nothing is kept from the other agents."""
    stuck, other = make_agent(own_server, command_timeout=0.1), History()
    done = threading.Event()

    @stuck.command
    def mark(number: int) -> None:
        if number:
            done.wait(20)

    await admin.rpush(CONTROL, *map(command_bytes, range(4)))
    async with stuck:
        await eventually(lambda: stuck.stats().outcomes.get("timed_out") == 1)
        await eventually(lambda: _has_length(admin, inflight("a"), 0))
        agent = make_agent(own_server, instance="b")
        other.attach(agent)
        async with agent:
            await eventually(lambda: other.handled == [2, 3])
            await eventually(lambda: drained(admin))
        done.set()


@pytest.mark.parametrize("most", [2, 3])
async def test_a_dead_letter_after_the_last_delivery(
    own_server: DevServer, admin: Redis, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next delivery makes a dead letter with a record; the list is capped."""
    for module in (reclaimer_module, reliable_module):
        monkeypatch.setattr(module, "MAX_DELIVERIES", most)
    await admin.rpush(DEAD, *(b"%d" % number for number in range(1_000)))
    await admin.rpush(CONTROL, command_bytes(7), b"[]")
    for delivery in range(1, most + 1):
        connections, receiver = make_receiver(own_server, f"victim-{delivery}")
        messages = await receiver.receive(2)
        assert [message.delivery for message in messages] == [delivery] * 2
        for connection in connections.all:
            await connection.aclose()
        await admin.delete(owner(f"victim-{delivery}"))
    history = History()
    agent = make_agent(own_server)
    history.attach(agent)
    async with agent:
        await eventually(lambda: agent.stats().outcomes == {"dead_lettered": 2})
        await agent.flush()
        told = [record["metadata"] for record in await records(admin, PROJECT)]
    assert [one["commandId"] for one in told] == ["", "cmd-7"]
    assert f"started {most} times" in told[1]["error"]["message"]
    assert await admin.llen(DEAD) == 1_000
    assert await admin.lrange(DEAD, -2, -1) == [b"[]", command_bytes(7)]
    assert not history.handled
    assert not await admin.exists(DELIVERIES, CONTROL)


async def test_a_poisoned_command_dies_alone(
    own_server: DevServer, admin: Redis
) -> None:
    """What waits behind it in a dead process, time after time, was never started."""
    await admin.rpush(CONTROL, *map(command_bytes, range(8)))
    for number in range(3):
        await die_holding(own_server, admin, f"victim-{number}", 8, concurrency=2)
    seen: list[tuple[int, int]] = []
    agent = make_agent(own_server)

    @agent.command
    async def mark(number: int, context: CommandContext) -> None:
        seen.append((number, context.delivery))

    async with agent:
        await eventually(lambda: _ended(agent) == 8)
    assert await admin.lrange(DEAD, 0, -1) == [command_bytes(1), command_bytes(0)]
    assert seen == [(number, 1) for number in range(2, 8)]


async def test_what_waited_keeps_its_count(own_server: DevServer, admin: Redis) -> None:
    """A delivery that counted before counts still when it only waits the next time."""
    await admin.rpush(CONTROL, *map(command_bytes, range(2)))
    await die_holding(own_server, admin, "both", 2, concurrency=2)
    await die_holding(own_server, admin, "one", 2, concurrency=1)
    connections, receiver = make_receiver(own_server, "last")
    messages = await receiver.receive(2)
    assert [message.delivery for message in messages] == [3, 2]
    await receiver.close()
    await connections.aclose()


async def test_a_long_list_of_a_dead_process_leaves_no_counts(
    own_server: DevServer, admin: Redis
) -> None:
    """Several runs of the script empty the list; each deletes the counts of its part."""
    await admin.rpush(CONTROL, *map(command_bytes, range(250)))
    for name in ("first", "second"):
        await die_holding(own_server, admin, name, 250, concurrency=250)
    counts = await admin.hkeys(DELIVERIES)
    assert sum(inflight("second").encode() in field for field in counts) == 250
    connections, receiver = make_receiver(own_server, "third", concurrency=250)
    messages = await receiver.receive(250)
    assert {message.delivery for message in messages} == {3}
    counts = await admin.hkeys(DELIVERIES)
    assert not [field for field in counts if inflight("second").encode() in field]
    await receiver.close()
    await connections.aclose()


@pytest.mark.parametrize("damage", ["none", "odd"])
async def test_a_list_that_names_no_concurrency_counts_all(
    own_server: DevServer, admin: Redis, damage: str
) -> None:
    """What a dead process may have started is not known: each delivery counts."""
    await admin.rpush(CONTROL, *map(command_bytes, range(3)))
    await die_holding(own_server, admin, "a", 3, concurrency=1)
    if damage == "none":
        await admin.hdel(LISTS, inflight("a"))
    else:
        await admin.hset(LISTS, inflight("a"), "many")
    connections, receiver = make_receiver(own_server, "a")
    messages = await receiver.receive(3)
    assert [message.delivery for message in messages] == [2, 2, 2]
    await receiver.close()
    await connections.aclose()


async def test_twins_die_once(own_server: DevServer, admin: Redis) -> None:
    """Commands with the same bytes: the deaths of several processes do not add up."""
    twin = b'{"command":"mark","args":{"number":1}}'
    await admin.rpush(CONTROL, *[twin] * 10)
    for number in range(5):
        connections, receiver = make_receiver(own_server, f"victim-{number}")
        assert len(await receiver.receive(2)) == 2
        for connection in connections.all:
            await connection.aclose()
    for number in range(5):
        await admin.delete(owner(f"victim-{number}"))
    agent = make_agent(own_server, concurrency=3, prefetch=4)
    deliveries: list[int] = []

    @agent.command
    async def mark(number: int, context: CommandContext) -> None:
        deliveries.append(context.delivery)
        await anyio.sleep(0.001 * number)

    async with agent:
        await eventually(lambda: len(deliveries) == 10)
        await eventually(lambda: drained(admin))
    assert max(deliveries) == 2
    assert not await admin.exists(DEAD)


IDS: dict[str, tuple[bytes, bytes]] = {
    "text": (b'"x-1"', b'"x-1"'),
    "escaped": (b'"x-1"', b'"\\u0078-1"'),
    "number": (b"90071992547409931", b'"90071992547409931"'),
    "long": (b'"' + b"x" * 5_000 + b'"', b'"' + b"x" * 5_000 + b'"'),
}


@pytest.mark.parametrize("prefetch", [1, 4])
@pytest.mark.parametrize("name", IDS)
async def test_duplicates(
    own_server: DevServer, admin: Redis, name: str, prefetch: int
) -> None:
    """An id that has ended is not run again, however it is written.

    One by one, the request that takes the second acknowledges the first.
    """
    agent = make_agent(own_server, prefetch=prefetch)
    history = History()
    history.attach(agent)
    first, second = IDS[name]
    form = b'{"args":{"number":%d},"x":{"id":"other"},"id": %b,"command":"mark"}'
    messages = [form % (1, first), form % (2, second), form % (3, first)]
    await admin.rpush(CONTROL, *messages)
    async with agent:
        await eventually(lambda: _ended(agent) == 3)
        await eventually(lambda: drained(admin))
    assert history.handled == [1]
    assert agent.stats().outcomes == {"succeeded": 1, "duplicate": 2}


async def test_an_id_that_has_just_ended(own_server: DevServer, admin: Redis) -> None:
    """The request that acknowledges it takes the next command with this id: a duplicate."""
    agent, history = make_agent(own_server), History()
    history.attach(agent)
    await admin.rpush(CONTROL, *[command_bytes(1)] * 3)
    async with agent:
        await eventually(lambda: _ended(agent) == 3)
    assert history.handled == [1]


def _ended(agent: ProjectAgent) -> int:
    return sum(agent.stats().outcomes.values())


async def test_other_ids_are_no_duplicates(own_server: DevServer, admin: Redis) -> None:
    """An id elsewhere in the message is none, nor does a command without one have one."""
    agent = make_agent(own_server, prefetch=3)
    history = History()
    history.attach(agent)
    form = b'{"x":{"id":"same"},"command":"mark","args":{"number":%d}%b}'
    ids = [
        b"",
        b"",
        b',"id":"1"',
        b',"id":"2"',
        b',"id":""',
        b',"id":null',
        b',"id":""',
    ]
    await admin.rpush(CONTROL, *(form % pair for pair in enumerate(ids)))
    async with agent:
        await eventually(lambda: len(history.handled) == len(ids))
    assert sorted(await admin.zrange(SEEN, 0, -1)) == [b"1", b"2"]


@pytest.mark.parametrize("window", [0.3, 0.0])
async def test_outside_of_the_window(
    own_server: DevServer, admin: Redis, window: float
) -> None:
    """After the window, or without one, an id is run again."""
    agent = make_agent(own_server, dedup_window=window)
    history = History()
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        await admin.rpush(CONTROL, command_bytes(1))
        await eventually(lambda: drained(admin))
        await eventually(lambda: _absent(admin, SEEN))
        await admin.rpush(CONTROL, command_bytes(1))
        await eventually(lambda: history.handled == [1, 1])


@pytest.mark.parametrize("name", ["text", "escaped"])
async def test_the_window_is_of_each_id(
    own_server: DevServer, admin: Redis, name: str
) -> None:
    """An id that is over does not count, although others keep the key alive."""
    now = (await admin.time())[0] * 1_000
    await admin.zadd(SEEN, {"cmd-1": now - 601_000, "cmd-2": now - 500_000})
    agent = make_agent(own_server, prefetch=2)
    history = History()
    history.attach(agent)
    letter = {"text": b"c", "escaped": b"\\u0063"}[name]  # looked up by another request
    for number in (1, 2):
        await admin.rpush(
            CONTROL, command_bytes(number).replace(b"cmd", letter + b"md")
        )
    async with agent:
        await eventually(lambda: _ended(agent) == 2)
    assert history.handled == [1]


async def _absent(redis: Redis, key: str) -> bool:
    return not await redis.exists(key)


async def test_ids_that_are_over_are_trimmed(
    own_server: DevServer, admin: Redis
) -> None:
    """Each ack removes what is out of the window, and what is beyond the limit."""
    await admin.zadd(SEEN, {f"old-{n}": n for n in range(100)})
    now = (await admin.time())[0] * 1_000
    for start in range(0, 100_000, 10_000):
        await admin.zadd(SEEN, {f"n-{n}": now for n in range(start, start + 10_000)})
    agent = make_agent(own_server)
    history = History()
    history.attach(agent)
    async with agent:
        await admin.rpush(CONTROL, command_bytes(1))
        await eventually(lambda: drained(admin))
    assert await admin.zcard(SEEN) == 100_000
    assert await admin.zscore(SEEN, "old-99") is None
    assert await admin.zscore(SEEN, "cmd-1")


async def test_one_id_in_work_twice(own_server: DevServer, admin: Redis) -> None:
    """A second command with the id of one that runs is a duplicate at once."""
    agent = make_agent(own_server, concurrency=2)
    history = History()
    release = anyio.Event()

    @agent.command
    async def mark(number: int) -> None:
        history.handled.append(number)
        await release.wait()

    await admin.rpush(CONTROL, command_bytes(1), command_bytes(1))
    async with agent:
        await eventually(lambda: agent.stats().outcomes == {"duplicate": 1})
        await eventually(lambda: _has_length(admin, inflight("a"), 1))
        release.set()
    assert history.handled == [1]


async def test_a_late_ack_takes_nothing_away(
    own_server: DevServer, admin: Redis
) -> None:
    """Reclaimed by another one, the ack of the first owner leaves that delivery alone."""
    await admin.rpush(CONTROL, command_bytes(1))
    slow, sleeper = make_receiver(own_server, "sleeper")
    quick, other = make_receiver(own_server, "other")
    first = (await sleeper.receive(1))[0]
    assert sleeper.begin(first) is Start.RUN
    await admin.delete(owner("sleeper"))
    second = (await other.receive(1))[0]
    assert (first.payload, second.delivery) == (second.payload, 2)
    await sleeper.settle(first)
    assert await admin.lrange(inflight("other"), 0, -1) == [first.payload]
    assert await admin.hlen(DELIVERIES) == 2
    assert other.begin(second) is Start.RUN
    await other.settle(second)
    assert await drained(admin)
    for receiver, connections in ((sleeper, slow), (other, quick)):
        await receiver.close()
        await connections.aclose()
    assert not await admin.exists(DELIVERIES)


@pytest.mark.parametrize("fails_at_first", [False, True])
async def test_a_swallowed_reply(
    own_server: DevServer, admin: Redis, fails_at_first: bool
) -> None:
    """What a dying link has swallowed is found in the list: it was never started."""
    url = await url_with_rights(admin, own_server, "+@all", "~*")
    connections = AgentConnections(Endpoint.of(url), "x", timeout=2, reconnect_max=0.1)
    _, receiver = make_receiver(own_server, "a", connections=connections)
    await admin.rpush(CONTROL, command_bytes(0))
    first = (await receiver.receive(1))[0]
    request = ("BLMOVE", CONTROL, inflight("a"), "LEFT", "RIGHT", 2)
    await BlockingConnection(connections.blocking).post([request])
    await admin.rpush(CONTROL, command_bytes(1))
    await eventually(lambda: _has_length(admin, inflight("a"), 2))
    await connections.blocking.drop()
    if fails_at_first:
        await execute(admin, "ACL", "SETUSER", "agent", "-lrange")
        with pytest.raises(RedisRefusedError):
            await receiver.receive(1)
        await execute(admin, "ACL", "SETUSER", "agent", "+lrange")
    second = (await receiver.receive(1))[0]
    assert (second.payload, second.delivery) == (command_bytes(1), 1)
    assert len(receiver.list) == 2
    assert receiver.begin(first) is Start.RUN
    await receiver.close()
    await connections.aclose()
    assert await admin.lrange(CONTROL, 0, -1) == [command_bytes(0), command_bytes(1)]


@pytest.mark.parametrize("use", ["blocking", "control"])
async def test_a_lost_connection_is_killed_at_the_server(
    own_server: DevServer, admin: Redis, use: str
) -> None:
    """Before the list is compared: what was sent over it cannot change the list later."""
    await admin.rpush(CONTROL, command_bytes(0), command_bytes(1))
    async with FaultProxy(own_server.url, seed=1) as proxy:
        connections = AgentConnections(
            Endpoint.of(proxy.url), "bls-agent:a", timeout=0.5, reconnect_max=0.1
        )
        _, receiver = make_receiver(own_server, "a", connections=connections)
        (first,) = await receiver.receive(1)
        assert receiver.begin(first) is Start.RUN
        number = getattr(connections, use).client_id

        async def is_served() -> bool:
            return number in [int(one["id"]) for one in await admin.client_list()]

        async with proxy.during(Swallow()):
            if use == "control":
                with anyio.move_on_after(0.8):  # the ack has failed once by then
                    await receiver.settle(first)
            else:
                with pytest.raises(RedisUnavailableError, match="timeout"):
                    await connections.blocking.call("PING")
        assert await is_served()
        if use == "control":
            await receiver.settle(first)
        else:
            assert len(await receiver.receive(1)) == 1
        assert not await is_served()
        await receiver.close()
        await connections.aclose()


async def test_a_doubtful_ack_spares_its_twin(
    own_server: DevServer, admin: Redis
) -> None:
    """An ack whose answer was lost is not said twice over another with the same bytes."""
    twin = b'{"command":"mark"}'
    await admin.rpush(CONTROL, twin, twin)
    connections, receiver = make_receiver(own_server, "a")
    first, second = await receiver.receive(2)
    assert receiver.begin(first) is Start.RUN
    assert receiver.begin(second) is Start.RUN
    await admin.lrem(
        inflight("a"), 1, twin.decode()
    )  # as the ack did whose answer is lost
    receiver.list.state = ListState.IN_DOUBT
    await receiver.settle(first)
    assert await admin.lrange(inflight("a"), 0, -1) == [twin]
    assert len(receiver.list) == 1
    await receiver.settle(second)
    assert await drained(admin)
    await receiver.close()
    await connections.aclose()


async def test_a_link_that_dies_with_an_ack(
    own_server: DevServer, admin: Redis
) -> None:
    """The ack ran, its answer was swallowed: its twin is not taken out in its place."""
    twin = b'{"command":"mark"}'
    await admin.rpush(CONTROL, command_bytes(0), twin, twin)
    connections, receiver = make_receiver(own_server, "a", lease_ttl=15)
    before, first, second = await receiver.receive(3)
    assert all(receiver.begin(one) is Start.RUN for one in (before, first, second))
    await receiver.settle(before)  # from now on the server knows the script
    own_server.freeze()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receiver.settle, first)
        await eventually(lambda: connections.control.unanswered)
        await connections.control.drop()
        own_server.thaw()
    assert await admin.lrange(inflight("a"), 0, -1) == [twin]
    await receiver.settle(second)
    assert await drained(admin)
    await receiver.close()
    await connections.aclose()


async def test_an_ack_of_an_earlier_turn(own_server: DevServer, admin: Redis) -> None:
    """Reclaimed, given back and taken here once more: the first ack is not the second's."""
    await admin.rpush(CONTROL, command_bytes(1))
    connections, receiver = make_receiver(own_server, "a")
    others, other = make_receiver(own_server, "b")
    first = (await receiver.receive(1))[0]
    assert receiver.begin(first) is Start.RUN
    await admin.delete(owner("a"))
    assert (await other.receive(1))[0].delivery == 2
    await other.close()
    assert not await receiver.receive(1)  # it is told that its lease is over
    second = (await receiver.receive(1))[0]
    assert (second.payload, second.delivery) == (first.payload, 2)
    await receiver.settle(first)
    assert await admin.lrange(inflight("a"), 0, -1) == [first.payload]
    assert await admin.zscore(SEEN, "cmd-1")
    await receiver.close()
    for pool in (connections, others):
        await pool.aclose()


async def test_a_name_that_is_in_use(own_server: DevServer, admin: Redis) -> None:
    """Two of one name: neither waits, neither touches what the other one has."""
    await admin.rpush(CONTROL, command_bytes(0), command_bytes(1))
    pairs = [make_receiver(own_server, "a") for _ in range(2)]
    messages = [(await receiver.receive(1))[0] for _, receiver in pairs]
    assert [message.payload for message in messages] == [
        command_bytes(0),
        command_bytes(1),
    ]
    keys = {receiver.list.lease.key for _, receiver in pairs}
    assert len(keys) == 2
    for (connections, receiver), message in zip(pairs, messages, strict=True):
        assert receiver.begin(message) is Start.RUN
        await receiver.settle(message)
        await receiver.close()
        await connections.aclose()
    assert await drained(admin)
    assert not await admin.exists(LISTS)


async def test_a_stop_while_connections_move(
    own_server: DevServer, admin: Redis
) -> None:
    """A slot that moves closes connections while Redis is there: the end waits for new ones."""
    await admin.rpush(CONTROL, command_bytes(0))
    async with FaultProxy(own_server.url) as proxy:
        connections = AgentConnections(
            Endpoint.of(proxy.url), "bls-agent:a", timeout=5, reconnect_max=1
        )
        _, receiver = make_receiver(
            own_server, "a", connections=connections, lease_ttl=30
        )
        assert len(await receiver.receive(1)) == 1
        await connections.data.call("PING")
        for connection in (connections.control, connections.blocking):
            await connection.aclose()
        proxy.arm(Late(seconds=1.0, command="CLIENT", times=2))
        await receiver.close()
        await connections.aclose()
    assert not await admin.exists(LISTS, owner("a"), inflight("a"))
    assert await admin.llen(CONTROL) == 1


async def test_losing_the_name_to_another_one(
    own_server: DevServer, admin: Redis
) -> None:
    """Its lease lost to another of the same name: what was not started is theirs now."""
    await admin.rpush(CONTROL, command_bytes(0), command_bytes(1))
    connections, receiver = make_receiver(own_server, "a")
    started, waiting = await receiver.receive(2)
    assert receiver.begin(started) is Start.RUN
    await admin.delete(owner("a"))
    others, other = make_receiver(own_server, "a")
    theirs = await other.receive(2)
    assert [message.delivery for message in theirs] == [2, 2]
    await receiver.settle(started)  # it does not know yet, and is told so
    assert await admin.llen(inflight("a")) == 2
    assert receiver.begin(waiting) is Start.SKIP
    await receiver.list.renew()
    assert receiver.list.lease.key != other.list.lease.key
    await receiver.settle(started)
    assert await admin.llen(inflight("a")) == 2
    for one, pool in ((receiver, connections), (other, others)):
        await one.close()
        await pool.aclose()
    assert await admin.lrange(CONTROL, 0, -1) == [command_bytes(0), command_bytes(1)]


async def test_stop_gives_back_without_counting(
    own_server: DevServer, admin: Redis
) -> None:
    """What was not started goes back in order while the handler still has its time."""
    agent = make_agent(own_server, prefetch=8)
    started, done = anyio.Event(), anyio.Event()

    @agent.command
    async def hold() -> None:
        started.set()
        await done.wait()

    history = History()
    await admin.rpush(CONTROL, b'{"command":"hold"}')
    for _ in range(10):
        await history.push(admin, PROJECT)

    async def all_wait() -> bool:
        return await history.waiting(admin, PROJECT) == list(range(10))

    async with agent, anyio.create_task_group() as tasks:
        await started.wait()
        assert len(await history.waiting(admin, PROJECT)) == 3
        tasks.start_soon(agent.aclose)
        await eventually(all_wait)
        done.set()
    assert await all_wait()
    assert not await admin.exists(DELIVERIES, LISTS, inflight("a"), owner("a"))


async def test_a_cancelled_one_goes_back_and_counts(
    own_server: DevServer, admin: Redis
) -> None:
    """A handler that was cancelled at the stop: its command runs again, delivery 2."""
    agent = make_agent(own_server, shutdown_timeout=0.1, prefetch=2)
    deliveries: list[int] = []

    @agent.command
    async def hold(context: CommandContext) -> None:
        deliveries.append(context.delivery)
        await anyio.sleep_forever()

    await admin.rpush(CONTROL, b'{"id":"1","command":"hold"}', b'{"command":"other"}')
    await admin.rpush(DEAD, *(b"%d" % number for number in range(1_000)))
    for delivery in (1, 2, 3):
        async with agent:
            await eventually(lambda: deliveries[-1:] == [delivery])  # noqa: B023 - now
        assert not await admin.exists(LISTS, owner("a"))
    assert deliveries == [1, 2, 3]
    assert await admin.lrange(CONTROL, 0, -1) == [b'{"command":"other"}']
    assert await admin.lrange(DEAD, -1, -1) == [b'{"id":"1","command":"hold"}']
    assert await admin.llen(DEAD) == 1_000
    assert not await admin.exists(DELIVERIES)
    assert agent.stats().outcomes == {"cancelled": 3, "dead_lettered": 1}


async def test_connections_cut_under_load(own_server: DevServer, admin: Redis) -> None:
    """Every connection killed again and again: 0 lost, 0 twice, in order."""
    history = History()
    agent = make_agent(own_server, prefetch=4, lease_ttl=15)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        async with producing(history, admin, PROJECT, 0.0005):
            for _ in range(15):
                await _one_more(history)
                await cut_connections(admin)
        await eventually(lambda: drained(admin))
    assert Counter(history.handled) == Counter(history.pushed)
    assert agent.stats().outcomes == {"succeeded": len(history.pushed)}


async def _one_more(history: History) -> None:
    before = len(history.handled)
    await eventually(lambda: len(history.handled) > before)


async def test_frozen_server(own_server: DevServer, admin: Redis) -> None:
    """Frozen for longer than a lease, in the middle of everything: 0 lost, 0 twice."""
    history = History()
    agent = make_agent(own_server, prefetch=4, redis_timeout=0.5)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        for number in range(400):
            await history.push(admin, PROJECT)
            if number == 300:
                await eventually(lambda: len(history.handled) > 250)
        own_server.freeze()
        await anyio.sleep(2.5)  # longer than the lease and the block
        own_server.thaw()
        await history.push(admin, PROJECT)
        await eventually(lambda: len(history.handled) >= 401, 15)
        await eventually(lambda: drained(admin))
    assert Counter(history.handled) == Counter(history.pushed)


async def test_frozen_process(own_server: DevServer, admin: Redis) -> None:
    """Frozen for longer than its lease: another one takes over; it does no harm later."""
    for number in range(3):
        await admin.rpush(CONTROL, command_bytes(number))
    history = History()
    agent = make_agent(own_server)
    history.attach(agent)
    with child(own_server, "frozen", 0.2) as program:
        assert program.line() == "started 0 1"
        program.send_signal(signal.SIGSTOP)
        async with agent:
            await eventually(lambda: len(history.handled) == 3)
            await eventually(lambda: drained(admin))
        program.send_signal(signal.SIGCONT)
        await admin.rpush(CONTROL, command_bytes(3))
        while program.line() != "ended 3":
            pass
        await eventually(lambda: drained(admin))
    assert sorted(history.handled) == [0, 1, 2]


async def test_everything_deleted(own_server: DevServer, admin: Redis) -> None:
    """FLUSHALL under a running agent: what comes afterwards is as safe as before."""
    history = History()
    agent = make_agent(own_server)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        await history.push(admin, PROJECT)
        await eventually(lambda: len(history.handled) == 1)
        await admin.flushall()
        for _ in range(20):
            await history.push(admin, PROJECT)
        await eventually(lambda: len(history.handled) == 21)
        await eventually(lambda: _is_members(admin, {inflight("a").encode()}))
        assert await _owns(admin, "a")


@pytest.mark.parametrize("key", [CONTROL, LISTS, DELIVERIES, SEEN, DEAD, inflight("a")])
async def test_another_type_is_left_alone(
    own_server: DevServer, admin: Redis, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A key of ours that holds something else: a clear error, nothing destroyed."""
    await admin.set(key, b"theirs")
    await admin.set(owner("dead"), b"x")
    if key != CONTROL:
        await admin.rpush(CONTROL, command_bytes(1))
    if key in (DEAD, DELIVERIES):  # these are needed when somebody has died
        await admin.rpush(inflight("dead"), command_bytes(0))
        await admin.hset(LISTS, inflight("dead"), 1)
        await admin.delete(owner("dead"))
    history = History()
    agent = make_agent(own_server)
    history.attach(agent)
    async with agent:
        await eventually(lambda: f"'{key}' holds another type" in caplog.text)
    assert not history.handled
    assert await admin.get(key) == b"theirs"
    if key != CONTROL:
        assert await admin.lrange(CONTROL, 0, -1) == [command_bytes(1)]
    if key in (DEAD, DELIVERIES):
        assert await admin.lrange(inflight("dead"), 0, -1) == [command_bytes(0)]


async def test_refused(own_server: DevServer, admin: Redis) -> None:
    """Without the right to BLMOVE: said once, what to use instead, and no tight loop."""
    url = await url_with_rights(admin, own_server, "+@all", "~*", "-blmove", "-lmove")
    agent = ProjectAgent(PROJECT, redis=url, mode="reliable")
    async with agent:
        await agent.ready(5)
        await eventually(lambda: _said_what_to_use(admin))
        await admin.config_resetstat()
        await anyio.sleep(0.3)  # nothing is to happen
        used = await admin.info("commandstats")
        assert "cmdstat_blmove" not in used
    found = [r for r in await records(admin, PROJECT) if "mode" in r["metadata"]]
    assert len(found) == 1


async def _said_what_to_use(redis: Redis) -> bool:
    said = [record["message"] for record in await records(redis, PROJECT)]
    return any("use mode='blocking' or 'compat'" in text for text in said)


async def test_out_of_memory(own_server: DevServer, admin: Redis) -> None:
    """Without memory nothing is taken, what runs is acknowledged, and all resumes."""
    agent = make_agent(own_server)
    history = History()
    full, done = anyio.Event(), anyio.Event()

    @agent.command
    async def hold() -> None:
        full.set()
        await done.wait()

    history.attach(agent)
    async with agent:
        await admin.rpush(CONTROL, b'{"id":"h","command":"hold"}')
        await history.push(admin, PROJECT)
        await full.wait()
        await execute(admin, "CONFIG", "SET", "maxmemory", "1")
        done.set()
        await eventually(lambda: _absent(admin, inflight("a")))
        await anyio.sleep(0.2)  # nothing is to happen
        assert history.handled == []
        await execute(admin, "CONFIG", "SET", "maxmemory", "0")
        await eventually(lambda: history.handled == [0])


async def test_corpus(own_server: DevServer, admin: Redis) -> None:
    """Whatever is pushed ends as its line says, and is acknowledged."""
    items = [item for item in load_commands() if not item.slow]
    agent = make_agent(
        own_server, prefetch=8, concurrency=4, log_buffer_bytes=2**26, dedup_window=0
    )
    add_handlers(agent)
    for item in items:
        await admin.rpush(CONTROL, item.payload)
    async with agent:
        await eventually(lambda: _ended(agent) == len(items), 30)
        await eventually(lambda: drained(admin))
    found = agent.stats().outcomes["discarded"]
    assert found == sum(item.expect == "discarded" for item in items)
    assert not agent.stats().faults


async def test_corpus_through_the_window(own_server: DevServer, admin: Redis) -> None:
    """The same with ids looked at: what is no command never counts as seen."""
    items = [item for item in load_commands() if item.expect == "discarded"]
    agent = make_agent(own_server, prefetch=8, log_buffer_bytes=2**26)
    for item in items:
        await admin.rpush(CONTROL, item.payload)
    async with agent:
        await eventually(lambda: _ended(agent) == len(items), 30)
        await eventually(lambda: drained(admin))
    assert set(agent.stats().outcomes) <= {"discarded", "duplicate"}


@pytest.mark.parametrize(("prefetch", "most"), [(1, 60), (8, 30)])
async def test_one_request_takes_and_acknowledges(
    own_server: DevServer, admin: Redis, prefetch: int, most: int
) -> None:
    """Quick commands cost one request for each that is taken together."""
    history = History()
    agent = make_agent(own_server, prefetch=prefetch, lease_ttl=60)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        await eventually(lambda: agent.stats().connections["blocking"])
        await admin.config_resetstat()
        await admin.rpush(CONTROL, *map(command_bytes, range(40)))
        await eventually(lambda: len(history.handled) == 40)
        await eventually(lambda: drained(admin))
        calls = await admin.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] <= most
    assert calls["cmdstat_zremrangebyscore"]["calls"] <= most
    assert history.handled == list(range(40))


async def test_acks_that_no_fetch_takes_along(
    own_server: DevServer, admin: Redis
) -> None:
    """Behind a slow command of a quick batch they leave by themselves, all in one request."""
    agent = make_agent(own_server, prefetch=8, lease_ttl=600)
    slow, done = anyio.Event(), anyio.Event()

    @agent.command
    async def mark(number: int) -> None:
        if number == 12:
            slow.set()
            await done.wait()

    async with agent:
        await agent.ready(5)
        await admin.rpush(CONTROL, *map(command_bytes, range(16)))
        await slow.wait()
        await eventually(lambda: _has_length(admin, inflight("a"), 4))
        assert await admin.lindex(inflight("a"), 0) == command_bytes(12)
        assert await admin.hget(LISTS, inflight("a")) == b"1"  # no more is started
        done.set()
        await eventually(lambda: drained(admin))


async def test_what_a_quick_batch_may_have_started(
    own_server: DevServer, admin: Redis
) -> None:
    """A death in it counts a delivery of all that stand there: some ran, and have no ack."""
    await admin.rpush(CONTROL, *map(command_bytes, range(8)))
    connections, receiver = make_receiver(own_server, "victim", concurrency=1)
    for number in range(2):
        messages = await receiver.receive(4)
        for message in messages[: 3 if number else 4]:
            assert receiver.begin(message) is Start.RUN
            fetches = not number and message is messages[-1]
            await receiver.settle(message, fetch_follows=fetches)
    assert await admin.lrange(inflight("victim"), 0, -1) == [
        command_bytes(number) for number in range(4, 8)
    ]
    for connection in connections.all:
        await connection.aclose()
    await admin.delete(owner("victim"))
    _, again = pair = make_receiver(own_server, "again", concurrency=1)
    again._pace.is_quick = True
    assert [m.delivery for m in await again.receive(4)] == [2, 2, 2, 2]
    # Of what came back no more is started than the concurrency before the next ack.
    assert await admin.hget(LISTS, inflight("again")) == b"1"
    assert not again._pace.defers
    await again.close()
    await pair[0].aclose()


async def test_a_command_that_kills_its_process(
    own_server: DevServer, admin: Redis
) -> None:
    """Among quick ones, time after time: it alone becomes a dead letter, and none is lost."""
    poisoned = {9, 21}
    payloads = [command_bytes(number) for number in range(30)]
    await admin.rpush(CONTROL, *payloads)
    code = POISONED.format(project=PROJECT, url=own_server.url, poisoned=poisoned)
    handled: list[tuple[int, int]] = []
    for _ in range(3 * len(poisoned)):
        ended = run_python("-c", code)
        assert ended.code == 9
        handled += [eval(line) for line in ended.out.splitlines()]
        await admin.delete(*await admin.keys("*:owner"))
    agent = make_agent(own_server)

    @agent.command
    async def mark(number: int, context: CommandContext) -> None:
        handled.append((number, context.delivery))

    async with agent:
        await eventually(lambda: len({number for number, _ in handled}) == 28)
        await eventually(lambda: drained(admin))
    dead = [command_bytes(number) for number in sorted(poisoned)]
    assert await admin.lrange(DEAD, 0, -1) == dead
    deliveries: dict[int, list[int]] = {}
    for number, delivery in handled:
        deliveries.setdefault(number, []).append(delivery)
    # Whatever ran before says so when it runs again.
    assert all(found == sorted(set(found)) for found in deliveries.values())


async def test_a_refused_ack_is_one_try_for_all(
    own_server: DevServer, admin: Redis
) -> None:
    """However many have ended: one pace, one request, and the rest when it is heard."""
    agent = make_agent(own_server, concurrency=50, prefetch=50, lease_ttl=30.0)
    go, running = anyio.Event(), 0

    @agent.command
    async def mark(number: int) -> None:
        nonlocal running
        running += 1
        await go.wait()

    async with agent:
        await agent.ready(5)
        await admin.rpush(CONTROL, *[command_bytes(n) for n in range(50)])
        await eventually(lambda: running == 50)
        await admin.set(SEEN, "no sorted set")
        await admin.config_resetstat()
        began = anyio.current_time()
        go.set()
        await eventually(lambda: agent.stats().outcomes.get("succeeded", 0) == 50)
        await eventually(lambda: anyio.current_time() - began > 2)
        calls = await admin.info("commandstats")
        # The first try says those of that moment, and of a second's worth are a few.
        assert calls["cmdstat_evalsha"]["calls"] < 50 + 20
        assert await admin.llen(inflight("a")) == 50
        await admin.delete(SEEN)
        await eventually(lambda: _has_length(admin, inflight("a"), 0))
        assert await admin.zcard(SEEN) == 50


@pytest.mark.parametrize("why", ["many lists", "the lease has just ended"])
async def test_a_restart_knows_what_its_predecessor_had_started(
    own_server: DevServer, admin: Redis, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first look at the dead did not find this very list."""
    await admin.rpush(CONTROL, command_bytes(0))
    await die_holding(own_server, admin, "a", 1)
    if why == "many lists":
        monkeypatch.setattr(reclaimer_module, "LISTS_AT_ONCE", 1)
        for number in range(300):
            name = inflight(f"z{number}")
            await admin.hset(LISTS, name, 1)
            await admin.set(owner(f"z{number}"), "alive")
    else:
        await admin.hdel(LISTS, inflight("a"))
    started: list[int] = []
    agent = make_agent(own_server, on_redelivery="skip")

    @agent.command
    async def mark(number: int) -> None:
        started.append(number)

    async with agent:
        await eventually(lambda: bool(agent.stats().outcomes))
        assert agent.stats().outcomes == {"abandoned": 1}
    assert started == []


async def test_a_lease_that_ends_behind_the_first_look(
    own_server: DevServer, admin: Redis
) -> None:
    """What a predecessor of our name may have started is never a first delivery."""
    await admin.rpush(CONTROL, *[command_bytes(number) for number in range(3)])
    held = await die_holding(own_server, admin, "a", 3)
    connections, receiver = make_receiver(own_server, "a")
    receiver._opened = True  # the look was when the lease still held
    found: list[tuple[bytes, int]] = []
    while len(found) < 3:
        messages = await receiver.receive(3)
        found += [(message.payload, message.delivery) for message in messages]
    assert found == [(payload, 2) for payload in held]
    assert receiver.counts().reclaimed == 3
    await receiver.close()
    for connection in connections.all:
        await connection.aclose()
