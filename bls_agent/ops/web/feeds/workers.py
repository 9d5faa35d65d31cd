"""Workers: one watch for any number of pages, and the card of a worker.

A card is language-independent and made once for all followers. Its texts are safe to
show (:func:`~bls_agent.ops.terminal.visible`); the page translates and colours it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from types import MappingProxyType
from typing import Any, Final

import anyio

from bls_agent.core.codec import JSONObject, JSONValue, encode
from bls_agent.core.errors import RedisUnavailableError
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.feeds.watch import SharedWatch, later, shorten
from bls_agent.ops.web.requests import quote_name
from bls_agent.workers import Worker, WorkerChange, WorkerRegistry
from bls_agent.workers.worker import HEARTBEATS

__all__ = ["GROUPS", "STATES", "WorkerFeed", "make_worker_card", "place_of_worker"]

GROUPS: Final = tuple(HEARTBEATS)

# What a worker may be, the worst first → the colour and shape of a status like it.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "broken": "odd",
        "error": "fault",
        "stale": "stale",
        "stopping": "error",
        "starting": "never",
        "stopped": "offline",
        "running": "online",
        "present": "online",  # of a kind whose value the contract leaves open
    }
)
_RANKS: Final = {state: rank for rank, state in enumerate(STATES)}

LONGEST_FIGURE: Final = 40  # characters
MOST_FIGURES: Final = 6
INTERVAL: Final = 1.0  # seconds between two looks
PAUSE: Final = 0.3  # seconds for which changes are gathered into one event
LONGEST: Final = 60.0  # seconds that a key without an end is believed unconfirmed


def make_worker_card(worker: Worker, late: float = 0.0) -> JSONObject:
    """Make the card of a worker that was seen ``late`` seconds ago.

    ``key`` identifies it, ``group`` is the kind of heartbeat, ``state`` one of
    ``STATES`` and ``kind`` its colour and shape, ``problem`` one word or ``""``,
    ``figures`` pairs of a name and a text, ``said`` the raw value where it is not
    understood.
    """
    state = _state_of(worker)
    figures = _figures_of(worker)[:MOST_FIGURES]
    return {
        "key": _key_of(worker),
        "group": worker.kind,
        "id": visible(worker.id),
        "state": state,
        "kind": STATES[state],
        "age": later(worker.age, late),
        "ttl": later(worker.ttl, -late),
        "problem": visible(worker.problem),
        "figures": [
            [shorten(part, LONGEST_FIGURE) for part in pair] for pair in figures
        ],
        "said": _unread_text(worker),
    }


def _key_of(worker: Worker) -> str:
    """Write a worker's key, of whatever bytes, in letters that any page can hold."""
    return quote_name(worker.key)


def _state_of(worker: Worker) -> str:
    if worker.problem:
        return "broken"
    if worker.stale:
        return "stale"
    return "present" if worker.heartbeat is None else worker.heartbeat.status.value


def _figures_of(worker: Worker) -> list[tuple[str, str]]:
    if worker.heartbeat is None:
        return []
    read: dict[str, Any] = worker.heartbeat.to_dict()
    told = {name: value for name, value in read.items() if name in worker.raw}
    found: list[tuple[str, str]] = []
    if "running_tasks" in told:
        most = f" / {told['max_tasks']}" if "max_tasks" in told else ""
        found.append(("running_tasks", f"{told['running_tasks']}{most}"))
    counts = ("pending_tasks", "jobs_count", "active_strategies")
    found += [(name, str(told[name])) for name in counts if name in told]
    if told.get("host"):
        port = f":{told['port']}" if told.get("port") else ""
        found.append(("host", f"{told['host']}{port}"))
    if told.get("task_uuids"):
        found.append(("task_uuids", ", ".join(told["task_uuids"][:MOST_FIGURES])))
    stats: dict[str, Any] = told.get("stats") or {}
    return found + [(name, _text(value)) for name, value in stats.items()]


def _unread_text(worker: Worker) -> str:
    """Give the raw value, unless the figures cover it."""
    if worker.heartbeat is not None or not worker.raw:
        return ""
    raw: Any = worker.raw.get("raw") if worker.raw.keys() == {"raw"} else worker.raw
    return shorten(_text(raw))


def _text(value: object) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def place_of_worker(card: JSONObject) -> tuple[int, int, str]:
    """Order of cards: by kind, the worst first, by id among equals."""
    return GROUPS.index(card["group"]), _RANKS[card["state"]], card["id"]


class WorkerFeed(SharedWatch):
    """The cards of all workers that are alive, and their changes."""

    kind = "workers"

    def __init__(self, registry: WorkerRegistry) -> None:
        super().__init__(registry)
        self._registry = registry
        self._seen_at: dict[str, float] = {}
        self._unconfirmed: set[str] = set()  # seen by the first look, not by the watch
        self._changed: set[str] = set()
        self._gone: set[str] = set()
        self._refreshed: set[str] = set()
        self._more = anyio.Event()
        self.workers: dict[str, Worker] = {}

    def seconds_since(self, key: str) -> float:
        """Give the age of a worker's view, which its own ages do not include."""
        now = anyio.current_time()
        return now - self._seen_at.get(key, now)

    def cards(self) -> list[JSONObject]:
        """Make the cards of all workers, as of now."""
        return sorted(map(self._card, self.workers), key=place_of_worker)

    def _card(self, key: str) -> JSONObject:
        return make_worker_card(self.workers[key], self.seconds_since(key))

    async def _watch_once(self) -> None:
        self._begin(await self._registry.alive())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publish_changes)
            with suppress(RedisUnavailableError):  # the next first look raises it
                await self._follow_changes()
            tasks.cancel_scope.cancel()

    async def _follow_changes(self) -> None:
        watch = self._registry.watch(interval=INTERVAL, refreshes=True)
        async with aclosing(watch) as changes:
            async for change in changes:
                self._take(change)

    def _begin(self, found: list[Worker]) -> None:
        """Publish a first picture: a watch without any worker reports nothing."""
        here = {_key_of(worker): worker for worker in found}
        self._gone |= self.workers.keys() - here.keys()
        self._changed |= here.keys()
        self._unconfirmed = set(here)
        self._seen_at = dict.fromkeys(here, anyio.current_time())
        self.workers = here
        self.unavailable, self.looked = None, True
        self._seen.set()
        self._more.set()

    def _take(self, change: WorkerChange) -> None:
        if change.worker is None:
            self.unavailable = change.error
        else:
            self._record(change.what, change.worker)
        self._more.set()

    def _record(self, what: str, worker: Worker) -> None:
        key = _key_of(worker)
        self._unconfirmed.discard(key)
        if what == "left":
            self._forget(key)
            return
        known = key in self.workers
        self.workers[key] = worker
        self._seen_at[key] = anyio.current_time()
        self._gone.discard(key)
        if what == "refreshed" and known:
            self._refreshed.add(key)
        else:
            self._changed.add(key)

    def _forget(self, key: str) -> None:
        self.workers.pop(key, None)
        self._seen_at.pop(key, None)
        self._gone.add(key)

    async def _publish_changes(self) -> None:
        """Publish changes, a few times a second at most."""
        while True:
            with anyio.move_on_after(1):
                await self._more.wait()
            await anyio.sleep(PAUSE)
            self._forget_unconfirmed()
            if self._more.is_set():
                self._more = anyio.Event()
                self._publish_once()

    def _forget_unconfirmed(self) -> None:
        """Forget the workers that left between the first look and that of the watch."""
        for key in [*self._unconfirmed]:
            worker = self.workers.get(key)
            ttl = LONGEST if worker is None or worker.ttl is None else worker.ttl
            if self.seconds_since(key) > ttl + 1:
                self._unconfirmed.discard(key)
                self._forget(key)
                self._more.set()

    def _publish_once(self) -> None:
        """Publish the changed cards; of workers that only refreshed, their ages."""
        cards = [
            self._card(key) for key in sorted(self._changed) if key in self.workers
        ]
        ages: JSONObject = {
            key: later(self.workers[key].age, self.seconds_since(key))
            for key in self._refreshed - self._changed
            if key in self.workers
        }
        gone = sorted(self._gone)
        self._changed, self._gone, self._refreshed = set(), set(), set()
        self._publish(cards, gone, ages=ages)

    def _publish(
        self,
        cards: Iterable[JSONObject] = (),
        gone: Iterable[str] = (),
        **more: JSONValue,
    ) -> None:
        super()._publish(cards, gone, **({"ages": {}} | more))
