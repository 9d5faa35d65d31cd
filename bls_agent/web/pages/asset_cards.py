"""What assets look like on their pages: from what the library read. Pure.

A card is language-independent. Its texts are fit to be shown
(:func:`~bls_agent.terminal.visible`); the page words and colours it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from bls_agent.assets.records import CATEGORIES, Asset, AssetSummary, SyncState
from bls_agent.codec import (
    JSONObject,
    JSONValue,
    encode,
    encode_lines,
    format_timestamp,
)
from bls_agent.errors import DecodeError, RedisUnavailableError
from bls_agent.terminal import visible, visible_lines
from bls_agent.web.names_in_urls import quote_name

__all__ = [
    "COLUMNS",
    "STATES",
    "SYNC_STATES",
    "encode_asset_changes",
    "encode_assets",
    "make_asset_card",
    "make_asset_sheet",
    "make_broken_card",
    "make_sync_sheet",
    "place_of_asset",
]

# What an entry of the index is → its colour; what cannot be read comes first.
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {"broken": "odd", **{category: category for category in CATEGORIES}}
)
# How the last synchronisation stands → the colour and shape of a status like it.
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
LONGEST: Final = 200  # characters of what stands on a card
LONGEST_REASON: Final = 2_000
LONGEST_TEXT: Final = 65_536  # characters of one field on an asset's page
MOST_ROWS: Final = 500
MOST_FAULTS: Final = 100
LATEST: Final = 253_402_300_800  # the year 10000, in Unix seconds


def make_asset_card(one: AssetSummary) -> JSONObject:
    """Make the card of an asset.

    Returns:
        ``key`` (what it is known by; its page is ``/assets/`` and this), ``id``,
        ``name``, ``version``, ``about`` (texts), ``state`` (one of ``STATES``), its
        ``kind`` (colour) and ``problem`` (what is wrong with the entry, or ``""``).
    """
    known = one.category in CATEGORIES
    problem = "" if known else f"category: {one.category}"
    return _card(one.id, one.name, one.category if known else "broken", problem) | {
        "version": _short(one.version),
        "about": _short(one.description),
    }


def make_broken_card(asset_id: str, fault: DecodeError) -> JSONObject:
    """Make the card of an entry of the index that cannot be read."""
    return _card(asset_id, asset_id, "broken", str(fault))


def _card(asset_id: str, name: str, state: str, problem: str) -> JSONObject:
    return {
        "key": quote_name(asset_id),
        "id": _short(asset_id),
        "name": _short(name),
        "version": "",
        "about": "",
        "state": state,
        "kind": STATES[state],
        "problem": _short(problem),
    }


def place_of_asset(card: JSONObject) -> tuple[bool, str]:
    """Say where a card stands: what cannot be read first, then by id."""
    return card["state"] != "broken", card["id"]


def make_sync_sheet(
    state: SyncState, now: float, problems: Sequence[str] = ()
) -> JSONObject:
    """Say how the last synchronisation stands.

    Args:
        state: What the library read.
        now: Seconds since 1970.
        problems: What is wrong with the library's own keys.

    Returns:
        ``state`` (one of ``SYNC_STATES``) and its ``kind``, ``said`` (what stands there
        where it is no status), ``age`` and ``time`` of the last complete one, or
        ``None`` and ``""``, ``commit``, ``count``, ``source``, ``reason`` and ``faults``
        (texts) of one that failed, ``problems``.
    """
    status, at, report = state.sync_status, state.last_sync_time, state.report
    if state.is_interrupted:
        status = "interrupted"
    failed = report if report is not None and status == "failed" else None
    shown = status or "never"
    return {
        "state": shown if shown in SYNC_STATES else "odd",
        "kind": SYNC_STATES.get(shown, "odd"),
        "said": "" if shown in SYNC_STATES else _short(shown),
        "age": None if at is None else max(0.0, now - at),
        "time": _time(at),
        "commit": _short(state.last_commit_sha),
        "count": state.synced_count,
        "source": "" if report is None else _short(report.source),
        "reason": "" if failed is None else _short(failed.reason, LONGEST_REASON),
        "faults": [
            _short(str(fault), LONGEST_REASON)
            for fault in (() if failed is None else failed.broken[:MOST_FAULTS])
        ],
        "problems": [visible(problem) for problem in problems],
    }


def make_asset_sheet(asset: Asset) -> JSONObject:
    """Say all of one asset: texts, a table of its settings (``COLUMNS``), JSON."""
    known = asset.category in CATEGORIES
    return {
        "id": _short(asset.id),
        "name": _short(asset.name),
        "version": _short(asset.version),
        "category": _short(asset.category),
        "state": asset.category if known else "broken",
        "kind": STATES[asset.category if known else "broken"],
        "author": _short(asset.author),
        "about": visible_lines(_cut(asset.description)),
        "path": _short(asset.github_path, LONGEST_REASON),
        "sha": _short(asset.github_sha),
        "created": _time(asset.created_at),
        "updated": _time(asset.updated_at),
        "config": [
            [_say(item.get(name)) for name in COLUMNS]
            for item in asset.config_schema[:MOST_ROWS]
        ],
        "agent_specs": _indent(asset.agent_specs),
        "runtime": _indent(asset.runtime),
    }


def _say(value: Any) -> str:
    if value is None or value in ("", []):
        return ""
    text = value if isinstance(value, str) else encode(value).decode()
    return _short(text, LONGEST_REASON)


def _indent(value: JSONObject | None) -> str:
    return "" if value is None else visible_lines(_cut(encode_lines(value)))


def _cut(text: str) -> str:
    return text[:LONGEST_TEXT] + "…" * (len(text) > LONGEST_TEXT)


def _short(text: str, longest: int = LONGEST) -> str:
    return visible(text[:longest]) + "…" * (len(text) > longest)


def _time(at: int | None) -> str:
    if at is None:
        return ""
    text = format_timestamp(at) if at < LATEST else str(at)
    return text.replace("T", " ").replace(".000Z", " UTC")


def encode_assets(
    cards: Iterable[JSONObject], unavailable: RedisUnavailableError | None
) -> bytes:
    """Write the whole picture, for somebody who begins to follow."""
    ordered = sorted(cards, key=place_of_asset)
    return encode({"whole": True, "assets": ordered, "away": _away(unavailable)})


def encode_asset_changes(
    cards: Iterable[JSONObject],
    gone: Iterable[str],
    unavailable: RedisUnavailableError | None,
) -> bytes:
    """Write what has changed, for everybody who follows.

    Args:
        cards: Assets that are new, or say something else.
        gone: Keys of those that are no more.
        unavailable: Why Redis does not answer.
    """
    told = {"assets": list(cards), "gone": list(gone)}
    return encode(told | {"away": _away(unavailable)})


def _away(error: RedisUnavailableError | None) -> JSONValue:
    return None if error is None else visible(error.kind)
