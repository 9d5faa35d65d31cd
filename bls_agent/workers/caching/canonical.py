"""One value, one text: what arguments look like before they are digested.

The same in every process, on every machine and in every version of Python: no ``hash()``,
no ``id()``, no ``repr()`` of objects. Two values have the same form if, and only if, they
are of the same type and equal as far as a function can tell (``1``, ``1.0`` and ``True``
are three values, ``0.0`` and ``-0.0`` two, two moments in two zones two).

The form is a tree that JSON holds. What JSON has no word for stands in an object with one
key that begins with ``!``; a key of the caller's that begins so gets a second one.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from bls_agent.codec import JSONValue, encode_sorted

__all__ = ["NoCanonicalFormError", "canonical_form", "qualified_name"]

MAX_DEPTH: Final = 64  # levels; each is up to three of JSON, which orjson takes 254 of
_INT64: Final = (-(2**63), 2**63 - 1)


class NoCanonicalFormError(Exception):
    """A value that can be no part of a key; says why."""


def canonical_form(value: object, depth: int = 0) -> JSONValue:
    """Give the tree that stands for a value.

    Raises:
        NoCanonicalFormError: The value is, or holds, something else than ``str``,
            ``int``, ``float``, ``bool``, ``None``, ``list``, ``tuple``, ``dict`` with
            text keys, ``set``, ``frozenset``, ``bytes``, ``date``, ``datetime``,
            ``time``, ``timedelta``, ``Decimal``, ``UUID``, an enum or a dataclass.
    """
    form = _FORMS.get(type(value))
    if form is not None:
        return form(value, depth)
    if isinstance(value, Enum):
        return _enum(value, depth)
    if _is_whole_in_its_fields(value):
        return _dataclass(value, depth)
    raise NoCanonicalFormError(_name_type(value))


def _is_whole_in_its_fields(value: object) -> bool:
    """Tell a dataclass that holds nothing else: no list of its own, no further attributes.

    What extends a dataclass without being one may hold what its fields do not show.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, *_FORMS)):
        return False
    return "__dataclass_fields__" in vars(type(value))


def _name_type(value: object) -> str:
    return f"a {qualified_name(type(value))} is no plain value"


def _plain(value: Any, _: int) -> JSONValue:
    return cast("JSONValue", value)


def _text(value: str, _: int = 0) -> JSONValue:
    if value.isascii() or _is_unicode(value):
        return value
    return {"!str": value.encode("utf-8", "surrogatepass").hex()}


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in a file's name
        return False
    return True


def _integer(value: int, _: int) -> JSONValue:
    return value if _INT64[0] <= value <= _INT64[1] else {"!int": hex(value)}


def _float(value: float, _: int) -> JSONValue:
    if not math.isfinite(value):
        message = f"{value} is no finite number"
        raise NoCanonicalFormError(message)
    return {"!float": float.__repr__(value)}  # the shortest text, since Python 3.1


def _decimal(value: Decimal, _: int) -> JSONValue:
    if not value.is_finite():
        message = f"{value} is no finite number"
        raise NoCanonicalFormError(message)
    return {"!decimal": str(value)}


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


def _datetime(value: datetime, _: int) -> JSONValue:
    return {"!datetime": _moment(value)}


def _time(value: time, _: int) -> JSONValue:
    return {"!time": _moment(value)}


def _moment(value: datetime | time) -> JSONValue:
    """Tell a moment, which of two it is when clocks are set back, and its zone."""
    return [value.isoformat(), value.fold, _zone(value.tzinfo, value)]


def _zone(zone: tzinfo | None, moment: datetime | time) -> JSONValue:
    if zone is None or type(zone) is timezone:
        return None  # its offset is all there is to it, and stands in the text
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    message = f"the zone of {moment} is no ZoneInfo with a name and no fixed offset"
    raise NoCanonicalFormError(message)


def _timedelta(value: timedelta, _: int) -> JSONValue:
    return {"!timedelta": [value.days, value.seconds, value.microseconds]}


def _enum(value: Enum, depth: int) -> JSONValue:
    """Name a member; of flags that are set together only the value is sure."""
    member = cast("object", value.value) if isinstance(value, Flag) else value.name
    return {"!enum": [qualified_name(type(value)), *_each([member], depth)]}


def _dataclass(value: Any, depth: int) -> JSONValue:
    fields: dict[object, object] = {
        field.name: getattr(value, field.name) for field in _fields(value)
    }
    return {"!dataclass": [qualified_name(type(value)), _mapping(fields, depth)]}


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)


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
    date: lambda value, _: {"!date": value.isoformat()},
    datetime: _datetime,
    time: _time,
    timedelta: _timedelta,
    Decimal: _decimal,
    UUID: lambda value, _: {"!uuid": value.hex},
}


def qualified_name(thing: Any) -> str:
    """Name a function or a class, in a script as other programs that import it do."""
    module: str = thing.__module__
    if module in ("__main__", "__mp_main__"):  # the latter in processes of a pool
        module = _name_of_script(module)
    return f"{module}.{thing.__qualname__}"


def _name_of_script(name: str) -> str:
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else name
