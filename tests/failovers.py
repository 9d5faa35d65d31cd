"""A run that is written and followed while the server under it is replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

import anyio

from bls_agent.runs import (
    EventStore,
    Followed,
    FollowEnd,
    Follower,
    Gap,
    GapReason,
    RunWriter,
    StreamEvent,
)
from tests.harness import eventually

PAUSE = 0.005  # seconds between two events
SPEED = 40  # events that are written before and after a fault, at least


class Told:
    """A follower, and all that it was given."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.items: list[Followed] = []

    @property
    def events(self) -> list[StreamEvent]:
        """The events."""
        return [one for one in self.items if isinstance(one, StreamEvent)]

    @property
    def ids(self) -> list[str]:
        """Ids of the events."""
        return [one.id for one in self.events]

    @property
    def gaps(self) -> list[Gap]:
        """The gaps; nothing else may come."""
        others = [one for one in self.items if not isinstance(one, StreamEvent)]
        gaps = [one for one in others if isinstance(one, Gap)]
        assert gaps == others
        return gaps

    async def take(self, count: int, timeout: float = 60.0) -> None:
        """Follow until so many events have come in all."""
        with anyio.fail_after(timeout):
            while len(self.ids) < count and not self.follower.ended:
                self.items += await self.follower.batch()

    async def take_all(self) -> None:
        """Follow to the end."""
        await self.take(10**9, 120.0)
        assert self.follower.end is FollowEnd.CLOSED

    def check(self, kept: Sequence[StreamEvent]) -> None:
        """Assert that all that is kept came once, in order, and that the rest was told.

        What came and was lost afterwards may stand between.
        """
        survived = [event.id for event in kept]
        assert len(self.ids) == len(set(self.ids))
        there = set(survived)
        assert [one for one in self.ids if one in there] == survived
        missed = kept[-1].sequence - len({event.sequence for event in self.events})
        counts = [gap.missing for gap in self.gaps]
        known = sum(count for count in counts if count is not None)
        # A gap that a reconnect tells of has no count: it is told before it is known.
        assert known <= missed if None in counts else known == missed
        assert {gap.reason for gap in self.gaps} <= {GapReason.LOST}


class Play:
    """A writer that emits steadily, and followers in two stores.

    Attributes:
        run: The writer.
        followers: They all follow from the beginning.
    """

    def __init__(self, url: str, run_id: int) -> None:
        self._url = url
        self._writing = EventStore(url, timeout=2.0)
        self._reading = [EventStore(url, timeout=2.0) for _ in range(2)]
        self._run_id = run_id
        self._emitted = 0
        self.run: RunWriter = self._writing.run(run_id, lease=60.0)
        self.followers = [
            Told(self._reading[number % 2].follow(run_id)) for number in range(4)
        ]

    async def _emit(self) -> None:
        while True:
            self.run.emit("agent", "reasoning", {"n": self._emitted})
            self._emitted += 1
            await anyio.sleep(PAUSE)

    async def goes_on(self) -> None:
        """Wait until everybody was given more of what is written from now on."""
        await self.run.flush()
        counts = [len(one.items) for one in self.followers]
        pairs = list(zip(self.followers, counts, strict=True))
        await eventually(lambda: all(len(o.items) > n + SPEED for o, n in pairs), 60)

    async def __aexit__(self, *_: object) -> None:
        for store in (self._writing, *self._reading):
            await store.aclose()

    async def __aenter__(self) -> Self:
        return self

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Write and follow as long as the block lasts, then to the end; then check."""
        async with anyio.create_task_group() as following:
            for one in self.followers:
                following.start_soon(one.take_all)
            async with self.run, anyio.create_task_group() as writing:
                writing.start_soon(self._emit)
                await self.goes_on()
                yield
                await self.goes_on()
                writing.cancel_scope.cancel()
        # A connection of its own: one of before may still lead to the former master.
        async with EventStore(self._url, timeout=2.0) as store:
            kept = await store.get_events(self._run_id)
        numbers = [event.data["n"] for event in kept if event.category == "agent"]
        assert numbers == sorted(set(numbers))
        for one in self.followers:
            one.check(kept)
