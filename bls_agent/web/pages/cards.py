"""What a project looks like on the wallboard: a card, from what the fleet saw. Pure.

A card is language-independent and made once for all followers. Its texts are fit to be
shown (:func:`~bls_agent.terminal.visible`); the page words and colours it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bls_agent.codec import JSONObject, JSONValue, encode
from bls_agent.errors import RedisUnavailableError
from bls_agent.fleet import Condition, FleetChange, ProjectView
from bls_agent.project.messages import LogEntry
from bls_agent.terminal import visible
from bls_agent.web.names_in_urls import project_path

__all__ = [
    "KINDS",
    "encode_changes",
    "encode_picture",
    "make_card",
    "place_of",
    "sort_cards",
]

LONGEST_SHOWN: Final = 200  # characters of a message on a card
LONGEST_STATUS: Final = 40

KINDS: Final = tuple(condition.value for condition in Condition)


def make_card(view: ProjectView, late: float = 0.0) -> JSONObject:
    """Make the card of a project.

    Args:
        view: What was seen of it.
        late: Seconds since then.

    Returns:
        ``path`` (its page, and what it is known by), ``name``, ``kind`` (one of
        ``KINDS``), ``presence``, ``odd`` (what stands where a status should), ``age`` and
        ``ttl`` of the status, ``age_known`` (whether that age is no estimate), ``last`` (age of the newest record), all in seconds or
        ``None``; ``queue`` (``None``: the key holds another type), ``errors``, ``rate``
        (records a second), ``rates``, ``estimated`` (whether these are),
        ``error`` (newest error's message) and ``error_age`` in seconds or ``None``.
    """
    return {
        "path": project_path(view.project),
        "name": visible(view.project),
        "kind": view.condition.value,
        "presence": view.presence.value,
        "odd": visible(view.status_text[:LONGEST_STATUS]),
        "age": _seconds(view.age, late),
        "age_known": view.age_exact,
        "ttl": _seconds(view.ttl, -late),
        "last": _seconds(view.last_record_age, late),
        "queue": view.queue,
        "errors": view.errors,
        "rate": round(view.rate, 1),
        "rates": list(view.rates),
        "estimated": view.estimated,
        "error": _message_of(view.last_error),
        "error_age": _seconds(view.last_error_age, late),
    }


def _seconds(value: float | None, late: float) -> JSONValue:
    return None if value is None else round(max(value + late, 0.0), 1)


def _message_of(entry: LogEntry | None) -> str:
    if entry is None:
        return ""
    cut = entry.message[:LONGEST_SHOWN]
    return visible(cut) + "…" * (cut != entry.message)


def sort_cards(
    views: Iterable[ProjectView], late: Mapping[str, float]
) -> list[JSONObject]:
    """Make all cards, worst first, by name among equals.

    Args:
        views: What was seen.
        late: Project → seconds since then.
    """
    cards = [make_card(view, late.get(view.project, 0.0)) for view in views]
    return sorted(cards, key=place_of)


def place_of(card: JSONObject) -> tuple[int, str]:
    """Say where a card stands: worst first, by name among equals."""
    return KINDS.index(card["kind"]), card["name"]


def encode_picture(
    views: Mapping[str, ProjectView],
    unavailable: RedisUnavailableError | None,
    late: Mapping[str, float],
) -> bytes:
    """Write the whole picture, for somebody who begins to follow.

    Args:
        views: What was seen.
        unavailable: Why Redis does not answer.
        late: Project → seconds since it was seen.
    """
    return encode(
        {
            "whole": True,
            "cards": sort_cards(views.values(), late),
            "away": _away(unavailable),
        }
    )


def encode_changes(change: FleetChange) -> bytes:
    """Write one change, for everybody who follows."""
    return encode(
        {
            "cards": [make_card(view) for view in change.views.values()],
            "gone": [project_path(name) for name in sorted(change.gone)],
            "away": _away(change.unavailable),
        }
    )


def _away(error: RedisUnavailableError | None) -> JSONValue:
    return None if error is None else visible(error.kind)
