"""The watch of the crawl queues, and the card of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote

import anyio

from bls_agent.core.codec import JSONObject
from bls_agent.core.redaction import redact
from bls_agent.crawl.overview import (
    FailedRequest,
    Namespace,
    QueueOverview,
    QueueStats,
    QueueView,
)
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.feeds.watch import SharedWatch, pause_after, shorten, show_time
from bls_agent.ops.web.requests import convert, quote_name

# State of a queue, the worst first → the name of its colour and shape.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {"broken": "odd", "waiting": "stale", "working": "going", "empty": "offline"}
)
_RANKS: Final = {state: rank for rank, state in enumerate(STATES)}
FIGURES: Final = ("waiting", "in_flight", "delayed", "failed", "push_rate", "take_rate")
TOTALS: Final = ("pushed", "taken", "acknowledged", "retried", "expired")
WHOLE: Final = 10  # a rate of at least this is shown without a fraction
LONGEST_TEXT: Final = 2_000  # characters of a URL or a reason
UNKNOWN: Final = "—"
INTERVAL: Final = 2.0  # least seconds between two reads
SEARCH: Final = 10.0  # least seconds between two searches for queues
SLICE: Final = 500  # cards that are made before other tasks may run

_Rates = tuple[float, float]


def rates_between(before: QueueStats | None, now: QueueStats | None) -> _Rates | None:
    """Return the requests per second that were pushed and taken between two reads.

    Returns ``None`` for the first read, and if the counters were reset in between.
    """
    if before is None or now is None or now.seen_at <= before.seen_at:
        return None
    pushed, taken = now.pushed - before.pushed, now.taken - before.taken
    seconds = now.seen_at - before.seen_at
    return None if min(pushed, taken) < 0 else (pushed / seconds, taken / seconds)


def make_queue_card(view: QueueView, rates: _Rates | None = None) -> JSONObject:
    """Make the card of a queue; ``figures`` has a text for each figure and total."""
    name, stats, problem = view
    state = "broken" if stats is None else _state_of(stats, rates)
    return {
        "key": quote_name(name.shown),
        "project": shorten(name.project),
        "spider": shorten(name.spider or ""),
        "state": state,
        "kind": STATES[state],
        "problem": visible(problem),
        "failing": stats is not None and stats.failed > 0,
        "figures": _figures(stats, rates),
    }


def _state_of(stats: QueueStats, rates: _Rates | None) -> str:
    if stats.in_flight or (rates and rates[1]):
        return "working"
    return "waiting" if stats.waiting or stats.delayed else "empty"


def _figures(stats: QueueStats | None, rates: _Rates | None) -> JSONObject:
    counted = [name for name in (*FIGURES, *TOTALS) if not name.endswith("rate")]
    fields: JSONObject = {
        name: UNKNOWN if stats is None else f"{getattr(stats, name):,}"
        for name in counted
    }
    pairs = zip(("push_rate", "take_rate"), rates or (None, None), strict=True)
    return fields | {name: _format_rate(rate) for name, rate in pairs}


def _format_rate(rate: float | None) -> str:
    if rate is None:
        return UNKNOWN
    return f"{rate:,.0f}" if rate >= WHOLE or not rate else f"{rate:.1f}"


def make_failure(one: FailedRequest) -> JSONObject:
    """Make one row of the list of failed requests, without credentials in the texts."""
    request = one.request
    url = "" if request is None else f"{request.method} {request.url}"
    return {
        "time": show_time(one.failed_at) or UNKNOWN,
        "attempts": f"{one.attempts:,}",
        "priority": f"{one.priority:g}",
        "request": shorten(redact(url), LONGEST_TEXT),
        "reason": shorten(redact(one.reason), LONGEST_TEXT),
        "readable": request is not None,
    }


class SeenQueue(NamedTuple):
    """A queue as it was read; ``rates`` are those since the previous read."""

    view: QueueView
    rates: _Rates | None
    card: JSONObject


class CrawlFeed(SharedWatch[SeenQueue]):
    """The watch of the crawl queues, with their counts and rates."""

    kind = "queues"

    def __init__(self, overview: QueueOverview) -> None:
        super().__init__(overview)
        self._overview = overview

    @staticmethod
    def project_of(card_key: str) -> str:
        return Namespace.parse(unquote(card_key)).project

    def _card(self, thing: SeenQueue, elapsed: float) -> JSONObject:
        del elapsed  # the card shows no age
        return thing.card

    @staticmethod
    def place_of(card: JSONObject) -> tuple[int, str, str]:
        return _RANKS[card["state"]], card["project"], card["spider"]

    def _differs(self, one: SeenQueue, before: SeenQueue) -> bool:
        return one.card != before.card

    async def _watch_once(self) -> None:
        # Empty after an outage, because rates across the outage would be wrong.
        before: dict[str, SeenQueue] = {}
        names: list[Namespace] = []
        search_at = 0.0

        def see(view: QueueView) -> tuple[str, SeenQueue]:
            key = quote_name(view.name.shown)
            known = before.get(key)
            rates = rates_between(known.view.stats if known else None, view.stats)
            return key, SeenQueue(view, rates, make_queue_card(view, rates))

        while True:
            began = anyio.current_time()
            if began >= search_at:
                names = await self._overview.find()
                search_at = began + pause_after(began, SEARCH)
            began = anyio.current_time()
            views = await self._overview.read(names)
            self._replace(dict(await convert(views, see, SLICE)))
            before = self.found
            await anyio.sleep(pause_after(began, INTERVAL))
