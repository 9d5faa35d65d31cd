"""The rules about the asset library (contract 000)."""

from __future__ import annotations

import re
from typing import Final

from bls_agent.core.codec import JSONObject, decode
from bls_agent.core.errors import DecodeError
from bls_agent.core.keys import ASSET_REPORT, KEYS, OWNER, place_beside
from bls_agent.ops.doctor.rule import (
    Question,
    Rule,
    Sample,
    Severity,
    Values,
    count_bad,
    read_object,
    show,
)

__all__ = ["RULES"]

CATEGORIES: Final = frozenset({b"tool", b"prompt", b"skill"})
SYNC_STATES: Final = frozenset({b"idle", b"syncing", b"failed"})
REQUIRED: Final = (b"id", b"version", b"category", b"name")
JSON_FIELDS: Final = (b"config_schema", b"agent_specs", b"runtime")
TIMES: Final = (b"created_at", b"updated_at")
SUMMARY: Final = ("id", "name", "category", "version", "description")
DESCRIPTION: Final = 100  # characters in the index
STUCK: Final = 3_600.0  # seconds since the last complete sync
CHANGES: Final = 1_000
DIGITS: Final = 20  # of a number of 64 bit
ASKED: Final = 20  # members whose other side is checked

_VERSION: Final = re.compile(
    rb"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"
)
_INDEX: Final = KEYS["asset_index"].build()
_PLACE: Final = place_beside(KEYS["asset_sync_state"].build())
_ALIVE: Final = ("EXISTS", OWNER.locate(place=_PLACE))
_REPORT: Final = ("GET", ASSET_REPORT.locate(place=_PLACE))


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogateescape")


def _metadata_of(asset: str) -> str:
    return KEYS["asset_metadata"].locate(id=asset)


def _lacks_fields(sample: Sample) -> Values | None:
    lacking = [name.decode() for name in REQUIRED if not sample.pairs.get(name)]
    return {"fields": ", ".join(lacking)} if lacking and sample.complete else None


def _other_id(sample: Sample) -> Values | None:
    written = sample.pairs.get(b"id")
    if not written or _text(written) == sample.fields["id"]:
        return None
    return {"shown": show(written)}


def _odd_category(sample: Sample) -> Values | None:
    written = sample.pairs.get(b"category")
    return {"shown": show(written)} if written and written not in CATEGORIES else None


def _odd_version(sample: Sample) -> Values | None:
    written = sample.pairs.get(b"version")
    if not written or _VERSION.fullmatch(written):
        return None
    return {"shown": show(written)}


def _odd_json(sample: Sample) -> Values | None:
    odd = [
        name.decode() for name in JSON_FIELDS if _is_odd_json(sample.pairs.get(name))
    ]
    return {"fields": ", ".join(odd)} if odd else None


def _is_odd_json(payload: bytes | None) -> bool:
    try:
        decode(payload or b"null")
    except DecodeError:
        return True
    return False


def _odd_times(sample: Sample) -> Values | None:
    return _odd_numbers(sample, TIMES)


def _odd_numbers(sample: Sample, names: tuple[bytes, ...]) -> Values | None:
    for name in names:
        written = sample.pairs.get(name)
        if written and not _is_number(written):
            return {"field": name.decode(), "shown": show(written)}
    return None


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= DIGITS


def _in_category(sample: Sample) -> Question:
    category = KEYS["asset_category"].locate(category=_text(sample.pairs[b"category"]))
    return ("SISMEMBER", category, sample.fields["id"])


def _in_index(sample: Sample) -> Question:
    return ("HEXISTS", _INDEX, sample.fields["id"])


def _ask_where_listed(sample: Sample) -> list[Question]:
    known = sample.pairs.get(b"category") in CATEGORIES
    return [_in_index(sample), *([_in_category(sample)] if known else [])]


def _uncategorised(sample: Sample) -> Values | None:
    if sample.pairs.get(b"category") not in CATEGORIES:
        return None
    question = _in_category(sample)
    return {"set": show(question[1])} if sample.answers.get(question) == 0 else None


def _unindexed(sample: Sample) -> Values | None:
    return {} if sample.answers.get(_in_index(sample)) == 0 else None


def _unknown_category(sample: Sample) -> Values | None:
    name = sample.fields["category"]
    return (
        None if name.encode("utf-8", "replace") in CATEGORIES else {"shown": show(name)}
    )


def _category_of(asset: bytes) -> Question:
    return ("HGET", _metadata_of(_text(asset)), "category")


def _ask_members(sample: Sample) -> list[Question]:
    return [_category_of(asset) for asset in sample.items[:ASKED]]


def _strange_members(sample: Sample) -> Values | None:
    """Find ids without metadata, or whose metadata names another category."""
    expected = sample.fields["category"].encode("utf-8", "surrogateescape")
    found = [
        asset
        for asset in sample.items[:ASKED]
        if sample.answers.get(_category_of(asset), expected) != expected
    ]
    return count_bad(found, sample)


def _summary_of(asset: bytes) -> Question:
    return ("HMGET", _metadata_of(_text(asset)), "id", "name", "category", "version")


def _ask_entries(sample: Sample) -> list[Question]:
    return [_summary_of(asset) for asset in list(sample.pairs)[:ASKED]]


def _gone_entries(sample: Sample) -> Values | None:
    found = [
        asset
        for asset in list(sample.pairs)[:ASKED]
        if sample.answers.get(_summary_of(asset), [asset])[0] is None
    ]
    return count_bad(found, sample)


def _odd_entries(sample: Sample) -> Values | None:
    """Find entries that are no JSON object with the five fields and their own id."""
    found = [
        asset
        for asset, payload in sample.pairs.items()
        if _is_odd_summary(asset, read_object(payload))
    ]
    return count_bad(found, sample)


def _is_odd_summary(asset: bytes, summary: JSONObject | None) -> bool:
    if summary is None or any(name not in summary for name in SUMMARY[:-1]):
        return True
    return bool(summary["id"] != _text(asset))


def _differing_entries(sample: Sample) -> Values | None:
    found: list[bytes] = []
    for asset, payload in list(sample.pairs.items())[:ASKED]:
        told = sample.answers.get(_summary_of(asset))
        summary = read_object(payload)
        if told and told[0] is not None and summary and _differs(summary, told):
            found.append(asset)
    return count_bad(found, sample)


def _differs(summary: JSONObject, told: list[bytes | None]) -> bool:
    pairs = zip(SUMMARY[1:4], told[1:], strict=True)
    return any(
        name in summary and value is not None and summary[name] != _text(value)
        for name, value in pairs
    )


def _long_descriptions(sample: Sample) -> Values | None:
    summaries = {asset: read_object(text) or {} for asset, text in sample.pairs.items()}
    found = [
        asset
        for asset, summary in summaries.items()
        if len(str(summary.get("description", ""))) > DESCRIPTION
    ]
    return count_bad(found, sample)


def _odd_sync_status(sample: Sample) -> Values | None:
    written = sample.pairs.get(b"sync_status")
    if written in SYNC_STATES or (written is None and not sample.complete):
        return None
    return {"shown": show(written or b"")}


def _odd_sync_numbers(sample: Sample) -> Values | None:
    return _odd_numbers(sample, (b"last_sync_time", b"synced_count"))


def _ask_syncer(sample: Sample) -> list[Question]:
    busy = sample.pairs.get(b"sync_status") in (b"syncing", b"failed")
    return [_ALIVE, _REPORT] if busy else []


def _stuck(sample: Sample) -> Values | None:
    """Find a synchronisation that no process runs any more.

    One of this package holds a lease; for other programs its age is a hint at least.
    """
    alive = sample.answers.get(_ALIVE)
    if sample.pairs.get(b"sync_status") != b"syncing" or alive:
        return None
    written = sample.pairs.get(b"last_sync_time", b"")
    age = sample.now - int(written) if _is_number(written) else STUCK + 1
    is_ours = alive == 0 and sample.answers.get(_REPORT)
    return {"hours": f"{age / 3600:,.1f}"} if is_ours or age > STUCK else None


def _failed(sample: Sample) -> Values | None:
    if sample.pairs.get(b"sync_status") != b"failed":
        return None
    report = read_object(sample.answers.get(_REPORT) or b"") or {}
    return {"reason": show(str(report.get("reason") or "?"))}


def _many_changes(sample: Sample) -> Values | None:
    return {"length": f"{sample.size:,}"} if sample.size > CHANGES else None


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_META, _CATEGORY, _SYNC = "asset_metadata", "asset_category", "asset_sync_state"
_LIST: Final = "asset_index"

RULES: Final = (
    Rule("asset-fields", _META, _E, "000 §2.1", _lacks_fields),
    Rule("asset-id", _META, _E, "000 §2.1", _other_id),
    Rule("asset-category", _META, _E, "000 §2.1", _odd_category),
    Rule("asset-version", _META, _W, "000 §2.1", _odd_version),
    Rule("asset-json", _META, _E, "000 §2.1", _odd_json),
    Rule("asset-timestamp", _META, _W, "000 §2.1", _odd_times),
    Rule(
        "asset-uncategorised", _META, _W, "000 §3.1", _uncategorised, _ask_where_listed
    ),
    Rule("asset-unindexed", _META, _W, "000 §4.1", _unindexed, _ask_where_listed),
    Rule("category-unknown", _CATEGORY, _W, "000 §3.1", _unknown_category),
    Rule("category-members", _CATEGORY, _W, "000 §3.1", _strange_members, _ask_members),
    Rule("index-gone", _LIST, _W, "000 §4.1", _gone_entries, _ask_entries),
    Rule("index-json", _LIST, _E, "000 §4.1", _odd_entries),
    Rule("index-differs", _LIST, _W, "000 §4.1", _differing_entries, _ask_entries),
    Rule("index-description", _LIST, _N, "000 §4.1", _long_descriptions),
    Rule("sync-status", _SYNC, _E, "000 §5.1", _odd_sync_status),
    Rule("sync-numbers", _SYNC, _W, "000 §5.1", _odd_sync_numbers),
    Rule("sync-stuck", _SYNC, _W, "000 §5.1", _stuck, _ask_syncer),
    Rule("sync-failed", _SYNC, _W, "000 §5.1", _failed, _ask_syncer),
    Rule("changes-uncapped", "asset_sync_changed", _W, "000 §5.2", _many_changes),
)
