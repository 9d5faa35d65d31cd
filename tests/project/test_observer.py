"""Observers: what they learn of each message that gets an outcome."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import Console, ProjectAgent
from bls_agent.core.codec import format_timestamp
from bls_agent.core.settings import Settings
from bls_agent.project.agent_state import state_of
from bls_agent.project.commands import runner as module
from bls_agent.project.commands.observer import (
    Observers,
    OnEnd,
    TakenCommand,
)
from bls_agent.project.commands.router import Router
from bls_agent.project.commands.runner import CommandRunner
from bls_agent.project.log.log import LogStream
from bls_agent.project.messages import Command, Outcome, OutcomeKind
from bls_agent.project.receive.receiver import Message
from bls_agent.runtime.threads import HandlerThreads
from tests.harness import eventually

CURRENT: ContextVar[str] = ContextVar("current", default="")
NOW = 1_768_221_296.0


class Recorder:
    """Notes what it is told, and sets a variable for the handler."""

    def __init__(self) -> None:
        self.begun: list[TakenCommand] = []
        self.ended: list[tuple[TakenCommand, Outcome]] = []
        self.errors: dict[str, str] = {}  # id → type of the exception
        self.current: list[str] = []  # the variable at each end

    def begin(self, taken: TakenCommand) -> OnEnd:
        CURRENT.set(taken.id)
        self.begun.append(taken)

        def end(outcome: Outcome, error: BaseException | None) -> None:
            self.current.append(CURRENT.get())
            if error is not None:
                self.errors[taken.id] = type(error).__name__
            self.ended.append((taken, outcome))

        return end


def make_runner(observers: Observers, router: Router, **options: Any) -> CommandRunner:
    """A runner whose clock stands still."""
    stream = LogStream(time.time, max_records=1_000, max_bytes=1_000_000)
    settings = Settings(**options)
    clock = lambda: NOW  # noqa: E731
    counts: Counter[OutcomeKind] = Counter()
    return CommandRunner(
        router, stream, counts, settings, clock=clock, observers=observers
    )


def message(name: str, number: int, *, age: float = 1.5, **fields: Any) -> Message:
    """A command that was sent some seconds ago."""
    sent = format_timestamp(NOW - age)
    command = Command.create(
        name, fields, now=NOW, id=f"cmd-{number}", timestamp=sent, source="测试"
    )
    return Message(command.encode(), delivery=2, mode="reliable")


async def test_each_message_with_an_outcome_is_observed_once() -> None:
    router, observers, recorder = Router(), Observers(), Recorder()
    threads, seen = HandlerThreads(), dict[str, str]()

    async def reload() -> None:
        await anyio.lowlevel.checkpoint()
        seen["reload"] = CURRENT.get()

    def count() -> None:
        seen["count"] = CURRENT.get()

    async def fail() -> None:
        raise ValueError

    router.add("reload", reload, reload)
    router.add("count", count, threads.wrap(count))
    router.add("fail", fail, fail)
    router.add("hang", anyio.sleep_forever, anyio.sleep_forever, timeout=0.01)
    observers.add(recorder)
    runner = make_runner(observers, router, command_max_age=60.0)

    messages = [
        message("reload", 1),
        message("count", 2, age=-5.0),  # the sender's clock is ahead
        message("fail", 3),
        message("hang", 4),
        message("reload", 5, extra=1),  # rejected: no such argument
        message("刷新", 6),
        message("reload", 7, age=61.0),
        Message(b'{"id":"cmd-8","args":{}}'),
        Message(b'{"id":"cmd-9","command":"count","timestamp":"yesterday"}'),
    ]
    for one in messages:
        await runner.run(one, lambda _: None)
    for number, kind in ((10, OutcomeKind.DEAD_LETTERED), (11, OutcomeKind.CANCELLED)):
        messages.append(message("count", number))
        runner.report_unstarted(messages[-1], kind)
    threads.close()

    found = [
        (taken.id, taken.command, taken.registered, taken.waited, outcome.kind.value)
        for taken, outcome in recorder.ended
    ]
    assert found == [
        ("cmd-1", "reload", "reload", 1.5, "succeeded"),
        ("cmd-2", "count", "count", 0.0, "succeeded"),
        ("cmd-3", "fail", "fail", 1.5, "failed"),
        ("cmd-4", "hang", "hang", 1.5, "timed_out"),
        ("cmd-5", "reload", "reload", 1.5, "rejected"),
        ("cmd-6", "刷新", None, 1.5, "unknown"),
        ("cmd-7", "reload", "reload", 61.0, "rejected"),
        ("cmd-8", "", None, None, "discarded"),
        ("cmd-9", "count", "count", None, "succeeded"),
        ("cmd-10", "count", "count", 1.5, "dead_lettered"),
        ("cmd-11", "count", "count", 1.5, "cancelled"),
    ]
    assert recorder.begun == [taken for taken, _ in recorder.ended]
    assert [taken.message for taken in recorder.begun] == messages
    assert recorder.current == [taken.id for taken in recorder.begun]
    assert seen == {"reload": "cmd-1", "count": "cmd-9"}
    assert recorder.errors == {
        "cmd-3": "ValueError",
        "cmd-4": "CancelledError",
        "cmd-5": "ArgumentError",
        "cmd-6": "UnknownCommandError",
    }
    assert CURRENT.get() == ""  # no context of a handler leaks into the worker
    assert not runner._observed


async def test_a_handler_that_ignores_its_end_is_observed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "INSIST_EVERY", 0.02)
    router, observers, recorder = Router(), Observers(), Recorder()

    async def stubborn() -> None:
        while not recorder.ended:
            with suppress(asyncio.CancelledError):
                await anyio.sleep_forever()

    router.add("stubborn", stubborn, stubborn, timeout=0.01)
    observers.add(recorder)
    runner = make_runner(observers, router)
    with anyio.fail_after(5):
        assert await runner.run(message("stubborn", 1), lambda _: None) is None
    assert [outcome.kind for _, outcome in recorder.ended] == [OutcomeKind.TIMED_OUT]


async def test_an_observer_that_raises_is_logged_once_and_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router, observers, recorder = Router(), Observers(), Recorder()

    async def reload() -> None: ...

    class AtTheBeginning:
        def begin(self, taken: TakenCommand) -> OnEnd:
            raise LookupError(taken.id)

    class AtTheEnd:
        def begin(self, taken: TakenCommand) -> OnEnd:
            def end(outcome: Outcome, error: BaseException | None) -> None:
                raise LookupError(taken.id + outcome.kind)

            return end

    router.add("reload", reload, reload)
    for observer in (AtTheBeginning(), AtTheEnd(), recorder):
        observers.add(observer)
    runner = make_runner(observers, router)
    for number in (1, 2):
        kind = await runner.run(message("reload", number), lambda _: None)
        assert kind is OutcomeKind.SUCCEEDED
    assert len(recorder.ended) == 2
    assert observers.all == (recorder,)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "AtTheBeginning" in texts[0]
    assert "LookupError: cmd-1succeeded" in texts[1]


async def test_an_open_agent_gets_an_observer(
    redis: Redis, redis_url: str, project: str, console: Console
) -> None:
    """It sees the commands that begin from then on, also after the agent was closed."""
    recorder, agent = Recorder(), ProjectAgent(project, redis=redis_url)
    async with agent:
        await agent.ready(5)
        await console.call(project, "ping")
        state_of(agent).observers.add(recorder)
        sent = await console.send(project, "ping")
        await eventually(lambda: len(recorder.ended) == 1)
    async with agent:
        await console.call(project, "ping")
    await eventually(lambda: len(recorder.ended) == 2)
    taken, outcome = recorder.ended[0]
    assert (taken.id, outcome.command_id) == (sent.id, sent.id)
    assert taken.message.payload == sent.encode()
    assert taken.waited is not None
    assert 0 <= taken.waited < 5
