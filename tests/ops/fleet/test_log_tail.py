"""What is new in a list, seen in bounded windows: exact where it can be, else said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from bls_agent.core.codec import format_timestamp
from bls_agent.ops.fleet.log_tail import MOST, MOST_FIRST, LogTail, News
from bls_agent.project.log.record import LogRecord, id_prefix
from bls_agent.project.messages import Level

ROOM = 1_000_000


def numbered(first: int, last: int, instance: str = "a") -> list[bytes]:
    """Records of an agent of ours."""
    made: list[bytes] = []
    for number in range(first, last + 1):
        record = LogRecord(Level.INFO, f"{instance}{number}", {}, now=1.0)
        record.number(id_prefix(instance), number)
        made.append(record.payload)
    return made


def plain(first: int, last: int) -> list[bytes]:
    """Records of somebody else."""
    return [b'{"message":"%d"}' % number for number in range(first, last + 1)]


@dataclass
class Watched:
    """A list with a cap, and who watches it."""

    cap: int = 10**9
    items: list[bytes] = field(default_factory=list)
    tail: LogTail = field(default_factory=LogTail)
    read: int = 0

    def push(self, records: Sequence[bytes]) -> None:
        self.items = [*self.items, *records][-self.cap :]

    def look(self, room: int = ROOM, since: float = 0.0) -> News | None:
        """Take one look, as the reader does."""
        last = self.items[-1] if self.items else None
        wanted = self.tail.wants(len(self.items), last, room)
        if not wanted:
            return None
        while True:
            self.read += wanted
            length = len(self.items)
            assert wanted <= (MOST if self.tail.started else MOST_FIRST)
            news = self.tail.take(self.items[-wanted:], length, since)
            if news is not None:
                return news
            assert self.tail.size > wanted
            wanted = self.tail.size


def timed(*times: float) -> list[bytes]:
    """Records of these Unix times."""
    form = b'{"timestamp":"%s"}'
    return [form % format_timestamp(time).encode() for time in times]


def count(news: News | None) -> tuple[int, bool]:
    """How many are new, and whether all of them are there."""
    assert news is not None
    return len(news.entries), news.complete


@pytest.mark.parametrize("make", [numbered, plain], ids=["ours", "foreign"])
@given(
    growths=st.lists(st.integers(0, 60), max_size=20),
    cap=st.sampled_from([10**9, 300]),
)
@settings(deadline=None)
def test_a_moderate_flow_is_counted_exactly(
    make: object, growths: list[int], cap: int
) -> None:
    """Each new record is counted once, trimmed list or not, and nothing is read at rest."""
    assert callable(make)
    watched = Watched(cap)
    watched.push(make(1, 250))
    watched.look()
    last = 250
    for growth in growths:
        watched.push(make(last + 1, last + growth))
        news = watched.look()
        if not growth:
            assert news is None
            continue
        assert count(news) == (growth, True)
        assert news
        expected = [str(number) for number in range(last + 1, last + growth + 1)]
        assert [entry.message.lstrip("a") for entry in news.entries] == expected
        last += growth


def test_nothing_is_read_at_rest() -> None:
    """Unchanged, cut from the front, or deleted: no window is read."""
    watched = Watched()
    watched.push(plain(1, 100))
    watched.look()
    read = watched.read
    assert watched.look() is None
    watched.items = watched.items[50:]
    assert watched.look() is None
    watched.items = []
    assert watched.look() is None
    assert watched.read == read
    watched.push(plain(101, 103))
    assert count(watched.look()) == (3, True)


def test_the_same_record_again_and_again() -> None:
    """Equal records without ids are counted by the growth of the list."""
    watched = Watched()
    watched.push([b"tick"] * 10)
    watched.look()
    watched.push([b"tick"] * 7)
    assert count(watched.look()) == (7, True)


def test_equal_ends_are_not_taken_for_one_another() -> None:
    """A list that has grown has new records, though it ends as it ended before."""
    watched = Watched()
    for turn in range(3):
        watched.push([b"tick"] * 600 + [b"end"])
        news = watched.look(room=200)
        number, complete = count(news)
        assert not complete
        assert number >= (64 if not turn else 4)


@pytest.mark.parametrize("make", [numbered, plain], ids=["ours", "foreign"])
@pytest.mark.parametrize("cap", [10**9, 500])
def test_of_a_flood_the_newest_are_seen(make: object, cap: int) -> None:
    """Of 5,000 records between two looks a window is read, and the rest is said to be missing."""
    assert callable(make)
    watched = Watched(cap)
    watched.push(make(1, 100))
    watched.look()
    watched.push(make(101, 5_100))
    number, complete = count(watched.look(room=4_000))
    assert not complete
    assert 0 < number < 300
    watched.push(make(5_101, 5_103))
    assert count(watched.look()) == (3, True)


def test_bytes_are_bounded() -> None:
    """Of long records few are read, and of any at most so many."""
    watched = Watched()
    watched.push([b"x" * 60_000 + b"%d" % number for number in range(100)])
    watched.look(room=64_000)
    assert watched.read == 4
    watched.push([b"y" * 60_000 + b"%d" % number for number in range(100)])
    watched.look(room=64_000)
    assert watched.read == 8


@pytest.mark.parametrize(
    ("number", "since", "room", "expected"),
    [
        (65, 0.0, ROOM, (65, True)),  # the whole list
        (300, 0.0, ROOM, (300, True)),
        (5_000, 4_900.0, ROOM, (512, True)),  # back to that time
        (5_000, 4_000.0, ROOM, (4_096, True)),
        (20_000, 4_000.0, ROOM, (10_000, False)),
        (5_000, 0.0, 10_000, (250, False)),  # as many as the bytes allow
    ],
)
def test_the_first_window_grows(
    number: int, since: float, room: int, expected: tuple[int, bool]
) -> None:
    """It covers the list, or reaches back to a time, or is said to be incomplete."""
    watched = Watched()
    watched.push(timed(*map(float, range(number))))
    news = watched.look(room, since)
    assert news
    assert news.first
    assert count(news) == expected


def test_a_list_that_was_replaced_is_another_list() -> None:
    """A server came back with an older copy: its records are not new ones of the old list."""
    watched = Watched()
    watched.push(timed(*map(float, range(2_000))))
    watched.look()
    watched.items = timed(*map(float, range(500)))
    news = watched.look()
    assert news
    assert news.first
    assert count(news) == (500, True)
    watched.push(timed(500.0))
    assert count(watched.look()) == (1, True)
