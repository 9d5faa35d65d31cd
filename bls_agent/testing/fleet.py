"""Runs the agents of a test on a real server, behind a proxy that causes faults."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from inspect import isawaitable
from typing import Any, Final, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

import anyio

from bls_agent.agent import ProjectAgent
from bls_agent.connection.access import Access
from bls_agent.connection.endpoint import Endpoint, Reply
from bls_agent.core.errors import ConfigurationError, RedisUnavailableError
from bls_agent.core.keys import PROJECT_STATUS
from bls_agent.core.redaction import mask_url
from bls_agent.devserver import DevServer
from bls_agent.project.messages import Status
from bls_agent.runtime.loop_thread import LoopThread
from bls_agent.testing.link import (
    Condition,
    CutAfter,
    Delay,
    FaultProxy,
    Hold,
    Rate,
    Refuse,
)
from bls_agent.testing.recording import Recording
from bls_agent.testing.running_agent import RunningAgent

P = ParamSpec("P")
T = TypeVar("T")

USER: Final = "bls-test"  # the Redis user of the agents on a server of the plugin
TINY: Final = "1"  # bytes of memory; less than any server uses


class FleetServer:
    """A real server and a proxy in front of it, for all tests of one process.

    The proxy runs in a thread with an event loop of its own, because a handler that
    blocks the event loop of a test must not block the proxy. Each method waits for that
    thread, which takes about a millisecond.
    """

    def __init__(self, server_url: str, *, is_ours: bool) -> None:
        self.server_url = server_url
        self.is_ours = is_ours  # whether the server was started for the tests
        self._password = secrets.token_hex(8)
        login = f"://{USER}:{self._password}@" if is_ours else "://"
        self.proxy: FaultProxy = FaultProxy(server_url.replace("://", login, 1))
        self._access = Access(server_url, "bls-testing")
        self._thread = LoopThread("bls-agent testing")

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self.proxy.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        for close in (self.proxy.__aexit__, self._access.aclose):
            self.call(close)
        self._thread.stop()
        self._thread.join(1.0)

    def call(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a coroutine function in the thread of the proxy."""
        return self._thread.call(function, *args, **kwargs)

    def ask(self, *request: str) -> Reply:
        """Send a request directly to the server, not through the proxy."""

        async def ask() -> Reply:
            async with self._access.pool.to("") as connection:
                return await connection.call(*request)

        return self.call(ask)

    def status(self, project: str) -> Status | None:
        value = self.ask("GET", PROJECT_STATUS.locate(project=project))
        return None if value is None else Status.decode(value)

    def clear(self) -> None:
        """End every fault and delete all data, before a test.

        There are two cases:

        1. The plugin has started the server: all its databases are emptied.
        2. ``BLS_REDIS_URL`` has chosen the server: its database has to be empty, because
           somebody may need the data. :meth:`empty` deletes the data of the test.
        """
        self.proxy.examine = None
        self.call(self.proxy.heal)
        if self.is_ours:
            login = ("reset", "on", f">{self._password}", "~*", "&*", "+@all")
            self.ask("ACL", "SETUSER", USER, *login)
            self.ask("CONFIG", "SET", "maxmemory", "0")
            self.ask("FLUSHALL")
        elif self.ask("DBSIZE"):
            rule = (
                "its database has to be empty, because each test deletes all its keys"
            )
            remedy = "Unset the variable to test on a server that the fixture starts."
            raise self.refusal(rule, remedy)

    def empty(self) -> None:
        """Delete the data of a test on a server that the plugin has not started."""
        if not self.is_ours:
            self.ask("FLUSHDB")

    def refusal(self, rule: str, remedy: str) -> ConfigurationError:
        url = mask_url(self.server_url)
        return ConfigurationError("BLS_REDIS_URL", url, rule, remedy)


@contextmanager
def open_server(environ: Mapping[str, str]) -> Generator[FleetServer]:
    """Yield the server for the tests of this process.

    There are two cases:

    1. ``BLS_REDIS_URL`` is set: that server is used. The worker ``gwN`` of pytest-xdist
       adds N to the number of the database, because each test deletes all data of its
       database.
    2. ``BLS_REDIS_URL`` is not set: each process starts a server.
    """
    if url := environ.get("BLS_REDIS_URL"):
        parts = urlsplit(url)
        worker = environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        database = parts.path.strip("/") or "0"
        if database.isdecimal() and worker.isdecimal():
            path = f"/{int(database) + int(worker)}"
            url = urlunsplit(parts._replace(path=path))
        with FleetServer(url, is_ours=False) as server:
            yield server
    else:
        with DevServer() as own, FleetServer(own.url, is_ours=True) as server:
            yield server


REMEDY: Final = """
Look at an outcome with `await running.call(…)` or `running.assert_outcome(…)`, and at the
counters with `running.stats()`. `@pytest.mark.bls(allow_failed=True)` ends this check."""


@contextmanager
def open_fleet(server: FleetServer, *, allow_failed: bool) -> Generator[AgentFleet]:
    """Yield the fleet of one test.

    Raises:
        AssertionError: There is a problem that the test has not checked.
    """
    server.clear()
    before = os.environ.get("BLS_REDIS_URL")
    os.environ["BLS_REDIS_URL"] = server.proxy.url
    fleet = AgentFleet(server)
    try:
        yield fleet
    finally:
        if before is None:
            del os.environ["BLS_REDIS_URL"]
        else:
            os.environ["BLS_REDIS_URL"] = before
        server.empty()
    found = [] if allow_failed else fleet.findings()
    if found:
        text = "\n".join(["the test has not looked at:", *found])
        raise AssertionError(text + REMEDY)


class AgentFleet:
    """Runs agents on a real server, and causes faults, for the fixture ``bls_fleet``.

    Each test begins without data. During the test, ``BLS_REDIS_URL`` is :attr:`url`, so
    that stores without a URL and programs that the test starts use the server, too. Each
    fault lasts as long as its ``async with`` block.

    Attributes:
        url: The URL of the proxy in front of the server. Faults of the connection occur
            here.
        server_url: The URL of the server itself, without faults of the connection.
    """

    def __init__(self, server: FleetServer) -> None:
        self._server = server
        self._recordings: list[Recording] = []
        self._denied: list[list[str]] = []  # the rights of each deny() that is on
        self._full = 0  # number of full() that are on
        self.url: str = server.proxy.url
        self.server_url: str = server.server_url

    @asynccontextmanager
    async def run(
        self,
        agent: ProjectAgent,
        *,
        within: float = 10.0,
        lifespan: AbstractAsyncContextManager[object] | None = None,
    ) -> AsyncGenerator[RunningAgent]:
        """Open an agent on the server, wait until it is ready, and close it at the end.

        The agent's own URL and the status that its program has set are restored after
        the block. Log records that the agent could not write are dropped.

        Args:
            agent: A closed agent. Its own URL is not used.
            within: Seconds to wait until the agent has written its status.
            lifespan: An asynchronous context manager that opens the agent, such as
                ``app.router.lifespan_context(app)``. Default: the agent itself.

        Raises:
            RedisUnavailableError: The agent is not ready in time.
        """
        recording = Recording(agent)
        self._recordings.append(recording)
        with recording.on(Endpoint.of(self.url)):
            async with agent if lifespan is None else lifespan:
                await agent.ready(within)
                async with RunningAgent(
                    agent,
                    recording,
                    self._recordings,
                    self.server_url,
                    self._server.status,
                ) as running:
                    yield running

    def status(self, project: str) -> Status | None:
        """Read a project's status from the server, even during a fault."""
        return self._server.status(project)

    def findings(self) -> list[str]:
        """Describe unchecked problems. :class:`RunningAgent` lists what is checked."""
        return [text for one in self._recordings for text in one.findings()]

    @asynccontextmanager
    async def during(
        self, *conditions: Condition, breaks: bool = False
    ) -> AsyncGenerator[None]:
        """Keep conditions such as ``Hold()`` on until the block ends.

        Args:
            conditions: Objects of the classes in :mod:`bls_agent.testing`.
            breaks: Whether the open connections are reset at the beginning.
        """
        proxy = self._server.proxy

        async def start() -> None:
            for condition in conditions:
                proxy.start(condition)
            if breaks:
                proxy.break_all(reset=True)

        self._server.call(start)
        try:
            yield
        finally:
            self._server.call(proxy.end, *conditions)

    @asynccontextmanager
    async def redis_away(
        self, seconds: float = 0.0, *, silent: bool = False
    ) -> AsyncGenerator[None]:
        """Disconnect the agents from Redis until the block ends.

        Args:
            seconds: Least duration of the outage. The end of the block waits for it.
            silent: Whether connections stay open and bytes arrive after the outage, as
                behind a broken router. By default, connections are reset, and new
                connections are refused.
        """
        until = anyio.current_time() + seconds
        condition = Hold() if silent else Refuse()
        async with self.during(condition, breaks=not silent):
            yield
            await anyio.sleep_until(until)

    @asynccontextmanager
    async def slow(
        self, seconds: float = 0.0, *, bytes_per_second: float | None = None
    ) -> AsyncGenerator[None]:
        """Delay all bytes, or limit the rate of each connection.

        Args:
            seconds: Delay in each direction.
            bytes_per_second: Rate in each direction.
        """
        rate = [] if bytes_per_second is None else [Rate(bytes_per_second)]
        async with self.during(Delay(seconds), *rate):
            yield

    @asynccontextmanager
    async def cut(self, after_bytes: int) -> AsyncGenerator[None]:
        """Break one connection while the server is sending to it.

        Args:
            after_bytes: Number of bytes from the server before the break. The bytes of
                all connections are counted from the beginning of the block, without
                those in an inner block of ``cut``.

        Raises:
            AssertionError: The server has sent fewer bytes during the block.
        """
        proxy, cut = self._server.proxy, CutAfter(after_bytes)
        outer, proxy.examine = proxy.examine, cut
        try:
            yield
        finally:
            proxy.examine = outer
        if not cut.fired:
            text = f"the server sent only {after_bytes - cut.left} bytes in the block"
            message = f"cut(after_bytes={after_bytes}): no connection was cut; {text}"
            raise AssertionError(message)

    @asynccontextmanager
    async def full(self) -> AsyncGenerator[None]:
        """Make the server refuse writes, like a server that is out of memory.

        Raises:
            ConfigurationError: The server was chosen by ``BLS_REDIS_URL``.
        """
        self._require_own("full")
        self._full += 1
        self._server.ask("CONFIG", "SET", "maxmemory", TINY)
        try:
            yield
        finally:
            self._full -= 1
            if not self._full:
                self._server.ask("CONFIG", "SET", "maxmemory", "0")

    @asynccontextmanager
    async def deny(self, *rights: str) -> AsyncGenerator[None]:
        """Remove permissions from the agents, and break their connections once.

        Args:
            rights: Commands (``"blpop"``) or categories (``"@scripting"``) of Redis.

        Raises:
            ConfigurationError: A right is unknown, or the server was chosen by
                ``BLS_REDIS_URL``.
        """
        self._require_own("deny")
        names = [right.lower() for right in rights]
        try:
            self._server.ask("ACL", "SETUSER", USER, *(f"-{name}" for name in names))
        except RedisUnavailableError as error:
            rule = f"commands or categories of Redis ({error.reason})"
            raise ConfigurationError("rights", rights, rule) from None
        self._denied.append(names)
        async with self.during(breaks=True):
            try:
                yield
            finally:
                self._denied.remove(names)
                left = [f"-{name}" for denied in self._denied for name in denied]
                self._server.ask("ACL", "SETUSER", USER, "+@all", *left)

    async def kill(self, process: Any) -> None:
        """End a process by SIGKILL, and wait until it has ended.

        Args:
            process: A process of ``subprocess``, ``asyncio``, anyio or
                ``multiprocessing``.
        """
        process.kill()
        ended = process.wait() if hasattr(process, "wait") else process.join()
        if isawaitable(ended):
            await ended

    def _require_own(self, fault: str) -> None:
        if not self._server.is_ours:
            rule = f"{fault}() changes a whole server, so that it needs one of its own"
            remedy = "Unset BLS_REDIS_URL and install the extra 'server'."
            raise self._server.refusal(rule, remedy)
