"""A worker's heartbeat while Redis, its rights or the event loop fail."""

from __future__ import annotations

import asyncio
import json
import os
import time
from math import inf
from typing import Any, cast

import anyio
import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from bls_agent import LeaseHeldError, RedisUnavailableError
from bls_agent.core.keys import OWNER, place_beside
from bls_agent.devserver import DevServer
from bls_agent.workers import BacktestWorkerHeartbeat, Heartbeat
from tests.harness import (
    eventually,
    execute,
    is_gone,
    is_there,
    needs_selectors,
    sampled,
    url_with_rights,
)
from tests.kit import FaultProxy, Late

SHORT: dict[str, Any] = {"interval": 0.2, "ttl": 1.0, "timeout": 0.5}


def owner_of(key: str) -> str:
    """Where the owner's token stands."""
    return OWNER.locate(place=place_beside(key))


def status_in(heartbeat: bytes) -> str:
    """What a heartbeat says of its worker."""
    return str(json.loads(heartbeat)["status"])


async def test_redis_away_at_the_start(
    own_server: DevServer, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The host goes on at once; one complaint; claimed when Redis is there."""
    own_server.kill()
    began = time.monotonic()
    async with Heartbeat(said, redis=own_server.url, **{**SHORT, "timeout": 5}) as beat:
        assert time.monotonic() - began < 2.0
        assert not beat.stats().owned
        with pytest.raises(RedisUnavailableError, match="not answered"):
            await beat.ready(0.3)
        complaints = [r for r in caplog.records if "again until" in r.message]
        assert len(complaints) == 1
        own_server.restart()
        await beat.ready(10.0)
        assert beat.owned
        own_server.kill()
        await eventually(lambda: beat.stats().failures > 3)
        await eventually(lambda: not beat.stats().owned)
    assert time.monotonic() - began < 20.0


async def test_redis_frozen_at_the_start(own_server: DevServer, said: Any) -> None:
    """The host waits about one timeout; stopping takes no longer, either."""
    own_server.freeze()
    began = time.monotonic()
    try:
        async with Heartbeat(said, redis=own_server.url, **SHORT) as beat:
            assert 0.4 < time.monotonic() - began < 2.0
            assert not beat.owned
            began = time.monotonic()
        assert time.monotonic() - began < 3.0
    finally:
        own_server.thaw()


async def test_redis_comes_back_empty(said: Any) -> None:
    """Killed and started again without its data: all are back with the first one."""
    other = BacktestWorkerHeartbeat.create(worker_id="other")
    slow: dict[str, Any] = {"interval": 10, "ttl": 30, "timeout": 0.5}
    with DevServer() as server:
        bare = Redis.from_url(server.url, protocol=2)
        async with (
            Heartbeat(said, redis=server.url, **slow) as beat,
            Heartbeat(other, redis=server.url, **slow) as second,
        ):
            server.kill()
            server.restart()
            beat.update(running_tasks=1)
            await eventually(lambda: is_there(bare, other.key))
            assert await bare.exists(said.key) == 1
            assert beat.owned
            assert second.owned
        assert await bare.keys("*") == []
        await bare.aclose()


async def test_a_cut_connection(own_server: DevServer, admin: Redis, said: Any) -> None:
    """What was forgotten in between comes back with the next connection."""
    other = BacktestWorkerHeartbeat.create(worker_id="other")
    async with (
        Heartbeat(said, redis=own_server.url, interval=10, ttl=30, timeout=0.5),
        Heartbeat(
            other, redis=own_server.url, interval=10, ttl=30, timeout=0.5
        ) as beat,
    ):
        await admin.flushall()
        for client in await admin.client_list():
            if client["name"] == "bls-agent:heartbeats":
                await execute(admin, "CLIENT", "KILL", "ID", client["id"])
        beat.update(running_tasks=1)
        await eventually(lambda: is_there(admin, said.key))
        assert await admin.exists(other.key) == 1


async def test_frozen_while_it_stops(
    own_server: DevServer, admin: Redis, said: Any
) -> None:
    """Bounded; what was on its way puts nothing in place behind the end."""
    async with Heartbeat(
        said, redis=own_server.url, **{**SHORT, "timeout": 2.0}
    ) as beat:
        assert beat.owned
        own_server.freeze()
        beat.update(running_tasks=1)
        await anyio.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 3.0
    own_server.thaw()
    await eventually(lambda: is_gone(admin, said.key), 3.0)
    await anyio.sleep(0.3)
    assert await admin.exists(said.key) == 0


async def test_a_lost_take_arrives_after_the_end(
    own_server: DevServer, admin: Redis, said: Any
) -> None:
    """The first beat is lost in a frozen server; the key stays gone after the stop."""
    async with Heartbeat(said, redis=own_server.url, **SHORT):  # scripts are known now
        pass
    beat = Heartbeat(said, redis=own_server.url, **{**SHORT, "timeout": 0.3})
    other = BacktestWorkerHeartbeat.create(worker_id="keeps the connection")
    async with Heartbeat(other, redis=own_server.url, **{**SHORT, "timeout": 0.3}):
        own_server.freeze()
        await beat.__aenter__()
        assert not beat.owned
        state: Any = beat._state
        # The request is given up.
        await eventually(lambda: state.claim._may_arrive_until == inf)
        own_server.thaw()
        await beat.ready(5.0)
        await beat.aclose()
        assert await admin.exists(said.key) == 0
        left: Any = await admin.get(owner_of(said.key))
        assert left.endswith(b" ended")
    async with Heartbeat(said, redis=own_server.url, **SHORT) as again:
        assert again.owned


async def test_out_of_memory(own_server: DevServer, admin: Redis, said: Any) -> None:
    """A living worker does not look dead; a status that is not true any more does not live on."""
    async with Heartbeat(said, redis=own_server.url, **SHORT) as beat:
        before = await admin.get(said.key)
        await admin.config_set("maxmemory", "1")
        await eventually(lambda: beat.stats().refreshes >= 6)
        assert await admin.get(said.key) == before
        assert beat.owned
        beat.update(status="stopping")
        await eventually(lambda: is_gone(admin, said.key))
        await admin.config_set("maxmemory", "0")
        await eventually(lambda: beat.owned)
        value = await admin.get(said.key)
        assert json.loads(value or b"{}")["status"] == "stopping"


@needs_selectors
@pytest.mark.parametrize(
    "rules",
    [
        ("+client", "+ping", "~nothing"),
        ("+@all", "-@scripting", "~*"),
        ("+@all", "-type", "~*"),  # the script runs, and may not look
        ("+@all", "~backtest:worker:*"),  # the owner's key is not ours to touch
    ],
)
async def test_without_the_rights(
    own_server: DevServer,
    admin: Redis,
    said: Any,
    caplog: pytest.LogCaptureFixture,
    rules: tuple[str, ...],
) -> None:
    """Said once, never a tight loop; it goes on when the right was granted."""
    url = await url_with_rights(admin, own_server, *rules)
    async with Heartbeat(said, redis=url, **SHORT) as beat:
        await eventually(lambda: beat.stats().failures >= 1)
        await anyio.sleep(0.5)
        assert beat.stats().failures <= 2
        assert not beat.stats().owned
        assert await admin.keys("*") == []
        told = [r for r in caplog.records if "cannot be written" in r.message]
        assert len(told) == 1
        await execute(admin, "ACL", "SETUSER", "agent", "+@all", "~*")
        state, writer = cast("Any", beat._state), cast("Any", beat._writer)
        state.due_at = 0.0  # half a minute has passed
        writer._wakeup.set()
        await beat.ready(5.0)
        assert beat.owned
    assert await admin.keys("*") == []


async def test_a_conflict_found_later(
    own_server: DevServer, admin: Redis, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis was away at the start, and a peer came first: told in the log, waited for."""
    own_server.kill()
    async with Heartbeat(said, redis=own_server.url, **SHORT) as beat:
        own_server.restart()
        first = BlockingRedis.from_url(own_server.url)
        first.set(said.key, b"{}", ex=30)
        first.close()
        if beat.stats().writes:
            pytest.skip("we were faster")
        await eventually(lambda: beat.stats().standing == "stands")
        assert "no heartbeat is written" in caplog.text
        async with Redis.from_url(own_server.url, protocol=2) as bare:
            await bare.pexpire(said.key, 50)
        await eventually(lambda: beat.owned)


async def test_a_conflict_found_after_a_slow_opening(
    own_server: DevServer, admin: Redis, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Connecting and the first beat were in time, both together were not: told in the log."""
    async with Heartbeat(said, redis=own_server.url, **SHORT):  # scripts are known now
        pass
    await admin.set(said.key, b"{}", ex=30)
    async with FaultProxy(own_server.url) as proxy:
        proxy.arm(Late(command="CLIENT", seconds=0.7))
        proxy.arm(Late(command="EVALSHA", seconds=0.7))
        async with Heartbeat(
            said, redis=proxy.url, **{**SHORT, "timeout": 1.0}
        ) as beat:
            assert beat.stats().standing == "unknown"
            await eventually(lambda: beat.stats().standing == "stands")
            assert beat.stats().failures == 0
            assert "no heartbeat is written" in caplog.text


async def test_a_stalled_loop_lets_it_expire(redis_url: str, said: Any) -> None:
    """Nothing beats for a loop that stands still; once it moves, the key is back."""
    async with Heartbeat(said, redis=redis_url, **SHORT) as beat:
        with sampled(redis_url, said.key, status_in) as seen:
            await eventually(lambda: seen == ["running"])
            time.sleep(1.4)
            assert seen == ["running", "nothing"]
            await eventually(lambda: seen[-1] == "running")
        assert beat.owned


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("plain", [True, False])
def test_a_forked_child(redis_url: str, said: Any, plain: bool) -> None:
    """The child beats nothing, owns nothing and removes nothing; it may have its own."""
    bare = BlockingRedis.from_url(redis_url, protocol=2)

    def fork(beat: Heartbeat) -> int:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                quiet = not beat.owned and not beat.stats().open
                other = BacktestWorkerHeartbeat.create(worker_id=said.id + "-child")
                if plain:
                    beat.__exit__(None, None, None)
                    with Heartbeat(other, redis=redis_url) as own:
                        own.wait_ready(5.0)
                        quiet = quiet and own.owned
                    with (
                        pytest.raises(LeaseHeldError),
                        Heartbeat(said, redis=redis_url),
                    ):
                        pass
                code = 0 if quiet else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    async def live() -> int:
        async with Heartbeat(said, redis=redis_url, **SHORT) as beat:
            found = fork(beat)
            await anyio.sleep(1.2)
            assert beat.owned
        return found

    if plain:
        with Heartbeat(said, redis=redis_url, **SHORT) as beat:
            beat.wait_ready(5.0)
            assert fork(beat) == 0
            assert bare.exists(said.key) == 1
            time.sleep(1.2)
            assert beat.owned
    else:
        assert anyio.run(live) == 0
    assert bare.exists(said.key) == 0
    bare.close()


async def test_who_is_refused_neither_delays_nor_hastens_the_others(
    own_server: DevServer, admin: Redis, said: Any
) -> None:
    """One of many may not be written: the others beat as often as before."""
    rights = ["+@all", f"~{said.key}", "~bls_agent:*"]
    url = await url_with_rights(admin, own_server, *rights)
    usual: dict[str, Any] = {"interval": 0.5, "ttl": 5.0, "timeout": 2.0}
    other = BacktestWorkerHeartbeat.create(worker_id="another")
    async with (
        Heartbeat(said, redis=url, **usual) as beat,
        Heartbeat(other, redis=url, **usual) as refused,
    ):
        await beat.ready(5)
        assert refused.stats().failures > 0
        before, began = beat.stats().writes, time.monotonic()
        await eventually(lambda: beat.stats().writes >= before + 4)
        assert time.monotonic() - began > 0.8  # four times 0.4 s, but for a first one
        assert refused.stats().writes == 0


def test_a_loop_that_ends_under_it_leaves_no_key(own_server: DevServer) -> None:
    """Its end cancels whoever beats together with whoever would end the heartbeat."""

    async def main() -> None:
        async def work(number: int) -> None:
            said = BacktestWorkerHeartbeat.create(f"回测-{number}")
            async with Heartbeat(said, redis=own_server.url, **{**SHORT, "ttl": 60}):
                opened[number].set()
                await anyio.sleep(60)

        opened = [anyio.Event() for _ in range(3)]
        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        for event in opened:
            await event.wait()
        assert not any(task.done() for task in tasks)

    for _ in range(3):  # the order in which tasks are cancelled is by chance
        began = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - began < 0.5 + SHORT["timeout"]
        with BlockingRedis.from_url(own_server.url, protocol=2) as client:
            assert client.keys("backtest:worker:*") == []


@pytest.mark.parametrize("phase", ["opening", "closing"])
async def test_cancelled_at_any_time(
    own_server: DevServer, admin: Redis, phase: str
) -> None:
    """While it is opened or closed: no key, no task and no pool is left."""
    before = asyncio.all_tasks()
    for turns in range(25):
        said = BacktestWorkerHeartbeat.create(f"回测-{turns}")
        begun = asyncio.Event()

        async def work(
            said: BacktestWorkerHeartbeat = said, begun: asyncio.Event = begun
        ) -> None:
            if phase == "opening":
                begun.set()
            async with Heartbeat(said, redis=own_server.url, timeout=2.0) as beat:
                await beat.ready(5)
                begun.set()

        task = asyncio.create_task(work())
        await begun.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5.0)
        await eventually(lambda: asyncio.all_tasks() <= before)
        assert await admin.exists(said.key) == 0
