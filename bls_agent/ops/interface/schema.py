"""Reads a JSON Schema of a foreign process, and keeps what every tool understands.

What is kept is a JSON Schema of draft 7, on which AsyncAPI builds, except that its
definitions are apart. A keyword that draft 7 does not have, or whose value has a wrong
form, is left out. The schema then allows more values, and never fewer. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

Schema: TypeAlias = Mapping[str, Any]

DEEPEST: Final = 32  # levels; a value below may be anything
LONGEST: Final = 10_000  # characters of a text
LARGEST: Final = 2**53  # the largest integer that every JSON parser reads exactly
# An object with one of these names is not plain data for programs that read JSON: they
# follow the reference, even to a file, or set the prototype of an object in JavaScript.
UNSAFE_NAMES: Final = frozenset({"$ref", "__proto__"})
REFERENCE: Final = "#/$defs/"

_TYPES: Final = frozenset(
    {"array", "boolean", "integer", "null", "number", "object", "string"}
)


@dataclass(frozen=True)
class ArgumentSchema:
    """The schema of the arguments of one command, and the definitions that it uses.

    A reference in either of them is ``#/$defs/`` and the name of a definition.
    """

    args: Schema
    definitions: Mapping[str, Schema]


def read_arguments(parameters: object) -> ArgumentSchema | None:
    """Read what ``help`` answers as ``parameters``; ``None`` if it is no object."""
    root = _mapping(parameters)
    if root is None or root.get("type", "object") != "object":
        return None
    given = _mapping(root.get("$defs")) or {}
    names = frozenset(given) - UNSAFE_NAMES
    reader = _Reader(names)
    definitions = {name: reader.read(given[name]) for name in given if name in names}
    return ArgumentSchema({"type": "object", **reader.read(root)}, definitions)


class _Reader:
    """Reads the schemas of one command, which share their definitions."""

    def __init__(self, definitions: Collection[str]) -> None:
        self._definitions = definitions

    def read(self, schema: object, depth: int = 0) -> dict[str, Any]:
        """Return the usable part of a schema.

        1. ``false`` allows nothing, and whatever is no object allows anything.
        2. A keyword is kept if its value has the form of the keyword.
        3. Data without unsafe names is kept as it is.
        4. A reference to a known definition stands alone, or in ``allOf`` if there are
           other keywords, because draft 7 ignores the neighbours of ``$ref``.
        """
        given = _mapping(schema)
        if given is None or depth > DEEPEST:
            return {"not": {}} if schema is False else {}
        kept: dict[str, Any] = {}
        for word, value in given.items():
            if word in _READERS:
                usable = _READERS[word](self, value, depth + 1)
                kept |= {} if usable is None else {word: usable}
            elif word in ("const", "default") and _is_plain(value, depth):
                kept[word] = value
        _use_words_of_draft_7(kept)
        _open_objects(kept, given)
        target = self._find(given.get("$ref"))
        if target is None:
            return kept
        each = [*kept.get("allOf", []), {"$ref": target}]
        return {**kept, "allOf": each} if kept else {"$ref": target}

    def _find(self, reference: object) -> str | None:
        if not isinstance(reference, str) or not reference.startswith(REFERENCE):
            return None
        word = unquote(reference.removeprefix(REFERENCE))
        name = word.replace("~1", "/").replace("~0", "~")
        return REFERENCE + name if name in self._definitions else None

    def read_each(self, value: object, depth: int) -> list[Any] | None:
        return [self.read(one, depth) for one in _list(value)] or None

    def read_inner(self, value: object, depth: int) -> Any:
        if isinstance(value, bool):
            return value
        return None if _mapping(value) is None else self.read(value, depth)

    def read_items(self, value: object, depth: int) -> Any:
        """Read one schema for all items, or one for each position."""
        is_list = isinstance(value, list)
        return (self.read_each if is_list else self.read_inner)(value, depth)

    def read_properties(self, value: object, depth: int) -> Any:
        given = _mapping(value)
        if given is None or UNSAFE_NAMES & given.keys():
            return None
        return {name: self.read(one, depth) for name, one in given.items()}

    def read_not(self, value: object, _: int) -> Any:
        """Keep ``{}`` alone, because a wider schema here would allow fewer values."""
        return {} if value in ({}, True) else None


def _use_words_of_draft_7(kept: dict[str, Any]) -> None:
    """Rename keywords.

    1. ``prefixItems`` is ``items`` in draft 7, and ``items`` is ``additionalItems``.
    2. ``oneOf`` becomes ``anyOf``, because two alternatives may fit when they allow more.
    """
    places = kept.pop("prefixItems", None)
    if places is not None:
        kept |= {"additionalItems": kept.pop("items")} if "items" in kept else {}
        kept["items"] = places
    alternatives = kept.pop("oneOf", None)
    if alternatives is not None:
        kept.setdefault("anyOf", alternatives)


def _open_objects(kept: dict[str, Any], given: Schema) -> None:
    """Allow other properties if not every property that is allowed has been read."""
    if "patternProperties" in given or ("properties" in given) > ("properties" in kept):
        kept.pop("additionalProperties", None)


_Read: TypeAlias = Callable[[_Reader, Any, int], Any]


def _text(_: _Reader, value: object, __: int) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def _whole_text(_: _Reader, value: object, __: int) -> str | None:
    return value if isinstance(value, str) and len(value) <= LONGEST else None


def _flag(_: _Reader, value: object, __: int) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(_: _Reader, value: Any, __: int) -> float | None:
    return value if _is_number(value) else None


def _factor(_: _Reader, value: Any, __: int) -> float | None:
    return value if _is_number(value) and value > 0 else None


def _count(_: _Reader, value: Any, __: int) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST else None


def _type(_: _Reader, value: object, __: int) -> str | list[str] | None:
    if isinstance(value, str):
        return value if value in _TYPES else None
    names = _list(value)
    usable = all(isinstance(name, str) and name in _TYPES for name in names)
    return list(dict.fromkeys(names)) or None if usable else None


def _names(_: _Reader, value: object, __: int) -> list[str] | None:
    names = _list(value)
    usable = isinstance(value, list) and all(isinstance(name, str) for name in names)
    return list(dict.fromkeys(names)) if usable else None


def _choices(_: _Reader, value: object, __: int) -> list[Any] | None:
    """Read plain values, each once; 1 and 1.0 are equal in JSON, 1 and true are not."""
    choices = _list(value)
    if any(isinstance(one, list | dict) or not _is_plain(one, 0) for one in choices):
        return None
    each = {(isinstance(one, bool), one): one for one in choices}
    return [*each.values()] or None


def _is_number(value: Any) -> bool:
    if type(value) is float:
        return isfinite(value)
    return type(value) is int and abs(value) <= LARGEST


def _is_plain(value: object, depth: int) -> bool:
    """Return whether a value is data that every tool reads as this data."""
    if isinstance(value, list):
        each = cast("list[object]", value)
        return depth < DEEPEST and all(_is_plain(one, depth + 1) for one in each)
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        safe = depth < DEEPEST and not UNSAFE_NAMES & items.keys()
        return safe and all(_is_plain(one, depth + 1) for one in items.values())
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _mapping(value: object) -> Schema | None:
    return cast("Schema", value) if isinstance(value, Mapping) else None


def _list(value: object) -> list[Any]:
    return [*cast("Any", value)] if isinstance(value, list) else []


_READERS: Final[Mapping[str, _Read]] = {
    **dict.fromkeys(("title", "description"), _text),
    **dict.fromkeys(("format", "pattern"), _whole_text),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _number),
    "multipleOf": _factor,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("minProperties", "maxProperties"), _count),
    **dict.fromkeys(("uniqueItems", "deprecated"), _flag),
    "type": _type,
    "required": _names,
    "enum": _choices,
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _Reader.read_each),
    **dict.fromkeys(("additionalItems", "additionalProperties"), _Reader.read_inner),
    "items": _Reader.read_items,
    "properties": _Reader.read_properties,
    "not": _Reader.read_not,
}
