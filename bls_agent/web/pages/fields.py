"""What a command accepts, as fields of a form: JSON Schema in, values out. Pure.

A schema comes from a foreign process and may be anything. Whatever is no plain object of
plain values becomes a field for JSON, and what is no schema at all becomes ``None``, for
which the page shows one field for all arguments. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

from bls_agent.codec import JSONValue

__all__ = [
    "ABSENT",
    "Absent",
    "Field",
    "FieldKind",
    "Form",
    "is_same",
    "read_form",
]

MOST_FIELDS: Final = 50
MOST_CHOICES: Final = 200
LONGEST_TEXT: Final = 500  # characters of a description or title
LONGEST_NAME: Final = 200
DEEPEST: Final = 5  # lists in lists that are checked

_Schema: TypeAlias = Mapping[str, Any]


class Absent:
    """Says that there is no value, where ``None`` is one."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()


class FieldKind(StrEnum):
    """How a value is typed in."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    CHOICE = "choice"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One argument of a command.

    Attributes:
        name: Its name, printable.
        kind: How it is typed in.
        title: What the schema calls it, or ``""``.
        description: What the schema says of it, or ``""``.
        required: Whether the command cannot do without.
        nullable: Whether ``null`` is allowed.
        default: What the agent takes if it is left out.
        choices: The values of a choice.
        shape: Of a JSON field ``"array"``, ``"object"`` or ``""`` for anything.
        least: Smallest number, or fewest characters.
        most: Largest number, or most characters.
        beyond: Whether a number has to lie beyond ``least`` and below ``most``: the
            limits themselves are excluded (``exclusiveMinimum``, ``exclusiveMaximum``).
        inner: What each item of a JSON array or each value of a JSON object is; ``None``
            for anything.
    """

    name: str
    kind: FieldKind
    title: str = ""
    description: str = ""
    required: bool = False
    nullable: bool = False
    default: JSONValue | Absent = ABSENT
    choices: tuple[JSONValue, ...] = ()
    shape: str = ""
    least: float | None = None
    most: float | None = None
    beyond: tuple[bool, bool] = (False, False)
    inner: Field | None = None


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a command accepts.

    Attributes:
        fields: Its arguments.
        open: Whether it takes more than these.
    """

    fields: tuple[Field, ...]
    open: bool = False


def read_form(schema: object) -> Form | None:
    """Read the parameters of a command as ``help`` tells them.

    Returns:
        ``None`` if they are no object of at most 50 printable names.
    """
    if not isinstance(schema, Mapping):
        return None
    told = cast("_Schema", schema)
    if told.get("type", "object") != "object":
        return None
    properties = _properties_of(told)
    if properties is None:
        return None
    required = told.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    return Form(
        fields=tuple(
            _read_field(name, part, required=name in needed)
            for name, part in properties.items()
        ),
        open=told.get("additionalProperties", False) is not False,
    )


def _properties_of(schema: _Schema) -> Mapping[str, object] | None:
    told = schema.get("properties", {})
    if not isinstance(told, Mapping):
        return None
    properties = cast("Mapping[str, object]", told)
    if len(properties) > MOST_FIELDS or not all(map(_is_usable_name, properties)):
        return None
    return properties


def _is_usable_name(name: object) -> bool:
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
    """Give a list of two as it is, and nothing for anything else."""
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
        return FieldKind.JSON, ()
    return _KINDS.get(kind, FieldKind.JSON) if isinstance(kind, str) else (
        FieldKind.JSON
    ), ()


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
