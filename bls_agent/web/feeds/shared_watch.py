"""One watch for any number of followers: begun by the first, ended some time after the last."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup

from bls_agent.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.web.feeds.ring import Ring

__all__ = ["SharedWatch"]

GRACE: Final = 30.0  # seconds for which the watch outlives its last follower
SAME_MOMENT: Final = 0.5  # seconds for which ages may stand still
AGAIN: Final = 2.0  # seconds after a watch that broke
MOST: Final = 64  # changes that are kept for slow followers
SIZE: Final = 4 * 1024 * 1024  # bytes of them

logger = logging.getLogger(__name__)


class SharedWatch(ABC):
    """What a watch has seen, and what of that changes.

    Attributes:
        unavailable: Why Redis does not answer, ``None`` if it does.
        looked: Whether there was a first picture.
        watching: Whether the watch runs.
        closed: Whether every follower has to end.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._tasks: TaskGroup | None = None
        self._ring = Ring(most=MOST, size=SIZE)
        self._picture = (-1, 0.0, b"")
        self._followers = 0
        self._wanted_until = 0.0
        self._seen = anyio.Event()
        self.looked = False
        self.unavailable: RedisUnavailableError | None = None
        self.watching = False
        self.closed = False

    @abstractmethod
    async def aclose(self) -> None:
        """Close what the watch had opened."""

    @abstractmethod
    async def _watch_once(self) -> None:
        """Watch for as long as it goes well, and add to the ring what changes.

        Raises:
            RedisUnavailableError: Redis cannot answer; it is tried again.
        """

    @abstractmethod
    def _write_picture(self) -> bytes:
        """Write everything as it is now."""

    @abstractmethod
    def _take_outage(self, error: RedisUnavailableError) -> None:
        """Tell the followers that the watch sees nothing any more."""

    def close(self) -> None:
        """Let every follower end."""
        self.closed = True
        self._ring.wake()

    def open(self, tasks: TaskGroup) -> None:
        """Say where the watch may run."""
        self._tasks = tasks

    async def ready(self, timeout: float = 2.0) -> None:
        """See to it that what was seen is fresh; return after this time in any case."""
        self._touch()
        with anyio.move_on_after(timeout):
            await self._seen.wait()

    async def follow(self, heartbeat: float) -> AsyncGenerator[bytes]:
        """Give the whole picture, then every change; who is too slow, the picture again.

        Args:
            heartbeat: Seconds after which ``b""`` is given when nothing has changed.
        """
        with self.wanted():
            await self.ready()
            place = self._ring.end
            yield self._whole()
            while not self.closed:
                await self._ring.wait(place, heartbeat)
                items, missed = self._ring.since(place)
                place = self._ring.end
                if missed:
                    yield self._whole()
                elif not items:
                    yield b""
                for item in () if missed else items:
                    yield item.payload

    async def wait(self, place: int, timeout: float) -> int:
        """Wait until there is something behind a place; give the place behind it."""
        await self._ring.wait(place, timeout)
        return self._ring.end

    @contextmanager
    def wanted(self) -> Generator[None]:
        """Watch while the block lasts."""
        self._followers += 1
        self._touch()
        try:
            yield
        finally:
            self._followers -= 1
            self._touch()

    def _touch(self) -> None:
        self._wanted_until = anyio.current_time() + GRACE
        if not self.watching and not self.closed and self._tasks is not None:
            self.watching = True
            self._tasks.start_soon(self._watch)

    def check(self, *, strictly: bool = False) -> None:
        """Raise what keeps the running watch from seeing anything.

        Args:
            strictly: Raise also what was so when the last watch ended, and what is
                refused to the watch and may be granted to others.

        Raises:
            RedisUnavailableError: Redis cannot answer.
        """
        fault = self.unavailable
        now = self._seen.is_set() and not isinstance(fault, RedisRefusedError)
        if fault is not None and (now or strictly):
            raise fault

    def _whole(self) -> bytes:
        """Write the picture, once for all who ask at the same moment."""
        now = anyio.current_time()
        if self._picture[0] != self._ring.end or now - self._picture[1] > SAME_MOMENT:
            self._picture = (self._ring.end, now, self._write_picture())
        return self._picture[2]

    async def _watch(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_unwanted, tasks.cancel_scope)
                while True:
                    try:
                        await self._watch_once()
                    except RedisUnavailableError as error:
                        self._take_outage(error)
                    except Exception:  # the console goes on, and somebody reads its log
                        logger.exception("a watch of the console broke; it begins anew")
                    await anyio.sleep(AGAIN)
        finally:
            self.watching = False
            self._seen = anyio.Event()

    async def _stop_unwanted(self, scope: anyio.CancelScope) -> None:
        """End the watch when nobody has wanted it for some time."""
        while True:
            await anyio.sleep(1)
            if self._followers:
                self._wanted_until = anyio.current_time() + GRACE
            elif anyio.current_time() > self._wanted_until:
                scope.cancel()
                return
