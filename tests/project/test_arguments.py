"""Which JSON values fit which annotation, and what an argument is told that does not."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, Field

from bls_agent.core.codec import JSONValue
from bls_agent.core.errors import ConfigurationError, MissingExtraError
from bls_agent.project.commands.arguments import Misfit, compile_check


class Colour(StrEnum):
    """Members with texts."""

    RED = "red"
    GREEN = "green"


class Digit(IntEnum):
    """Members with integers."""

    ZERO = 0
    ONE = 1


class Mixed(Enum):
    """Members with values of several types."""

    NOTHING = None
    HALF = 0.5


class Order(BaseModel):
    """A model of pydantic."""

    sku: str
    count: int = Field(1, gt=0)


class Plain:
    """A class that nobody can check."""


class Fields(TypedDict):
    """A dict with known fields."""

    a: int


@dataclass
class Point:
    """A data class."""

    x: int


@dataclass(frozen=True)
class Line:
    """A data class with defaults."""

    sku: str
    price: Decimal = Decimal("1.50")
    day: date | None = None


@dataclass(kw_only=True)
class Purchase:
    """A data class that holds others, and has a rule of its own."""

    id: UUID
    lines: list[Line]
    colour: Colour = Colour.RED
    by_shop: dict[str, Point] = field(default_factory=dict)
    discount: InitVar[int] = 0
    total: Decimal = field(init=False)

    def __post_init__(self, discount: int) -> None:
        if not self.lines:
            message = "an order\nhas lines"
            raise ValueError(message)
        self.total = sum((line.price for line in self.lines), Decimal(-discount))


@dataclass
class Tree:
    """A data class that holds itself."""

    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass
class Uncheckable:
    """A data class with a field that nobody can check."""

    known: int
    odd: set[int]


ID = "6f1c2a9e-0d4b-4a55-9b1e-2f7d8c3a6e10"
MOMENT = "2026-01-31T08:30:00+08:00"

FITTING: dict[str, tuple[Any, JSONValue, object]] = {
    "str": (str, "a", "a"),
    "empty str": (str, "", ""),
    "int": (int, -7, -7),
    "int beyond 64 bits": (int, 2**70, 2**70),
    "float": (float, 1.5, 1.5),
    "int for a float": (float, 2, 2.0),
    "bool": (bool, False, False),
    "None": (None, None, None),
    "list": (list, [1, "a", None], [1, "a", None]),
    "dict": (dict, {"a": [1]}, {"a": [1]}),
    "Any": (Any, [{"a": 1}], [{"a": 1}]),
    "object": (object, None, None),
    "list of int": (list[int], [1, 2], [1, 2]),
    "list of float": (list[float], [1, 2.5], [1.0, 2.5]),
    "list of lists": (list[list[str]], [["a"], []], [["a"], []]),
    "sequence": (Sequence[int], [1], [1]),
    "dict of int": (dict[str, int], {"a": 1}, {"a": 1}),
    "mapping": (Mapping[str, float], {"a": 1}, {"a": 1.0}),
    "old list": (typing.List[int], [1], [1]),  # noqa: UP006 - hosts write this
    "old bare list": (typing.List, [1, "a"], [1, "a"]),  # noqa: UP006
    "old bare dict": (typing.Dict, {"a": 1}, {"a": 1}),  # noqa: UP006
    "bare sequence": (typing.Sequence, [1, "a"], [1, "a"]),
    "optional, absent": (int | None, None, None),
    "optional, there": (Optional[int], 1, 1),  # noqa: UP045 - hosts write this
    "union": (Union[int, str], "a", "a"),  # noqa: UP007
    "int before float": (float | int, 1, 1),
    "float after int": (int | float, 1.5, 1.5),
    "inside a union": (list[int] | None, [1], [1]),
    "Literal": (Literal["fast", 1, True], "fast", "fast"),
    "Literal number": (Literal["fast", 1], 1, 1),
    "Literal None": (Literal["fast"] | None, None, None),
    "Enum": (Colour, "red", Colour.RED),
    "Enum of integers": (Digit, 0, Digit.ZERO),
    "Enum of None": (Mixed, None, Mixed.NOTHING),
    "list of Enum": (list[Colour], ["red"], [Colour.RED]),
    "Annotated": (Annotated[int, "any note"], 1, 1),
    "unhashable note": (list[Annotated[int, {"unit": "s"}]], [1], [1]),
    "datetime": (datetime, MOMENT, datetime.fromisoformat(MOMENT)),
    "datetime in UTC": (datetime, "2026-01-31T08:30:00Z", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
    "datetime without zone": (datetime, "2026-01-31T08:30", datetime(2026, 1, 31, 8, 30)),  # noqa: DTZ001 - without one
    "date": (date, "2026-01-31", date(2026, 1, 31)),
    "UUID": (UUID, ID, UUID(ID)),
    "UUID without dashes": (UUID, ID.replace("-", ""), UUID(ID)),
    "Decimal": (Decimal, "12.50", Decimal("12.50")),
    "Decimal as a number": (Decimal, 0.1, Decimal("0.1")),
    "Decimal as an integer": (Decimal, 7, Decimal(7)),
    "dict of Decimal": (dict[str, Decimal], {"a": "1.0"}, {"a": Decimal("1.0")}),
    "optional date": (date | None, "2026-01-31", date(2026, 1, 31)),
    "data class": (Line, {"sku": "茶"}, Line("茶")),
    "data class in a list": (
        list[Line], [{"sku": "茶", "price": 2, "day": "2026-01-31"}],
        [Line("茶", Decimal(2), date(2026, 1, 31))],
    ),
    "data class in a data class": (
        Purchase, {"id": ID, "lines": [{"sku": "茶"}], "by_shop": {"上海": {"x": 1}}},
        Purchase(id=UUID(ID), lines=[Line("茶")], by_shop={"上海": Point(1)}),
    ),
    "optional data class": (Line | None, {"sku": "茶"}, Line("茶")),
    "model": (Order, {"sku": "a"}, Order(sku="a", count=1)),
    "list of models": (list[Order], [{"sku": "a"}], [Order(sku="a", count=1)]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value", "expected"), FITTING.values(), ids=list(FITTING)
)
def test_a_fitting_value_is_handed_over(
    annotation: Any, value: JSONValue, expected: object
) -> None:
    """The handler gets what its annotation promises, of exactly that type."""
    converted = compile_check(annotation, "reload(a)").convert(value)
    assert converted == expected
    assert type(converted) is type(expected)
    assert compile_check(annotation, "a", pydantic=True).convert(value) == expected


REFUSED: dict[str, tuple[Any, JSONValue, str]] = {
    "str": (str, 1, "must be a string, not an integer"),
    "null for a str": (str, None, "must be a string, not null"),
    "int": (int, "1", "must be an integer, not a string"),
    "bool for an int": (int, True, "must be an integer, not a boolean"),
    "float for an int": (int, 1.0, "must be an integer, not a number with a fraction"),
    "float": (float, "1.5", "must be a number, not a string"),
    "bool for a float": (float, True, "must be a number, not a boolean"),
    "no float holds it": (float, 10**400, "must be a number that a float can hold"),
    "bool": (bool, 1, "must be a boolean, not an integer"),
    "None": (None, 0, "must be null, not an integer"),
    "list": (list, {"a": 1}, "must be an array, not an object"),
    "dict": (dict, [], "must be an object, not an array"),
    "text for a list": (list[str], "abc", "must be an array, not a string"),
    "item": (list[int], [1, "2"], "at '1': must be an integer, not a string"),
    "field": (dict[str, int], {"a": None}, "at 'a': must be an integer, not null"),
    "item of an item": (
        list[dict[str, int]],
        [{"a": "1"}],
        "at '0': at 'a': must be an integer, not a string",
    ),
    "a long name": (
        dict[str, int],
        {"x" * 1_000: None},
        f"at '{'x' * 60}': must be an integer, not null",
    ),
    "optional": (int | None, "", "must be an integer, not a string; or must be null, not a string"),
    "Literal": (Literal["fast", "safe"], "FAST", "must be one of 'fast', 'safe'"),
    "bool for a Literal": (Literal[1], True, "must be one of 1"),
    "Enum": (Colour, "RED", "must be one of 'red', 'green'"),
    "bool for an Enum": (Digit, True, "must be one of 0, 1"),
    "text for an Enum": (Digit, "1", "must be one of 0, 1"),
    "list for an Enum": (Colour, ["red"], "must be one of 'red', 'green'"),
    "datetime": (datetime, "2026-13-01T08:30:00Z", "must be a time such as '2026-01-31T08:30:00+08:00'"),
    "number for a datetime": (datetime, 1769848200, "must be a time such as '2026-01-31T08:30:00+08:00'"),
    "date": (date, "31.01.2026", "must be a date such as '2026-01-31'"),
    "UUID": (UUID, "7", f"must be a UUID such as '{ID}'"),
    "Decimal": (Decimal, "12,50", "must be a number, or its digits such as '12.50'"),
    "bool for a Decimal": (Decimal, True, "must be a number, or its digits such as '12.50'"),
    "data class": (Line, ["a"], "must be an object, not an array"),
    "fields of a data class": (
        Line, {"price": "x", "colour": 1},
        ("at 'price': must be a number, or its digits such as '12.50'; "
         "at 'colour': is not known; at 'sku': is missing"),
    ),
    "inside of a data class": (
        Purchase, {"id": ID, "lines": [{"sku": 1}]},
        "at 'lines': at '0': at 'sku': must be a string, not an integer",
    ),
    "rule of a data class": (Purchase, {"id": ID, "lines": []}, "an order has lines"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value", "message"), REFUSED.values(), ids=list(REFUSED)
)
def test_a_misfit_says_what_would_fit(
    annotation: Any, value: JSONValue, message: str
) -> None:
    """Nothing is converted on a guess; the message names what is wanted and where."""
    with pytest.raises(Misfit) as caught:
        compile_check(annotation, "reload(a)").convert(value)
    assert str(caught.value) == message


values: st.SearchStrategy[JSONValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
)


@settings(deadline=None)
@given(value=values)
def test_any_value_fits_or_is_a_misfit(value: JSONValue) -> None:
    """No JSON value makes a check raise anything but a misfit of one line."""
    told = []
    for annotation, _, _ in REFUSED.values():
        try:
            compile_check(annotation, "reload(a)").convert(value)
        except Misfit as misfit:
            told.append(str(misfit))
    assert "".join(told).isprintable()


UNCHECKABLE: dict[str, Any] = {
    "class": Plain,
    "TypedDict": Fields,
    "tuple": tuple[int, ...],
    "set": set[int],
    "bytes": bytes,
    "NewType": NewType("NewType", str),
    "type variable": typing.TypeVar("T"),
    "dict with other keys": dict[int, str],
    "inside a list": list[Plain],
    "inside a dict": dict[str, Plain],
    "inside a union": Plain | None,
    "inside a list of unions": list[int | bytes],
}


@pytest.mark.parametrize("annotation", UNCHECKABLE.values(), ids=list(UNCHECKABLE))
def test_what_nobody_can_check_is_refused_at_once(annotation: Any) -> None:
    """The error comes when the handler is registered, and names the parameter."""
    with pytest.raises(ConfigurationError, match=r"^reload\(a\)"):
        compile_check(annotation, "reload(a)")


SCHEMAS: dict[str, tuple[Any, object]] = {
    "str": (str, {"type": "string"}),
    "float": (float, {"type": "number"}),
    "Any": (Any, {}),
    "optional": (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "list": (list[bool], {"type": "array", "items": {"type": "boolean"}}),
    "dict": (
        dict[str, str],
        {"type": "object", "additionalProperties": {"type": "string"}},
    ),
    "Literal": (Literal["fast", 1], {"enum": ["fast", 1]}),
    "Enum": (Colour, {"enum": ["red", "green"]}),
    "date": (date, {"type": "string", "format": "date"}),
    "optional Decimal": (
        Decimal | None,
        {"anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}, {"type": "null"}]},
    ),
    "data class": (
        Line,
        {
            "type": "object",
            "properties": {
                "sku": {"type": "string"},
                "price": {
                    "anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}],
                    "default": "1.50",
                },
                "day": {
                    "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
                    "default": None,
                },
            },
            "required": ["sku"],
            "additionalProperties": False,
            "title": "Line",
        },
    ),
    "data class in itself": (
        Tree,
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"type": "object", "title": "Tree"}},
            },
            "required": ["name"],
            "additionalProperties": False,
            "title": "Tree",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("annotation", "schema"), SCHEMAS.values(), ids=list(SCHEMAS))
def test_a_check_describes_itself(annotation: Any, schema: object) -> None:
    """The same annotation gives the JSON Schema that `help` shows."""
    assert compile_check(annotation, "reload(a)").schema == schema


def test_a_data_class_in_itself_is_checked_at_every_level() -> None:
    """Though its schema ends at the second one."""
    check = compile_check(Tree, "reload(a)")
    value: JSONValue = {"name": "a", "children": [{"name": "b", "children": []}]}
    assert check.convert(value) == Tree("a", [Tree("b")])
    with pytest.raises(Misfit, match="at 'children': at '0': at 'name': is missing"):
        check.convert({"name": "a", "children": [{}]})


def test_the_field_of_a_data_class_is_named_at_once() -> None:
    """Which one cannot be checked, and what to do."""
    with pytest.raises(
        ConfigurationError, match=r"^f\(a\)\.odd: .*validate='pydantic'"
    ):
        compile_check(Uncheckable, "f(a)")


# --- pydantic


def test_a_model_says_what_does_not_fit() -> None:
    """Each field that pydantic refuses is named, without the value it had."""
    check = compile_check(Order, "reload(order)")
    with pytest.raises(Misfit) as caught:
        check.convert({"count": "hunter2"})
    assert "sku: " in str(caught.value)
    assert "count: " in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [(int, "7", 7), (set[int], [1, 1], {1}), (Point, {"x": 1}, Point(1))],
    ids=["text for an int", "set", "data class"],
)
def test_pydantic_checks_everything_when_asked(
    annotation: Any, value: JSONValue, expected: object
) -> None:
    """With pydantic for all arguments its types and its conversions are there."""
    check = compile_check(annotation, "reload(a)", pydantic=True)
    assert check.convert(value) == expected


def test_without_annotation_pydantic_is_not_asked() -> None:
    """A bare parameter takes anything, whoever checks."""
    check = compile_check(inspect.Parameter.empty, "reload(a)", pydantic=True)
    assert check.convert([1]) == [1]


def test_what_pydantic_cannot_check_is_refused_at_once() -> None:
    """Also with pydantic a class that nobody understands is refused as ours."""
    with pytest.raises(ConfigurationError, match=r"^reload\(a\): "):
        compile_check(Plain, "reload(a)", pydantic=True)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pydantic the error says what to install."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[validate\]'"):
        compile_check(Order, "reload(order)")


def test_the_core_does_not_need_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain annotations are checked where pydantic is not installed."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    check = compile_check(dict[str, list[Colour | None]], "reload(a)")
    assert check.convert({"a": ["red", None]}) == {"a": [Colour.RED, None]}
