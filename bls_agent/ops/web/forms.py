"""The texts of a command's form, read as the arguments of the command. No I/O.

The inputs are ``arg.<argument>``, ``null.<argument>`` (ticked: it is null), ``more``
(JSON object of further arguments) and ``args`` (JSON object of all of them, where there
are no fields).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field as part
from typing import Final, cast

from bls_agent.core.codec import JSONObject, JSONValue, decode, encode
from bls_agent.core.errors import DecodeError
from bls_agent.ops.web.help import ABSENT, Absent, Field, FieldKind, Form, is_same

__all__ = ["ALL", "MORE", "MisfitError", "Submission", "read_submission", "read_value"]

ALL: Final = "args"  # one field for all arguments
MORE: Final = "more"  # those that have no field
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
        value = cast("JSONObject", _read_json(text, "object"))
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
    return _READERS[field.kind](field, text)


def _read_text(field: Field, text: str) -> JSONValue:
    _check_length(field, text)
    return text


def _check_length(field: Field, text: str) -> None:
    if field.least is not None and len(text) < field.least:
        raise MisfitError("too_short", least=_plain(field.least))
    if field.most is not None and len(text) > field.most:
        raise MisfitError("too_long", most=_plain(field.most))


def _read_boolean(_: Field, text: str) -> JSONValue:
    if text not in ("true", "false"):
        raise MisfitError("choice")
    return text == "true"


def _read_choice(field: Field, text: str) -> JSONValue:
    if not text.isascii() or not text.isdecimal() or len(text) > len("199"):
        raise MisfitError("choice")
    place = int(text)
    if place >= len(field.choices):
        raise MisfitError("choice")
    return field.choices[place]


def _read_number(field: Field, text: str) -> JSONValue:
    """Read a number; of full-width digits, too, as Chinese keyboards write them."""
    half = unicodedata.normalize("NFKC", text[: 2 * LONGEST_NUMBER]).strip().lower()
    if _INTEGER.fullmatch(half):
        return _within(field, int(half))
    value = float(half) if _NUMBER.fullmatch(half) else math.nan
    if field.kind is FieldKind.INTEGER or not math.isfinite(value):
        raise MisfitError(field.kind.value)
    return _within(field, value)


def _within(field: Field, value: float) -> JSONValue:
    above, below = field.beyond
    least, most = field.least, field.most
    if least is not None and (value < least or (above and value == least)):
        raise MisfitError("more_than" if above else "at_least", least=_plain(least))
    if most is not None and (value > most or (below and value == most)):
        raise MisfitError("less_than" if below else "at_most", most=_plain(most))
    return value


def _plain(limit: float) -> str:
    return str(int(limit) if isinstance(limit, int) or limit.is_integer() else limit)


def _read_json_field(field: Field, text: str) -> JSONValue:
    value = _read_json(text, field.shape)
    _check_inside(field, value)
    return value


def _read_json(text: str, shape: str) -> JSONValue:
    try:
        value = decode(text.encode("utf-8", "replace"))
    except DecodeError as error:
        code = "too_deep" if error.reason == "too_deep" else "json"
        raise MisfitError(code) from None
    _check_shape(value, shape)
    return value


def _check_shape(value: JSONValue, shape: str) -> None:
    wanted = {"array": list, "object": dict}.get(shape)
    if wanted is not None and not isinstance(value, wanted):
        raise MisfitError(shape)


def _check_inside(field: Field, value: JSONValue) -> None:
    """Check the items of a list, or the values of an object, against their schema."""
    if field.inner is None or not isinstance(value, list | dict):
        return
    items = enumerate(value, 1) if isinstance(value, list) else value.items()
    for place, item in items:
        try:
            _check_value(field.inner, item)
        except MisfitError as error:
            error.place = (str(place), *error.place)
            raise


def _check_value(field: Field, value: JSONValue) -> None:
    if value is None and field.nullable:
        return
    if field.kind is FieldKind.CHOICE:
        if not any(is_same(choice, value) for choice in field.choices):
            choices = encode(list(field.choices)).decode()[1:-1]
            raise MisfitError("one_of", choices=choices)
    elif field.kind is FieldKind.JSON:
        _check_shape(value, field.shape)
        _check_inside(field, value)
    else:
        _check_plain(field, value)


def _check_plain(field: Field, value: JSONValue) -> None:
    if type(value) not in _TYPES[field.kind]:
        raise MisfitError(field.kind.value)
    if isinstance(value, str):
        _check_length(field, value)
    elif isinstance(value, int | float):
        _within(field, value)


_TYPES: Final[Mapping[FieldKind, tuple[type, ...]]] = {
    FieldKind.BOOLEAN: (bool,),
    FieldKind.INTEGER: (int,),
    FieldKind.NUMBER: (int, float),
    FieldKind.TEXT: (str,),
}


_READERS: Final[Mapping[FieldKind, Callable[[Field, str], JSONValue]]] = {
    FieldKind.BOOLEAN: _read_boolean,
    FieldKind.INTEGER: _read_number,
    FieldKind.NUMBER: _read_number,
    FieldKind.TEXT: _read_text,
    FieldKind.CHOICE: _read_choice,
    FieldKind.JSON: _read_json_field,
}
