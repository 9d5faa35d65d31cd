"""20 followers of one run while links are cut and the server is killed and restarted.

The server keeps what it has answered (AOF, written through): each follower is given
every event, once, in order.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

import anyio

from bls_agent import RedisUnavailableError
from bls_agent.devserver import DevServer
from bls_agent.runs import EventStore, StreamEvent
from tests.kit import FaultProxy

FOLLOWERS = 20
LONGEST = 400  # events in one write


@dataclass
class Followed:
    """What came of it.

    Attributes:
        found: The sequences that each follower was given.
        others: How many gaps and lost writers they were told of.
        cuts: How often all links were cut.
        expected: How many events were written.
    """

    expected: int
    found: list[list[int]] = field(default_factory=list)
    others: int = 0
    cuts: int = 0

    @property
    def delivered(self) -> int:
        """How many events were given, over all followers."""
        return sum(map(len, self.found))

    @property
    def missed(self) -> int:
        """How many were not given to one who should have got them."""
        return sum(self.expected - len(set(each)) for each in self.found)

    @property
    def twice(self) -> int:
        """How many came more than once, or out of order."""
        told = sum(len(each) - len(set(each)) for each in self.found)
        return told + sum(each != sorted(each) for each in self.found)


async def follow_through_cuts(
    server: DevServer, *, events: int, cuts: int, restarts: int = 1, seed: int = 7
) -> Followed:
    """Write so many events while links are cut and the server is restarted.

    Args:
        server: With ``append_only``.
        events: How many.
        cuts: How often all links of the followers are cut.
        restarts: How often the server is killed and started again.
        seed: For the moments.
    """
    rng = random.Random(seed)
    done = Followed(events)
    faults = ["cut"] * cuts + ["restart"] * restarts
    rng.shuffle(faults)
    async with FaultProxy(server.url, seed=seed) as proxy:
        stores = [EventStore(proxy.url, timeout=2.0) for _ in range(2)]

        async def follow(store: EventStore) -> None:
            found: list[int] = []
            done.found.append(found)
            async for one in store.follow(1):
                if isinstance(one, StreamEvent):
                    found.append(one.sequence)
                else:
                    done.others += 1

        async def disturb() -> None:
            for at, fault in enumerate(faults, 1):
                while _slowest(done) < events * at // (len(faults) + 1):
                    await anyio.sleep(0.001)
                if fault == "cut":
                    done.cuts += proxy.break_all(reset=rng.random() < 0.5) > 0
                else:
                    server.kill()
                    await anyio.sleep(0.2)
                    server.restart()

        async with anyio.create_task_group() as tasks:
            for number in range(FOLLOWERS):
                tasks.start_soon(follow, stores[number % 2])
            tasks.start_soon(disturb)
            await _write(server.url, events, rng)
        for store in stores:
            await store.aclose()
    return done


def _slowest(done: Followed) -> int:
    return min(map(len, done.found), default=0)


async def _write(url: str, events: int, rng: random.Random) -> None:
    """Write them all, each once: what was in doubt is looked up."""
    async with EventStore(url, maxlen=10_000_000, timeout=2.0) as store:
        written = 0
        while written < events - 1:
            count = min(rng.randint(1, LONGEST), events - 1 - written)
            batch = [("llm", "stream", {"n": written + n}) for n in range(count)]
            try:
                await store.add_many(1, batch)
            except RedisUnavailableError:
                await anyio.sleep(0.05)
            written = await _count(store)
        while True:
            try:
                await store.add(1, "system", "close")
                return
            except RedisUnavailableError as error:
                if error.ambiguous and await _count(store) == events:
                    return


async def _count(store: EventStore) -> int:
    while True:
        try:
            return await store.get_length(1)
        except RedisUnavailableError:
            await anyio.sleep(0.05)


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with DevServer(append_only=True) as own:
        came = anyio.run(lambda: follow_through_cuts(own, events=number, cuts=50))
    print(
        f"{FOLLOWERS} followers of {number:,} events, {came.cuts} cuts, one restart: "
        f"{came.missed} missed, {came.twice} twice"
    )
    assert not came.missed
    assert not came.twice
    assert not came.others
