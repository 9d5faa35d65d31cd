"""The pages of the console: HTML for people."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

import anyio.lowlevel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.codec import JSONObject
from bls_agent.errors import ContractError
from bls_agent.fleet import Presence, ProjectView
from bls_agent.terminal import visible
from bls_agent.web.any_name import ANY_NAME
from bls_agent.web.door.origins import local_target
from bls_agent.web.interface.answers import json_answer
from bls_agent.web.names_in_urls import (
    FIELD,
    project_in_path,
    project_in_query,
    quote_name,
)
from bls_agent.web.pages.asset_pages import asset_routes
from bls_agent.web.pages.cards import KINDS, make_card, place_of, sort_cards
from bls_agent.web.pages.command_pages import command_routes
from bls_agent.web.pages.crawl_pages import crawl_routes
from bls_agent.web.pages.rendering import render, render_large, texts_of
from bls_agent.web.pages.run_pages import run_routes
from bls_agent.web.pages.worker_pages import worker_routes
from bls_agent.web.state import web_state

__all__ = ["error_page", "login_page", "routes"]

SLICE: Final = 100  # cards without letting others run
LONGEST_DETAIL: Final = 500
AGAIN: Final = 3  # seconds after which a page that needs Redis tries again
_BLANK: Final[JSONObject] = make_card(ProjectView(project=""))
_WITH_HEADLINE: Final = frozenset({400, 403, 404, 405, 413, 429, 500, 503})


async def _show_wallboard(request: Request) -> Response:
    """Show every project, worst first."""
    fleet = web_state(request).fleet
    await fleet.ready()
    views = dict(fleet.views)  # as it is now, whatever comes in between
    late = {name: fleet.seconds_since(name) for name in views}
    cards: list[JSONObject] = []
    for begin in range(0, len(views), SLICE):
        part = list(views.values())[begin : begin + SLICE]
        cards += sort_cards(part, late)
        await anyio.lowlevel.checkpoint()
    cards.sort(key=place_of)
    counted = Counter(card["kind"] for card in cards)
    return await render_large(
        request,
        "wallboard.html",
        here="/",
        cards=cards,
        counts={kind: counted[kind] for kind in KINDS},
        kinds=KINDS,
        blank=_BLANK,
        away=fleet.unavailable.kind if fleet.unavailable else "",
        looked=bool(views) or (fleet.looked and not fleet.unavailable),
    )


async def _show_project(request: Request) -> Response:
    """Show one project: its card, log and commands."""
    project = project_in_path(request.scope)
    fleet = web_state(request).fleet
    await fleet.ready()
    view = fleet.views.get(project)
    if view is None and (fleet.unavailable or not fleet.looked):
        kind = fleet.unavailable.kind if fleet.unavailable else ""
        return error_page(request, 503, name=project, detail=kind)
    view = view or await _newcomer(request, project)
    if view is None:
        return error_page(request, 404, name=project)
    return render(
        request,
        "project.html",
        card=make_card(view, fleet.seconds_since(project)),
        query=f"{FIELD}={quote_name(project)}",
        kinds=KINDS,
        away=fleet.unavailable.kind if fleet.unavailable else "",
    )


async def _newcomer(request: Request, project: str) -> ProjectView | None:
    """Look for a project that the fleet has not met yet."""
    state = web_state(request)
    if not project or not await state.console.exists(project):
        return None
    try:
        status = await state.console.status(project)
    except ContractError:
        status = None
    known = Presence.NEVER if status is None else Presence.UNTIMED
    return ProjectView(project=project, status=status, presence=known)


async def _show_changes(request: Request) -> Response:
    """Show which statuses have changed; what happens next, the page asks for."""
    return render(request, "changes.html", here="/changes", kinds=KINDS)


async def _show_card(request: Request) -> Response:
    """Give a project's card as JSON, as the wallboard's stream does."""
    project = project_in_query(request.scope)
    fleet = web_state(request).fleet
    await fleet.ready()
    view = fleet.views.get(project)
    card = make_card(view, fleet.seconds_since(project)) if view else None
    away = fleet.unavailable.kind if fleet.unavailable else None
    return json_answer({"cards": [card] if card else [], "away": away})


async def _show_login(request: Request) -> Response:
    """Ask for the password."""
    root: str = request.scope.get("root_path", "")
    wanted = request.query_params.get("next", "")
    return login_page(request, next_path=local_target(wanted, default=f"{root}/"))


def login_page(
    request: Request, *, failed: bool = False, wait: float = 0, next_path: str = "/"
) -> Response:
    """Ask for the password.

    Args:
        request: Whose language and theme count.
        failed: Whether the one before was wrong.
        wait: Seconds in which no other one is looked at.
        next_path: Where to go afterwards.
    """
    texts = texts_of(request)
    complaint = texts["login_failed"] if failed else ""
    if wait:
        complaint = texts["login_wait"].format(seconds=math.ceil(wait))
    status = 429 if wait else 401 if failed else 200
    return render(
        request, "login.html", status, complaint=complaint, next_path=next_path
    )


def error_page(
    request: Request, status: int, *, name: str = "", detail: str = ""
) -> Response:
    """Say what is wrong, with a way back.

    Args:
        request: Whose language and theme count.
        status: HTTP status.
        name: The project that it is about.
        detail: More about it, in English.
    """
    texts = texts_of(request)
    headline = texts[f"error_{status}" if status in _WITH_HEADLINE else "error_other"]
    hint = texts["error_503_hint"] if status == 503 else ""  # noqa: PLR2004 - HTTP's own
    if status == 404 and name:  # noqa: PLR2004
        headline, hint = texts["error_404_project"], texts["error_404_hint"]
    part_of_page = "hx-request" in request.headers
    return render(
        request,
        "trouble.html" if part_of_page else "error.html",
        status,
        {"retry-after": str(AGAIN)} if status == 503 else None,  # noqa: PLR2004
        number=status,
        headline=headline,
        hint=hint,
        name=visible(name),
        detail=visible(detail[:LONGEST_DETAIL]),
        again=AGAIN if status == 503 else 0,  # noqa: PLR2004
    )


routes: Final = [
    Route("/", _show_wallboard),
    Route(f"/projects/{ANY_NAME}", _show_project),
    Route("/changes", _show_changes),
    Route("/fragments/card", _show_card),
    Route("/login", _show_login, methods=["GET"]),
    *command_routes,
    *worker_routes,
    *run_routes,
    *asset_routes,
    *crawl_routes,
]
