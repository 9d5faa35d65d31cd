"""Adding events: sequences over all writers, what is refused, what fails."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, EventStore, RedisUnavailableError
from bls_agent.core.errors import RedisRefusedError, WrongTypeError
from bls_agent.devserver import DevServer
from bls_agent.runs import EventAction, EventCategory, NewEvent, StreamEvent
from bls_agent.runs.events import order
from bls_agent.runs.reading import RunKeys
from tests.harness import execute, url_with_rights
from tests.programs import run_python

MIB = 1024 * 1024


async def sequences(store: EventStore, run_id: int) -> list[int]:
    return [event.sequence for event in await store.get_events(run_id)]


async def test_events_are_counted_from_one(store: EventStore, run_id: int) -> None:
    await store.add(run_id, EventCategory.LIFECYCLE, EventAction.STARTED)
    ids = await store.add_many(
        run_id,
        [
            ("llm", "stream"),
            ("llm", "stream", {"content": "你"}),
            NewEvent("dispatch", "assigned", None, {"team_name": "研究"}),
        ],
    )
    events = await store.get_events(run_id)
    assert [event.id for event in events[1:]] == ids
    assert [event.sequence for event in events] == [1, 2, 3, 4]
    assert events[0].name == "lifecycle.started"
    assert events[3].source == {
        "agent_id": "", "agent_type": "", "agent_name": "", "team_name": "研究",
    }  # fmt: skip
    assert await store.add_many(run_id, []) == []


async def test_many_events_in_portions(store: EventStore, run_id: int) -> None:
    """More than one request holds; long ones, too; the order is theirs."""
    long = [("llm", "stream", {"text": "字" * 60_000, "n": n}) for n in range(9)]
    short = [("llm", "stream", {"n": n}) for n in range(9, 1_300)]
    ids = await store.add_many(run_id, [*long, *short])
    events = await store.get_events(run_id)
    assert [event.id for event in events] == ids
    assert [event.data["n"] for event in events] == list(range(1_300))
    assert [event.sequence for event in events] == list(range(1, 1_301))


async def test_told_times_and_sequences(store: EventStore, run_id: int) -> None:
    """What is told is written; what follows is counted on from the highest."""
    moment = datetime(2026, 1, 31, 12, 0, 0, 5_000, tzinfo=UTC)
    await store.add(run_id, "a", "b", None, None, moment, 7)
    await store.add(run_id, "a", "b", timestamp="2020-01-01T00:00:00Z", sequence=3)
    await store.add(run_id, "a", "b", timestamp=moment.replace(tzinfo=None))
    events = await store.get_events(run_id)
    assert [event.sequence for event in events] == [7, 3, 8]
    assert [event.timestamp for event in events] == [
        "2026-01-31T12:00:00.005Z",
        "2020-01-01T00:00:00.000Z",
        "2026-01-31T12:00:00.005Z",
    ]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "run-negative": ("run_id", {"run_id": -1}),
    "run-huge": ("run_id", {"run_id": 2**63}),
    "run-text": ("run_id", {"run_id": "1"}),
    "run-bool": ("run_id", {"run_id": True}),
    "run-none": ("run_id", {"run_id": None}),
    "category-empty": ("event_category", {"event_category": ""}),
    "category-newline": ("event_category", {"event_category": "llm\n\nevent: x"}),
    "category-number": ("event_category", {"event_category": 5}),
    "category-list": ("event_category", {"event_category": ["llm"]}),
    "action-surrogate": ("event_action", {"event_action": "\ud800"}),
    "action-long": ("event_action", {"event_action": "x" * 600}),
    "data-nan": ("data", {"data": {"n": float("nan")}}),
    "data-set": ("data", {"data": {"n": {1}}}),
    "data-bytes": ("data", {"data": {"n": b"x"}}),
    "data-keys": ("data", {"data": {1: 2}}),
    "data-surrogate": ("data", {"data": {"n": "\ud800"}}),
    "data-list": ("data", {"data": [1]}),
    "data-text": ("data", {"data": "{}"}),
    "data-long": ("data", {"data": {"text": "x" * 10 * MIB}}),
    "source-unknown": ("source", {"source": {"agent": "x"}}),
    "source-number": ("source['agent_id']", {"source": {"agent_id": 5}}),
    "source-zero": ("source['agent_id']", {"source": {"agent_id": 0}}),
    "source-newline": ("source['agent_id']", {"source": {"agent_id": "a\nb"}}),
    "source-text": ("source", {"source": "me"}),
    "timestamp": ("timestamp", {"timestamp": "yesterday"}),
    "sequence-negative": ("sequence", {"sequence": -1}),
    "sequence-huge": ("sequence", {"sequence": 2**53}),
    "sequence-bool": ("sequence", {"sequence": True}),
    "sequence-text": ("sequence", {"sequence": "5"}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_breaks_a_rule_is_refused_by_name(
    store: EventStore, bare: Redis, run_id: int, name: str
) -> None:
    """Nothing is written, and the error says which argument it is."""
    field, wrong = REFUSED[name]
    right: dict[str, Any] = {
        "run_id": run_id,
        "event_category": "a",
        "event_action": "b",
    }
    with pytest.raises(ConfigurationError) as caught:
        await store.add(**(right | wrong))
    assert caught.value.name == field
    assert len(str(caught.value)) < 1_000
    assert await bare.exists(f"run:{run_id}:events") == 0


async def test_one_that_breaks_a_rule_refuses_all(
    store: EventStore, run_id: int
) -> None:
    events: Any = [("a", "b")] * 600
    strange: list[Any] = [("a", "b", {"n": {1}}), ("a",), "ab", 5, ["a", "b"]]
    for wrong in strange:
        with pytest.raises(ConfigurationError):
            await store.add_many(run_id, [*events, wrong])
    assert not await store.exists(run_id)


async def test_a_limit_of_ones_own(redis_url: str, run_id: int) -> None:
    async with EventStore(redis_url, event_size_limit=11 * MIB) as store:
        await store.add(run_id, "a", "b", {"text": "x" * 10 * MIB})
        [event] = await store.get_events(run_id)
        assert len(event.data["text"]) == 10 * MIB
        await store.delete(run_id)
    for wrong in (0, 255, "1", True):
        with pytest.raises(ConfigurationError, match="event_size_limit"):
            EventStore(redis_url, event_size_limit=wrong)  # type: ignore[arg-type]


async def test_the_smallest_and_the_largest_run(store: EventStore) -> None:
    for run_id in (0, 2**63 - 1):
        await store.add(run_id, "a", "b")
        assert await store.exists(run_id)
        await store.delete(run_id)


async def test_others_events_are_counted(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """A foreign writer counts by itself, or not at all: ours come behind."""
    key = f"run:{run_id}:events"
    await bare.xadd(key, {"sequence": "41", "data": "{}"})
    await store.add(run_id, "a", "b")
    await bare.xadd(key, {"sequence": "43", "data": "{}"})
    await bare.xadd(key, {"sequence": "44", "data": "{}"})
    await store.add(run_id, "a", "b")
    await bare.xadd(key, {"sequence": "nonsense"})
    await bare.xadd(key, {"data": "{}"})
    await store.add(run_id, "a", "b")
    ours = [one.sequence for one in await store.get_events(run_id) if one.category]
    assert ours == [42, 45, 46]


async def test_a_server_that_forgot(own_server: DevServer, admin: Redis) -> None:
    """Who has written remembers: no sequence comes again, no id goes back."""
    async with EventStore(own_server.url) as store:
        before = await store.add_many(1, [("a", "b")] * 3)
        await admin.flushall()
        after = await store.add_many(1, [("a", "b")] * 2)
        assert await sequences(store, 1) == [4, 5]
        assert order(after[0]) > order(before[-1])
        await store.add(2, "a", "b")
        await store.delete(1)
        await store.add(1, "a", "b")
        assert await sequences(store, 1) == [1]


async def test_a_clock_behind(store: EventStore, run_id: int) -> None:
    """Ids grow although the clock of the server now is behind that of the one before."""
    ahead = int((time.time() + 3_600) * 1000)
    store._marks.raise_to(run_id, 10, f"{ahead}-7", math.inf)
    ids = await store.add_many(run_id, [("a", "b")] * 3)
    assert ids == [f"{ahead}-8", f"{ahead}-9", f"{ahead}-10"]
    ids += await store.add_many(run_id, [("a", "b")] * 2)
    assert sorted(ids, key=order) == ids
    assert await sequences(store, run_id) == [11, 12, 13, 14, 15]


async def test_a_floor_that_is_long_passed(
    redis_url: str, store: EventStore, run_id: int
) -> None:
    """Another one has written on, with a clock ahead: nothing is refused for it."""
    ahead = int((time.time() + 3_600) * 1000)
    await store.add(run_id, "a", "b")
    store._marks.raise_to(run_id, 1, f"{ahead}-0", math.inf)
    async with EventStore(redis_url) as other:
        other._marks.raise_to(run_id, 1, f"{ahead}-5", math.inf)
        [theirs] = await other.add_many(run_id, [("a", "b")])
    [ours] = await store.add_many(run_id, [("a", "b")])
    assert order(ours) > order(theirs)
    assert await sequences(store, run_id) == [1, 2, 3]


async def test_another_type(store: EventStore, bare: Redis, run_id: int) -> None:
    """What stands there is left alone, whichever of the keys it is."""
    key = f"run:{run_id}:events"
    books = f"bls_agent:{{{key}}}:books"
    for wrong in (key, books):
        await bare.set(wrong, "precious")
        with pytest.raises(WrongTypeError) as caught:
            await store.add(run_id, "a", "b")
        assert caught.value.key == wrong
        assert await bare.get(wrong) == b"precious"
        assert await bare.exists(key, books) == 1
        await bare.delete(wrong)


async def test_redis_away(
    own_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Every write raises, or is counted and warned of once; reads raise all the same."""
    async with (
        EventStore(own_server.url) as store,
        EventStore(own_server.url, on_error="none") as lenient,
    ):
        own_server.kill()
        with pytest.raises(RedisUnavailableError):
            await store.add(1, "a", "b")
        assert await lenient.add(1, "a", "b") is None
        with pytest.raises(ConfigurationError):
            await lenient.add(-1, "a", "b")
        assert await lenient.add_many(1, [("a", "b")]) == []
        assert await lenient.set_expire(1) is False
        assert await lenient.delete(1) is False
        with pytest.raises(RedisUnavailableError):
            await lenient.exists(1)
        own_server.restart()
        assert await lenient.add(1, "a", "b")
    assert (store.failed_writes, lenient.failed_writes) == (0, 4)
    assert caplog.text.count("a write is given up") == 1


async def test_no_memory_and_no_rights(own_server: DevServer, admin: Redis) -> None:
    """Nothing of a portion is written; afterwards all is as before."""
    url = await url_with_rights(admin, own_server, "+@all", "-xadd", "~*")
    async with EventStore(own_server.url) as store, EventStore(url) as powerless:
        for number in (1, 2):
            await store.add(number, "a", "b")
        await admin.config_set("maxmemory", "100kb")
        with pytest.raises(RedisUnavailableError) as caught:
            await store.add_many(1, [("a", "b")] * 5)
        assert caught.value.kind == "out_of_memory"
        await admin.delete(RunKeys(2).events)
        with pytest.raises(RedisUnavailableError):  # books are dropped behind it
            await store.add(2, "lifecycle", "started")
        assert not await store.exists(2)
        await admin.config_set("maxmemory", "0")
        with pytest.raises(RedisRefusedError):
            await powerless.add(1, "a", "b")
        await store.add(1, "a", "b")
        assert await sequences(store, 1) == [1, 2]


async def test_a_server_that_lost_its_scripts(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    await store.add(run_id, "a", "b")
    await execute(bare, "SCRIPT", "FLUSH")
    await store.add(run_id, "a", "b")
    assert await sequences(store, run_id) == [1, 2]


WRITERS = """
import os, sys, anyio, redis.asyncio
from bls_agent import EventStore

async def write(url, run_id, number):
    async with EventStore(url, maxlen=1_000_000) as store:
        if number % 2:
            async with store.run(run_id, lifecycle=False, coalesce=0) as run:
                for n in range(100):
                    run.emit("a", "b", {"of": number, "n": n})
                    if n % 20 == 0:
                        await anyio.sleep(0.001)
        else:
            for n in range(0, 50, 10):
                await store.add_many(run_id, [
                    ("a", "b", {"of": number, "n": n + k}) for k in range(10)
                ])
            for n in range(50, 100):
                await store.add(run_id, "a", "b", {"of": number, "n": n})

for number in range(10):
    if not os.fork():
        anyio.run(write, sys.argv[1], int(sys.argv[2]), number)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in range(10)))
"""


async def test_a_run_that_expired_begins_anew(store: EventStore, run_id: int) -> None:
    """Nothing was lost: its sequences begin at 1, and no reader is told of a gap."""
    await store.add_many(run_id, [("a", "b")] * 5)
    await store.set_expire(run_id, 1)
    with anyio.fail_after(10):
        while await store.exists(run_id):
            await anyio.sleep(0.05)
    await store.add(run_id, "system", "close")
    found = [one async for one in store.follow(run_id)]
    assert [one.sequence for one in found if isinstance(one, StreamEvent)] == [1]
    assert len(found) == 1


async def test_a_key_of_another_type_is_left_alone(
    store: EventStore, redis: Redis, run_id: int
) -> None:
    """Neither deleted nor told to expire."""
    key = RunKeys(run_id).events
    await execute(redis, "RPUSH", key, "precious")
    for refused in (
        store.delete(run_id),
        store.set_expire(run_id),
        store.exists(run_id),
    ):
        with pytest.raises(WrongTypeError):
            await refused
    assert await execute(redis, "TTL", key) == -1
    await execute(redis, "DEL", key)


async def test_the_wrong_one_of_many_is_named(store: EventStore, run_id: int) -> None:
    """And none of them is added."""
    with pytest.raises(
        ConfigurationError, match=r"^events\[1\]\.data: .* No event was"
    ):
        await store.add_many(run_id, [("a", "b"), ("a", "b", {"n": float("nan")})])
    assert not await store.exists(run_id)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("2026-01-31T12:00:00+08:00", "2026-01-31T04:00:00.000Z"),
        ("2026-01-31T12:00:00.123Z", "2026-01-31T12:00:00.123Z"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00.000Z"),
    ],
)
async def test_times_are_written_in_the_contract_s_form(
    store: EventStore, run_id: int, given: str | datetime, written: str
) -> None:
    """UTC with milliseconds, whatever the form in which they are given."""
    await store.add(run_id, "a", "b", timestamp=given)
    assert (await store.get_events(run_id))[0].timestamp == written


async def test_ten_processes_write_one_run(redis_url: str, run_id: int) -> None:
    """Sequences 1…n without a hole or a repeat, in the order of the ids."""
    assert run_python("-c", WRITERS, redis_url, str(run_id)).code == 0
    async with EventStore(redis_url) as store:
        events = await store.get_events(run_id)
        assert [event.sequence for event in events] == list(range(1, 1_001))
        for number in range(10):
            theirs = [one.data["n"] for one in events if one.data["of"] == number]
            assert theirs == list(range(100))
        await store.delete(run_id)


@pytest.mark.parametrize("by", ["add", "run"])
async def test_a_longer_life_is_left_to_a_run(
    store: EventStore, bare: Redis, run_id: int, by: str
) -> None:
    """No TTL is shortened; a peer's run without one gets one from what ends it alone."""
    keys = RunKeys(run_id)

    async def write() -> None:
        if by == "add":
            await store.add(run_id, "a", "b")
            return
        async with store.run(run_id) as run:
            run.emit("a", "b")
            assert await run.flush(5)
            during = await bare.ttl(keys.events)
        assert during == -1 or during > 80_000

    await write()
    assert 86_000 < await bare.ttl(keys.events) <= 86_400
    assert await store.set_expire(run_id, 604_800)
    await write()
    for key in (keys.events, keys.books):
        assert 604_000 < await bare.ttl(key) <= 604_800
    assert await store.set_expire(run_id, 60)
    await write()
    assert await bare.ttl(keys.events) > 86_000
    await bare.delete(*keys.all)
    await bare.xadd(keys.events, {"sequence": "1"})
    await write()
    if by == "add":
        assert await bare.ttl(keys.events) == -1
        await store.add(run_id, "system", "close")
    assert 86_000 < await bare.ttl(keys.events) <= 86_400
    assert 86_000 < await bare.ttl(keys.books) <= 86_400


@pytest.mark.parametrize("who", ["same process", "another process"])
@pytest.mark.parametrize("by", ["add", "run"])
async def test_a_reused_run_begins_at_one(
    redis_url: str, store: EventStore, bare: Redis, run_id: int, who: str, by: str
) -> None:
    """A peer has deleted the stream alone: the next run of this id is a new one."""
    keys = RunKeys(run_id)
    async with store.run(run_id) as run:
        run.emit("a", "b")
    await store.add(run_id, "system", "warning")
    await bare.delete(keys.events)
    other = store if who == "same process" else EventStore(redis_url)
    if by == "add":
        await other.add(run_id, "lifecycle", "started")
        await other.add_many(run_id, [("a", "b"), ("system", "close")])
    else:
        async with other.run(run_id) as run:
            run.emit("a", "b")
            assert await run.flush(5)
            assert run.is_owner
    found = [item async for item in other.follow(run_id)]
    assert [getattr(item, "sequence", item) for item in found] == [
        *range(1, len(found) + 1)
    ]
    books = {str(name) for name in await bare.hkeys(keys.books)}
    assert books >= {"b'sequence'", "b'id'", "b'closed'"}
    assert len(books) == (4 if by == "run" else 3)  # the last batch of this writer
    await other.aclose()


async def test_a_stream_that_is_gone_under_its_writer_goes_on(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """Another process's ``lifecycle.started`` begins no new run while the writer lives."""
    async with store.run(run_id) as run:
        run.emit("a", "b")
        assert await run.flush(5)
        await bare.delete(RunKeys(run_id).events)
        await store.add(run_id, "lifecycle", "started")
    assert await sequences(store, run_id) == [3, 4, 5]


BROKEN: dict[str, dict[Any, Any]] = {
    "none": {"data": "{}"},
    "text": {"sequence": "seven"},
    "empty": {"sequence": ""},
    "negative": {"sequence": "-1"},
    "huge": {"sequence": "9" * 16},
    "hex": {"sequence": "0x10"},
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("count", [1, 9])
async def test_a_broken_entry_hides_no_sequence(
    store: EventStore, bare: Redis, run_id: int, name: str, count: int
) -> None:
    """A peer's last entries cannot be read: the ones before them still count."""
    keys = RunKeys(run_id)
    for number in range(1, 6):
        await bare.xadd(keys.events, {"sequence": str(number)})
    for _ in range(count):
        await bare.xadd(keys.events, BROKEN[name])
    await store.add(run_id, "a", "b")
    await bare.xadd(keys.events, {"sequence": "9"})
    await bare.xadd(keys.events, BROKEN[name])
    await store.add(run_id, "a", "b")
    ours = [one.sequence for one in await store.get_events(run_id) if one.category]
    assert ours == [6, 10]
    await bare.delete(*keys.all)
    store._marks.forget(run_id)
    for _ in range(3):
        await bare.xadd(keys.events, BROKEN[name])
    await store.add(run_id, "a", "b")
    assert (await store.get_events(run_id))[-1].sequence == 4


POISON: dict[str, dict[str, str]] = {
    "id-garbage": {"id": "garbage"},
    "id-empty": {"id": ""},
    "id-plus": {"id": "+"},
    "id-huge": {"id": f"{2**70}-0"},
    "id-bytes": {"id": "\udcff\udcfe"},
    "sequence-nan": {"sequence": "nan"},
    "sequence-inf": {"sequence": "inf"},
    "sequence-negative": {"sequence": "-5"},
    "sequence-huge": {"sequence": "9" * 400},
    "both": {"id": "x", "sequence": "x"},
}


@pytest.mark.parametrize("name", POISON)
async def test_poisoned_books_are_begun_anew(
    redis_url: str, store: EventStore, bare: Redis, run_id: int, name: str
) -> None:
    """Counting goes on from the events that stand."""
    keys = RunKeys(run_id)
    poison: dict[Any, Any] = {
        k: v.encode("utf-8", "surrogateescape") for k, v in POISON[name].items()
    }
    async with EventStore(redis_url) as other:  # knows nothing of the run
        await store.add_many(run_id, [("a", "b")] * 3)
        await bare.hset(keys.books, mapping=poison)
        assert run_id in [one.run_id for one in await other.runs(limit=10_000)]
        await other.add(run_id, "a", "b")
        await other.add(run_id, "a", "b")
    assert await sequences(store, run_id) == [1, 2, 3, 4, 5]
    async with store.run(run_id) as run:
        assert await run.flush(5)
        lease: Any = run._run_lease
        batch = f"batch:{lease.token}"
        for number in ("nan", "9" * 400, "", "1 2 x-y 3"):
            wrong = f"{number} 1 1-1 1" if " " not in number else number
            await bare.hset(keys.books, mapping={batch: wrong, **poison})
            run.emit("a", "b")
            assert await run.flush(5)
    events = await store.get_events(run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.name for event in events[6:10]] == ["a.b"] * 4


async def test_sequences_stay_within_their_bounds(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """Counting ends at 10^15 - 1: it is said of every further event."""
    await bare.xadd(RunKeys(run_id).events, {"sequence": str(10**15 - 2)})
    await store.add_many(run_id, [("a", "b")] * 3)
    await store.add(run_id, "a", "b")
    assert set(await sequences(store, run_id)) == {10**15 - 2, 10**15 - 1}
    [known] = await bare.hmget(RunKeys(run_id).books, "sequence")
    assert known == str(10**15 - 1).encode()
