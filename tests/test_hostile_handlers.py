"""Whatever a handler does: the loop lives, the record says it, the next command runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ArgumentError, Console, ProjectAgent, Reject, SyncConsole
from tests.harness import records, status_of
from tests.programs import run_python

LIMIT = 0.2


class Stranger(BaseException):
    """No Exception, so most nets have a hole for it."""


class UnspeakableError(Exception):
    """Cannot be told."""

    def __str__(self) -> str:
        raise Stranger

    __repr__ = __str__


class Anything:
    """Has every attribute, also those by which a coroutine is recognised."""

    def __getattr__(self, name: str) -> int:
        return 5


def dive() -> int:
    return dive()


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def raising(error: BaseException) -> Callable[[], Any]:
    def handler() -> None:
        raise error

    return handler


def raising_in_loop(error: BaseException) -> Callable[[], Any]:
    async def handler() -> None:
        raise error

    return handler


async def dives() -> int:
    return dive()


async def too_much() -> list[int]:
    return [0] * (1 << 60)


async def blocks_the_loop() -> None:
    time.sleep(2 * LIMIT)


async def cancels_its_task() -> None:
    this_task().cancel()
    await anyio.sleep_forever()


async def cancels_its_task_at_the_end() -> str:
    this_task().cancel()
    return "returned"


async def closes_its_task() -> None:
    coroutine = this_task().get_coro()
    assert coroutine is not None
    coroutine.close()


async def takes_back_its_cancellation() -> str:
    try:
        await anyio.sleep_forever()
    except asyncio.CancelledError:
        while this_task().uncancel():
            pass
    return "went on"


async def takes_back_what_nobody_did() -> int:
    return this_task().uncancel()


async def fails_in_a_group() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(raising_in_loop(Stranger("in a group")))
        await anyio.sleep_forever()


def numbers() -> Iterator[int]:
    yield 1


async def later_numbers() -> AsyncIterator[int]:
    yield 1


def gives_a_generator() -> object:
    return numbers()


async def gives_an_async_generator() -> object:
    return later_numbers()


def gives_a_coroutine() -> Any:
    return dives_not()


async def dives_not() -> int:
    return 3


def gives_anything() -> object:
    return Anything()


async def gives_a_circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


async def gives_a_well() -> list[Any]:
    well: list[Any] = []
    for _ in range(5_000):
        well = [well]
    return well


async def gives_the_unspeakable() -> object:
    return {"ok": 1, "what": UnspeakableError()}


async def gives_much() -> str:
    return "货" * 1_000_000


@dataclass
class OutOfStockError(Reject):
    """Does not call the constructor of its base."""

    sku: str


class Doubtful:
    """Has no truth value, as an array."""

    def __bool__(self) -> bool:
        raise ValueError


class Uncounted(Mapping[str, object]):
    """Cannot say how much it holds."""

    def __getitem__(self, name: str) -> object:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        raise TypeError


class BareArgumentError(ArgumentError):
    """Does not call the constructor of its base, either."""

    def __init__(self) -> None:
        pass


HANDLERS: dict[str, tuple[Callable[[], Any], str]] = {
    "rejects without a reason": (raising_in_loop(OutOfStockError("茶")), "rejected"),
    "rejects with doubt": (raising(Reject("x", Doubtful())), "rejected"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "rejects for a doubtful reason": (raising(Reject(Doubtful())), "rejected"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "rejects for an unspeakable reason": (
        raising(Reject(UnspeakableError())),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        "rejected",
    ),
    "rejects with the uncounted": (raising(Reject("x", Uncounted())), "failed"),
    "argument error without fields": (raising(BareArgumentError()), "rejected"),
    "base exception": (raising_in_loop(Stranger("x")), "failed"),
    "base exception, plain": (raising(Stranger("x")), "failed"),
    "generator exit": (raising_in_loop(GeneratorExit()), "failed"),
    "generator exit, plain": (raising(GeneratorExit()), "failed"),
    "exit": (raising_in_loop(SystemExit(3)), "failed"),
    "exit, plain": (raising(SystemExit(3)), "failed"),
    "stop iteration, plain": (raising(StopIteration(3)), "failed"),
    "cancelled, plain": (raising(asyncio.CancelledError()), "failed"),
    "cancelled": (raising_in_loop(asyncio.CancelledError()), "failed"),
    "interrupt, plain": (raising(KeyboardInterrupt()), "failed"),
    "unspeakable": (raising_in_loop(UnspeakableError()), "failed"),
    "unspeakable, plain": (raising(UnspeakableError()), "failed"),
    "group": (fails_in_a_group, "failed"),
    "recursion": (dives, "failed"),
    "recursion, plain": (dive, "failed"),
    "memory": (too_much, "failed"),
    "memory, plain": (raising(MemoryError()), "failed"),
    "blocks": (blocks_the_loop, "timed_out"),
    "hangs": (anyio.sleep_forever, "timed_out"),
    "cancels its task": (cancels_its_task, "failed"),
    "cancels its task at the end": (cancels_its_task_at_the_end, "succeeded"),
    "closes its task": (closes_its_task, "failed"),
    "takes back its cancellation": (takes_back_its_cancellation, "timed_out"),
    "takes back what nobody did": (takes_back_what_nobody_did, "succeeded"),
    "generator": (gives_a_generator, "failed"),
    "async generator": (gives_an_async_generator, "failed"),
    "coroutine": (gives_a_coroutine, "succeeded"),
    "anything": (gives_anything, "succeeded"),
    "circle": (gives_a_circle, "succeeded"),
    "well": (gives_a_well, "succeeded"),
    "no JSON": (gives_the_unspeakable, "succeeded"),
    "much": (gives_much, "succeeded"),
}


async def test_every_handler_leaves_one_record_and_no_trace(
    redis_url: str, redis: Redis, console: Console, project: str
) -> None:
    """One agent suffers all of them, each is followed by a command that works."""
    agent = ProjectAgent(project, redis=redis_url)
    for name, (handler, expected) in HANDLERS.items():
        limit = LIMIT if expected == "timed_out" else 5.0  # 5 s, if the machine is busy
        agent.command(name, timeout=limit)(handler)
    async with agent:
        for name, (_, expected) in HANDLERS.items():
            outcome = await console.call(project, name, timeout=5.0)
            assert (name, outcome.kind.value) == (name, expected)
            assert (await console.call(project, "ping", timeout=5.0)).succeeded
        stats = agent.stats()
        assert (stats.faults, stats.commands_running, stats.commands_stuck) == (0, 0, 0)
        assert await status_of(redis, project) == "在线"
    found = [r["metadata"] for r in await records(redis, project)]
    told = [one["command"] for one in found if one.get("command") in HANDLERS]
    assert told == list(HANDLERS)


def test_an_interrupt_in_another_thread_is_the_handlers_own(
    redis_url: str, project: str
) -> None:
    """Ctrl-C arrives in the main thread only: elsewhere it is a failure like any other."""
    agent = ProjectAgent(project, redis=redis_url)
    threads: list[threading.Thread] = []

    @agent.command
    async def interrupt() -> None:
        threads.append(threading.current_thread())
        raise KeyboardInterrupt

    with agent.in_thread(), SyncConsole(redis_url) as console:
        outcome = console.call(project, "interrupt", timeout=5.0)
        assert (outcome.kind, outcome.error["type"]) == ("failed", "KeyboardInterrupt")
        assert console.call(project, "ping", timeout=5.0).succeeded
    assert threads != [threading.main_thread()]


INTERRUPTED = """
import asyncio, sys
from bls_agent import Console, ProjectAgent

agent = ProjectAgent(sys.argv[1], redis=sys.argv[2], mode=sys.argv[3])

@agent.command
async def interrupt():
    raise KeyboardInterrupt

async def main():
    async with agent, Console(sys.argv[2]) as console:
        await console.send(sys.argv[1], "interrupt", create=True)
        await asyncio.sleep(20)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("came out")
"""


@pytest.mark.parametrize(("mode", "left"), [("blocking", 0), ("compat", 1)])
async def test_an_interrupt_in_the_main_thread_is_the_hosts(
    redis_url: str, redis: Redis, project: str, mode: str, left: int
) -> None:
    """It ends the program as asyncio has it, once; the agent says farewell in order.

    The command is reported ``cancelled``, which leaves it in the list in compat mode.
    """
    ended = run_python("-c", INTERRUPTED, project, redis_url, mode)
    assert (ended.code, ended.out) == (0, "came out\n")
    assert "Traceback" not in ended.err, "at most a warning that the agent has ended"
    assert await status_of(redis, project) == "离线"
    (record,) = [r["metadata"] for r in await records(redis, project)]
    assert record["outcome"] == "cancelled"
    assert record["error"]["type"] == "KeyboardInterrupt"
    assert await redis.llen(f"{project}_控制") == left
