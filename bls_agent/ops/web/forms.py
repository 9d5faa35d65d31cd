"""Make forms from an agent's answer to ``help``, and read what was typed. No I/O.

``help`` is sent when a user asks for it; agents in other languages may not know it. The
answer comes from a foreign process and may be anything. If an argument's JSON Schema is
not simple, its field takes JSON. Without a usable schema the form is ``None``, and the
page shows one field for all arguments. ``jsonschema`` checks the typed values against
the agent's own schema, and the agent checks them again.

The inputs are ``arg.<argument>``, ``null.<argument>`` (if ticked, the argument is
null), ``more`` (JSON object of further arguments) and ``args`` (JSON object of all
arguments, if there are no fields).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field as part
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeGuard, cast

from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import best_match  # pyright: ignore[reportUnknownVariableType] - its stubs
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from bls_agent.core.codec import JSONObject, JSONValue, decode, encode
from bls_agent.core.errors import DecodeError
from bls_agent.project.messages import LogEntry

HELP: Final = "help"
MOST_ENTRIES: Final = 300
MOST_MANUALS: Final = 500  # projects whose commands are remembered
KEPT: Final = 600.0  # seconds for which an agent is not asked again
LONGEST_ABOUT: Final = 2_000  # characters of a command's description
MOST_FIELDS: Final = 50
MOST_CHOICES: Final = 200
LONGEST_TEXT: Final = 500  # characters of a description or title
LONGEST_NAME: Final = 200
MOST_REFERENCES: Final = 1_000  # references of a schema that one form may follow
MOST_HOPS: Final = 10  # references that follow each other for one field
ALL: Final = "args"  # one field for all arguments
MORE: Final = "more"  # arguments that have no field
LONGEST_NUMBER: Final = 400  # digits; a longer number is refused
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER: Final = re.compile(
    r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,4})?"
)

_Schema: TypeAlias = Mapping[str, Any]


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
    """One argument of a command."""

    name: str  # printable
    kind: FieldKind
    title: str = ""
    description: str = ""
    required: bool = False
    nullable: bool = False
    default: str = ""  # the agent's default, as JSON or as a text
    choices: tuple[JSONValue, ...] = ()
    shape: str = ""  # of a JSON field: "array", "object", or "" for any value
    limits: str = ""  # the interval of a number


@dataclass(frozen=True, kw_only=True)
class Form:
    """The arguments of a command; an open form accepts further arguments."""

    fields: tuple[Field, ...]
    open: bool = False
    schema: _Schema = part(default_factory=dict[str, Any], compare=False)


def read_form(schema: object) -> Form | None:
    """Return a schema's form; ``None`` if it is no object of at most 50 arguments."""
    if not isinstance(schema, Mapping):
        return None
    root = cast("_Schema", schema)
    properties = root.get("properties", {})
    if root.get("type", "object") != "object" or not isinstance(properties, Mapping):
        return None
    parts = cast("Mapping[object, object]", properties)
    named = {name: part for name, part in parts.items() if _is_usable_name(name)}
    if len(parts) > MOST_FIELDS or len(named) < len(parts):
        return None
    required = root.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    return Form(
        fields=tuple(
            _read_field(name, part, root, required=name in needed)
            for name, part in named.items()
        ),
        open=root.get("additionalProperties", False) is not False,
        schema=root,
    )


def _is_usable_name(name: object) -> TypeGuard[str]:
    return (
        isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME
    )


def _read_field(name: str, schema: object, root: _Schema, *, required: bool) -> Field:
    given = cast("_Schema", schema if isinstance(schema, Mapping) else {})
    read, nullable = _without_null(_follow(given, root))
    read = _follow(read, root)
    kind, choices = _kind_of(read)
    return Field(
        name=name,
        kind=kind,
        title=_text(read.get("title")),
        description=_text(read.get("description")),
        required=required,
        nullable=nullable,
        default=_default_of(read),
        choices=choices,
        shape=_shape_of(read) if kind is FieldKind.JSON else "",
        limits=_limits_of(read) if kind in _NUMBERS else "",
    )


def _follow(schema: _Schema, root: _Schema) -> _Schema:
    """Replace references within the agent's schema by the schemas that they name."""
    for _ in range(MOST_HOPS):
        if "$ref" not in schema:
            break
        resource = DRAFT202012.create_resource(root)
        resolver = Registry[Any]().resolver_with_root(resource)
        try:
            found: Any = resolver.lookup(schema["$ref"]).contents
        except Exception:  # noqa: BLE001 - a foreign schema may hold anything
            break
        if not isinstance(found, Mapping):
            break
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**cast("_Schema", found), **beside}
    return schema


def _default_of(schema: _Schema) -> str:
    default = schema.get("default", "")
    is_text = isinstance(default, str) and (default or "default" not in schema)
    return default if is_text else encode(default).decode()


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


_NUMBERS: Final = (FieldKind.INTEGER, FieldKind.NUMBER)


def _limits_of(schema: _Schema) -> str:
    def find(words: Mapping[str, str]) -> str:
        limits = ((_number(schema, word), form) for word, form in words.items())
        return next((form.format(n) for n, form in limits if n is not None), "")

    left = find({"exclusiveMinimum": "{:g} < ", "minimum": "{:g} ≤ "})
    right = find({"exclusiveMaximum": " < {:g}", "maximum": " ≤ {:g}"})
    return f"{left}n{right}" if left or right else ""


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


def _number(schema: _Schema, name: str) -> float | None:
    value = schema.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _text(value: object) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command; ``form`` is ``None`` if its arguments are only JSON."""

    name: str
    description: str = ""
    form: Form | None = None


@dataclass(frozen=True, kw_only=True)
class Manual:
    """The commands of an agent; ``entries`` is empty if the agent did not answer."""

    entries: tuple[Entry, ...]
    answered_at: float  # monotonic time
    asked: bool = True  # False if no answer or attempt is known


def read_manual(result: JSONValue) -> tuple[Entry, ...]:
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
    parts = cast("dict[str, Any]", item)
    name, about = parts.get("name"), parts.get("description")
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        return None
    return Entry(
        name=name,
        description=about[:LONGEST_ABOUT] if isinstance(about, str) else "",
        form=read_form(parts.get("parameters")),
    )


def find_manual(log: Sequence[LogEntry]) -> tuple[Entry, ...]:
    for entry in reversed(log):
        outcome = entry.outcome
        if outcome is not None and outcome.succeeded and outcome.command == HELP:
            return read_manual(outcome.result)
    return ()


class HelpCache:
    """Caches the answers of agents to ``help``, and that an agent did not answer."""

    def __init__(self) -> None:
        self._manuals: OrderedDict[str, Manual] = OrderedDict()

    def get(self, project: str, now: float) -> Manual | None:
        manual = self._manuals.get(project)
        if manual is None or now - manual.answered_at > KEPT:
            return None
        return manual

    def put(self, project: str, entries: tuple[Entry, ...], now: float) -> Manual:
        manual = Manual(entries=entries, answered_at=now)
        self._manuals[project] = manual
        self._manuals.move_to_end(project)
        while len(self._manuals) > MOST_MANUALS:
            self._manuals.popitem(last=False)
        return manual


class MisfitError(Exception):
    """A text does not fit its field.

    ``code`` names a text of the catalogue, ``values`` fill it. ``place`` is the path
    into a list or object, made of names and of numbers from 1.
    """

    def __init__(self, code: str, **values: object) -> None:
        self.code = code
        self.values = {name: str(value) for name, value in values.items()}
        self.place: tuple[str, ...] = ()
        super().__init__(code)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The arguments that fit, and the errors of the other fields."""

    arguments: JSONObject = part(default_factory=dict[str, JSONValue])
    errors: Mapping[str, MisfitError] = part(default_factory=dict[str, MisfitError])


def read_submission(form: Form | None, typed: Mapping[str, str]) -> Submission:
    """Read all inputs of a form; if it is ``None``, one field has all arguments."""
    if form is None:
        return _read_object(ALL, typed.get(ALL, ""), frozenset())
    arguments: JSONObject = {}
    errors: dict[str, MisfitError] = {}
    for field in form.fields:
        try:
            arguments |= _read_field_value(field, typed)
        except MisfitError as error:
            errors[f"arg.{field.name}"] = error
    if form.open:
        names = frozenset(field.name for field in form.fields)
        more = _read_object(MORE, typed.get(MORE, ""), names)
        arguments |= more.arguments
        errors |= more.errors
    inputs = {f"arg.{field.name}" for field in form.fields}
    for name, misfit in _find_misfits(form.schema, arguments):
        if f"arg.{name}" in inputs:
            errors.setdefault(f"arg.{name}", misfit)
        else:
            misfit.place = (name, *misfit.place)
            errors.setdefault(MORE, misfit)
    return Submission(arguments=arguments, errors=errors)


def _read_object(name: str, text: str, taken: frozenset[str]) -> Submission:
    if not text.strip():
        return Submission()
    try:
        value = _parse_json(text)
        if not isinstance(value, dict):
            raise MisfitError("object")  # noqa: TRY301 - beside the other misfits
    except MisfitError as error:
        return Submission(errors={name: error})
    if twice := sorted(taken & value.keys()):
        return Submission(errors={name: MisfitError("twice", name=twice[0])})
    return Submission(arguments=value)


def _read_field_value(field: Field, typed: Mapping[str, str]) -> JSONObject:
    """Return the argument of a field, or no argument if the field is empty."""
    if field.nullable and typed.get(f"null.{field.name}"):
        return {field.name: None}
    text = typed.get(f"arg.{field.name}", "").replace("\r\n", "\n")
    # An empty field sends nothing, because nobody would notice an empty text.
    if not (text if field.kind is FieldKind.TEXT else text.strip()):
        if field.required:
            raise MisfitError("required")
        return {}
    return {field.name: _parse(field, text)}


def _parse(field: Field, text: str) -> JSONValue:
    match field.kind:
        case FieldKind.TEXT:
            return text
        case FieldKind.JSON:
            return _parse_json(text)
        case FieldKind.INTEGER | FieldKind.NUMBER:
            return _parse_number(field, text)
        case FieldKind.BOOLEAN:
            choices: dict[str, JSONValue] = {"true": True, "false": False}
        case _:
            choices = {str(place): one for place, one in enumerate(field.choices)}
    if text not in choices:
        raise MisfitError("choice")
    return choices[text]


def _parse_json(text: str) -> JSONValue:
    try:
        return decode(text.encode("utf-8", "replace"))
    except DecodeError as error:
        code = "too_deep" if error.reason == "too_deep" else "json"
        raise MisfitError(code) from None


def _parse_number(field: Field, text: str) -> JSONValue:
    """Read a number, also of full-width digits, which Chinese keyboards write."""
    half = unicodedata.normalize("NFKC", text[: 2 * LONGEST_NUMBER]).strip().lower()
    if _INTEGER.fullmatch(half):
        return int(half)
    value = float(half) if _NUMBER.fullmatch(half) else math.nan
    if not math.isfinite(value):
        raise MisfitError(field.kind.value)
    return value


def _find_misfits(
    schema: _Schema, arguments: JSONObject
) -> Iterator[tuple[str, MisfitError]]:
    """Find the arguments that do not fit the schema, with the first misfit of each.

    Yields nothing for an unusable schema, because the agent checks its arguments, too.
    """
    references = iter(range(MOST_REFERENCES))

    def follow(validator: Any, reference: Any, value: Any, schema: Any) -> Any:
        if next(references, None) is None:  # circular schemas never end
            raise RecursionError
        return _WORDS["$ref"](validator, reference, value, schema)

    create = cast("Any", validators).create
    made = create({}, {**_WORDS, "$ref": follow})
    try:  # an empty registry fetches nothing from the network
        found = [*made(schema, registry=cast("Any", Registry)()).iter_errors(arguments)]
    except Exception:  # noqa: BLE001 - a foreign schema may hold anything
        return
    for error in found:
        if error.absolute_path:  # a missing argument has no path
            yield str(error.absolute_path[0]), _misfit_of(error)


# A pattern may run for ever; the other left-out keywords are slow and rare.
_WORDS: Final[Mapping[str, Any]] = {
    word: check
    for word, check in Draft202012Validator.VALIDATORS.items()
    if word not in {"pattern", "patternProperties", "uniqueItems", "$dynamicRef"}
    and not word.startswith("unevaluated")
}
_CODES: Final = {  # keyword → text of the catalogue, and the name of the value in it
    "minimum": ("at_least", "least"),
    "maximum": ("at_most", "most"),
    "exclusiveMinimum": ("more_than", "least"),
    "exclusiveMaximum": ("less_than", "most"),
    "minLength": ("too_short", "least"),
    "maxLength": ("too_long", "most"),
}
_TYPES: Final = {"string": "text"} | {
    kind: kind for kind in ("boolean", "integer", "number", "array", "object")
}


def _misfit_of(error: ValidationError) -> MisfitError:
    error = cast("ValidationError", best_match([error]))
    word, value = str(error.validator), cast("Any", error.validator_value)
    if word in _CODES:
        code, name = _CODES[word]
        misfit = MisfitError(code, **{name: value})
    elif word == "type" and isinstance(value, str) and value in _TYPES:
        misfit = MisfitError(_TYPES[value])
    elif word in {"enum", "const"}:
        choices = encode(value if word == "enum" else [value]).decode()[1:-1]
        misfit = MisfitError("one_of", choices=choices)
    else:
        misfit = MisfitError("schema", reason=error.message)
    inside = list(error.absolute_path)[1:]
    misfit.place = tuple(str(at + 1 if isinstance(at, int) else at) for at in inside)
    return misfit
