"""The ids of events: read, ordered, refused."""

from __future__ import annotations

from typing import Any

import pytest

from bls_agent import ConfigurationError
from bls_agent.runs.events import (
    check_bound,
    check_id,
    check_run_id,
    find_id,
    next_id,
    order,
)

LARGEST = 2**64 - 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1704067200000-0", "1704067200000-0"),
        ("1704067200000", "1704067200000-0"),
        ("0-0", "0-0"),
        ("007-01", "7-1"),
        (f"{LARGEST}-{LARGEST}", f"{LARGEST}-{LARGEST}"),
    ],
)
def test_ids(text: str, found: str) -> None:
    assert find_id(text) == found
    assert check_id("last_id", text) == found


HOSTILE = [
    "", "-", "+", "$", "*", "1-", "-1", "1-*", "1-1-1", " 1-1", "1-1\n", "1-1\r\n\r\nid: 2",
    "\uff11-\uff11", "\u0663-\u0664", "0x1-1", "1e3", "-1-1", f"{LARGEST + 1}-0", f"0-{LARGEST + 1}",
    "9" * 400, "\x00", "null", "1-1\ud800",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=map(ascii, HOSTILE))
def test_no_ids(text: str) -> None:
    assert find_id(text) is None
    with pytest.raises(ConfigurationError, match="last_id"):
        check_id("last_id", text)
    if text not in ("-", "+"):
        with pytest.raises(ConfigurationError):
            check_bound("start_id", text)


@pytest.mark.parametrize("value", [None, 5, 5.0, b"1-1", ["1-1"]], ids=repr)
def test_no_texts(value: Any) -> None:
    assert find_id(value) is None
    with pytest.raises(ConfigurationError):
        check_id("last_id", value)


def test_order_is_that_of_numbers() -> None:
    ids = ["9-9", "10-0", "10-9", "10-10", "100-0"]
    assert sorted(ids, key=order) == ids


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0-0", "0-1"),
        ("5", "5-1"),
        (f"5-{LARGEST}", "6-0"),
        (f"{LARGEST}-{LARGEST}", None),
    ],
)
def test_the_next_id(before: str, after: str | None) -> None:
    assert next_id(before) == after


@pytest.mark.parametrize("value", ["-", "+", "5", "5-1"])
def test_bounds(value: str) -> None:
    assert check_bound("start_id", value) == value


@pytest.mark.parametrize("value", [0, 1, 2**63 - 1])
def test_run_ids(value: int) -> None:
    assert check_run_id(value) == value


@pytest.mark.parametrize(
    "value", [-1, 2**63, True, 1.0, "1", None, b"1", [1], 10**400], ids=lambda v: ascii(v)[:12]
)  # fmt: skip
def test_no_run_ids(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="run_id"):
        check_run_id(value)
