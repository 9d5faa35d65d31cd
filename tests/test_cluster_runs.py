"""Runs on a cluster one of whose nodes fails: another one serves them on."""

from __future__ import annotations

import itertools

import pytest
from anyio import to_thread

from bls_agent.core.keys import slot_of
from tests.engines import ClusterTopology
from tests.failovers import Play


@pytest.mark.parametrize("how", ["killed", "hanging"])
async def test_a_node_fails(how: str) -> None:
    """Its replica takes over: a writer and four followers go on where it was."""
    async with ClusterTopology() as topology:
        victim = await to_thread.run_sync(topology.master_with_replica)
        slots = topology.slots_of(victim)
        run_id, slot = next(
            (run_id, slot)
            for run_id in itertools.count()
            if any((slot := slot_of(f"run:{run_id}:events")) in one for one in slots)
        )
        async with Play(topology.url, run_id) as play, play.going():
            if how == "killed":
                await to_thread.run_sync(victim.kill)
            else:
                victim.freeze()
            try:
                await topology.switched(slot, victim)
                await play.goes_on()
            finally:
                back = victim.restart if how == "killed" else victim.thaw
                await to_thread.run_sync(back)
