"""The console for plain code: what the other one does, without an event loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bls_agent import (
    ConfigurationError,
    Console,
    LogEntry,
    NoOutcomeError,
    ProjectAgent,
    RedisUnavailableError,
    Status,
    SyncConsole,
    UnknownProjectError,
    WrongTypeError,
)
from tests.harness import until
from tests.programs import run_python

AWAY = "redis://127.0.0.1:1/0"
REQUESTS = [
    *("send", "call", "call_all", "instances", "intakes"),
    *("status", "projects", "exists", "logs", "log_page", "search_logs"),
    *("follow_logs", "queue", "withdraw", "withdraw_all", "forget"),
    *("in_hand", "dead_letters", "requeue", "discard"),
]


@pytest.fixture
def console(redis_url: str, project: str) -> Iterator[SyncConsole]:
    """A console; the project's keys are removed."""
    with SyncConsole(redis_url) as opened:
        yield opened
    with Redis.from_url(redis_url) as client:
        client.delete(*(f"{project}_{s}" for s in ("项目状态", "项目控制台", "控制")))


def console_threads() -> list[threading.Thread]:
    found = threading.enumerate()
    return [thread for thread in found if thread.name == "bls-agent console"]


def tasks_of(console: SyncConsole) -> set[asyncio.Task[object]]:
    """What runs behind a console now."""
    thread, _ = console._opened[os.getpid()]
    return asyncio.all_tasks(thread._loop)


def shape(function: Callable[..., object]) -> str:
    """A signature as text, without what tells a plain function from a coroutine's."""
    told = str(inspect.signature(function))
    for name in ("AsyncIterator[LogEntry]", "Generator[LogEntry, None, None]"):
        told = told.replace(name, "Iterator[LogEntry]")
    return told


@pytest.mark.parametrize("name", ["__init__", "__enter__", "__exit__", *REQUESTS])
def test_the_signatures_are_the_other_one_s(name: str) -> None:
    """Arguments, defaults and annotations are equal, to the letter."""
    theirs = name.replace("__e", "__ae")
    assert shape(getattr(SyncConsole, name)) == shape(getattr(Console, theirs))


def test_nothing_is_missing() -> None:
    """Whatever the other one learns has a synchronous face."""
    faces = {name for name, _ in inspect.getmembers(Console, inspect.isfunction)}
    faces = {name for name in faces if not name.startswith("_")}
    mine = {name for name in vars(SyncConsole) if not name.startswith("_")}
    assert faces == {*REQUESTS, "aclose"}
    assert mine == {*REQUESTS, "close"}


def test_every_request(redis_url: str, console: SyncConsole, project: str) -> None:
    """Each does what it says, with an agent at the other end."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    def add(a: int, b: int) -> int:
        agent.log.info("adds")
        return a + b

    with agent.in_thread() as thread:
        thread.ready(5)
        assert console.status(project) is Status.ONLINE
        assert console.projects()[project] is Status.ONLINE
        sent = console.send(project, "add", {"a": 1, "b": 1}, id="cmd-1")
        assert (sent.id, sent.args) == ("cmd-1", {"a": 1, "b": 1})
        assert console.call(project, "add", {"a": 1, "b": 2}, timeout=5).result == 3
        told = [entry.message for entry in console.logs(project, limit=2)]
        assert told == ["adds", "command 'add' succeeded"]
        assert console.exists(project)
    console.send(project, "add", id="cmd-2")
    assert [one.id for one in console.queue(project)] == ["cmd-2"]
    withdrawn = console.withdraw(project, "cmd-2")
    assert withdrawn is not None
    assert withdrawn.command == "add"
    assert f"{project}_项目状态" in console.forget(project)
    assert not console.exists(project)
    assert repr(console) == f"<SyncConsole {redis_url}>"


def test_errors_are_the_other_one_s(
    redis_url: str, console: SyncConsole, project: str
) -> None:
    """Wrong arguments, nobody there, a key of another type, no outcome."""
    with pytest.raises(ConfigurationError):
        SyncConsole("http://127.0.0.1")
    with pytest.raises(ConfigurationError):
        console.send(project, " ")
    every: Any = None
    with pytest.raises(ConfigurationError, match=r"^all: "):
        console.discard(project, all=every)
    with SyncConsole(AWAY) as away, pytest.raises(RedisUnavailableError):
        away.projects()
    with pytest.raises(UnknownProjectError):
        console.send(project, "ping")
    with pytest.raises(NoOutcomeError):
        console.call(project, "ping", timeout=0.05, create=True)
    with Redis.from_url(redis_url) as client:
        client.rpush(f"{project}_项目状态", "a list")
    with pytest.raises(WrongTypeError):
        console.status(project)


def test_following(redis_url: str, console: SyncConsole, project: str) -> None:
    """A plain iterator: what was there, what comes, and its end when it is closed."""
    agent = ProjectAgent(project, redis=redis_url)
    with agent.in_thread() as thread:
        agent.log.info("early")
        assert thread.flush()
        entries = console.follow_logs(project, last=5, interval=0.01)
        assert next(entries).message == "early"
        for number in range(3):
            agent.log.info(str(number))
        assert [next(entries).message for _ in range(3)] == ["0", "1", "2"]
        entries.close()
        assert list(entries) == []
        until(lambda: not tasks_of(console))
        assert not console._opened[os.getpid()][0]._loop._asyncgens  # type: ignore[attr-defined]


def test_closing_ends_what_waits(redis_url: str, project: str) -> None:
    """An iteration ends; a call says that it was closed; nothing is left."""
    console = SyncConsole(redis_url)
    followed: list[list[LogEntry]] = []
    raised: list[RedisUnavailableError] = []

    def follow() -> None:
        followed.append(list(console.follow_logs(project)))

    def call() -> None:
        with pytest.raises(RedisUnavailableError, match="closed") as caught:
            console.call(project, "ping", create=True)
        raised.append(caught.value)

    console.status(project)
    waiting = [threading.Thread(target=target) for target in (follow, call)]
    for thread in waiting:
        thread.start()
    until(lambda: len(tasks_of(console)) == 2)
    with SyncConsole(redis_url) as other:  # the command of call() was sent
        until(lambda: len(other.queue(project)) == 1)
    began = time.perf_counter()
    console.close()
    for thread in waiting:
        thread.join(5)
    assert time.perf_counter() - began < 3
    assert followed == [[]]
    assert raised[0].ambiguous
    assert console_threads() == []
    console.close()


def test_ctrl_c_gets_through(console: SyncConsole, project: str) -> None:
    """It ends a call at once, nothing of it goes on, and the next request works."""
    console.status(project)
    main = threading.main_thread().ident
    assert main is not None
    pressed: list[float] = []

    def press() -> None:
        until(lambda: tasks_of(console))
        pressed.append(time.perf_counter())
        signal.pthread_kill(main, signal.SIGINT)

    for interrupted in (
        lambda: console.call(project, "ping", timeout=20, create=True),
        lambda: list(console.follow_logs(project)),
    ):
        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert time.perf_counter() - pressed.pop() < 0.5
        pressing.join()
        until(lambda: not tasks_of(console))
        assert console.status(project) is None


def test_several_threads(redis_url: str, console: SyncConsole, project: str) -> None:
    """Eight threads that begin at once share one connection, and none is mixed up."""
    begin = threading.Barrier(8)
    mixed: list[str] = []

    def work(number: int) -> None:
        begin.wait()
        for n in range(20):
            if console.send(project, "x", id=f"{number}-{n}", create=True).id != (
                f"{number}-{n}"
            ):
                mixed.append(f"{number}-{n}")
            if console.status(f"{project}-{number}") is not None:
                mixed.append("status")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert mixed == []
    with Redis.from_url(redis_url) as client:
        assert client.llen(f"{project}_控制") == 160
    until(lambda: len(console_threads()) == 1)


async def test_it_refuses_to_block_a_loop(redis_url: str, project: str) -> None:
    """Where an event loop runs it says what to use instead; closing is allowed."""
    with SyncConsole(redis_url) as console:
        with pytest.raises(ConfigurationError, match="Use Console there"):
            console.status(project)
        with pytest.raises(ConfigurationError, match="event loop"):
            next(console.follow_logs(project))
        await asyncio.to_thread(console.status, project)


def test_closed_it_opens_again(redis_url: str, project: str) -> None:
    """50 times, and neither thread nor descriptor is left."""
    console = SyncConsole(redis_url)
    folder = Path("/proc/self/fd")

    def held() -> int:
        return len(list(folder.iterdir())) if folder.exists() else 0

    console.status(project)
    console.close()
    gc.collect()
    before = held()
    for _ in range(50):
        assert console.status(project) is None
        console.close()
    assert console_threads() == []
    until(lambda: held() <= before)


def test_collected_unclosed(redis_url: str, project: str) -> None:
    """That is a ResourceWarning, and its thread ends."""
    consoles = [SyncConsole(redis_url)]
    consoles[0].status(project)
    assert len(console_threads()) == 1
    with pytest.warns(ResourceWarning, match="unclosed <SyncConsole"):
        consoles.clear()
    until(lambda: console_threads() == [])


def test_never_used_needs_no_closing() -> None:
    """Without a request there is no thread, and nothing to warn of."""
    SyncConsole(AWAY)
    gc.collect()
    assert console_threads() == []


PROGRAM = """
import os, sys, time
from bls_agent import SyncConsole
console = SyncConsole(sys.argv[1])
print(console.status("无"), flush=True)
"""


def test_never_closed_it_does_not_hold_the_exit(redis_url: str) -> None:
    """A program that forgets it ends at once, in silence unless it asks for warnings."""
    began = time.perf_counter()
    code = PROGRAM + "entries = console.follow_logs('无')"
    assert run_python("-c", code, redis_url) == (0, "None\n", "")
    assert time.perf_counter() - began < 5
    ended = run_python("-X", "dev", "-c", PROGRAM, redis_url)
    assert ended.code == 0
    assert "unclosed <SyncConsole" in ended.err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_one_of_its_own(redis_url: str) -> None:
    """Both go on, each over its own connection."""
    code = """
pid = os.fork()
for _ in range(3):
    console.status("无")
if pid == 0:
    console.close()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), console.status("无"))
console.close()
"""
    ended = run_python("-W", "ignore", "-c", PROGRAM + code, redis_url)
    assert ended == (0, "None\n0 None\n", "")


def test_an_opened_console_says_where_it_is(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was told by the environment, at its first request."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    with SyncConsole() as console:
        assert repr(console) == "<SyncConsole BLS_REDIS_URL>"
        assert console.status(project) is None
        assert redis_url in repr(console)
