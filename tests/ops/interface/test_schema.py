"""A schema of a foreign process: what is kept is valid, and allows no fewer values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from bls_agent.ops.interface.schema import (
    DEEPEST,
    read_arguments,
)

KEPT: dict[str, tuple[Any, Any]] = {
    "nothing": (False, {"not": {}}),
    "anything": (True, {}),
    "no schema": ("text", {}),
    "unknown keyword": ({"x": 1, "type": "string"}, {"type": "string"}),
    "wrong type": ({"type": 5}, {}),
    "unknown type": ({"type": "date"}, {}),
    "types": ({"type": ["string", "null", "null"]}, {"type": ["string", "null"]}),
    "no types": ({"type": []}, {}),
    "no choices": ({"enum": []}, {}),
    "equal choices": ({"enum": [1, 1.0, True, "1"]}, {"enum": [1.0, True, "1"]}),
    "choices that are no text": ({"enum": [{"a": 1}]}, {}),
    "draft 4": ({"exclusiveMinimum": True, "minimum": 1}, {"minimum": 1}),
    "huge": ({"maximum": 10**30, "minLength": -1}, {}),
    "no factor": ({"multipleOf": 0}, {}),
    "places": (
        {"prefixItems": [{"type": "string"}], "items": False},
        {"additionalItems": False, "items": [{"type": "string"}]},
    ),
    "one of": ({"oneOf": [{"type": "null"}]}, {"anyOf": [{"type": "null"}]}),
    "both": ({"oneOf": [{}], "anyOf": [{"type": "null"}]}, {"anyOf": [{"type": "null"}]}),
    "not": ({"not": {"x": 1}}, {}),
    "patterns": (
        {"patternProperties": {"a": {}}, "additionalProperties": False},
        {},
    ),
    "unreadable properties": (
        {"properties": "x", "additionalProperties": False},
        {},
    ),
    "default null": ({"default": None}, {"default": None}),
    "default with a reference": ({"default": {"$ref": "file:///etc/passwd"}}, {}),
    "hidden reference": ({"const": [{"a": {"$ref": "#/x"}}]}, {}),
    "prototype": (
        {"properties": {"__proto__": {}}, "additionalProperties": False},
        {},
    ),
    "argument called $ref": ({"properties": {"$ref": {"type": "string"}}}, {}),
    "file": ({"$ref": "file:///etc/passwd"}, {}),
    "no such definition": ({"$ref": "#/$defs/Other"}, {}),
    "reference": ({"$ref": "#/$defs/a~1b%20c"}, {"$ref": "#/$defs/a/b c"}),
    "reference with more": (
        {"$ref": "#/$defs/a~1b%20c", "default": 1},
        {"default": 1, "allOf": [{"$ref": "#/$defs/a/b c"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_what_is_kept(case: str) -> None:
    given, kept = KEPT[case]
    parameters = {"properties": {"a": given}, "$defs": {"a/b c": {"type": "string"}}}
    found = read_arguments(parameters)
    assert found is not None
    assert found.args["properties"]["a"] == kept
    assert repr(found.args["properties"]["a"]) == repr(kept)  # True is not 1
    assert found.definitions == {"a/b c": {"type": "string"}}


@pytest.mark.parametrize(
    "parameters", [None, "x", [], {"type": "string"}, {"type": ["object"]}, 5]
)
def test_unknown_parameters(parameters: Any) -> None:
    """Whatever is no object says nothing about arguments."""
    assert read_arguments(parameters) is None


def test_a_deep_schema_ends() -> None:
    """What is too deep may be anything, and no recursion is too deep for Python."""
    schema: Any = {"type": "string"}
    data: Any = 1
    for _ in range(5 * DEEPEST):
        schema = {"items": schema}
        data = [data]
    found = read_arguments({"properties": {"a": schema, "b": {"default": data}}})
    assert found is not None
    assert repr(found.args).count("items") == DEEPEST
    assert "default" not in repr(found.args)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string", "x"])  # fmt: skip


def combine(inner: Any) -> Any:
    """Every keyword, with its own values and with odd ones."""
    each = {
        "type": TYPES | st.lists(TYPES, max_size=2),
        "enum": st.lists(VALUES, max_size=3),
        "const": VALUES,
        "default": VALUES,
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2) | st.booleans(),
        "multipleOf": st.integers(-1, 3),
        "minLength": st.integers(-1, 2),
        "maxItems": st.integers(-1, 2),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from("ab"), max_size=2),
        "items": inner | st.booleans() | VALUES,
        "prefixItems": st.lists(inner, max_size=2),
        "properties": st.dictionaries(st.sampled_from(["a", "b", "$ref"]), inner, max_size=2) | VALUES,
        "patternProperties": st.dictionaries(st.sampled_from("ab"), inner, max_size=1),
        "additionalProperties": inner | st.booleans(),
        "anyOf": st.lists(inner, max_size=2),
        "oneOf": st.lists(inner, max_size=2),
        "allOf": st.lists(inner, max_size=2),
        "not": inner | st.booleans(),
        "contains": inner,
        "minContains": st.integers(0, 1),
        "$ref": st.sampled_from(["#/$defs/D", "#/$defs/E", "x"]),
    }  # fmt: skip
    words = st.lists(st.sampled_from(sorted(each)), min_size=1, max_size=3, unique=True)
    return words.flatmap(lambda some: st.fixed_dictionaries({w: each[w] for w in some}))


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.just({}) | st.booleans(), combine, max_leaves=6
)


@settings(max_examples=12)
@given(schema=combine(SCHEMAS), definition=SCHEMAS, value=VALUES)
def test_never_fewer_values(schema: Any, definition: Any, value: Any) -> None:
    """What is kept is a valid schema, and allows what the schema has allowed."""
    import jsonschema  # noqa: PLC0415 - it takes a second to import

    parameters = {"properties": {"a": schema}, "$defs": {"D": definition}}
    found = read_arguments(parameters)
    assert found is not None
    kept = {**found.args, "$defs": found.definitions}
    jsonschema.Draft7Validator.check_schema(kept)
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
        allowed = jsonschema.Draft202012Validator(parameters).is_valid({"a": value})
    except Exception:
        return
    if allowed:
        assert jsonschema.Draft7Validator(kept).is_valid({"a": value})
