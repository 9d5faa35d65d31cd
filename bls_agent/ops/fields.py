"""Read the arguments of a command from its JSON Schema, as fields for people. No I/O.

Another process has written the schema, so the schema may contain anything. If the schema
of a value is too complex, people enter the value as JSON in one field. A field for JSON
also replaces a reference to an object or list that contains the reference. Without a
usable schema there are no fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeGuard, cast
from urllib.parse import unquote

from bls_agent.core.codec import JSONValue, encode
from bls_agent.ops.terminal import json_text

MOST_ARGUMENTS: Final = 50
MOST_FIELDS: Final = 200  # of one command, nested fields included
DEEPEST: Final = 5  # levels of nested fields
MOST_CHOICES: Final = 200
LONGEST_TEXT: Final = 500  # characters of a description or title
LONGEST_NAME: Final = 200
WHOLE: Final = 2**53  # a larger float need not be exact
LARGEST_LIMIT: Final = 1e300  # of a limit; a larger integer may not fit into a float
MOST_HOPS: Final = 10  # references that are followed for one field, one after the other
DEEPEST_TYPE: Final = 4  # levels of nested types in the name of a type

Schema: TypeAlias = Mapping[str, Any]


class FieldKind(StrEnum):
    """How people enter a value; most members are types or formats of JSON Schema."""

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


# Kinds of items for which a list has rows. A list of other items, such as texts or
# numbers, is one field for JSON, because pasting JSON is faster than filling in rows.
_IN_ROWS: Final = {
    *(FieldKind.OBJECT, FieldKind.CHOICE, FieldKind.BOOLEAN),
    *(FieldKind.DATE, FieldKind.MOMENT),
}
_FORMATS: Final = (FieldKind.DATE, FieldKind.MOMENT, FieldKind.UUID)
_TYPES: Final = {*FieldKind} - {*_FORMATS, FieldKind.CHOICE, FieldKind.JSON}
_LIMITS: Final = {
    "exclusiveMinimum": "{} < n",
    "minimum": "{} ≤ n",
    "exclusiveMaximum": "n < {}",
    "maximum": "n ≤ {}",
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One argument of a command, or one field of an argument."""

    name: str  # printable
    kind: FieldKind
    type: str = "any"  # name of the type, such as `list of integer`
    title: str = ""
    description: str = ""
    required: bool = False
    nullable: bool = False
    default: tuple[JSONValue, ...] = ()  # the agent's default, if the schema has one
    choices: tuple[JSONValue, ...] = ()
    shape: str = ""  # `type` in the schema: "array", "object", or anything
    limits: str = ""  # minimum and maximum of a number, such as `1 ≤ n, n < 10`
    fields: tuple[Field, ...] = ()  # the fields of an object
    item: Field | None = None  # the field of one item of a list

    @property
    def shown_default(self) -> str:
        """The default as JSON, or ``""``; a text has no quotation marks around it."""
        text = next((one for one in self.default if isinstance(one, str)), "")
        return text or "".join(encode(one).decode() for one in self.default)


def read_commands(result: object) -> dict[str, Schema]:
    """Return an agent's commands by name, from its result of the command ``help``."""
    commands: dict[str, Schema] = {}
    for item in _list(result):
        command = _mapping(item) or {}
        name = command.get("name")
        if isinstance(name, str) and name.strip():
            commands.setdefault(name, command)
    return commands


def read_fields(schema: object) -> tuple[Field, ...] | None:
    """Return one field for each argument of a command.

    Return ``None`` if the schema is not that of an object with at most 50 arguments.
    """
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
    """Return the properties of an object, or ``None`` if a name cannot be shown."""
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
        """Return one field; ``around`` lists the parts of the schema that contain it."""
        read, nullable = self._unfold(_mapping(schema) or {})
        kind, choices = _kind_of(read)
        fields: tuple[Field, ...] = ()
        item: Field | None = None
        if kind in {FieldKind.OBJECT, FieldKind.LIST}:
            fields, item = self._read_inside(read, kind, around)
            kind = kind if fields or item else FieldKind.JSON
        limits = ((form, read.get(word)) for word, form in _LIMITS.items())
        numbers = (
            form.format(show_number(n)) for form, n in limits if _is_short_number(n)
        )
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
        """Return the fields of an object, or the item of a list.

        Return neither if the value is too complex, so that it becomes a field for JSON.
        """
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
        """Return the schema without references and without ``null`` as an alternative.

        The second value is whether ``null`` was an alternative.
        """
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
    """Decide which schema replaces the alternatives of a schema.

    1. ``anyOf: [X, null]`` and ``type: [X, "null"]`` become X, and null is allowed.
    2. ``anyOf: [number, string]`` becomes a decimal.
    3. All other alternatives stay, and the replacement is ``None``.

    Returns the keyword, its replacement, and whether null is an alternative.
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


def _is_short_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) < LARGEST_LIMIT


def show_number(number: float) -> str:
    """Write a number with all its digits, and a whole number without a decimal point."""
    is_whole = abs(number) < WHOLE and float(number).is_integer()
    return str(int(number)) if is_whole else str(number)


def _text(value: object) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def name_type(schema: Schema, depth: int = 0) -> str:
    """Return a type's name: ``string``, ``list of integer`` or ``"a" | "b"``."""
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
