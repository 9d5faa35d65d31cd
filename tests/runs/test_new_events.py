"""What is to be written: refused, or tamed; and read again as it was said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from bls_agent import ConfigurationError
from bls_agent.runs import NewEvent, StreamEvent
from bls_agent.runs.new_events import (
    NO_SOURCE,
    Prepared,
    encode_new,
    sanitize_data,
    sanitize_source,
    sanitize_word,
)

NOW = 1735732800.123  # 2025-01-01T12:00:00.123Z
LIMIT = 65_536
SOURCE = ("agent_id", "agent_type", "agent_name", "team_name")
FIELDS = (
    b"timestamp", b"sequence", b"source_agent_id", b"source_agent_type",
    b"source_agent_name", b"source_team_name", b"event_category", b"event_action",
    b"data",
)  # fmt: skip


def as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def written(prepared: Prepared, sequence: int = 1) -> StreamEvent:
    """The event that the script makes of it, read again."""
    counted = sequence if prepared[0] == "" else prepared[0]
    values = [prepared[1], counted, *prepared[2:]]
    fields = [
        part
        for pair in zip(FIELDS, map(as_bytes, values), strict=True)
        for part in pair
    ]
    return StreamEvent.decode(1, b"1-0", fields)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=40)
@given(
    st.sampled_from(["llm", "工具", "custom:x", "a.b"]),
    st.sampled_from(["stream", "完成", "x y"]),
    st.dictionaries(st.text(), PLAIN, max_size=5),
    st.dictionaries(st.sampled_from(SOURCE), st.sampled_from(["x", "订单", ""])),
    st.none() | st.integers(0, 10**15 - 1),
)
def test_what_is_written_is_read_again(
    category: str,
    action: str,
    data: dict[str, Any],
    source: dict[str, str | None],
    sequence: int | None,
) -> None:
    """Equal, whatever JSON can hold."""
    new = NewEvent(category, action, data, source, None, sequence)
    event = written(encode_new(new, NOW, 10**6))
    assert event.faults == ()
    assert event.data == data
    assert event.event == {"category": category, "action": action}
    assert event.sequence == (1 if sequence is None else sequence)
    told = {name: source.get(name) or "" for name in SOURCE}
    assert event.source == (told if any(told.values()) else None)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (None, "2025-01-01T12:00:00.123Z"),
        (datetime(2025, 1, 1, 12, tzinfo=UTC), "2025-01-01T12:00:00.000Z"),
        (
            datetime(2025, 1, 1, 20, 0, 0, 123_000, timezone(timedelta(hours=8))),
            "2025-01-01T12:00:00.123Z",
        ),
        (datetime(2025, 1, 1, 12), "2025-01-01T12:00:00.000Z"),  # noqa: DTZ001 - taken as UTC
        ("2025-01-01T20:00:00+08:00", "2025-01-01T12:00:00.000Z"),
    ],
    ids=["now", "utc", "shanghai", "without-zone", "text"],
)
def test_timestamps(timestamp: str | datetime | None, expected: str) -> None:
    """Every time becomes UTC with milliseconds."""
    event = NewEvent("llm", "stream", timestamp=timestamp)
    assert encode_new(event, NOW, LIMIT)[1] == expected


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "data-list": ({"data": [1]}, "data"),
    "data-text": ({"data": '{"a": 1}'}, "data"),
    "data-bytes": ({"data": {"a": b"x"}}, "data"),
    "data-set": ({"data": {"a": {1}}}, "data"),
    "data-object": ({"data": {"a": object()}}, "data"),
    "data-nan": ({"data": {"a": math.nan}}, "data"),
    "data-infinity": ({"data": {"a": [math.inf]}}, "data"),
    "data-surrogate": ({"data": {"a": "\ud800"}}, "data"),
    "data-integer-key": ({"data": {1: "a"}}, "data"),
    "data-cycle": ({"data": CYCLE}, "data"),
    "data-long": ({"data": {"a": "x" * LIMIT}}, "data"),
    "category-empty": ({"category": ""}, "event_category"),
    "category-newline": ({"category": "a\nb"}, "event_category"),
    "category-number": ({"category": 1}, "event_category"),
    "action-none": ({"action": None}, "event_action"),
    "action-surrogate": ({"action": "\ud800"}, "event_action"),
    "action-long": ({"action": "x" * 513}, "event_action"),
    "source-text": ({"source": "me"}, "source"),
    "source-unknown": ({"source": {"name": "me"}}, "source"),
    "source-number": ({"source": {"agent_id": 7}}, "source"),
    "source-newline": ({"source": {"agent_id": "a\nb"}}, "source"),
    "timestamp-word": ({"timestamp": "now"}, "timestamp"),
    "timestamp-number": ({"timestamp": 1735732800}, "timestamp"),
    "sequence-negative": ({"sequence": -1}, "sequence"),
    "sequence-text": ({"sequence": "1"}, "sequence"),
    "sequence-true": ({"sequence": True}, "sequence"),
    "sequence-huge": ({"sequence": 2**53}, "sequence"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_refused(case: str) -> None:
    """With the name of what does not fit."""
    changed, field = REFUSED[case]
    event = NewEvent(**{"category": "llm", "action": "stream", **changed})
    with pytest.raises(ConfigurationError) as caught:
        encode_new(event, NOW, LIMIT)
    assert caught.value.name.startswith(field)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_tamed(case: str) -> None:
    """Something readable is written instead."""
    changed, _ = REFUSED[case]
    event = NewEvent(**{"category": "llm", "action": "stream", **changed})
    check_tame(event)


def check_tame(event: NewEvent, limit: int = LIMIT) -> None:
    """What ``emit`` makes of its arguments is an event, and reads as one."""
    data, cut = sanitize_data(event.data, limit)
    assert len(data) <= limit
    assert isinstance(orjson.loads(data), dict)
    assert cut is bool(cut)
    source = sanitize_source(event.source)
    assert len(source) == len(NO_SOURCE)
    for text in (*source, sanitize_word(event.category), sanitize_word(event.action)):
        assert text.isprintable()
        assert text == text.strip()
        assert text.encode().decode() == text


class Rude(Mapping[str, Any]):
    """A mapping that raises whatever is asked of it."""

    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError(key)

    def __iter__(self) -> Iterator[str]:
        raise ZeroDivisionError

    def __len__(self) -> int:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise ZeroDivisionError


class Moody(dict[Any, Any]):
    """A dict that raises when it is looked through."""

    def items(self) -> Any:
        raise ZeroDivisionError


class Odd(str):
    """A text that is none when somebody looks closer."""

    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise ZeroDivisionError

    def encode(self, *_: object) -> bytes:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment]


HOSTILE: dict[str, dict[str, Any]] = {
    "data": {"data": Rude()},
    "inside": {"data": {"a": Rude()}},
    "dict": {"data": Moody({1: "x"})},
    "source": {"source": Rude()},
    "category": {"category": Rude()},
    "action": {"action": Odd("x")},
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_raises_into_the_host(case: str) -> None:
    """Whatever the host's objects do."""
    check_tame(NewEvent(**{"category": "llm", "action": "stream", **HOSTILE[case]}))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats()
    | st.datetimes() | st.decimals() | st.builds(object),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40)
@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_anything_can_be_said(
    category: Any, action: Any, data: Any, source: Any
) -> None:
    """It is an event, and reads as one."""
    check_tame(NewEvent(category, action, data, source))


@settings(max_examples=40)
@given(st.dictionaries(st.text(), ANYTHING), st.integers(256, 4_096))
def test_what_is_too_long_is_cut(data: dict[str, Any], limit: int) -> None:
    """Under the limit, and still an object."""
    check_tame(NewEvent("llm", "stream", {**data, "text": "x" * 4_096}), limit)


def test_a_cut_is_told() -> None:
    """Whether the data is what was said."""
    data, cut = sanitize_data({"text": "字" * LIMIT}, LIMIT)
    assert cut
    assert len(data) <= LIMIT
    assert orjson.loads(data)["text"].startswith("字字")
    assert sanitize_data({"a": 1}, LIMIT) == (b'{"a":1}', False)
    assert sanitize_data(None, LIMIT) == (b"{}", False)
    assert sanitize_data([1], LIMIT) == (b'{"value":[1]}', False)
