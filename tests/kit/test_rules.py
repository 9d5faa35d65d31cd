"""What conditions and rules mean for bytes, without a socket."""

from __future__ import annotations

import random

import pytest

from bls_agent.testing.link import Act
from tests.kit import (
    Armed,
    Cut,
    Direction,
    Lose,
    Rule,
)
from tests.kit.resp import Piece
from tests.kit.rules import RuleBook

REPLY = b"*2\r\n$1\r\nq\r\n$1\r\nx\r\n"


def pieces(data: bytes, size: int, command: str = "BLPOP") -> list[Piece]:
    """One reply, read in parts of this size."""
    return [
        Piece(
            Direction.REPLIES,
            data[start : start + size],
            command,
            start,
            ends=start + size >= len(data),
        )
        for start in range(0, len(data), size)
    ]


def run(rule: Rule, *replies: list[Piece], connection: int = 1) -> list[Act]:
    """Give what becomes of replies under one rule."""
    book = RuleBook(random.Random(1), [Armed(rule)])
    return [
        act
        for reply in replies
        for piece in reply
        for act in book.decide(connection, piece)[0]
    ]


def sent(acts: list[Act]) -> bytes:
    return b"".join(act for act in acts if isinstance(act, bytes))


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize("at", range(len(REPLY) + 3))
def test_a_cut_lets_exactly_so_many_bytes_through(at: int, size: int) -> None:
    """However the reply is read; beyond its length it breaks at the end."""
    acts = run(Cut(at=at), pieces(REPLY, size))
    assert None in acts
    assert sent(acts[: acts.index(None)]) == REPLY[:at]


def test_a_cut_does_not_wait_for_more() -> None:
    """It breaks with the last byte that gets through, not when the next one comes."""
    first, *_ = pieces(REPLY, 4)
    assert run(Cut(at=4), [first]) == [REPLY[:4], None]


def test_a_rule_waits_for_its_command() -> None:
    """Other replies get through untouched."""
    acts = run(
        Lose(command="BLPOP"),
        pieces(b"+OK\r\n", 2, "SET"),
        pieces(REPLY, 5),
        pieces(b":1\r\n", 9, "RPUSH"),
        pieces(REPLY, 100),
    )
    assert sent(acts) == b"+OK\r\n:1\r\n" + REPLY


def test_a_rule_does_not_begin_in_the_middle() -> None:
    """A reply whose first bytes got through is not half lost."""
    book = RuleBook(random.Random(1))
    first, *rest = pieces(REPLY, 4)
    assert book.decide(1, first)[0] == [first.data]
    book.armed.append(Armed(Lose()))
    assert [book.decide(1, piece)[0] for piece in rest] == [[p.data] for p in rest]


def test_connections_are_kept_apart() -> None:
    """A rule that has begun on one connection leaves the other one alone."""
    book = RuleBook(random.Random(1), [Armed(Lose())])
    mine, theirs = pieces(REPLY, 4), pieces(b"+OK\r\n", 100, "SET")
    assert book.decide(1, mine[0])[0] == []
    assert book.decide(2, theirs[0])[0] == [b"+OK\r\n"]
    assert book.decide(1, mine[1])[0] == []


def test_times_and_chance() -> None:
    """So often, and drawn from the generator that was given."""
    replies = [pieces(b"+OK\r\n", 9) for _ in range(100)]
    assert sent(run(Lose(times=3), *replies)) == b"+OK\r\n" * 97
    assert sent(run(Lose(times=None), *replies)) == b""
    some = sent(run(Lose(times=None, chance=0.5), *replies))
    assert some == sent(run(Lose(times=None, chance=0.5), *replies))
    assert 20 < len(some) / 5 < 80


def test_requests_and_replies_are_told_apart() -> None:
    """A rule for requests does not touch replies."""
    rule = Lose(direction=Direction.REQUESTS)
    assert sent(run(rule, pieces(REPLY, 100))) == REPLY
