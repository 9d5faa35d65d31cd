"""What a request says: every wrong field is named."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bls_agent.ops.web.requests import FieldError, read_command, read_limit

GOOD = {"targetProjectName": "订单系统", "command": "reload"}


def test_a_command_is_read() -> None:
    """Either name of the project, and what may be left out."""
    told = read_command(orjson.dumps(GOOD))
    assert (told.project, told.command, told.args, told.id, told.wait) == (
        "订单系统",
        "reload",
        {},
        None,
        0.0,
    )
    told = read_command(
        orjson.dumps(
            {
                "projectName": "a",
                "command": " x ",
                "args": {"n": 2**70 // 2**10},
                "id": "mine",
                "wait": 1.5,
            }
        )
    )
    assert (told.project, told.command, told.id, told.wait) == ("a", " x ", "mine", 1.5)
    assert read_command(orjson.dumps({**GOOD, "args": None, "wait": None})).args == {}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"targetProjectName": None}, {"targetProjectName"}),
        ({"targetProjectName": "x" * 513}, {"targetProjectName"}),
        ({"projectName": "订单系统"}, {"projectName"}),
        ({"targetProjectName": ""}, {"targetProjectName"}),
        ({"targetProjectName": 7}, {"targetProjectName"}),
        ({"projectName": "another"}, {"projectName"}),
        ({"command": None}, {"command"}),
        ({"command": "  "}, {"command"}),
        ({"command": ["reload"]}, {"command"}),
        ({"command": "x" * 1_001}, {"command"}),
        ({"args": [1]}, {"args"}),
        ({"args": "force"}, {"args"}),
        ({"args": [], "wait": {}}, {"args", "wait"}),
        ({"args": "", "wait": False}, {"args", "wait"}),
        ({"id": ""}, {"id"}),
        ({"id": 7}, {"id"}),
        ({"id": "x" * 201}, {"id"}),
        ({"wait": -1}, {"wait"}),
        ({"wait": 31}, {"wait"}),
        ({"wait": True}, {"wait"}),
        ({"wait": "5"}, {"wait"}),
        ({"Command": "x"}, {"Command"}),
        ({"command": None, "args": 1, "wait": -1}, {"command", "args", "wait"}),
    ],
)
def test_every_wrong_field_is_named(change: dict[str, Any], fields: set[str]) -> None:
    """All of them at once."""
    with pytest.raises(FieldError) as error:
        read_command(orjson.dumps({**GOOD, **change}))
    assert set(error.value.fields) == fields


def test_the_project_has_to_be_named() -> None:
    """By one of its two names."""
    with pytest.raises(FieldError) as error:
        read_command(b"{}")
    assert set(error.value.fields) == {"targetProjectName", "command"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 5_000])
def test_a_body_is_a_json_object(body: bytes) -> None:
    """Anything else is a wrong body."""
    with pytest.raises(FieldError) as error:
        read_command(body)
    assert set(error.value.fields) == {"body"}


def test_a_limit_has_bounds() -> None:
    """From 1 to 1000, 200 if there is none."""
    assert read_limit(None) == 200
    assert read_limit("1") == 1
    assert read_limit("1000") == 1_000
    for wrong in ("", "0", "1001", "-1", "1.5", "x", "١٢", "9" * 5_000, " 5", "+5"):
        with pytest.raises(FieldError) as error:
            read_limit(wrong)
        assert set(error.value.fields) == {"limit"}
