"""Faults of the server: killed, absent, frozen, refusing, forgetting."""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import anyio.to_thread

from bls_agent import Status
from bls_agent.core.keys import PROJECT_STATUS
from tests.chaos.stage import Stage
from tests.chaos.table import Play, Short, fault


@fault("F1", "SIGKILL of the server, restart with its log (AOF)", subjects=True)
async def kill(stage: Stage) -> None:
    async with stage.load():
        for seconds in stage.pick([0.2], [0.2, 0.2, 0.2, 1, 1, 1, 1, 1, 10]):
            await stage.busy(stage.rng.randrange(3, 30))
            async with stage.hurt(stage.server.killed()):
                await anyio.sleep(seconds)
            stage.damage.links += 1
            await stage.recovered("kill")


@fault("F1-forgets", "SIGKILL of a server that keeps nothing", subjects=True)
async def kill_and_forget(stage: Stage) -> None:
    stage.damage.server_forgets = True
    async with stage.load():
        for _ in range(stage.pick(1, 5)):
            await stage.busy()
            stage.damage.links += 1
            async with stage.hurt(emptied(stage)):
                await anyio.sleep(0.2)
            await stage.recovered("kill without a log")
        await stage.busy()  # none of these may be lost


@contextmanager
def emptied(stage: Stage) -> Generator[None]:
    """Killed, and its log thrown away."""
    stage.server.kill()
    shutil.rmtree(stage.server.folder / "appendonlydir", ignore_errors=True)
    (stage.server.folder / "appendonly.aof").unlink(missing_ok=True)  # Redis 6
    try:
        yield
    finally:
        stage.server.restart()


@fault("F2", "Redis absent when the host starts", short=Short.ONE)
async def absent(stage: Stage) -> None:
    stage.agent = agent = stage.make_agent()
    async with stage.sampling():
        async with stage.hurt(stage.server.killed()):
            begin = time.monotonic()
            await agent.__aenter__()
            if time.monotonic() - begin > 1.0:
                stage.complain("opening waited for Redis")
            await anyio.sleep(stage.pick(0.3, 5))
        await stage.push()
        await stage.recovered("absence at the start")
        await agent.ready(5)
        stage.sampler.expect(Status.ONLINE)
        await stage.push()
        await stage.drain()
        stage.sampler.expect()
    await agent.aclose()
    stage.count_logs(agent, final=True)
    await stage.take_stock()


@fault("F7", "SIGSTOP of the server", subjects=True)
async def frozen(stage: Stage) -> None:
    async with stage.load():
        for seconds in stage.pick([0.5], [0.5, 2, 4, 7, 20]):
            await stage.busy()
            async with stage.hurt(stage.server.frozen()):
                await anyio.sleep(seconds)
            await stage.recovered(f"{seconds} s frozen")


@fault("F7-pause", "CLIENT PAUSE", subjects=True)
async def paused(stage: Stage) -> None:
    async with stage.load():
        for seconds in stage.pick([0.5], [1, 4]):
            await stage.busy()
            async with stage.hurt(stage.server.paused(seconds)):
                pass
            await stage.recovered("a pause")


@fault("F8", "-OOM (maxmemory)", subjects=True)
async def full(stage: Stage) -> None:
    stage.damage.vanished = 0  # EXPIRE keeps it alive
    async with stage.load(status_interval=0.3, status_ttl=3):
        for _ in range(stage.pick(1, 3)):
            await stage.busy()
            async with stage.hurt(stage.server.full()):
                await anyio.sleep(stage.pick(3.3, 5))  # longer than the TTL
            await stage.recovered("OOM")


def refuses(injury: str, rounds: int, seconds: float) -> Play[Stage]:
    """Play a server that refuses for a while, again and again."""

    async def play(stage: Stage) -> None:
        async with stage.load():
            for _ in range(stage.pick(1, rounds)):
                await stage.busy()
                async with stage.hurt(getattr(stage.server, injury)()):
                    await anyio.sleep(stage.pick(0.3, seconds))
                await stage.recovered(injury)

    return play


REFUSALS = {
    "F9": ("demotion while a read waits (UNBLOCKED, READONLY)", "demoted", 5, 3),
    "F11": ("-MISCONF (snapshots fail)", "without_disk", 3, 5),
    "F12": ("-NOREPLICAS", "without_replicas", 3, 5),
}
for name, (title, injury, rounds, seconds) in REFUSALS.items():
    fault(name, title, subjects=True)(refuses(injury, rounds, seconds))


@fault("F10", "-LOADING (a server that reads its data)", subjects=True)
async def loading(stage: Stage) -> None:
    async with stage.load():
        for seconds in stage.pick([0.3], [1, 5]):
            await stage.busy()
            async with stage.hurt(stage.server.loading(seconds=seconds + 2)):
                await anyio.sleep(seconds)
            stage.damage.links += 1
            await stage.recovered("loading")


@fault("F12-maxclients", "connections cut while maxclients is reached", subjects=True)
async def crowded(stage: Stage) -> None:
    async with stage.load():
        for _ in range(stage.pick(1, 3)):
            await stage.busy()
            async with stage.hurt(stage.server.crowded()):
                stage.proxy.break_all()
                stage.damage.links += 1
                await anyio.sleep(stage.pick(0.3, 5))
            await stage.recovered("maxclients")


@fault("F12-kill", "CLIENT KILL of every connection, again and again", subjects=True)
async def killed_connections(stage: Stage) -> None:
    async with stage.load():
        for _ in range(stage.pick(2, 50)):
            await stage.busy(stage.rng.randrange(1, 10))
            async with stage.hurt():
                stage.server.disconnect_clients()
            stage.damage.links += 1
            await stage.recovered("CLIENT KILL")


@fault("F24", "FLUSHALL; the status deleted, then renamed")
async def flushed(stage: Stage) -> None:
    stage.damage.server_forgets = True
    key = PROJECT_STATUS.build(project=stage.project)
    stage.damage.vanished = stage.pick(5.0, 1.0)
    async with stage.load(status_interval=0.3, status_ttl=2):
        for words in (("FLUSHALL",), ("DEL", key), ("RENAME", key, "elsewhere")):
            await stage.busy()
            stage.server.ask(*words)
            stage.healed_at = time.monotonic()
            await stage.recovered(words[0])
            await anyio.sleep(stage.pick(0.4, 2))
