"""The watch of the asset library, and the fields of assets for the pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import anyio

from bls_agent.assets.library import AssetLibrary
from bls_agent.assets.records import CATEGORIES, KEPT, Asset, AssetSummary, SyncState
from bls_agent.core.codec import JSONObject, encode_lines, json_or_text
from bls_agent.core.errors import DecodeError
from bls_agent.ops.terminal import visible_lines
from bls_agent.ops.web.feeds.watch import (
    Currency,
    SharedWatch,
    clock,
    pause_after,
    shorten,
    show_time,
)
from bls_agent.ops.web.requests import convert, quote_name

# State of an entry of the index → its colour; unreadable entries come first.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {"broken": "odd", **{category: category for category in CATEGORIES}}
)
# State of the last synchronisation → the name of its colour and shape.
SYNC_STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "never": "never",
        "idle": "online",
        "syncing": "going",
        "interrupted": "stale",
        "failed": "fault",
        "odd": "odd",
    }
)
COLUMNS: Final = ("name", "label", "type", "required", "default", "placeholder", "options")  # fmt: skip
LONGEST_REASON: Final = 2_000  # characters
LONGEST_TEXT: Final = 65_536  # characters of one field on an asset's page
MOST_ROWS: Final = 500
MOST_FAULTS: Final = 100
INTERVAL: Final = 2.0  # least seconds between two reads
SLICE: Final = 500  # cards that are made before other tasks may run
WHOLE: Final = 30.0  # seconds after which the index is read even if nothing changed


def make_asset_card(one: AssetSummary | Asset, fault: str = "") -> JSONObject:
    if not fault and one.category not in CATEGORIES:
        fault = f"category: {one.category}"
    state = "broken" if fault else one.category
    return {
        "key": quote_name(one.id),
        "id": shorten(one.id),
        "name": shorten(one.name),
        "version": shorten(one.version),
        "about": shorten(one.description),
        "state": state,
        "kind": STATES[state],
        "problem": shorten(fault),
    }


def make_sync_sheet(state: SyncState, now: float) -> JSONObject:
    """Return the fields of the last synchronisation; ``now`` is the Unix time.

    ``said`` is the value of the status key if it is no valid status. ``age`` and ``time``
    are those of the last complete synchronisation. ``reason`` and ``faults`` are set only
    if the last synchronisation has failed.
    """
    at, report = state.last_sync_time, state.report
    status = "interrupted" if state.is_interrupted else state.sync_status or "never"
    known = status in SYNC_STATES
    failed = report if status == "failed" else None
    faults = () if failed is None else failed.broken[:MOST_FAULTS]
    return {
        "state": status if known else "odd",
        "kind": SYNC_STATES.get(status, "odd"),
        "said": "" if known else shorten(status),
        "age": None if at is None else max(0.0, now - at),
        "time": show_time(at),
        "commit": shorten(state.last_commit_sha),
        "count": state.synced_count,
        "source": "" if report is None else shorten(report.source),
        "reason": "" if failed is None else shorten(failed.reason, LONGEST_REASON),
        "faults": [shorten(str(fault), LONGEST_REASON) for fault in faults],
    }


def make_asset_sheet(asset: Asset) -> JSONObject:
    """Return all fields of one asset; ``config`` is a table with ``COLUMNS``."""
    return make_asset_card(asset) | {
        "category": shorten(asset.category),
        "author": shorten(asset.author),
        "about": visible_lines(_cut(asset.description)),
        "path": shorten(asset.github_path, LONGEST_REASON),
        "sha": shorten(asset.github_sha),
        "created": show_time(asset.created_at),
        "updated": show_time(asset.updated_at),
        "config": [
            [_format(item.get(name)) for name in COLUMNS]
            for item in asset.config_schema[:MOST_ROWS]
        ],
        "agent_specs": _indent(asset.agent_specs),
        "runtime": _indent(asset.runtime),
        "faults": [
            [name, shorten(reason, LONGEST_REASON)]
            for name, reason in asset.faults.items()
        ],
    }


def _format(value: Any) -> str:
    if value is None or value in ("", []):
        return ""
    return shorten(json_or_text(value), LONGEST_REASON)


def _indent(value: JSONObject | None) -> str:
    return "" if value is None else visible_lines(_cut(encode_lines(value)))


def _cut(text: str) -> str:
    return text[:LONGEST_TEXT] + "…" * (len(text) > LONGEST_TEXT)


class AssetFeed(SharedWatch[JSONObject]):
    """The watch of the assets and of the last synchronisation.

    The feed reads the index when the list of changes has changed, and every 30 seconds.
    """

    kind = "assets"

    def __init__(self, library: AssetLibrary) -> None:
        super().__init__(library)
        self.library = library
        self.assets: list[AssetSummary] = []
        self.broken: dict[str, DecodeError] = {}  # id → what is wrong with the entry
        self.state: SyncState = SyncState()

    def sync_sheet(self) -> JSONObject | None:
        """Return the fields of the last synchronisation; ``None`` if they are unknown."""
        if self.currency is not Currency.CURRENT:
            return None
        return make_sync_sheet(self.state, clock())

    def _card(self, thing: JSONObject, elapsed: float) -> JSONObject:
        del elapsed  # the card shows no age
        return thing

    @staticmethod
    def place_of(card: JSONObject) -> tuple[bool, str]:
        return card["state"] != "broken", card["id"]

    async def _watch_once(self) -> None:
        ids: list[str] | None = None
        whole_at = 0.0
        cards: list[JSONObject] = []
        while True:
            began = anyio.current_time()
            self.state = await self.library.sync_state()
            before, ids = ids, await self.library.changes(KEPT)
            if ids != before or began >= whole_at:
                self.assets, self.broken = await self.library.read_index()
                cards = [
                    make_asset_card(AssetSummary(name, name, "", ""), str(fault))
                    for name, fault in self.broken.items()
                ]
                cards += await convert(self.assets, make_asset_card, SLICE)
                whole_at = began + WHOLE
            self._replace({card["key"]: card for card in cards})
            await anyio.sleep(pause_after(began, INTERVAL))
