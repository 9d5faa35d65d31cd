"""JSON in both directions: refused with a reason coming in, always written going out."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, NoReturn
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from bls_agent.core import codec
from bls_agent.core.codec import JSONValue
from bls_agent.core.errors import ConfigurationError, DecodeError
from tests.harness import cyclic_cause


def strict_json(payload: bytes) -> Any:
    """Read JSON as a strict peer does: UTF-8, no NaN, no Infinity."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    return json.loads(payload.decode(), parse_constant=refuse)


# --- what others wrote

REFUSED = {
    "empty": (b"", "not_json"),
    "trailing comma": (b"[1,]", "not_json"),
    "two documents": (b"{} {}", "not_json"),
    "not a number": (b"[NaN]", "not_json"),
    "lone surrogate": (rb'"\ud800"', "not_json"),
    "byte order mark": (b"\xef\xbb\xbf{}", "not_json"),
    "latin-1": (b'"\xe9"', "not_utf8"),
    "neither text nor JSON": (b"{\xff", "not_utf8"),
    "1025 levels": (b"[" * 1025 + b"]" * 1025, "too_deep"),
    "100,000 levels, unclosed": (b'{"a":' * 100_000, "too_deep"),
}


@pytest.mark.parametrize(("payload", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_no_json_is_refused_with_a_reason(payload: bytes, reason: str) -> None:
    """Each kind of broken payload has its own word."""
    with pytest.raises(DecodeError) as caught:
        codec.decode(payload)
    assert caught.value.reason == reason


def test_1024_levels_are_read() -> None:
    """The deepest document that is read has 1,024 levels."""
    assert codec.decode(b"[" * 1024 + b"]" * 1024)


def test_the_limit_is_inclusive() -> None:
    """A payload as long as the limit is read."""
    assert codec.decode(b"[1,2]", limit=5) == [1, 2]


def test_what_is_too_large_is_not_parsed() -> None:
    """Beyond the limit the size is the reason, whatever the bytes are."""
    with pytest.raises(DecodeError) as caught:
        codec.decode(b"\xff{,,", limit=3)
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize("payload", [b"[]", b'"a"', b"1", b"1.5", b"true", b"null"])
def test_an_object_is_asked_for(payload: bytes) -> None:
    """A document of another JSON type is refused where an object has to be."""
    with pytest.raises(DecodeError) as caught:
        codec.decode_object(payload)
    assert caught.value.reason == "not_an_object"


@pytest.mark.parametrize(
    "number",
    [
        2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**18, 10**100, -(10**300),
        int(sys.float_info.max),
    ],
    ids=str,
)  # fmt: skip
def test_integers_are_exact(number: int) -> None:
    """An integer of any size that is read is the integer that was written."""
    assert codec.decode(b'{"n":%d}' % number) == {"n": number}
    payload = codec.encode_strictly("args", [{"n": number}])
    assert codec.decode(payload) == [{"n": number}]


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    """Nothing but DecodeError comes out of a foreign payload."""
    with contextlib.suppress(DecodeError):
        codec.decode(payload, limit=1_000)


texts = st.text(st.characters(exclude_categories=["Cs"]))
plain_json: st.SearchStrategy[JSONValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=12,
)


@given(plain_json)
def test_json_survives_the_round_trip(value: JSONValue) -> None:
    """What JSON can hold is read back as it was written, strictly or not."""
    payload = codec.encode(value)
    assert codec.decode(payload) == value
    assert codec.encode_strictly("args", value) == payload


# --- what the host hands us


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: object


@dataclass
class Base:
    a: object


@dataclass(slots=True)
class SlottedChild(Base):
    x: object


@dataclass(slots=True)
class Slotted:
    x: object
    _hidden: int = 1


def cyclic_point() -> Point:
    """Make a data class that holds itself."""
    point = Point(None)
    point.x = [point]
    return point


class Silent:
    def __repr__(self) -> str:
        msg = "no"
        raise RuntimeError(msg)


class WordlessError(Exception):
    def __str__(self) -> str:
        msg = "no"
        raise RuntimeError(msg)


class Unreadable(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        msg = "no"
        raise RuntimeError(msg)

    def __len__(self) -> int:
        return 1


class Masked:
    def _raise(self) -> type:
        msg = "no"
        raise RuntimeError(msg)

    __class__ = property(_raise)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


def nested(levels: int) -> JSONValue:
    """Make a list in a list in a list."""
    value: JSONValue = 1
    for _ in range(levels):
        value = [value]
    return value


def cyclic_list() -> list[object]:
    """Make a list that holds itself."""
    value: list[object] = [1]
    value.append(value)
    return value


def cyclic_dict() -> dict[str, object]:
    """Make a dict that holds itself two levels below."""
    value: dict[str, object] = {}
    value["inside"] = [value]
    return value


def twice() -> list[object]:
    """Make a list that holds one object in two places."""
    shared = {1: "a"}
    return [shared, [shared]]


def released_view() -> memoryview:
    """Make a view of bytes that are not there any more."""
    view = memoryview(b"abc")
    view.release()
    return view


ODD: dict[str, tuple[Callable[[], object], object]] = {
    "not a number": (lambda: math.nan, None),
    "infinity": (lambda: -math.inf, None),
    "bytes": (lambda: b"ok \xff\x00", "ok \\xff\x00"),
    "bytearray": (lambda: bytearray(b"ok"), "ok"),
    "view": (lambda: memoryview(b"ok"), "ok"),
    "set": (lambda: {1}, [1]),
    "frozen set in a set": (lambda: {frozenset({b"a"})}, [["a"]]),
    "tuple": (lambda: (1, "a"), [1, "a"]),
    "decimal": (lambda: Decimal("1.10"), "1.10"),
    "path": (lambda: PurePosixPath("/a"), "PurePosixPath('/a')"),
    "exception": (lambda: ValueError("bad"), "ValueError: bad"),
    "exception without words": (WordlessError, "WordlessError: <no text>"),
    "cyclic cause": (cyclic_cause, "ValueError: first"),
    "repr raises": (Silent, "<Silent, whose repr raised RuntimeError>"),
    "a class": (lambda: int, "<class 'int'>"),
    "subclass of str": (lambda: Text("a"), "a"),
    "subclass of int": (lambda: Number(2), 2),
    "65 bits": (lambda: 2**64, "18446744073709551616"),
    "65 bits, subclass": (lambda: Number(2**64), "18446744073709551616"),
    "negative 65 bits": (lambda: -(2**64), "-18446744073709551616"),
    "100,000 digits": (lambda: 10**100_000, "<integer of 332193 bits>"),
    "lone surrogate": (lambda: "a\ud800b", "a\\ud800b"),
    "lone surrogate in a key": (lambda: {"\udfff": 1}, {"\\udfff": 1}),
    "keys": (
        lambda: {1: "a", None: "b", (1, 2): "c", b"\xff": "d"},
        {"1": "a", "None": "b", "(1, 2)": "c", "\\xff": "d"},
    ),
    "key whose repr raises": (
        lambda: {Silent(): 1},
        {"<Silent, whose repr raised RuntimeError>": 1},
    ),
    "cyclic list": (cyclic_list, [1, "<cycle>"]),
    "cyclic dict": (cyclic_dict, {"inside": ["<cycle>"]}),
    "data class with keys": (lambda: Point({1: "a"}), {"x": {"1": "a"}}),
    "data class with slots": (lambda: Slotted(2**64), {"x": str(2**64)}),
    "data class with slots and a base": (
        lambda: SlottedChild(1, x=2**64),
        {"a": 1, "x": str(2**64)},
    ),
    "cyclic data class": (cyclic_point, {"x": ["<cycle>"]}),
    "twice is no cycle": (twice, [{"1": "a"}, [{"1": "a"}]]),
}


@pytest.mark.parametrize(("make", "expected"), ODD.values(), ids=list(ODD))
def test_an_odd_object_has_a_readable_stand_in(
    make: Callable[[], object], expected: object
) -> None:
    """What JSON cannot hold is written as something that a reader understands."""
    assert strict_json(codec.encode(make())) == expected


@pytest.mark.parametrize(
    "levels", [254, 255, 1_000, 100_000], ids=lambda levels: f"{levels} levels"
)
def test_any_depth_is_written(levels: int) -> None:
    """Levels beyond what orjson takes are cut, with a word in their place."""
    payload = codec.encode({"deep": nested(levels - 1)})
    assert strict_json(payload)
    assert (b"<too deep>" in payload) is (levels > 254)


DATA = {
    "datetime": datetime(2026, 1, 12, tzinfo=UTC),
    "identifier": UUID(int=1),
    "member": Colour.RED,
    "data class": Point(1),
    "data class with slots": Slotted(1),
}


@pytest.mark.parametrize("value", DATA.values(), ids=list(DATA))
def test_a_value_looks_the_same_beside_an_odd_one(value: object) -> None:
    """How a field is written does not depend on what stands in another field."""
    alone = strict_json(codec.encode({"value": value}))
    beside = strict_json(codec.encode({"value": value, "odd": {1: "a"}}))
    assert beside["value"] == alone["value"]


UNRULY: dict[str, Callable[[], object]] = {
    "mapping that raises": Unreadable,
    "class that raises": Masked,
    "released view": released_view,
}


@pytest.mark.parametrize("make", UNRULY.values(), ids=list(UNRULY))
def test_an_unruly_object_spoils_only_itself(make: Callable[[], object]) -> None:
    """Whatever one field's object raises, the fields beside it are written."""
    written = strict_json(codec.encode({"order": 42, "unruly": [make()]}))
    assert written["order"] == 42
    assert isinstance(written["unruly"][0], str)


leaves = st.sampled_from(
    [make for make, _ in ODD.values()] + [Unreadable, released_view]
)
nasty = st.recursive(
    plain_json | st.binary() | st.floats() | st.text() | st.decimals() | st.integers()
    | leaves.map(lambda make: make()),
    lambda inner: st.lists(inner, max_size=4)
    | st.tuples(inner)
    | st.builds(ValueError, inner)
    | st.dictionaries(
        st.text() | st.integers() | st.binary() | st.none(), inner, max_size=4
    ),
    max_leaves=12,
)  # fmt: skip


@given(nasty, st.text())
def test_encode_takes_everything(value: object, name: str) -> None:
    """No object makes encode raise; what it writes is valid JSON, and a dict is an object."""
    strict_json(codec.encode(value))
    assert isinstance(strict_json(codec.encode({name: value})), dict)


STRICT: dict[str, Callable[[], object]] = {
    "not a number": lambda: {"a": math.nan},
    "not a number in a data class": lambda: [Point(math.nan)],
    "set": lambda: {"a": {1}},
    "key": lambda: {1: "a"},
    "lone surrogate": lambda: "\ud800",
    "cycle": cyclic_list,
    "object": Silent,
    "401 digits": lambda: {"a": [10**400]},
    "more than the largest float": lambda: -int(sys.float_info.max) - 1,
}


@pytest.mark.parametrize("make", STRICT.values(), ids=list(STRICT))
def test_strict_encoding_takes_no_stand_in(make: Callable[[], object]) -> None:
    """What would not arrive as it is, is refused by the argument's name."""
    with pytest.raises(ConfigurationError, match=r"^args: "):
        codec.encode_strictly("args", make())


# --- the size limit

LARGE: dict[str, JSONValue] = {
    "one text": "x" * 10_000_000,
    "text of quotes": '"' * 1_000_000,
    "text of NULs": "\0" * 1_000_000,
    "text of 4-byte characters": "😀" * 1_000_000,
    "many fields": {f"key {number}": "value" for number in range(100_000)},
    "a long name": {"k" * 1_000_000: 1},
    "a long list": list(range(1_000_000)),
    "deep": nested(250),
    "deep and wide": [[["x" * 1_000] * 20] * 20] * 20,
}


@pytest.mark.parametrize("limit", [256, 4_096, 65_535])
@pytest.mark.parametrize("value", LARGE.values(), ids=list(LARGE))
def test_what_is_too_large_is_cut_to_fit(value: JSONValue, limit: int) -> None:
    """An object of any size fits afterwards, is still valid JSON, and says so."""
    payload, cut = codec.encode_within({"large": value}, limit)
    assert len(payload) <= limit
    assert isinstance(strict_json(payload), dict)
    assert cut is (payload != codec.encode({"large": value}))


@given(
    st.dictionaries(texts, plain_json | texts.map(lambda text: text * 100), max_size=8),
    st.integers(256, 2_000),
)
def test_the_limit_always_holds(value: dict[str, JSONValue], limit: int) -> None:
    """However an object is made, at most so many bytes of valid JSON come out."""
    payload, cut = codec.encode_within(value, limit)
    assert len(payload) <= limit
    assert isinstance(strict_json(payload), dict)
    assert cut or codec.decode(payload) == value


def test_small_fields_outlive_a_large_one() -> None:
    """Beside one text that must be cut, the short fields stay as they are."""
    value: dict[str, JSONValue] = {"order": 42, "text": "x" * 100_000, "city": "杭州"}
    payload, _ = codec.encode_within(value, 30_000)
    written = strict_json(payload)
    assert (written["order"], written["city"]) == (42, "杭州")
    assert written["text"].startswith("x" * 1_000)
    assert written["text"].endswith("…")


def test_a_cut_shows_what_was_there() -> None:
    """A list keeps its beginning and says how many more, a name keeps its beginning."""
    value: dict[str, JSONValue] = {"list": list(range(100_000)), "k" * 100_000: 1}
    payload, _ = codec.encode_within(value, 4_096)
    kept, name = strict_json(payload)["list"], list(strict_json(payload))[1]
    assert kept[:-1] == list(range(len(kept) - 1))
    assert kept[-1] == f"… {100_000 - len(kept) + 1} more"
    assert name == "k" * 253 + "…"


@given(st.text(max_size=50), st.integers(3, 120))
def test_a_cut_text_fits_and_says_so(text: str, size: int) -> None:
    """A cut text has at most `size` bytes, begins like the text and ends in …."""
    escaped = text.encode("utf-8", "backslashreplace")
    short = codec.cut_text(text, size)
    if len(escaped) <= size:
        assert short == text
    else:
        assert len(short.encode()) <= size
        assert short.endswith("…")
        assert escaped.decode().startswith(short[:-1])


# --- timestamps

MOMENTS = {
    "of the contract": (1768221296.789, "2026-01-12T12:34:56.789Z"),
    "epoch": (0, "1970-01-01T00:00:00.000Z"),
    "whole second": (1768221300, "2026-01-12T12:35:00.000Z"),
    "leap day": (1709164800.5, "2024-02-29T00:00:00.500Z"),
    "last second of the year": (1767225599.999, "2025-12-31T23:59:59.999Z"),
}


@pytest.mark.parametrize(("seconds", "text"), MOMENTS.values(), ids=list(MOMENTS))
def test_a_timestamp_has_the_documented_form(seconds: float, text: str) -> None:
    """Timestamps are ISO-8601 in UTC with milliseconds and a Z."""
    assert codec.format_timestamp(seconds) == text


@given(st.lists(st.floats(0, 4_102_444_800), min_size=1, max_size=5))
def test_a_timestamp_can_be_read_back(moments: list[float]) -> None:
    """Reading gives the moment that was written, to the millisecond, in any order."""
    for moment in moments:
        text = codec.format_timestamp(moment)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
        read = codec.parse_timestamp(text)
        assert read is not None
        assert 0 <= moment - read.timestamp() < 0.002


READ = {
    "utc": ("2026-01-12T12:34:56.789Z", timedelta(0)),
    "no zone": ("2026-01-12T12:34:56.789", timedelta(0)),
    "offset": ("2026-01-12T20:34:56.789+08:00", timedelta(hours=8)),
    "blanks around": (" 2026-01-12 12:34:56.789Z\n", timedelta(0)),
}


@pytest.mark.parametrize(("text", "offset"), READ.values(), ids=list(READ))
def test_a_foreign_timestamp_is_read_tolerantly(text: str, offset: timedelta) -> None:
    """Other ISO-8601 spellings are understood; without a zone it is UTC."""
    read = codec.parse_timestamp(text)
    moment = datetime(2026, 1, 12, 12, 34, 56, 789_000, UTC)
    assert read == moment.astimezone(timezone(offset))
    assert read.utcoffset() == offset


NO_TIMESTAMPS: list[object] = [
    "", "now", "12:34", "2026-13-01T00:00:00Z", "2026-01-12T23:59:60Z", "\ud800",
    "0000-01-01T00:00:00Z", 1768221296789, None, True, b"2026-01-12", ["2026-01-12"],
]  # fmt: skip


@pytest.mark.parametrize("value", NO_TIMESTAMPS, ids=repr)
def test_what_is_no_timestamp_is_none(value: object) -> None:
    """A value that is no timestamp is none, and no error."""
    assert codec.parse_timestamp(value) is None
