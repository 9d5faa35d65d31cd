"""One watch for any number of followers, and the ring through which they follow it.

A follower of a ring is a number, its place. One so slow that its place was overwritten
learns how many items it missed; no memory grows for it.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final, Protocol

import anyio
from anyio.abc import TaskGroup

from bls_agent.core.codec import JSONObject, JSONValue, encode
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.ops.terminal import visible

__all__ = [
    "CardWatch",
    "Item",
    "Ring",
    "SharedWatch",
    "clock",
    "encode_changes",
    "encode_picture",
    "later",
    "pause_after",
    "shorten",
]

GRACE: Final = 30.0  # seconds for which a watch outlives its last follower
SAME_MOMENT: Final = 0.5  # seconds for which ages may stand still
AGAIN: Final = 2.0  # seconds after a watch that broke
REST: Final = 4.0  # times as long as a look took
MOST: Final = 64  # changes that are kept for slow followers
SIZE: Final = 4 * 1024 * 1024  # bytes of them
LONGEST: Final = 200  # characters of what stands on a card

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """One thing that was sent: its bytes, and one word for its kind."""

    payload: bytes
    kind: str = ""
    place: str = ""  # the id from which a browser goes on


class Ring:
    """The latest items, at most ``most`` and ``size`` bytes, but always the newest."""

    def __init__(self, *, most: int, size: int) -> None:
        self._most = most
        self._size = size
        self._items: deque[Item] = deque()
        self._held = 0
        self._more = anyio.Event()
        self.end = 0  # the place behind the newest item

    @property
    def begin(self) -> int:
        """The place of the oldest item that is kept."""
        return self.end - len(self._items)

    def add(self, *items: Item) -> None:
        """Append, drop what is too much, and wake the followers."""
        for item in items:
            # A copy: what orjson has just written holds on to 4 KiB, however short.
            kept = Item(bytes(memoryview(item.payload)), item.kind)
            self._items.append(kept)
            self._held += len(item.payload)
            self.end += 1
        while len(self._items) > 1 and self._is_too_much():
            self._held -= len(self._items.popleft().payload)
        self.wake()

    def _is_too_much(self) -> bool:
        return len(self._items) > self._most or self._held > self._size

    def since(self, place: int, size: float = math.inf) -> tuple[list[Item], int]:
        """Give the items from a place on, and how many before them are dropped.

        At most ``size`` bytes at once; an item that is longer comes alone.
        """
        missed = max(0, self.begin - place)
        found: list[Item] = []
        held = 0
        for item in islice(self._items, place + missed - self.begin, None):
            held += len(item.payload)
            if found and held > size:
                break
            found.append(item)
        return found, missed

    async def wait(self, place: int, timeout: float) -> None:
        """Wait until there is an item at a place, at most ``timeout`` seconds."""
        if self.end > place:
            return
        with anyio.move_on_after(timeout):
            await self._more.wait()

    def wake(self) -> None:
        """Wake every follower."""
        self._more.set()
        self._more = anyio.Event()


class _Closeable(Protocol):
    async def aclose(self) -> None: ...


class SharedWatch(ABC):
    """The state that a watch has seen, and its changes.

    The first follower begins the watch; it ends some time after the last one.
    """

    kind: ClassVar[str]  # the name of the list of cards in what followers are sent

    def __init__(self, source: _Closeable) -> None:
        self._source = source
        self._tasks: TaskGroup | None = None
        self._ring = Ring(most=MOST, size=SIZE)
        self._picture = (-1, 0.0, b"")
        self._followers = 0
        self._wanted_until = 0.0
        self._seen = anyio.Event()
        self.looked = False  # whether there was a first picture
        self.unavailable: RedisUnavailableError | None = None
        self.watching = False  # whether the watch runs
        self.closed = False  # whether every follower has to end

    @abstractmethod
    async def _watch_once(self) -> None:
        """Watch until Redis cannot answer, and publish what changes."""

    @abstractmethod
    def cards(self) -> list[JSONObject]:
        """Make the cards of everything, as of now, in the order of the page."""

    @property
    def away(self) -> str:
        """Why Redis does not answer, in one word; ``""`` if it does."""
        return self.unavailable.kind if self.unavailable else ""

    def close(self) -> None:
        """End every follower."""
        self.closed = True
        self._ring.wake()

    async def aclose(self) -> None:
        """Close the source of the watch."""
        await self._source.aclose()

    def open(self, tasks: TaskGroup) -> None:
        """Set the task group in which the watch runs."""
        self._tasks = tasks

    async def ready(self, timeout: float = 2.0) -> None:
        """Wait until the state is fresh, at most ``timeout`` seconds."""
        self._keep_watching()
        with anyio.move_on_after(timeout):
            await self._seen.wait()

    async def follow(self, heartbeat: float) -> AsyncGenerator[bytes]:
        """Yield the whole picture, then every change; a slow follower gets a new one.

        ``b""`` is given when nothing has changed for ``heartbeat`` seconds.
        """
        with self.wanted():
            await self.ready()
            place = self._ring.end
            yield self._current_picture()
            while not self.closed:
                await self._ring.wait(place, heartbeat)
                items, missed = self._ring.since(place)
                place = self._ring.end
                if missed:
                    yield self._current_picture()
                elif not items:
                    yield b""
                for item in () if missed else items:
                    yield item.payload

    async def wait(self, place: int, timeout: float) -> int:
        """Wait until there is an item behind a place; give the place behind it."""
        await self._ring.wait(place, timeout)
        return self._ring.end

    @contextmanager
    def wanted(self) -> Generator[None]:
        """Keep the watch running while the block lasts."""
        self._followers += 1
        self._keep_watching()
        try:
            yield
        finally:
            self._followers -= 1
            self._keep_watching()

    def _keep_watching(self) -> None:
        self._wanted_until = anyio.current_time() + GRACE
        if not self.watching and not self.closed and self._tasks is not None:
            self.watching = True
            self._tasks.start_soon(self._watch)

    def check(self, *, strictly: bool = False) -> None:
        """Raise the outage that keeps the running watch from seeing anything.

        ``strictly`` also raises one from the end of the last watch, and a refusal:
        other requests than the watch's may be allowed.
        """
        fault = self.unavailable
        now = self._seen.is_set() and not isinstance(fault, RedisRefusedError)
        if fault is not None and (now or strictly):
            raise fault

    async def fresh(self) -> None:
        """Wait until the state is fresh, or raise why Redis does not answer."""
        await self.ready()
        self.check(strictly=True)

    def _current_picture(self) -> bytes:
        """Encode the picture, once for all followers of the same moment."""
        now = anyio.current_time()
        if self._picture[0] != self._ring.end or now - self._picture[1] > SAME_MOMENT:
            self._picture = (self._ring.end, now, self._write_picture())
        return self._picture[2]

    def _write_picture(self) -> bytes:
        return encode_picture(self.kind, self.cards(), self.unavailable)

    def _publish(
        self,
        cards: Iterable[JSONObject] = (),
        gone: Iterable[str] = (),
        **more: JSONValue,
    ) -> None:
        """Send the changed cards, and the keys of removed ones, to every follower."""
        written = encode_changes(self.kind, cards, gone, self.unavailable, **more)
        self._ring.add(Item(written))

    def _take_outage(self, error: RedisUnavailableError) -> None:
        self.unavailable = error
        self._seen.set()
        self._publish()

    async def _watch(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_unwanted, tasks.cancel_scope)
                while True:
                    try:
                        await self._watch_once()
                    except RedisUnavailableError as error:
                        self._take_outage(error)
                    except Exception:  # the console goes on; its log has the cause
                        logger.exception("a watch of the console broke; it begins anew")
                    await anyio.sleep(AGAIN)
        finally:
            self.watching = False
            self._seen = anyio.Event()

    async def _stop_unwanted(self, scope: anyio.CancelScope) -> None:
        while True:
            await anyio.sleep(1)
            if self._followers:
                self._wanted_until = anyio.current_time() + GRACE
            elif anyio.current_time() > self._wanted_until:
                scope.cancel()
                return


class CardWatch(SharedWatch):
    """A watch that compares its cards with those before, by their keys."""

    def __init__(self, source: _Closeable) -> None:
        super().__init__(source)
        self.by_key: dict[str, JSONObject] = {}

    def cards(self) -> list[JSONObject]:
        """Give the cards of everything, in the order of the page."""
        return sorted(self.by_key.values(), key=self._place_of)

    @staticmethod
    @abstractmethod
    def _place_of(card: JSONObject) -> tuple[JSONValue, ...]:
        """Give the sort key of a card."""

    def _replace(self, cards: Iterable[JSONObject]) -> None:
        before, turned = self.by_key, self.unavailable is not None
        self.by_key = {card["key"]: card for card in cards}
        self.unavailable, self.looked = None, True
        self._seen.set()
        changed = [one for key, one in self.by_key.items() if one != before.get(key)]
        gone = before.keys() - self.by_key.keys()
        if changed or gone or turned:
            self._publish(changed, sorted(gone))


def encode_picture(
    kind: str,
    cards: Iterable[JSONObject],
    unavailable: RedisUnavailableError | None,
    **more: JSONValue,
) -> bytes:
    """Encode everything, for a new follower."""
    away = _away(unavailable)
    return encode({"whole": True, kind: list(cards), **more, "away": away})


def encode_changes(
    kind: str,
    cards: Iterable[JSONObject],
    gone: Iterable[str],
    unavailable: RedisUnavailableError | None,
    **more: JSONValue,
) -> bytes:
    """Encode the new and changed cards, and the keys of removed ones."""
    away = _away(unavailable)
    return encode({kind: list(cards), "gone": list(gone), **more, "away": away})


def _away(error: RedisUnavailableError | None) -> JSONValue:
    return None if error is None else visible(error.kind)


def pause_after(began: float, least: float) -> float:
    """Decide the pause after a look, in proportion to its cost."""
    return max(least, REST * (anyio.current_time() - began))


def clock() -> float:
    """Give the seconds since 1970, as the ids of events count them."""
    return time.time()  # noqa: TID251 - the outermost place


def shorten(text: str, longest: int = LONGEST) -> str:
    """Cut a text for a card: one line of a bounded length."""
    return visible(text[:longest]) + "…" * (len(text) > longest)


def later(seconds: float | None, late: float, digits: int = 1) -> float | None:
    """Add seconds to an age; ``None`` stays ``None``."""
    return None if seconds is None else round(max(0.0, seconds + late), digits)
