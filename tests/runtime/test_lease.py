"""Leases: one owner at a time, counted by the server, given up in time; late writes."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import RedisUnavailableError
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import MAY_ARRIVE, Endpoint
from bls_agent.connection.scripts import BEAT, END_LEASE
from bls_agent.core.keys import OWNER, place_beside
from bls_agent.devserver import DevServer
from bls_agent.runtime.lease import (
    Lease,
    LeaseReply,
    Ownership,
    Run,
    ValueLease,
    is_dead,
    own_mark,
    valid_until,
)
from tests.programs import Program, run_python


@pytest.fixture
def key() -> str:
    return f"backtest:worker:回测-{secrets.token_hex(4)}"


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[Connection]:
    connection = Connection(Endpoint.of(redis_url), "claim", timeout=5)
    yield connection
    await connection.aclose()


async def ask(connection: Connection, run: Run) -> LeaseReply:
    """Run the script and read what it says."""
    keys, arguments = run
    return LeaseReply.of(await BEAT.run(connection, keys, [*arguments]))


async def beat(connection: Connection, claim: ValueLease, value: bytes) -> str:
    """Ask and hear, as the loop around a claim does."""
    answer = await ask(connection, claim.write_request(value))
    claim.handle_reply(answer, sent_at=0.0, now=0.0)
    return answer.what


async def end(connection: Connection, claim: ValueLease, now: float = 0.0) -> int:
    """End a claim at the server."""
    keys, arguments = claim.end_request(now)
    removed: int = await END_LEASE.run(connection, keys, [*arguments])
    return removed


def owner_of(key: str) -> str:
    """Where the owner's token stands."""
    return OWNER.locate(place=place_beside(key))


async def test_value_and_lease_in_one_step(
    connection: Connection, bare: Redis, key: str
) -> None:
    """The value is what was given; token, number and digest stand beside it; one TTL."""
    claim = ValueLease(key, 5)
    assert await beat(connection, claim, "值".encode()) == "written"
    assert claim.standing is Ownership.OURS
    assert await bare.get(key) == "值".encode()
    digest = hashlib.sha1("值".encode(), usedforsecurity=False).hexdigest()
    assert await bare.get(claim.owner_key) == f"{claim.token} 1 {digest}".encode()
    for name in (key, owner_of(key)):
        assert 4_000 < await bare.pttl(name) <= 5_000
    assert await end(connection, claim) == 1
    assert await bare.exists(key, owner_of(key)) == 0


async def test_one_owner(connection: Connection, bare: Redis, key: str) -> None:
    """A second one is told whose it is and how long; its end touches nothing."""
    first, second = ValueLease(key, 5), ValueLease(key, 5)
    await beat(connection, first, b"1")
    answer = await ask(connection, second.write_request(b"2"))
    assert answer.what == "held"
    assert answer.detail == first.token
    assert answer.remaining is not None
    assert 4 < answer.remaining <= 5
    assert await end(connection, second) == 0
    assert await bare.get(key) == b"1"


async def test_only_a_dead_owner_is_deposed(
    connection: Connection, bare: Redis, key: str
) -> None:
    """Who names the owner's token as a dead one's takes its key, with its value."""
    first, second = ValueLease(key, 5), ValueLease(key, 5)
    await beat(connection, first, b"1")
    assert await beat(connection, second, b"2") == "held"
    heir = ValueLease(key, 5, is_dead=lambda token: token == first.token)
    assert await beat(connection, heir, b"2") == "held"
    assert await beat(connection, heir, b"2") == "written"
    assert await bare.get(key) == b"2"


async def test_a_clock_set_back(connection: Connection, bare: Redis, key: str) -> None:
    """A lease with more time left than it was made for is cut, and its value with it."""
    first, second = ValueLease(key, 0.4), ValueLease(key, 30)
    await beat(connection, first, b"1")
    for name in (key, first.owner_key):
        assert await bare.pexpire(name, 3_600_000)
    answer = await ask(connection, second.write_request(b"2"))
    assert answer.what == "held"
    assert answer.remaining is not None
    assert answer.remaining <= 0.4
    with anyio.fail_after(5):
        while (await ask(connection, second.write_request(b"2"))).what != "written":
            await anyio.sleep(0.02)
    await bare.delete(key)
    await bare.set(second.owner_key, "")  # nobody's, and without an end
    assert (await ask(connection, first.write_request(b"1"))).what == "held"
    assert 0 < await bare.pttl(second.owner_key) <= 400


async def test_a_stranger_is_judged_by_its_ttl(
    connection: Connection, bare: Redis, key: str
) -> None:
    """What stands there without an owner is left alone, whatever its TTL."""
    claim = ValueLease(key, 5)
    await bare.set(key, b"x", px=3_000)
    answer = await ask(connection, claim.write_request(b"1"))
    assert answer.what == "stands"
    assert answer.remaining is not None
    assert 2 < answer.remaining <= 3
    await bare.persist(key)
    answer = await ask(connection, claim.write_request(b"1"))
    assert (answer.what, answer.remaining) == ("stands", None)
    assert await bare.get(key) == b"x"
    assert await bare.exists(owner_of(key)) == 0


async def test_other_types_stay(connection: Connection, bare: Redis, key: str) -> None:
    """Neither the key nor its lease is written over another type."""
    claim = ValueLease(key, 5)
    await bare.rpush(key, "a")
    assert await beat(connection, claim, b"1") == "wrong_type"
    assert claim.standing is Ownership.WRONG_TYPE
    await bare.delete(key)
    await bare.rpush(owner_of(key), "a")
    assert (await ask(connection, claim.write_request(b"1"))).detail == owner_of(key)
    assert await end(connection, claim) == 0
    assert await bare.exists(key) == 0
    assert await bare.lrange(owner_of(key), 0, -1) == [b"a"]


@pytest.mark.parametrize("odd", [b"", b" ", b"\xff\xfe", b"x y z", b"a" * 2_000])
async def test_an_odd_owner_is_an_owner(
    connection: Connection, bare: Redis, key: str, odd: bytes
) -> None:
    """Whatever a stranger has put where the token stands is somebody's."""
    await bare.set(owner_of(key), odd, px=5_000)
    assert await beat(connection, ValueLease(key, 5), b"1") == "held"
    assert await bare.get(owner_of(key)) == odd


async def test_our_lease_was_lost(
    connection: Connection, bare: Redis, key: str
) -> None:
    """A write that keeps does not take; the next one does, if nobody was there."""
    claim = ValueLease(key, 5)
    await beat(connection, claim, b"1")
    await bare.delete(key, owner_of(key))
    assert await beat(connection, claim, b"2") == "lapsed"
    assert await bare.exists(key) == 0
    assert await beat(connection, claim, b"3") == "written"
    await bare.delete(owner_of(key))  # our own value still stands there
    assert await beat(connection, claim, b"3") == "lapsed"
    assert await beat(connection, claim, b"4") == "written"


async def test_somebody_else_has_it_now(
    connection: Connection, bare: Redis, key: str
) -> None:
    """A peer who took over meanwhile keeps it, with a lease or without."""
    claim, other = ValueLease(key, 5), ValueLease(key, 5)
    await beat(connection, claim, b"1")
    await bare.delete(key, owner_of(key))
    await beat(connection, other, b"other")
    assert await beat(connection, claim, b"2") == "held"
    assert claim.losses == 1
    await end(connection, other)
    await bare.set(key, b"bare", ex=30)
    assert await beat(connection, claim, b"3") == "stands"
    assert await bare.get(key) == b"bare"
    assert claim.losses == 1


async def test_a_stranger_writes_over_ours(
    connection: Connection, bare: Redis, key: str
) -> None:
    """It is told, and ours is written again; its value survives our end."""
    claim = ValueLease(key, 5)
    await beat(connection, claim, b"1")
    await bare.set(key, b"strange")
    assert (await ask(connection, claim.write_request(b"2"))).strange
    assert await bare.get(key) == b"2"
    assert not (await ask(connection, claim.write_request(b"3"))).strange
    await bare.set(key, b"strange", ex=30)
    assert await end(connection, claim) == 0
    assert await bare.get(key) == b"strange"
    assert await bare.exists(owner_of(key)) == 0


async def test_late_writes_do_nothing(
    connection: Connection, bare: Redis, key: str
) -> None:
    """An older write behind a younger one, and one that keeps the key behind the end."""
    claim = ValueLease(key, 5)
    await beat(connection, claim, b"1")
    late = claim.write_request(b"late")
    await beat(connection, claim, b"now")
    assert (await ask(connection, late)).what == "late"
    assert await bare.get(key) == b"now"
    last = claim.write_request(b"last")
    await end(connection, claim)
    assert (await ask(connection, last)).what == "lapsed"
    assert await bare.exists(key) == 0


async def test_a_lost_write_that_takes(
    connection: Connection, bare: Redis, key: str
) -> None:
    """It cannot put the key back in place behind the end; others get it at once."""
    claim = ValueLease(key, 5)
    lost = claim.write_request(b"lost")
    claim.record_failure(ambiguous=True)
    await beat(connection, claim, b"1")
    await end(connection, claim, now=1.0)
    assert (await ask(connection, lost)).what == "late"
    assert await bare.exists(key) == 0
    assert 20_000 < await bare.pttl(owner_of(key)) <= MAY_ARRIVE * 1_000
    other = ValueLease(key, 5)
    assert await beat(connection, other, b"2") == "written"
    assert (await ask(connection, lost)).what == "held"
    await end(connection, other)


async def test_an_end_in_doubt_leaves_the_owner_alone(
    connection: Connection, bare: Redis, key: str
) -> None:
    """Who was refused and cannot know what became of a lost request touches nothing."""
    owner, claim = ValueLease(key, 5), ValueLease(key, 5)
    await beat(connection, owner, b"1")
    claim.write_request(b"lost")
    claim.record_failure(ambiguous=True)
    lease = await bare.get(owner.owner_key)
    assert await end(connection, claim) == 0
    assert await bare.get(owner.owner_key) == lease
    await end(connection, owner)


async def test_nothing_stays_behind_a_clean_end(
    connection: Connection, bare: Redis, key: str
) -> None:
    """What was lost so long ago that it cannot arrive leaves nothing behind, either."""
    claim = ValueLease(key, 5)
    claim.write_request(b"lost")
    claim.record_failure(ambiguous=True)
    await beat(connection, claim, b"1")
    await end(connection, claim, now=MAY_ARRIVE + 1)
    assert await bare.exists(key, owner_of(key)) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_dead_process_is_known_by_its_mark() -> None:
    """Alive, dead, reaped, frozen, and the mark of another machine."""
    code = "from bls_agent.runtime.lease import own_mark; print(own_mark(), flush=True); input()"
    with Program("-c", code) as program:
        mark = program.line()
        machine, pid, start, nonce = mark.split(".")
        assert int(pid) == program.pid
        assert not is_dead(mark)
        program.send_signal(signal.SIGSTOP)
        assert not is_dead(mark)
        assert is_dead(f"{machine}.{pid}.{int(start) - 1}.{nonce}")
        program.kill()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(mark)  # it lies there and nobody has buried it
    assert is_dead(mark)
    assert not is_dead(f"{'0' * 16}.{pid}.{start}.{nonce}")


@pytest.mark.parametrize("mark", ["", "a", "...", "1.2.3.4", "x.y.z.w", ".1.1.1"])
def test_what_is_no_mark_is_not_dead(mark: str) -> None:
    """Nobody is declared dead for a token that somebody else has made."""
    assert not is_dead(mark)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_one_process_has_one_mark_until_an_exec() -> None:
    """Also where the module is there twice; another program in its place has another."""
    code = (
        "import os, sys; from bls_agent.runtime.lease import own_mark; print(own_mark());"
        "del sys.modules['bls_agent.runtime.lease'];"
        "from bls_agent.runtime.lease import own_mark; print(own_mark(), flush=True);"
        "len(sys.argv) > 1 and os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    )
    ended = run_python("-c", code, code)
    assert ended.code == 0
    found = ended.out.split()
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0].rpartition(".")[0] == found[2].rpartition(".")[0]
    assert found[0] != found[2]


def test_our_own_mark() -> None:
    """We live; what ran in this process before an exec does not."""
    if not own_mark():
        pytest.skip("this system tells nothing")
    assert not is_dead(own_mark())
    assert is_dead(own_mark()[:-8] + "00000000")


# --- a lease alone

KEY = "订单系统_控制"
OWNER_KEY = "bls_agent:{订单系统_控制}:owner"


@pytest.fixture
async def own_connection(own_server: DevServer) -> AsyncIterator[Connection]:
    own_connection = Connection(Endpoint.of(own_server.url), "lease", timeout=0.5)
    yield own_connection
    await own_connection.aclose()


async def test_lease_one_owner(own_connection: Connection, admin: Redis) -> None:
    """The second one does not get it; the token stands beside the key, with a TTL."""
    first, second = Lease(own_connection, KEY, 5), Lease(own_connection, KEY, 5)
    assert await first.acquire()
    assert first.valid
    assert not await second.acquire()
    assert not second.valid
    assert first.owner_key == OWNER_KEY
    assert await admin.get(OWNER_KEY) == first.token.encode()
    assert 4_000 < await admin.pttl(OWNER_KEY) <= 5_000
    assert await admin.keys("*") == [OWNER_KEY.encode()]


async def test_renewing(own_connection: Connection, admin: Redis) -> None:
    """Renewing begins the TTL anew, for the owner alone."""
    first, second = Lease(own_connection, KEY, 5), Lease(own_connection, KEY, 5)
    await first.acquire()
    await admin.pexpire(OWNER_KEY, 1_000)
    assert not await second.renew()
    assert await admin.pttl(OWNER_KEY) <= 1_000
    assert await first.renew()
    assert await admin.pttl(OWNER_KEY) > 4_000


async def test_giving_back(own_connection: Connection, admin: Redis) -> None:
    """Given back it is free at once; somebody else's stays."""
    first, second = Lease(own_connection, KEY, 5), Lease(own_connection, KEY, 5)
    await first.acquire()
    await second.give_back()
    assert await admin.exists(OWNER_KEY)
    await first.give_back()
    assert not first.valid
    assert await second.acquire()
    await first.give_back()
    assert await admin.get(OWNER_KEY) == second.token.encode()


async def test_taking_over_what_is_over(own_connection: Connection) -> None:
    """A silent owner is out of office before the server lets somebody else in."""
    first, second = Lease(own_connection, KEY, 0.3), Lease(own_connection, KEY, 60)
    await first.acquire()
    while not await second.acquire():
        await anyio.sleep(0.005)
    assert not first.valid
    assert not await first.renew()
    assert second.valid


@pytest.mark.parametrize("told", ["", "ab12.300@m.1", "poison"])
async def test_lease_a_clock_set_back(
    own_connection: Connection, admin: Redis, told: str
) -> None:
    """What is left of a lease is never more than its length, whoever had it."""
    first, second = Lease(own_connection, KEY, 60), Lease(own_connection, KEY, 0.3)
    await first.acquire()
    assert not await second.acquire()
    assert await admin.pttl(OWNER_KEY) > 50_000  # it is as long as its owner says
    await admin.pexpire(OWNER_KEY, 3_600_000)
    assert not await second.acquire()
    assert 50_000 < await admin.pttl(OWNER_KEY) <= 60_000
    assert await first.renew()
    await admin.set(OWNER_KEY, told)  # without any end
    with anyio.fail_after(5):
        while not await second.acquire():
            await anyio.sleep(0.01)


async def test_in_doubt(own_connection: Connection, own_server: DevServer) -> None:
    """An answer that got lost: asked again, the lease turns out to be ours."""
    lease = Lease(own_connection, KEY, 10)
    await own_connection.open()
    own_server.freeze()
    with pytest.raises(RedisUnavailableError) as caught:
        await lease.acquire()
    own_server.thaw()
    assert caught.value.ambiguous
    assert not lease.valid
    assert await lease.acquire()
    assert lease.valid


async def test_a_child_has_none(own_connection: Connection, admin: Redis) -> None:
    """A forked child neither holds the lease nor ends its parent's."""
    lease = Lease(own_connection, KEY, 5)
    await lease.acquire()
    lease.reset_after_fork()
    assert not lease.valid
    assert not await lease.renew()
    await lease.give_back()
    assert await admin.exists(OWNER_KEY)


async def test_another_type_is_left_alone(
    own_connection: Connection, admin: Redis
) -> None:
    """A key that holds something else is not overwritten."""
    await admin.rpush(OWNER_KEY, b"theirs")
    lease = Lease(own_connection, KEY, 5)
    with pytest.raises(RedisUnavailableError, match="WRONGTYPE"):
        await lease.acquire()
    assert not lease.valid
    assert await admin.lrange(OWNER_KEY, 0, -1) == [b"theirs"]


async def test_a_dead_owner_is_not_waited_for(
    own_connection: Connection, admin: Redis
) -> None:
    """Unless the lease is one that has to be waited for."""
    await admin.set(OWNER_KEY, "ab12.60000@dead", px=60_000)
    patient = Lease(own_connection, KEY, 5, is_dead=lambda _: False)
    assert not await patient.acquire()
    heir = Lease(own_connection, KEY, 5, is_dead=lambda token: token.endswith("@dead"))
    assert await heir.acquire()
    assert await admin.get(OWNER_KEY) == heir.token.encode()


async def test_a_lease_is_kept_until_it_is_lost(
    own_connection: Connection, admin: Redis
) -> None:
    """Renewed three times in its TTL; the end is told when somebody else has it."""
    lease = Lease(own_connection, KEY, 0.6)
    await lease.acquire()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lease.keep)
            await anyio.sleep(1.0)
            assert lease.valid
            await admin.set(OWNER_KEY, "another", px=60_000)
    assert not lease.valid


@pytest.mark.parametrize(("ttl", "safe"), [(1.0, 0.9), (10.0, 9.0), (60.0, 59.0)])
def test_a_lease_is_given_up_before_the_server_ends_it(ttl: float, safe: float) -> None:
    """A tenth of its time, at most a second."""
    assert valid_until(100.0, ttl) == pytest.approx(100.0 + safe)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_request_that_comes_behind_the_end_takes_nothing(
    own_connection: Connection, own_server: DevServer, admin: Redis, cancelled: bool
) -> None:
    """Its reply got lost or was not waited for, and the lease was given back meanwhile."""
    lease = Lease(own_connection, KEY, 10)
    await own_connection.open()
    own_server.freeze()
    if cancelled:
        with anyio.move_on_after(0.1) as scope:
            await lease.acquire()
        assert scope.cancelled_caught
    else:
        with pytest.raises(RedisUnavailableError):
            await lease.acquire()
    own_server.thaw()
    token = lease.token
    await lease.give_back()
    assert await admin.get(OWNER_KEY) == f"{token} ended".encode()
    assert await Lease(own_connection, KEY, 5).acquire()
