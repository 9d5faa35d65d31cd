"""What is kept once for many followers: the ring, and outages of Redis."""

from __future__ import annotations

import tracemalloc
from typing import Any

import anyio

from bls_agent.core.codec import decode_object, encode
from bls_agent.ops.fleet import FleetChange, ProjectView
from bls_agent.ops.web.feeds.fleet import FleetFeed
from bls_agent.ops.web.feeds.watch import Item, Ring, Shared
from bls_agent.ops.web.requests import project_path
from tests.corpus.hostile_texts import HOSTILE_TEXTS

NOBODY: Any = None


def payloads(items: list[Item]) -> list[bytes]:
    return [item.payload for item in items]


def test_a_follower_reads_on_from_his_place() -> None:
    """Everything from there on, in order, and nothing twice."""
    ring = Ring(most=10, size=1_000)
    ring.add(Item(b"a"), Item(b"b"))
    items, missed = ring.since(0)
    assert (payloads(items), missed) == ([b"a", b"b"], 0)
    place = ring.end
    ring.add(Item(b"c"))
    assert payloads(ring.since(place)[0]) == [b"c"]
    assert ring.since(ring.end) == ([], 0)
    assert payloads(ring.since(0, 2)[0]) == [b"a", b"b"]
    assert payloads(ring.since(0, 0)[0]) == [b"a"]  # one in any case


def test_a_slow_follower_learns_what_he_missed() -> None:
    """The ring does not grow for him, neither in number nor in bytes."""
    ring = Ring(most=3, size=1_000)
    for n in range(10):
        ring.add(Item(str(n).encode()))
    items, missed = ring.since(2)
    assert (payloads(items), missed) == ([b"7", b"8", b"9"], 5)
    ring = Ring(most=100, size=10)
    for n in range(10):
        ring.add(Item(str(n).encode() * 4))
    items, missed = ring.since(0)
    assert (payloads(items), missed) == ([b"8888", b"9999"], 8)
    ring.add(Item(b"x" * 100))
    assert payloads(ring.since(0)[0]) == [b"x" * 100]  # the newest in any case
    assert ring.begin == 10


def test_short_items_take_little_memory() -> None:
    """As much as their bytes, whatever the writer of the bytes had set aside."""
    tracemalloc.start()
    try:
        ring = Ring(most=2_000, size=1_000_000)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000):
            ring.add(Item(encode({"number": number}), "log"))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 2_000 * 500


class _Once(Shared):
    runs = 0

    async def _run(self) -> None:
        self.runs += 1


async def test_what_has_ended_does_not_begin_again_for_who_leaves() -> None:
    """It begins with a follower, and not with the end of one."""
    once = _Once(Ring(most=1, size=1), 60.0)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            once.open(tasks)
            with once.wanted():
                await anyio.wait_all_tasks_blocked()
    assert (once.runs, once.running) == (1, False)


async def test_a_project_that_is_gone_is_told_by_its_page() -> None:
    """Whatever its name holds, and that Redis answers."""
    watch = FleetFeed(NOBODY)
    for text in HOSTILE_TEXTS.values():
        seen = FleetChange(
            views={text: ProjectView(project=text)}, removed=frozenset({text})
        )
        watch._take(seen, whole=False)
        told = decode_object(watch.ring.since(0)[0][-1].payload)
        assert (told["gone"], told["away"]) == ([project_path(text)], None)
