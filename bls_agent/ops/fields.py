"""Read the arguments of a command from its JSON Schema, as fields for people. No I/O.

The schema comes from a foreign process and may be anything. A value that its schema
does not describe simply enough is one field for JSON, and so is a reference that leads
back to a field around it. Without a usable schema there are no fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

from bls_agent.core.codec import JSONValue, encode
from bls_agent.ops.terminal import json_text

MOST_ARGUMENTS: Final = 50
MOST_FIELDS: Final = 200  # of one command, nested fields included
DEEPEST: Final = 5  # levels of nested fields
MOST_CHOICES: Final = 200
LONGEST_TEXT: Final = 500  # characters of a description or title
LONGEST_NAME: Final = 200
LARGEST_LIMIT: Final = 1e300  # of a number; a larger integer is no float
MOST_HOPS: Final = 10  # references that follow each other for one field
DEEPEST_TYPE: Final = 4  # levels of a type that are named

Schema: TypeAlias = Mapping[str, Any]


class FieldKind(StrEnum):
    """How people enter a value: the type or format in JSON Schema, and others."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "string"
    DATE = "date"
    MOMENT = "date-time"
    UUID = "uuid"
    DECIMAL = "decimal"  # sent as text, because a JSON number may lose digits
    OBJECT = "object"  # has fields of its own
    LIST = "array"  # has a row for each item
    CHOICE = "choice"
    JSON = "json"


# In a list of texts or numbers, JSON is pasted faster than rows are filled.
_IN_ROWS: Final = {
    *(FieldKind.OBJECT, FieldKind.CHOICE, FieldKind.BOOLEAN),
    *(FieldKind.DATE, FieldKind.MOMENT),
}
_FORMATS: Final = (FieldKind.DATE, FieldKind.MOMENT, FieldKind.UUID)
_TYPES: Final = {*FieldKind} - {*_FORMATS, FieldKind.CHOICE, FieldKind.JSON}
_LIMITS: Final = {
    "exclusiveMinimum": "{:g} < n",
    "minimum": "{:g} ≤ n",
    "exclusiveMaximum": "n < {:g}",
    "maximum": "n ≤ {:g}",
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One argument of a command, or one field of an argument."""

    name: str  # printable
    kind: FieldKind
    type: str = "any"  # in JSON's words
    title: str = ""
    description: str = ""
    required: bool = False
    nullable: bool = False
    default: tuple[JSONValue, ...] = ()  # the agent's default, if the schema has one
    choices: tuple[JSONValue, ...] = ()
    shape: str = ""  # of a JSON field: "array", "object", or anything
    limits: str = ""  # of a number
    fields: tuple[Field, ...] = ()  # the fields of an object
    item: Field | None = None  # of a list

    @property
    def shown_default(self) -> str:
        """The default as JSON, a text without quotation marks; ``""`` without one."""
        text = next((one for one in self.default if isinstance(one, str)), "")
        return text or "".join(encode(one).decode() for one in self.default)


def read_commands(result: object) -> dict[str, Schema]:
    """Read an agent's answer to ``help``; return its commands by name."""
    commands: dict[str, Schema] = {}
    for item in _list(result):
        command = _mapping(item) or {}
        name = command.get("name")
        if isinstance(name, str) and name.strip():
            commands.setdefault(name, command)
    return commands


def read_fields(schema: object) -> tuple[Field, ...] | None:
    """Return the arguments; ``None`` if it is no object of at most 50 arguments."""
    root = _mapping(schema)
    properties = None if root is None else _read_properties(root)
    if root is None or properties is None or len(properties) > MOST_ARGUMENTS:
        return None
    is_object = root.get("type", "object") == "object"
    return _Reader(root).read_object(root, properties, ()) if is_object else None


def list_nested(fields: Iterable[Field], path: str = "") -> Iterator[tuple[str, Field]]:
    """Yield each field with its path, such as ``order.lines[].count``."""
    for field in fields:
        name = f"{path}{field.name}"
        yield name, field
        if field.item is None:
            yield from list_nested(field.fields, f"{name}.")
        else:
            yield from list_nested(field.item.fields, f"{name}[].")


def _mapping(value: object) -> Schema | None:
    return cast("Schema", value) if isinstance(value, Mapping) else None


def _list(value: object) -> list[Any]:
    return [*cast("Any", value)] if isinstance(value, list) else []


def _read_properties(schema: Schema) -> Schema | None:
    """Return the properties of an object; ``None`` if a name cannot be shown."""
    given = _mapping(schema.get("properties", {}))
    return None if given is None or not all(map(_is_usable_name, given)) else given


def _is_usable_name(name: object) -> bool:
    return (
        isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME
    )


class _Reader:
    """Reads the fields of one schema, and follows the references inside of it."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MOST_FIELDS

    def read_object(
        self, schema: Schema, properties: Schema, around: tuple[object, ...]
    ) -> tuple[Field, ...]:
        self._left -= len(properties)
        required = _list(schema.get("required"))
        return tuple(
            self._read(name, one, around, required=name in required)
            for name, one in properties.items()
        )

    def _read(
        self, name: str, schema: object, around: tuple[object, ...], *, required: bool
    ) -> Field:
        """Read a field; ``around`` are the parts of the schema that contain it."""
        read, nullable = self._unfold(_mapping(schema) or {})
        kind, choices = _kind_of(read)
        fields: tuple[Field, ...] = ()
        item: Field | None = None
        if kind in {FieldKind.OBJECT, FieldKind.LIST}:
            fields, item = self._read_inside(read, kind, around)
            kind = kind if fields or item else FieldKind.JSON
        limits = ((form, read.get(word)) for word, form in _LIMITS.items())
        numbers = (form.format(n) for form, n in limits if _is_short_number(n))
        return Field(
            name=name,
            kind=kind,
            type=name_type(read) + " | null" * nullable,
            title=_text(read.get("title")),
            description=_text(read.get("description")),
            required=required,
            nullable=nullable,
            default=(read["default"],) if "default" in read else (),
            choices=choices,
            shape=str(read.get("type")),
            limits=", ".join(numbers),
            fields=fields,
            item=item,
        )

    def _read_inside(
        self, schema: Schema, kind: FieldKind, around: tuple[object, ...]
    ) -> tuple[tuple[Field, ...], Field | None]:
        """Return the fields of an object, or the item of a list, or neither."""
        inner = schema.get("properties" if kind is FieldKind.OBJECT else "items")
        if len(around) >= DEEPEST or any(inner is one for one in around):
            return (), None
        around = (*around, inner)
        if kind is FieldKind.LIST:
            item = self._read("", inner, around, required=True)
            return (), item if item.kind in _IN_ROWS else None
        properties = _read_properties(schema) or {}
        is_open = schema.get("additionalProperties", False) is not False
        if is_open or len(properties) > self._left:
            return (), None
        return self.read_object(schema, properties, around), None

    def _unfold(self, schema: Schema) -> tuple[Schema, bool]:
        """Follow references, and take ``null`` out of the alternatives."""
        nullable = False
        for _ in range(MOST_HOPS):
            if "$ref" in schema:
                word, found = "$ref", self._find(schema["$ref"])
            elif len(only := _list(schema.get("allOf"))) == 1:
                word, found = "allOf", _mapping(only[0])
            else:
                word, found, has_null = _without_alternatives(schema)
                nullable = nullable or has_null
            if found is None:
                break
            schema = {**found, **{key: schema[key] for key in schema if key != word}}
        return schema, nullable

    def _find(self, reference: object) -> Schema | None:
        """Return the part of the agent's schema that ``#/…`` points to."""
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found: Schema | None = self._root
        for word in unquote(reference[2:]).split("/"):
            name = word.replace("~1", "/").replace("~0", "~")
            found = None if found is None else _mapping(found.get(name))
        return found


def _without_alternatives(schema: Schema) -> tuple[str, Schema | None, bool]:
    """Decide what stands for the alternatives of a schema.

    1. ``anyOf: [X, null]`` and ``type: [X, "null"]``: X, or null.
    2. ``anyOf: [number, string]``: a decimal.
    3. Anything else: the alternatives stay.

    Returns the keyword, what stands for it, and whether null is an alternative.
    """
    for word in ("anyOf", "oneOf", "type"):
        each = _list(schema.get(word))
        others = [one for one in each if one not in ("null", {"type": "null"})]
        alone = others[0] if len(others) == 1 else others
        if len(each) - len(others) == 1:
            return word, _mapping(alone) or {word: alone}, True
        if [(_mapping(one) or {}).get("type") for one in each] == ["number", "string"]:
            return word, {**each[0], "type": FieldKind.DECIMAL}, False
    return "", None, False


def _kind_of(schema: Schema) -> tuple[FieldKind, tuple[JSONValue, ...]]:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        known = tuple(_list(choices))
        is_plain = all(isinstance(one, str | int | float | None) for one in known)
        if 0 < len(known) <= MOST_CHOICES and is_plain:
            return FieldKind.CHOICE, known
        return FieldKind.JSON, ()
    kind = schema.get("type", "object" if "properties" in schema else None)
    if {"anyOf", "oneOf", "allOf", "not", "$ref", "prefixItems"} & schema.keys():
        return FieldKind.JSON, ()
    if kind == "string" and schema.get("format") in [*_FORMATS]:
        return FieldKind(schema["format"]), ()
    return FieldKind(str(kind)) if kind in [*_TYPES] else FieldKind.JSON, ()


def _is_short_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST_LIMIT


def _text(value: object) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def name_type(schema: Schema, depth: int = 0) -> str:
    """Name a type in JSON's words: ``string``, ``list of integer``, ``"a" | "b"``."""
    several = _list(schema.get("anyOf") or schema.get("oneOf"))
    choices = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if depth > DEEPEST_TYPE:
        return "…"
    if choices or several:
        each = (name_type(_mapping(one) or {}, depth + 1) for one in several)
        return " | ".join([*map(json_text, choices), *each])
    if schema.get("type") == "array":
        items = _mapping(schema.get("items"))
        return f"list of {name_type(items, depth + 1)}" if items else "list"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "properties" in schema and (title := _text(schema.get("title"))):
        return title
    form = schema.get("format")
    return str(form if form in [*_FORMATS] else schema.get("type") or "any")
