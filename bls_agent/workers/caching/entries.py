"""What stands under a key of the cache, and whether it can be believed.

Contract 001: a JSON object with ``result``, ``timestamp`` and ``func_name``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from bls_agent.codec import decode_object, encode_strictly, format_timestamp
from bls_agent.errors import ConfigurationError, DecodeError

__all__ = ["BrokenEntryError", "UnstorableError", "read_entry", "write_entry"]

MAX_DEPTH: Final = 120  # levels of a result


class UnstorableError(Exception):
    """A result that would not come back as it is.

    Attributes:
        reason: One word to count it under.
        detail: What does not fit.
    """

    def __init__(self, reason: str, detail: str) -> None:
        """Remember both."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class BrokenEntryError(Exception):
    """A stored value that is not believed.

    Attributes:
        reason: One word to count it under.
    """

    def __init__(self, reason: str) -> None:
        """Remember the reason."""
        super().__init__(reason)
        self.reason = reason


def write_entry(name: str, result: object, now: float, limit: int) -> bytes:
    """Write a result as the contract says.

    Args:
        name: The function's.
        result: What it gave; a tree of exactly ``str``, ``int``, ``float``, ``bool``,
            ``None``, ``list`` and ``dict`` with text keys.
        now: Unix seconds.
        limit: Bytes it may have at most.

    Raises:
        UnstorableError: JSON would not give it back as it is (``type``, ``not_finite``,
            ``too_deep``, ``not_unicode``), or it is ``too_large``.
    """
    _check(result, 0)
    entry = {"result": result, "timestamp": format_timestamp(now), "func_name": name}
    try:
        payload = encode_strictly("result", entry)
    except ConfigurationError as error:
        raise UnstorableError("not_unicode", error.rule) from None
    if len(payload) > limit:
        detail = f"{len(payload):,} bytes, the limit is {limit:,}"
        raise UnstorableError("too_large", detail)
    return payload


_SURE: Final = frozenset({str, int, bool, type(None)})


def _check(value: object, depth: int) -> None:
    kind = type(value)
    if kind in _SURE:
        return
    if kind is float:
        _check_floats([cast("float", value)])
    elif depth >= MAX_DEPTH:
        detail = f"more than {MAX_DEPTH} levels"
        raise UnstorableError("too_deep", detail)
    elif kind is list:
        _check_items(cast("list[object]", value), depth)
    elif kind is dict:
        mapping = cast("Mapping[object, object]", value)
        for key in mapping:
            if type(key) is not str:
                detail = f"a dict with a key of type {type(key).__qualname__}"
                raise UnstorableError("type", detail)
        _check_items(mapping.values(), depth)
    else:
        raise UnstorableError("type", f"a {kind.__qualname__}")


def _check_items(values: Iterable[object], depth: int) -> None:
    kinds = set(map(type, values))
    if kinds == {float}:  # a table of prices: at C's speed
        _check_floats(cast("Iterable[float]", values))
    elif not kinds <= _SURE:
        for value in values:
            _check(value, depth + 1)


def _check_floats(values: Iterable[float]) -> None:
    if not all(map(math.isfinite, values)):
        raise UnstorableError("not_finite", "nan or an infinity")


def read_entry(name: str, payload: bytes) -> Any:
    """Read a result back.

    Args:
        name: Of the function that asks.
        payload: What stands under the key.

    Raises:
        BrokenEntryError: It is no JSON object (``not_json``), lacks a field
            (``no_entry``) or is another function's (``other_function``).
    """
    try:
        entry = decode_object(payload)
    except DecodeError:
        raise BrokenEntryError("not_json") from None
    if "result" not in entry or "func_name" not in entry:
        raise BrokenEntryError("no_entry")
    if entry["func_name"] != name:
        raise BrokenEntryError("other_function")
    return entry["result"]
