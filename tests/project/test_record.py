"""A log record on its way out: the contract's form, below 64 KB, whatever was logged."""

from __future__ import annotations

import itertools
import json
import math
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn

import pytest
from hypothesis import given, strategies as st

from bls_agent.project.log.log import LogStream
from bls_agent.project.log.record import LogRecord, SuccessRecord, id_prefix
from bls_agent.project.messages import Level, LogEntry, Outcome, OutcomeKind
from tests.harness import cyclic_cause

NOW = 1768221296.789  # 2026-01-12T12:34:56.789Z
LIMIT = 65_536  # a record is shorter
IDENTITY = "orders-7f9c4d-4711-a1b2#123456"


def write(
    message: str = "连接成功",
    metadata: Mapping[str, object] | None = None,
    identity: str = IDENTITY,
) -> bytes:
    """Give the bytes of one record."""
    record = LogRecord(Level.INFO, message, metadata or {}, now=NOW)
    instance, _, number = identity.rpartition("#")
    record.number(id_prefix(instance), int(number or 0))
    return record.payload


def read(payload: bytes) -> dict[str, Any]:
    """Read a record as a strict peer does, and check what holds for every record."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a key stands twice"
        return dict(pairs)

    assert len(payload) < LIMIT
    record: dict[str, Any] = json.loads(
        payload.decode(), parse_constant=refuse, object_pairs_hook=unique
    )
    assert list(record) in (
        ["timestamp", "level", "message"],
        ["timestamp", "level", "message", "metadata"],
    )
    assert isinstance(record["message"], str)
    assert isinstance(record.get("metadata", {}), dict)
    assert LogEntry.decode(payload).valid
    return record


def test_a_record_has_the_documented_form() -> None:
    """The bytes are the contract's example: its fields, their order, nothing else."""
    metadata = {"module": "redis", "host": "127.0.0.1"}
    assert write(metadata=metadata, identity="").decode() == (
        '{"timestamp":"2026-01-12T12:34:56.789Z","level":"info","message":"连接成功",'
        '"metadata":{"module":"redis","host":"127.0.0.1"}}'
    )


def test_empty_metadata_is_not_written() -> None:
    """The optional field is absent when there is nothing in it."""
    assert list(read(write(identity=""))) == ["timestamp", "level", "message"]


def test_a_record_carries_its_id() -> None:
    """Instance and number stand first in the metadata, and can be read back."""
    payload = write(metadata={"host": "a"})
    assert list(read(payload)["metadata"]) == ["agent", "host"]
    entry = LogEntry.decode(payload)
    assert (entry.instance, entry.number) == ("orders-7f9c4d-4711-a1b2", 123456)
    assert read(write())["metadata"] == {"agent": IDENTITY}


def test_the_users_own_key_wins() -> None:
    """Where the user logs a field called agent, it stays the user's."""
    assert read(write(metadata={"agent": "travel"}))["metadata"] == {"agent": "travel"}


def test_a_record_is_encoded_at_once() -> None:
    """What happens to the metadata after the call does not change the record."""
    metadata: dict[str, object] = {"steps": [1]}
    record = LogRecord(Level.INFO, "a", metadata, now=NOW)
    metadata["steps"] = "changed"
    assert read(record.payload)["metadata"] == {"steps": [1]}


def test_a_small_success_is_written_like_any_record() -> None:
    """Encoded later, its bytes are the same; it was counted with about as many."""
    for source, found, name, result in itertools.product(
        ["", "BLS Project Console", "Bearer a1b2c3d4"],
        ["cmd-1", "", "sk-" + "a1" * 20, "密" * 40],
        ["a", "rebuild_search-index.all", "导入" * 20],
        [None, True, -1.2345678901234567e-300],
    ):
        outcome = Outcome(
            kind=OutcomeKind.SUCCEEDED,
            command=name,
            command_id=found,
            source=source,
            duration_ms=1234567.123,
            result=result,
        )
        prefix = id_prefix("orders-7f9c4d-4711-a1b2")
        usual = LogRecord(Level.INFO, outcome.message, outcome.metadata, now=NOW)
        usual.number(prefix, 123456)
        record = SuccessRecord.of(outcome, NOW)
        assert record is not None, outcome
        size = record.size
        record.number(prefix, 123456)
        assert record.payload == usual.payload, outcome
        assert len(record.payload) <= size == record.size, outcome
        if (name + found).isascii():
            assert size <= usual.size + 100 + 2 * len(source), outcome
        assert record.rank == LogRecord.OUTCOME_RANK, outcome


@pytest.mark.parametrize(
    "changes",
    [
        {"result": "a text may be long"},
        {"result": 1 << 100},
        {"result": [1]},
        {"kind": OutcomeKind.FAILED},
        {"command": "a" * 200},
        {"command_id": "\x01"},
        {"source": "it's"},
        {"source": "a" * 100},
        {"command": "it's"},
    ],
    ids=str,
)
def test_all_other_outcomes_are_encoded_at_once(changes: dict[str, Any]) -> None:
    """What the host may change, and what has no known size, is not kept as it is."""
    kind = OutcomeKind.SUCCEEDED
    fields: dict[str, Any] = {"kind": kind, "command": "a", "command_id": "1"}
    assert SuccessRecord.of(Outcome(**fields), NOW)
    changed = Outcome(**(fields | changes))
    assert SuccessRecord.of(changed, NOW) is None
    stream = LogStream(lambda: NOW, max_records=10, max_bytes=100_000)
    stream.report(changed)
    (record,) = stream.delivery.buffer.take(10, 100_000)
    assert read(record.payload)["metadata"]["outcome"] == changed.kind


@pytest.mark.parametrize("identity", ["", IDENTITY], ids=["no id", "id"])
@pytest.mark.parametrize("metadata", [{}, {"a": 1}], ids=["bare", "metadata"])
def test_the_size_is_an_upper_bound(metadata: dict[str, int], identity: str) -> None:
    """A record takes at most as many bytes on the wire as it was counted with."""
    record = LogRecord(Level.INFO, "a", metadata, now=NOW)
    instance, _, number = identity.rpartition("#")
    record.number(id_prefix(instance), int(number or 0))
    assert len(record.payload) <= record.size <= len(record.payload) + 700


# --- whatever is logged


class Loud:
    """Raises whenever it is asked for words."""

    def __repr__(self) -> str:
        msg = "no repr"
        raise RuntimeError(msg)

    __str__ = __repr__


class Endless:
    """Describes itself at length."""

    def __repr__(self) -> str:
        return "x" * 10_000_000


class Unreadable(Mapping[str, int]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> int:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        msg = "no items"
        raise RuntimeError(msg)

    def __len__(self) -> int:
        return 1


def cyclic() -> dict[str, object]:
    """Make a dict that holds itself."""
    value: dict[str, object] = {}
    value["self"] = [value]
    return value


def deep() -> list[object]:
    """Make a list of 255 levels."""
    value: list[object] = []
    for _ in range(254):
        value = [value]
    return value


OBJECTS: dict[str, Callable[[], object]] = {
    "cyclic": cyclic,
    "255 deep": deep,
    "bytes": lambda: b"\xff\x00",
    "set": lambda: {1, "a", None},
    "decimal": lambda: Decimal("NaN"),
    "not a number": lambda: [math.nan, math.inf],
    "keys": lambda: {1: "a", (2,): "b", None: "c", b"\xff": "d", 1.5: "e"},
    "loud": Loud,
    "loud key": lambda: {Loud(): 1},
    "huge integer": lambda: 10**100_000,
    "65 bits": lambda: [2**64, -(2**64)],
    "cyclic cause": cyclic_cause,
    "exception of something loud": lambda: ValueError(Loud()),
    "lone surrogate": lambda: {"\ud800": "\udfff"},
    "control characters": lambda: "\x1b[2J\0\r\n\x9b\u202e",
    "unreadable mapping": Unreadable,
    "generator": lambda: (number for number in range(3)),
    "a class": lambda: Loud,
}

HUGE: dict[str, Callable[[], object]] = {
    "endless repr": Endless,
    "10 MB of text": lambda: "x" * 10_000_000,
    "10 MB of bytes": lambda: b"\xff" * 10_000_000,
    "10 MB of NULs": lambda: "\0" * 10_000_000,
    "10 MB in a key": lambda: {"x" * 10_000_000: 1},
    "a million items": lambda: list(range(1_000_000)),
    "100,000 fields": lambda: {str(number): number for number in range(100_000)},
    "wide and deep": lambda: [[["x" * 100] * 40] * 40] * 40,
}


@pytest.mark.parametrize(
    "make", [*OBJECTS.values(), *HUGE.values()], ids=[*OBJECTS, *HUGE]
)
def test_whatever_is_logged_arrives(make: Callable[[], object]) -> None:
    """Any object becomes valid JSON below the limit, and spoils no field beside it."""
    metadata = read(write(metadata={"order": 42, "odd": make()}))["metadata"]
    assert metadata["agent"] == IDENTITY
    assert metadata["order"] == 42


def test_metadata_that_cannot_be_read() -> None:
    """A mapping of the program that raises: the record is whole, and says so."""

    class Broken(UserDict[str, object]):
        def items(self) -> NoReturn:
            raise LookupError("gone")

    for identity in (IDENTITY, ""):
        found = read(write(metadata=Broken(a=1), identity=identity))["metadata"]
        assert found["metadata"] == "<not encodable: LookupError>"
        assert ("agent" in found) is bool(identity)


LARGE: dict[str, tuple[str, dict[str, object]]] = {
    "message": ("x" * 10_000_000, {}),
    "message of quotes": ('"' * 10_000_000, {}),
    "message of NULs": ("\0" * 10_000_000, {}),
    "message of lone surrogates": ("\ud800" * 1_000_000, {}),
    "message of 4-byte characters": ("😀" * 1_000_000, {}),
    "metadata": ("a", {"large": "x" * 10_000_000}),
    "both": ("x" * 10_000_000, {"large": "x" * 10_000_000}),
    "many fields": ("a", {f"field {number}": number for number in range(100_000)}),
    "65,536 bytes": ("x" * 65_536, {}),
    "just too much for one": ("x" * 40_000, {"large": "x" * 40_000}),
}


@pytest.mark.parametrize(("message", "metadata"), LARGE.values(), ids=list(LARGE))
def test_what_is_too_large_is_marked(message: str, metadata: dict[str, object]) -> None:
    """A shortened record says so and tells how many bytes it would have had."""
    record = read(write(message, metadata))
    assert record["metadata"]["truncated"] >= 65_000


@pytest.mark.parametrize("size", [40_000, 65_536, 10_000_000])
def test_much_of_a_long_message_is_kept(size: int) -> None:
    """Of a long message the first 32,000 bytes arrive, cut with an ellipsis."""
    text = read(write("x" * size))["message"]
    assert text.startswith("x" * 32_000)
    assert text.endswith("…") or len(text) == size


def test_what_fits_is_not_touched() -> None:
    """A record of 60,000 bytes is written as it is."""
    metadata = {"text": "x" * 60_000}
    assert read(write(metadata=metadata))["metadata"] == {"agent": IDENTITY, **metadata}


IDENTITIES = {
    "longest": "x" * 512 + "#" + "9" * 18,
    "longest, of quotes": '"' * 512 + "#" + "9" * 18,
    "longest, of 3-byte characters": "订" * 170 + "#" + "9" * 18,
}


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=list(IDENTITIES))
@pytest.mark.parametrize("size", [64_700, 64_800, 64_860, 100_000])
def test_the_id_does_not_break_the_limit(identity: str, size: int) -> None:
    """The longest name that a process may have still finds room in a full record."""
    metadata = read(write("", {"text": "x" * size}, identity))["metadata"]
    assert metadata["agent"] == identity


texts = st.text() | st.text(st.sampled_from('x\0"\\\ud800订😀')).map(lambda t: t * 500)
nasty = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | texts
    | st.sampled_from(list(OBJECTS.values())).map(lambda make: make()),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(texts | st.integers() | st.none(), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


@given(texts, st.dictionaries(texts, nasty, max_size=4))
def test_no_record_breaks_the_contract(
    message: str, metadata: dict[str, object]
) -> None:
    """No message and no metadata lead to a record that a peer cannot read."""
    read(write(message, metadata))
