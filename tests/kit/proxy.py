"""A proxy on loopback between a client and a real Redis, with a bad link to order."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator, Container
from contextlib import asynccontextmanager, suppress
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit

from tests.kit.link import Fired, Link, Weather
from tests.kit.resp import Direction
from tests.kit.rules import Armed, Condition, Refuse, Rule, RuleBook

C = TypeVar("C", bound=Condition)

LOOPBACK: Final = "127.0.0.1"


class FaultProxy:
    """Stands between clients and a Redis, and does to their bytes what it is told.

    An asynchronous context manager::

        async with FaultProxy(server.url, seed=7) as proxy:
            async with ProjectAgent("订单系统", redis=proxy.url):
                async with proxy.during(Delay(0.5)):
                    ...
                proxy.arm(Cut(command="BLPOP", at=3))

    Use it from the event loop in which it was opened. It understands requests and
    replies (RESP2 and RESP3), so that a rule can wait for those of one command.

    Args:
        target: The server's URL (``redis://host:port/0``), not under TLS, which would
            show no requests.
        seed: For everything that is left to chance; made up if not given. Print
            :attr:`seed` where a test fails, to run it again.
    """

    def __init__(self, target: str, *, seed: int | None = None) -> None:
        self.seed = secrets.randbits(32) if seed is None else seed
        self._host, self._server_port, self._around = _understand(target)
        self._weather = Weather(RuleBook(random.Random(self.seed)))
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._links: dict[int, tuple[Link, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    def __repr__(self) -> str:
        conditions = self._weather.conditions
        return (
            f"<FaultProxy {self._port} → {self._server_port}, seed {self.seed}, "
            f"{len(self._links)} connections, {conditions}>"
        )

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 that clients connect to; it stays the same."""
        return self._port

    @property
    def url(self) -> str:
        """The address for clients: the target's URL with the proxy's host and port."""
        before, after = self._around
        return f"{before}{LOOPBACK}:{self._port}{after}"

    @property
    def fired(self) -> list[Fired]:
        """Everything that was done to a connection so far, in order."""
        return self._weather.fired

    @property
    def connections(self) -> int:
        """How many connections go through the proxy now."""
        return len(self._links)

    @property
    def accepted(self) -> int:
        """How many connections were ever accepted."""
        return self._count

    # -- conditions: on until they are switched off

    def start(self, condition: C) -> C:
        """Switch a condition on, for the connections that are there and new ones."""
        self._weather.conditions.append(condition)
        self._weather.note(condition)
        if isinstance(condition, Refuse):
            self._stop_listening()
        return condition

    async def end(self, condition: Condition) -> None:
        """Switch a condition off; does nothing if it is not on."""
        with suppress(ValueError):
            self._weather.conditions.remove(condition)
        self._weather.change()
        if not self._refuses and self._listener is None:
            await self._listen()

    async def heal(self) -> None:
        """Switch all conditions off and disarm all rules."""
        self._weather.conditions.clear()
        self._weather.book.armed.clear()
        await self.end(Condition())

    @asynccontextmanager
    async def during(self, *conditions: Condition) -> AsyncGenerator[None]:
        """Keep conditions on while the block runs."""
        for condition in conditions:
            self.start(condition)
        try:
            yield
        finally:
            for condition in conditions:
                await self.end(condition)

    # -- rules: for single requests and replies

    def arm(self, rule: Rule) -> Armed:
        """Let a rule wait for its moment; the result tells how often it has fired."""
        armed = Armed(rule)
        self._weather.book.armed.append(armed)
        return armed

    def disarm(self, armed: Armed) -> None:
        """Take a rule back; does nothing if it is gone."""
        with suppress(ValueError):
            self._weather.book.armed.remove(armed)

    def break_all(self, *, reset: bool = False) -> int:
        """Break every connection; say how many there were.

        Args:
            reset: Break them off (RST) instead of closing them (FIN).
        """
        links = list(self._links.values())
        for link, task in links:
            if reset:
                link.reset()
            task.cancel()  # which closes it
        self._weather.note("reset all" if reset else "close all")
        return len(links)

    def deafen(
        self, *directions: Direction, numbers: Container[int] | None = None
    ) -> None:
        """Let nothing through any more on the connections that are there.

        Args:
            directions: Which ways.
            numbers: Of the connections, in the order in which they were accepted,
                from 1 on; ``None`` for all.
        """
        for number, (link, _) in self._links.items():
            if numbers is None or number in numbers:
                for direction in directions:
                    link.deafen(direction)

    # -- its life

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening and break every connection."""
        self._stop_listening()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _refuses(self) -> bool:
        return any(isinstance(on, Refuse) for on in self._weather.conditions)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._accept, LOOPBACK, self._port, backlog=512
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Begin to carry; a connection ends with its task, even if that never began."""
        if self._listener is None:  # it was on its way when we stopped to listen
            writer.transport.abort()
            return
        self._count += 1
        task = asyncio.create_task(self._keep(self._count, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _keep(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        with suppress(asyncio.CancelledError):  # broken, or the proxy ends
            await self._carry(number, task, reader, writer)

    async def _carry(
        self,
        number: int,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        port = self._server_port
        try:
            server = await asyncio.open_connection(self._host, port)
        except OSError:
            writer.transport.abort()  # nobody there: refused, a moment later
            return
        if port != self._server_port:  # the proxy leads to another server meanwhile
            server[1].transport.abort()
            writer.transport.abort()
            return
        link = Link(number, self._weather, (reader, writer), server)
        self._links[number] = (link, task)
        try:
            await link.run()
        finally:
            del self._links[number]
            self._weather.book.forget([number])


def _understand(target: str) -> tuple[str, int, tuple[str, str]]:
    """Return host, port, and what stands around them in the URL for clients."""
    parts = urlsplit(target)
    assert parts.hostname, target
    assert parts.port, target
    place, _, rest = target.removeprefix("redis://").partition("/")
    login, at, _ = place.rpartition("@")
    return parts.hostname, parts.port, (f"redis://{login}{at}", f"/{rest}")
