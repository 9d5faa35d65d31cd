"""The pages of runs: all of them, the newest first; and what happens in one."""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.runs import EventCategory, RunState, RunSummary
from bls_agent.web.feeds.run_feed import clock
from bls_agent.web.interface.run_events import run_in_path
from bls_agent.web.pages.rendering import render, render_large
from bls_agent.web.pages.run_cards import STATES, make_run_card, place_of_run
from bls_agent.web.state import web_state

__all__ = ["run_routes"]

_BLANK: Final = make_run_card(RunSummary(0, RunState.OPEN, 0), 0.0)


async def _show_runs(request: Request) -> Response:
    """Show the newest runs."""
    watch = web_state(request).run_list
    await watch.ready()
    cards = sorted(watch.cards(), key=place_of_run)
    counted = Counter(card["state"] for card in cards)
    return await render_large(
        request,
        "runs.html",
        here="/runs",
        cards=cards,
        states=STATES,
        counts={state: counted[state] for state in STATES},
        total=watch.total,
        blank=_BLANK,
        away=watch.unavailable.kind if watch.unavailable else "",
        looked=bool(cards) or (watch.looked and not watch.unavailable),
    )


async def _show_run(request: Request) -> Response:
    """Show one run: how it stands, and its events as they come."""
    run_id = run_in_path(request)
    found = await web_state(request).runs.describe(run_id)
    run = found or RunSummary(run_id, RunState.OPEN, 0)
    return render(
        request,
        "run.html",
        card=make_run_card(run, clock(), whole=True),
        there=found is not None,
        states=STATES,
        categories=[category.value for category in EventCategory],
    )


run_routes: Final = [
    Route("/runs", _show_runs),
    Route("/runs/{run}", _show_run),
]
