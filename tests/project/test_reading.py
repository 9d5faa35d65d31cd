"""Reading the console list: what is new in its tail; places in it, found again or gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from bls_agent import ConfigurationError
from bls_agent.project.log.reading import (
    Follower,
    LogPage,
    LogPlace,
    cut_page,
    gap_entry,
)
from bls_agent.project.log.record import LogRecord, id_prefix
from bls_agent.project.messages import Level, LogEntry

__all__ = []


def record(number: int, instance: str = "a", text: str = "") -> bytes:
    """Make the bytes of a numbered record."""
    made = LogRecord(Level.INFO, text or f"{instance}{number}", {}, now=1.0)
    made.number(id_prefix(instance), number)
    return made.payload


def records(first: int, last: int, instance: str = "a") -> list[bytes]:
    """Make consecutive numbered records."""
    return [record(number, instance) for number in range(first, last + 1)]


def plain(first: int, last: int) -> list[bytes]:
    """Make records as other programs write them, without numbers."""
    return [b'{"message":"line %d"}' % number for number in range(first, last + 1)]


def show(entries: Sequence[LogEntry] | None) -> list[str | int | None]:
    """Show entries by their messages, and gaps by what they say is missing."""
    assert entries is not None
    shown: list[str | int | None] = []
    for entry in entries:
        if not entry.is_gap:
            shown.append(entry.message)
            continue
        gap = entry.metadata["gap"]
        assert isinstance(gap, dict)
        missing = gap["missing"]
        assert isinstance(missing, int | None)
        shown.append(missing)
    return shown


def started(listed: list[bytes]) -> Follower:
    """Make a follower that has seen a whole list."""
    follower = Follower()
    follower.start(listed, len(listed))
    return follower


def look(follower: Follower, listed: list[bytes]) -> list[str | int | None]:
    """Show what is new in a whole list."""
    return show(follower.find_new(listed, len(listed)))


LOOKS: dict[str, tuple[list[bytes], list[bytes], list[str | int | None]]] = {
    "nothing new": (records(1, 3), records(1, 3), []),
    "from the beginning": ([], records(1, 2), ["a1", "a2"]),
    "from the beginning, without ids": ([], plain(1, 2), ["line 1", "line 2"]),
    "grown": (records(1, 3), records(1, 5), ["a4", "a5"]),
    "grown, without ids": (plain(1, 3), plain(1, 5), ["line 4", "line 5"]),
    "grown and trimmed": (records(1, 3), records(3, 5), ["a4", "a5"]),
    "grown and trimmed, without ids": (plain(1, 3), plain(3, 4), ["line 4"]),
    "trimmed as far as seen": (records(1, 3), records(4, 5), ["a4", "a5"]),
    "trimmed further": (records(1, 3), records(6, 7), [2, "a6", "a7"]),
    "trimmed further, without ids": (
        plain(1, 3),
        plain(5, 6),
        [None, "line 5", "line 6"],
    ),
    "trimmed further, another process": (
        records(1, 3),
        [record(57, "b")],
        [None, "b57"],
    ),
    "never written": (records(1, 3), [*records(1, 3), *records(6, 6)], [2, "a6"]),
    "another process": (records(1, 2), [*records(1, 2), record(7, "b")], ["b7"]),
    "two processes, interleaved": (
        [record(1, "a"), record(1, "b")],
        [record(1, "a"), record(1, "b"), record(2, "b"), record(2, "a")],
        ["b2", "a2"],
    ),
    "written twice": (records(1, 2), [*records(1, 3), record(3)], ["a3"]),
    "a seen record, written again": (records(1, 2), [*records(1, 2), record(2)], []),
    "the last line again, trimmed": (
        [*plain(1, 1), b"tick"],
        [b"tick", *plain(2, 2), b"tick"],
        ["line 2", "tick"],
    ),
    "a line among records": (
        records(1, 2),
        [*records(1, 2), *plain(1, 1), record(3)],
        ["line 1", "a3"],
    ),
    "started again": (
        records(499, 500),
        [*records(499, 500), record(1, text="again 1"), record(2, text="again 2")],
        ["again 1", "again 2"],
    ),
    "started again, trimmed": (
        records(499, 500),
        [record(2, text="again 2"), record(3, text="again 3")],
        [None, "again 2", "again 3"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "listed", "new"), LOOKS.values(), ids=list(LOOKS))
def test_a_look_gives_what_is_new(
    seen: list[bytes], listed: list[bytes], new: list[str | int | None]
) -> None:
    """From the whole list come the new records in order, and what is missing."""
    follower = started(seen)
    assert look(follower, listed) == new
    assert look(follower, listed) == []


def test_a_follower_remembers_a_limited_number_of_processes() -> None:
    """A service that restarts for ever has a new name each time; the newest are kept."""
    follower = started([])
    listed = [record(1, f"process-{number}") for number in range(3_000)]
    look(follower, listed)
    assert len(follower._latest) == 1_000
    assert look(follower, [*listed, record(3, "process-2999")]) == [1, "process-29993"]


@pytest.mark.parametrize(
    "seen", [[], plain(1, 3), records(1, 3)], ids=["nothing seen", "no ids", "ids"]
)
def test_a_short_window_is_not_guessed_at(seen: list[bytes]) -> None:
    """Where the place is not in the window, a longer window is asked for."""
    follower = started(seen)
    listed = [*seen, *records(4, 20)]
    assert follower.find_new(listed[-5:], len(listed)) is None
    expected = [f"a{number}" for number in range(4, 21)]
    missing_before = [] if seen else [None]
    assert look(follower, listed) == [*missing_before, *expected]


def test_a_short_window_that_holds_the_place_is_enough() -> None:
    """A window may begin anywhere, as long as the last seen record is in it."""
    follower = started(records(1, 100))
    found = follower.find_new(records(100, 102), length=102)
    assert show(found) == ["a101", "a102"]


EQUAL: dict[str, tuple[list[bytes], list[bytes]]] = {
    "among others": ([*plain(1, 1), b"tick"], [*plain(2, 2), b"tick", *plain(3, 3)]),
    "nothing else": ([b"tick"] * 3, [b"tick"] * 2),
    "nothing else, many": ([b"tick"] * 100, [b"tick"] * 100),
}


@pytest.mark.parametrize(("seen", "fresh"), EQUAL.values(), ids=list(EQUAL))
def test_equal_lines_are_all_given(seen: list[bytes], fresh: list[bytes]) -> None:
    """A line that was there before is new when it is written again."""
    follower = started(seen)
    expected = [LogEntry.decode(line).message for line in fresh]
    assert look(follower, [*seen, *fresh]) == expected
    assert look(follower, [*seen, *fresh]) == []


@pytest.mark.parametrize("seen", [records(1, 3), plain(1, 3)], ids=["ids", "no ids"])
def test_a_list_that_vanished_is_told_once_at_most(seen: list[bytes]) -> None:
    """A deleted list is one gap, and what is written afterwards is new."""
    follower = started(seen)
    assert look(follower, []) in ([], [None])
    assert look(follower, []) == []
    assert look(follower, plain(7, 8)) == ["line 7", "line 8"]


@pytest.mark.parametrize("missing", [3, None])
def test_a_gap_says_how_many(missing: int | None) -> None:
    """The entry in the place of missing records is recognised and says the number."""
    entry = gap_entry(missing)
    assert entry.is_gap
    assert show([entry]) == [missing]
    assert entry.message == f"records missing here: {missing or 'some'}"


writers = st.lists(st.sampled_from(["a", "b", "line"]), max_size=12)


@given(st.integers(1, 8), writers, st.lists(writers, max_size=6))
def test_following_misses_nothing_unnoticed(
    cap: int, before: list[str], steps: list[list[str]]
) -> None:
    """Of a capped list every record is given once, in order, or a gap is.

    Two numbered processes and one that writes plain lines push any number of records
    between two looks; each look begins with a window of two records.
    """
    counts = dict.fromkeys(("a", "b", "line"), 0)

    def push(names: list[str]) -> list[bytes]:
        made: list[bytes] = []
        for name in names:
            counts[name] += 1
            number = counts[name]
            made += plain(number, number) if name == "line" else [record(number, name)]
        return made

    def writers_of(payloads: list[bytes]) -> list[str]:
        return [LogEntry.decode(payload).instance for payload in payloads]

    listed = push(before)[-cap:]
    follower = started(listed)
    known = set(writers_of(listed))
    unseen: Counter[str] = Counter()
    for names in steps:
        fresh = push(names)
        kept, lost = fresh[-cap:], fresh[:-cap]
        had_any, listed = bool(listed), [*listed, *fresh][-cap:]
        size = 2
        while (found := follower.find_new(listed[-size:], len(listed))) is None:
            assert size < len(listed), "the whole list is enough"
            size *= 2
        told = show(found)
        assert [message for message in told if isinstance(message, str)] == [
            LogEntry.decode(payload).message for payload in kept
        ]
        unseen.update(writers_of(lost))
        visible = set(writers_of(kept))
        missing = {name: unseen.pop(name, 0) for name in visible if name}
        counted = sum(missing[name] for name in visible & known if name)
        assert sum(gap for gap in told if isinstance(gap, int)) == counted
        if had_any and lost and not counted and "" in visible:
            assert None in told
        if had_any and len(fresh) < cap:
            assert None not in told
        if not had_any and any(missing[name] for name in visible - known if name):
            assert None in told, "what was trimmed before the first look is told"
        known |= visible


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (records(1, 3), [12, "a16", "a17"]),
        (plain(1, 3), [None, "a16", "a17"]),
        ([], [None, "a16", "a17"]),
    ],
    ids=["ids", "no ids", "nothing seen"],
)
def test_the_longest_window_is_enough(
    seen: list[bytes], told: list[str | int | None]
) -> None:
    """Where no longer one may be read, what is not in it is a gap; then it goes on."""
    follower = started(seen)
    listed = [*seen, *records(4, 17)]
    found = follower.find_new(listed[-2:], len(listed), longest=True)
    assert list(dict.fromkeys(show(found))) == told
    assert look(follower, [*listed, *records(18, 18)]) == ["a18"]


def lines(first: int, last: int) -> list[bytes]:
    """Records that differ."""
    return [b'{"message":"%d"}' % number for number in range(first, last + 1)]


def numbers_on(page: LogPage) -> list[int]:
    """A page by its messages."""
    return [int(entry.message) for entry in page.entries]


@given(
    held=st.integers(1, 40),
    at=st.integers(0, 39),
    cut=st.integers(0, 39),
    grown=st.integers(0, 40),
)
@settings(deadline=None)
def test_a_place_is_found_wherever_it_has_moved(
    held: int, at: int, cut: int, grown: int
) -> None:
    """A record is found again after any growth and any cut, and not if it was cut off."""
    at = min(at, held - 1)
    before = lines(1, held)
    place = LogPlace.decode(LogPlace.of(before[at:], at).encode())
    after = lines(1, held + grown)[cut:]
    assert place.find_in(after) == (at - cut if at >= cut else None)


def test_equal_records_are_told_apart_by_those_behind_them() -> None:
    """Of records that say the same the one with the same neighbours is meant."""
    items = [b"%d" % at if at % 5 == 0 else b"tick" for at in range(60)]
    for index in range(52):
        assert LogPlace.of(items[index:], index).find_in(items) == index


def test_of_equal_places_the_one_nearest_to_where_it_was() -> None:
    """Where nothing tells records apart the place has not moved, as far as one can see."""
    items = [b"tick"] * 40
    assert LogPlace.of(items[20:], 20).find_in(items[:28]) == 20


def test_a_page_says_where_the_list_begins() -> None:
    """The page that reaches the first record names none before it."""
    window = lines(1, 10)
    page = cut_page(window, 0, 10, 4)
    assert numbers_on(page) == [7, 8, 9, 10]
    place = LogPlace.decode(page.before)
    assert (place.index, place.find_in(window)) == (6, 6)
    assert cut_page(window, 0, 4, 4) == LogPage(
        entries=cut_page(window, 0, 4, 4).entries
    )
    assert cut_page(window, 3, 4, 4).before
    assert cut_page([], 0, 0, 4) == LogPage(entries=[])


@pytest.mark.parametrize(
    "text",
    ["x", "订单", "A" * 23, "/" * 23, "_" * 23, "A" * 24, "AAAA AAAA", "\ud800"],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    """A cursor that nobody gave is a clear error, whatever is in it."""
    with pytest.raises(ConfigurationError, match="before"):
        LogPlace.decode(text)


def test_a_place_is_short_and_fits_a_url() -> None:
    """23 characters of letters, digits, - and _."""
    text = LogPlace.of(lines(1, 20), 4_000_000_000).encode()
    assert len(text) == 23
    assert text.replace("-", "a").replace("_", "a").isalnum()
