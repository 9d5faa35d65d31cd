"""The texts of a command's form, read as the arguments of the command. No I/O.

The inputs are ``arg.<argument>``, ``null.<argument>`` (ticked: it is null), ``more``
(JSON object of further arguments) and ``args`` (JSON object of all of them, where there
are no fields).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field as part
from typing import Final, cast

from bls_agent.core.codec import JSONObject, JSONValue, decode, encode
from bls_agent.core.errors import DecodeError
from bls_agent.ops.web.help import ABSENT, Absent, Field, FieldKind, Form, is_same

__all__ = ["ALL", "MORE", "MisfitError", "Submission", "read_submission", "read_value"]

ALL: Final = "args"  # one field for all arguments
MORE: Final = "more"  # those that have no field
_OBJECT: Final = Field(name="", kind=FieldKind.JSON, shape="object")
LONGEST_NUMBER: Final = 400  # digits; beyond that a number is a mistake
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER: Final = re.compile(
    r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,4})?"
)


class MisfitError(Exception):
    """A text does not fit its field.

    ``code`` names the text in the catalogue, after ``field_``, and ``values`` fill it.
    ``place`` says where inside of a list or object: numbers from 1, or names.
    """

    def __init__(self, code: str, **values: object) -> None:
        self.code = code
        self.values = {name: str(value) for name, value in values.items()}
        self.place: tuple[str, ...] = ()
        super().__init__(code)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The arguments that fit, and the errors of the other fields.

    Under ``more`` and ``args`` are the errors of the fields for JSON objects.
    """

    arguments: JSONObject = part(default_factory=dict[str, JSONValue])
    errors: Mapping[str, MisfitError] = part(default_factory=dict[str, MisfitError])


def read_submission(form: Form | None, typed: Mapping[str, str]) -> Submission:
    """Read all inputs of a form, by their names; never raises.

    Without a form there is one field with all arguments.
    """
    if form is None:
        return _read_object(ALL, typed.get(ALL, ""), frozenset())
    arguments: JSONObject = {}
    errors: dict[str, MisfitError] = {}
    for field in form.fields:
        try:
            value = read_value(field, typed)
        except MisfitError as error:
            errors[f"arg.{field.name}"] = error
            continue
        if not isinstance(value, Absent):
            arguments[field.name] = value
    if form.open:
        names = frozenset(field.name for field in form.fields)
        more = _read_object(MORE, typed.get(MORE, ""), names)
        arguments |= more.arguments
        errors |= more.errors
    return Submission(arguments=arguments, errors=errors)


def _read_object(name: str, text: str, taken: frozenset[str]) -> Submission:
    if not text.strip():
        return Submission()
    try:
        value = cast("JSONObject", _parse_json(text))
        _check(_OBJECT, value)
    except MisfitError as error:
        return Submission(errors={name: error})
    if twice := sorted(taken & value.keys()):
        return Submission(errors={name: MisfitError("twice", name=twice[0])})
    return Submission(arguments=value)


def read_value(field: Field, typed: Mapping[str, str]) -> JSONValue | Absent:
    """Read the value of one field."""
    if field.nullable and typed.get(f"null.{field.name}"):
        return None
    text = typed.get(f"arg.{field.name}", "").replace("\r\n", "\n")
    # An empty text is sent as JSON, where it is not sent by mistake.
    if not (text if field.kind is FieldKind.TEXT else text.strip()):
        if field.required:
            raise MisfitError("required")
        return ABSENT
    value = _parse(field, text)
    _check(field, value)
    return value


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
    """Read a number; of full-width digits, too, as Chinese keyboards write them."""
    half = unicodedata.normalize("NFKC", text[: 2 * LONGEST_NUMBER]).strip().lower()
    if _INTEGER.fullmatch(half):
        return int(half)
    value = float(half) if _NUMBER.fullmatch(half) else math.nan
    if not math.isfinite(value):
        raise MisfitError(field.kind.value)
    return value


def _check(field: Field, value: JSONValue) -> None:
    """Check a value against its field; in lists and objects, each one inside."""
    if value is None and field.nullable:
        return
    if field.kind is FieldKind.CHOICE:
        if not any(is_same(choice, value) for choice in field.choices):
            choices = encode(list(field.choices)).decode()[1:-1]
            raise MisfitError("one_of", choices=choices)
        return
    kind = field.shape or field.kind.value
    if type(value) not in _TYPES.get(kind, (type(value),)):
        raise MisfitError(kind)
    if isinstance(value, str):
        _check_length(field, value)
    elif isinstance(value, int | float):
        _check_limits(field, value)
    elif isinstance(value, list | dict) and field.inner is not None:
        _check_inside(field.inner, value)


def _check_length(field: Field, text: str) -> None:
    if field.least is not None and len(text) < field.least:
        raise MisfitError("too_short", least=_plain(field.least))
    if field.most is not None and len(text) > field.most:
        raise MisfitError("too_long", most=_plain(field.most))


def _check_limits(field: Field, value: float) -> None:
    above, below = field.beyond
    least, most = field.least, field.most
    if least is not None and (value < least or (above and value == least)):
        raise MisfitError("more_than" if above else "at_least", least=_plain(least))
    if most is not None and (value > most or (below and value == most)):
        raise MisfitError("less_than" if below else "at_most", most=_plain(most))


def _check_inside(field: Field, value: list[JSONValue] | dict[str, JSONValue]) -> None:
    items = enumerate(value, 1) if isinstance(value, list) else value.items()
    for place, item in items:
        try:
            _check(field, item)
        except MisfitError as error:
            error.place = (str(place), *error.place)
            raise


def _plain(limit: float) -> str:
    return str(int(limit) if isinstance(limit, int) or limit.is_integer() else limit)


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "text": (str,),
    "array": (list,),
    "object": (dict,),
}
