"""Faults that come together, in an order that only the seed knows."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager

import anyio

from tests.chaos.link_faults import SWEPT
from tests.chaos.modes import AGENT_MODES
from tests.chaos.stage import Stage
from tests.chaos.table import fault
from tests.kit import (
    Cut,
    Delay,
    Direction,
    Flip,
    Hold,
    Late,
    Lose,
    Rate,
    Refuse,
    Rule,
    Slices,
    Swallow,
)

COMMANDS = ("BLPOP", "BLMOVE", "EVALSHA", "LRANGE", "LTRIM", "RPUSH", "SET")
CONDITIONS = (
    Delay(0.05),
    Rate(20_000),
    Slices(7),
    Hold(),
    Refuse(),
    Swallow(),
    Swallow(direction=Direction.REQUESTS),
    Swallow(direction=Direction.REPLIES),
)
INJURIES = (
    "frozen",
    "killed",
    "full",
    "demoted",
    "without_disk",
    "without_replicas",
    "crowded",
)


@fault("F3-corrupt", "the first byte of a reply is another one")
async def corrupt(stage: Stage) -> None:
    sent = [
        name
        for name, modes in SWEPT.items()
        if stage.mode.name in (modes or AGENT_MODES)
    ]
    async with stage.load(reconnect_max=0.2, status_interval=0.1):
        for _ in range(stage.pick(3, 40)):
            command = stage.rng.choice(sent)
            armed = stage.proxy.arm(Flip(command=command, at=0, mask=0x80))
            await stage.wait(lambda armed=armed: bool(armed.fired), 8)  # type: ignore[misc]
            stage.healed_at = time.monotonic()
            stage.damage.links += 1
            await stage.recovered("a corrupt reply")


@fault("F0", "all of them, two at a time, at random")
async def anything(stage: Stage) -> None:
    stage.damage.recovery = 20.0  # a half-open link may be noticed under another fault
    async with stage.load(redis_timeout=stage.pick(0.5, 1.0)):
        for _ in range(stage.pick(4, 40)):
            await stage.busy(stage.rng.randrange(1, 5))
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(one_fault, stage)
            await stage.proxy.heal()
            stage.healed_at = time.monotonic()
            await stage.recovered("two faults")


async def one_fault(stage: Stage) -> None:
    """Choose one, and let it last for a while."""
    stage.damage.links += 2  # what was there, and what was made meanwhile
    match stage.rng.randrange(4):
        case 0:
            lasting = stage.proxy.during(stage.rng.choice(CONDITIONS))
        case 1:
            lasting = armed(stage, rule_of(stage))
        case 2:
            lasting = armed(stage, Late(seconds=0.5, chance=0.3, times=None))
            stage.proxy.break_all(reset=stage.rng.random() < 0.5)
        case _:
            injury = getattr(stage.server, stage.rng.choice(INJURIES))
            lasting = one_at_a_time(stage, injury)
    async with lasting:
        await anyio.sleep(stage.rng.uniform(0, stage.pick(0.5, 2)))


def rule_of(stage: Stage) -> Rule:
    """Choose what happens to single replies of one command."""
    command, times = stage.rng.choice(COMMANDS), stage.rng.randrange(1, 3)
    at = stage.rng.randrange(20)
    rules = (
        Cut(command=command, at=at, times=times),
        Cut(command=command, at=at, times=times, direction=Direction.REQUESTS),
        Lose(command=command, times=times),
        Flip(command=command, times=times, mask=0x80),
    )
    return stage.rng.choice(rules)


@asynccontextmanager
async def armed(stage: Stage, rule: Rule) -> AsyncGenerator[None]:
    waiting = stage.proxy.arm(rule)
    try:
        yield
    finally:
        stage.proxy.disarm(waiting)


@asynccontextmanager
async def one_at_a_time(
    stage: Stage, injury: Callable[[], AbstractContextManager[None]]
) -> AsyncGenerator[None]:
    """The server bears one injury at a time: healing one needs an answer."""
    async with stage.operation, stage.hurt(injury()):
        yield
