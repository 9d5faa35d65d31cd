"""One look at the asset library for any number of pages."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

from bls_agent.assets.library import AssetLibrary
from bls_agent.assets.records import KEPT, AssetSummary, SyncState
from bls_agent.codec import JSONObject
from bls_agent.errors import DecodeError, RedisUnavailableError, WrongTypeError
from bls_agent.web.feeds.ring import Item
from bls_agent.web.feeds.run_feed import clock
from bls_agent.web.feeds.shared_watch import SharedWatch
from bls_agent.web.pages.asset_cards import (
    encode_asset_changes,
    encode_assets,
    make_asset_card,
    make_broken_card,
    make_sync_sheet,
)

__all__ = ["AssetFeed"]

INTERVAL: Final = 2.0  # seconds between two looks, at least
REST: Final = 4.0  # times as long as a look took
SLICE: Final = 500  # cards without letting others run
WHOLE: Final = 30.0  # seconds until the index is read though nobody told of a change

_T = TypeVar("_T")


class AssetFeed(SharedWatch):
    """Which assets there are, how the last synchronisation went, and what changes.

    The index is read when the list of changes has changed, and now and then.

    Attributes:
        library: Where they are read.
        assets: What the index says, by id.
        broken: Id → what is wrong with an entry of the index.
        cards: Key → card of both.
        state: Of the synchronisation.
        problems: What is wrong with the keys of the library themselves.
    """

    def __init__(self, library: AssetLibrary) -> None:
        """Remember whom to ask."""
        super().__init__()
        self.library = library
        self.assets: list[AssetSummary] = []
        self.broken: dict[str, DecodeError] = {}
        self.cards: dict[str, JSONObject] = {}
        self.state = SyncState()
        self.problems: list[str] = []

    async def aclose(self) -> None:
        """Close what the watch had opened."""
        await self.library.aclose()

    def sync_sheet(self) -> JSONObject:
        """Say how the last synchronisation stands, as of now."""
        return make_sync_sheet(self.state, clock(), self.problems)

    def _write_picture(self) -> bytes:
        return encode_assets(self.cards.values(), self.unavailable)

    async def _watch_once(self) -> None:
        told: list[str] | None = None
        whole_at = 0.0
        cards: list[JSONObject] = []
        while True:
            began = anyio.current_time()
            problems: list[str] = []
            state = await _read(self.library.sync_state(), SyncState(), problems)
            before, told = told, await _read(self.library.changes(KEPT), [], problems)
            if told != before or began >= whole_at or problems != self.problems:
                found = await _read(self.library.read_index(), ([], {}), problems)
                self.assets, self.broken = found
                cards = [make_broken_card(*pair) for pair in self.broken.items()]
                for number, one in enumerate(self.assets):
                    cards.append(make_asset_card(one))
                    if number % SLICE == 0:
                        await anyio.lowlevel.checkpoint()
                whole_at = began + WHOLE
            self.state, self.problems = state, problems
            self._take({card["key"]: card for card in cards})
            took = anyio.current_time() - began
            await anyio.sleep(max(INTERVAL, REST * took))

    def _take(self, cards: dict[str, JSONObject]) -> None:
        before, turned = self.cards, self.unavailable is not None
        self.cards, self.unavailable, self.looked = cards, None, True
        self._seen.set()
        changed = [card for key, card in cards.items() if card != before.get(key)]
        gone = before.keys() - cards.keys()
        if changed or gone or turned:
            self._ring.add(Item(encode_asset_changes(changed, sorted(gone), None)))

    def _take_outage(self, error: RedisUnavailableError) -> None:
        self.unavailable = error
        self._seen.set()
        self._ring.add(Item(encode_asset_changes((), (), error)))


async def _read(reading: Awaitable[_T], otherwise: _T, problems: list[str]) -> _T:
    """Read one key; where another type stands, note that, and go on without it."""
    try:
        return await reading
    except WrongTypeError as error:
        problems.append(str(error))
        return otherwise
