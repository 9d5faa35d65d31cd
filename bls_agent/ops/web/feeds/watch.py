"""Watches of Redis that followers share, and the ring from which followers read.

A watch is a task that reads Redis at intervals. A follower is an open page or a program
that receives the changes. The ring holds the newest messages to followers, and a follower
stores only its position in the ring. If the ring has dropped messages that a slow
follower has not read, the ring returns their number. Slow followers therefore need no
more memory than others.

A card is a JSON object about one thing, such as a worker. The watch makes each card once
for all followers. The texts of a card are safe to show, because they went through
:func:`~bls_agent.ops.terminal.visible`. ``state`` or ``kind`` is the thing's state, and
``kind`` also chooses colour and shape. ``key``, ``id`` or ``path`` identifies the thing.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from bls_agent.core.codec import (
    JSONObject,
    JSONValue,
    decode_object,
    encode,
    format_timestamp,
)
from bls_agent.core.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.ops.terminal import visible

if TYPE_CHECKING:
    from bls_agent.connection.access import Store
    from bls_agent.ops.fleet import Fleet
    from bls_agent.ops.web.rights import Grants

# Seconds for which a watch runs after its last follower or scrape. Prometheus scrapes
# once a minute by default, so the watch still runs at the next scrape.
GRACE: Final = 75.0
READY = 2.0  # seconds for which a page waits for the first read
SAME_MOMENT: Final = 0.5  # seconds for which a snapshot and its ages are reused
AGAIN: Final = 2.0  # seconds until a watch that failed starts again
REST: Final = 4.0  # pause after a read, as a multiple of the read's duration
MOST: Final = 64  # changes that are kept for slow followers
SIZE: Final = 4 * 1024 * 1024  # bytes of these changes
LONGEST: Final = 200  # characters of a text on a card

logger: logging.Logger = logging.getLogger(__name__)

_Thing = TypeVar("_Thing")


@dataclass(frozen=True)
class Item:
    """One message to followers, with one word for its kind."""

    payload: bytes
    kind: str = ""
    place: str = ""  # the id after which a browser resumes the stream


class Ring:
    """The newest items, at most ``most`` items and ``size`` bytes, but at least one."""

    def __init__(self, *, most: int, size: int) -> None:
        self._most = most
        self._size = size
        self._items: deque[Item] = deque()
        self._held = 0
        self._more = anyio.Event()
        self.end: int = 0  # the position after the newest item

    @property
    def begin(self) -> int:
        return self.end - len(self._items)

    def add(self, *items: Item) -> None:
        for item in items:
            # Copy the bytes, because a result of orjson occupies at least 4 KiB.
            kept = Item(bytes(memoryview(item.payload)), item.kind)
            self._items.append(kept)
            self._held += len(item.payload)
            self.end += 1
        while len(self._items) > 1 and (
            len(self._items) > self._most or self._held > self._size
        ):
            self._held -= len(self._items.popleft().payload)
        self.wake()

    def since(self, place: int, size: float = math.inf) -> tuple[list[Item], int]:
        """Return the items from a position on, and how many of them were dropped.

        Returns at most ``size`` bytes of items, but at least one item of any length.
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
        if self.end > place:
            return
        with anyio.move_on_after(timeout):
            await self._more.wait()

    def wake(self) -> None:
        self._more.set()
        self._more = anyio.Event()


class Currency(StrEnum):
    """Whether what a watch holds is current. Messages to followers contain the value."""

    READING = "reading"  # the running watch has neither read nor failed yet
    CURRENT = "live"
    FORBIDDEN = "forbidden"  # the Redis user lacks a right for the watch's keys
    AWAY = "away"  # Redis does not answer, or a key has a wrong type

    @classmethod
    def of(cls, fault: RedisUnavailableError | None) -> Currency:
        """Return how current something is after a read, or after a failed one."""
        if fault is None:
            return cls.CURRENT
        return cls.FORBIDDEN if fault.kind == "no_permission" else cls.AWAY


class Shared(ABC):
    """A task that runs while it has followers, and some seconds after the last one."""

    def __init__(self, ring: Ring, grace: float) -> None:
        self.ring = ring
        self._grace = grace  # seconds to run after the last follower
        self._tasks: TaskGroup | None = None
        self._followers = 0
        self._scope: anyio.CancelScope | None = None  # the scope of _run
        self.running: bool = False
        self.closed: bool = False  # whether every follower has to end

    @abstractmethod
    async def _run(self) -> None:
        """Fill the ring until cancelled."""

    def open(self, tasks: TaskGroup | None) -> None:
        self._tasks = tasks

    def close(self) -> None:
        self.closed = True
        self.ring.wake()

    @property
    def is_ending(self) -> bool:
        """Whether nobody has followed for the grace time, so that ``_run`` ends."""
        return self._scope is not None and self._scope.cancel_called

    @contextmanager
    def wanted(self) -> Generator[None]:
        self._followers += 1
        self._keep_running()
        try:
            yield
        finally:
            self._followers -= 1
            self._set_end()

    def _keep_running(self) -> None:
        if not self.running and not self.closed and self._tasks is not None:
            self.running = True
            self._scope = anyio.CancelScope()
            self._tasks.start_soon(self._run_while_wanted, self._scope)
        self._set_end()

    def _set_end(self) -> None:
        if self._scope is not None:
            end = anyio.current_time() + self._grace
            self._scope.deadline = math.inf if self._followers else end

    async def _run_while_wanted(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await self._run()
        finally:
            self.running = False
        if self._followers and scope.cancelled_caught:  # a follower came too late
            self._keep_running()


class SharedWatch(Shared, Generic[_Thing]):
    """A watch of all things of one kind, whose followers receive cards and changes."""

    kind: ClassVar[str]  # the name of the list of cards in messages to followers
    card_key: ClassVar[str] = "key"  # the field that identifies a card

    def __init__(self, source: Store | Fleet) -> None:
        super().__init__(Ring(most=MOST, size=SIZE), GRACE)
        self._source = source
        self._picture = (-1, 0.0, b"")  # the last snapshot: position, time, bytes
        self._seen = anyio.Event()
        self._seen_at: dict[str, float] = {}
        self.found: dict[str, _Thing] = {}
        self.unavailable: RedisUnavailableError | None = None
        self.read_at: float = 0.0  # Unix time of the last complete read; 0 before
        # Unix time since which `found` is outdated, because of the last outage.
        self.away_since: float = 0.0

    @abstractmethod
    async def _watch_once(self) -> None:
        """Read Redis at intervals and publish changes, until Redis cannot answer."""

    @abstractmethod
    def _card(self, thing: _Thing, elapsed: float) -> JSONObject:
        """Make the card of a thing that was read ``elapsed`` seconds ago."""

    @staticmethod
    @abstractmethod
    def place_of(card: JSONObject) -> tuple[JSONValue, ...]:
        """Return the sort key of a card on the page."""

    @staticmethod
    def card_key_of(name: str) -> str:
        return name

    @staticmethod
    def project_of(card_key: str) -> str:
        """Return the project of a card, or ``""`` if the card has no project."""
        del card_key
        return ""

    def only(self, message: bytes, grants: Grants) -> bytes:
        """Return a message without the cards of projects that the user may not see."""
        if not message or grants.everywhere:
            return message

        def sees(key: JSONValue) -> bool:
            return grants.sees(self.project_of(str(key)))

        fields: dict[str, Any] = decode_object(message)
        cards = [card for card in fields[self.kind] if sees(card[self.card_key])]
        removed = [*filter(sees, fields.get("gone", ()))]
        return encode(fields | {self.kind: cards, "gone": removed})

    def _differs(self, one: _Thing, before: _Thing) -> bool:
        return one != before

    def _more(self) -> JSONObject:
        return {}

    def seconds_since(self, key: str) -> float:
        """Return the seconds since a thing was read, to be added to its ages."""
        now = anyio.current_time()
        return now - self._seen_at.get(key, now)

    def card_of(self, key: str) -> JSONObject | None:
        thing = self.found.get(key)
        return None if thing is None else self._card(thing, self.seconds_since(key))

    @property
    def away(self) -> str:
        """The reason, in one word, why Redis does not answer; ``""`` if it answers."""
        return self.unavailable.kind if self.unavailable else ""

    @property
    def currency(self) -> Currency:
        read = self._seen.is_set()
        return Currency.of(self.unavailable) if read else Currency.READING

    async def aclose(self) -> None:
        await self._source.aclose()

    async def ready(self) -> None:
        """Start the watch; wait for its first read, at most ``READY`` seconds."""
        self._keep_running()
        with anyio.move_on_after(READY):
            await self._seen.wait()

    async def follow(self, heartbeat: float) -> AsyncGenerator[bytes]:
        """Yield a snapshot, then each change.

        If the follower has missed changes, yield a new snapshot. If nothing has changed
        for ``heartbeat`` seconds, yield ``b""``.
        """
        with self.wanted():
            await self.ready()
            place = self.ring.end
            yield self.picture()
            while not self.closed:
                await self.ring.wait(place, heartbeat)
                items, missed = self.ring.since(place)
                place = self.ring.end
                if missed:
                    yield self.picture()
                elif not items:
                    yield b""
                for item in () if missed else items:
                    yield item.payload

    def picture(self) -> bytes:
        """Return a snapshot of all cards, which may be up to 0.5 seconds old."""
        now = anyio.current_time()
        if self._picture[0] != self.ring.end or now - self._picture[1] > SAME_MOMENT:
            cards = [
                self._card(thing, self.seconds_since(key))
                for key, thing in self.found.items()
            ]
            whole = {"whole": True, self.kind: sorted(cards, key=self.place_of)}
            written = self._encode(whole | self._more())
            self._picture = (self.ring.end, now, written)
        return self._picture[2]

    def check(self) -> None:
        """Raise the error if the watch cannot reach Redis, but raise no refusal."""
        fault = self.unavailable
        if fault and not isinstance(fault, RedisRefusedError):
            raise fault

    async def fresh(self) -> None:
        """Wait for the first read; raise an error if the state is not current."""
        await self.ready()
        if self.currency is not Currency.CURRENT:
            slow = RedisUnavailableError("slow", "the first read has not ended yet")
            raise self.unavailable or slow

    def describe(self) -> JSONObject:
        """Return whether the state is current, as fields for every message."""
        since = format_timestamp(self.away_since) if self.unavailable else None
        away = visible(self.away) or None
        return {"state": self.currency, "away": away, "awaySince": since}

    def _encode(self, fields: JSONObject) -> bytes:
        return encode({**fields, **self.describe()})

    def _replace(
        self,
        found: Mapping[str, _Thing],
        *,
        turned: bool = False,
        read_at: float | None = None,
    ) -> None:
        """Store a complete read; publish changed cards.

        ``turned`` is whether to publish a message even if no card has changed.
        """
        before, self.found = self.found, {**found}
        now = anyio.current_time()
        self._seen_at = {
            key: self._seen_at[key] if one is before.get(key) else now
            for key, one in found.items()
        }
        changed = [
            key
            for key, one in found.items()
            if key not in before
            or (one is not before[key] and self._differs(one, before[key]))
        ]
        removed = before.keys() - found.keys()
        whole = self.currency is Currency.READING or not self.read_at
        turned = turned or whole or self.unavailable is not None
        self._record(None, clock() if read_at is None else read_at)
        if changed or removed or turned:
            self._publish(found if whole else changed, removed, whole=whole)

    def _publish(
        self,
        changed: Iterable[str] = (),
        removed: Iterable[str] = (),
        **more: JSONValue,
    ) -> None:
        """Send the changed cards, and the keys of removed cards, to every follower."""
        cards = [*filter(None, map(self.card_of, changed))]
        fields = {
            self.kind: cards,
            **self._more(),
            "gone": sorted(map(self.card_key_of, removed)),
            **more,
        }
        self.ring.add(Item(self._encode(fields)))

    def _take_outage(self, error: RedisUnavailableError) -> None:
        self._record(error, self.read_at)
        self._publish()

    def _record(self, fault: RedisUnavailableError | None, read_at: float) -> None:
        if fault is not None and self.unavailable is None:
            self.away_since = read_at or clock()
        self.unavailable, self.read_at = fault, read_at
        self._seen.set()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._watch_once()
                except RedisUnavailableError as error:
                    self._take_outage(error)
                except WrongTypeError as error:
                    fault = RedisUnavailableError("wrong_type", str(error))
                    self._take_outage(fault)
                except Exception:  # an error here must not stop the console
                    logger.exception("a watch of the console broke; it begins anew")
                await anyio.sleep(AGAIN)
        finally:  # what was read may be old when the watch starts again
            self._seen = anyio.Event()
            self.unavailable = None


def pause_after(began: float, least: float) -> float:
    return max(least, REST * (anyio.current_time() - began))


def clock() -> float:
    return time.time()  # noqa: TID251 - only here; the feeds call clock()


def shorten(text: str, longest: int = LONGEST) -> str:
    """Shorten a text to ``longest`` characters, and make it one line for a card."""
    return visible(text[:longest]) + "…" * (len(text) > longest)


def show_time(seconds: float | None) -> str:
    """Return a Unix time as text, or ``""`` if it is no valid time."""
    with suppress(TypeError, ValueError, OverflowError, OSError):
        return format_timestamp(cast("float", seconds))
    return ""


def rounded(seconds: float | None, digits: int = 1) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), digits)


def later(seconds: float | None, elapsed: float) -> float | None:
    return None if seconds is None else rounded(seconds + elapsed)
