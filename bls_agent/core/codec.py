"""Converts values to JSON bytes and back, shortens long records, writes timestamps.

Only this module imports orjson. Decoding wrong data raises a
:class:`~bls_agent.core.errors.DecodeError` with a reason. Encoding never raises,
because a log call must not raise: a readable text replaces a value that JSON cannot
hold. This text is called a stand-in.
"""

from __future__ import annotations

import json as _json
import math
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

import orjson

from bls_agent.core.errors import ConfigurationError, DecodeError

JSONValue: TypeAlias = (
    "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"
)
JSONObject: TypeAlias = dict[str, Any]

_MAX_DEPTH: Final = 100  # levels that _tame() keeps; orjson itself encodes 254 levels
_CONTAINERS: Final = (Mapping, list, tuple, set, frozenset)
_INT64: Final = (-(2**63), 2**64 - 1)
# Bits of the largest integer that is written in digits, because str() of a larger one
# may raise.
_MAX_BITS: Final = 4_000
_LARGEST: Final = int(sys.float_info.max)  # orjson refuses to read a larger integer
_MAX_BYTES: Final = 65_536  # bytes of a bytes object that are written
# Turns digits into 0 and other bytes into blanks, because a search for zeros is 20
# times as fast as a regular expression. 19 digits may be too large for orjson.
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))  # noqa: PLR2004 - "0" to "9"
_LONG_NUMBER: Final = b"0" * 19


def decode(payload: bytes, *, limit: int | None = None) -> JSONValue:
    """Return the value of a JSON text of at most ``limit`` bytes, with exact integers.

    Raise DecodeError if the text is too long, or is not JSON in UTF-8.
    """
    if limit is not None and len(payload) > limit:
        raise DecodeError("too_large", payload, f"the limit is {limit} bytes")
    try:
        value: JSONValue = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise _refusal(payload, str(error)) from None
    if _LONG_NUMBER in payload.translate(_DIGITS):
        return _exactly(payload, value)
    return value


def decode_object(payload: bytes, *, limit: int | None = None) -> JSONObject:
    """Return a JSON object; raise DecodeError for wrong JSON or any other value."""
    value = decode(payload, limit=limit)
    if not isinstance(value, dict):
        raise DecodeError("not_an_object", payload, f"a JSON {type(value).__name__}")
    return value


def _refusal(payload: bytes, message: str) -> DecodeError:
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return DecodeError("not_utf8", payload)
    if "depth" in message.lower() or "recursion" in message.lower():
        return DecodeError("too_deep", payload)
    return DecodeError("not_json", payload, message.split(":", 1)[0])


def _exactly(payload: bytes, value: JSONValue) -> JSONValue:
    """Decode again with ``json``, because orjson rounds integers over 64 bits."""
    try:
        exact: JSONValue = _json.loads(payload)
    except (ValueError, RecursionError):
        return value  # too many digits or levels for ``json``; orjson has read them
    return exact


def encode(value: object) -> bytes:
    """Return any value as JSON; never raise.

    A stand-in replaces each value that JSON cannot hold:

    * bytes: a text with escapes
    * a set: a list
    * an integer over 64 bits or a decimal: a text with its digits
    * NaN: ``null``
    * any other object: its ``repr``
    """
    try:
        return orjson.dumps(value, default=_stand_in)
    except Exception:  # noqa: BLE001 - a program's objects may raise anything
        return orjson.dumps(_tame(value, 0, set()))


def encode_lines(value: object) -> str:
    """Return any value as indented JSON, with the stand-ins of :func:`encode`."""
    return orjson.dumps(
        orjson.loads(encode(value)), option=orjson.OPT_INDENT_2
    ).decode()


def json_or_text(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else encode(value).decode()


def encode_sorted(value: JSONValue) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def encode_strictly(name: str, value: object) -> bytes:
    """Return a value as JSON without stand-ins.

    If JSON cannot hold the value, raise a ConfigurationError about the argument
    ``name``.
    """
    try:
        try:
            payload = orjson.dumps(value)
        except TypeError:  # perhaps an integer over 64 bits, which ``json`` can write
            text = _json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            payload = text.encode()
            _refuse_lossy(value)
        if b"null" in payload:  # perhaps orjson has written a NaN as null
            _refuse_lossy(value)
    except (TypeError, ValueError, RecursionError) as error:
        rule = f"it must be a value that JSON can hold ({error})"
        raise ConfigurationError(name, _describe(value), rule) from None
    return payload


def _refuse_lossy(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if isinstance(value, int) and abs(value) > _LARGEST:
        message = "an integer is at most as large as the largest float, 1.8e308"
        raise ValueError(message)
    inner: object = ()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        if not all(isinstance(key, str) for key in items):
            message = "the keys of an object are text"
            raise TypeError(message)
        inner = items.values()
    elif isinstance(value, list | tuple):
        inner = cast("list[object]", value)
    elif _is_dataclass(value):
        inner = _fields_of(value).values()
    for item in cast("Iterable[object]", inner):
        _refuse_lossy(item)


def _is_dataclass(value: object) -> bool:
    return "__dataclass_fields__" in vars(type(value))  # where orjson finds it


def _fields_of(value: object) -> dict[str, object]:
    """Return the attributes of a dataclass that orjson writes."""
    held: dict[str, object] | None = getattr(value, "__dict__", None)
    if held is None or "__slots__" in vars(type(value)):
        held = {
            one.name: getattr(value, one.name) for one in fields(cast("Any", value))
        }
    return {name: item for name, item in held.items() if not name.startswith("_")}


def _tame(value: object, depth: int, parents: set[int]) -> JSONValue:
    """Return a copy of a value in JSON types; a stand-in replaces what raises."""
    try:
        return _rebuild(value, depth, parents)
    except Exception as error:  # noqa: BLE001 - a program's objects may raise anything
        return f"<not encodable: {type(error).__name__}>"


def _rebuild(value: object, depth: int, parents: set[int]) -> JSONValue:
    if isinstance(value, str):
        return _tame_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _tame_integer(int(value))
    if isinstance(value, _CONTAINERS) or _is_dataclass(value):
        return _tame_container(value, depth, parents)
    if depth >= _MAX_DEPTH:
        return "<too deep>"
    native: JSONValue = orjson.loads(orjson.dumps(value, default=_stand_in))
    return native  # orjson encodes dates, UUIDs and enums


def _tame_container(value: Any, depth: int, parents: set[int]) -> JSONValue:
    if id(value) in parents:
        return "<cycle>"
    if depth >= _MAX_DEPTH:
        return "<too deep>"
    inside = parents | {id(value)}
    if not isinstance(value, _CONTAINERS):
        value = _fields_of(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {_tame_key(key): _tame(item, depth + 1, inside) for key, item in pairs}
    items = cast("Iterable[object]", value)
    return [_tame(item, depth + 1, inside) for item in items]


def _tame_key(key: object) -> str:
    if isinstance(key, str):
        return _tame_text(key)
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return _tame_text(_describe(key))


def _tame_text(text: str) -> str:
    r"""Return a plain str that orjson accepts; lone surrogates become ``\udXXX``."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def _tame_integer(number: int) -> JSONValue:
    if _INT64[0] <= number <= _INT64[1]:
        return number
    if number.bit_length() > _MAX_BITS:
        return f"<integer of {number.bit_length()} bits>"
    return str(number)


def _stand_in(value: object) -> JSONValue:
    """Return a readable stand-in for one object that orjson cannot encode."""
    if isinstance(value, int):
        return _tame_integer(int(value))
    if isinstance(value, bytes | bytearray | memoryview):
        start = bytes(cast("bytes", value)[:_MAX_BYTES])
        more = "…" if len(value) > _MAX_BYTES else ""  # pyright: ignore[reportUnknownArgumentType]
        return start.decode("utf-8", "backslashreplace") + more
    if isinstance(value, set | frozenset | Mapping):
        return _tame_container(value, 1, set())
    # Without decimal there is no Decimal. An import here would take 3 ms.
    decimal = sys.modules.get("decimal")
    if decimal is not None and isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {text_of(value)}"
    return _describe(value)


def text_of(error: BaseException) -> str:
    try:
        return _tame_text(str(error))
    except Exception:  # noqa: BLE001 - a program's __str__ may raise anything
        return "<no text>"


def _describe(value: object) -> str:
    try:
        return _tame_text(repr(value))
    except Exception as error:  # noqa: BLE001 - a program's __repr__ may raise anything
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"


# The limits that encode_within() tries, until the result is short enough: bytes of a
# text, items of a list, levels of nested values.
_STEPS: Final = (
    *((49_152, 8_192, 8), (32_768, 2_048, 8), (16_384, 512, 8)),
    *((4_096, 128, 6), (512, 32, 4), (64, 16, 3), (64, 4, 2)),
)


def encode_within(value: JSONObject, limit: int) -> tuple[bytes, bool]:
    """Return an object as JSON of at most ``limit`` bytes, and whether it is shortened.

    ``limit`` is at least 256. A shortened text ends in ``…``. A shortened list or
    object contains the number of missing items. Small values among the first 16 fields
    stay. If the object is still too long, the result is a preview of its beginning.
    """
    payload = encode(value)
    if len(payload) <= limit:
        return payload, False
    plain = decode_object(payload)
    small = {
        name: value
        for name, value in list(plain.items())[:16]
        if not isinstance(value, list | dict)
        and len(encode({name: value})) < limit // 48
    }
    for text, items, levels in _STEPS:
        shorter = encode({**_shorten_object(plain, text, items, levels), **small})
        if len(shorter) <= limit:
            return shorter, True
    start = payload[: limit // 8].decode("utf-8", "ignore")
    return encode(small | {"preview": cut_text(start, limit // 8)}), True


def _shorten(value: JSONValue, text: int, items: int, levels: int) -> JSONValue:
    if isinstance(value, str):
        return cut_text(value, text)
    if isinstance(value, list | dict) and not levels:
        return f"<{len(value)} items>"
    if isinstance(value, list):
        kept = [_shorten(item, text, items, levels - 1) for item in value[:items]]
        return [*kept, f"… {len(value) - items} more"] if len(value) > items else kept
    if isinstance(value, dict):
        return _shorten_object(value, text, items, levels)
    return value


def _shorten_object(
    value: JSONObject, text: int, items: int, levels: int
) -> JSONObject:
    names = list(value)[: items * 2]
    kept = {
        cut_text(name, 256): _shorten(value[name], text, items, levels - 1)
        for name in names
    }
    more = len(value) - len(names)
    return kept | {"…": f"{more} more"} if more else kept


def cut_text(text: str, size: int) -> str:
    """Shorten a text to about ``size`` UTF-8 bytes; ``…`` marks a shortened text."""
    if len(text) * 4 <= size:
        return text
    data = _tame_text(text[: size + 1]).encode()  # a character has at least one byte
    if len(data) <= size:
        return text
    return data[: max(size - 3, 0)].decode("utf-8", "ignore") + "…"


# The last Unix milliseconds that were formatted, and their text.
_last: tuple[int, str] = (0, "1970-01-01T00:00:00.000Z")


def format_timestamp(seconds: float) -> str:
    """Return Unix seconds in the form of the protocols: 2026-01-12T12:34:56.789Z."""
    global _last  # noqa: PLW0603 - a cache, because many records have the same second
    now, (then, text) = int(seconds * 1000), _last
    if now != then:
        whole, milliseconds = divmod(now, 1000)
        start = text[:-5]
        if whole != then // 1000:
            start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        text = f"{start}.{milliseconds:03d}Z"
        _last = (now, text)
    return text


def parse_timestamp(text: object) -> datetime | None:
    """Return the time of an ISO-8601 text, or ``None`` for any other value.

    A text without a time zone is read as UTC.
    """
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
