"""The pages of crawl queues: all of them, and one with its failed requests."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bls_agent.codec import JSONObject
from bls_agent.crawl.namespace import Namespace
from bls_agent.crawl.overview import QueueView
from bls_agent.errors import BlsError, RedisUnavailableError
from bls_agent.terminal import visible
from bls_agent.web.any_name import ANY_QUEUE
from bls_agent.web.names_in_urls import quote_name
from bls_agent.web.pages.crawl_cards import (
    FIGURES,
    STATES,
    TOTALS,
    make_failure,
    make_queue_card,
    place_of_queue,
)
from bls_agent.web.pages.rendering import (
    render,
    render_if_new,
    render_large,
    texts_of,
)
from bls_agent.web.sending import crawl_queue, requeue_failed
from bls_agent.web.state import web_state

__all__ = ["crawl_routes"]

FAILED: Final = 100  # entries of the failed list that are shown
_BLANK: Final = make_queue_card(QueueView(Namespace("", None), None))


async def _show_queues(request: Request) -> Response:
    """Show every queue."""
    feed = web_state(request).crawl
    await feed.ready()
    cards = sorted(feed.cards.values(), key=place_of_queue)
    counted = Counter(card["state"] for card in cards)
    return await render_large(
        request,
        "queues.html",
        here="/crawl",
        cards=cards,
        states=STATES,
        figures=FIGURES,
        counts={state: counted[state] for state in STATES},
        blank=_BLANK,
        away=feed.unavailable.kind if feed.unavailable else "",
        looked=bool(cards) or (feed.looked and not feed.unavailable),
    )


async def _show_queue(request: Request) -> Response:
    """Show one queue."""
    told = await _tell_queue(request)
    status = 200 if told["card"] else 503 if told["away"] else 404
    return render(
        request,
        "crawl_queue.html",
        status,
        here="/crawl",
        **told,
        **await _tell_failed(request),
    )


async def _show_queue_again(request: Request) -> Response:
    """Give what one queue holds, if it has changed."""
    return render_if_new(request, "crawl_sheet.html", **await _tell_queue(request))


async def _tell_queue(request: Request) -> dict[str, Any]:
    feed = web_state(request).crawl
    await feed.ready()
    name: str = request.path_params["queue"]
    card = feed.cards.get(quote_name(name))
    return {
        "card": card,
        "name": visible(name),
        "key": quote_name(name),
        "figures": FIGURES,
        "totals": TOTALS,
        "away": feed.unavailable.kind if feed.unavailable else "",
    }


async def _show_failed(request: Request) -> Response:
    """Give the failed requests of one queue, if they have changed."""
    return render_if_new(request, "crawl_failed.html", **await _tell_failed(request))


async def _requeue(request: Request) -> Response:
    """Queue what failed once more, and say how many requests."""
    texts = texts_of(request)
    try:
        count = await requeue_failed(request, request.path_params["queue"])
        note = texts["requeued"].format(count=f"{count:,}")
    except RedisUnavailableError as error:
        refused = error.kind == "no_permission"
        note = texts["requeue_forbidden"] if refused else _say_not_done(texts, error)
    except BlsError as error:
        note = _say_not_done(texts, error)
    told = await _tell_failed(request, note)
    return render(request, "crawl_failed.html", **told)


def _say_not_done(texts: Any, error: BlsError) -> str:
    return str(texts["not_requeued"].format(reason=visible(str(error))))


async def _tell_failed(request: Request, note: str = "") -> dict[str, Any]:
    rows: list[JSONObject] = []
    why = fault = ""
    try:
        async with crawl_queue(request, request.path_params["queue"]) as queue:
            rows = [make_failure(one) for one in await queue.failed(FAILED + 1)]
    except RedisUnavailableError as error:
        why = visible(error.kind)
    except BlsError as error:  # a key of another type, a name that no queue can have
        fault = visible(str(error))
    return {
        "rows": rows[:FAILED],
        "more": len(rows) > FAILED,
        "why": why,
        "fault": fault,
        "note": note,
    }


crawl_routes: Final = [
    Route("/crawl", _show_queues),
    Route(f"/crawl/{ANY_QUEUE}", _show_queue),
    Route(f"/fragments/crawl/{ANY_QUEUE}", _show_queue_again),
    Route(f"/fragments/failed/{ANY_QUEUE}", _show_failed),
    Route(f"/fragments/requeue/{ANY_QUEUE}", _requeue, methods=["POST"]),
]
