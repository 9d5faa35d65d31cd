"""Agents that nobody closes, loops that end strangely, interpreters that exit."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from contextlib import suppress
from typing import Any, cast

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, Console, ProjectAgent, Status
from bls_agent.core.backoff import Backoff
from bls_agent.core.buffer import BoundedBuffer
from bls_agent.project.log.record import LogRecord
from bls_agent.runtime.batch_writer import BatchWriter, Sink
from tests.harness import eventually, records, status_of
from tests.programs import Program

BEGINNING = '''
import asyncio, atexit, gc, os, signal, sys, threading, time
from bls_agent import Console, ProjectAgent, Status

project, url = sys.argv[1:3]
agent = ProjectAgent(project, redis=url)

async def ask(command="ping"):
    async with Console(url) as console:
        assert (await console.call(project, command)).succeeded

def open_by_hand():
    """Open the agent in a loop that is not running any more when this returns."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(agent.__aenter__())
    loop.run_until_complete(agent.ready(10))
    return loop
'''


def run(
    code: str, project: str, url: str, *options: str, seconds: float = 2.0
) -> tuple[int, str]:
    """Run a program to its end; give its exit code and what it complained of.

    Args:
        code: What follows the beginning.
        project: The agent's project.
        url: Where Redis is.
        options: For the interpreter.
        seconds: Until it must be gone, from its word on that it exits now.
    """
    with Program(*options, "-c", BEGINNING + code, project, url) as program:
        assert program.line() == "exits"
        began = time.monotonic()
        ended = program.end()
        took = time.monotonic() - began
    assert took < seconds
    return ended.code, ended.err


def numbers(found: list[dict[str, Any]]) -> list[int]:
    """The records' numbers."""
    return [int(one["metadata"]["agent"].partition("#")[2]) for one in found]


async def test_run_again_and_again_in_any_loop(
    redis_url: str, redis: Redis, project: str
) -> None:
    """One agent in one ``asyncio.run`` after the other, uvloop's and asyncio's."""
    code = """
import uvloop

async def main(number):
    async with agent:
        agent.log.info("life", number=number)
        await ask()
        assert await agent.flush(10)
    assert not agent.stats().open
    agent.log.info("between")

for number, run_loop in enumerate([asyncio.run, asyncio.run, uvloop.run, asyncio.run]):
    run_loop(main(number))
print("exits", flush=True)
"""
    pytest.importorskip("uvloop")
    assert run(code, project, redis_url, "-W", "error") == (0, "")
    found = await records(redis, project)
    assert numbers(found) == list(range(1, 12))
    lives = [one["metadata"]["number"] for one in found if one["message"] == "life"]
    assert lives == [0, 1, 2, 3]
    assert await status_of(redis, project) == "离线"


@pytest.mark.parametrize("turns", [0, 2, 4, 50])
async def test_a_loop_that_was_closed_under_it(
    redis_url: str, redis: Redis, project: str, turns: int
) -> None:
    """The agent is closed then, hurts nobody, and works in the next loop.

    What waited is written there; what was on its way is looked for first.
    """
    code = """
loop = open_by_hand()
for number in range(20):
    agent.log.info("before", number=number)

async def take_turns():
    for _ in range(TURNS):
        await asyncio.sleep(0)

loop.run_until_complete(take_turns())
loop.close()

began = time.monotonic()
assert not agent.stats().open and "closed" in repr(agent)
agent.log.info("before", number=20)
agent.set_status(Status.ERROR)
asyncio.run(agent.flush(10))
asyncio.run(agent.aclose())
assert not agent.stats().connections
assert time.monotonic() - began < 5

async def main():
    async with agent:
        await agent.ready(10)
        async with Console(url) as console:
            assert await console.status(project) is Status.ERROR
        await ask()
        agent.log.info("after")
        assert await agent.flush(10)

asyncio.run(main())
asyncio.run(main())
print("exits", flush=True)
"""
    code = code.replace("TURNS", str(turns))
    assert run(code, project, redis_url) == (0, "")
    found = await records(redis, project)
    assert numbers(found) == list(range(1, len(found) + 1))
    told = [
        one["metadata"].get("number") for one in found if "number" in one["metadata"]
    ]
    assert told == list(range(21))
    assert [one["message"] for one in found].count("after") == 2


async def test_its_descriptors_end_with_it(redis_url: str, project: str) -> None:
    """However often a loop is closed under it, no socket stays behind."""
    code = """
async def connect():
    agent.log.info("so that each of them is needed")
    while not all(agent.stats().connections.values()):
        await asyncio.sleep(0.005)

def count():
    for _ in range(3):
        loop = open_by_hand()
        loop.run_until_complete(connect())
        loop.close()
        asyncio.run(agent.aclose())
        gc.collect()
    return len(os.listdir("/proc/self/fd"))

before = count()
assert count() == before
print("exits", flush=True)
"""
    assert run(code, project, redis_url, "-W", "error") == (0, "")


async def test_what_is_collected_late_disturbs_nobody() -> None:
    """A writer whose loop was closed ends when it is collected, beside the next one."""
    delivery = BatchWriter(BoundedBuffer[LogRecord](10, 10_000, ranks=5))
    sink = cast("Sink[LogRecord]", None)
    collected = delivery.run(sink, Backoff())
    collected.send(None)  # as a loop does
    delivery.detach()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run, sink, Backoff())
        await eventually(lambda: delivery.running)
        with suppress(
            RuntimeError
        ):  # a scope of anyio is left where it was not entered
            collected.close()
        assert delivery.running
        assert delivery._wakeup._loop is asyncio.get_running_loop()
        tasks.cancel_scope.cancel()


async def test_collected_while_it_was_open(
    redis_url: str, console: Console, project: str
) -> None:
    """A ResourceWarning names the project; what runs goes on until its loop ends."""
    agents = [ProjectAgent(project, redis=redis_url)]
    await agents[0].__aenter__()
    session, gone = agents[0]._session, weakref.ref(agents[0])
    assert session is not None
    with pytest.warns(ResourceWarning, match=f"{project!r} was never closed"):
        agents.clear()
    assert gone() is None
    ended = await console.call(project, "stats")
    assert ended.result["project"] == project
    session.stop(Status.OFFLINE)
    await session.closed.wait()


async def test_collected_after_its_loop_was_closed(
    redis_url: str, console: Console, project: str
) -> None:
    """The warning comes, nothing else does, and the server serves no one any more."""

    def live() -> str:
        loop = asyncio.new_event_loop()
        agent = ProjectAgent(project, redis=redis_url)
        loop.run_until_complete(agent.__aenter__())
        loop.run_until_complete(agent.ready(10))
        loop.close()
        return agent.stats().instance

    with pytest.warns(ResourceWarning, match=project):
        instance = await anyio.to_thread.run_sync(live)
    shown = await console._pool.pick().call("CLIENT", "LIST")
    assert f"name=bls-agent:{instance}:".encode() not in shown


async def test_no_warning_without_a_reason(redis_url: str, project: str) -> None:
    """Neither when it was closed nor when it was never opened, or could not be made."""
    ProjectAgent(project)
    agent = ProjectAgent(project, redis=redis_url)
    async with agent:
        await agent.ready(10)
    del agent
    with pytest.raises(ConfigurationError):
        ProjectAgent("")
    gc.collect()


EXITS = {
    "sys.exit in the block": (
        """
async def main():
    async with agent:
        await agent.ready(10)
        print("exits", flush=True)
        sys.exit(3)

asyncio.run(main())
""",
        3,
        "故障",
    ),
    "sys.exit in a callback beside it": (
        """
def leave():
    print("exits", flush=True)
    sys.exit(0)

async def main():
    async with agent:
        await agent.ready(10)
        asyncio.get_running_loop().call_soon(leave)
        await asyncio.sleep(60)

asyncio.run(main())
""",
        0,
        "离线",
    ),
    "main returns without closing it": (
        """
async def main():
    await agent.__aenter__()
    await agent.ready(10)
    print("exits", flush=True)

asyncio.run(main())
""",
        0,
        "离线",
    ),
    "a loop that was never closed": (
        """
loop = open_by_hand()
print("exits", flush=True)
""",
        0,
        "在线",
    ),
    "a loop that was closed by hand": (
        """
loop = open_by_hand()
loop.close()
print("exits", flush=True)
""",
        0,
        "在线",
    ),
    "os._exit": (
        """
loop = open_by_hand()
agent.log.info("lost, perhaps")
print("exits", flush=True)
os._exit(5)
""",
        5,
        "在线",
    ),
    "daemon threads that log": (
        """
def chatter():
    while True:
        agent.log.info("chatter")

async def main():
    async with agent:
        for _ in range(2):
            threading.Thread(target=chatter, daemon=True).start()
        await agent.ready(10)
        await asyncio.sleep(0.05)
        print("exits", flush=True)

asyncio.run(main())
""",
        0,
        "离线",
    ),
    "daemon threads and a loop that was never closed": (
        """
def chatter():
    while True:
        agent.log.info("chatter")

loop = open_by_hand()
for _ in range(4):
    threading.Thread(target=chatter, daemon=True).start()
time.sleep(0.05)
print("exits", flush=True)
""",
        0,
        "在线",
    ),
    "hooks and finalisers that log": (
        """
class Late:
    def __del__(self):
        agent.log.error("late")
        agent.set_status(Status.ERROR)
        repr(agent)

late = Late()
atexit.register(agent.log.info, "at exit")
loop = open_by_hand()
loop.late = Late()
print("exits", flush=True)
""",
        0,
        "在线",
    ),
    "a plain handler that hangs": (
        """
@agent.command
def hang():
    time.sleep(60)

async def main():
    async with agent:
        async with Console(url) as console:
            await console.send(project, "hang", create=True)
        while not agent.stats().commands_running:
            await asyncio.sleep(0.005)
        print("exits", flush=True)
        raise SystemExit(4)

agent = ProjectAgent(project, redis=url, shutdown_timeout=0.1)
agent.command(hang)
asyncio.run(main())
""",
        4,
        "故障",
    ),
}


@pytest.mark.parametrize(("code", "exit_code", "status"), EXITS.values(), ids=EXITS)
async def test_the_interpreter_exits(
    redis_url: str, redis: Redis, project: str, code: str, exit_code: int, status: str
) -> None:
    """At once, without a traceback of ours; that somebody cancelled the agent is said."""
    ended, said = run(code, project, redis_url)
    assert ended == exit_code
    assert said in ("", f"the agent of {project} was cancelled and has ended\n")
    assert await status_of(redis, project) == status


async def test_the_interpreter_exits_with_an_exception(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The traceback is the program's own."""
    code = """
async def main():
    async with agent:
        await agent.ready(10)
        print("exits", flush=True)
        raise KeyError("theirs")

asyncio.run(main())
"""
    exit_code, errors = run(code, project, redis_url)
    assert exit_code == 1
    assert errors.count("Traceback") == 1
    assert "bls_agent" not in errors
    assert errors.endswith("KeyError: 'theirs'\n")
    assert await status_of(redis, project) == "故障"
