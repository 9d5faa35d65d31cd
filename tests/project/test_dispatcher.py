"""Interrupting the worker that fetches: no handler feels it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel

from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.core.backoff import Backoff
from bls_agent.core.settings import Settings
from bls_agent.project.commands.dispatcher import BROADCAST_MODE, Dispatcher
from bls_agent.project.commands.router import Router
from bls_agent.project.commands.runner import CommandRunner
from bls_agent.project.log.log import LogStream
from bls_agent.project.messages import OutcomeKind
from bls_agent.project.receive.receiver import Message, Receiver
from bls_agent.runtime.threads import HandlerThreads
from tests.harness import command_bytes


class Uninterrupted(Receiver):
    """Gives one message when the fetch is cancelled."""

    def __init__(self) -> None:
        self.fetches = 0

    async def receive(self, limit: int) -> Sequence[Message]:
        """Wait to be cancelled: the message has just come."""
        self.fetches += 1
        if self.fetches > 1:
            await anyio.sleep_forever()
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        return [Message(command_bytes(limit, "note"))]

    async def stop(self) -> None:
        """Nothing is parked."""


async def test_a_fetch_that_ends_although_it_was_cancelled_cancels_no_handler() -> None:
    outcomes: Counter[OutcomeKind] = Counter()
    router, receiver, ended = Router(), Uninterrupted(), anyio.Event()

    async def note(number: int) -> None:
        await anyio.lowlevel.checkpoint()  # a cancellation would come here
        if number == 1:
            ended.set()

    router.add("note", note, note)
    stream = LogStream(time.time, max_records=100, max_bytes=100_000)
    dispatcher = Dispatcher(
        receiver,
        CommandRunner(
            router,
            stream,
            outcomes,
            Settings(),
            clock=time.time,
        ),
        HandlerThreads(),
        Settings(),
        backoff=Backoff(),
        throttled_log=ThrottledLog(),
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.run)
            await anyio.wait_all_tasks_blocked()
            dispatcher.submit(Message(command_bytes(2, "note"), mode=BROADCAST_MODE))
            await ended.wait()
            await anyio.wait_all_tasks_blocked()
            assert (outcomes, receiver.fetches) == ({OutcomeKind.SUCCEEDED: 2}, 2)
            tasks.cancel_scope.cancel()
