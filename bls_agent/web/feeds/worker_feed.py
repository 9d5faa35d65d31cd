"""One watch of all workers for any number of pages."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import Final

import anyio

from bls_agent.codec import JSONObject, JSONValue
from bls_agent.errors import RedisUnavailableError
from bls_agent.web.feeds.ring import Item
from bls_agent.web.feeds.shared_watch import SharedWatch
from bls_agent.web.pages.worker_cards import (
    encode_worker_changes,
    encode_workers,
    make_worker_card,
    worker_key,
)
from bls_agent.workers import Worker, WorkerChange, WorkerRegistry

__all__ = ["WorkerFeed"]

INTERVAL: Final = 1.0  # seconds between two looks
PAUSE: Final = 0.3  # seconds for which changes are gathered into one event
LONGEST: Final = 60.0  # seconds that a key without an end is believed unconfirmed


class WorkerFeed(SharedWatch):
    """Who is alive, and what of that changes.

    Attributes:
        workers: What each worker is known by → how it is; as fresh as the watch.
    """

    def __init__(self, registry: WorkerRegistry) -> None:
        """Remember whom to ask."""
        super().__init__()
        self._registry = registry
        self._seen_at: dict[str, float] = {}
        self._unconfirmed: set[str] = (
            set()
        )  # seen by the first look, not yet by a watch
        self._changed: set[str] = set()
        self._gone: set[str] = set()
        self._refreshed: set[str] = set()
        self._more = anyio.Event()
        self.workers: dict[str, Worker] = {}

    async def aclose(self) -> None:
        """Close what the watch had opened."""
        await self._registry.aclose()

    def seconds_since(self, key: str) -> float:
        """Tell how long ago a worker was seen as it is: its ages are of then."""
        now = anyio.current_time()
        return now - self._seen_at.get(key, now)

    def cards(self) -> list[JSONObject]:
        """Make the cards of all workers, as of now."""
        return [
            make_worker_card(worker, self.seconds_since(key))
            for key, worker in self.workers.items()
        ]

    def _write_picture(self) -> bytes:
        return encode_workers(self.cards(), self.unavailable)

    async def _watch_once(self) -> None:
        self._begin(await self._registry.alive())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell)
            with suppress(RedisUnavailableError):  # refused: the next first look tells
                await self._follow_changes()
            tasks.cancel_scope.cancel()

    async def _follow_changes(self) -> None:
        watch = self._registry.watch(interval=INTERVAL, refreshes=True)
        async with aclosing(watch) as changes:
            async for change in changes:
                self._take(change)

    def _begin(self, found: list[Worker]) -> None:
        """Take the first picture: a watch says nothing where nobody is."""
        here = {worker_key(worker): worker for worker in found}
        self._gone |= self.workers.keys() - here.keys()
        self._changed |= here.keys()
        self._unconfirmed = set(here)
        self._seen_at = dict.fromkeys(here, anyio.current_time())
        self.workers = here
        self.unavailable, self.looked = None, True
        self._seen.set()
        self._more.set()

    def _take_outage(self, error: RedisUnavailableError) -> None:
        self.unavailable = error
        self._seen.set()
        self._ring.add(Item(encode_worker_changes((), (), {}, error)))

    def _take(self, change: WorkerChange) -> None:
        if change.worker is None:
            self.unavailable = change.error
        else:
            self._note(change.what, change.worker)
        self._more.set()

    def _note(self, what: str, worker: Worker) -> None:
        key = worker_key(worker)
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

    async def _tell(self) -> None:
        """Give what has changed to the followers, a few times a second at most."""
        while True:
            with anyio.move_on_after(1):
                await self._more.wait()
            await anyio.sleep(PAUSE)
            self._forget_unconfirmed()
            if self._more.is_set():
                self._more = anyio.Event()
                self._ring.add(Item(self._write_changes()))

    def _forget_unconfirmed(self) -> None:
        """Forget who left between the first look and that of the watch."""
        for key in [*self._unconfirmed]:
            worker = self.workers.get(key)
            ttl = LONGEST if worker is None or worker.ttl is None else worker.ttl
            if self.seconds_since(key) > ttl + 1:
                self._unconfirmed.discard(key)
                self._forget(key)
                self._more.set()

    def _write_changes(self) -> bytes:
        changed = [key for key in sorted(self._changed) if key in self.workers]
        ages: dict[str, JSONValue] = {
            key: _age_of(self.workers[key], self.seconds_since(key))
            for key in self._refreshed - self._changed
            if key in self.workers
        }
        cards = [
            make_worker_card(self.workers[key], self.seconds_since(key))
            for key in changed
        ]
        gone = sorted(self._gone)
        self._changed, self._gone, self._refreshed = set(), set(), set()
        return encode_worker_changes(cards, gone, ages, self.unavailable)


def _age_of(worker: Worker, late: float) -> JSONValue:
    return None if worker.age is None else round(worker.age + late, 1)
