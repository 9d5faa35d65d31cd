"""Which JSON values fit which annotation, and what an argument is told that does not."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union

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
    "model": (Order, {"sku": "a"}, Order(sku="a", count=1)),
    "list of models": (list[Order], [{"sku": "a"}], [Order(sku="a", count=1)]),
}


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
    "data class": Point,
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
    with pytest.raises(ConfigurationError, match=r"^reload\(a\): "):
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
}


@pytest.mark.parametrize(("annotation", "schema"), SCHEMAS.values(), ids=list(SCHEMAS))
def test_a_check_describes_itself(annotation: Any, schema: object) -> None:
    """The same annotation gives the JSON Schema that `help` shows."""
    assert compile_check(annotation, "reload(a)").schema == schema


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
