"""A lease: one owner at a time, counted by the server, given up in time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import RedisUnavailableError
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.wire import Wire
from bls_agent.devserver import DevServer
from bls_agent.runtime.lease import Lease
from tests.harness import eventually

KEY = "订单系统_控制"
OWNER = "bls_agent:{订单系统_控制}:owner"


@pytest.fixture
async def wire(own_server: DevServer) -> AsyncIterator[Wire]:
    wire = Wire(Endpoint.of(own_server.url), "lease", timeout=0.5)
    yield wire
    await wire.aclose()


async def test_one_owner(wire: Wire, admin: Redis) -> None:
    """The second one does not get it; the token stands beside the key, with a TTL."""
    first, second = Lease(wire, KEY, 5), Lease(wire, KEY, 5)
    assert await first.acquire()
    assert first.valid
    assert not await second.acquire()
    assert not second.valid
    assert first.owner_key == OWNER
    assert await admin.get(OWNER) == first.token.encode()
    assert 4_000 < await admin.pttl(OWNER) <= 5_000
    assert await admin.keys("*") == [OWNER.encode()]


async def test_renewing(wire: Wire, admin: Redis) -> None:
    """Renewing begins the TTL anew, for the owner alone."""
    first, second = Lease(wire, KEY, 5), Lease(wire, KEY, 5)
    await first.acquire()
    await admin.pexpire(OWNER, 1_000)
    assert not await second.renew()
    assert await admin.pttl(OWNER) <= 1_000
    assert await first.renew()
    assert await admin.pttl(OWNER) > 4_000


async def test_giving_back(wire: Wire, admin: Redis) -> None:
    """Given back it is free at once; somebody else's stays."""
    first, second = Lease(wire, KEY, 5), Lease(wire, KEY, 5)
    await first.acquire()
    await second.give_back()
    assert await admin.exists(OWNER)
    await first.give_back()
    assert not first.valid
    assert await second.acquire()
    await first.give_back()
    assert await admin.get(OWNER) == second.token.encode()


async def test_taking_over_what_is_over(wire: Wire) -> None:
    """A silent owner is out of office before the server lets somebody else in."""
    first, second = Lease(wire, KEY, 0.3), Lease(wire, KEY, 0.3)
    await first.acquire()
    while not await second.acquire():
        await anyio.sleep(0.005)
    assert not first.valid
    assert not await first.renew()
    assert second.valid


async def test_our_clock_runs_out_first(wire: Wire, admin: Redis) -> None:
    """Valid is never said longer than the server says it."""
    lease = Lease(wire, KEY, 0.5)
    await lease.acquire()
    await eventually(lambda: not lease.valid)
    assert await admin.get(OWNER) == lease.token.encode()


@pytest.mark.parametrize("told", ["", "ab12.300@m.1", "poison"])
async def test_a_clock_set_back(wire: Wire, admin: Redis, told: str) -> None:
    """What is left of a lease is never more than its length, whoever had it."""
    first, second = Lease(wire, KEY, 60), Lease(wire, KEY, 0.3)
    await first.acquire()
    assert not await second.acquire()
    assert await admin.pttl(OWNER) > 50_000  # it is as long as its owner says
    await admin.pexpire(OWNER, 3_600_000)
    assert not await second.acquire()
    assert 50_000 < await admin.pttl(OWNER) <= 60_000
    assert await first.renew()
    await admin.set(OWNER, told)  # without any end
    with anyio.fail_after(5):
        while not await second.acquire():
            await anyio.sleep(0.01)


async def test_in_doubt(wire: Wire, own_server: DevServer) -> None:
    """An answer that got lost: asked again, the lease turns out to be ours."""
    lease = Lease(wire, KEY, 10)
    await wire.open()
    own_server.freeze()
    with pytest.raises(RedisUnavailableError) as caught:
        await lease.acquire()
    own_server.thaw()
    assert caught.value.ambiguous
    assert not lease.valid
    assert await lease.acquire()
    assert lease.valid


async def test_a_child_has_none(wire: Wire, admin: Redis) -> None:
    """A forked child neither holds the lease nor ends its parent's."""
    lease = Lease(wire, KEY, 5)
    await lease.acquire()
    lease.forget_parent()
    assert not lease.valid
    assert not await lease.renew()
    await lease.give_back()
    assert await admin.exists(OWNER)


async def test_another_type_is_left_alone(wire: Wire, admin: Redis) -> None:
    """A key that holds something else is not overwritten."""
    await admin.rpush(OWNER, b"theirs")
    lease = Lease(wire, KEY, 5)
    with pytest.raises(RedisUnavailableError, match="WRONGTYPE"):
        await lease.acquire()
    assert not lease.valid
    assert await admin.lrange(OWNER, 0, -1) == [b"theirs"]
