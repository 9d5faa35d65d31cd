"""Play rows of the table, and judge them."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from tests.chaos import (
    crawl_faults,
    host_faults,
    link_faults,
    mixed_faults,
    process_faults,
    server_faults,
)
from tests.chaos.crawl_faults import CrawlStage
from tests.chaos.modes import AGENT_MODES, MODES, Damage, Mode
from tests.chaos.nursery import Nursery
from tests.chaos.stage import Stage
from tests.chaos.subjects import SUBJECTS, SubjectStage
from tests.chaos.table import FAULTS, Fault, Short
from tests.kit import Event, Footprint, Tally, Violation, check_invariants

# Whoever adds rows: a module of faults, and its name here.
FAMILIES = [
    server_faults,
    link_faults,
    process_faults,
    host_faults,
    mixed_faults,
    crawl_faults,
]

ALL_MODES = {**MODES, **SUBJECTS}
KINDS: dict[str, type[Stage]] = {
    "crawl": CrawlStage,
    **dict.fromkeys(SUBJECTS, SubjectStage),
}
# Faults that the short form also plays in modes with prefetch.
WITH_PREFETCH = ("F0", "F1", "F16", "F17")
ROW_LIMIT = 400.0  # seconds
MEMORY_LIMIT = 256 * 1024 * 1024  # of all rows together, histories and all


@dataclass
class Row:
    """What came of one fault in one mode."""

    fault: Fault
    mode: Mode
    seed: int
    sent: int = 0
    handled: int = 0
    lost: int = 0
    may_lose: int = 0
    repeated: int = 0
    may_repeat: int = 0
    recovery: float | None = None
    seconds: float = 0.0
    damage: Damage = field(default_factory=Damage)
    violations: list[Violation] = field(default_factory=list[Violation])
    events: list[Event] = field(default_factory=list[Event], repr=False)

    @property
    def is_kept(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    @property
    def name(self) -> str:
        """The fault and the mode."""
        return f"{self.fault.id}/{self.mode.name}"


def rows_of(
    faults: Iterable[str], modes: Iterable[str], *, seed: int, short: bool
) -> list[Row]:
    """Make the rows of some faults and modes, each with a seed of its own."""
    ordered = sorted(faults, key=lambda name: (number_of(name), name))
    return [
        Row(
            FAULTS[name],
            ALL_MODES[mode],
            random.Random(f"{seed} {name} {mode}").getrandbits(32),
        )
        for name in ordered
        for mode in modes
        if concerns(FAULTS[name], mode)
        and (not short or is_in_short(FAULTS[name], mode))
    ]


def concerns(fault: Fault, mode: str) -> bool:
    """Return whether a fault is played in a mode, or on a subject."""
    if mode not in AGENT_MODES:
        return fault.subjects or mode in fault.modes
    return mode in (fault.modes or AGENT_MODES)


def is_in_short(fault: Fault, mode: str) -> bool:
    """Return whether the short form plays a fault in a mode, or on a subject.

    1. A subject: unless the short form leaves the fault out.
    2. A fault that does not depend on how commands are received: in mode ``blocking``.
    3. A mode with prefetch promises less than the same mode without: only the faults
       that are made for this mode, and those of ``WITH_PREFETCH``.
    4. Otherwise in each mode.
    """
    agent = AGENT_MODES.get(mode)
    if fault.short is Short.NONE or agent is None:
        return fault.short is not Short.NONE
    if fault.short is Short.ONE:
        return mode == "blocking"
    return agent.prefetch == 1 or mode in fault.modes or fault.id in WITH_PREFETCH


def number_of(name: str) -> int:
    """The catalogue's number: 3 of ``F3-blpop``."""
    return int(name.partition("-")[0].removeprefix("F"))


async def play_all(
    rows: Sequence[Row],
    *,
    short: bool,
    at_once: int,
    tell_row: Callable[[Row], None] = lambda _: None,
) -> list[str]:
    """Play rows, several at once except those that block the loop.

    Args:
        rows: What to play; their figures are filled in.
        short: The short form.
        at_once: How many at the same time.
        tell_row: Called with each row that has ended.

    Returns:
        What came to the host besides: exceptions that nobody caught, and leaks.
    """
    errors: list[str] = []

    def tell(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(tell)
    limiter = anyio.Semaphore(at_once)

    async def play_one(row: Row) -> None:
        async with limiter:
            await play(row, nursery, short=short)
        tell_row(row)

    before = Footprint.take()
    async with Nursery() as nursery:
        async with anyio.create_task_group() as tasks:
            for row in rows:
                if not row.fault.alone:
                    tasks.start_soon(play_one, row)
        for row in rows:
            if row.fault.alone:
                await play_one(row)
    errors += await find_leaks(before)
    return errors


async def find_leaks(before: Footprint) -> list[str]:
    """Say what is left behind when all has had time to end."""
    after = before
    for _ in range(100):
        await anyio.sleep(0.02)
        after = Footprint.take()
        if after.descriptors <= before.descriptors and after.tasks <= before.tasks:
            break
    grown = after.memory - before.memory
    errors = [f"grown by {grown / 1e6:.0f} MB"] * (grown > MEMORY_LIMIT)
    return errors + [
        f"{getattr(after, name) - getattr(before, name)} {name} left behind"
        for name in ("descriptors", "tasks")
        if getattr(after, name) > getattr(before, name)
    ]


async def play(row: Row, nursery: Nursery, *, short: bool) -> None:
    """Play one row: do the fault, check the invariants, fill in the figures."""
    began = time.monotonic()
    try:
        kind = KINDS.get(row.mode.name, Stage)
        async with kind.opened(row.mode, row.seed, nursery, short=short) as stage:
            with anyio.fail_after(ROW_LIMIT):
                await row.fault.play(stage)
            judge(row, stage)
    except Exception:
        text = "".join(traceback.format_exc().splitlines(keepends=True)[-12:])
        row.violations.append(Violation("row", f"did not end: {text}"))
    row.seconds = time.monotonic() - began


def judge(row: Row, stage: Stage) -> None:
    """Check the invariants and fill in the figures."""
    row.violations += stage.conclude()
    promise = row.mode.promise(stage.damage, stage.healed_at)
    row.damage = stage.damage
    row.violations += check_invariants(stage.history, promise)
    if row.violations:
        row.events = stage.history.events()
    tally = Tally.of(stage.history)
    row.sent, row.handled = len(tally.sent), len(tally.handled)
    row.lost, row.may_lose = len(tally.lost), promise.lost
    row.repeated, row.may_repeat = sum(tally.repeated.values()), promise.repeated
    seconds = [r.seconds for r in stage.history.evidence.recoveries]
    row.recovery = max((s for s in seconds if s is not None), default=None)
