"""A fleet of crawlers whose members die: the long run of ``tests.soak.crawlers``, in small."""

from __future__ import annotations

import pytest

from bls_agent.devserver import DevServer
from tests.chaos.crawlers import Damaged, judge
from tests.kit import History, Step
from tests.soak.crawlers import crawl_through_kills


async def test_crawlers_that_die_lose_nothing(own_server: DevServer) -> None:
    """Each request is handled, none twice without reason, and nothing is left in Redis."""
    done = await crawl_through_kills(own_server, 2_000, kills=3, lease=2.0, crawlers=4)
    assert done.broken == []
    assert done.handled == 2_000


@pytest.mark.parametrize(
    ("first", "damage", "told"),
    [
        ("started ended", (), "was well"),
        ("started acked ended", ("",), "had finished it"),
        ("started ended", ("",), ""),
        ("started", ("1",), ""),
        ("started", ("3",), "was well"),
        ("started acked ended", ("2",), ""),
    ],
)
def test_what_is_handled_twice_needs_a_reason(
    first: str, damage: tuple[str, ...], told: str
) -> None:
    """The crawler that had it was hurt meanwhile, and was not told that it is finished.

    Or the second one had it first, and froze before it began.
    """
    history = History()
    for who, steps in (("1.0", first), ("2.0", "started acked ended")):
        for step in steps.split():
            history.note(Step(step), "a", who)
    begin = history.events()[0].at
    found = list(judge(history, [Damaged(begin, begin, who) for who in damage]))
    assert [told in each for each in found] == [True] * bool(told)
