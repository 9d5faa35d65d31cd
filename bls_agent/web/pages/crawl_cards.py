"""What crawl queues look like on their pages: from what was counted and read. Pure.

A card is language-independent. Its texts are fit to be shown
(:func:`~bls_agent.terminal.visible`); the page words and colours it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from bls_agent.codec import JSONObject, JSONValue, encode, format_timestamp
from bls_agent.crawl.overview import QueueView
from bls_agent.crawl.queue import FailedRequest, QueueStats
from bls_agent.errors import RedisUnavailableError
from bls_agent.redaction import redact
from bls_agent.terminal import visible
from bls_agent.web.names_in_urls import quote_name

__all__ = [
    "FIGURES",
    "STATES",
    "TOTALS",
    "Rates",
    "encode_queue_changes",
    "encode_queues",
    "make_failure",
    "make_queue_card",
    "place_of_queue",
    "rates_between",
]

# What a queue may be, the worst first → the colour and shape of a status like it.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {"broken": "odd", "waiting": "stale", "working": "going", "empty": "offline"}
)
_RANKS: Final = {state: rank for rank, state in enumerate(STATES)}
FIGURES: Final = ("waiting", "in_flight", "delayed", "failed", "push_rate", "take_rate")
TOTALS: Final = ("pushed", "taken", "acknowledged", "retried", "expired")
WHOLE: Final = 10  # a rate from here on is said without a fraction
LONGEST: Final = 200  # characters of a name
LONGEST_TEXT: Final = 2_000  # of a URL, a reason
UNKNOWN: Final = "—"

Rates = tuple[float, float]


def rates_between(before: QueueStats | None, now: QueueStats | None) -> Rates | None:
    """Say how many requests a second were pushed and taken between two looks.

    ``None`` for the first look, and where the counters began anew in between.
    """
    if before is None or now is None or now.seen_at <= before.seen_at:
        return None
    pushed, taken = now.pushed - before.pushed, now.taken - before.taken
    seconds = now.seen_at - before.seen_at
    return None if min(pushed, taken) < 0 else (pushed / seconds, taken / seconds)


def make_queue_card(view: QueueView, rates: Rates | None = None) -> JSONObject:
    """Make the card of a queue.

    Args:
        view: What was counted.
        rates: Of :func:`rates_between`.

    Returns:
        ``key`` (what it is known by; its page is ``/crawl/`` and this), ``project`` and
        ``spider`` (texts), ``state`` (one of ``STATES``) and its ``kind`` (colour and
        shape), ``problem`` (one word, or ``""``), ``failing`` (whether anything failed),
        ``figures`` (``FIGURES`` and ``TOTALS`` → text).
    """
    name, stats, problem = view
    state = "broken" if stats is None else _state_of(stats, rates)
    return {
        "key": quote_name(name.shown),
        "project": _short(name.project, LONGEST),
        "spider": _short(name.spider or "", LONGEST),
        "state": state,
        "kind": STATES[state],
        "problem": visible(problem),
        "failing": stats is not None and stats.failed > 0,
        "figures": _figures(stats, rates),
    }


def _state_of(stats: QueueStats, rates: Rates | None) -> str:
    if stats.in_flight or (rates and rates[1]):
        return "working"
    return "waiting" if stats.waiting or stats.delayed else "empty"


def _figures(stats: QueueStats | None, rates: Rates | None) -> JSONObject:
    counted = [name for name in (*FIGURES, *TOTALS) if not name.endswith("rate")]
    told: JSONObject = {
        name: UNKNOWN if stats is None else f"{getattr(stats, name):,}"
        for name in counted
    }
    pairs = zip(("push_rate", "take_rate"), rates or (None, None), strict=True)
    return told | {name: _say_rate(rate) for name, rate in pairs}


def _say_rate(rate: float | None) -> str:
    if rate is None:
        return UNKNOWN
    return f"{rate:,.0f}" if rate >= WHOLE or not rate else f"{rate:.1f}"


def make_failure(one: FailedRequest) -> JSONObject:
    """Make a row of the failed list: texts, without credentials."""
    request = one.request
    url = "" if request is None else f"{request.method} {request.url}"
    return {
        "time": _time(one.failed_at),
        "attempts": f"{one.attempts:,}",
        "priority": f"{one.priority:g}",
        "request": _short(redact(url), LONGEST_TEXT),
        "reason": _short(redact(one.reason), LONGEST_TEXT),
        "readable": request is not None,
    }


def _time(seconds: float) -> str:
    try:
        return format_timestamp(seconds)[:19].replace("T", " ")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def _short(text: str, longest: int) -> str:
    return visible(text[:longest]) + "…" * (len(text) > longest)


def place_of_queue(card: JSONObject) -> tuple[int, str, str]:
    """Say where a card stands: the worst first, by name among equals."""
    return _RANKS[card["state"]], card["project"], card["spider"]


def encode_queues(
    cards: Iterable[JSONObject], unavailable: RedisUnavailableError | None
) -> bytes:
    """Write the whole picture, for somebody who begins to follow."""
    ordered = sorted(cards, key=place_of_queue)
    return encode({"whole": True, "queues": ordered, "away": _away(unavailable)})


def encode_queue_changes(
    cards: Iterable[JSONObject],
    gone: Iterable[str],
    unavailable: RedisUnavailableError | None,
) -> bytes:
    """Write what has changed, for everybody who follows."""
    told = {"queues": list(cards), "gone": list(gone)}
    return encode(told | {"away": _away(unavailable)})


def _away(error: RedisUnavailableError | None) -> JSONValue:
    return None if error is None else visible(error.kind)
