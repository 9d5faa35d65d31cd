"""Commands end to end: each leaves exactly one outcome record, of the right kind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Literal, cast
from uuid import UUID
from weakref import WeakSet

import anyio
import orjson
import pytest
from pydantic import BaseModel
from redis.asyncio import Redis

from bls_agent import (
    Command,
    CommandContext,
    Console,
    LogEntry,
    OutcomeKind,
    ProjectAgent,
    Reject,
)
from bls_agent.core.errors import ConfigurationError, DuplicateHandlerError
from bls_agent.core.redaction import REDACTED
from bls_agent.core.settings import Mode
from bls_agent.project.commands.router import CallNext
from tests.harness import eventually, records


class Speed(Enum):
    FAST = "fast"
    SAFE = "safe"


class Order(BaseModel):
    sku: str
    count: int


@dataclass
class Line:
    sku: str
    price: Decimal
    day: date | None = None


@dataclass
class Delivery:
    id: UUID
    lines: list[Line]
    due: datetime
    speed: Speed = Speed.SAFE


async def outcomes(redis: Redis, project: str) -> list[dict[str, Any]]:
    found = await records(redis, project)
    return [r for r in found if "outcome" in r.get("metadata", {})]


async def test_result_reaches_the_console(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """What a handler returns stands in the outcome record, in the contract's form."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    async def reload(force: bool = False) -> dict[str, int]:
        agent.log.info("configuration reloaded", force=force)
        return {"rules": 42}

    async with agent:
        outcome = await console.call(project, "reload", {"force": True})
    assert outcome.succeeded
    assert outcome.result == {"rules": 42}
    said, ended = await records(redis, project)
    assert list(said) == list(ended) == ["timestamp", "level", "message", "metadata"]
    assert said["metadata"]["commandId"] == outcome.command_id
    assert list(ended["metadata"]) == [
        "agent",
        "commandId",
        "command",
        "source",
        "outcome",
        "durationMs",
        "result",
    ]
    assert ended["level"] == "info"


@pytest.mark.parametrize(
    ("command", "args", "kind", "level"),
    [
        ("重新加载", {"次数": 2}, "succeeded", "info"),
        ("plain", {}, "succeeded", "info"),
        ("raises", {}, "failed", "error"),
        ("exits", {}, "failed", "error"),
        ("recurses", {}, "failed", "error"),
        ("slow", {}, "timed_out", "error"),
        ("slow_plain", {}, "timed_out", "error"),
        ("turns_down", {}, "rejected", "warn"),
        ("typed", {}, "rejected", "warn"),
        ("typed", {"count": True}, "rejected", "warn"),
        (
            "typed",
            {"count": 1, "speed": "fast", "order": {"sku": "a"}},
            "rejected",
            "warn",
        ),
        ("nobody", {}, "unknown", "warn"),
        ("unserialisable", {}, "succeeded", "info"),
    ],
    ids=str,
)
async def test_each_end_has_its_record(
    redis_url: str,
    redis: Redis,
    console: Console,
    project: str,
    command: str,
    args: dict[str, Any],
    kind: str,
    level: str,
) -> None:
    """However a handler ends, one record says so and the next command runs."""
    agent = ProjectAgent(project, redis=redis_url, command_timeout=5)
    release = threading.Event()

    @agent.command("重新加载")
    async def reload(次数: int) -> int:
        return 次数

    @agent.command
    def plain() -> str:
        return threading.current_thread().name

    @agent.command
    async def raises() -> None:
        raise KeyError("库存")

    @agent.command
    async def exits() -> None:
        raise SystemExit(3)

    @agent.command
    async def recurses() -> None:
        await recurses()

    @agent.command(timeout=0.05)
    async def slow() -> None:
        await anyio.sleep_forever()

    @agent.command(timeout=0.05)
    def slow_plain() -> None:
        release.wait(10)

    @agent.command
    async def turns_down() -> None:
        raise Reject("not today", {"until": "tomorrow"})

    @agent.command
    async def typed(
        count: int, speed: Speed = Speed.SAFE, order: Order | None = None
    ) -> None:
        raise AssertionError

    @agent.command
    async def unserialisable() -> object:
        return {"set": {1}, 2: object(), "bytes": b"\xff", "nan": float("nan")}

    async with agent:
        outcome = await console.call(project, command, args)
        assert outcome.kind == kind
        release.set()
        assert (await console.call(project, "plain")).succeeded
        found = [
            r
            for r in await outcomes(redis, project)
            if r["metadata"]["command"] == command
        ]
        assert len(found) == (2 if command == "plain" else 1)
        assert found[0]["level"] == level
        assert not agent.stats().faults


async def test_refusals_name_the_fields() -> None:
    """Missing, unknown and wrong arguments are all named, and the handler never runs."""
    agent = ProjectAgent("订单系统")

    @agent.command
    async def typed(
        count: int, ratio: float = 1.0, mode: Literal["fast", "safe"] = "fast"
    ) -> None:
        raise AssertionError

    outcome = await agent.invoke("typed", mode="quick", x=1, ratio=True)
    assert outcome.kind is OutcomeKind.REJECTED
    assert set(outcome.error["fields"]) == {"count", "mode", "x", "ratio"}


@pytest.mark.parametrize("validate", ["core", "pydantic"])
async def test_a_peers_nested_command(
    redis_url: str, redis: Redis, project: str, validate: Any
) -> None:
    """Data classes in the original layout; what is returned is what is accepted."""
    agent = ProjectAgent(project, redis=redis_url, validate=validate)
    seen: list[Delivery] = []

    @agent.command("发货")
    async def deliver(order: Delivery) -> Delivery:
        seen.append(order)
        return order

    order = (
        '{"id":"6f1c2a9e-0d4b-4a55-9b1e-2f7d8c3a6e10","lines":[{"sku":"茶","price":"12.50",'
        '"day":"2026-01-31"}],"due":"2026-01-31T08:30:00+08:00","speed":"fast"}'
    )
    head = '{"id":"c1","timestamp":"2026-01-31T00:00:00.000Z","source":"BLS Project Console"'
    await redis.rpush(
        f"{project}_控制",
        f'{head},"command":"发货","args":{{"order":{order}}}}}',
        f'{head},"command":"发货","args":{{"order":{{"lines":[{{"sku":1}}]}}}}}}',
    )
    async with agent:
        await eventually(lambda: _count(redis, project, 2))
    due = datetime(2026, 1, 31, 0, 30, tzinfo=UTC)
    lines = [Line("茶", Decimal("12.50"), date(2026, 1, 31))]
    number = UUID("6f1c2a9e-0d4b-4a55-9b1e-2f7d8c3a6e10")
    assert seen == [Delivery(number, lines, due, Speed.FAST)]
    good, bad = [record["metadata"] for record in await outcomes(redis, project)]
    assert good["result"] == orjson.loads(order)
    assert bad["outcome"] == "rejected"
    assert all(name in bad["error"]["fields"]["order"] for name in ("id", "sku", "due"))


async def _count(redis: Redis, project: str, number: int) -> bool:
    return len(await outcomes(redis, project)) == number


async def test_context_fallback_and_middleware() -> None:
    """A context is injected, middleware wraps in order, the fallback gets the rest."""
    agent = ProjectAgent("订单系统")
    seen: list[str] = []

    @agent.middleware
    async def outer(context: CommandContext, call_next: CallNext) -> object:
        seen.append(f"outer {context.command}")
        return {"outer": await call_next(context)}

    @agent.middleware
    async def inner(context: CommandContext, call_next: CallNext) -> object:
        seen.append(f"inner {context.command}")
        return await call_next(context)

    @agent.command
    async def who(context: CommandContext, name: str) -> dict[str, object]:
        context.log.info("asked", name=name)
        return {
            "id": context.id,
            "source": context.source,
            "delivery": context.delivery,
        }

    @agent.fallback
    async def rest(context: CommandContext) -> dict[str, object]:
        return {"args": context.args}

    asked = await agent.invoke("who", name="库存")
    other = await agent.invoke("anything", x=1)
    assert asked.result == {
        "outer": {
            "id": asked.outcome.command_id,
            "source": "BLS Project Console",
            "delivery": 1,
        }
    }
    assert other.result == {"outer": {"args": {"x": 1}}}
    assert seen == ["outer who", "inner who", "outer anything", "inner anything"]


LARGE: dict[str, object] = {
    "an object": {str(number): number for number in range(20_000)},
    "a list": [*range(20_000)],
    "a text": "x" * 200_000,
    "a wide tree": [{"x" * 60 + str(n): ["y" * 60] * 30 for n in range(40)}] * 40,
    "64 KB": "x" * 65_536,
}


@pytest.mark.parametrize("name", [*LARGE, "just short enough", "its error"])
async def test_a_result_that_was_cut_says_so(
    redis_url: str, redis: Redis, project: str, name: str
) -> None:
    """What fits into a record arrives whole; else the outcome tells how long it was."""
    agent = ProjectAgent(project, redis=redis_url, instance="订单-1")
    result = LARGE.get(name, "x" * 64_980)

    @agent.command("长" * 170)
    async def answer() -> object:
        if name == "its error":
            raise Reject("no", {"all": LARGE["a list"]})
        return result

    @agent.command
    async def short() -> object:
        return result

    command = "short" if name == "just short enough" else "长" * 170
    sent = {"id": "a" * 300, "command": command}
    await redis.rpush(f"{project}_控制", orjson.dumps(sent))
    async with agent:
        await eventually(lambda: sum(agent.stats().outcomes.values()) == 1)
    [payload] = await redis.lrange(f"{project}_项目控制台", 0, -1)
    assert len(payload) <= 65_535
    outcome = LogEntry.decode(cast("bytes", payload)).outcome
    assert outcome is not None
    assert (outcome.command, outcome.command_id) == (command, sent["id"])
    if name == "just short enough":
        assert len(payload) > 65_440
        assert (outcome.truncated, outcome.result) == (0, result)
        assert "truncated" not in outcome.metadata
        return
    told = outcome.error["details"]["all"] if name == "its error" else outcome.result
    before = len(orjson.dumps(LARGE["a list"] if name == "its error" else result))
    assert before < outcome.truncated < before + 3_000
    assert outcome.truncated == outcome.metadata["truncated"]
    kept = orjson.dumps(told, option=orjson.OPT_INDENT_2)
    assert len(kept) > 20_000
    assert b"more" in kept or b"items>" in kept or kept.endswith('…"'.encode())


USER: ContextVar[str] = ContextVar("user", default="nobody")


@pytest.mark.parametrize("mode", ["blocking", "compat", "auto", "reliable"])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_each_command_has_its_own_context_variables(
    redis_url: str, console: Console, project: str, mode: Mode, in_thread: bool
) -> None:
    """What a command sets ends with it; what stood at the opening is seen by each."""
    agent = ProjectAgent(project, redis=redis_url, mode=mode, prefetch=4)

    @agent.middleware
    async def log_in(context: CommandContext, call_next: CallNext) -> object:
        before = USER.get()
        await anyio.sleep(0)
        USER.set(f"{before}+middleware")
        try:
            return [before, await call_next(context)]
        finally:
            USER.set("left behind by the middleware")

    @agent.command
    async def coroutine() -> str:
        found = USER.get()
        USER.set("left behind by a coroutine")
        await anyio.sleep(0)
        assert USER.get() == "left behind by a coroutine"
        return found

    @agent.command
    def plain() -> str:
        found = USER.get()
        USER.set("left behind by a plain function")
        return found

    @agent.command(timeout=0.01)
    async def slow() -> None:
        USER.set("left behind by one that was cancelled")
        await anyio.sleep_forever()

    @agent.command
    async def fails() -> None:
        USER.set("left behind by a failure")
        raise RuntimeError

    token = USER.set("host")
    try:
        async with AsyncExitStack() as stack:
            if in_thread:
                stack.enter_context(agent.in_thread())
            else:
                await stack.enter_async_context(agent)
            USER.set("set by the host when the agent was open")
            for name in ("coroutine", "plain", "slow", "fails") * 2:
                outcome = await console.call(project, name)
                if outcome.succeeded:
                    assert outcome.result == ["host", "host+middleware"]
    finally:
        USER.reset(token)


@pytest.mark.parametrize("name", ["coroutine", "plain", "nobody", "middleware", "late"])
async def test_a_forgotten_await_is_made_up_for(name: str) -> None:
    """A handler that returns a coroutine has ended when that has, within its time."""
    agent = ProjectAgent("订单系统")

    async def load() -> int:
        await anyio.sleep(0)
        agent.log.info("loaded")
        return 42

    @agent.command
    async def coroutine() -> object:
        return load()

    @agent.command
    def plain() -> object:
        return load()

    @agent.command(timeout=0.01)
    async def late() -> object:
        return anyio.sleep_forever()

    @agent.fallback
    async def rest(context: CommandContext) -> object:
        return load()

    @agent.middleware
    async def around(context: CommandContext, call_next: CallNext) -> object:
        if context.command == "middleware":
            return call_next(context)
        return await call_next(context)

    outcome = await agent.invoke(name)
    if name == "late":
        assert outcome.kind is OutcomeKind.TIMED_OUT
        return
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, 42)
    assert outcome.logs[0].metadata["commandId"] == outcome.outcome.command_id


async def test_one_at_a_time_keeps_the_order(
    redis_url: str, redis: Redis, project: str
) -> None:
    """concurrency=1 runs commands strictly one after the other, in list order."""
    agent = ProjectAgent(project, redis=redis_url, prefetch=5)
    seen: list[tuple[str, int]] = []

    @agent.command
    async def step(n: int) -> None:
        seen.append(("begin", n))
        await anyio.sleep(0)
        seen.append(("end", n))

    for n in range(50):
        await redis.rpush(f"{project}_控制", b'{"command":"step","args":{"n":%d}}' % n)
    async with agent:
        await eventually(lambda: len(seen) == 100)
    assert seen == [(what, n) for n in range(50) for what in ("begin", "end")]


async def test_concurrency_is_a_bound(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Never more than ``concurrency`` handlers run; the backlog stays in Redis."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=5, shutdown_timeout=0)
    running = 0
    release = anyio.Event()

    @agent.command
    async def hold() -> None:
        nonlocal running
        running += 1
        await release.wait()

    for _ in range(20):
        await redis.rpush(f"{project}_控制", b'{"command":"hold"}')
    async with agent:
        await eventually(lambda: running == 5)
        await anyio.sleep(0.1)  # nothing more may be taken; there is no event for that
        assert running == 5
        assert await redis.llen(f"{project}_控制") == 15
        release.set()
        await eventually(lambda: running == 20)


async def test_a_hung_thread_keeps_its_slot(
    redis_url: str, console: Console, project: str
) -> None:
    """A plain handler beyond its time is reported at once; its slot is free later."""
    agent = ProjectAgent(project, redis=redis_url)
    release = threading.Event()

    @agent.command(timeout=0.05)
    def hang() -> None:
        release.wait(10)

    async with agent:
        assert (await console.call(project, "hang")).kind is OutcomeKind.TIMED_OUT
        assert agent.stats().commands_stuck == 1
        waiting = await console.send(project, "ping")
        await anyio.sleep(0.2)  # time in which a free slot would run it
        assert "succeeded" not in agent.stats().outcomes
        release.set()
        await eventually(lambda: agent.stats().outcomes.get("succeeded") == 1)
        assert agent.stats().commands_stuck == 0
        assert waiting.command == "ping"


async def test_what_is_too_old_is_rejected(
    redis_url: str, redis: Redis, project: str
) -> None:
    """By the command's timestamp; without one, or one of tomorrow, it is run."""
    now = datetime.now(UTC)
    times = {
        "old": (now - timedelta(days=3)).isoformat(),
        "fresh": now.isoformat(),
        "ahead": (now + timedelta(days=3)).isoformat(),
        "none": "",
        "odd": "soon",
    }
    for name, timestamp in times.items():
        command = Command.create("ping", now=0, id=name)
        payload = replace(command, timestamp=timestamp).encode()
        payload = payload.replace(b'"timestamp":"",', b"")
        await redis.rpush(f"{project}_控制", payload)
    async with ProjectAgent(project, redis=redis_url, command_max_age=3600) as agent:
        ends = agent.stats
        await eventually(lambda: ends().outcomes.get("succeeded", 0) == len(times) - 1)
    ended = {r["metadata"]["commandId"]: r for r in await outcomes(redis, project)}
    assert ended["old"]["metadata"]["outcome"] == "rejected"
    assert ended["old"]["metadata"]["error"] == {
        "type": "TooOld",
        "message": "it was sent 259200 s ago; command_max_age is 3600 s",
    }
    assert ended["old"]["level"] == "warn"
    rest = {ended[name]["metadata"]["outcome"] for name in times if name != "old"}
    assert rest == {"succeeded"}


@pytest.mark.parametrize(
    ("payload", "number"),
    [
        (
            b'{"id":"cmd-1","command":"x","args":{"a":"%s"}}' % (b"x" * 2_000_000),
            "cmd-1",
        ),
        ('{ "id" : "命令-1", "command"'.encode(), "命令-1"),
        (b'{"id":17,"command":"x","args":[1]}', "17"),
        (b'{"command":" ","id":"cmd-2"}', "cmd-2"),
        (b'{"id":"\xff","command":"x"}', ""),
        (b'{"command":"x","id":"cmd-3"', ""),
        (b"[1]", ""),
    ],
    ids=["too large", "cut off", "a number", "last", "no UTF-8", "cut, last", "a list"],
)
async def test_a_discarded_command_keeps_its_id(
    redis_url: str,
    redis: Redis,
    console: Console,
    project: str,
    payload: bytes,
    number: str,
) -> None:
    """Where one can be read, so that whoever waits for it hears of its end."""
    async with ProjectAgent(project, redis=redis_url) as agent:
        await redis.rpush(f"{project}_控制", payload)
        await eventually(lambda: "discarded" in agent.stats().outcomes)
    (ended,) = await outcomes(redis, project)
    assert ended["metadata"]["commandId"] == number
    (entry,) = await console.logs(project)
    assert entry.outcome is not None
    assert entry.outcome.command_id == number


async def test_builtins(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """ping, help, stats and set_log_level answer; the level comes back by itself."""
    agent = ProjectAgent(project, redis=redis_url, log_level="info")

    @agent.command
    async def 重新加载(force: bool = False, api_token: str = "tk-1") -> None:
        """Load the rules again."""

    async with agent:
        assert (await console.call(project, "ping")).result == {"pong": True}
        listed = (await console.call(project, "help")).result
        mine = next(item for item in listed if item["name"] == "重新加载")
        assert mine["description"] == "Load the rules again."
        assert mine["parameters"]["properties"] == {
            "force": {"type": "boolean", "default": False},
            "api_token": {"type": "string", "default": REDACTED},
        }
        assert (await console.call(project, "stats")).result["project"] == project
        agent.log.debug("not shipped")
        changed = await console.call(
            project, "set_log_level", {"level": "debug", "seconds": 0.2}
        )
        assert changed.result["before"] == "info"
        agent.log.debug("shipped")
        await anyio.sleep(0.25)  # the level's own time
        agent.log.debug("not shipped either")
        await agent.flush()
    said = [
        r["message"] for r in await records(redis, project) if r["level"] == "debug"
    ]
    assert said == ["shipped"]


async def test_builtins_can_be_switched_off(
    redis_url: str, console: Console, project: str
) -> None:
    """builtins=False leaves only the host's own commands; its own ping goes first."""
    async with ProjectAgent(project, redis=redis_url, builtins=False):
        assert (await console.call(project, "ping")).kind is OutcomeKind.UNKNOWN
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    async def ping() -> str:
        return "mine"

    async with agent:
        assert (await console.call(project, "ping")).result == "mine"


async def test_registering_after_the_start(
    redis_url: str, console: Console, project: str
) -> None:
    """A handler registered while the agent is open works at once."""
    agent = ProjectAgent(project, redis=redis_url)
    async with agent:

        @agent.command
        async def late() -> str:
            return "here"

        assert (await console.call(project, "late")).result == "here"


def test_a_decorator_gives_the_function_back() -> None:
    """Decorated functions are the user's own objects."""
    agent = ProjectAgent("订单系统")

    async def one() -> None: ...
    def two() -> None: ...

    assert agent.command(one) is one
    assert agent.command("二")(two) is two
    with pytest.raises(DuplicateHandlerError, match="二"):
        agent.command("二")(one)


async def test_records_inside_a_handler_carry_its_command(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """Log calls made in a handler, also in its thread, carry the command's id."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    def work() -> None:
        agent.log.info("inside")

    agent.log.info("outside")
    async with agent:
        outcome = await console.call(project, "work")
        await agent.flush()
    outside, inside, _ = await records(redis, project)
    assert "commandId" not in outside["metadata"]
    assert inside["metadata"]["commandId"] == outcome.command_id


async def test_a_handler_may_close_its_agent(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A shutdown command ends the service in order, and its own outcome is told."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    async def shutdown() -> str:
        await agent.aclose()
        return "bye"

    await redis.rpush(f"{project}_控制", b'{"command":"shutdown"}')
    with anyio.fail_after(2):
        await agent.run(handle_signals=False)
    (record,) = await outcomes(redis, project)
    assert record["metadata"]["result"] == "bye"


async def test_an_agent_that_its_handler_has_closed_is_not_open(
    redis_url: str, console: Console, project: str
) -> None:
    """Also before the block ends that opened it."""
    agent = ProjectAgent(project, redis=redis_url)
    agent.command("shutdown")(agent.aclose)
    async with agent:
        await console.call(project, "shutdown", create=True)
        await eventually(lambda: not agent.stats().open)
        with pytest.raises(ConfigurationError, match="must be open"):
            await agent.pause()
        paused = await agent.invoke("pause")
        assert paused.outcome.error["message"] == "the agent is not open"


async def test_arguments_of_any_name_are_checked_too() -> None:
    """An annotation of **kwargs holds for each of them."""
    agent = ProjectAgent("订单系统")

    @agent.command
    async def count(**numbers: int) -> int:
        return sum(numbers.values())

    with pytest.raises(ConfigurationError):

        @agent.command
        async def locks(**locks: threading.Lock) -> None: ...

    assert (await agent.invoke("count", a=1, b=2)).result == 3
    wrong = await agent.invoke("count", a=1, b="2")
    assert set(wrong.error["fields"]) == {"b"}


async def test_integers_of_any_size_arrive_exactly(
    redis_url: str, console: Console, project: str
) -> None:
    """What Console sends as an integer over 64 bit reaches the handler as it was."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    async def digits(number: int) -> int:
        return len(str(number))

    async with agent:
        assert (await console.call(project, "digits", {"number": 10**30})).result == 31


@pytest.mark.parametrize(
    "register",
    [
        lambda agent: agent.command(partial(print)),
        lambda agent: agent.command("x", timeout="5")(print),
        lambda agent: agent.command("x", timeout=0)(lambda: None),
        lambda agent: agent.command("")(lambda: None),
        lambda _: ProjectAgent("订单系统", settings=5),  # type: ignore[arg-type]
        lambda _: ProjectAgent("订单系统", redis_url="redis://x"),  # type: ignore[call-arg]
        lambda _: ProjectAgent(
            "订单系统", redis="rediss://x?ssl_cert_reqs=bogus"
        ),
        lambda _: ProjectAgent(
            "订单系统", redis="rediss://x?ssl_ca_certs=/not/there"
        ),
    ],
    ids=[
        "no name", "timeout text", "timeout 0", "empty name", "settings",
        "redis_url", "tls option", "tls file",
    ],
)  # fmt: skip
def test_wrong_arguments_fail_at_construction(
    register: Callable[[ProjectAgent], object],
) -> None:
    """Each wrong argument is a ConfigurationError at once, and nothing else."""
    with pytest.raises(ConfigurationError):
        register(ProjectAgent("订单系统"))


async def test_handlers_that_end_at_their_very_deadline(
    project: str, redis_url: str, console: Console
) -> None:
    """Whatever wins, each leaves one outcome and the next command runs."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=3)

    @agent.command(timeout=0.01)
    async def close_call(wait: float) -> None:
        await anyio.sleep(wait)

    async with agent:
        sent = [
            await console.send(project, "close_call", {"wait": 0.0095 + number / 1e5})
            for number in range(150)
        ]
        ends: Counter[str] = Counter()

        async def all_ended() -> bool:
            found = [entry.outcome for entry in await console.logs(project, 1_000)]
            ends.clear()
            ends.update(end.command_id for end in found if end is not None)
            return len(ends) == len(sent)

        await eventually(all_ended)
        assert set(ends.values()) == {1}
        assert (await console.call(project, "ping")).succeeded
        assert agent.stats().commands_running == 0


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_worker_that_somebody_cancels_is_replaced(
    project: str, redis_url: str, console: Console, concurrency: int
) -> None:
    """A handler hands its task out, and somebody cancels it when it is idle."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=concurrency)
    workers: list[asyncio.Task[Any]] = []

    @agent.command
    async def hand_out() -> None:
        task = asyncio.current_task()
        assert task is not None
        workers.append(task)

    async with agent:
        for _ in range(5):
            assert (await console.call(project, "hand_out")).succeeded
            await anyio.wait_all_tasks_blocked()
            workers[-1].cancel()
            assert (await console.call(project, "ping")).succeeded
        assert len(set(workers)) > 2


async def test_a_handler_that_ignores_its_cancellation(
    project: str, redis_url: str, console: Console
) -> None:
    """Its outcome is there at once; its slot stays taken until it really ends."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=2)
    released = anyio.Event()

    @agent.command(timeout=0.05)
    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with agent:
        outcome = await console.call(project, "stubborn", timeout=5.0)
        assert outcome.kind is OutcomeKind.TIMED_OUT
        assert agent.stats().commands_stuck == agent.stats().commands_running == 1
        assert (await console.call(project, "ping")).succeeded  # in the other slot
        released.set()
        await eventually(lambda: agent.stats().commands_running == 0)
        assert agent.stats().commands_stuck == 0
        assert agent.stats().outcomes == {"timed_out": 1, "succeeded": 1}


def test_a_method_in_a_class_body_is_refused() -> None:
    """There is no object yet whose method it could be; the error says what to write."""
    agent = ProjectAgent("订单系统")
    with pytest.raises(ConfigurationError, match=r"in the body of a class") as caught:

        class Service:
            @agent.command("reload-rules")
            async def reload(self, force: bool = False) -> None: ...

    remedy = "Register it in __init__: agent.command('reload-rules')(self.reload)."
    assert caught.value.remedy == remedy

    class Shop:
        def __init__(self) -> None:
            agent.command("reload-rules")(self.reload)

        def reload(self) -> None: ...

        @staticmethod
        @agent.command
        def count(goods: str) -> None: ...

        @agent.command
        @staticmethod
        def price(goods: str) -> None: ...

    Shop()
    with pytest.raises(ConfigurationError, match=r"'.*Shop.reload' is not allowed"):
        agent.command("again")(Shop.reload)


@pytest.mark.parametrize("again", [False, True], ids=["idle", "and before it began"])
async def test_a_worker_that_dies_while_no_slot_is_free_is_replaced(
    project: str, redis_url: str, console: Console, again: bool
) -> None:
    """A late plain handler keeps the slot while somebody cancels every worker.

    No worker can be called before its thread is free. The one that is called then may
    be cancelled, too, before its first step, in which it cannot catch that.
    """
    agent = ProjectAgent(project, redis=redis_url, command_timeout=0.2)
    released = threading.Event()

    @agent.command
    def late() -> None:
        released.wait(10.0)

    def cancel_workers() -> int:
        found = [t for t in asyncio.all_tasks() if "Dispatcher._work" in t.get_name()]
        return sum(task.cancel() for task in found)

    async with agent:
        try:
            outcome = await console.call(project, "late", timeout=5.0)
            assert outcome.kind is OutcomeKind.TIMED_OUT
            assert cancel_workers() == 1
            await anyio.wait_all_tasks_blocked()
            assert cancel_workers() == 0
            threads = agent._state.threads
            call_worker = threads.on_freed

            def call_and_cancel() -> None:
                threads.on_freed = call_worker
                call_worker()
                assert cancel_workers() == 1

            if again:
                threads.on_freed = call_and_cancel
        finally:
            released.set()
        assert (await console.call(project, "ping")).succeeded


class Token:
    """An argument that can be watched."""


async def test_the_arguments_of_a_plain_function_that_raises_are_freed(
    redis_url: str, console: Console, project: str
) -> None:
    """At once, without a collection of cycles."""
    agent, alive = ProjectAgent(project, redis=redis_url), WeakSet[Token]()

    @agent.middleware
    async def add(context: CommandContext, call_next: CallNext) -> object:
        token = Token()
        alive.add(token)
        return await call_next(replace(context, args={"token": token}))

    @agent.command
    def load(token: object) -> None:
        raise ValueError

    gc.disable()
    try:
        async with agent:
            assert (await console.call(project, "load")).kind is OutcomeKind.FAILED
            await console.call(project, "ping")
            assert not alive
    finally:
        gc.enable()


async def test_plain_functions_that_follow_each_other_share_a_thread(
    redis_url: str, console: Console, project: str
) -> None:
    """A thread that is free takes the next call; no command starts one more."""
    agent, threads = ProjectAgent(project, redis=redis_url), set[threading.Thread]()

    @agent.command
    def work() -> None:
        threads.add(threading.current_thread())

    async with agent:
        for _ in range(20):
            assert (await console.call(project, "work")).succeeded
    assert len(threads) == 1
