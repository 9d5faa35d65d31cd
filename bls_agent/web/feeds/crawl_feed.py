"""One look at all crawl queues for any number of pages."""

from __future__ import annotations

from typing import Final

import anyio
import anyio.lowlevel

from bls_agent.codec import JSONObject
from bls_agent.crawl.namespace import Namespace
from bls_agent.crawl.overview import QueueOverview, QueueView
from bls_agent.errors import RedisUnavailableError
from bls_agent.web.feeds.ring import Item
from bls_agent.web.feeds.shared_watch import SharedWatch
from bls_agent.web.pages.crawl_cards import (
    Rates,
    encode_queue_changes,
    encode_queues,
    make_queue_card,
    rates_between,
)

__all__ = ["CrawlFeed"]

INTERVAL: Final = 2.0  # seconds between two looks, at least
REST: Final = 4.0  # times as long as a look took
SEARCH: Final = 10.0  # seconds between two searches for queues, at least
SLICE: Final = 500  # cards without letting others run


class CrawlFeed(SharedWatch):
    """Which crawl queues there are, what they hold, and how fast that changes.

    Attributes:
        overview: Where they are counted.
        views: What each queue held at the last look.
        rates: Requests pushed and taken a second, between the last two looks.
        cards: Key → card of both.
    """

    def __init__(self, overview: QueueOverview) -> None:
        """Remember whom to ask."""
        super().__init__()
        self.overview = overview
        self.views: dict[Namespace, QueueView] = {}
        self.rates: dict[Namespace, Rates | None] = {}
        self.cards: dict[str, JSONObject] = {}

    async def aclose(self) -> None:
        """Close what the watch had opened."""
        await self.overview.aclose()

    def _write_picture(self) -> bytes:
        return encode_queues(self.cards.values(), self.unavailable)

    async def _watch_once(self) -> None:
        before: dict[Namespace, QueueView] = {}  # rates since an outage say nothing
        names: list[Namespace] = []
        search_at = 0.0
        while True:
            began = anyio.current_time()
            if began >= search_at:
                names = await self.overview.find()
                took = anyio.current_time() - began
                search_at = began + max(SEARCH, REST * took)
            began = anyio.current_time()
            await self._take(await self.overview.read(names), before)
            before = self.views
            took = anyio.current_time() - began
            await anyio.sleep(max(INTERVAL, REST * took))

    async def _take(
        self, found: list[QueueView], before: dict[Namespace, QueueView]
    ) -> None:
        rates: dict[Namespace, Rates | None] = {}
        cards: dict[str, JSONObject] = {}
        for number, view in enumerate(found):
            known = before.get(view.name)
            rate = rates_between(known.stats if known else None, view.stats)
            rates[view.name] = rate
            card = make_queue_card(view, rate)
            cards[card["key"]] = card
            if number % SLICE == 0:
                await anyio.lowlevel.checkpoint()
        shown, turned = self.cards, self.unavailable is not None
        self.views, self.rates = {view.name: view for view in found}, rates
        self.cards, self.unavailable, self.looked = cards, None, True
        self._seen.set()
        changed = [card for key, card in cards.items() if card != shown.get(key)]
        gone = shown.keys() - cards.keys()
        if changed or gone or turned:
            self._ring.add(Item(encode_queue_changes(changed, sorted(gone), None)))

    def _take_outage(self, error: RedisUnavailableError) -> None:
        self.unavailable = error
        self._seen.set()
        self._ring.add(Item(encode_queue_changes((), (), error)))
