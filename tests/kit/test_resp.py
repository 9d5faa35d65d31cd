"""Where requests and replies begin and end, however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from bls_agent.connection.endpoint import packer
from tests.kit import Direction
from tests.kit.resp import Conversation, Piece, Scanner

REPLIES = [
    b"+OK\r\n",
    b"-ERR no $5 *3\r\n",
    b":12\r\n",
    b"$5\r\n*9\r\n1\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n$1\r\nq\r\n$2\r\n\r\n\r\n",
    b"*2\r\n*1\r\n:1\r\n*2\r\n+a\r\n$-1\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
    b"~1\r\n+a\r\n",
    b"|1\r\n+ttl\r\n:9\r\n$1\r\nx\r\n",
    b"=5\r\ntxt:a\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
]
REQUESTS = [("PING",), ("set", "k", "v\r\n*1\r\n"), ("BLPOP", "q", "0"), ("GET", "")]


def frames(scanner: Scanner, data: bytes, cuts: list[int]) -> list[bytes]:
    """Feed the data cut at these places; give the frames, put together again."""
    found: list[bytes] = []
    current = b""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        for part, ends in scanner.feed(data[start:end]):
            current += part
            if ends:
                found.append(current)
                current = b""
    return [*found, current] if current else found


@given(st.lists(st.sampled_from(REPLIES)), st.lists(st.integers(0, 500)))
def test_replies_are_found_however_they_are_cut(
    replies: list[bytes], cuts: list[int]
) -> None:
    """The frames are the replies, no byte is lost or moved."""
    assert frames(Scanner(), b"".join(replies), cuts) == replies


@given(st.lists(st.sampled_from(REQUESTS)), st.lists(st.integers(0, 500)))
def test_requests_are_found_with_their_command(
    requests: list[tuple[str, ...]], cuts: list[int]
) -> None:
    """Each piece knows its command and its place, and all bytes are there."""
    data = b"".join(map(packer(), requests))
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    conversation = Conversation()
    pieces: list[Piece] = []
    for start, end in itertools.pairwise(places):
        pieces += conversation.feed(Direction.REQUESTS, data[start:end])
    assert b"".join(piece.data for piece in pieces) == data
    commands = [piece.command for piece in pieces if piece.ends]
    assert commands == [words[0].upper() for words in requests]
    place = 0
    for piece in pieces:
        assert piece.offset == place
        place = 0 if piece.ends else place + len(piece.data)


def test_a_request_is_kept_until_its_command_is_known() -> None:
    """Nothing goes on before it is clear whether it is what a rule waits for."""
    conversation = Conversation()
    assert conversation.feed(Direction.REQUESTS, b"*2\r\n$5\r\nBLP") == []
    (piece,) = conversation.feed(Direction.REQUESTS, b"OP\r")
    assert piece == Piece(
        Direction.REQUESTS, b"*2\r\n$5\r\nBLPOP\r", "BLPOP", 0, ends=False
    )


def test_an_inline_request_has_a_command_too() -> None:
    """As people type it over telnet."""
    (piece,) = Conversation().feed(Direction.REQUESTS, b"ping hello\r\n")
    assert (piece.command, piece.ends) == ("PING", True)


def test_a_reply_belongs_to_the_oldest_request() -> None:
    """In order, over a pipeline, and a reply in parts belongs to one request."""
    conversation = Conversation()
    requests = [packer()(one) for one in (("BLPOP", "q", 0), ("LPOP", "q", 3))]
    conversation.feed(Direction.REQUESTS, b"".join(requests))
    first = conversation.feed(Direction.REPLIES, b"*2\r\n$1\r\nq\r\n")
    rest = conversation.feed(Direction.REPLIES, b"$1\r\nx\r\n*-1\r\n+?\r\n")
    found = [(piece.command, piece.offset, piece.ends) for piece in [*first, *rest]]
    assert found == [
        ("BLPOP", 0, False),
        ("BLPOP", 11, True),
        ("LPOP", 0, True),
        ("", 0, True),
    ]


def test_what_is_pushed_answers_nothing() -> None:
    """A RESP3 push between request and reply does not shift the replies."""
    conversation = Conversation()
    conversation.feed(Direction.REQUESTS, packer()(("GET", "k")))
    pieces = conversation.feed(Direction.REPLIES, b">2\r\n+invalidate\r\n_\r\n+v\r\n")
    assert [piece.command for piece in pieces] == ["", "GET"]


@pytest.mark.parametrize("junk", [b"\r\n", b"*x\r\n", b"$-5\r\n", b"\xff\r\n"])
def test_junk_is_a_frame_of_its_own(junk: bytes) -> None:
    """What is no RESP goes on, and the next request is understood."""
    pieces = Conversation().feed(Direction.REQUESTS, junk + b"PING\r\n")
    assert b"".join(piece.data for piece in pieces) == junk + b"PING\r\n"
    assert pieces[-1].command == "PING"
