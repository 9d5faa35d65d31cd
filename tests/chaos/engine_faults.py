"""Faults of topologies: failovers behind Sentinel, moving slots and dead nodes in a cluster."""

from __future__ import annotations

import time
from typing import Any

from anyio import to_thread
from redis.asyncio.cluster import RedisCluster

from bls_agent.core.keys import slot_of
from tests.chaos.stage import Stage
from tests.chaos.table import Short, fault
from tests.engines import LOOPBACK, ClusterTopology, SentinelTopology

OUTAGE = 6.0  # seconds after the new master stands: the old connection may hang


@fault("F13-failover", "SENTINEL FAILOVER while a read waits", short=Short.NONE)
async def failover(stage: Stage) -> None:
    stage.damage.recovery = OUTAGE
    async with SentinelTopology() as topology:
        stage.follow(topology.master.port)
        async with stage.load(url=topology.url):
            stage.sampler.expect()  # it looks at one server, which is another one now
            await stage.busy()
            master = await topology.failover()
            stage.damage.links += 1
            # What the old master took while it was demoted, nobody has any more.
            stage.damage.server_forgets = True
            stage.healed_at = time.monotonic()
            stage.follow(master.port)
            await stage.recovered("a failover")


@fault("F13-kill", "SIGKILL of the master behind Sentinel", short=Short.NONE)
async def killed_master(stage: Stage) -> None:
    stage.damage.recovery = OUTAGE
    stage.damage.server_forgets = True
    async with SentinelTopology() as topology:
        stage.follow(topology.master.port)
        async with stage.load(url=topology.url):
            stage.sampler.expect()
            await stage.busy()
            before = topology.master
            await to_thread.run_sync(before.kill)
            master = await topology.switched(before)
            stage.damage.links += 1
            stage.healed_at = time.monotonic()
            stage.follow(master.port)
            await stage.recovered("the death of a master")
            await to_thread.run_sync(before.restart)  # believes that it is one still


@fault("F14-slots", "slots that move under a waiting agent", short=Short.NONE)
async def moving_slots(stage: Stage) -> None:
    stage.damage.recovery = OUTAGE
    slot = slot_of(stage.control)
    async with (
        ClusterTopology() as topology,
        cluster(stage, topology),
        stage.load(url=topology.url),
    ):
        stage.sampler.expect()
        for _ in range(stage.pick(1, 5)):
            await stage.busy()
            source = topology.owner(slot)
            target = topology.other_master(source)
            await to_thread.run_sync(topology.migrate, slot, target)
            stage.damage.links += 1
            stage.healed_at = time.monotonic()
            await stage.recovered("a moved slot")


@fault("F14-kill", "SIGKILL of the node that has the commands", short=Short.NONE)
async def killed_node(stage: Stage) -> None:
    stage.damage.recovery = OUTAGE
    stage.damage.server_forgets = True
    async with ClusterTopology(replicas=3) as topology, cluster(stage, topology):
        slot = slot_of(stage.control)
        async with stage.load(url=topology.url):
            stage.sampler.expect()
            await stage.busy()
            before = topology.owner(slot)
            await to_thread.run_sync(before.kill)
            await topology.switched(slot, before)
            stage.damage.links += 1
            stage.healed_at = time.monotonic()
            await stage.recovered("the death of a node")


def cluster(stage: Stage, topology: ClusterTopology) -> Any:
    """Let the row push to and look at a cluster."""
    client: Any = RedisCluster(LOOPBACK, topology.nodes[0].port, protocol=2)
    stage.producer = stage.redis = client
    return client
