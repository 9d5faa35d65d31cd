"""The page of workers: who is alive, by kind, the worst first."""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.codec import JSONObject
from bls_agent.web.pages.rendering import render_large
from bls_agent.web.pages.worker_cards import (
    GROUPS,
    STATES,
    make_worker_card,
    place_of_worker,
)
from bls_agent.web.state import web_state
from bls_agent.workers import Worker

__all__ = ["worker_routes"]

_BLANK: Final = make_worker_card(
    Worker(kind=GROUPS[0], id="", key="", problem="bad_field")
)


async def _show_workers(request: Request) -> Response:
    """Show every worker."""
    watch = web_state(request).workers
    await watch.ready()
    cards = sorted(watch.cards(), key=place_of_worker)
    groups: dict[str, list[JSONObject]] = {group: [] for group in GROUPS}
    for card in cards:
        groups[card["group"]].append(card)
    counted = Counter(card["state"] for card in cards)
    return await render_large(
        request,
        "workers.html",
        here="/workers",
        cards=cards,
        groups=groups,
        states=STATES,
        counts={state: counted[state] for state in STATES},
        blank=_BLANK,
        away=watch.unavailable.kind if watch.unavailable else "",
        looked=bool(cards) or (watch.looked and not watch.unavailable),
    )


worker_routes: Final = [Route("/workers", _show_workers)]
