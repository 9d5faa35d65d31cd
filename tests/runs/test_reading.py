"""Reading a run: ranges, pages, hostile entries."""

from __future__ import annotations

import itertools
import time
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import (
    ConfigurationError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.devserver import DevServer
from bls_agent.runs import (
    EventStore,
)
from bls_agent.runs.reading import (
    FIRST_PAGE,
    PAGE,
    PAGE_BYTES,
    PageSize,
    RunReader,
)
from bls_agent.testing import FaultProxy, Rate
from tests.harness import (
    are_blocked,
    eventually,
)
from tests.runs.writing import write


async def at(redis: Redis, run_id: int, *ids: str) -> None:
    """Put events at these ids, numbered from 1."""
    for sequence, entry_id in enumerate(ids, 1):
        await redis.xadd(f"run:{run_id}:events", {"sequence": sequence}, id=entry_id)


async def test_all_events_of_a_long_run(store: EventStore, run_id: int) -> None:
    """Page by page, without overlap; the oldest first."""
    ids = await write(store, run_id, 1_234)
    events = await store.get_events(run_id)
    assert [one.id for one in events] == ids
    assert [one.sequence for one in events] == list(range(1, 1_235))


async def test_both_ends_are_in_a_range(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    await at(bare, run_id, "5-0", "5-1", "6-0", "7-0", "7-3")

    async def read(*words: Any) -> list[int]:
        return [one.sequence for one in await store.get_events(run_id, *words)]

    assert await read("5-1", "7-0") == [2, 3, 4]
    assert await read("-", "6-0") == [1, 2, 3]
    assert await read("7", "+") == [4, 5]
    assert await read("5", "5") == [1, 2]  # milliseconds alone: their first, their last
    assert await read("7-1", "7-2") == []
    assert await read("7-0", "5-0") == []
    assert await read("+", "+") == []  # as XRANGE says: the largest id there could be
    assert await read("-", "-") == []


async def test_behind_an_id(store: EventStore, run_id: int, bare: Redis) -> None:
    """The id itself is not given again; one that never was is a place as well."""
    largest = 2**64 - 1
    await at(bare, run_id, "5-0", "5-1", f"6-{largest}", "7-0")

    async def read(last_id: str, count: int | None = None) -> list[int]:
        found = await store.get_events_after(run_id, last_id, count)
        return [one.sequence for one in found]

    assert await read("0-0") == [1, 2, 3, 4]
    assert await read("5-0") == [2, 3, 4]
    assert await read("5") == [2, 3, 4]
    assert await read("5-7") == [3, 4]
    assert await read(f"6-{largest}") == [4]
    assert await read("7-0") == []
    assert await read(f"{largest}-{largest - 1}") == []
    assert await read("5-0", 2) == [2, 3]


async def test_the_last_possible_id(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """Nothing can stand behind it; the event itself is not given again and again."""
    last = f"{2**64 - 1}-{2**64 - 1}"
    assert await store.get_events_after(run_id, last) == []
    await at(bare, run_id, "5-0", last)
    assert [one.id for one in await store.get_events(run_id)] == ["5-0", last]
    follower = store.follow(run_id)
    assert [one.id for one in await follower.batch()] == ["5-0", last]  # type: ignore[union-attr]
    assert await follower.batch(0.1) == []
    assert await store.get_events_after(run_id, last) == []
    assert (await store.page(run_id, after=last)).events == []


@pytest.mark.parametrize("count", [1, 49, 50, 51, 120, 10_000, 100_000_000])
async def test_at_most_so_many(store: EventStore, run_id: int, count: int) -> None:
    ids = await write(store, run_id, 120)
    events = await store.get_events(run_id, count=count)
    assert [one.id for one in events] == ids[:count]


async def test_none_at_all(store: EventStore, run_id: int) -> None:
    await write(store, run_id, 2)
    assert await store.get_events(run_id, count=0) == []
    assert await store.get_events_after(run_id, "0-0", 0) == []
    assert await store.get_events(run_id + 10**5) == []
    assert await store.tail(run_id + 10**5) == "0-0"


@pytest.mark.parametrize("count", [-1, 1.0, True, "5", 10**9], ids=repr)
async def test_no_counts(store: EventStore, count: Any) -> None:
    with pytest.raises(ConfigurationError, match="count"):
        await store.get_events(1, count=count)


async def test_pages_do_not_overlap(store: EventStore, run_id: int) -> None:
    """While others write, no event stands on two pages, and none between them."""
    ids = await write(store, run_id, 230)
    found: list[str] = []
    after: str | None = None
    for number in itertools.count():
        page = await store.page(run_id, after=after, limit=100)
        assert len(page.events) <= 100
        found += [one.id for one in page.events]
        if number == 0:
            ids += await write(store, run_id, 20)
        after = page.next
        if after is None:
            break
    assert found == ids
    assert (await store.page(run_id, after=ids[-1])).events == []
    assert (await store.page(run_id + 10**5)).next is None
    whole = await store.page(run_id, limit=250)
    assert (len(whole.events), whole.next) == (250, None)


async def test_the_end(store: EventStore, run_id: int) -> None:
    assert await store.tail(run_id) == "0-0"
    ids = await write(store, run_id, 3)
    assert await store.tail(run_id) == ids[-1]


async def test_large_events_are_read_in_small_pages(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """What one reply brings is bounded once it is known how large they are."""
    key = f"run:{run_id}:events"
    for sequence in range(1, 71):
        large = b'{"text":"' + b"x" * 500_000 + b'"}'
        await bare.xadd(key, {"sequence": sequence, "data": large})
    reader = RunReader(store._access.pool, run_id)
    sizes = [len(page.events) async for page in reader.pages("-", "+")]
    assert sum(sizes) == 70
    assert max(sizes[1:]) <= PAGE_BYTES // 500_000
    await bare.delete(key)


async def test_an_event_of_10_mb(store: EventStore, run_id: int, bare: Redis) -> None:
    key = f"run:{run_id}:events"
    huge = b'{"text":"' + b"x" * 10_000_000 + b'"}'
    await bare.xadd(key, {"sequence": 1, "data": huge})
    await bare.xadd(key, {"sequence": 2, "data": "{}"})
    events = await store.get_events(run_id)
    assert [one.sequence for one in events] == [1, 2]
    assert await store.follow(run_id).batch()
    await bare.delete(key)


def test_the_next_page() -> None:
    """As long as it may be, but not ten times longer than one that was small."""
    portion = PageSize(first=5)
    portion.record(5, 5, 0.1)
    assert portion.count == 50  # not more: the others may be large
    portion.record(50, 50, 0.1)
    assert portion.count == PAGE
    portion.record(0, 0, 0.1)
    assert portion.count == PAGE
    portion.record(50, 50 * PAGE_BYTES, 0.1)
    assert portion.count == 1


HOSTILE: dict[str, dict[Any, Any]] = {
    "no fields of ours": {"x": "y"},
    "bytes": {b"\xff\xfe": b"\xff", b"data": b"\xff{}", b"event_category": b"\xff"},
    "no JSON": {"data": "{", "sequence": "1"},
    "no object": {"data": "[1, 2]", "sequence": "1"},
    "deep": {"data": "[" * 5_000 + "]" * 5_000},
    "deep object": {"data": '{"a":' * 3_000 + "1" + "}" * 3_000},
    "NaN": {"data": '{"a": NaN}'},
    "empty": {"": ""},
    "huge sequence": {"sequence": "9" * 400, "data": "{}"},
    "negative": {"sequence": "-1"},
    "no number": {"sequence": "0x10"},
    "other digits": {"sequence": "٣"},
    "surrogates": {"data": '{"a": "\\ud800"}'},
    "zeros": {"data": "\x00", "event_action": "\x00\n\nevent: close\n\n"},
    "twice": {"data": '{"a": 1, "a": 2}'},
}


async def test_no_entry_breaks_a_read(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """What cannot be read is given with its raw fields, between all the others."""
    key = f"run:{run_id}:events"
    follower = store.follow(run_id)
    assert await follower.batch(0.05) == []  # these come over the waiting connection
    for fields in HOSTILE.values():
        await write(store, run_id, 1)
        await bare.xadd(key, fields)
    await store.add(run_id, "system", "close")
    expected = 2 * len(HOSTILE) + 1
    with anyio.fail_after(20):
        followed: list[Any] = [one async for one in follower]
    listed: list[Any] = [one async for one in store.follow(run_id)]
    for events in (
        await store.get_events(run_id),
        (await store.page(run_id)).events,
        followed,
        listed,
    ):
        assert len(events) == expected
        for number, name in enumerate(HOSTILE):
            ours, theirs = events[2 * number], events[2 * number + 1]
            assert ours.faults == (), name
            assert theirs.faults, name
            assert theirs.raw
            assert isinstance(theirs.sequence, int)
            assert theirs.to_dict()["data"] == theirs.data
            assert b"\n" not in theirs.json


async def test_not_a_stream(store: EventStore, run_id: int, bare: Redis) -> None:
    """Said, and left alone."""
    key = f"run:{run_id}:events"
    await bare.set(key, "text")
    for read in (
        store.get_events(run_id),
        store.get_events_after(run_id, "0-0"),
        store.page(run_id),
        store.tail(run_id),
        store.get_length(run_id),
        store.subscribe(run_id, block_ms=10),
    ):
        with pytest.raises(WrongTypeError, match=str(run_id)):
            await read
    assert await bare.get(key) == b"text"


async def test_down_is_not_empty(own_server: DevServer) -> None:
    async with EventStore(own_server.url, timeout=0.5) as store:
        own_server.kill()
        for read in (
            store.get_events(1),
            store.get_events_after(1, "0-0"),
            store.page(1),
            store.tail(1),
            store.exists(1),
            store.get_length(1),
        ):
            with pytest.raises(RedisUnavailableError):
                await read


def test_a_portion_fits_the_link() -> None:
    """What does not come in time is asked for in parts; it grows where there is time."""
    late = RedisUnavailableError("timeout", "late", ambiguous=True)
    portion = PageSize(PAGE)
    portion.record(PAGE, 1, 0.1)
    assert portion.count == PAGE
    shrunk = []
    while portion.shrink(late):
        shrunk.append(portion.count)
    assert shrunk == [125, 31, 7, 1]
    portion.record(1, 1, 2.0)
    assert portion.count == 1  # a longer one would be late again
    portion.record(1, 1, 0.1)
    assert portion.count == 2


def test_other_errors_say_nothing_of_the_portion() -> None:
    portion = PageSize()
    away = RedisUnavailableError("connection", "refused", connecting=True)
    unconnected = RedisUnavailableError("timeout", "late", connecting=True)
    loading = RedisUnavailableError("loading", "soon")
    assert not any(map(portion.shrink, (away, unconnected, loading)))
    assert portion.count == FIRST_PAGE


async def test_large_events_come_through_a_narrow_link(own_server: DevServer) -> None:
    """A page that the deadline cuts is asked for in parts until it fits."""
    count, large = 12, {"x": "y" * 100_000}
    async with EventStore(own_server.url) as writer, FaultProxy(own_server.url) as link:
        await writer.add_many(1, [("a", "b", large)] * count)
        link.start(Rate(1_200_000))
        async with EventStore(link.url, timeout=0.6) as reader:
            found: list[Any] = []
            with anyio.fail_after(30):
                async for one in reader.follow(1):
                    found.append(one)
                    if len(found) == count:
                        break
            assert [one.sequence for one in found] == list(range(1, count + 1))
            assert len(await reader.get_events(1)) == count
            assert len((await reader.page_back(1)).events) == count


@pytest.mark.parametrize("back", [False, True])
async def test_a_page_of_large_events_ends_early(
    store: EventStore, run_id: int, back: bool
) -> None:
    """No page is much longer than it says, each event is on one page, none is empty."""
    large = [("a", "b", {"x": "y" * 500_000})]
    ids = await store.add_many(run_id, large * 30)
    found: list[list[str]] = []
    place: str | None = None
    while True:
        page = await (
            store.page_back(run_id, before=place)
            if back
            else store.page(run_id, after=place)
        )
        found.insert(0 if back else len(found), [event.id for event in page.events])
        place = page.next
        if place is None:
            break
    assert list(itertools.chain(*found)) == ids
    assert 3 <= len(found) <= 5
    assert all(found)


# -- the document's blocking read


async def test_a_loop_of_single_reads_misses_none(
    store: EventStore, run_id: int, bare: Redis
) -> None:
    """tail, then subscribe behind what was given: no call opens a connection of its own."""
    await write(store, run_id, 3)
    found: list[int] = []
    last = await store.tail(run_id)
    before = store._access.pool.openings

    async def produce() -> None:
        for _ in range(500):
            await write(store, run_id)
            await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(produce)
        with anyio.fail_after(30):
            while len(found) < 500:
                for event in await store.subscribe(run_id, last):
                    found.append(event.sequence)
                    last = event.id
    assert found == list(range(4, 504))
    assert store._access.pool.openings == before


async def test_a_single_read(store: EventStore, run_id: int) -> None:
    """Nothing in time is nothing; neither a close nor a gap ends or fills it."""
    assert await store.subscribe(run_id, block_ms=50) == []
    ids = await write(store, run_id, 2)
    assert [e.id for e in await store.subscribe(run_id, "0-0")] == ids
    assert [e.id for e in await store.subscribe(run_id, ids[0])] == ids[1:]
    closed = await store.add(run_id, "system", "close")
    assert [e.id for e in await store.subscribe(run_id, ids[1])] == [closed]
    began = time.monotonic()
    assert await store.subscribe(run_id, closed or "", block_ms=100) == []
    assert time.monotonic() - began >= 0.09
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_write_soon, store, run_id)
        found = await store.subscribe(run_id, "$", block_ms=0)
    assert [e.sequence for e in found] == [4]


async def _write_soon(store: EventStore, run_id: int) -> None:
    await anyio.sleep(0.05)
    await write(store, run_id)


async def test_a_single_read_while_redis_is_away(
    own_server: DevServer, admin: Redis
) -> None:
    """Down is not empty."""
    async with EventStore(own_server.url, timeout=0.5) as store:
        await write(store, 1)
        last = await store.tail(1)
        async with anyio.create_task_group() as tasks:

            async def read(block_ms: int) -> None:
                with pytest.raises(RedisUnavailableError):
                    await store.subscribe(1, last, block_ms=block_ms)

            tasks.start_soon(read, 1_500)
            await eventually(lambda: are_blocked(admin, 1))
            own_server.kill()
        await read(100)
        await read(0)
