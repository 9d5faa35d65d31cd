"""How a store reaches Redis: told in four ways, from whatever event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, ProjectAgent, RedisUnavailableError
from bls_agent.connection.access import Access
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.connection.scripts import (
    PUT_TEXT,
    TRIM_HEAD,
    ScriptRun,
    run_scripts,
)
from bls_agent.devserver import DevServer
from tests.harness import eventually


async def ping(access: Access) -> object:
    return await access.pool.call("任务", "SET", "1")


async def test_told_in_four_ways(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL, a client, an agent, or the environment, which is read when it is needed."""
    monkeypatch.delenv("BLS_REDIS_URL", raising=False)
    ways = [
        Access(own_server.url, "test"),
        Access(admin, "test"),
        Access(ProjectAgent("订单系统", redis=own_server.url), "test"),
        Access(None, "test"),
    ]
    monkeypatch.setenv("BLS_REDIS_URL", own_server.url)
    for access in [*ways, Access(ProjectAgent("订单系统"), "test")]:
        assert await ping(access) == b"OK"
        assert access.endpoint.address == ways[0].endpoint.address
        await access.aclose()


def test_refused_at_construction() -> None:
    """What cannot be used is refused before anything is opened."""
    for wrong in (42, "http://127.0.0.1", object()):
        with pytest.raises(ConfigurationError, match="redis"):
            Access(wrong, "test")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timeout"):
        Access("redis://127.0.0.1", "test", timeout=-1)


async def test_scripts_of_which_some_were_executed(
    own_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Redis dies before the others are sent, the error is ambiguous."""
    access = Access(own_server.url, "test", timeout=0.5)
    known: ScriptRun = (PUT_TEXT, ["键"], [60, "1"])
    assert await run_scripts(access.pool, [known]) == [0]
    call_many = access.pool.call_many

    async def die_before_the_texts(asked: Sequence[Request]) -> list[Reply]:
        if asked[0][0] == "EVAL":
            own_server.kill()
            await eventually(lambda: not access.pool.pick().connected)
        return await call_many(asked)

    monkeypatch.setattr(access.pool, "call_many", die_before_the_texts)
    with pytest.raises(RedisUnavailableError) as caught:
        await run_scripts(access.pool, [known, (TRIM_HEAD, ["列表"], ["1"])])
    assert caught.value.ambiguous
    with pytest.raises(RedisUnavailableError) as caught:
        await run_scripts(access.pool, [known])
    assert not caught.value.ambiguous
    await access.aclose()


async def test_many_requests_in_several_writes(own_server: DevServer) -> None:
    """A failure of a later write tells that an earlier one was executed."""
    access = Access(own_server.url, "test", timeout=0.5)
    requests = [("INCR", f"键{number}") for number in range(2_500)]
    assert await access.pool.call_many(requests) == [1] * 2_500
    connection, sent = access.pool.pick(), 0
    call_many = connection.call_many

    async def fail_at_last(self: Connection, asked: Sequence[Request]) -> list[Reply]:
        nonlocal sent
        sent += 1
        if sent == 3:
            raise RedisUnavailableError("connection", "cut", connecting=True)
        return await call_many(asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "call_many", fail_at_last)
        with pytest.raises(RedisUnavailableError) as caught:
            await access.pool.call_many(requests)
    assert caught.value.ambiguous
    await access.aclose()


async def test_a_scan_through_a_restart_finds_every_key() -> None:
    """A server that is started again has its keys in another order."""
    with DevServer(append_only=True) as server:
        access, found = Access(server.url, "test"), set[bytes]()
        requests = [("SET", f"键{number}", "1") for number in range(5_000)]
        await access.pool.call_many(requests)
        async for keys in access.pool.scan_steps("键*"):
            if not found:
                server.restart()
            found.update(keys)
        assert len(found) == 5_000
        await access.aclose()


async def test_closing_is_no_end(own_server: DevServer, admin: Redis) -> None:
    """Closed, it has no connection; the next request opens one."""
    access = Access(own_server.url, "bls-test")

    async def connections() -> int:
        clients = await admin.client_list()
        return sum(one["name"].startswith("bls-test") for one in clients)

    await ping(access)
    assert await connections() == 1
    await access.aclose()
    await access.aclose()
    async with asyncio.timeout(5):  # the server hears of it a moment later
        while await connections():
            await asyncio.sleep(0.005)
    assert await ping(access) == b"OK"
    await access.aclose()


def test_shown_without_credentials() -> None:
    """What a repr says: no password, and nothing is read for it."""
    assert Access(None, "test").shown == "BLS_REDIS_URL"
    shown = Access("redis://worker:secret@127.0.0.1:6379/3", "test").shown
    assert shown == "redis://127.0.0.1:6379/3"
