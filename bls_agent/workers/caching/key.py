"""Makes the digest under which a result is stored from the arguments of the call.

A digest is the same in every process, on every machine and in every version of Python,
because it does not use ``hash()``, ``id()`` or the ``repr()`` of objects.

The digest is made from the canonical form of the arguments, a tree of JSON values. Two
values have the same canonical form if, and only if, they have the same type and no
function can distinguish them. So ``1``, ``1.0`` and ``True`` have different forms. The
same is true for ``0.0`` and ``-0.0``, and for one moment in two time zones. A value of
a type that JSON lacks becomes an object with one key that begins with ``!``. A caller's
key that begins with ``!`` gets a second ``!``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from bls_agent.core.codec import JSONValue, encode_sorted
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.values import TEXT_FORMS

DIGEST_LENGTH: Final = 64  # hexadecimal digits of SHA-256
MAX_DEPTH: Final = 64  # levels, each of up to 3 levels of JSON; orjson allows 254
_INT64: Final = (-(2**63), 2**63 - 1)


class NoCanonicalFormError(Exception):
    """A value that cannot be part of a key. The message contains the reason."""


def canonical_form(value: object, depth: int = 0) -> JSONValue:
    """Return the tree for a value of a type in ``_FORMS``, an enum or a dataclass."""
    form = _FORMS.get(type(value))
    if form is not None:
        return form(value, depth)
    if isinstance(value, Enum):
        return _enum(value, depth)
    if _is_whole_in_its_fields(value):
        return _dataclass(value, depth)
    message = f"a {qualified_name(type(value))} is no plain value"
    raise NoCanonicalFormError(message)


def _is_whole_in_its_fields(value: object) -> bool:
    """Return whether the class, and not only a base class, is a dataclass."""
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, *_FORMS)):
        return False
    return "__dataclass_fields__" in vars(type(value))


def _plain(value: Any, _: int) -> JSONValue:
    return cast("JSONValue", value)


def _text(value: str, _: int = 0) -> JSONValue:
    if value.isascii() or _is_unicode(value):
        return value
    return {"!str": value.encode("utf-8", "surrogatepass").hex()}


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in some file names
        return False
    return True


def _integer(value: int, _: int) -> JSONValue:
    return value if _INT64[0] <= value <= _INT64[1] else {"!int": hex(value)}


def _float(value: float, _: int) -> JSONValue:
    if not math.isfinite(value):
        message = f"{value} is no finite number"
        raise NoCanonicalFormError(message)
    return {"!float": float.__repr__(value)}  # the shortest exact text since Python 3.1


def _text_form(value: date | Decimal, _: int) -> JSONValue:
    kind = type(value)
    try:
        return {f"!{kind.__name__.lower()}": TEXT_FORMS[kind].write(value)}
    except ValueError as error:
        raise NoCanonicalFormError(*error.args) from None


def _each(values: Iterable[object], depth: int) -> list[JSONValue]:
    if depth >= MAX_DEPTH:
        message = f"it is nested in more than {MAX_DEPTH} levels"
        raise NoCanonicalFormError(message)
    return [canonical_form(value, depth + 1) for value in values]


def _tuple(value: tuple[object, ...], depth: int) -> JSONValue:
    return {"!tuple": _each(value, depth)}


def _set(value: frozenset[object], depth: int) -> JSONValue:
    return {f"!{type(value).__name__}": sorted(_each(value, depth), key=encode_sorted)}


def _mapping(value: Mapping[object, object], depth: int) -> JSONValue:
    items = _each(value.values(), depth)
    return {_key(key): item for key, item in zip(value, items, strict=True)}


def _key(key: object) -> str:
    if type(key) is not str:
        message = f"a key of a dict is text, not {qualified_name(type(key))}"
        raise NoCanonicalFormError(message)
    if not key.isascii() and not _is_unicode(key):
        return f"!str {key.encode('utf-8', 'surrogatepass').hex()}"
    return f"!{key}" if key.startswith("!") else key


def _moment(value: datetime | time, _: int) -> JSONValue:
    """Return a moment with its zone, and with ``fold`` for repeated hours."""
    form: JSONValue = [value.isoformat(), value.fold, _zone(value.tzinfo, value)]
    return {f"!{type(value).__name__}": form}


def _zone(zone: tzinfo | None, moment: datetime | time) -> JSONValue:
    if zone is None or type(zone) is timezone:
        return None  # isoformat() contains the fixed offset
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    message = f"the zone of {moment} is no ZoneInfo with a name and no fixed offset"
    raise NoCanonicalFormError(message)


def _enum(value: Enum, depth: int) -> JSONValue:
    """Return the form of an enum member, with its class and its name.

    The value represents a member of a flag, because such a member may have no name.
    """
    member = cast("object", value.value) if isinstance(value, Flag) else value.name
    return {"!enum": [qualified_name(type(value)), *_each([member], depth)]}


def _dataclass(value: Any, depth: int) -> JSONValue:
    fields: dict[object, object] = {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value)
    }
    return {"!dataclass": [qualified_name(type(value)), _mapping(fields, depth)]}


_FORMS: Final[Mapping[type, Callable[[Any, int], JSONValue]]] = {
    str: _text,
    int: _integer,
    bool: _plain,
    type(None): _plain,
    float: _float,
    list: _each,
    tuple: _tuple,
    dict: _mapping,
    set: _set,
    frozenset: _set,
    bytes: lambda value, _: {"!bytes": value.hex()},
    date: _text_form,
    datetime: _moment,
    time: _moment,
    timedelta: lambda value, _: {
        "!timedelta": [value.days, value.seconds, value.microseconds]
    },
    Decimal: _text_form,
    UUID: lambda value, _: {"!uuid": value.hex},
}


def qualified_name(thing: Any) -> str:
    """Return module and name of a function or class, also of the main script."""
    module: str = thing.__module__
    if module in ("__main__", "__mp_main__"):  # "__mp_main__" in a pool's processes
        module = _name_of_script(module)
    return f"{module}.{thing.__qualname__}"


def _name_of_script(name: str) -> str:
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else name


_PLAIN: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD


class MisfitError(TypeError):
    """The arguments do not fit the signature of the function.

    A TypeError that ``key=…`` raises is not converted to this error.
    """


class Arguments:
    """Makes digests of a function's arguments, however they are passed."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        ignore: Sequence[str] = (),
        key: Callable[..., object] | None = None,
    ) -> None:
        """Check the signature and the options. ``name`` is part of each digest."""
        self._name = name
        self._key = key
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):
            rule = "only a function with a signature can be cached"
            raise ConfigurationError("function", name, rule) from None
        parameters = self._signature.parameters
        if unknown := [each for each in ignore if each not in parameters]:
            rule = f"{name} has the parameters {', '.join(parameters) or '(none)'}"
            raise ConfigurationError("ignore", ", ".join(unknown), rule)
        self._ignored = frozenset(ignore)
        self._is_simple = all(each.kind is _PLAIN for each in parameters.values())
        self._names = tuple(parameters)
        self._defaults = {
            each.name: each.default
            for each in parameters.values()
            if each.default is not inspect.Parameter.empty
        }
        if key is None:
            for each, default in self._defaults.items():
                if each not in self._ignored:
                    self._form(each, default)

    def digest(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Return 64 hexadecimal digits, equal for equal arguments."""
        if self._key is not None:
            self._bind_exactly(args, kwargs)
            found: JSONValue = [self._form("key", self._key(*args, **kwargs))]
        else:
            found = {
                name: self._form(name, value)
                for name, value in self._bind(args, kwargs).items()
                if name not in self._ignored
            }
        return _sha256([self._name, found])

    def _bind(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Bind arguments to parameters. Avoid inspect, which is 20 times slower."""
        if self._is_simple and len(args) <= len(self._names):
            given = dict(zip(self._names, args, strict=False))
            bound = {**self._defaults, **kwargs, **given}
            is_whole = len(bound) == len(self._names)
            if is_whole and (not kwargs or self._fits(given, kwargs)):
                return bound
        exact = self._bind_exactly(args, kwargs)
        exact.apply_defaults()
        return exact.arguments

    def _bind_exactly(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise MisfitError(*error.args) from None

    def _fits(self, given: Mapping[str, object], kwargs: Mapping[str, object]) -> bool:
        return given.keys().isdisjoint(kwargs) and set(self._names).issuperset(kwargs)

    def _form(self, name: str, value: object) -> JSONValue:
        try:
            return canonical_form(value)
        except NoCanonicalFormError as error:
            where = f"{self._name}({name}=…)"
            raise ConfigurationError(
                where,
                type(value).__qualname__,
                f"what a result is cached under must be the same everywhere, and {error}",
                f'Leave it out with ignore=("{name}",), or say with key=… what matters.',
            ) from None


def _sha256(form: JSONValue) -> str:
    return hashlib.sha256(encode_sorted(form)).hexdigest()
