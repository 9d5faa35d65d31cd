"""From a command's JSON Schema to fields, and from what was typed to arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from bls_agent import ProjectAgent
from bls_agent.core.codec import JSONValue, decode, encode
from bls_agent.ops.fields import MOST_FIELDS, Field, FieldKind, list_nested, read_fields
from bls_agent.ops.web.forms import (
    MOST_ROWS,
    change_rows,
    list_rows,
    read_submission,
)
from bls_agent.project.commands.router import Router


def fields_of(
    properties: dict[str, Any], *required: str, **more: Any
) -> tuple[Field, ...]:
    """Read a schema that is good."""
    told = {"type": "object", "properties": properties, "required": list(required)}
    fields = read_fields(told | more)
    assert fields is not None
    return fields


def one(schema: Any, *, required: bool = False) -> Field:
    """Read the field of one argument."""
    return fields_of({"a": schema}, *(["a"] if required else []))[0]


def show_value(field: Field, value: JSONValue) -> str:
    """Write a value as a person types it."""
    if field.kind is FieldKind.CHOICE:
        places = enumerate(field.choices)
        return next(
            str(place)
            for place, choice in places
            if (type(choice), choice) == (type(value), value)
        )
    if field.kind is FieldKind.TEXT and isinstance(value, str):
        return value
    return encode(value).decode()


ABSENT: Any = "nothing is sent"


def typed(schema: Any, text: str, *, required: bool = False, null: bool = False) -> Any:
    """Type a text into the field: its value, ABSENT, or the code of what is wrong."""
    fields = fields_of({"a": schema}, *(["a"] if required else []))
    told = read_submission(fields, {"arg.a": text, "null.a": "1" if null else ""})
    if told.errors:
        assert set(told.errors) == {"arg.a"}
        return told.errors["arg.a"].code
    return told.arguments.get("a", ABSENT)


@pytest.mark.parametrize(
    ("schema", "kind", "nullable"),
    [
        ({"type": "boolean"}, "boolean", False),
        ({"type": "integer"}, "integer", False),
        ({"type": "number"}, "number", False),
        ({"type": "string"}, "string", False),
        ({"enum": ["fast", "safe"]}, "choice", False),
        ({"const": 1}, "choice", False),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer", True),
        ({"oneOf": [{"type": "null"}, {"enum": ["a"]}]}, "choice", True),
        ({"type": ["string", "null"]}, "string", True),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "json", False),
        ({"type": "array", "items": {"type": "integer"}}, "json", False),
        ({"type": "object"}, "json", False),
        ({"$ref": "#/$defs/Order"}, "json", False),
        ({}, "json", False),
        (True, "json", False),
        (None, "json", False),
        ("integer", "json", False),
        ({"type": 7}, "json", False),
        ({"type": ["integer", "null", "string"]}, "json", True),
        ({"enum": []}, "json", False),
        ({"enum": [["a"]]}, "json", False),
        ({"enum": list(range(1_000))}, "json", False),
        ({"enum": "abc"}, "json", False),
    ],
    ids=str,
)
def test_kind_of_field(schema: Any, kind: str, nullable: bool) -> None:
    """Plain values get a field of their kind, everything else one for JSON."""
    field = one(schema)
    assert (field.kind, field.nullable) == (FieldKind(kind), nullable)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, " -7 ", -7),
        (
            {"type": "integer"},
            "\uff19\uff10\uff10719925474099\uff13",
            9_007_199_254_740_993,
        ),
        ({"type": "integer"}, "", ABSENT),
        ({"type": "integer"}, "1.5", "integer"),
        ({"type": "integer"}, "1_000", "integer"),
        ({"type": "integer"}, "一", "integer"),
        ({"type": "integer"}, "9" * 5_000, "integer"),
        ({"type": "integer", "minimum": 13}, "12", 12),  # the agent's to refuse
        ({"type": "integer", "minimum": "x", "maximum": True}, "12", 12),
        ({"type": "integer", "maximum": 10**400}, "12", 12),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "3", 3),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "1e999", "number"),
        ({"type": "number"}, "nan", "number"),
        ({"type": "number"}, "inf", "number"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "yes", "choice"),
        ({"type": "string"}, "", ABSENT),
        ({"type": "string"}, "  ", "  "),
        ({"type": "string"}, "one\r\ntwo", "one\ntwo"),
        ({"enum": ["a", 1, None]}, "1", 1),
        ({"enum": ["a", 1, None]}, "2", None),
        ({"enum": ["a", 1, None]}, "3", "choice"),
        ({"enum": ["a", 1, None]}, "-1", "choice"),
        ({"enum": ["a", 1, None]}, "\u0661", "choice"),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "{}", "array"),
        ({"type": "object"}, "[]", "object"),
        ({"type": "object"}, "{", "json"),
        ({"type": "object"}, '{"a":' * 5_000, "too_deep"),
        ({}, "null", None),
        ({}, '"\ud800"', "?"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_was_typed(schema: Any, text: str, value: Any) -> None:
    """A text is read as its field says, or the fault is named."""
    assert typed(schema, text) == value


ORDER: dict[str, Any] = {
    "order": {"$ref": "#/$defs/Order"},
    "gift": {"anyOf": [{"$ref": "#/$defs/Line"}, {"type": "null"}]},
    "a.b~": {"allOf": [{"$ref": "#/$defs/Line"}]},
}
ORDERS: dict[str, Any] = {
    "Line": {
        "type": "object",
        "properties": {
            "sku": {"type": "string"},
            "count": {"type": "integer", "minimum": 1},
            "price": {"anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}]},
        },
        "required": ["sku"],
    },
    "Order": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "day": {"type": "string", "format": "date"},
            "due": {"type": "string", "format": "date-time"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "maxItems": 2},
            "days": {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 2},
        },
        "required": ["lines"],
    },
}  # fmt: skip
UUID_TEXT = "6f1c2a9e-0d4b-4a55-9b1e-2f7d8c3a6e10"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({}, {"order": {"lines": []}}),
        (
            {"rows.order.lines": "7 2", "arg.order.lines.7.sku": "茶", "arg.order.lines.2.sku": "米",
             "arg.order.lines.2.price": "\uff11.50", "arg.order.lines.3.sku": "removed"},
            {"order": {"lines": [{"sku": "茶"}, {"sku": "米", "price": "1.50"}]}},
        ),
        (
            {"arg.order.id": f" {UUID_TEXT} ", "arg.order.day": "2026-01-31",
             "arg.order.due": "2026-01-31T08:30", "zone.order.due": "+08:00"},
            {"order": {"id": UUID_TEXT, "day": "2026-01-31", "due": "2026-01-31T08:30:00+08:00", "lines": []}},
        ),
        ({"null.gift": "1", "arg.gift.count": "x"}, {"order": {"lines": []}, "gift": None}),
        ({"arg.gift.sku": "茶"}, {"order": {"lines": []}, "gift": {"sku": "茶"}}),
        ({"arg.a~1b~0.sku": "茶"}, {"order": {"lines": []}, "a.b~": {"sku": "茶"}}),
        ({"arg.gift.count": "1"}, [("arg.gift.sku", "required")]),
        ({"arg.order.id": "7"}, [("arg.order.id", "uuid")]),
        ({"arg.order.day": "2026-02-30"}, [("arg.order.day", "date")]),
        ({"arg.order.due": "2026-01-31T08:30:15"}, [("arg.order.due", "date-time")]),
        ({"arg.gift.sku": "茶", "arg.gift.price": "1,5"}, [("arg.gift.price", "decimal")]),
        ({"rows.order.lines": "0"}, [("arg.order.lines.0.sku", "required")]),
        (
            {"rows.order.days": "5 4", "arg.order.days.5": "2026-01-31", "arg.order.days.4": "?"},
            [("arg.order.days.4", "date")],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_nested_fields(texts: dict[str, str], found: Any) -> None:
    """Objects have fields, lists rows; an error stands at the input that is wrong."""
    fields = fields_of(ORDER, "order", **{"$defs": ORDERS})
    read = read_submission(fields, texts)
    errors = [(name, one.code) for name, one in read.errors.items()]
    assert (errors or read.arguments) == found


def test_a_reference_that_leads_back_is_json() -> None:
    """A tree has fields once; what is inside of it again is one field."""
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "one": {"$ref": "#/$defs/Node"},
            "all": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
        },
    }
    fields = fields_of({"a": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}})
    kinds = [(path, field.kind.value) for path, field in list_nested(fields)]
    assert kinds == [
        ("a", "object"),
        ("a.name", "string"),
        ("a.one", "json"),
        ("a.all", "json"),
    ]


def test_a_schema_that_grows_is_cut() -> None:
    """Seven times fifty to the seventh fields would end in a swamped console."""
    levels = {
        f"L{n}": {
            "properties": {f"p{k}": {"$ref": f"#/$defs/L{n + 1}"} for k in range(50)}
        }
        for n in range(7)
    }
    fields = fields_of({"a": {"$ref": "#/$defs/L0"}}, **{"$defs": levels})
    assert len(list(list_nested(fields))) <= MOST_FIELDS


def test_rows_come_and_go() -> None:
    """A new row has a number of its own, so that the others keep what was typed."""
    inputs, focus = change_rows({"arg.a.0": "x"}, add="a")
    inputs, focus = change_rows(inputs, add="a")
    assert (inputs["rows.a"], focus) == ("0 1", "arg.a.1")
    inputs, focus = change_rows(inputs, remove="a.0")
    assert (inputs["rows.a"], focus) == ("1", "arg.a")
    inputs, _ = change_rows(inputs, add="a")
    assert inputs["rows.a"] == "1 2"
    rows = " ".join(map(str, range(2 * MOST_ROWS)))
    assert len(list_rows({"rows.a": rows}, "a")) == MOST_ROWS


def test_required_fields() -> None:
    """What is needed has to be there; an empty text is taken for a mistake."""
    assert typed({"type": "integer"}, " ", required=True) == "required"
    assert typed({"type": "array"}, "", required=True) == "required"
    assert typed({"type": "string"}, "", required=True) == "required"
    nullable = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert typed(nullable, "12", null=True) is None
    assert typed(nullable, "12") == 12


def test_plain_json() -> None:
    """Without fields all arguments are one object."""
    assert read_submission(None, {"args": ""}).arguments == {}
    assert read_submission(None, {"args": '{"force": true}'}).arguments == {
        "force": True
    }
    assert read_submission(None, {"args": "[1]"}).errors["args"].code == "object"
    assert read_submission(None, {"args": "{force}"}).errors["args"].code == "json"


@pytest.mark.parametrize(
    "schema",
    [
        None,
        7,
        "x",
        [],
        {"type": "array"},
        {"properties": []},
        {"properties": {"": {}}},
        {"properties": {"a\nb": {}}},
        {"properties": {"a\u202eb": {}}},
        {"properties": {f"p{n}": {} for n in range(10_000)}},
        {"properties": {"x" * 1_000: {}}},
        {"properties": {7: {}}},
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_form(schema: Any) -> None:
    """What is no object of few printable names gets one field for JSON."""
    assert read_fields(schema) is None


@dataclass
class Line:
    """A data class."""

    sku: str
    price: Decimal = Decimal(1)
    day: date | None = None


class LineModel(BaseModel):
    """The same for pydantic."""

    sku: str
    price: Decimal = Decimal(1)
    day: date | None = None


@dataclass
class Order:
    """A data class that holds others."""

    id: UUID
    lines: list[Line]
    at: datetime
    gift: Line | None = None


class OrderModel(BaseModel):
    """The same for pydantic."""

    id: UUID
    lines: list[LineModel]
    at: datetime
    gift: LineModel | None = None


def test_the_forms_of_data_classes_and_of_models_are_alike() -> None:
    """What an agent publishes with or without pydantic gives the same fields."""
    router, shapes = Router(), []
    for kind in (Order, OrderModel):

        async def place(order: kind, tea: kind | None = None) -> None: ...  # type: ignore[valid-type]

        place.__annotations__ = {"order": kind, "tea": kind | None}
        router.add(kind.__name__, place, place)
        handler: Any = router.find(kind.__name__)
        fields = read_fields(decode(encode(handler.describe()))["parameters"])  # type: ignore[index,call-overload]
        assert fields is not None
        shapes.append(
            [
                (path, one.kind, one.required, one.nullable, one.default)
                for path, one in list_nested(fields)
            ]
        )
    assert shapes[0] == shapes[1]
    assert len(shapes[0]) == 22
    assert {kind.value for _, kind, *_ in shapes[0]} == {
        *("object", "array", "string", "decimal", "date", "date-time", "uuid")
    }


def test_deep_schemas() -> None:
    """A schema of any depth is read at its surface."""
    deep: Any = {"type": "integer"}
    for _ in range(900):
        deep = {"anyOf": [deep, {"type": "null"}]}
    assert one(deep).kind is FieldKind.JSON
    assert one(deep).nullable


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "required",
                    "enum",
                    "anyOf",
                    "minimum",
                    "default",
                ]
            )
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(schema=anything, texts=st.dictionaries(st.text(max_size=6), st.text(max_size=9)))
def test_any_schema_gives_a_form_or_none(schema: Any, texts: dict[str, str]) -> None:
    """Whatever comes as a schema or as a text: nothing raises."""
    fields = read_fields(schema)
    names = [field.name for field in fields or ()]
    filled = texts | dict(zip((f"arg.{name}" for name in names), texts.values()))  # noqa: B905 - as far as there are texts
    told = read_submission(fields, filled)
    encode(told.arguments)


plain = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9)
)
values: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-(2**70), 2**70),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "string": st.text(min_size=1).filter(lambda text: "\r" not in text),
    "array": st.lists(plain, max_size=5),
    "object": st.dictionaries(st.text(max_size=5), plain, max_size=5),
}


@given(data=st.data(), kind=st.sampled_from(sorted(values)))
def test_round_trip(data: st.DataObject, kind: str) -> None:
    """What a field shows of a value is read as that value again."""
    value = data.draw(values[kind])
    field = one({"type": kind})
    text = show_value(field, value)
    if kind == "integer" and abs(value) > 2**63:
        text = str(value)  # the codec writes those as text, a person does not
    assert typed({"type": kind}, text) == value


@given(choices=st.lists(plain, min_size=1, max_size=9), place=st.integers(0, 8))
def test_round_trip_of_choices(choices: list[JSONValue], place: int) -> None:
    """A choice is named by its place, so that true, 1 and "1" are three of them."""
    value = choices[place % len(choices)]
    text = show_value(one({"enum": choices}), value)
    read = typed({"enum": choices}, text)
    assert type(read) is type(value)
    assert read == value


def test_the_agents_own_help_gives_forms() -> None:
    """What an agent of this package tells of itself becomes fields."""
    agent = ProjectAgent("订单系统", banner=False)

    @agent.command
    async def ship(
        number: int, mode: Literal["fast", "safe"] = "fast", note: str | None = None
    ) -> None:
        """Ship an order."""

    told: Any = decode(encode(agent.describe_commands()))
    forms = {entry["name"]: read_fields(entry["parameters"]) for entry in told}
    fields = forms["ship"]
    assert fields is not None
    kinds = [(field.name, field.kind.value, field.required) for field in fields]
    assert kinds == [
        ("number", "integer", True),
        ("mode", "choice", False),
        ("note", "string", False),
    ]
    assert [field.shown_default for field in fields] == ["", "fast", "null"]
    assert forms["ping"] == ()
