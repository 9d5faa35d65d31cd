"""Commands and health checks that run alone: as over Redis, and without a trace."""

from __future__ import annotations

import asyncio
import threading
import traceback
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import date
from enum import Enum
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import (
    ArgumentError,
    CallNext,
    Command,
    CommandContext,
    CommandError,
    ConfigurationError,
    Console,
    Level,
    ProjectAgent,
    Reject,
    UnknownCommandError,
)
from bls_agent.core.redaction import REDACTED
from bls_agent.project.agent_state import state_of
from bls_agent.project.commands import runner as runner_module
from bls_agent.project.commands.observer import OnEnd, TakenCommand
from bls_agent.testing import CheckResult, make_context
from tests.harness import records, until

NOWHERE = "redis://127.0.0.1:1/0"  # nothing listens there
SENDER: ContextVar[str] = ContextVar("sender", default="nobody")


class Speed(Enum):
    FAST = "快"


@dataclass
class Order:
    sku: str
    due: date


def make_agent(project: str = "库存系统", redis: str = NOWHERE) -> ProjectAgent:
    """An agent with a command for each way in which one can end."""
    agent = ProjectAgent(project, redis=redis)

    @agent.middleware
    async def count(context: CommandContext, call_next: CallNext) -> Any:
        if context.command == "禁止":
            raise PermissionError("not at night")
        return await call_next(replace(context, source=context.source or "peer"))

    @agent.command
    async def take(
        goods: str, context: CommandContext, count: int = 1, password: str = ""
    ) -> dict[str, object]:
        agent.log.info("taken", goods=goods, password=password)
        context.log.warn("%d left", 12 - count, delivery=context.delivery)
        return {"left": 12 - count, "token": "abc"}

    @agent.command("下单")
    async def place(order: Order, speed: Speed, pair: list[int]) -> object:
        return {"sku": order.sku, "due": order.due, "speed": speed, "pair": pair}

    @agent.command
    async def ship(delivery: str, context: CommandContext) -> str:
        return f"{delivery} {context.delivery}"

    @agent.command
    def plain(number: int) -> float:
        return 1 / number

    @agent.command
    async def refuse() -> None:
        raise Reject("not today", {"until": "18:00"})

    @agent.command
    async def leave() -> None:
        raise SystemExit(3)

    @agent.command(timeout=0.03)
    async def slow() -> None:
        await anyio.sleep_forever()

    @agent.command
    async def cancel() -> None:
        raise asyncio.CancelledError

    @agent.fallback
    async def other(context: CommandContext) -> str:
        if context.command.startswith("重"):
            return f"{context.command} {context.args}"
        raise UnknownCommandError(context.command)

    return agent


async def test_what_a_handler_did_is_known() -> None:
    """Result and records are those that a reader sees, secrets left out."""
    outcome = await make_agent().invoke(
        "take", goods="茶", count=2, password="geheim", delivery=2
    )
    assert outcome.kind == "succeeded"
    assert outcome.unwrap() == outcome.result == {"left": 10, "token": REDACTED}
    assert (outcome.error, outcome.exception) == ({}, None)
    shown = [(one.level, one.message, one.metadata) for one in outcome.logs]
    by = {"commandId": outcome.outcome.command_id}
    assert shown == [
        (Level.INFO, "taken", {**by, "goods": "茶", "password": REDACTED}),
        (Level.WARN, "10 left", {**by, "delivery": 2}),
    ]


CALLS: dict[str, dict[str, Any]] = {
    "take": {"goods": "茶"},
    "下单": {"order": {"sku": "a", "due": "2026-01-31"}, "speed": "快", "pair": (1, 2)},
    "plain": {"number": 0},
    "refuse": {},
    "leave": {},
    "slow": {},
    "重载": {"force": True},
    "nobody": {},
    "禁止": {},
    "ship": {"delivery": 7},
    "ping": {},
    "cancel": {},
}


async def test_a_command_ends_as_it_does_over_redis(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Alone, over Redis and beside an open agent: equal kinds, results and errors."""
    agent = make_agent(project, redis_url)
    alone = [(await agent.invoke(*call)).outcome for call in CALLS.items()]
    async with agent:
        await agent.ready(5)
        beside = [(await agent.invoke(*call)).outcome for call in CALLS.items()]
        sent = [await console.call(project, *call) for call in CALLS.items()]

    def comparable(one: Any) -> dict[str, Any]:
        fields = asdict(one)
        del fields["command_id"], fields["duration_ms"]
        fields["error"].pop("traceback", None)
        return fields

    assert [*map(comparable, alone)] == [*map(comparable, sent)]
    assert [*map(comparable, beside)] == [*map(comparable, sent)]
    assert len({one.kind for one in alone}) == 5
    assert agent.stats().outcomes == {
        kind: sum(one.kind == kind for one in sent)
        for kind in {one.kind.value for one in sent}
    }


@pytest.mark.parametrize(
    ("command", "args", "kind", "error"),
    [
        ("plain", {"number": 0}, "failed", ZeroDivisionError),
        ("leave", {}, "failed", SystemExit),
        ("cancel", {}, "failed", CommandError),
        ("refuse", {}, "rejected", Reject),
        ("take", {"count": True}, "rejected", ArgumentError),
        ("nobody", {}, "unknown", UnknownCommandError),
        ("slow", {}, "timed_out", TimeoutError),
        ("禁止", {}, "failed", PermissionError),
        ("重载", {"text": "x" * 2_000_000}, "discarded", CommandError),
    ],
)
async def test_the_exception_is_raised_on_demand(
    command: str, args: dict[str, Any], kind: str, error: type[BaseException]
) -> None:
    """What ended the command is kept, and its traceback begins in the handler."""
    outcome = await make_agent().invoke(command, args)
    assert (outcome.kind, outcome.result) == (kind, None)
    assert type(outcome.exception) is error
    with pytest.raises(error):
        outcome.unwrap()
    with pytest.raises(error) as raised:  # the frames of the first time are left out
        outcome.unwrap()
    assert raised.value is outcome.exception
    if error in (ZeroDivisionError, SystemExit, Reject):
        frames = traceback.extract_tb(raised.tb)
        assert [frame.name for frame in frames[1:3]] == ["unwrap", "count"]
        assert frames[-1].filename == __file__
    if error is TimeoutError:  # where the handler waited
        cause = traceback.format_exception(outcome.exception)
        assert "await anyio.sleep_forever()" in "".join(cause)


async def test_arguments_have_one_place() -> None:
    """An argument called ``delivery`` is passed in a mapping, and never by mistake."""
    agent = make_agent()
    sent = await agent.invoke("ship", {"delivery": "快"}, delivery=3)
    assert sent.result == "快 3"
    whole = Command.create("ship", {"delivery": "慢"}, now=0, id="cmd-1", source="我")
    outcome = await agent.invoke(whole)
    assert (outcome.result, outcome.outcome.source) == ("慢 1", "我")
    assert outcome.outcome.command_id == "cmd-1"
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("ship",), {"delivery": "快"}, "Pass the arguments as a mapping"),
        (("ship", {"delivery": "快"}), {"delivery": 0}, "from 1"),
        (("take",), {"goods": "茶", "delivery": "快"}, "in a mapping"),
        (("take", {}), {"goods": "茶"}, "from one place"),
        ((whole, {}), {}, "from one place"),
        (("take",), {"goods": {1}}, "JSON"),
        ((" ",), {}, "not blank"),
    ]
    for args, options, text in wrong:
        with pytest.raises(ConfigurationError, match=text):
            await agent.invoke(*args, **options)


async def test_an_argument_of_any_type_from_a_middleware() -> None:
    """A value that JSON does not have is rejected by its name, if it does not fit."""
    agent = ProjectAgent("库存系统", redis=NOWHERE)

    @agent.middleware
    async def convert(context: CommandContext, call_next: CallNext) -> object:
        return await call_next(replace(context, args={"day": date(2026, 1, 1)}))

    @agent.command
    async def close(day: str) -> None: ...

    invoked = await agent.invoke("close", day="x")
    assert invoked.kind == "rejected"
    assert invoked.error["fields"] == {"day": "must be a string, not a date"}


async def test_a_cancelled_caller_cancels_the_handler() -> None:
    """The handler cleans up before the call ends, and the cancellation goes on."""
    agent, cleaned = ProjectAgent("库存系统", redis=NOWHERE), anyio.Event()

    @agent.command
    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)  # what a clean-up takes
            cleaned.set()

    with anyio.move_on_after(0.03) as scope:
        await agent.invoke("wait")
    assert scope.cancelled_caught
    assert cleaned.is_set()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agent.invoke("wait"), 0.03)


async def test_who_ignores_the_cancellation_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outcome is there while the handler goes on, as it is in an open agent."""
    monkeypatch.setattr(runner_module, "INSIST_EVERY", 0.02)
    agent, released = ProjectAgent("库存系统", redis=NOWHERE), anyio.Event()

    @agent.command(timeout=0.02)
    async def insist() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    with anyio.fail_after(5):
        outcome = await agent.invoke("insist")
    assert outcome.kind == "timed_out"
    released.set()


async def test_nothing_is_left_behind(
    redis_url: str, redis: Redis, project: str
) -> None:
    """No task, thread, record or count stays, and an agent that opens ships none."""
    agent = ProjectAgent(project, redis=redis_url)
    release, ended = threading.Event(), threading.Event()

    def in_a_thread(text: str) -> None:
        thread = threading.Thread(target=lambda: agent.log.warn(text))
        thread.start()
        thread.join()

    @agent.command
    def work() -> None:
        agent.log.info("of a call")
        in_a_thread("of a thread of the handler's own")

    @agent.command(timeout=0.02)
    def hang() -> None:
        release.wait(10)
        agent.log.info("of a call that was given up")
        ended.set()

    @agent.health_check
    def well() -> None:
        agent.log.info("of a check")

    before, tasks = agent.stats(), asyncio.all_tasks()
    threads = {*threading.enumerate()}
    outcome = await agent.invoke("work")
    assert [one.message for one in outcome.logs] == [
        "of a call",
        "of a thread of the handler's own",
    ]
    assert (await agent.invoke("hang")).kind == "timed_out"
    assert (await agent.run_checks())["well"].ok
    release.set()
    assert ended.wait(5)
    until(lambda: {*threading.enumerate()} <= threads)
    assert asyncio.all_tasks() == tasks
    assert replace(agent.stats(), instance=before.instance) == before
    agent.log.info("of the service")
    async with agent:
        await agent.ready(5)
        outcome = await agent.invoke("work")
        assert outcome.logs[0].message == "of a call"
        assert await agent.flush()
    shipped = [one["message"] for one in await records(redis, project)]
    assert shipped == [
        "of the service",
        "of a check",  # of the open agent
        "of a thread of the handler's own",  # of whom an open agent cannot know
    ]


async def test_calls_at_the_same_time_stay_apart() -> None:
    """Each call has the records of its own handler, and the variables of its caller."""
    agent, all_there = ProjectAgent("库存系统", redis=NOWHERE), anyio.Event()
    waiting: set[int] = set()

    @agent.command
    async def mark(number: int) -> str:
        waiting.add(number)
        if len(waiting) == 3:
            all_there.set()
        await all_there.wait()
        agent.log.info("mark", number=number)
        return SENDER.get()

    async def call(number: int) -> None:
        SENDER.set(f"sender {number}")
        outcome = await agent.invoke("mark", number=number)
        assert [one.metadata["number"] for one in outcome.logs] == [number]
        assert outcome.result == f"sender {number}"

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(call, number)


async def test_a_call_beside_an_open_agent_runs_in_its_loop() -> None:
    """The handler may use what belongs to the event loop of the agent."""
    agent = ProjectAgent("库存系统", redis=NOWHERE, banner=False)

    @agent.command
    async def where() -> str:
        return threading.current_thread().name

    thread = agent.in_thread()
    with thread:
        inside = await agent.invoke("where")
    assert inside.result != threading.current_thread().name
    outside = await agent.invoke("where")
    assert outside.result == threading.current_thread().name


async def test_observers_of_the_agent_see_a_call() -> None:
    """A test of tracing or metrics finds the spans of the command."""
    agent = make_agent()
    seen: list[str] = []

    class Observer:
        def begin(self, taken: TakenCommand) -> OnEnd:
            seen.append(taken.command)
            return lambda outcome, _: seen.append(outcome.kind)

    state_of(agent).observers.add(Observer())
    await agent.invoke("ping")
    assert seen == ["ping", "succeeded"]
    assert len(state_of(agent).observers.all) == 1


async def test_each_health_check_is_called_once() -> None:
    """All of them at the same time, in their order, each within its timeout."""
    agent = ProjectAgent("库存系统", redis=NOWHERE)
    called: list[str] = []

    @agent.health_check
    async def well() -> None:
        called.append("well")

    @agent.health_check("满", timeout=0.03)
    async def hangs() -> None:
        await anyio.sleep_forever()

    @agent.health_check
    def broken() -> bool:
        called.append("broken")
        raise OSError("no route, password=geheim")

    @agent.health_check
    def bad() -> bool:
        return False

    found = await agent.run_checks()
    assert sorted(called) == ["broken", "well"]
    assert [*found] == ["well", "满", "broken", "bad"]
    assert all(0 <= one.seconds < 5 for one in found.values())
    assert {name: (one.ok, one.reason) for name, one in found.items()} == {
        "well": (True, ""),
        "满": (False, "TimedOut: it has not returned within 0.03 s"),
        "broken": (False, f"OSError: no route, password={REDACTED}"),
        "bad": (False, "ReturnedFalse: it returned False"),
    }
    assert isinstance(found["well"], CheckResult)
    assert agent.status == "在线"


async def test_a_context_is_made_by_hand() -> None:
    """A handler can be called as the function that it is."""
    logs: list[Any] = []
    context = make_context("take", {"goods": "茶"}, source="我", delivery=2, logs=logs)
    context.log.info("taken", password="geheim")
    assert (context.command, context.args) == ("take", {"goods": "茶"})
    assert (context.source, context.delivery) == ("我", 2)
    [record] = logs
    assert record.message == "taken"
    assert record.metadata == {"commandId": context.id, "password": REDACTED}
    make_context().log.info("this record is dropped")
    for wrong in ({"delivery": 0}, {"args": {"goods": {1}}}, {"command": ""}):
        with pytest.raises(ConfigurationError):
            make_context(**wrong)
