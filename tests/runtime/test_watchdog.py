"""An event loop that stands still: 故障 while it does, never missing, never 离线."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import Any

import anyio
import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from bls_agent import ConfigurationError, ProjectAgent, Status
from bls_agent.connection.agent_connections import AgentConnections
from bls_agent.devserver import DevServer
from bls_agent.project.status.writer import StallStatusPublisher
from bls_agent.runtime import watchdog
from bls_agent.runtime.watchdog import LONGEST_PLACE, _read_stack, find_own_place
from tests.harness import (
    eventually,
    execute,
    is_gone,
    records,
    sampled,
    status_of,
    until,
    url_with_rights,
)
from tests.programs import Program, run_python


def spin(seconds: float) -> None:
    """Keep a CPU busy, and the GIL with it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def make_agent(project: str, url: str, **options: Any) -> ProjectAgent:
    """An agent whose stalls are noticed soon and whose status expires soon."""
    short = {"stall_after": 0.3, "status_ttl": 1, "status_interval": 0.2}
    return ProjectAgent(project, redis=url, **{**short, **options})


@pytest.mark.parametrize("stand_still", [time.sleep, spin], ids=["sleep", "spin"])
async def test_a_stalled_loop_is_a_fault_while_it_lasts(
    redis_url: str,
    redis: Redis,
    project: str,
    stand_still: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Beyond the TTL of what it writes itself; said once, with the place and the length."""
    agent = make_agent(project, redis_url)

    @agent.command
    async def hang() -> None:
        stand_still(1.7)

    async with agent:
        await agent.ready(5)
        with sampled(redis_url, f"{project}_项目状态") as seen:
            await eventually(lambda: seen == ["在线"])
            await redis.rpush(f"{project}_控制", '{"command": "hang"}')
            await eventually(lambda: agent.stats().outcomes != {}, 12)
            await eventually(lambda: seen[-1] == "在线", 2)
            assert seen == ["在线", "故障", "在线"]
        stats = agent.stats()
        assert stats.loop_stalls == 1
        assert 1.1 < stats.loop_stalled_seconds < 3.7
        assert "event loop" not in stats.status_sources
        assert await agent.flush(5)
    assert await status_of(redis, project) == "离线"
    told = [r for r in await records(redis, project) if "stood still" in r["message"]]
    assert [r["level"] for r in told] == ["error"]
    assert told[0]["metadata"]["durationMs"] > 1_100
    assert told[0]["metadata"]["statusReason"] == ""
    (why,) = [
        r for r in await records(redis, project) if "stands still" in r["message"]
    ]
    assert why["level"] == "error"
    place = why["message"].removeprefix("the event loop stands still in ")
    first, *others = place.split(", called by ")
    assert re.fullmatch(r"\S+test_watchdog\.py:\d+ (spin|hang)", first)
    assert any(one.endswith(" hang") for one in (first, *others))
    assert not any("bls_agent/" in one for one in others)
    assert why["metadata"] == {"statusReason": why["message"]}
    assert told[0]["metadata"]["place"] == place
    assert why["timestamp"] < told[0]["timestamp"]
    said = [r.getMessage() for r in caplog.records if "has not moved" in r.getMessage()]
    assert len(said) == 1
    assert "test_watchdog.py" in said[0]


async def test_a_short_stall_is_none(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Below stall_after nothing is said, also where the status has to be kept alive."""
    agent = make_agent(project, redis_url, stall_after=10)
    async with agent:
        await agent.ready(5)
        with sampled(redis_url, f"{project}_项目状态") as seen:
            await eventually(lambda: seen == ["在线"])
            time.sleep(1.6)
            await anyio.sleep(0.3)
            assert seen == ["在线"]
        assert agent.stats().loop_stalls == 0
    assert await status_of(redis, project) == "离线"
    assert not [r for r in await records(redis, project) if r["level"] == "error"]


async def test_switched_off(redis_url: str, redis: Redis, project: str) -> None:
    """With stall_after=None there is no thread, and the status vanishes in a stall."""

    def has_thread() -> bool:
        return "bls-agent watchdog" in {t.name for t in threading.enumerate()}

    await eventually(lambda: not has_thread())  # another test's may be about to end
    async with make_agent(project, redis_url, stall_after=None) as agent:
        await agent.ready(5)
        assert not has_thread()
        with sampled(redis_url, f"{project}_项目状态") as seen:
            time.sleep(1.5)
        assert "nothing" in seen
        await eventually(lambda: _shows(redis, project, "在线"))


async def _shows(redis: Redis, project: str, status: str) -> bool:
    return await status_of(redis, project) == status


async def test_the_worst_still_wins_and_the_host_is_heard_afterwards(
    redis_url: str, redis: Redis, project: str
) -> None:
    """What the host says during a stall, from a thread, shows when the loop moves."""
    async with make_agent(project, redis_url) as agent:
        await agent.ready(5)
        saying = threading.Timer(1.0, agent.set_status, [Status.ERROR])
        saying.start()
        with sampled(redis_url, f"{project}_项目状态") as seen:
            await eventually(lambda: seen == ["在线"])
            time.sleep(1.5)
            await eventually(lambda: seen[-1] == "报错", 2)
            assert seen == ["在线", "故障", "报错"]


async def test_many_agents_share_one_thread(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Twenty agents in one loop: one thread; one connection more for each in a stall."""
    names = [f"{project}_{number}" for number in range(20)]
    agents = [make_agent(name, redis_url, status_ttl=2) for name in names]
    counted: list[int] = []

    def count() -> None:
        with BlockingRedis.from_url(redis_url, protocol=2) as client:
            for _ in range(8):
                time.sleep(0.1)
                found = [c for c in client.client_list() if ":watchdog:" in c["name"]]
                counted.append(len(found))

    async with anyio.create_task_group() as tasks:
        for agent in agents:
            await agent.__aenter__()
            await agent.ready(5)
        threads = [t for t in threading.enumerate() if t.name == "bls-agent watchdog"]
        assert len(threads) == 1
        counter = threading.Thread(target=count)
        counter.start()
        time.sleep(1.0)
        for name in names:
            tasks.start_soon(eventually, lambda name=name: _shows(redis, name, "在线"))
    counter.join()
    assert 1 <= max(counted) <= len(agents)
    await eventually(lambda: _count_watchdogs(redis, 0))
    for agent in agents:
        assert agent.stats().loop_stalls == 1
        await agent.aclose()
    await eventually(lambda: not threads[0].is_alive(), 2)
    await redis.delete(*(f"{n}_{k}" for n in names for k in ("项目状态", "项目控制台")))


async def test_the_longest_stall_is_told(redis_url: str, project: str) -> None:
    """A shorter stall after a long one does not replace it."""
    async with make_agent(project, redis_url) as agent:
        await agent.ready(5)
        assert agent._session is not None
        watch = agent._session.watch
        assert watch is not None

        def is_over(stalls: int) -> bool:
            return agent.stats().loop_stalls == stalls and not watch.publishing

        for stalls, seconds in ((1, 1.2), (2, 0.6)):
            time.sleep(seconds)
            await eventually(partial(is_over, stalls))
        assert agent.stats().loop_stalled_seconds > 1.0


async def test_a_failed_write_in_a_stall_is_soon_tried_again(
    own_server: DevServer, project: str
) -> None:
    """Also if the status is written only every 20 s."""
    slow = {"status_ttl": 60, "status_interval": 20, "redis_timeout": 0.3}
    key = f"{project}_项目状态"
    async with make_agent(project, own_server.url, **slow) as agent:
        await agent.ready(5)
        own_server.freeze()
        threading.Timer(1.5, own_server.thaw).start()
        with BlockingRedis.from_url(own_server.url, protocol=2) as client:
            until(lambda: client.get(key) == "故障".encode())  # the loop stands still


async def _count_watchdogs(redis: Redis, expected: int) -> bool:
    found = [c for c in await redis.client_list() if ":watchdog:" in c["name"]]
    return len(found) == expected


class Holding:
    """Stands before Redis and holds back what the first watchdog's connection writes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}/0"
        self.holds = threading.Event()
        self.released = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Any, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets.append(server)
                self._start(self._copy, client, server)
                self._start(self._copy, server, client)

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if "故障".encode() in data and not self.holds.is_set():
                    self.holds.set()
                    self.released.wait(20)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take nobody any more, and let go of what is held."""
        self.released.set()
        _close(self._listening)
        self._threads[0].join()  # no socket comes behind those that are closed here
        for opened in self._sockets:
            _close(opened)
        for thread in self._threads:
            thread.join()


def _close(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
    opened.close()


async def test_a_late_word_is_killed_before_it_can_lie(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """A 故障 that the network holds back until the loop has written 在线 never lands."""
    network = Holding(own_server.port)
    agent = make_agent(project, network.url, status_ttl=60, status_interval=20)
    try:
        async with agent:
            await agent.ready(5)
            time.sleep(0.8)
            assert network.holds.is_set()
            assert agent.stats().status_source == "event loop"
            await eventually(lambda: agent.stats().status_source == "host")
            await eventually(lambda: _shows(admin, project, "在线"))
            network.released.set()
            until = anyio.current_time() + 0.5
            while anyio.current_time() < until:
                assert await status_of(admin, project) == "在线"
                await anyio.sleep(0.01)
    finally:
        network.close()


async def test_no_word_of_the_loop_counts_while_one_is_in_flight(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Until the connection is killed the board says 故障: nothing flickers."""
    network = Holding(own_server.port)
    agent = make_agent(project, network.url, status_ttl=60, status_interval=20)
    try:
        async with agent:
            await agent.ready(5)
            time.sleep(0.8)
            own_server.freeze()  # the kill waits for its answer
            agent.set_status(Status.ERROR)
            await anyio.sleep(0.3)
            assert agent.stats().status_source == "event loop"
            own_server.thaw()
            await eventually(lambda: agent.stats().status_source == "host")
            await eventually(lambda: _shows(admin, project, "报错"))
    finally:
        network.close()


async def test_redis_frozen_through_stall_and_stop(
    own_server: DevServer, project: str
) -> None:
    """The stop stays within shutdown_timeout + 2 s, and the thread ends by itself."""
    agent = make_agent(project, own_server.url, redis_timeout=0.5, shutdown_timeout=0.5)
    async with agent:
        await agent.ready(5)
        own_server.freeze()
        time.sleep(0.8)
        began = time.monotonic()
    assert time.monotonic() - began < 4.5
    own_server.thaw()
    await eventually(_has_no_watchdog)


def _has_no_watchdog() -> bool:
    return "bls-agent watchdog" not in {t.name for t in threading.enumerate()}


async def test_the_log_may_be_what_the_loop_waits_for(
    redis_url: str, redis: Redis, project: str
) -> None:
    """A handler of the host's log that holds its lock does not hold the thread."""

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "stand still":
                time.sleep(2.0)

    handler = Stuck()
    logging.getLogger().addHandler(handler)
    try:
        async with make_agent(project, redis_url) as agent:
            await agent.ready(5)
            with sampled(redis_url, f"{project}_项目状态") as seen:
                await eventually(lambda: seen == ["在线"])
                logging.getLogger().error("stand still")
                await eventually(lambda: seen[-1] == "在线" and len(seen) > 1, 2)
                assert seen == ["在线", "故障", "在线"]
    finally:
        logging.getLogger().removeHandler(handler)


async def test_out_of_memory_in_a_stall(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """What cannot be written as 故障 is not kept alive as 在线."""
    async with make_agent(project, own_server.url) as agent:
        await agent.ready(5)
        await admin.config_set("maxmemory", "1")
        time.sleep(1.5)
        assert await status_of(admin, project) is None
        await admin.config_set("maxmemory", "0")
        await eventually(lambda: _shows(admin, project, "在线"), 5)


async def test_out_of_memory_after_a_stall(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Nor is 故障 kept alive when the loop runs again."""
    key = f"{project}_项目状态"
    with BlockingRedis.from_url(own_server.url, protocol=2) as client:
        async with make_agent(project, own_server.url) as agent:
            await agent.ready(5)
            until(lambda: client.get(key) == "故障".encode())  # the loop stands still
            client.config_set("maxmemory", "1")
            await eventually(lambda: is_gone(admin, key), 5)
            client.config_set("maxmemory", "0")


async def test_another_type_is_left_alone_in_a_stall(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Nor does the thread overwrite a key of another type."""
    key = f"{project}_项目状态"
    async with make_agent(project, redis_url) as agent:
        await agent.ready(5)
        await redis.rpush(f"{project}_控制台", "somebody's data")
        await redis.rename(f"{project}_控制台", key)
        time.sleep(1.0)
        assert await redis.lrange(key, 0, -1) == [b"somebody's data"]


SUSPENDED = """
import asyncio, os, sys
from bls_agent import ProjectAgent
async def main():
    agent = ProjectAgent(sys.argv[1], redis=sys.argv[2], stall_after=0.5,
                         status_ttl=2, status_interval=0.2)
    async with agent:
        await agent.ready(10)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(agent.stats().loop_stalls, flush=True)
asyncio.run(main())
"""


async def test_a_suspended_process_has_no_stall(redis_url: str, project: str) -> None:
    """SIGSTOP and SIGCONT: loop and thread have stood still together."""
    with Program("-c", SUSPENDED, project, redis_url) as program:
        assert program.line() == "ready"
        for _ in range(2):
            program.send_signal(signal.SIGSTOP)
            await anyio.sleep(0.8)  # longer than stall_after
            program.send_signal(signal.SIGCONT)
            await anyio.sleep(0.1)
        program.send()
        assert program.line() == "0"


EXITS = """
import asyncio, sys, threading, time
from bls_agent import ProjectAgent
agent = ProjectAgent(sys.argv[1], redis=sys.argv[2], stall_after=0.2,
                     status_ttl=2, status_interval=0.2)
@agent.command
async def hang():
    time.sleep(60)
async def push():
    from bls_agent import Console
    async with Console(sys.argv[2]) as console:
        await console.send(sys.argv[1], "hang", create=True)
agent.in_thread().__enter__().ready(10)
asyncio.run(push())
until = time.monotonic() + 10
while not agent.stats().loop_stalls and time.monotonic() < until:
    time.sleep(0.01)
print(agent.stats().loop_stalls, flush=True)
"""


@pytest.mark.filterwarnings("ignore")
def test_an_exit_in_the_middle_of_a_stall(redis_url: str, project: str) -> None:
    """The interpreter ends soon, and says nothing but what the agent itself says."""
    began = time.monotonic()
    ended = run_python("-c", EXITS, project, redis_url)
    assert (ended.code, ended.out) == (0, "1\n")
    assert "Traceback" not in ended.err
    assert "Fatal" not in ended.err
    assert time.monotonic() - began < 15


FORKS = """
import asyncio, json, os, sys, threading, time
from bls_agent.runtime import watchdog
from bls_agent import ProjectAgent, SyncConsole
from tests.programs import sockets_to
def make(name):
    return ProjectAgent(name, redis=sys.argv[2], stall_after=0.2, status_ttl=2,
                        status_interval=0.2)
agent = make(sys.argv[1])
own = make(sys.argv[1] + "_child")
def child():
    facts = {"threads": [t.name for t in threading.enumerate()],
             "sockets": sockets_to(sys.argv[2]), "beats": len(watchdog._WATCHDOG._watches),
             "stalls": agent.stats().loop_stalls}
    @own.command
    async def hang():
        time.sleep(0.8)
    with own.in_thread() as thread, SyncConsole(sys.argv[2]) as console:
        thread.ready(10)
        console.call(own.project, "hang")
        facts["own"] = own.stats().loop_stalls
    print(json.dumps(facts), flush=True)
async def main():
    async with agent:
        await agent.ready(10)
        agent.log.info("settled")  # a child could not know a socket that just connects
        while not all(agent.stats().connections.values()):
            await asyncio.sleep(0.002)
        assert await agent.flush(10)
        until = time.monotonic() + 0.7
        while time.monotonic() < until:  # the stall
            time.sleep(0.01)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child()
                code = 0
            finally:
                os._exit(code)
        ended = os.waitpid(pid, 0)[1]
        await asyncio.sleep(0.3)
        print(json.dumps({"child": ended, "stalls": agent.stats().loop_stalls,
                          "status": agent.status}), flush=True)
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_fork_in_the_middle_of_a_stall(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The child has no thread, no beat and no connection of its parent's."""
    ended = run_python("-W", "ignore", "-c", FORKS, project, redis_url)
    assert ended.code == 0
    child, parent = map(json.loads, ended.out.splitlines())
    assert child["threads"] == ["MainThread"]
    assert child["sockets"] == []
    assert child["beats"] == 0
    assert child["stalls"] == 0
    assert child["own"] == 1
    assert parent == {"child": 0, "stalls": 1, "status": "在线"}
    assert await status_of(redis, project) == "离线"
    await redis.delete(f"{project}_child_项目状态", f"{project}_child_项目控制台")


async def test_a_fault_of_ours_harms_nobody_else(
    redis_url: str, redis: Redis, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A watch that fails is logged once and ends; the others go on."""

    class Broken(StallStatusPublisher):
        async def publish(self, connections: AgentConnections) -> None:
            raise RuntimeError(connections)

    async with (
        make_agent(project, redis_url) as agent,
        make_agent(f"{project}_坏", redis_url) as other,
    ):
        await agent.ready(5)
        await other.ready(5)
        assert other._session is not None
        assert other._session.watch is not None
        broken = other._session.watch.listener
        broken.__class__ = Broken
        for _ in range(2):
            time.sleep(0.8)
            await eventually(lambda: _shows(redis, project, "在线"))
        assert agent.stats().loop_stalls == 2
        said = [r for r in caplog.records if "status of a stalled" in r.getMessage()]
        assert len(said) == 1
    assert await status_of(redis, f"{project}_坏") == "离线"
    await redis.delete(f"{project}_坏_项目状态", f"{project}_坏_项目控制台")


def refuse_to_start(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Let one start of each named thread fail, as at the limit of threads."""
    refused = list(names)
    start = threading.Thread.start

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    return refused


def _has_seen(seen: list[str], statuses: list[str]) -> bool:
    return seen == statuses


async def test_a_thread_that_does_not_start_is_started_at_the_next_check(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many threads for a moment do not end the detection of stalls."""
    async with make_agent(project, redis_url) as agent:
        await agent.ready(5)
        refused = refuse_to_start(
            monkeypatch, "bls-agent stalled loop", "bls-agent stall"
        )
        with sampled(redis_url, f"{project}_项目状态") as seen:
            await eventually(lambda: seen == ["在线"])
            for stalls in (1, 2):
                time.sleep(1)
                await eventually(
                    partial(_has_seen, seen, [*["在线", "故障"] * stalls, "在线"])
                )
        assert refused == []
        assert agent.stats().loop_stalls == 2


async def test_a_watchdog_that_does_not_start_is_started_by_the_next_agent(
    redis_url: str,
    project: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first agent works meanwhile; afterwards its stalls are noticed, too."""
    await eventually(_has_no_watchdog)
    refused = refuse_to_start(monkeypatch, "bls-agent watchdog")
    async with make_agent(project, redis_url) as agent:
        await agent.ready(5)
        assert refused == []
        assert "stalls of event loops are not detected" in caplog.text
        async with make_agent(f"{project}_2", redis_url) as other:
            await other.ready(5)
            time.sleep(0.8)
            await eventually(lambda: agent.stats().loop_stalls == 1)
            await eventually(lambda: other.stats().loop_stalls == 1)


async def test_a_name_server_that_hangs_does_not_outlast_the_stall(
    own_server: DevServer, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next stall is published, because no thread waits for the name server."""
    agent = make_agent(project, f"redis://localhost:{own_server.port}/0")
    released, resolve = threading.Event(), socket.getaddrinfo

    def hang(*arguments: Any, **options: Any) -> Any:
        hangs.set()
        released.wait(20)
        return resolve(*arguments, **options)

    hangs = threading.Event()
    async with agent:
        await agent.ready(5)
        assert agent._session is not None
        watch = agent._session.watch
        assert watch is not None
        monkeypatch.setattr(socket, "getaddrinfo", hang)
        try:
            time.sleep(0.8)
            assert hangs.is_set()
            assert watch.publishing
            await eventually(lambda: not watch.publishing, 2)
        finally:
            released.set()


def test_wrong_values_are_refused() -> None:
    """Too short a time would be a false alarm at every turn."""
    with pytest.raises(ConfigurationError, match="stall_after"):
        ProjectAgent("订单系统", stall_after=0.01)


async def test_without_the_right_to_kill(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Rights that are missing do not hold the thread."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-client")
    async with make_agent(project, url, mode="compat") as agent:
        await agent.ready(5)
        with sampled(own_server.url, f"{project}_项目状态") as seen:
            await eventually(lambda: seen == ["在线"])
            time.sleep(1.2)
            await eventually(lambda: seen == ["在线", "故障", "在线"])
    assert await status_of(admin, project) == "离线"
    assert await execute(admin, "PING")


@pytest.mark.parametrize("is_on", [True, False])
def test_no_garbage_is_collected_while_frames_are_read(
    monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    """A collection in there has blocked every thread of a program, on CPython 3.11."""
    seen: list[bool] = []
    read = sys._current_frames

    def look() -> dict[int, Any]:
        seen.append(gc.isenabled())
        return read()

    monkeypatch.setattr(sys, "_current_frames", look)
    (gc.enable if is_on else gc.disable)()
    try:
        stack = _read_stack(threading.get_ident())
        assert (seen, gc.isenabled()) == ([False], is_on)
    finally:
        gc.enable()
    assert any("test_no_garbage_is_collected" in place for _, place in stack)


def test_the_place_is_the_programs_own() -> None:
    """Innermost lines of the program; of packages or Python only without any; bounded."""
    standard, ours = json.__file__, watchdog.__file__
    requests = "/venv/lib/site-packages/requests/api.py"
    files = [standard, requests, "/应用/订单.py", ours, "/应用/主.py", "<frozen runpy>"]
    stack = [(file, f"{file}:7 f") for file in files]
    assert find_own_place(stack) == "/应用/订单.py:7 f, called by /应用/主.py:7 f"
    assert find_own_place([stack[0], stack[1]]) == f"{requests}:7 f"
    beside = f"{ours.rpartition('/runtime/')[0]}_worker/app.py"
    assert find_own_place([stack[3], (beside, beside)]) == beside
    both = [stack[0], stack[3]]
    assert find_own_place(both) == f"{standard}:7 f, called by {ours}:7 f"
    long = [(f"/{'深' * 300}.py", f"/{'深' * 300}.py:7 f")] * 9
    assert len(find_own_place(long).encode()) <= LONGEST_PLACE
    assert find_own_place([]) == "nowhere: its thread has ended"
