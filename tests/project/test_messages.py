"""What travels under the three keys of contract 002: read tolerantly, written strictly."""

from __future__ import annotations

import json
import re
from enum import Enum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from bls_agent.core.codec import encode
from bls_agent.core.errors import DecodeError
from bls_agent.project.messages import (
    Command,
    Level,
    LogEntry,
    Outcome,
    OutcomeKind,
    Status,
)
from tests.corpus.loader import load_commands

NOW = 1768221300.0  # 2026-01-12T12:35:00Z
MIB = 1_048_576

# --- status

STATUSES = {
    Status.OFFLINE: "离线",
    Status.ONLINE: "在线",
    Status.ERROR: "报错",
    Status.FAULT: "故障",
}


def test_the_four_statuses_are_those_of_the_contract() -> None:
    """The values are the documented ones, to the byte, and there is no fifth."""
    assert {status: status.value for status in Status} == STATUSES
    for status, text in STATUSES.items():
        assert Status.decode(text.encode()) is status


def test_the_worst_status_wins() -> None:
    """故障 is worse than 报错, 报错 than 在线, and 离线 says least."""
    assert sorted(Status, key=lambda status: status.severity) == list(STATUSES)
    assert Status.worst(Status.ONLINE, Status.FAULT, Status.ERROR) is Status.FAULT
    assert Status.worst(Status.OFFLINE, Status.ONLINE) is Status.ONLINE


def test_a_status_is_read_with_blanks_around_it() -> None:
    """A newline that a shell put behind the value does no harm."""
    assert Status.decode(" 在线\n".encode()) is Status.ONLINE


@pytest.mark.parametrize(
    "payload", [b"", b"online", "在".encode(), "在线".encode("gbk"), b"\xff"], ids=repr
)
def test_another_status_is_refused(payload: bytes) -> None:
    """A value that is none of the four is not guessed at."""
    with pytest.raises(DecodeError) as caught:
        Status.decode(payload)
    assert caught.value.reason == "bad_status"


# --- levels


class Word(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    """Unlike a StrEnum: the str() of a member is no word of ours."""

    FATAL = "fatal"


LEVELS: dict[Level, list[object]] = {
    Level.DEBUG: ["debug", "DEBUG", "trace", "Verbose"],
    Level.INFO: ["info", " Info ", "notice", "", None, 20, True, [], {}, "nonsense"],
    Level.WARN: ["warn", "WARNING", "Warning"],
    Level.ERROR: ["error", " ERR\n", "CRITICAL", "fatal", Word.FATAL],
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_read_in_other_spellings(level: Level) -> None:
    """Common spellings of a level are understood; an unknown one counts as info."""
    assert {Level.parse(spelling) for spelling in LEVELS[level]} == {level}


# --- outcomes

KINDS = {
    "succeeded": "info",
    "failed": "error",
    "timed_out": "error",
    "rejected": "warn",
    "unknown": "warn",
    "discarded": "error",
    "cancelled": "warn",
    "duplicate": "warn",
    "abandoned": "error",
    "dead_lettered": "error",
}


def test_an_outcome_is_reported_at_its_level() -> None:
    """A success informs; what somebody has to look at is an error; the rest warns."""
    assert {kind.value: kind.level.value for kind in OutcomeKind} == KINDS


def outcome(kind: str, **fields: Any) -> Outcome:
    """Make the outcome of one command."""
    return Outcome(
        kind=OutcomeKind(kind),
        command="reload",
        command_id="cmd-1-abcdef",
        duration_ms=1.23456,
        **fields,
    )


OUTCOMES: dict[str, tuple[Outcome, str, dict[str, object]]] = {
    "succeeded": (
        outcome("succeeded", result={"rules": 42}),
        "command 'reload' succeeded",
        {"result": {"rules": 42}},
    ),
    "succeeded with nothing": (
        outcome("succeeded"),
        "command 'reload' succeeded",
        {"result": None},
    ),
    "failed": (
        outcome("failed", error={"type": "KeyError", "message": "'a'"}),
        "command 'reload' failed: 'a'",
        {"error": {"type": "KeyError", "message": "'a'"}},
    ),
    "timed out": (
        outcome("timed_out", error={"type": "TimeoutError", "message": ""}),
        "command 'reload' timed out",
        {"error": {"type": "TimeoutError", "message": ""}},
    ),
}


@pytest.mark.parametrize(
    ("ended", "message", "last"), OUTCOMES.values(), ids=list(OUTCOMES)
)
def test_an_outcome_is_a_record(
    ended: Outcome, message: str, last: dict[str, object]
) -> None:
    """The record has an English sentence and the documented fields in their order."""
    assert ended.message == message
    expected = {
        "commandId": "cmd-1-abcdef",
        "command": "reload",
        "outcome": ended.kind.value,
        "durationMs": 1.235,
        **last,
    }
    assert list(ended.metadata.items()) == list(expected.items())


def test_a_long_name_does_not_fill_the_record() -> None:
    """What a peer sent as a name is shown by its beginning only."""
    huge = Outcome(
        kind=OutcomeKind.FAILED,
        command="x" * MIB,
        command_id="1",
        error={"message": "y" * MIB},
    )
    assert len(huge.message) <= 2_000
    assert len(str(huge.metadata["command"])) <= 1_000


# --- records of the console list, as read

DOCUMENTED = (
    '{"timestamp": "2026-01-12T12:34:56.789Z", "level": "info", "message": "连接成功",'
    ' "metadata": {"module": "redis", "host": "127.0.0.1"}}'
)


def test_the_documented_record_is_read() -> None:
    """The contract's own example gives its four fields."""
    assert LogEntry.decode(DOCUMENTED.encode()) == LogEntry(
        timestamp="2026-01-12T12:34:56.789Z",
        level=Level.INFO,
        message="连接成功",
        metadata={"module": "redis", "host": "127.0.0.1"},
    )


TOLERATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "id": ({"message": "a", "id": 1}, {"message": "a"}),
    "capitals": ({"message": "a", "level": "WARNING"}, {"level": Level.WARN}),
    "no level": ({"message": "a"}, {"level": Level.INFO, "timestamp": ""}),
    "no message": ({"level": "error"}, {"message": "", "level": Level.ERROR}),
    "message of another type": ({"message": {"a": 1}}, {"message": '{"a":1}'}),
    "epoch as timestamp": ({"timestamp": 1768221300}, {"timestamp": "1768221300"}),
    "null": (
        {"timestamp": None, "level": None, "message": None, "metadata": None},
        {"timestamp": "", "message": "", "metadata": {}},
    ),
    "metadata of another type": ({"metadata": [1]}, {"metadata": {"metadata": [1]}}),
}


@pytest.mark.parametrize(
    ("fields", "expected"), TOLERATED.values(), ids=list(TOLERATED)
)
def test_a_record_is_read_tolerantly(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Absent, additional and oddly typed fields do not hide a record."""
    entry = LogEntry.decode(json.dumps(fields).encode())
    assert {name: getattr(entry, name) for name in expected} == expected
    assert entry.valid


@pytest.mark.parametrize(
    ("payload", "text", "reason"),
    [
        (b"plain text", "plain text", "not_json"),
        (b'["a"]', '["a"]', "not_an_object"),
        (b"a\xff", "a\\xff", "not_utf8"),
        (b"", "", "not_json"),
    ],
    ids=["text", "array", "bytes", "nothing"],
)
def test_what_is_no_record_is_shown_as_it_is(
    payload: bytes, text: str, reason: str
) -> None:
    """Whatever somebody pushed into the list can be read, and is marked."""
    entry = LogEntry.decode(payload)
    assert (entry.message, entry.valid) == (text, False)
    assert entry.metadata == {"invalid": reason}
    assert not entry.is_gap


IDENTITIES: dict[str, tuple[object, tuple[str, int | None]]] = {
    "documented": ("host-1-ab#7", ("host-1-ab", 7)),
    "sign in the name": ("a#b#7", ("a#b", 7)),
    "newline in the name": ("a\nb#7", ("a\nb", 7)),
    "no number": ("host", ("", None)),
    "no digits": ("host#seven", ("", None)),
    "other digits": ("host#\u0667", ("", None)),
    "no name": ("#7", ("", None)),
    "a number": (7, ("", None)),
    "a list": (["host#7"], ("", None)),
    "absent": (None, ("", None)),
    "endless digits": ("host#" + "7" * 5_000, ("", None)),
}


@pytest.mark.parametrize(
    ("agent", "expected"), IDENTITIES.values(), ids=list(IDENTITIES)
)
def test_a_record_tells_who_wrote_it(
    agent: object, expected: tuple[str, int | None]
) -> None:
    """Instance and number come from metadata.agent, where it has that form."""
    entry = LogEntry.decode(json.dumps({"metadata": {"agent": agent}}).encode())
    assert (entry.instance, entry.number) == expected


@pytest.mark.parametrize(
    ("ended", "message", "last"), OUTCOMES.values(), ids=list(OUTCOMES)
)
def test_an_outcome_is_read_back(
    ended: Outcome, message: str, last: dict[str, object]
) -> None:
    """The console's side gets the outcome that the agent reported."""
    record = {"message": message, "metadata": ended.metadata}
    read = LogEntry.decode(json.dumps(record).encode()).outcome
    assert read is not None
    assert (read.kind, read.command, read.command_id) == (
        ended.kind,
        ended.command,
        ended.command_id,
    )
    assert (read.result, read.error) == (ended.result, ended.error)
    assert read.duration_ms == pytest.approx(ended.duration_ms, abs=0.001)


NO_OUTCOMES: list[object] = [None, "", "done", "SUCCEEDED", 1, True, [], ["failed"], {}]


@pytest.mark.parametrize("kind", NO_OUTCOMES, ids=repr)
def test_a_record_that_reports_no_outcome_has_none(kind: object) -> None:
    """A user's own field called outcome is not taken for one of ours."""
    record = {"metadata": {"outcome": kind}}
    assert LogEntry.decode(json.dumps(record).encode()).outcome is None


def test_a_log_record_of_a_handler_forges_no_outcome() -> None:
    """``agent.log.info("…", outcome="failed")`` in a handler carries the command's id."""
    record = {"metadata": {"commandId": "cmd-1", "outcome": "failed"}}
    assert LogEntry.decode(json.dumps(record).encode()).outcome is None


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
)
kinds = st.sampled_from([kind.value for kind in OutcomeKind]) | anything
foreign_records = st.fixed_dictionaries(
    {},
    optional={
        "timestamp": anything,
        "level": anything,
        "message": anything,
        "metadata": anything
        | st.fixed_dictionaries(
            {},
            optional={
                "agent": anything,
                "outcome": kinds,
                "durationMs": anything,
                "command": anything,
                "commandId": anything,
                "result": anything,
                "error": anything,
                "gap": anything,
            },
        ),
    },
).map(lambda record: json.dumps(record).encode())


@given(foreign_records | st.binary())
def test_every_record_can_be_read(payload: bytes) -> None:
    """No element of a console list makes reading it raise, nor any of its fields."""
    entry = LogEntry.decode(payload)
    for told in (entry.instance, entry.number, entry.outcome, entry.is_gap):
        assert repr(told)


# --- commands


def test_a_command_is_written_as_documented() -> None:
    """The bytes are the contract's example: its fields, their order, nothing else."""
    command = Command.create(
        "reload", {"force": True}, now=NOW, id="cmd-1700000000000-abc123"
    )
    assert command.encode() == (
        b'{"id":"cmd-1700000000000-abc123","timestamp":"2026-01-12T12:35:00.000Z",'
        b'"source":"BLS Project Console","command":"reload","args":{"force":true}}'
    )


def test_an_id_is_made_up() -> None:
    """A command gets an id of the contract's form when nobody gives one."""
    made = Command.create("reload", now=NOW).id
    assert re.fullmatch(r"cmd-1768221300000-[0-9a-z]{6}", made)


@pytest.mark.parametrize(("given_id", "used"), [(0, "0"), (7, "7"), ("x", "x")])
def test_an_id_may_be_an_integer(given_id: Any, used: str) -> None:
    """Also 0, which is no absent id."""
    assert Command.create("reload", now=NOW, id=given_id).id == used


def test_arguments_may_be_any_mapping() -> None:
    """Not only a dict, which alone JSON encoders know."""
    assert Command.create("a", MappingProxyType({"b": 1}), now=NOW).args == {"b": 1}


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
arguments = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | names,
)


@given(names, arguments)
def test_a_command_is_read_back(name: str, args: dict[str, Any]) -> None:
    """What one side writes the other side reads."""
    command = Command.create(name, args, now=NOW)
    assert Command.decode(command.encode(), now=0.0, limit=MIB) == command


READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "command alone": ({}, {"timestamp": "", "source": "", "args": {}}),
    "null": ({"timestamp": None, "source": None, "args": None}, {"args": {}}),
    "unknown fields": ({"sig": "v1=0", "x": []}, {"args": {}}),
    "number as id": ({"id": 7}, {"id": "7"}),
    "large number as id": ({"id": 2**64}, {"id": "18446744073709551616"}),
    "odd timestamp": ({"timestamp": 1768221300}, {"timestamp": ""}),
    "odd source": ({"source": ["a"]}, {"source": ""}),
    "exact integers": ({"args": {"n": 2**64}}, {"args": {"n": 2**64}}),
}


@pytest.mark.parametrize(("fields", "expected"), READ.values(), ids=list(READ))
def test_a_command_is_read_tolerantly(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Only the command's name is needed; odd fields beside it do not refuse it."""
    payload = json.dumps({"command": "reload", **fields}).encode()
    command = Command.decode(payload, now=NOW, limit=MIB)
    assert {name: getattr(command, name) for name in expected} == expected
    assert command.command == "reload"


@pytest.mark.parametrize("given_id", [None, "", True, 1.5, [], {}], ids=repr)
def test_a_command_without_a_usable_id_gets_one(given_id: object) -> None:
    """Every command can be traced, also one whose sender gave no id."""
    payload = json.dumps({"command": "reload", "id": given_id}).encode()
    made = Command.decode(payload, now=NOW, limit=MIB).id
    assert made.startswith("cmd-1768221300000-")


def test_the_corpus_is_read_as_its_index_says() -> None:
    """A message is discarded for the reason in the index, and else it is a command."""
    for item in load_commands():
        if item.slow:
            continue
        try:
            assert Command.decode(item.payload, now=NOW, limit=MIB).id, item.name
            reason = None
        except DecodeError as error:
            reason = error.reason
        assert reason == item.reason, item.name


def test_the_arguments_of_a_command_are_not_in_its_repr() -> None:
    """A program may print a command; its arguments may hold secrets."""
    command = Command.create("login", {"password": "hunter2"}, now=1.0)
    assert "login" in repr(command)
    assert "hunter2" not in repr(command)


def test_an_outcome_names_the_sender() -> None:
    """The record carries the command's source, and is read back with it."""
    outcome = Outcome(
        kind=OutcomeKind.SUCCEEDED, command="a", command_id="1", source="bls-agent cli"
    )
    assert list(outcome.metadata) == [
        *("commandId", "command", "source", "outcome", "durationMs", "result")
    ]
    record = encode({"message": outcome.message, "metadata": outcome.metadata})
    assert LogEntry.decode(record).outcome == outcome
    silent = Outcome(kind=OutcomeKind.SUCCEEDED, command="a", command_id="1")
    assert "source" not in silent.metadata
    long = Outcome(
        kind=OutcomeKind.SUCCEEDED, command="a", command_id="1", source="密" * 999
    )
    assert len(long.metadata["source"].encode()) <= 1_000
