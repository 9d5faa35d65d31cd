"""An event as its stream entry and as programs see it: whatever stands in Redis."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given, strategies as st

from bls_agent import ConfigurationError
from bls_agent.runs import (
    Gap,
    GapReason,
    StreamEvent,
    WriterLost,
)
from bls_agent.runs.events import (
    check_bound,
    check_id,
    check_run_id,
    find_id,
    next_id,
    order,
)
from tests.corpus.loader import entry

ID = b"1704067200123-0"
NAMES = ["id", "run_id", "timestamp", "sequence", "source", "event", "data"]
STORED = entry(
    {b"event_category": b"lifecycle", b"event_action": b"started",
     b"data": '{"task": "分析市场数据"}'.encode()}
)  # fmt: skip


def read(*fields: bytes) -> StreamEvent:
    return StreamEvent.decode(1, ID, fields)


def check_json(event: StreamEvent) -> None:
    """The application form can always be written, on one line, and read again."""
    line = event.json
    assert not set(line) & set(b"\r\n\0")
    told = orjson.loads(line)
    assert list(told) == NAMES
    assert told["event"] == {"category": event.category, "action": event.action}


FIELDS = st.sampled_from(STORED[::2])
VALUES = st.binary(max_size=40) | st.sampled_from(STORED[1::2])


@given(st.binary(), st.lists(FIELDS | st.binary(max_size=12) | VALUES, max_size=24))
@example(b"", [b"data"])
def test_any_bytes_are_an_event(number: bytes, fields: list[bytes]) -> None:
    """Even an odd number of them, or a name twice."""
    event = StreamEvent.decode(7, number, fields)
    check_json(event)
    assert event.run_id == 7
    assert isinstance(event.closes, bool)
    if event.source is not None:
        assert any(event.source.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=8), JSON, max_size=4),
    st.integers(0, 300),
    st.sampled_from([b"", b"\xff", b",", b"}"]),
)
def test_data_that_somebody_has_damaged(
    data: dict[str, object], place: int, noise: bytes
) -> None:
    """Cut, or with something in between: an object, or nothing and a fault."""
    try:
        payload = orjson.dumps(data)
    except TypeError:  # integers beyond 64 bit, lone surrogates
        return
    event = read(*entry({b"data": payload[:place] + noise + payload[place + 1 :]}))
    assert ("data" in event.faults) is (event.raw is not None)
    check_json(event)
    whole = read(*entry({b"data": payload}))
    assert whole.faults == ()
    assert whole.data == orjson.loads(payload)


BIG = 2**63 + 1


def test_a_large_number_keeps_its_digits() -> None:
    """It was written strictly, so it is no text for the followers; others are tamed."""
    event = read(*entry({b"data": b'{"a":[18446744073709551616,-%d],"b":null}' % BIG}))
    end = b'"data":{"a":[18446744073709551616,-%d],"b":null}}' % BIG
    assert event.json.endswith(end)
    assert event.sse.endswith(b"%b\n\n" % end)
    deep = read(*entry({b"data": b'{"a":%b%d%b}' % (b"[" * 300, 2**64, b"]" * 300)}))
    assert b"<too deep>" in deep.json


@pytest.mark.parametrize("missing", [True, False])
def test_a_source_that_is_nobody(missing: bool) -> None:
    """All four absent, or all four empty: none at all."""
    names = [name for name in STORED[::2] if name.startswith(b"source")]
    assert read(*entry(dict.fromkeys(names, None if missing else b""))).source is None
    one = read(*entry({**dict.fromkeys(names), names[2]: b"x"}))
    assert one.source == {
        "agent_id": "", "agent_type": "", "agent_name": "x", "team_name": "",
    }  # fmt: skip


def test_what_closes_a_run() -> None:
    """system.close and nothing else."""
    pairs = [("system", "close"), ("system", "error"), ("lifecycle", "close")]
    closes = [
        read(
            *entry(
                {b"event_category": category.encode(), b"event_action": action.encode()}
            )
        ).closes
        for category, action in pairs
    ]
    assert closes == [True, False, False]


def test_what_stands_between_events() -> None:
    """A gap and a lost writer as they go to a browser."""
    gap = Gap(7, GapReason.TRIMMED, "1-0", "5-0", 3)
    assert gap.to_dict() == {
        "run_id": 7, "reason": "trimmed", "after": "1-0", "before": "5-0", "missing": 3,
    }  # fmt: skip
    assert WriterLost(7, "5-0").to_dict() == {"run_id": 7, "after": "5-0"}


# -- ids

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
