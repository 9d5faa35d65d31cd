"""One watch of all runs for any number of pages."""

from __future__ import annotations

import time
from typing import Final

import anyio

from bls_agent.codec import JSONObject
from bls_agent.errors import RedisUnavailableError
from bls_agent.runs import EventStore, RunList, RunSummary
from bls_agent.web.feeds.ring import Item
from bls_agent.web.feeds.shared_watch import SharedWatch
from bls_agent.web.pages.run_cards import (
    encode_run_changes,
    encode_runs,
    make_run_card,
)

__all__ = ["RunFeed", "clock"]

INTERVAL: Final = 2.0  # seconds between two looks, at least
REST: Final = 4.0  # times as long as a look took
MOST: Final = 500  # runs that are shown


def clock() -> float:
    """Give the seconds since 1970, as the ids of events count them."""
    return time.time()  # noqa: TID251 - the outermost place


class RunFeed(SharedWatch):
    """Which runs there are, and what of that changes.

    Attributes:
        runs: The newest of them, by their ids; as fresh as the watch.
        total: How many there are.
        left_out: What has the key of a run and is none: why → how many.
    """

    def __init__(self, store: EventStore) -> None:
        """Remember whom to ask."""
        super().__init__()
        self._store = store
        self.runs: dict[int, RunSummary] = {}
        self.total = 0
        self.left_out: dict[str, int] = {}

    async def aclose(self) -> None:
        """Leave the store to who opened it."""

    def cards(self) -> list[JSONObject]:
        """Make the cards of all runs, as of now."""
        now = clock()
        return [make_run_card(run, now) for run in self.runs.values()]

    def _write_picture(self) -> bytes:
        return encode_runs(self.cards(), self.total, self.unavailable)

    async def _watch_once(self) -> None:
        while True:
            began = anyio.current_time()
            self._take(await self._store.runs(MOST))
            took = anyio.current_time() - began
            await anyio.sleep(max(INTERVAL, REST * took))

    def _take(self, found: RunList) -> None:
        before, self.runs = self.runs, {run.run_id: run for run in found}
        now = clock()
        cards = [
            make_run_card(run, now)
            for run_id, run in self.runs.items()
            if run_id not in before or _looks_other(run, before[run_id])
        ]
        gone = before.keys() - self.runs.keys()
        turned = self.unavailable is not None or self.total != found.total
        self.total, self.left_out = found.total, dict(found.left_out)
        self.unavailable, self.looked = None, True
        self._seen.set()
        if cards or gone or turned:
            self._ring.add(
                Item(encode_run_changes(cards, sorted(gone), self.total, None))
            )

    def _take_outage(self, error: RedisUnavailableError) -> None:
        self.unavailable = error
        self._seen.set()
        self._ring.add(Item(encode_run_changes((), (), self.total, error)))


def _looks_other(run: RunSummary, before: RunSummary) -> bool:
    seen, known = (
        (one.state, one.last_id, one.length, one.first_id) for one in (run, before)
    )
    return seen != known
