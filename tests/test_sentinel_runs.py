"""Runs behind Sentinel: who follows gets what survives, and is told what does not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from anyio import to_thread

from bls_agent.runs import EventStore
from tests.engines import SentinelTopology, ask, until
from tests.failovers import Play, Told

RUN = 1


@pytest.fixture
async def topology() -> AsyncIterator[SentinelTopology]:
    """A topology of this test alone."""
    async with SentinelTopology() as opened:
        yield opened


async def test_the_master_is_killed(topology: SentinelTopology) -> None:
    """kill -9 under a writer and four followers, and the return of the old master."""
    async with Play(topology.url, RUN) as play, play.going():
        before = topology.master
        await to_thread.run_sync(before.kill)
        await topology.switched(before)
        await play.goes_on()
        await to_thread.run_sync(before.restart)


async def test_the_master_hangs(topology: SentinelTopology) -> None:
    """A frozen master ends no connection; it is left when another one took over."""
    async with Play(topology.url, RUN) as play, play.going():
        before = topology.master
        before.freeze()
        try:
            await topology.switched(before)
            await play.goes_on()
        finally:
            before.thaw()


async def test_the_master_is_changed_by_command(topology: SentinelTopology) -> None:
    """SENTINEL FAILOVER: what is written to the old one meanwhile is lost, and counted."""
    async with Play(topology.url, RUN) as play, play.going():
        before = topology.master
        await topology.failover()
        await topology.left(before)  # a run that ends there is lost whole, end and all


async def test_what_no_replica_has_is_counted(topology: SentinelTopology) -> None:
    """Seven events are lost: who has read them misses nothing, others see the numbers."""
    async with EventStore(topology.url, timeout=2.0) as store:
        here = Told(store.follow(RUN))
        async with store.run(RUN, lease=60.0) as run:
            await here.take(1)
            before = topology.master
            replica = next(one for one in topology.servers if one is not before)
            key = f"run:{RUN}:events"
            await until(lambda: ask(replica.port, "XLEN", key) == 1)
            ask(replica.port, "REPLICAOF", "NO", "ONE")
            for number in range(7):
                run.emit("agent", "reasoning", {"n": number})
            await here.take(8)
            await to_thread.run_sync(before.kill)
            await topology.switched(before)
            with anyio.fail_after(60):
                run.emit("agent", "reasoning", {"n": 7})
                await run.flush()
        behind = Told(store.follow(RUN, here.ids[0]))  # as a browser that comes back
        for one in (here, behind):
            await one.take_all()
        kept = await store.get_events(RUN)
        assert [event.sequence for event in kept] == [1, 9, 10, 11]
        assert here.gaps == []
        assert [event.sequence for event in here.events] == list(range(1, 12))
        assert behind.gaps == []
        assert behind.ids == [event.id for event in kept[1:]]
