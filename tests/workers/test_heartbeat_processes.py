"""Workers as processes: killed, frozen, started again under the same id."""

from __future__ import annotations

import json
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from redis.asyncio import Redis

from bls_agent.core.keys import KEYS, OWNER, place_beside
from tests.harness import eventually
from tests.programs import Program

TTL = 2.0  # seconds

WORKER = """
import signal, sys, threading
from bls_agent import LeaseHeldError
from bls_agent.workers import BacktestWorkerHeartbeat, Heartbeat

url, name, ttl, conflict = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
heartbeat = BacktestWorkerHeartbeat.create(worker_id=name)
try:
    with Heartbeat(heartbeat, redis=url, ttl=float(ttl), conflict=conflict) as beat:
        print("entered", flush=True)
        beat.wait_ready()
        print("ready", flush=True)
        threading.Event().wait()
except LeaseHeldError as error:
    print("refused", error.remaining, flush=True)
"""


class Fleet:
    """Worker processes under one id, and what Redis shows of them."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        self._stack = stack
        self.name = f"回测-{secrets.token_hex(4)}"
        self.key = KEYS["backtest_worker_heartbeat"].build(worker_id=self.name)
        self.owner = OWNER.locate(place=place_beside(self.key))

    def start(self, conflict: str = "refuse") -> Program:
        """Start one more."""
        words = ("-c", WORKER, self._url, self.name, str(TTL), conflict)
        return self._stack.enter_context(Program(*words))


@pytest.fixture
def fleet(redis_url: str) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(redis_url, stack)


async def test_killed(fleet: Fleet, bare: Redis) -> None:
    """It vanishes within its TTL, and not at once: nobody had the time to say it."""
    worker = fleet.start()
    assert (worker.line(), worker.line()) == ("entered", "ready")
    worker.kill()
    worker.wait()
    killed = time.monotonic()
    assert await bare.exists(fleet.key) == 1

    async def vanished() -> bool:
        return not await bare.exists(fleet.key, fleet.owner)

    await eventually(vanished, TTL + 1)
    assert time.monotonic() - killed <= TTL + 1


async def test_a_second_one_and_a_clean_stop(fleet: Fleet, bare: Redis) -> None:
    """Refused while the first lives; SIGTERM that ends the block removes the key at once."""
    first = fleet.start()
    assert (first.line(), first.line()) == ("entered", "ready")
    before = json.loads(await bare.get(fleet.key) or b"{}")
    second = fleet.start()
    word, remaining = second.line().split()
    assert word == "refused"
    assert 0 < float(remaining) <= TTL
    assert second.end().code == 0
    after = json.loads(await bare.get(fleet.key) or b"{}")
    assert after["started_at"] == before["started_at"]
    first.terminate()
    assert first.end().code == 0
    assert await bare.exists(fleet.key, fleet.owner) == 0


async def test_frozen_and_back(fleet: Fleet, bare: Redis) -> None:
    """A process that is frozen says nothing: stale, and back when it goes on."""
    worker = fleet.start()
    assert (worker.line(), worker.line()) == ("entered", "ready")
    worker.send_signal(signal.SIGSTOP)

    async def vanished() -> bool:
        return not await bare.exists(fleet.key)

    await eventually(vanished, TTL + 1)
    worker.send_signal(signal.SIGCONT)

    async def back() -> bool:
        return await bare.exists(fleet.key, fleet.owner) == 2

    await eventually(back, 3.0)


async def test_frozen_and_replaced(fleet: Fleet, bare: Redis) -> None:
    """Who took over meanwhile keeps the key when the frozen one comes back, and is let in."""
    first = fleet.start()
    assert (first.line(), first.line()) == ("entered", "ready")
    first.send_signal(signal.SIGSTOP)
    second = fleet.start("wait")
    assert second.line() == "entered"
    assert second.line() == "ready"
    owner = await bare.get(fleet.owner)
    assert owner is not None
    first.send_signal(signal.SIGCONT)
    began = time.monotonic()
    while time.monotonic() - began < TTL:
        now = await bare.get(fleet.owner) or b""
        assert now.split()[0] == owner.split()[0]
    second.terminate()
    assert second.end().code == 0

    async def let_in() -> bool:
        return await bare.exists(fleet.key) == 1

    await eventually(let_in, TTL + 1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
async def test_started_again_at_once(fleet: Fleet, bare: Redis) -> None:
    """After a SIGKILL on this machine nobody waits: the system knows that it is dead."""
    first = fleet.start()
    assert (first.line(), first.line()) == ("entered", "ready")
    first.kill()
    first.wait()
    second = fleet.start()
    assert (second.line(), second.line()) == ("entered", "ready")
    assert await bare.exists(fleet.key, fleet.owner) == 2


async def test_a_death_elsewhere(fleet: Fleet, bare: Redis) -> None:
    """Of a worker of another machine nobody knows: "wait" takes over when it is stale."""
    token = f"{'0' * 32}@{'0' * 16}.1.1.00000000"
    await bare.set(fleet.owner, f"{token} 7 {'0' * 40}", ex=30)
    await bare.set(fleet.key, b"{}", ex=30)
    assert fleet.start().line().startswith("refused")
    second = fleet.start("wait")
    assert second.line() == "entered"
    for key in (fleet.key, fleet.owner):
        await bare.pexpire(key, 200)
    assert second.line() == "ready"
