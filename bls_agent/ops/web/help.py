"""The arguments of an agent's commands, from its answer to ``help``. No I/O.

``help`` is sent when a user asks for it; agents in other languages may not know it. The
answer comes from a foreign process and may be anything: a JSON Schema that is no plain
object of plain values becomes a field for JSON, and what is no schema at all ``None``,
for which the page shows one field for all arguments. Nothing here raises.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeGuard, cast

from bls_agent.core.codec import JSONValue
from bls_agent.project.messages import LogEntry

__all__ = [
    "ABSENT",
    "HELP",
    "Absent",
    "Entry",
    "Field",
    "FieldKind",
    "Form",
    "HelpCache",
    "Manual",
    "find_manual",
    "is_same",
    "read_form",
    "read_manual",
]

HELP: Final = "help"
MOST_ENTRIES: Final = 300
MOST_MANUALS: Final = 500  # projects whose commands are remembered
KEPT: Final = 600.0  # seconds for which an agent is not asked again
LONGEST_ABOUT: Final = 2_000  # characters of what a command is for
MOST_FIELDS: Final = 50
MOST_CHOICES: Final = 200
LONGEST_TEXT: Final = 500  # characters of a description or title
LONGEST_NAME: Final = 200
DEEPEST: Final = 5  # lists in lists that are checked

_Schema: TypeAlias = Mapping[str, Any]


class Absent:
    """Marks a missing value, where ``None`` is a value."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()


class FieldKind(StrEnum):
    """How the page lets people type a value."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    CHOICE = "choice"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One argument of a command.

    ``beyond`` means that a limit is itself excluded (``exclusiveMinimum``,
    ``exclusiveMaximum``). ``inner`` is each item of a JSON array, or each value of a
    JSON object.
    """

    name: str  # printable
    kind: FieldKind
    title: str = ""
    description: str = ""
    required: bool = False
    nullable: bool = False
    default: JSONValue | Absent = ABSENT  # what the agent takes if it is left out
    choices: tuple[JSONValue, ...] = ()
    shape: str = ""  # of a JSON field "array", "object", or "" for anything
    least: float | None = None  # the smallest number, or the fewest characters
    most: float | None = None
    beyond: tuple[bool, bool] = (False, False)
    inner: Field | None = None  # None for anything


@dataclass(frozen=True, kw_only=True)
class Form:
    """The arguments of a command; an open form takes more than these."""

    fields: tuple[Field, ...]
    open: bool = False


def read_form(schema: object) -> Form | None:
    """Read a command's parameters; ``None`` unless an object of at most 50 names."""
    if not isinstance(schema, Mapping):
        return None
    told = cast("_Schema", schema)
    properties = told.get("properties", {})
    if told.get("type", "object") != "object" or not isinstance(properties, Mapping):
        return None
    parts = cast("Mapping[object, object]", properties)
    named = {name: part for name, part in parts.items() if _is_usable_name(name)}
    if len(parts) > MOST_FIELDS or len(named) < len(parts):
        return None
    required = told.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    return Form(
        fields=tuple(
            _read_field(name, part, required=name in needed)
            for name, part in named.items()
        ),
        open=told.get("additionalProperties", False) is not False,
    )


def _is_usable_name(name: object) -> TypeGuard[str]:
    return (
        isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME
    )


def _read_field(
    name: str, schema: object, *, required: bool = False, depth: int = 0
) -> Field:
    told, nullable = _without_null(
        cast("_Schema", schema) if isinstance(schema, Mapping) else {}
    )
    kind, choices = _kind_of(told)
    least, most, beyond = _limits_of(told, kind)
    return Field(
        name=name,
        kind=kind,
        title=_text(told.get("title")),
        description=_text(told.get("description")),
        required=required,
        nullable=nullable,
        default=told.get("default", ABSENT),
        choices=choices,
        shape=_shape_of(told) if kind is FieldKind.JSON else "",
        least=least,
        most=most,
        beyond=beyond,
        inner=_inner_of(told, depth) if kind is FieldKind.JSON else None,
    )


def _inner_of(schema: _Schema, depth: int) -> Field | None:
    word = {"array": "items", "object": "additionalProperties"}.get(_shape_of(schema))
    inner = schema.get(word) if word and "properties" not in schema else None
    if not isinstance(inner, Mapping) or depth >= DEEPEST:
        return None
    return _read_field("", cast("_Schema", inner), depth=depth + 1)


def _without_null(schema: _Schema) -> tuple[_Schema, bool]:
    """Take ``null`` out of ``anyOf: [X, null]`` and ``type: [X, "null"]``."""
    rest = {key: value for key, value in schema.items() if key not in _EITHER}
    parts = _pair(schema.get("anyOf", schema.get("oneOf")))
    others = [part for part in parts if part != {"type": "null"}]
    if len(parts) - len(others) == 1 and isinstance(others[0], Mapping):
        return {**cast("_Schema", others[0]), **rest}, True
    kinds = _pair(schema.get("type"))
    others = [kind for kind in kinds if kind != "null"]
    if len(kinds) - len(others) == 1:
        return {**schema, "type": others[0]}, True
    return schema, False


def _pair(value: object) -> list[object]:
    if not isinstance(value, list):
        return []
    parts = cast("list[object]", value)
    return parts if len(parts) == 2 else []  # noqa: PLR2004 - a value or null


_EITHER: Final = ("anyOf", "oneOf")
_KINDS: Final[Mapping[str, FieldKind]] = {
    "boolean": FieldKind.BOOLEAN,
    "integer": FieldKind.INTEGER,
    "number": FieldKind.NUMBER,
    "string": FieldKind.TEXT,
}


def _kind_of(schema: _Schema) -> tuple[FieldKind, tuple[JSONValue, ...]]:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list):
        known = tuple(cast("list[JSONValue]", choices))
        if 0 < len(known) <= MOST_CHOICES and all(map(_is_plain, known)):
            return FieldKind.CHOICE, known
        return FieldKind.JSON, ()
    kind = schema.get("type")
    if {"anyOf", "oneOf", "allOf", "not", "$ref"} & schema.keys():
        kind = None
    plain = _KINDS.get(kind) if isinstance(kind, str) else None
    return plain or FieldKind.JSON, ()


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool | None)


def _shape_of(schema: _Schema) -> str:
    kind = schema.get("type")
    return kind if kind in ("array", "object") else ""


def _limits_of(
    schema: _Schema, kind: FieldKind
) -> tuple[float | None, float | None, tuple[bool, bool]]:
    if kind is FieldKind.TEXT:
        least, most = _number(schema, "minLength"), _number(schema, "maxLength")
        return least, most, (False, False)
    if kind not in (FieldKind.INTEGER, FieldKind.NUMBER):
        return None, None, (False, False)
    least, above = _limit(schema, "minimum", "exclusiveMinimum", max)
    most, below = _limit(schema, "maximum", "exclusiveMaximum", min)
    return least, most, (above, below)


def _limit(
    schema: _Schema, name: str, exclusive: str, tighter: Callable[[float, float], float]
) -> tuple[float | None, bool]:
    """Give the tighter one of two limits, and whether it is itself excluded."""
    limit, beyond = _number(schema, name), _number(schema, exclusive)
    if beyond is None or limit is None:
        return (limit, False) if beyond is None else (beyond, True)
    both = tighter(limit, beyond)
    return both, both == beyond


def _number(schema: _Schema, name: str) -> float | None:
    value = schema.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _text(value: object) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def is_same(one: JSONValue, other: JSONValue) -> bool:
    """Compare as JSON does: ``true`` is not ``1``, ``1`` is not ``1.0``."""
    return type(one) is type(other) and one == other


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command; ``form`` is ``None`` if its arguments are only JSON."""

    name: str
    description: str = ""
    form: Form | None = None


@dataclass(frozen=True, kw_only=True)
class Manual:
    """The commands of an agent; none if it did not answer."""

    entries: tuple[Entry, ...]
    told_at: float  # by a clock that never jumps
    asked: bool = True  # as far as is known


def read_manual(result: JSONValue) -> tuple[Entry, ...]:
    """Read the answer to ``help``; empty if it is no list of commands."""
    if not isinstance(result, list):
        return ()
    entries: dict[str, Entry] = {}
    for item in result[:MOST_ENTRIES]:
        entry = _read_entry(item)
        if entry is not None:
            entries.setdefault(entry.name, entry)
    return tuple(sorted(entries.values(), key=lambda entry: entry.name))


def _read_entry(item: JSONValue) -> Entry | None:
    if not isinstance(item, dict):
        return None
    told = cast("dict[str, Any]", item)
    name, said = told.get("name"), told.get("description")
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        return None
    return Entry(
        name=name,
        description=said[:LONGEST_ABOUT] if isinstance(said, str) else "",
        form=read_form(told.get("parameters")),
    )


def find_manual(log: Sequence[LogEntry]) -> tuple[Entry, ...]:
    """Find the newest answer to ``help`` among records; empty if there is none."""
    for entry in reversed(log):
        outcome = entry.outcome
        if outcome is not None and outcome.succeeded and outcome.command == HELP:
            return read_manual(outcome.result)
    return ()


class HelpCache:
    """Caches agents' answers to ``help``, and that one did not answer."""

    def __init__(self) -> None:
        self._manuals: OrderedDict[str, Manual] = OrderedDict()

    def get(self, project: str, now: float) -> Manual | None:
        """Give a cached answer that is not too old."""
        manual = self._manuals.get(project)
        if manual is None or now - manual.told_at > KEPT:
            return None
        return manual

    def put(self, project: str, entries: tuple[Entry, ...], now: float) -> Manual:
        """Cache an answer, or that the agent did not answer."""
        manual = Manual(entries=entries, told_at=now)
        self._manuals[project] = manual
        self._manuals.move_to_end(project)
        while len(self._manuals) > MOST_MANUALS:
            self._manuals.popitem(last=False)
        return manual
