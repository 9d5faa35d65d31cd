"""One connection through the proxy: two streams, each read, decided upon, written.

It talks to sockets through asyncio's streams, because anyio has no way to break a
connection off (RST) and no server that can stop listening and keep its connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from tests.kit.resp import Conversation, Direction
from tests.kit.rules import (
    Act,
    Condition,
    Delay,
    Hold,
    Lose,
    Rate,
    RuleBook,
    Slices,
    Swallow,
)

C = TypeVar("C", bound=Condition)

READ_SIZE: Final = 65_536
QUEUED_READS: Final = 256
RATE_STEP: Final = 0.02  # seconds of traffic that a limited link writes at once

_Queue: TypeAlias = "asyncio.Queue[tuple[float, Act | _EndOfStream]]"


@dataclass(frozen=True)
class _EndOfStream:
    """Stands in a queue for the end of what one side sends."""


@dataclass(frozen=True)
class Fired:
    """One thing that the proxy did to a connection.

    Attributes:
        at: When, on the clock of ``time.monotonic()``.
        what: The condition or rule.
        connection: Number of the connection, 0 for all of them.
        command: The command concerned, if it is a rule that fired.
    """

    at: float
    what: object
    connection: int = 0
    command: str = ""


@dataclass
class Weather:
    """What is on: conditions that all links feel, and rules that wait.

    Attributes:
        conditions: Those that are on.
        book: The rules.
        fired: What has happened so far.
    """

    book: RuleBook
    conditions: list[Condition] = field(default_factory=list[Condition])
    fired: list[Fired] = field(default_factory=list[Fired])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def find(self, kind: type[C], direction: Direction) -> C | None:
        """Give the condition of this kind that was put on last, if there is one."""
        for condition in reversed(self.conditions):
            if isinstance(condition, kind) and condition.concerns(direction):
                return condition
        return None

    def note(self, what: object, connection: int = 0, command: str = "") -> None:
        """Remember that something was done."""
        self.fired.append(Fired(time.monotonic(), what, connection, command))

    def change(self) -> None:
        """Wake whoever waits for other conditions."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_released(self, direction: Direction) -> None:
        """Wait while bytes that go this way are held."""
        while self.find(Hold, direction):
            await self._changed.wait()


class Link:
    """A client's connection and the one to the server that stands behind it."""

    def __init__(
        self,
        number: int,
        weather: Weather,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.number = number
        self._weather = weather
        self._conversation = Conversation()
        self._deaf: set[Direction] = set()
        self._ways = {
            Direction.REQUESTS: (client[0], server[1]),
            Direction.REPLIES: (server[0], client[1]),
        }

    async def run(self) -> None:
        """Carry bytes until both sides have ended, or the link breaks."""
        tasks: list[asyncio.Task[None]] = []
        for direction in Direction:
            queue: _Queue = asyncio.Queue(QUEUED_READS)
            tasks.append(asyncio.create_task(self._read(direction, queue)))
            tasks.append(asyncio.create_task(self._write(direction, queue)))
        try:
            await asyncio.gather(*tasks)
        except OSError:  # one side is gone, in whatever way: so is the other
            pass
        finally:
            for task in tasks:
                task.cancel()
            self.close()

    def deafen(self, direction: Direction) -> None:
        """Let nothing through in this direction any more; the sockets stay open."""
        self._deaf.add(direction)

    def close(self) -> None:
        """Close both connections; what was written still gets through."""
        for _, writer in self._ways.values():
            with suppress(RuntimeError):  # its event loop is closed
                writer.close()

    def reset(self) -> None:
        """Break both connections off (RST where bytes are unread), nothing flushed."""
        for _, writer in self._ways.values():
            writer.transport.abort()

    async def _read(self, direction: Direction, queue: _Queue) -> None:
        reader, _ = self._ways[direction]
        while data := await reader.read(READ_SIZE):
            delay = self._weather.find(Delay, direction)
            due = time.monotonic() + (delay.seconds if delay else 0.0)
            for step in self._decide(direction, data):
                await queue.put((due, step))
        if not self._is_deaf(direction):
            await queue.put((0.0, _EndOfStream()))

    def _decide(self, direction: Direction, data: bytes) -> Iterable[Act]:
        pieces = self._conversation.feed(direction, data)
        for piece in pieces:
            steps, chosen = self._weather.book.decide(self.number, piece)
            if chosen is not None:
                self._weather.note(chosen.rule, self.number, piece.command)
                if isinstance(chosen.rule, Lose):
                    self._deaf.add(direction)
            if not self._is_deaf(direction):
                yield from steps

    def _is_deaf(self, direction: Direction) -> bool:
        swallow = self._weather.find(Swallow, direction)
        if swallow is not None and direction not in self._deaf:
            self._deaf.add(direction)
            self._weather.note(swallow, self.number)
        return direction in self._deaf

    async def _write(self, direction: Direction, queue: _Queue) -> None:
        _, writer = self._ways[direction]
        while True:
            due, step = await queue.get()
            await _sleep_until(due)
            await self._weather.wait_released(direction)
            match step:
                case None:
                    raise ConnectionAbortedError
                case _EndOfStream():
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                case bytes():
                    await self._send(direction, writer, step)
                case _:
                    await asyncio.sleep(step)

    async def _send(
        self, direction: Direction, writer: asyncio.StreamWriter, data: bytes
    ) -> None:
        rate = self._weather.find(Rate, direction)
        slices = self._weather.find(Slices, direction)
        size = len(data)
        if rate is not None:
            size = max(1, int(rate.bytes_per_second * RATE_STEP))
        if slices is not None:
            size = min(size, slices.size)
        for start in range(0, len(data), size):
            part = data[start : start + size]
            writer.write(part)
            await writer.drain()
            if rate is not None:
                await asyncio.sleep(len(part) / rate.bytes_per_second)
            elif size < len(data):
                await asyncio.sleep(0)  # a packet of its own


async def _sleep_until(due: float) -> None:
    left = due - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)
