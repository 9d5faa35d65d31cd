"""Checks the JSON arguments of a command against the annotations of its handler.

The supported annotations are ``str int float bool None list dict Literal``, enums (the
argument is the value of a member), ``datetime date UUID Decimal``, dataclasses, ``Any``
and unions. Annotations may be nested. pydantic checks its own types, and with
``validate="pydantic"`` all types. If an annotation is not supported, the registration
of the handler raises ConfigurationError. This module does no I/O.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, Union, cast

from bls_agent.core.codec import JSONObject, JSONValue, decode, encode, encode_strictly
from bls_agent.core.errors import ConfigurationError, MissingExtraError

if typing.TYPE_CHECKING:
    from bls_agent.core.values import TextForm


class Misfit(Exception):  # noqa: N818 - never leaves this package
    """A value does not fit its annotation. The text describes the allowed values."""

    @classmethod
    def none_of(cls, choices: Iterable[object]) -> Misfit:
        return cls(f"must be one of {', '.join(map(repr, choices))}")

    def at(self, place: object) -> Misfit:
        return Misfit(f"at {str(place)[:60]!r}: {self}")


NOT_KNOWN: Final = "is not known"
_MISSING: Final = "is missing"
_TOO_LARGE: Final = "must be a number that a float can hold"
LARGEST_DEFAULT: Final = 1_000  # bytes; the schema leaves out a longer default
LONGEST_REASON: Final = 200  # characters of an error that a dataclass itself raises
Convert: TypeAlias = Callable[[JSONValue], Any]
_Around: TypeAlias = "Mapping[type, Check]"


@dataclass(frozen=True, eq=False)
class Check:
    """One parameter of a handler: how a JSON value is checked and converted."""

    convert: Convert  # returns the value for the handler, or raises Misfit
    schema: JSONObject  # describes the allowed values, for the command ``help``


@dataclass(eq=False)
class Fields:
    """The arguments of a handler, or the fields of a dataclass."""

    checks: dict[str, Check] = field(default_factory=dict[str, Check])
    required: list[str] = field(default_factory=list[str])
    extra: Check | None = None  # the check of all other names; None refuses them

    def add(self, parameter: inspect.Parameter, check: Check) -> None:
        default = parameter.default
        if default is inspect.Parameter.empty:
            self.required.append(parameter.name)
        else:
            check = with_default(check, default)
        self.checks[parameter.name] = check

    def bind(
        self, values: Mapping[str, JSONValue]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the converted values, and a text for each wrong or missing value."""
        bound: dict[str, Any] = {}
        faults: dict[str, str] = {}
        for name, value in values.items():
            check = self.checks.get(name) or self.extra or NOTHING
            try:
                bound[name] = check.convert(value)
            except Misfit as misfit:
                faults[name] = str(misfit)
        for name in self.required:
            if name not in values:
                faults[name] = _MISSING
        return bound, faults

    def describe(self) -> JSONObject:
        """Return a JSON Schema of all fields."""
        return {
            "type": "object",
            "properties": {name: check.schema for name, check in self.checks.items()},
            "required": list(self.required),
            "additionalProperties": self.extra is not None,
        }


def compile_check(annotation: Any, where: str, *, pydantic: bool = False) -> Check:
    """Return the check of an annotation, or raise ConfigurationError."""
    return _by_pydantic(annotation, where) if pydantic else _compile(annotation, where)


def _compile(
    annotation: Any, where: str, around: _Around = MappingProxyType({})
) -> Check:
    """Compile an annotation.

    ``around`` has the checks of the dataclasses that contain the annotation, because a
    dataclass may have a field of its own type.
    """
    check = _class(annotation, where, around) or _generic(annotation, where, around)
    if check is not None:
        return check
    raise ConfigurationError(
        where,
        getattr(annotation, "__name__", repr(annotation)),
        "an annotation of str, int, float, bool, None, list, dict, Literal, Enum, "
        "datetime, date, UUID, Decimal, dataclasses, Any and unions of them, or a "
        "pydantic model",
        "Or pass validate='pydantic' to the agent.",
    )


def with_default(check: Check, default: object) -> Check:
    """Add the default to the schema, if the default is short and can become JSON."""
    try:
        payload = encode_strictly("default", default)
    except ConfigurationError:  # for example a Decimal, which is encoded as a text
        payload = encode(default)
        if not _is_converted_to(check, decode(payload), default):
            return check
    if len(payload) > LARGEST_DEFAULT:
        return check
    return replace(check, schema=check.schema | {"default": decode(payload)})


def _is_converted_to(check: Check, value: JSONValue, wanted: object) -> bool:
    with suppress(Misfit):
        converted = check.convert(value)
        return type(converted) is type(wanted) and bool(converted == wanted)
    return False


def _class(annotation: Any, where: str, around: _Around) -> Check | None:
    with suppress(TypeError):  # Annotated with an unhashable value is unhashable, too
        if annotation in _PLAIN:
            return _PLAIN[annotation]
    if not inspect.isclass(annotation):
        return None
    if issubclass(annotation, enum.Enum):
        return _member_of(annotation, where)
    if _is_of_pydantic(annotation):
        return _by_pydantic(annotation, where)
    if dataclasses.is_dataclass(annotation):
        return around.get(annotation) or _dataclass(annotation, where, around)
    from bls_agent.core.values import TEXT_FORMS  # noqa: PLC0415 - import takes 3 ms

    return _text(TEXT_FORMS[annotation]) if annotation in TEXT_FORMS else None


def _generic(annotation: Any, where: str, around: _Around) -> Check | None:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    inner = partial(_compile, where=where, around=around)
    if origin is typing.Annotated:
        ruled = any(_is_rule_of_pydantic(rule) for rule in parts[1:])
        return _by_pydantic(annotation, where) if ruled else inner(parts[0])
    if origin in (list, Sequence, dict, Mapping) and not parts:  # typing.List and such
        return _PLAIN[list if origin in (list, Sequence) else dict]
    if origin in (Union, types.UnionType):
        return _one_of([inner(part) for part in parts])
    if origin is Literal:
        return _literal(parts, where)
    if origin in (list, Sequence):
        return _list_of(inner(parts[0]))
    return _dict_of(annotation, where, around) if origin in (dict, Mapping) else None


def resolve_hints(
    where: str, thing: Any, scope: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the annotations of a class or function.

    An annotation that is a string is resolved to its type.
    """
    try:
        return typing.get_type_hints(thing, scope, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigurationError(
            where,
            str(error),
            "the annotations of a handler must be resolvable when it is registered",
            "Define the type at module level, above the handler.",
        ) from None


def _dataclass(kind: type, where: str, around: _Around) -> Check:
    fields = Fields()

    def convert(value: JSONValue) -> Any:
        if not isinstance(value, dict):
            raise Misfit(_expected("an object", value))
        bound, faults = fields.bind(value)
        if faults:
            misfits = (Misfit(fault).at(name) for name, fault in faults.items())
            raise Misfit("; ".join(map(str, misfits)))
        try:
            return kind(**bound)
        except (ValueError, AssertionError) as error:  # raised by a __post_init__
            reason = " ".join(str(error).split())[:LONGEST_REASON]
            raise Misfit(reason or type(error).__name__) from None

    # For a field of the dataclass's own type, the schema allows any object, because a
    # schema cannot contain itself. ``convert`` checks the values of such a field.
    title = {"title": kind.__name__}
    around = {**around, kind: Check(convert, {"type": "object", **title})}
    hints = resolve_hints(where, kind)
    for parameter in inspect.signature(kind).parameters.values():
        hint = hints.get(parameter.name, Any)
        is_wrapped = isinstance(hint, dataclasses.InitVar)
        annotation = cast("Any", hint).type if is_wrapped else hint
        inside = f"{where}.{parameter.name}"
        fields.add(parameter, _compile(annotation, inside, around))
    return Check(convert, {**fields.describe(), **title})


def _text(form: TextForm) -> Check:
    reason = f"must be {form.example}"

    def convert(value: JSONValue) -> Any:
        with suppress(ValueError):
            if type(value) in form.accepts:
                return form.read(str(value))
        raise Misfit(reason)

    return Check(convert, form.schema)


def _exactly(*kinds: type) -> Convert:
    wanted = " or ".join(_JSON_NAMES[kind] for kind in kinds)

    def convert(value: JSONValue) -> Any:
        if type(value) not in kinds:
            raise Misfit(_expected(wanted, value))
        return value

    return convert


def _to_float(value: JSONValue) -> float:
    if type(value) not in (int, float):
        raise Misfit(_expected("a number", value))
    try:
        return float(cast("float", value))
    except OverflowError:
        raise Misfit(_TOO_LARGE) from None


def _expected(wanted: str, value: JSONValue) -> str:
    # A middleware may have set a value of any type.
    found = _JSON_NAMES.get(type(value), f"a {type(value).__name__}")
    return f"must be {wanted}, not {found}"


_JSON_NAMES: Final[Mapping[type, str]] = {
    str: "a string",
    int: "an integer",
    float: "a number with a fraction",
    bool: "a boolean",
    types.NoneType: "null",
    list: "an array",
    dict: "an object",
}


def _anything(value: JSONValue) -> JSONValue:
    return value


def _nothing(_: JSONValue) -> JSONValue:
    raise Misfit(NOT_KNOWN)


ANYTHING: Final = Check(_anything, {})
NOTHING: Final = Check(_nothing, {"not": {}})
_PLAIN: Final[Mapping[Any, Check]] = {
    str: Check(_exactly(str), {"type": "string"}),
    int: Check(_exactly(int), {"type": "integer"}),
    float: Check(_to_float, {"type": "number"}),
    bool: Check(_exactly(bool), {"type": "boolean"}),
    None: Check(_exactly(types.NoneType), {"type": "null"}),
    types.NoneType: Check(_exactly(types.NoneType), {"type": "null"}),
    list: Check(_exactly(list), {"type": "array"}),
    dict: Check(_exactly(dict), {"type": "object"}),
    Any: ANYTHING,
    object: ANYTHING,
    inspect.Parameter.empty: ANYTHING,
}


def _one_of(parts: list[Check]) -> Check:
    def convert(value: JSONValue) -> Any:
        reasons: list[str] = []
        for part in parts:
            try:
                return part.convert(value)
            except Misfit as misfit:
                reasons.append(str(misfit))
        raise Misfit("; or ".join(dict.fromkeys(reasons)))

    # float is tried last, because otherwise float would convert an int.
    parts = sorted(parts, key=lambda part: part.convert is _to_float)
    schemas = [part.schema for part in parts]
    each = [one["anyOf"] if one.keys() == {"anyOf"} else [one] for one in schemas]
    return Check(convert, {"anyOf": [*chain.from_iterable(each)]})


def _literal(values: tuple[Any, ...], where: str) -> Check:
    plain = [v.value if isinstance(v, enum.Enum) else v for v in values]
    _refuse_what_json_has_not(plain, where)

    def convert(value: JSONValue) -> Any:
        for known, member in zip(plain, values, strict=True):
            if type(value) is type(known) and value == known:
                return member
        raise Misfit.none_of(plain)

    return Check(convert, {"enum": plain})


def _member_of(kind: type[enum.Enum], where: str) -> Check:
    _refuse_what_json_has_not([member.value for member in kind], where)

    def convert(value: JSONValue) -> Any:
        for member in kind:
            plain = member.value
            if value == plain and isinstance(plain, type(value)):
                return member
        raise Misfit.none_of(member.value for member in kind)

    return Check(convert, {"enum": [member.value for member in kind]})


def _refuse_what_json_has_not(values: list[Any], where: str) -> None:
    for value in values:
        if not isinstance(value, str | int | float | bool | None):
            rule = "a value that JSON has: text, a number, true, false or null"
            raise ConfigurationError(where, repr(value), rule)


def _list_of(item: Check) -> Check:
    def convert(value: JSONValue) -> Any:
        if not isinstance(value, list):
            raise Misfit(_expected("an array", value))
        return [_inside(index, item, part) for index, part in enumerate(value)]

    return Check(convert, {"type": "array", "items": item.schema})


def _dict_of(annotation: Any, where: str, around: _Around) -> Check:
    key, kind = typing.get_args(annotation)
    if key is not str:
        raise ConfigurationError(where, repr(annotation), "the keys of a dict are str")
    item = _compile(kind, where, around)

    def convert(value: JSONValue) -> Any:
        if not isinstance(value, dict):
            raise Misfit(_expected("an object", value))
        return {name: _inside(name, item, part) for name, part in value.items()}

    return Check(convert, {"type": "object", "additionalProperties": item.schema})


def _inside(place: str | int, item: Check, value: JSONValue) -> Any:
    try:
        return item.convert(value)
    except Misfit as misfit:
        raise misfit.at(place) from None


def _is_of_pydantic(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    ours = any(base.__module__.startswith("pydantic") for base in annotation.__mro__)
    return ours or hasattr(annotation, "__pydantic_core_schema__")


def _is_rule_of_pydantic(rule: object) -> bool:
    return type(rule).__module__.split(".")[0] in ("pydantic", "annotated_types")


def _by_pydantic(annotation: Any, where: str) -> Check:
    if importlib.util.find_spec("pydantic") is None:
        raise MissingExtraError("validate", f"the annotation {annotation!r}")
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - optional
    from pydantic.errors import PydanticSchemaGenerationError  # noqa: PLC0415

    if annotation is inspect.Parameter.empty:
        return ANYTHING
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    except PydanticSchemaGenerationError as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(where, repr(annotation), reason) from None

    def convert(value: JSONValue) -> Any:
        try:
            return adapter.validate_python(value, strict=None)
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ")
                for fault in error.errors(include_url=False, include_input=False)
            ]
            raise Misfit("; ".join(faults)[:1_000]) from None

    try:
        schema: JSONObject = adapter.json_schema()
    except Exception:  # noqa: BLE001 - a check needs no schema
        schema = {}
    return Check(convert, schema)


def gather_definitions(
    schema: Any, found: JSONObject, names: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Return a schema whose ``$defs`` were moved to ``found``.

    ``found`` becomes the only ``$defs``, at the top of a larger schema. pydantic writes
    ``$defs`` into the schema of each annotation, and two annotations may define
    different models of one name. Then the second model gets a number behind its name.
    ``names`` maps old references to new references.
    """
    if isinstance(schema, str):
        return names.get(schema, schema)
    if isinstance(schema, list):
        items = cast("Iterable[Any]", schema)
        return [gather_definitions(one, found, names) for one in items]
    if not isinstance(schema, dict):
        return schema
    node = cast("JSONObject", schema)
    defined: JSONObject = node.get("$defs", {})
    is_known = all(found.get(name, one) == one for name, one in defined.items())
    mark = "" if is_known else f".{len(found)}"
    names = {**names, **{f"#/$defs/{one}": f"#/$defs/{one}{mark}" for one in defined}}
    for name, one in defined.items():
        found[name + mark] = gather_definitions(one, found, names)
    return {
        key: gather_definitions(one, found, names)
        for key, one in node.items()
        if key != "$defs"
    }
