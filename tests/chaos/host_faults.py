"""Faults of the host around an agent: stalls, wrong clocks, hostile handlers, floods."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any
from unittest import mock

import anyio

from bls_agent import Status
from tests.chaos.stage import Stage
from tests.chaos.table import Short, fault

JUMPS = (3_600, -3_600, 3 * 86_400, -3 * 86_400)  # seconds


@fault(
    "F15",
    "the wall clock jumps by an hour and by three days, both ways",
    short=Short.ONE,
)
async def clock_jumps(stage: Stage) -> None:
    offset = 0.0
    real = time.time

    def clock() -> float:
        return real() + offset

    with mock.patch("time.time", clock):
        stage.agent = stage.make_agent(status_interval=0.2, status_ttl=2)
    stage.damage.vanished = stage.pick(2.0, 0.5)
    async with stage.load(agent=stage.agent):
        for jump in stage.pick(JUMPS[:2], JUMPS * 2):
            await stage.busy()
            offset += jump
            stage.healed_at = time.monotonic()
            await stage.recovered(f"a jump of {jump} s")
            await anyio.sleep(stage.pick(1, 2.5))


@fault("F20", "the event loop stands still", alone=True, short=Short.ONE)
async def stalled_loop(stage: Stage) -> None:
    async with stage.load(url=stage.server.url) as agent:

        @agent.command
        async def stall(seconds: float) -> None:
            time.sleep(seconds)

        stage.sampler.expect(Status.ONLINE, Status.FAULT)  # in time, or by a watchdog
        for seconds in stage.pick(
            [0.3], [1, 6, *[30] * (stage.mode.name == "blocking")]
        ):
            await stage.busy()
            await stage.push("stall", seconds=seconds)
            await anyio.sleep(seconds / 2)
            stage.healed_at = time.monotonic()
            await stage.recovered(f"a stall of {seconds} s")


@fault(
    "F20-watchdog",
    "the event loop stands still for longer than stall_after and the TTL",
    alone=True,
    short=Short.ONE,
)
async def watched_stall(stage: Stage) -> None:
    stage.damage.vanished = 0
    seconds = stage.pick(2.5, 6)
    times: dict[str, Any] = {
        "stall_after": 0.3,
        "status_interval": 0.2,
        "status_ttl": 2,
    }
    async with stage.load(url=stage.server.url, **times) as agent:

        @agent.command
        async def stall(seconds: float) -> None:
            time.sleep(seconds)

        stage.sampler.expect(Status.ONLINE, Status.FAULT)
        await stage.busy()
        await stage.push("stall", seconds=seconds)
        await anyio.sleep(seconds / 2)
        stage.healed_at = time.monotonic()
        await stage.recovered("a stall")
    shown = {sample.shown for sample in stage.history.evidence.statuses}
    if Status.FAULT not in shown:
        stage.complain("nobody was told of the stall")


@fault(
    "F21", "threads that log while the agent closes and opens again", short=Short.ONE
)
async def flood_at_the_end(stage: Stage) -> None:
    stage.agent = agent = stage.make_agent(log_buffer=2_000, log_list_limit=20_000)
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            for number in range(20):
                agent.log.debug("flood", number=number)
            time.sleep(0.005)

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(stage.pick(3, 30)):
        async with agent:
            await agent.ready(10)
            await stage.push()
            stage.healed_at = time.monotonic()
            await stage.recovered("opening")
            stage.count_logs(agent)
            began = time.monotonic()
        if time.monotonic() - began > stage.pick(15, 7):  # shutdown_timeout is 5 s
            stage.complain("closing took longer than shutdown_timeout + 2 s")
        stage.count_logs(agent)
    over.set()
    for thread in threads:
        thread.join()
    stage.count_logs(agent, final=True)
    await stage.take_stock()


class _OwnError(BaseException):
    pass


@fault("F22", "handlers that raise, hang, exit, recurse, return what is no JSON")
async def hostile_handlers(stage: Stage) -> None:
    async with stage.load(command_timeout=0.2) as agent:

        @agent.command
        async def hostile(kind: str) -> Any:
            return await act_up(kind)

        @agent.command
        def hostile_thread(kind: str) -> Any:
            if kind == "hang":
                return time.sleep(0.4)  # it keeps its slot until it returns
            return anyio.run(act_up, kind)

        kinds = ["raise", "exit", "base", "recurse", "memory", "object", "huge", "hang"]
        for _ in range(stage.pick(1, 10)):
            for kind in kinds:
                await stage.push("hostile", kind=kind)
                await stage.push("hostile_thread", kind=kind)
                await stage.busy(3)
        stage.healed_at = time.monotonic()
        await stage.recovered("hostile handlers")


async def act_up(kind: str) -> Any:
    """Do what a handler must not do."""
    match kind:
        case "raise":
            raise ValueError(kind)
        case "exit":
            sys.exit(3)
        case "base":
            raise _OwnError
        case "recurse":
            return await act_up(kind)
        case "memory":
            raise MemoryError
        case "object":
            return {object(): [object()]}
        case "huge":
            return "x" * 1_000_000
        case _:
            return await anyio.sleep(30)


@fault(
    "F23",
    "two agents, one ends while the other lives",
    modes=("blocking", "prefetch", "reliable", "reliable, prefetch 8"),
)
async def two_agents(stage: Stage) -> None:
    async with stage.load():
        stage.sampler.expect()  # they share one status without replicas
        for _ in range(stage.pick(2, 30)):
            other = stage.make_agent(instance=f"other-{stage.rng.random()}")
            async with other:
                await other.ready(10)
                await stage.busy(4)
            stage.count_logs(other, final=True)
        stage.healed_at = time.monotonic()
        await stage.recovered("the end of the other one")


@fault(
    "F23-replicas",
    "replicas that come and go while one lives",
    modes=("blocking", "prefetch", "reliable", "reliable, prefetch 8"),
)
async def replicas(stage: Stage) -> None:
    async with stage.load(replicas=True):
        for _ in range(stage.pick(2, 30)):
            other = stage.make_agent(
                instance=f"other-{stage.rng.random()}", replicas=True
            )
            async with other:
                await other.ready(10)
                await stage.busy(4)
            stage.count_logs(other, final=True)
        stage.healed_at = time.monotonic()
        await stage.recovered("the end of a replica")
