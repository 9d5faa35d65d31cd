"""Make forms from an agent's answer to ``help``, and read what was typed. No I/O.

``help`` is sent when a user asks for it; agents in other languages may not know it. The
answer comes from a foreign process and may be anything. Without a usable schema the form
is ``None``, and the page shows one field for all arguments. ``jsonschema`` checks the
typed values against the agent's own schema, and the agent checks them again.

A field has a path, such as ``order.lines.3.count``, where 3 is the number of a row. Its
inputs are ``arg.<path>``, ``null.<path>`` (if ticked, the value is null), ``rows.<path>``
(the numbers of a list's rows) and ``zone.<path>`` (the UTC offset of a moment). Other
inputs are ``more`` (a JSON object of further arguments) and ``args`` (a JSON object of
all arguments, if there are no fields).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field as part
from decimal import Decimal
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final, cast

from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators
from jsonschema.exceptions import best_match  # pyright: ignore[reportUnknownVariableType] - its stubs
from referencing import Registry

from bls_agent.core.codec import JSONObject, JSONValue, decode, encode
from bls_agent.core.errors import DecodeError
from bls_agent.core.values import TEXT_FORMS, TextForm
from bls_agent.ops.fields import (
    LONGEST_NAME,
    MOST_FIELDS,
    Field,
    FieldKind,
    Schema,
    read_commands,
    read_fields,
)
from bls_agent.ops.web.requests import FORM_FIELDS
from bls_agent.project.messages import LogEntry

HELP: Final = "help"
MOST_ENTRIES: Final = 300
MOST_MANUALS: Final = 500  # projects whose commands are remembered
KEPT: Final = 600.0  # seconds for which an agent is not asked again
LONGEST_ABOUT: Final = 2_000  # characters of a command's description
MOST_ROWS: Final = 100  # rows of one list
MOST_REFERENCES: Final = 1_000  # references of a schema that one check may follow
ALL: Final = "args"  # one field for all arguments
MORE: Final = "more"  # arguments that have no field
LONGEST_NUMBER: Final = 400  # digits; a longer number is refused
_ABSENT: Final = object()  # nothing is sent
_ROW: Final = re.compile(r"[0-9]{1,6}")
_MINUTE: Final = re.compile(r"[0-9-]{10}T[0-9]{2}:[0-9]{2}")


@dataclass(frozen=True, kw_only=True)
class Form:
    """The arguments of a command; an open form accepts further arguments."""

    fields: tuple[Field, ...]
    open: bool = False
    schema: Schema = part(default_factory=dict[str, Any], compare=False)


def read_form(schema: object) -> Form | None:
    """Return a schema's form; ``None`` if it is no object of at most 50 arguments."""
    fields = read_fields(schema)
    if fields is None:
        return None
    root = cast("Schema", schema)
    is_open = root.get("additionalProperties", False) is not False
    return Form(fields=fields, open=is_open, schema=root)


def path_of(name: str, around: str = "") -> str:
    """Return the path of a field, whose name may contain dots."""
    quoted = name.replace("~", "~0").replace(".", "~1")
    return f"{around}.{quoted}" if around else quoted


def list_rows(typed: Mapping[str, str], path: str) -> list[str]:
    """Return the numbers of a list's rows, in their order."""
    numbers = typed.get(f"rows.{path}", "").split()
    return [one for one in dict.fromkeys(numbers) if _ROW.fullmatch(one)][:MOST_ROWS]


def is_full(typed: Mapping[str, str]) -> bool:
    """Return whether a form has no room for the inputs of another row."""
    return len(typed) > FORM_FIELDS - 2 * MOST_FIELDS


def change_rows(
    typed: Mapping[str, str], *, add: str = "", remove: str = ""
) -> tuple[dict[str, str], str]:
    """Add a row to the list at a path, or remove the row at a path.

    Returns the inputs, and the beginning of the name of the input to focus.
    """
    path, _, removed = (add, "", "") if add else remove.rpartition(".")
    rows = [row for row in list_rows(typed, path) if row != removed]
    focus = f"arg.{path}"
    if add:
        rows.append(str(1 + max(map(int, rows), default=-1)))
        focus = f"{focus}.{rows[-1]}"
    return {**typed, f"rows.{path}": " ".join(rows)}, focus


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command."""

    name: str
    description: str = ""
    parameters: object = None  # its JSON Schema, as the agent sent it

    @cached_property
    def form(self) -> Form | None:
        """``None`` if the arguments are only JSON."""
        return read_form(self.parameters)


@dataclass(frozen=True, kw_only=True)
class Manual:
    """The commands of an agent; ``entries`` is empty if the agent did not answer."""

    entries: tuple[Entry, ...]
    answered_at: float  # monotonic time
    asked: bool = True  # False if no answer or attempt is known


def read_manual(result: JSONValue) -> tuple[Entry, ...]:
    commands = islice(read_commands(result).items(), MOST_ENTRIES)
    entries = [
        Entry(
            name=name,
            description=str(one.get("description") or "")[:LONGEST_ABOUT],
            parameters=one.get("parameters"),
        )
        for name, one in commands
        if len(name) <= LONGEST_NAME
    ]
    return tuple(sorted(entries, key=lambda entry: entry.name))


def find_manual(log: Sequence[LogEntry]) -> tuple[Entry, ...]:
    for entry in reversed(log):
        outcome = entry.outcome
        if outcome is not None and outcome.succeeded and outcome.command == HELP:
            return read_manual(outcome.result)
    return ()


class HelpCache:
    """Caches the answers of agents to ``help``, and that an agent did not answer."""

    def __init__(self) -> None:
        self._manuals: dict[str, Manual] = {}  # the oldest first

    def get(self, project: str, now: float) -> Manual | None:
        manual = self._manuals.get(project)
        return manual if manual and now - manual.answered_at <= KEPT else None

    def put(self, project: str, entries: tuple[Entry, ...], now: float) -> Manual:
        self._manuals.pop(project, None)
        self._manuals[project] = manual = Manual(entries=entries, answered_at=now)
        if len(self._manuals) > MOST_MANUALS:
            del self._manuals[next(iter(self._manuals))]
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
    reading = _Reading(typed)
    arguments = reading.read_all(form.fields)
    errors = reading.errors
    if form.open:
        names = frozenset(field.name for field in form.fields)
        more = _read_object(MORE, typed.get(MORE, ""), names)
        arguments |= more.arguments
        errors |= more.errors
    for place, misfit in _find_misfits(form.schema, arguments):
        name, misfit.place = reading.find_input(form.fields, place)
        errors.setdefault(name, misfit)
    return Submission(arguments=arguments, errors=errors)


class _Reading:
    """Reads the fields of a form; collects an error for each input that is wrong."""

    def __init__(self, typed: Mapping[str, str]) -> None:
        self._typed = typed
        self.errors: dict[str, MisfitError] = {}

    def read_all(self, fields: Sequence[Field], around: str = "") -> JSONObject:
        """Return the values of an object's fields; leave out those with an error."""
        values: dict[str, Any] = {}
        for field in fields:
            before = len(self.errors)
            value = self._read(field, path_of(field.name, around))
            if value is not _ABSENT and len(self.errors) == before:
                values[field.name] = value
        return values

    def _read(self, field: Field, path: str) -> Any:
        """Return the value of a field.

        1. The box for null is ticked: ``None``.
        2. A list: a value for each row. Without rows, only a required list is sent.
        3. An object: its fields. Only a required object is sent without any.
        4. Nothing is typed: nothing is sent, because nobody would notice an empty text.
        5. Anything else is converted.
        """
        typed = self._typed
        if field.nullable and typed.get(f"null.{path}"):
            return None
        if field.item is not None:
            rows = [f"{path}.{row}" for row in list_rows(typed, path)]
            read = [self._read(field.item, row) for row in rows]
            return read if rows or field.required else _ABSENT
        if field.fields:
            if field.required or self._is_filled(path):
                return self.read_all(field.fields, path)
            return _ABSENT
        text = typed.get(f"arg.{path}", "").replace("\r\n", "\n")
        try:
            if text if field.kind is FieldKind.TEXT else text.strip():
                return _parse(field, text, typed.get(f"zone.{path}", ""))
            if field.required:
                raise MisfitError("required")  # noqa: TRY301 - beside the other misfits
        except MisfitError as error:
            self.errors[f"arg.{path}"] = error
        return _ABSENT

    def _is_filled(self, path: str) -> bool:
        heads = tuple(f"{word}.{path}." for word in ("arg", "null", "rows"))
        return any(
            text.strip() for name, text in self._typed.items() if name.startswith(heads)
        )

    def find_input(
        self, fields: Sequence[Field], place: Sequence[str | int]
    ) -> tuple[str, tuple[str, ...]]:
        """Return the input of a value, and the place inside of what was typed there.

        ``place`` is the value's path in the arguments.
        """
        path, item, rest = "", None, list(place)
        while rest:
            if item is not None:
                path = f"{path}.{list_rows(self._typed, path)[int(rest[0])]}"
                fields, item = item.fields, None
            else:
                field = next((one for one in fields if one.name == rest[0]), None)
                if field is None:
                    break
                path, fields, item = path_of(field.name, path), field.fields, field.item
            del rest[0]
        shown = tuple(str(at + 1 if isinstance(at, int) else at) for at in rest)
        return (f"arg.{path}" if path else MORE), shown


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


def _parse(field: Field, text: str, zone: str) -> JSONValue:
    match field.kind:
        case FieldKind.TEXT:
            return text
        case FieldKind.DATE | FieldKind.MOMENT | FieldKind.UUID | FieldKind.DECIMAL:
            seconds = ":00" if _MINUTE.fullmatch(text) else ""  # browsers omit zeros
            return f"{_half_width(text)}{seconds}{zone}"
        case FieldKind.INTEGER | FieldKind.NUMBER:
            return _parse_number(field, text)
        case FieldKind.BOOLEAN:
            choices: dict[str, JSONValue] = {"true": True, "false": False}
        case FieldKind.CHOICE:
            choices = {str(place): one for place, one in enumerate(field.choices)}
        case _:
            return _parse_json(text)
    if text not in choices:
        raise MisfitError("choice")
    return choices[text]


def _parse_json(text: str) -> JSONValue:
    try:
        return decode(text.encode("utf-8", "replace"))
    except DecodeError as error:
        code = "too_deep" if error.reason == "too_deep" else "json"
        raise MisfitError(code) from None


def _half_width(text: str) -> str:
    """Return what was typed without the full-width digits of Chinese keyboards."""
    return unicodedata.normalize("NFKC", text[: 2 * LONGEST_NUMBER]).strip()


def _parse_number(field: Field, text: str) -> JSONValue:
    half = _half_width(text)
    with suppress(ValueError):
        TEXT_FORMS[Decimal].read(half)
        if half.lstrip("+-").isdecimal():
            return int(half)
        if math.isfinite(value := float(half)):
            return value
    raise MisfitError(field.kind.value)


def _find_misfits(
    schema: Schema, arguments: JSONObject
) -> Iterator[tuple[Sequence[str | int], MisfitError]]:
    """Find the values that do not fit the schema; yield the path of each.

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
        check = made(schema, registry=cast("Any", Registry)(), format_checker=_FORMATS)
        found: list[Any] = [best_match([one]) for one in check.iter_errors(arguments)]
    except Exception:  # noqa: BLE001 - a foreign schema may hold anything
        return
    for error in found:
        if error.absolute_path:  # a missing argument has no path
            yield error.absolute_path, _misfit_of(error)


def _fits_format(form: TextForm, value: object) -> bool:
    """Return whether a text has the format; a moment has it only with its zone."""
    if not isinstance(value, str):
        return True
    return getattr(form.read(value), "tzinfo", "") is not None


_FORMATS: Final = FormatChecker(())
for _form in TEXT_FORMS.values():
    _FORMATS.checks(_form.format, ValueError)(partial(_fits_format, _form))
# A pattern may run for ever; the other left-out keywords are slow and rare.
_WORDS: Final[Mapping[str, Any]] = {
    word: check
    for word, check in Draft202012Validator.VALIDATORS.items()
    if word not in {"pattern", "patternProperties", "uniqueItems", "$dynamicRef"}
    and not word.startswith("unevaluated")
}
_LIMITS: Final = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems"),
}


def _misfit_of(error: ValidationError) -> MisfitError:
    word, value = str(error.validator), cast("Any", error.validator_value)
    if word in _LIMITS:
        return MisfitError(word, limit=value)
    if word in {"type", "format"} and value in [*FieldKind]:
        return MisfitError(value)
    if word in {"enum", "const"}:
        choices = encode(value if word == "enum" else [value]).decode()[1:-1]
        return MisfitError("one_of", choices=choices)
    return MisfitError("schema", reason=error.message)
