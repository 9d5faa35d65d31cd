"""The pages of assets: the whole library with its last synchronisation, and one asset."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.assets.records import AssetSummary
from bls_agent.codec import JSONObject
from bls_agent.errors import ConfigurationError, RedisUnavailableError
from bls_agent.terminal import visible
from bls_agent.web.any_name import ANY_ASSET
from bls_agent.web.names_in_urls import quote_name
from bls_agent.web.pages.asset_cards import (
    COLUMNS,
    STATES,
    make_asset_card,
    make_asset_sheet,
    place_of_asset,
)
from bls_agent.web.pages.rendering import render, render_if_new, render_large
from bls_agent.web.state import web_state

__all__ = ["asset_routes"]

_BLANK: Final = make_asset_card(AssetSummary("", "", "tool", ""))


async def _show_assets(request: Request) -> Response:
    """Show every asset of the index, and how the last synchronisation went."""
    feed = web_state(request).assets
    await feed.ready()
    cards = sorted(feed.cards.values(), key=place_of_asset)
    counted = Counter(card["state"] for card in cards)
    return await render_large(
        request,
        "assets.html",
        here="/assets",
        cards=cards,
        states=STATES,
        counts={state: counted[state] for state in STATES},
        blank=_BLANK,
        looked=bool(cards) or (feed.looked and not feed.unavailable),
        **_tell_sync(request),
    )


def _tell_sync(request: Request) -> dict[str, Any]:
    feed = web_state(request).assets
    known = feed.looked and feed.unavailable is None
    return {
        "sync": feed.sync_sheet() if known else None,
        "away": feed.unavailable.kind if feed.unavailable else "",
    }


async def _show_sync(request: Request) -> Response:
    """Give the head of the page of assets, if it has changed."""
    await web_state(request).assets.ready()
    return render_if_new(request, "asset_sync.html", **_tell_sync(request))


async def _show_asset(request: Request) -> Response:
    """Show all of one asset."""
    told = await _tell_asset(request)
    status = 200 if told["asset"] else 503 if told["away"] else 404
    return render(request, "asset.html", status, here="/assets", **told)


async def _show_asset_again(request: Request) -> Response:
    """Give all of one asset, if it has changed."""
    return render_if_new(request, "asset_sheet.html", **await _tell_asset(request))


async def _tell_asset(request: Request) -> dict[str, Any]:
    asset_id: str = request.path_params["asset"]
    feed = web_state(request).assets
    sheet: JSONObject | None = None
    away = ""
    try:
        asset = await feed.library.get(asset_id)
        sheet = None if asset is None else make_asset_sheet(asset)
        if asset is None:
            await feed.ready()  # whether the index knows it
    except ConfigurationError:
        pass  # no asset can have this id
    except RedisUnavailableError as error:
        away = error.kind
    key = quote_name(asset_id)
    return {
        "asset": sheet,
        "asset_id": visible(asset_id),
        "key": key,
        "listed": key in feed.cards,
        "columns": COLUMNS,
        "away": away,
    }


asset_routes: Final = [
    Route("/assets", _show_assets),
    Route(f"/assets/{ANY_ASSET}", _show_asset),
    Route("/fragments/assets", _show_sync),
    Route(f"/fragments/assets/{ANY_ASSET}", _show_asset_again),
]
