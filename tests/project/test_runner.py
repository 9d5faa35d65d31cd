"""The time limits of handlers: who is late is cancelled, and only then."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
import pytest

from bls_agent.core.codec import format_timestamp
from bls_agent.core.settings import Settings
from bls_agent.project.commands import runner as module
from bls_agent.project.commands.router import Router
from bls_agent.project.commands.runner import CommandRunner, Deadline
from bls_agent.project.log.log import LogStream
from bls_agent.project.messages import Command, OutcomeKind
from bls_agent.project.receive.receiver import Message


async def run_one(
    seconds: float | None,
    body: Callable[[], Awaitable[object]],
    on_resisted: Callable[[], object] = list,
) -> tuple[bool, bool]:
    """Run a body under a limit; say whether it was late and whether it was cancelled."""
    limit = None if seconds is None else anyio.current_time() + seconds
    task = asyncio.current_task()
    assert task is not None
    deadline = Deadline(task, limit, on_resisted)
    deadline.watch()
    cancelled = False
    try:
        await body()
    except asyncio.CancelledError:
        cancelled = True
    return deadline.end(), cancelled


async def test_who_goes_on_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSIST_EVERY", 0.02)
    swallowed = 0
    told: list[int] = []

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 3:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                swallowed += 1

    began = anyio.current_time()
    with anyio.move_on_after(5):  # would be swallowed, too
        ended = await run_one(0.02, stubborn, lambda: told.append(swallowed))
        assert ended == (True, False)
    assert swallowed == 3
    assert told == [1]  # once, when the first one had been in vain
    assert anyio.current_time() - began < 4


async def test_nothing_fires_after_the_end() -> None:
    """The timer of a handler that has ended must not hit what the task does next."""
    assert await run_one(0.02, anyio.lowlevel.checkpoint) == (False, False)
    await anyio.sleep(0.05)  # past the limit: an event that must not happen


@pytest.mark.parametrize(
    ("age", "kind"),
    [
        (59.999, OutcomeKind.SUCCEEDED),
        (60.0, OutcomeKind.SUCCEEDED),
        (60.001, OutcomeKind.REJECTED),
    ],
)
async def test_a_command_is_too_old_beyond_its_greatest_age(
    age: float, kind: OutcomeKind
) -> None:
    """The limit counts to the millisecond of the command's timestamp."""
    now, router = 1_768_221_296.0, Router()

    async def mark() -> None: ...

    router.add("mark", mark, mark)
    runner = CommandRunner(
        router,
        LogStream(time.time, max_records=100, max_bytes=100_000),
        Counter(),
        Settings(command_max_age=60.0),
        clock=lambda: now,
    )
    command = Command.create("mark", now=now, timestamp=format_timestamp(now - age))
    assert await runner.run(Message(command.encode()), lambda _: None) is kind
