"""The rules about the asset library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from bls_agent.assets.records import (
    CATEGORIES,
    JSON_FIELDS,
    KEPT,
    OF_TOOLS,
    REQUIRED,
    SHORT,
    SUMMARY,
    TIMES,
    AssetSummary,
    read_fields,
)
from bls_agent.core.errors import DecodeError
from bls_agent.core.keys import ASSET_REPORT, KEYS, OWNER, place_beside
from bls_agent.ops.doctor.rule import (
    Check,
    Rule,
    Sample,
    Severity,
    Source,
    Values,
    count_bad,
    is_number,
    longer_than,
    read_object,
    show,
    shown_if,
    text_of,
)

KNOWN: Final = frozenset(name.encode() for name in CATEGORIES)
SYNC_STATES: Final = frozenset({b"idle", b"syncing", b"failed"})
SYNC_NUMBERS: Final = (b"last_sync_time", b"synced_count")
STUCK: Final = 3_600.0  # seconds since the last sync after which a sync is stuck
ASKED: Final = 20  # members that are compared with other keys at most

_VERSION: Final = re.compile(
    rb"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"
)
_INDEX: Final = KEYS["asset_index"].build()
_PLACE: Final = place_beside(KEYS["asset_sync_state"].build())
_ALIVE: Final = ("EXISTS", OWNER.locate(place=_PLACE))
_REPORT: Final = ("GET", ASSET_REPORT.locate(place=_PLACE))


def _metadata_of(asset: bytes) -> str:
    return KEYS["asset_metadata"].locate(id=text_of(asset))


def _lacks_fields(sample: Sample) -> Values | None:
    if not sample.complete:
        return None
    lacking = [name for name in REQUIRED if not sample.pairs.get(name.encode())]
    if sample.pairs.get(b"category") == b"tool":
        values, faults = read_fields(sample.pairs)
        lacking += [name for name in OF_TOOLS if name not in values.keys() | faults]
    return {"fields": ", ".join(lacking)} if lacking else None


def _other_id(sample: Sample) -> Values | None:
    written = sample.pairs.get(b"id")
    return shown_if(written and text_of(written) != sample.fields["id"], written)


def _field(name: bytes, is_good: Callable[[bytes], object]) -> Check:
    """Make a check of one field; the check ignores a missing or empty field."""

    def check(sample: Sample) -> Values | None:
        written = sample.pairs.get(name)
        return shown_if(written and not is_good(written), written)

    return check


def _unreadable(names: tuple[str, ...]) -> Check:
    """Make a check that finds fields which this package cannot read."""

    def check(sample: Sample) -> Values | None:
        _, faults = read_fields(sample.pairs)
        odd = [name for name in names if name in faults]
        if not odd:
            return None
        return {"fields": ", ".join(odd), "shown": show(sample.pairs[odd[0].encode()])}

    return check


_odd_category = _field(b"category", KNOWN.__contains__)
_odd_version = _field(b"version", _VERSION.fullmatch)


def _no_numbers(*names: bytes) -> Check:
    def check(sample: Sample) -> Values | None:
        for name in names:
            written = sample.pairs.get(name)
            if written and not is_number(written):
                return {"field": name.decode(), "shown": show(written)}
        return None

    return check


def _uncategorised(sample: Sample) -> Values | None:
    category = sample.pairs.get(b"category")
    if category is None or category not in KNOWN:
        return None
    members = KEYS["asset_category"].locate(category=text_of(category))
    listed = sample.ask("SISMEMBER", members, sample.fields["id"])
    return {"set": show(members)} if listed == 0 else None


def _unindexed(sample: Sample) -> Values | None:
    return {} if sample.ask("HEXISTS", _INDEX, sample.fields["id"]) == 0 else None


def _unknown_category(sample: Sample) -> Values | None:
    name = sample.fields["category"]
    return shown_if(name.encode("utf-8", "replace") not in KNOWN, name)


def _strange_members(sample: Sample) -> Values | None:
    """Find ids without metadata, or with metadata that names another category."""
    expected = sample.fields["category"].encode("utf-8", "surrogateescape")
    members = sample.items[:ASKED]
    questions = [("HGET", _metadata_of(one), "category") for one in members]
    categories = sample.ask_all(questions, refused=expected)
    pairs = zip(members, categories, strict=True)
    found = [one for one, category in pairs if category != expected]
    return count_bad(found, sample, ASKED)


def _ask_entries(sample: Sample) -> Iterator[tuple[bytes, list[bytes | None]]]:
    """Return ids of the index, each with the fields of its metadata.

    These are the fields that the entry of the index (the summary) contains, too.
    """
    entries = list(sample.pairs)[:ASKED]
    names = ("id", *SUMMARY[1:4])
    questions = [("HMGET", _metadata_of(one), *names) for one in entries]
    hashes = sample.ask_all(questions, refused=[])
    pairs = zip(entries, hashes, strict=True)
    return ((one, fields) for one, fields in pairs if fields)


def _orphaned_entries(sample: Sample) -> Values | None:
    orphans = [asset for asset, fields in _ask_entries(sample) if fields[0] is None]
    return count_bad(orphans, sample, ASKED)


def _bad_summary(is_bad: Callable[[bytes, bytes], bool]) -> Check:
    """Make a check that counts bad entries of the index."""

    def check(sample: Sample) -> Values | None:
        pairs = sample.pairs.items()
        return count_bad([one for one, text in pairs if is_bad(one, text)], sample)

    return check


def _is_odd_summary(asset: bytes, payload: bytes) -> bool:
    """Return whether this package cannot read an entry, or its description."""
    try:
        AssetSummary.read(asset, payload)
    except DecodeError:
        return True
    return not isinstance(_description(payload), str | None)


def _is_long(_: bytes, payload: bytes) -> bool:
    return len(str(_description(payload))) > SHORT


def _description(payload: bytes) -> object:
    return (read_object(payload) or {}).get("description")


def _differing_entries(sample: Sample) -> Values | None:
    found: list[bytes] = []
    for asset, fields in _ask_entries(sample):
        summary = read_object(sample.pairs[asset]) or {}
        for name, value in zip(SUMMARY[1:4], fields[1:], strict=True):
            meant = None if value is None else text_of(value)
            if meant is not None and summary.get(name, meant) != meant:
                found.append(asset)
                break
    return count_bad(found, sample, ASKED)


def _odd_sync_status(sample: Sample) -> Values | None:
    written = sample.pairs.get(b"sync_status")
    if written in SYNC_STATES or (written is None and not sample.complete):
        return None
    return {"shown": show(written or b"")}


def _stuck(sample: Sample) -> Values | None:
    """Find a synchronisation that no process runs any more.

    A process of this package holds a lease while it synchronises. Other programs hold no
    lease, so the rule checks the time since the last complete synchronisation. Without
    this time, the rule cannot know whether another program synchronises.
    """
    if sample.pairs.get(b"sync_status") != b"syncing":
        return None
    alive, report = sample.ask_all([_ALIVE, _REPORT])
    if alive:
        return None
    written = sample.pairs.get(b"last_sync_time", b"")
    age = sample.now - int(written) if is_number(written) else STUCK + 1
    is_ours = alive == 0 and report
    return {} if is_ours or age > STUCK else None


def _failed(sample: Sample) -> Values | None:
    if sample.pairs.get(b"sync_status") != b"failed":
        return None
    report = read_object(sample.ask(*_REPORT) or b"") or {}
    return {"reason": show(str(report.get("reason") or "?"))}


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_META, _CATEGORY, _SYNC = "asset_metadata", "asset_category", "asset_sync_state"
_LIST: Final = "asset_index"

RULES: Final = (
    Rule("asset-fields", _META, _E, Source.ASSETS, _lacks_fields),
    Rule("asset-id", _META, _E, Source.ASSETS, _other_id),
    Rule("asset-category", _META, _E, Source.ASSETS, _odd_category),
    Rule("asset-version", _META, _W, Source.ASSETS, _odd_version),
    Rule("asset-json", _META, _E, Source.ASSETS, _unreadable(JSON_FIELDS)),
    Rule("asset-timestamp", _META, _W, Source.ASSETS, _unreadable(TIMES)),
    Rule("asset-uncategorised", _META, _W, Source.ASSETS, _uncategorised),
    Rule("asset-unindexed", _META, _W, Source.ASSETS, _unindexed),
    Rule("category-unknown", _CATEGORY, _W, Source.ASSETS, _unknown_category),
    Rule("category-members", _CATEGORY, _W, Source.ASSETS, _strange_members),
    Rule("index-gone", _LIST, _W, Source.ASSETS, _orphaned_entries),
    Rule("index-json", _LIST, _E, Source.ASSETS, _bad_summary(_is_odd_summary)),
    Rule("index-differs", _LIST, _W, Source.ASSETS, _differing_entries),
    Rule("index-description", _LIST, _N, Source.ASSETS, _bad_summary(_is_long)),
    Rule("sync-status", _SYNC, _E, Source.ASSETS, _odd_sync_status),
    Rule("sync-numbers", _SYNC, _W, Source.ASSETS, _no_numbers(*SYNC_NUMBERS)),
    Rule("sync-stuck", _SYNC, _W, Source.ASSETS, _stuck),
    Rule("sync-failed", _SYNC, _W, Source.ASSETS, _failed),
    Rule(
        "changes-uncapped", "asset_sync_changed", _W, Source.ASSETS, longer_than(KEPT)
    ),
)
