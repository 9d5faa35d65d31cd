"""What a process holds, compared with what stands in its list: no Redis."""

from __future__ import annotations

import pytest

from bls_agent.project.receive.inflight import InFlight, Stage
from bls_agent.project.receive.receiver import Message


def holding(*payloads: bytes) -> tuple[InFlight, list[Message]]:
    """Hold messages with these bytes."""
    holdings = InFlight()
    messages = [Message(payload) for payload in payloads]
    for message in messages:
        holdings.take(message, id=message.payload.decode())
    return holdings, messages


def gone(holdings: InFlight, messages: list[Message]) -> list[bool]:
    found = [holdings.find(message) for message in messages]
    return [held is not None and held.gone for held in found]


@pytest.mark.parametrize(
    ("held", "missing", "lost"),
    [
        ([], [], []),
        ([b"a"], [], [False]),
        ([b"a"], [b"a"], [True]),
        ([b"a", b"b"], [b"a"], [True, False]),
        ([b"a", b"a"], [b"a"], [False, True]),
    ],
)
def test_missing(held: list[bytes], missing: list[bytes], lost: list[bool]) -> None:
    """What is missing was reclaimed; twins count."""
    holdings, messages = holding(*held)
    holdings.mark_missing(missing)
    assert gone(holdings, messages) == lost


def test_of_twins_the_one_that_has_ended_is_missing_first() -> None:
    """Its ack may have been heard; the one that runs stands there still."""
    holdings, messages = holding(b"a", b"a")
    holdings.end(messages[0])
    holdings.mark_missing([b"a"])
    assert gone(holdings, messages) == [True, False]


def test_an_id_in_work_counts_as_long_as_it_stands_in_our_list() -> None:
    """A reclaimed command does not make a duplicate of the one that comes again."""
    holdings, _ = holding(b"a")
    assert holdings.has_id("a")
    holdings.mark_missing([b"a"])
    assert not holdings.has_id("a")
    assert not holdings.payloads(*Stage)


def test_stages() -> None:
    """What goes back and what stays is chosen by how far it has come."""
    holdings, messages = holding(b"a", b"b", b"c")
    started = holdings.find(messages[1])
    assert started is not None
    started.stage = Stage.STARTED
    holdings.end(messages[2])
    assert list(holdings.ended) == messages[2:]
    assert holdings.payloads(Stage.TAKEN, Stage.STARTED) == [b"a", b"b"]
    holdings.forget_all()
    assert holdings.payloads(*Stage) == []
    assert all(message in holdings for message in messages)


def test_an_id_that_several_have_counts_until_the_last_of_them() -> None:
    """Twins of one id are held one by one, whatever becomes of each."""
    holdings, messages = holding(b"a", b"a", b"a")
    holdings.drop(messages[0])
    holdings.drop(messages[0])
    assert holdings.has_id("a")
    holdings.mark_missing([b"a"])
    holdings.drop(messages[1])
    assert not holdings.has_id("a")
    holdings.forget_all()
    holdings.drop(messages[2])
    assert not len(holdings)
