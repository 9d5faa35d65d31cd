"""A search that goes on: complete at first, a part of each look later, and rests."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import pytest

from bls_agent.workers.watching.search import Search

KIND = "execution_node_heartbeat"


class World:
    """Steps that take an eighth of a second each, on a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
        self.now = 100.0
        self.steps = steps
        self.begun = self.open = 0
        monkeypatch.setattr(anyio, "current_time", lambda: self.now)

    async def scan(self) -> AsyncGenerator[dict[bytes, str]]:
        self.begun += 1
        self.open += 1
        try:
            for step in range(self.steps):
                self.now += 0.125
                yield {b"%d" % step: KIND}
        finally:
            self.open -= 1


async def test_the_first_search_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is there is told at once, however long it takes."""
    world = World(monkeypatch, 100)
    search = Search(world.scan, 1.25)
    assert len(await search.advance()) == 100


async def test_a_later_one_takes_its_share_of_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fifth of the interval; nothing is left out, and then it rests."""
    world = World(monkeypatch, 10)
    search = Search(world.scan, 1.25)
    await search.advance()
    world.now += 100
    parts = [await search.advance() for _ in range(5)]
    assert [len(part) for part in parts] == [2, 2, 2, 2, 2]
    assert len({key for part in parts for key in part}) == 10
    assert await search.advance() == {}  # its end
    assert world.begun == 2


async def test_it_rests_four_times_as_long_as_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million keys are not searched all the time; a few at least every two seconds."""
    world = World(monkeypatch, 10)
    search = Search(world.scan, 1.25)
    await search.advance()
    world.now += 4.9
    assert await search.advance() == {}
    world.now += 0.2
    assert await search.advance()
    assert world.begun == 2

    quick = World(monkeypatch, 1)
    search = Search(quick.scan, 1.25)
    await search.advance()
    quick.now += 1.9
    assert await search.advance() == {}
    quick.now += 0.2
    assert await search.advance()


async def test_one_that_was_given_up_begins_anew_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it stays open."""
    world = World(monkeypatch, 10)
    search = Search(world.scan, 1.25)
    await search.advance()
    world.now += 100
    await search.advance()
    assert world.open == 1
    await search.end()
    assert world.open == 0
    assert await search.advance() == {b"0": KIND, b"1": KIND}
    await search.end()
