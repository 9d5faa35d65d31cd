"""Places in a list that is cut from its front while it grows: found again, or said to be gone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from bls_agent import ConfigurationError
from bls_agent.project.log.reading import LogPage, LogPlace, cut_page


def lines(first: int, last: int) -> list[bytes]:
    """Records that differ."""
    return [b'{"message":"%d"}' % number for number in range(first, last + 1)]


def show(page: LogPage) -> list[int]:
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
    assert show(page) == [7, 8, 9, 10]
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
