"""Read the corpus of command messages."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMANDS = Path(__file__).with_name("commands")

_GROUPS = frozenset(
    {
        "commands",
        "encoding",
        "fields",
        "json-shape",
        "json-syntax",
        "numbers",
        "size",
    }
)
_EXPECTATIONS = frozenset({"discarded", "rejected", "succeeded", "unknown"})
_SOURCES = frozenset({"build", "file", "text"})
_KEYS = _SOURCES | {"expect", "fields", "group", "name", "reason", "slow"}
_BUILD_KEYS = frozenset({"encoding", "prefix", "suffix", "times", "unit"})


@dataclass(frozen=True, slots=True)
class CorpusItem:
    """One message and how it must end."""

    name: str
    group: str
    payload: bytes
    expect: str
    reason: str | None
    fields: tuple[str, ...] | None
    slow: bool


def load_commands(folder: Path = COMMANDS) -> list[CorpusItem]:
    """Return every command message in the order of the index."""
    index = tomllib.loads((folder / "index.toml").read_text(encoding="utf-8"))
    _require(set(index) == {"item"}, "index.toml", "holds other tables than [[item]]")
    items = [_item(folder, table) for table in index["item"]]
    seen: set[str] = set()
    for item in items:
        _require(item.name not in seen, item.name, "appears twice")
        seen.add(item.name)
    return items


def _item(folder: Path, table: dict[str, Any]) -> CorpusItem:
    """Build one item from its table."""
    name = str(table.get("name", "?"))
    unknown = sorted(set(table) - _KEYS)
    _require(not unknown, name, f"has unknown keys {unknown}")
    missing = sorted({"expect", "group", "name"} - set(table))
    _require(not missing, name, f"lacks {missing}")
    group, expect, reason = table["group"], table["expect"], table.get("reason")
    fields = table.get("fields")
    _require(group in _GROUPS, name, f"has unknown group {group!r}")
    _require(expect in _EXPECTATIONS, name, f"has unknown expectation {expect!r}")
    _require(
        (reason is not None) == (expect == "discarded"),
        name,
        "needs a reason if it is discarded, and only then",
    )
    if fields is not None:
        _require(expect == "rejected", name, "has fields but is not rejected")
        _require(fields == sorted(fields), name, "has fields out of order")
    return CorpusItem(
        name=table["name"],
        group=group,
        payload=_payload(folder, name, table),
        expect=expect,
        reason=reason,
        fields=None if fields is None else tuple(fields),
        slow=table.get("slow", False),
    )


def _payload(folder: Path, name: str, table: dict[str, Any]) -> bytes:
    """Return the exact bytes of the message."""
    sources = _SOURCES & set(table)
    _require(len(sources) == 1, name, "needs exactly one of build, file and text")
    if "file" in table:
        return (folder / str(table["file"])).read_bytes()
    if "text" in table:
        return str(table["text"]).encode()
    build = table["build"]
    unknown = sorted(set(build) - _BUILD_KEYS)
    _require(not unknown, name, f"has unknown keys {unknown} in build")
    text: str = build["prefix"] + build["unit"] * build["times"] + build["suffix"]
    return text.encode(build.get("encoding", "utf-8"))


def _require(condition: object, name: str, complaint: str) -> None:
    """Refuse a mistake in the index, naming the item."""
    if not condition:
        raise ValueError(f"corpus item {name}: {complaint}")
