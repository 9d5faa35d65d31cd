"""An agent in a thread of its own: for programs that have no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import re
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from redis import Redis

from bls_agent import (
    ConfigurationError,
    Console,
    OutcomeKind,
    ProjectAgent,
    RedisUnavailableError,
    Status,
    SyncConsole,
)
from bls_agent.project.agent_thread import AgentThread
from bls_agent.runtime import loop_thread
from bls_agent.runtime.batch_writer import Flushed
from tests.harness import until
from tests.programs import Program, run_python

AWAY = "redis://127.0.0.1:1/0"
KEYS = ("项目状态", "项目控制台", "控制")


@pytest.fixture
def console(redis_url: str, project: str) -> Iterator[SyncConsole]:
    """The other end, synchronous too; the project's keys are removed."""
    with SyncConsole(redis_url) as opened:
        yield opened
    with Redis.from_url(redis_url) as client:
        client.delete(*(f"{project}_{suffix}" for suffix in KEYS))


def interrupt_when(condition: Callable[[], object]) -> threading.Thread:
    """Press Ctrl-C, seen from the main thread, as soon as a condition holds."""
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        until(condition)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def threads_of(project: str) -> list[str]:
    return [one.name for one in threading.enumerate() if project in one.name]


def test_a_plain_program_is_on_the_console(
    redis_url: str, console: SyncConsole, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Status, log and both kinds of handlers work, without a warning in the host's log."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    async def in_loop() -> list[str]:
        return [threading.current_thread().name, str(threading.current_thread().daemon)]

    @agent.command
    def in_worker() -> str:
        return threading.current_thread().name

    with agent.in_thread() as thread:
        thread.ready(5)
        assert console.status(project) is Status.ONLINE
        agent.log.info("paid", order=42)
        flushed = thread.flush()
        assert (flushed.complete, flushed.queued) == (True, 0)
        assert console.logs(project)[-1].message == "paid"
        outcome = console.call(project, "in_loop")
        assert outcome.result == [f"bls-agent {project}", "True"]
        assert console.call(project, "in_worker").result == "bls-agent-handler-1"
        assert repr(thread) == f"<AgentThread {project!r} entered>"
        agent.set_status(Status.ERROR)
        until(lambda: console.status(project) is Status.ERROR, timeout=2)
    assert console.status(project) is Status.OFFLINE
    assert repr(thread) == f"<AgentThread {project!r} left>"
    assert not [r for r in caplog.records if r.name.startswith("bls_agent")]


@pytest.mark.usefixtures("console")  # it removes the keys
def test_a_wait_without_a_limit(redis_url: str, project: str) -> None:
    """It is infinity; a number that no operating system can wait for is refused."""
    with ProjectAgent(project, redis=redis_url).in_thread() as thread:
        thread.ready(math.inf)
        assert thread.flush(math.inf)
        for wait in (thread.ready, thread.flush):
            with pytest.raises(ConfigurationError, match="at most 100,000,000 seconds"):
                wait(sys.maxsize)


@pytest.mark.parametrize("answers", [False, True], ids=["refused", "silent"])
def test_it_never_waits_for_redis(project: str, *, answers: bool) -> None:
    """With nobody there, or somebody who says nothing: entering takes no time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0" if answers else AWAY
        ProjectAgent(project, redis=url)  # so that loading redis-py is not measured
        agent = ProjectAgent(project, redis=url, shutdown_timeout=0)
        began = time.perf_counter()
        with agent.in_thread() as thread:
            assert time.perf_counter() - began < 2
            with pytest.raises(RedisUnavailableError, match="not_ready"):
                thread.ready(0.05)
            agent.log.info("waits")
            flushed = thread.flush(0.05)
            assert (flushed.complete, flushed.queued) == (False, 1)
            began = time.perf_counter()
        assert time.perf_counter() - began < 4
    assert threads_of(project) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, Status.OFFLINE),
        (KeyError("库存"), Status.FAULT),
        (SystemExit(0), Status.OFFLINE),
        (SystemExit(3), Status.FAULT),
        (KeyboardInterrupt(), Status.OFFLINE),
    ],
    ids=repr,
)
def test_the_last_word(
    redis_url: str,
    console: SyncConsole,
    project: str,
    error: BaseException | None,
    said: Status,
) -> None:
    """The block's exception leaves unchanged and decides what the status says."""
    caught: BaseException | None = None
    try:
        with ProjectAgent(project, redis=redis_url).in_thread():
            if error is not None:
                raise error
    except BaseException as raised:
        caught = raised
    assert caught is error
    assert console.status(project) is said


def test_what_cannot_open_says_so(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's nonsense is raised in the caller, and no thread is left."""
    monkeypatch.setenv("BLS_CONCURRENCY", "many")
    with (
        pytest.raises(ConfigurationError, match="BLS_CONCURRENCY"),
        ProjectAgent(project, redis=AWAY).in_thread(),
    ):
        pass
    assert threads_of(project) == []


def test_opened_twice(redis_url: str, console: SyncConsole, project: str) -> None:
    """While it is open nobody can open it again, in whatever way; it lives on."""
    agent = ProjectAgent(project, redis=redis_url)

    async def in_a_loop() -> None:
        async with agent:
            pass

    with agent.in_thread() as thread:
        for open_again in (
            thread.__enter__,
            agent.in_thread().__enter__,
            lambda: anyio.run(in_a_loop),
        ):
            with pytest.raises(ConfigurationError, match=r"(open|entered) already"):
                open_again()
        assert threads_of(project) == [f"bls-agent {project}"]
        assert console.call(project, "ping").succeeded
    assert console.status(project) is Status.OFFLINE


async def test_a_thread_while_a_loop_has_it(redis_url: str, project: str) -> None:
    """An agent that lives in the host's loop cannot be opened in a thread."""
    agent = ProjectAgent(project, redis=redis_url)
    async with agent:
        with pytest.raises(ConfigurationError, match="open already"):
            await anyio.to_thread.run_sync(agent.in_thread().__enter__)
        await agent.ready(5)


def test_it_opens_again(redis_url: str, console: SyncConsole, project: str) -> None:
    """In the same thread object, in a new one, in a loop, and in a thread again."""
    agent = ProjectAgent(project, redis=redis_url)

    async def in_a_loop() -> None:
        async with agent:
            await agent.ready(5)

    thread = agent.in_thread()
    for again in (thread, thread, agent.in_thread()):
        with again:
            assert console.call(project, "ping").succeeded
        anyio.run(in_a_loop)
        assert console.status(project) is Status.OFFLINE


def test_it_opens_while_the_life_before_ends(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """A new block waits for the end of the one before, which has another loop."""
    agent = ProjectAgent(project, redis=redis_url)
    started, release = threading.Event(), threading.Event()
    before = agent.in_thread()

    @agent.command
    def hold() -> str:
        started.set()
        release.wait(10)
        return "held"

    before.__enter__()
    console.send(project, "hold", id="1", create=True)
    assert started.wait(5)
    session = agent._session
    assert session is not None
    leaving = threading.Thread(target=before.__exit__, args=(None, None, None))
    leaving.start()
    until(session.stop_requested.is_set)
    threading.Timer(0.1, release.set).start()
    with agent.in_thread() as thread:
        assert session.closed.is_set()
        thread.ready(5)
        assert console.call(project, "ping").succeeded
    leaving.join()
    told = [entry.outcome for entry in console.logs(project) if entry.outcome]
    assert [outcome.result for outcome in told] == ["held", {"pong": True}]


def test_it_does_not_open_beside_a_session_that_hangs(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """Two sessions would write with the same buffer; the first one has to end before."""
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=0)
    started, blocks = threading.Event(), threading.Event()
    release = threading.Event()

    @agent.command
    async def hang() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            blocks.set()
            release.wait(20)  # the whole event loop

    before = agent.in_thread().__enter__()
    console.send(project, "hang", create=True)
    assert started.wait(5)
    leaving = threading.Thread(target=before.__exit__, args=(None, None, None))
    leaving.start()
    assert blocks.wait(5)
    with pytest.raises(ConfigurationError, match="has not ended"), agent.in_thread():
        pass
    release.set()
    leaving.join()
    until(lambda: threads_of(project) == [])
    with agent.in_thread() as thread:
        thread.ready(5)
        assert console.call(project, "ping").succeeded


def test_nothing_is_left_behind(redis_url: str, project: str) -> None:
    """Fifteen rounds leave no thread, no descriptor and nothing that a hook would hold."""
    agent = ProjectAgent(project, redis=redis_url)
    blocks: weakref.WeakSet[AgentThread] = weakref.WeakSet()
    alive = set(loop_thread._ALIVE)

    @agent.command
    def plain() -> None: ...

    def one_round(console: SyncConsole) -> None:
        with agent.in_thread() as thread:
            blocks.add(thread)
            console.call(project, "plain")

    with SyncConsole(redis_url) as console:
        one_round(console)
        gc.collect()
        before = _held()
        for _ in range(15):
            one_round(console)
        until(lambda: _held() <= before)
    until(lambda: alive >= loop_thread._ALIVE)
    gc.collect()
    assert len(blocks) == 0
    assert agent.stats().faults == 0


def _held() -> tuple[int, int]:
    folder = Path("/proc/self/fd")
    descriptors = len(list(folder.iterdir())) if folder.exists() else 0
    return (threading.active_count(), descriptors)


def test_a_handler_that_blocks_the_loop(
    redis_url: str,
    console: SyncConsole,
    project: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Leaving gives up in time and says so; the agent closes when the handler lets go."""
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=0)
    started, release = threading.Event(), threading.Event()

    @agent.command
    async def block() -> None:
        started.set()
        release.wait(20)

    thread = agent.in_thread().__enter__()
    console.send(project, "block", create=True)
    assert started.wait(5)
    agent.log.info("waits for the loop")
    assert not thread.flush(0.0)
    with pytest.raises(RedisUnavailableError, match="hangs"):
        thread.ready(0.0)
    began = time.perf_counter()
    thread.__exit__(KeyError, KeyError(), None)
    assert 1.9 < time.perf_counter() - began < 4
    assert "does not let go" in caplog.text
    assert console.status(project) is Status.ONLINE
    with pytest.raises(ConfigurationError, match="open already"), agent.in_thread():
        pass
    release.set()
    until(lambda: console.status(project) is Status.FAULT)
    until(lambda: threads_of(project) == [])
    with agent.in_thread() as thread:
        thread.ready(5)
    assert console.status(project) is Status.OFFLINE


def test_a_block_inside_of_another_agents_handler_waits_for_its_end(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """Its records and its last status are written when the block has ended."""
    service = ProjectAgent(project, redis=redis_url)
    job = ProjectAgent(f"{project}-夜间", redis=redis_url)
    seen: list[object] = []

    @service.command
    def nightly() -> None:
        for number in range(3):
            with job.in_thread():
                job.log.info("works", number=number)
            with SyncConsole(redis_url) as own:
                seen.append(own.status(job.project))

    with service.in_thread():
        assert console.call(project, "nightly").succeeded
    assert seen == [Status.OFFLINE] * 3
    found = [entry.metadata["number"] for entry in console.logs(job.project)]
    assert found == [0, 1, 2]


def test_nothing_that_a_task_raises_ends_the_thread(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """Handlers that call sys.exit fail; a task that does, or stops the loop, ends alone."""
    agent = ProjectAgent(project, redis=redis_url, concurrency=2)
    tasks: list[asyncio.Task[None]] = []

    @agent.command
    async def leave() -> None:
        sys.exit(0)

    @agent.command
    def leave_a_worker() -> None:
        sys.exit(0)

    @agent.command
    async def begin(kind: str) -> None:
        async def raise_it() -> None:
            if kind == "stop":
                asyncio.get_running_loop().stop()
            raise SystemExit if kind == "exit" else KeyboardInterrupt

        tasks.append(asyncio.get_running_loop().create_task(raise_it()))

    with agent.in_thread():
        assert console.call(project, "leave").kind is OutcomeKind.FAILED
        assert console.call(project, "leave_a_worker").kind is OutcomeKind.FAILED
        for kind in ("exit", "interrupt", "stop"):
            assert console.call(project, "begin", {"kind": kind}).succeeded
        until(lambda: all(task.done() for task in tasks))
        assert console.call(project, "ping").succeeded
        assert [task.exception() is None for task in tasks] == [False] * 3
    assert console.status(project) is Status.OFFLINE


def test_a_handler_ends_the_agent(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """``aclose`` in a handler ends the agent; the block goes on and is left as ever."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    async def end() -> str:
        await agent.aclose()
        return "ended"

    with agent.in_thread() as thread:
        assert console.call(project, "end").result == "ended"
        until(lambda: console.status(project) is Status.OFFLINE)
        until(lambda: agent.stats().mode == "closed")
        with pytest.raises(ConfigurationError, match="entered already"):
            thread.__enter__()
    assert threads_of(project) == []


@pytest.mark.parametrize("name", ["coroutine", "plain"])
def test_a_handler_leaves_the_block(
    redis_url: str, console: SyncConsole, project: str, name: str
) -> None:
    """A handler begins the end, which waits for the handler."""
    agent = ProjectAgent(project, redis=redis_url)
    stack = contextlib.ExitStack()

    @agent.command
    async def coroutine() -> str:
        stack.close()
        return "left"

    @agent.command
    def plain() -> str:
        stack.close()
        return "left"

    stack.enter_context(agent.in_thread())
    assert console.call(project, name, timeout=5.0).result == "left"
    until(lambda: threads_of(project) == [])
    assert console.status(project) is Status.OFFLINE


def test_faces_of_what_waits(project: str) -> None:
    """Outside of the block ready is an error, and flush tells what waits."""
    agent = ProjectAgent(project, redis=AWAY)
    thread = agent.in_thread()
    with pytest.raises(ConfigurationError, match="must be open"):
        thread.ready()
    assert thread.flush()
    agent.log.info("waits")
    assert thread.flush() == Flushed(complete=False, delivered=0, dropped=0, queued=1)


async def test_faces_in_an_event_loop(redis_url: str, project: str) -> None:
    """There the thread may be entered, but waiting is refused: it would block the loop."""
    agent = ProjectAgent(project, redis=redis_url)
    with agent.in_thread() as thread:
        for wait in (thread.ready, thread.flush):
            with pytest.raises(ConfigurationError, match="await agent"):
                wait()


def test_a_second_signal_hurries(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """Ctrl-C while the block is left cuts the handler short; 离线 is still written."""
    agent = ProjectAgent(project, redis=redis_url, shutdown_timeout=60)
    started = threading.Event()

    @agent.command
    async def endless() -> None:
        started.set()
        await anyio.sleep_forever()

    thread = agent.in_thread().__enter__()
    console.send(project, "endless", create=True)
    assert started.wait(5)
    session = agent._session
    assert session is not None
    pressing = interrupt_when(session.stop_requested.is_set)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        thread.__exit__(None, None, None)
    pressing.join()
    assert time.perf_counter() - began < 4
    assert console.status(project) is Status.OFFLINE
    assert console.logs(project)[-1].metadata["outcome"] == "cancelled"
    assert threads_of(project) == []


# --- whole programs

BEGINNING = """
import asyncio, contextlib, os, signal, socket, sys, threading, time
from bls_agent import ProjectAgent, Status, SyncConsole
project, url = sys.argv[1:]
agent = ProjectAgent(project, redis=url)

started = threading.Event()

@agent.command
async def sleep():
    started.set()
    await asyncio.sleep(60)

@agent.command
async def block():
    started.set()
    time.sleep(60)

def stay():
    print("stays", flush=True)
    while True:  # a signal right before one long sleep would not end it
        time.sleep(0.05)
"""


# asyncio's debug mode remarks it of every step on a busy machine.
TOOK_LONG = re.compile(r"Executing <.* took \d+\.\d+ seconds")


def test_a_script_that_turns_sigterm_into_an_exit(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """The two lines that the documentation shows: 离线, exit code 0, silence."""
    code = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with agent.in_thread() as thread:
    thread.ready(10)
    stay()
"""
    words = ("-X", "dev", "-c", BEGINNING + code, project, redis_url)
    with Program(*words) as program:
        assert program.line() == "stays"
        program.send_signal(signal.SIGTERM)
        ended = program.end()
    said = [one for one in ended.err.splitlines() if not TOOK_LONG.fullmatch(one)]
    assert (ended.code, said) == (0, [])
    assert console.status(project) is Status.OFFLINE


def test_ctrl_c_in_a_script(redis_url: str, console: SyncConsole, project: str) -> None:
    """KeyboardInterrupt in the main thread, inside of the block: 离线."""
    code = "with agent.in_thread() as thread: thread.ready(10); stay()"
    with Program("-c", BEGINNING + code, project, redis_url) as program:
        assert program.line() == "stays"
        program.send_signal(signal.SIGINT)
        ended = program.end()
    assert ended.code in (-signal.SIGINT, 130, 1)
    assert ended.err.rstrip().endswith("KeyboardInterrupt")
    assert console.status(project) is Status.OFFLINE


ENTERED = """
stack = contextlib.ExitStack()
thread = stack.enter_context(agent.in_thread())
"""
BUSY = "SyncConsole(url).send(project, 'sleep', create=True); started.wait(10); "
ENDED_BADLY = "the service was ended by ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("ending", "exit_code", "said", "last"),
    [
        ("", 0, Status.OFFLINE, []),
        ("1 / 0", 1, Status.FAULT, [ENDED_BADLY]),
        (BUSY + "1 / 0", 1, Status.FAULT, [ENDED_BADLY]),
    ],
    ids=["well", "badly", "badly while a handler runs"],
)
def test_a_block_that_is_never_left(
    redis_url: str,
    console: SyncConsole,
    project: str,
    ending: str,
    exit_code: int,
    said: Status,
    last: list[str],
) -> None:
    """The interpreter's exit closes it: log and status are written."""
    code = ENTERED + "thread.ready(10); agent.log.info('bye')\n" + ending
    ended = run_python("-c", BEGINNING + code, project, redis_url)
    assert ended.code == exit_code
    assert ("ZeroDivisionError" in ended.err) is bool(exit_code)
    assert console.status(project) is said
    newest = [one.message for one in console.logs(project) if one.outcome is None]
    assert newest[-1 - len(last) :] == ["bye", *last]


@pytest.mark.parametrize("command", ["sleep", "block"])
def test_exit_while_a_handler_runs(
    redis_url: str, console: SyncConsole, project: str, command: str
) -> None:
    """A handler holds the exit for two seconds at most, also one that blocks the loop."""
    code = (
        ENTERED
        + f"""
SyncConsole(url).send(project, {command!r}, create=True)
started.wait(10)
print("ends", flush=True)
"""
    )
    with Program("-c", BEGINNING + code, project, redis_url) as program:
        assert program.line() == "ends"
        began = time.perf_counter()
        assert program.end().code == 0
    assert time.perf_counter() - began < 9
    expected = Status.OFFLINE if command == "sleep" else Status.ONLINE
    assert console.status(project) is expected


def test_exit_while_redis_is_away(project: str) -> None:
    """The exit takes two seconds at most, and one warning stands on standard error."""
    code = ENTERED + "agent.log.info('waits'); print('ends', flush=True)"
    with Program("-c", BEGINNING + code, project, AWAY) as program:
        assert program.line() == "ends"
        began = time.perf_counter()
        ended = program.end()
    assert ended.code == 0
    assert ended.err.count("\n") == ended.err.count("is unavailable") == 1
    assert time.perf_counter() - began < 9


def test_exit_while_a_name_is_looked_up(project: str) -> None:
    """A resolver that hangs holds neither the end of the block nor the exit."""
    code = """
def hang(*_, **__):
    started.set()
    time.sleep(60)
socket.getaddrinfo = hang
agent = ProjectAgent(project, redis="redis://no-such-host.invalid:6379/0")
with agent.in_thread():
    started.wait()
    print("ends", flush=True)
"""
    with Program("-c", BEGINNING + code, project, AWAY) as program:
        assert program.line() == "ends"
        began = time.perf_counter()
        assert program.end() == (0, "", "")
    assert time.perf_counter() - began < 9


def test_a_host_that_uses_uvloop(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """The thread's loop is asyncio's own all the same, and works."""
    pytest.importorskip("uvloop")
    code = """
import uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

@agent.command
async def which():
    return type(asyncio.get_running_loop()).__mro__[1].__module__

with agent.in_thread(), SyncConsole(url) as console:
    print(console.call(project, "which").result)
"""
    ended = run_python("-c", BEGINNING + code, project, redis_url)
    assert ended == (0, "asyncio.unix_events\n", "")


def test_no_signal_handler_is_installed(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """Signals are the program's own affair."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with ProjectAgent(project, redis=redis_url).in_thread() as thread:
        thread.ready(5)
        assert {number: signal.getsignal(number) for number in before} == before


async def test_another_loop_may_await_the_agent(project: str, redis_url: str) -> None:
    """Where a loop runs already (Jupyter) the agent's own coroutines cross over."""
    agent = ProjectAgent(project, redis=redis_url)
    console = Console(redis_url)
    with agent.in_thread(), anyio.fail_after(10):
        await agent.ready(5.0)
        agent.log.info("from another loop")
        assert await agent.flush(5.0)
        assert [entry.message for entry in await console.logs(project)] == [
            "from another loop"
        ]
        with anyio.fail_after(1.0):  # less than the block of a parked read
            await agent.aclose()
        assert not agent.stats().open
        assert await console.status(project) is Status.OFFLINE
    await console.aclose()


async def test_waiting_across_loops_ends_when_the_agent_does(project: str) -> None:
    """Whoever waits for a first status is told when there will be none."""
    agent = ProjectAgent(project, redis="redis://127.0.0.1:1/0", shutdown_timeout=0.1)
    with agent.in_thread(), anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.aclose)
            with pytest.raises((RedisUnavailableError, ConfigurationError)):
                await agent.ready()


ENTERING = """
import signal, sys, threading, time
from bls_agent import ProjectAgent

url, project = sys.argv[1:]
main, interrupted = threading.main_thread().ident, 0
with ProjectAgent(project, redis=url).in_thread():
    pass  # imports are done: one that is interrupted is no matter of ours
for step in range(40):
    agent = ProjectAgent(project, redis=url)
    pressing = threading.Timer(step * 0.0001, signal.pthread_kill, (main, signal.SIGINT))
    try:
        pressing.start()
        with agent.in_thread():
            time.sleep(0.02)
        pressing.join()  # on a busy machine the signal comes as late as here
    except KeyboardInterrupt:
        interrupted += 1
    except RuntimeError as error:  # the signal came inside of a lock of threading itself
        if str(error) != "release unlocked lock":
            raise
deadline = time.monotonic() + 10
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print(interrupted, [thread.name for thread in threading.enumerate()])
"""


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_ctrl_c_while_entering_leaves_no_thread(
    redis_url: str, project: str, console: SyncConsole
) -> None:
    """At whatever moment of the start it comes, thread and agent are gone afterwards."""
    ended = run_python("-c", ENTERING, redis_url, project, timeout=40)
    interrupted, left = ended.out.split(" ", 1)
    assert int(interrupted) > 0
    assert left.strip() == "['MainThread']"
    assert console.status(project) in (Status.OFFLINE, Status.FAULT, None)
