"""Dead letters and commands in hand, as an operator sees them and works on them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import (
    CommandContext,
    ConfigurationError,
    Console,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.connection.scripts import SETTLE_DEAD
from bls_agent.core.acl import console_acl_rules
from bls_agent.devserver import DevServer
from bls_agent.project.messages import Command
from tests.harness import (
    command_bytes,
    eventually,
    execute,
    needs_selectors,
    url_with_rights,
)
from tests.kit import Cut, Direction, FaultProxy
from tests.test_reliable import (
    CONTROL,
    DEAD,
    DELIVERIES,
    LISTS,
    PROJECT,
    die_holding,
    inflight,
    make_agent,
    owner,
)

LETTERS = 250  # so many that the script runs three times


async def test_a_letter_begins_anew(own_server: DevServer, admin: Redis) -> None:
    """Died of three deliveries, it runs behind what waits, and that is its first one."""
    dying, waiting = command_bytes(1), command_bytes(2)
    await admin.rpush(CONTROL, dying)
    for number in range(3):
        assert await die_holding(own_server, admin, f"v{number}", 1) == [dying]
    seen: list[tuple[int, int]] = []
    agent = make_agent(own_server)

    @agent.command
    async def mark(number: int, context: CommandContext) -> None:
        seen.append((number, context.delivery))

    async with Console(own_server.url) as console:
        async with agent:
            await eventually(lambda: agent.stats().outcomes == {"dead_lettered": 1})
        (letter,) = await console.dead_letters(PROJECT)
        assert (letter.id, letter.args) == ("cmd-1", {"number": 1})
        await admin.rpush(CONTROL, waiting)
        # The same bytes were sent once more, and came back twice.
        await admin.hset(DELIVERIES, hashlib.sha1(dying).hexdigest(), 3)
        assert await console.requeue(PROJECT, "cmd-1") == [letter]
        assert await admin.lrange(CONTROL, 0, -1) == [waiting, dying]
        async with agent:
            await eventually(lambda: len(seen) == 2)
    assert seen == [(2, 1), (1, 1)]
    assert not await admin.exists(DEAD, DELIVERIES)


async def test_letters_are_seen_and_chosen(
    console: Console, redis: Redis, project: str
) -> None:
    """The newest first; by id, all copies; without an id only with all the others."""
    key, dead = f"{project}_控制", f"bls_agent:{{{project}_控制}}:dead"
    big = b'{"id":"big","args":{"a":"%s"}}' % (b"x" * 2_000_000)
    await redis.rpush(
        dead, b"\xff", big, *[b'{"id":"a","command":"x"}'] * 2, b'{"id":7}'
    )
    letters = await console.dead_letters(project)
    assert [one.id for one in letters] == ["7", "a", "a", "big", ""]
    assert [one.id for one in await console.dead_letters(project, 2)] == ["7", "a"]
    assert [one.id for one in await console.requeue(project, "a")] == ["a", "a"]
    assert [one.id for one in await console.discard(project, "7")] == ["7"]
    assert await console.requeue(project, "7") == await console.discard(project, "a")
    assert await redis.llen(key) == 2
    assert len(await console.requeue(project, all=True)) == 2
    assert (await redis.lrange(key, 2, -1), await redis.exists(dead)) == (
        [b"\xff", big],
        0,
    )
    wrong: list[dict[str, Any]] = [{}, {"id": ""}, {"id": "a", "all": True}]
    for arguments in wrong:
        with pytest.raises(ConfigurationError, match="id"):
            await console.discard(project, **arguments)
    await redis.rpush(dead, "{}")
    for odd in (key, dead):
        await redis.delete(odd)
        await redis.set(odd, "no list")
        with pytest.raises(WrongTypeError, match=odd):
            await console.requeue(project, all=True)
        if odd is key:
            assert await redis.lrange(dead, 0, -1) == [b"{}"]


@pytest.mark.parametrize("direction", [Direction.REQUESTS, Direction.REPLIES])
async def test_a_console_dies_in_the_middle(
    own_server: DevServer, admin: Redis, direction: Direction
) -> None:
    """Wherever it is cut off, each letter is in exactly one list, and the rest follows."""
    payloads = [command_bytes(number) for number in range(LETTERS)]
    await admin.rpush(DEAD, *payloads)
    async with FaultProxy(own_server.url) as proxy:
        async with Console(proxy.url) as console:
            rule = Cut(
                at=0 if direction is Direction.REPLIES else 5_000,
                command="EVALSHA",
                direction=direction,
            )
            await execute(admin, "SCRIPT", "LOAD", SETTLE_DEAD.text)
            proxy.arm(rule)
            with pytest.raises(RedisUnavailableError) as caught:
                await console.requeue(PROJECT, all=True)
            assert caught.value.ambiguous
        left, moved = [await admin.lrange(key, 0, -1) for key in (DEAD, CONTROL)]
        assert sorted([*left, *moved]) == sorted(payloads)
        assert len(moved) == (100 if direction is Direction.REPLIES else 0)
        async with Console(proxy.url) as console:
            assert len(await console.requeue(PROJECT, all=True)) == len(left)
    assert await admin.lrange(CONTROL, 0, -1) == payloads


async def test_three_operators_at_once(own_server: DevServer, admin: Redis) -> None:
    """Each letter is queued or discarded by exactly one of them, and one of them says so."""
    await admin.rpush(DEAD, *(command_bytes(number) for number in range(80)))
    found: list[tuple[str, str]] = []

    async def work(name: str, console: Console) -> None:
        method = getattr(console, name)
        for number in range(80):
            found.extend(
                (name, one.id) for one in await method(PROJECT, f"cmd-{number}")
            )

    async with (
        Console(own_server.url) as one,
        Console(own_server.url) as two,
        anyio.create_task_group() as tasks,
    ):
        for name, console in (("requeue", one), ("discard", two), ("requeue", two)):
            tasks.start_soon(work, name, console)
    assert sorted(number for _, number in found) == sorted(
        f"cmd-{n}" for n in range(80)
    )
    queued: list[Any] = await admin.lrange(CONTROL, 0, -1)
    assert sorted(Command.peek(payload).id for payload in queued) == sorted(
        one for name, one in found if name == "requeue"
    )
    assert not await admin.exists(DEAD)


async def test_without_memory(own_server: DevServer, admin: Redis) -> None:
    """A full server loses no letter: it is queued again all the same."""
    await admin.rpush(DEAD, command_bytes(1))
    await execute(admin, "CONFIG", "SET", "maxmemory", "1")
    async with Console(own_server.url) as console:
        assert len(await console.requeue(PROJECT, all=True)) == 1
    assert await admin.lrange(CONTROL, 0, -1) == [command_bytes(1)]


async def test_what_each_process_has_in_hand(
    own_server: DevServer, admin: Redis
) -> None:
    """The oldest first, of the living and of the dead; nothing of what is no list of ours."""
    started, go_on = anyio.Event(), anyio.Event()
    agent = make_agent(own_server, instance="甲", prefetch=2, lease_ttl=30)

    @agent.command
    async def hold() -> None:
        started.set()
        await go_on.wait()

    async with agent, Console(own_server.url) as console:
        await admin.rpush(
            CONTROL, b'{"id":"1","command":"hold"}', b'{"id":"2","command":"hold"}'
        )
        await started.wait()
        await admin.rpush(inflight("乙"), command_bytes(3))
        await admin.hset(
            LISTS, mapping={inflight("乙"): 1, "else": 1, inflight("丙"): 1}
        )
        await admin.set(owner("丙"), "x", px=60_000)

        async def seen() -> dict[str, tuple[list[str], bool]]:
            found = await console.in_hand(PROJECT)
            return {
                one.instance: ([c.id for c in one.commands], one.alive) for one in found
            }

        wanted: dict[str, tuple[list[str], bool]] = {
            "丙": ([], True),
            "乙": (["cmd-3"], False),
            "甲": (["1", "2"], True),
        }
        await eventually(partial(_is, seen, wanted))
        assert [len(one.commands) for one in await console.in_hand(PROJECT, 1)] == [
            0,
            1,
            1,
        ]
        go_on.set()


async def test_a_lease_without_an_end(own_server: DevServer, admin: Redis) -> None:
    """Its process counts as alive, as it does for the other processes."""
    await admin.hset(LISTS, mapping={inflight("甲"): 1, inflight("乙"): 1})
    await admin.set(owner("甲"), "x")
    async with Console(own_server.url) as console:
        found = await console.in_hand(PROJECT)
    assert {one.instance: one.alive for one in found} == {"甲": True, "乙": False}


async def _is(read: Callable[[], Any], wanted: object) -> bool:
    return bool(await read() == wanted)


@needs_selectors
async def test_rights(own_server: DevServer, admin: Redis) -> None:
    """The printed rights are enough; without them the refusal is an error."""
    await admin.rpush(DEAD, command_bytes(1), command_bytes(2))
    await admin.hset(LISTS, inflight("a"), "1")
    url = await url_with_rights(admin, own_server, *console_acl_rules(PROJECT))
    async with Console(url) as console:
        assert [one.alive for one in await console.in_hand(PROJECT)] == [False]
        assert len(await console.dead_letters(PROJECT)) == 2
        assert len(await console.requeue(PROJECT, "cmd-1")) == 1
        assert len(await console.discard(PROJECT, all=True)) == 1
    rules = console_acl_rules(PROJECT, send=False)
    url = await url_with_rights(admin, own_server, *rules)
    async with Console(url) as console:
        for ask in (
            console.dead_letters(PROJECT),
            console.in_hand(PROJECT),
            console.discard(PROJECT, all=True),
        ):
            with pytest.raises(RedisRefusedError) as caught:
                await ask
            assert caught.value.kind == "no_permission"
