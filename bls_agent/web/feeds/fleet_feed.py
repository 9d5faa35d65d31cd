"""One watch of all projects for any number of wallboards."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup

from bls_agent.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.fleet import Fleet, FleetChange, ProjectView
from bls_agent.web.feeds.ring import Item, Ring
from bls_agent.web.pages.cards import encode_changes, encode_picture

__all__ = ["FleetFeed"]

GRACE: Final = 30.0  # seconds for which the watch outlives its last follower
SAME_MOMENT: Final = 0.5  # seconds for which ages may stand still
AGAIN: Final = 2.0  # seconds after a watch that broke
MOST: Final = 64  # changes that are kept for slow followers
SIZE: Final = 4 * 1024 * 1024  # bytes of them

logger = logging.getLogger(__name__)


class FleetFeed:
    """What all projects look like, and what of that changes.

    The watch begins with the first follower and ends some time after the last.

    Attributes:
        views: Project → how it is; as fresh as the watch.
        unavailable: Why Redis does not answer, ``None`` if it does.
        looked: Whether there was a first picture.
        watching: Whether the watch runs.
        closed: Whether every follower has to end.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Remember what to watch."""
        self._fleet = fleet
        self._tasks: TaskGroup | None = None
        self._ring = Ring(most=MOST, size=SIZE)
        self._picture = (-1, 0.0, b"")
        self._followers = 0
        self._wanted_until = 0.0
        self._seen = anyio.Event()
        self._seen_at: dict[str, float] = {}
        self.looked = False
        self.views: dict[str, ProjectView] = {}
        self.unavailable: RedisUnavailableError | None = None
        self.watching = False
        self.closed = False

    def close(self) -> None:
        """Let every follower end."""
        self.closed = True
        self._ring.wake()

    async def aclose(self) -> None:
        """Close what the watch had opened."""
        await self._fleet.aclose()

    def open(self, tasks: TaskGroup) -> None:
        """Say where the watch may run."""
        self._tasks = tasks

    async def ready(self, timeout: float = 2.0) -> None:
        """See to it that :attr:`views` are fresh; return after this time in any case."""
        self._touch()
        with anyio.move_on_after(timeout):
            await self._seen.wait()

    async def follow(self, heartbeat: float) -> AsyncGenerator[bytes]:
        """Give the whole picture, then every change; who is too slow, the picture again.

        Args:
            heartbeat: Seconds after which ``b""`` is given when nothing has changed.
        """
        with self._counted():
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

    @contextmanager
    def _counted(self) -> Generator[None]:
        self._followers += 1
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

    def seconds_since(self, project: str) -> float:
        """Tell how long ago a project was seen as it is: its view's ages are of then."""
        now = anyio.current_time()
        return now - self._seen_at.get(project, now)

    def _whole(self) -> bytes:
        """Write the picture, once for all who ask at the same moment."""
        now = anyio.current_time()
        if self._picture[0] != self._ring.end or now - self._picture[1] > SAME_MOMENT:
            late = {name: self.seconds_since(name) for name in self.views}
            picture = encode_picture(self.views, self.unavailable, late)
            self._picture = (self._ring.end, now, picture)
        return self._picture[2]

    async def _watch(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_unwanted, tasks.cancel_scope)
                while True:
                    await self._watch_once()
                    await anyio.sleep(AGAIN)
        finally:
            self.watching = False
            self._seen = anyio.Event()

    async def _watch_once(self) -> None:
        complete = False  # the first change that is no outage tells everything
        try:
            async for change in self._fleet.watch():
                self._take(change, whole=not complete)
                complete = complete or change.unavailable is None
        except RedisUnavailableError as error:
            self._take(FleetChange(unavailable=error), whole=False)
        except Exception:  # the console goes on, and somebody reads its log
            logger.exception("the watch of the fleet broke; it is begun anew")

    def _take(self, change: FleetChange, *, whole: bool) -> None:
        if whole and change.unavailable is None:
            gone = self.views.keys() - change.views.keys()
            change = FleetChange(views=change.views, gone=frozenset(gone))
        self.unavailable = change.unavailable
        self.looked = self.looked or change.unavailable is None
        self.views.update(change.views)
        self._seen_at.update(dict.fromkeys(change.views, anyio.current_time()))
        for name in change.gone:
            self.views.pop(name, None)
            self._seen_at.pop(name, None)
        self._ring.add(Item(encode_changes(change)))
        self._seen.set()

    async def _stop_unwanted(self, scope: anyio.CancelScope) -> None:
        """End the watch when nobody has wanted it for some time."""
        while True:
            await anyio.sleep(1)
            if self._followers:
                self._wanted_until = anyio.current_time() + GRACE
            elif anyio.current_time() > self._wanted_until:
                scope.cancel()
                return
