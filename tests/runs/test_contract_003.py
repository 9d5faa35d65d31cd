"""The document's own examples: the stream entry, the application form, the calls."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from bls_agent import EventStore
from bls_agent.runs import EventAction, EventCategory
from tests.runs.writing import entries

# Section 2.2, and what 2.3 makes of it.
SOURCE = {
    "agent_id": "global_supervisor",
    "agent_type": "global_supervisor",
    "agent_name": "全局协调者",
}
STORED = [
    ("timestamp", "2025-01-01T12:00:00.123Z"),
    ("sequence", "1"),
    ("source_agent_id", "global_supervisor"),
    ("source_agent_type", "global_supervisor"),
    ("source_agent_name", "全局协调者"),
    ("source_team_name", ""),
    ("event_category", "lifecycle"),
    ("event_action", "started"),
    ("data", '{"task": "分析市场数据"}'),
]


def without_blanks(pairs: list[tuple[str, str]]) -> list[bytes]:
    """The example as bytes; white space inside of JSON is not part of a contract."""
    told = [part for pair in pairs for part in pair]
    told[-1] = json.dumps(
        json.loads(told[-1]), ensure_ascii=False, separators=(",", ":")
    )
    return [part.encode() for part in told]


async def test_the_stream_entry_byte_for_byte(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """Section 2.2: field order, empty source fields, UTF-8 as it is."""
    number = await store.add(
        run_id, "lifecycle", "started", {"task": "分析市场数据"}, SOURCE,
        timestamp="2025-01-01T12:00:00.123Z",
    )  # fmt: skip
    assert number is not None
    assert await entries(bare, f"run:{run_id}:events") == [
        (number.encode(), without_blanks(STORED))
    ]


async def test_a_writer_writes_the_same_bytes(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    async with store.run(run_id, source=SOURCE, data={"task": "分析市场数据"}):
        pass
    found = await entries(bare, f"run:{run_id}:events")
    started = found[0][1]
    assert started[1].endswith(b"Z")
    assert len(started[1]) == len("2025-01-01T12:00:00.123Z")
    started[1] = b"2025-01-01T12:00:00.123Z"
    assert started == without_blanks(STORED)
    names = [name for name, _ in STORED]
    for place, (_, fields) in enumerate(found):
        assert [name.decode() for name in fields[::2]] == names
        assert fields[3] == b"%d" % (place + 1)


async def test_without_source_and_data(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """All nine fields are there all the same."""
    await store.add(run_id, "system", "close")
    [(_, fields)] = await entries(bare, f"run:{run_id}:events")
    assert fields[4:12:2] == [name.encode() for name, _ in STORED[2:6]]
    assert fields[5:13:2] == [b"", b"", b"", b""]
    assert fields[-1] == b"{}"
    [event] = await store.get_events(run_id)
    assert event.source is None


async def test_the_application_form(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """Section 2.3, of an entry as the document's own program writes it."""
    number: Any = await bare.xadd(f"run:{run_id}:events", dict(STORED))
    [event] = await store.get_events(run_id)
    form = {
        "id": number.decode(),
        "run_id": run_id,
        "timestamp": "2025-01-01T12:00:00.123Z",
        "sequence": 1,
        "source": {**SOURCE, "team_name": ""},
        "event": {"category": "lifecycle", "action": "started"},
        "data": {"task": "分析市场数据"},
    }
    assert event.to_dict() == form
    assert json.loads(event.json) == form
    assert list(json.loads(event.json)) == list(form)
    assert "分析市场数据".encode() in event.json
    assert (event.raw, event.faults, event.name) == (None, (), "lifecycle.started")
    assert (event.category, event.action) == (
        EventCategory.LIFECYCLE,
        EventAction.STARTED,
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("add", ["run_id", "event_category", "event_action", "data", "source"]),
        ("get_events", ["run_id", "start_id", "end_id", "count"]),
        ("get_events_after", ["run_id", "last_id", "count"]),
        ("set_expire", ["run_id", "ttl_seconds"]),
        ("delete", ["run_id"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_calls_have_their_names_and_order(name: str, parameters: list[str]) -> None:
    """Section 5.1; ours may have more behind them."""
    ours = list(inspect.signature(getattr(EventStore, name)).parameters)[1:]
    assert ours[: len(parameters)] == parameters


async def test_the_documents_calls_by_position(store: EventStore, run_id: int) -> None:
    first = await store.add(run_id, "lifecycle", "started", {"task": "x"}, SOURCE)
    second = await store.add(run_id, "llm", "stream", {"content": "你"})
    assert first is not None
    assert second is not None
    assert [one.id for one in await store.get_events(run_id)] == [first, second]
    assert [one.id for one in await store.get_events(run_id, "-", "+", 1)] == [first]
    assert [one.id for one in await store.get_events_after(run_id, first)] == [second]
    assert [one.id for one in await store.get_events_after(run_id, "0", 1)] == [first]
    assert await store.set_expire(run_id, 100) is True
    assert await store.delete(run_id) is True
    assert await store.delete(run_id) is False
    assert await store.set_expire(run_id) is False


async def test_the_documents_calls_by_name(store: EventStore, run_id: int) -> None:
    number = await store.add(
        run_id=run_id,
        event_category="lifecycle",
        event_action="completed",
        data={},
        source=None,
    )
    found = await store.get_events(run_id=run_id, start_id="-", end_id="+", count=10)
    assert [one.id for one in found] == [number]
    assert (
        await store.get_events_after(run_id=run_id, last_id="0-0", count=None) == found
    )
    assert await store.set_expire(run_id=run_id, ttl_seconds=86_400)
    assert await store.delete(run_id=run_id)


async def test_a_run_is_trimmed_and_expires(
    redis_url: str, bare: Redis, run_id: int
) -> None:
    """Section 4: about MAXLEN events; the TTL begins anew with each of ours."""
    key = f"run:{run_id}:events"
    async with EventStore(redis_url, maxlen=100, ttl=500) as store:
        await store.add_many(run_id, [("llm", "stream", {"n": n}) for n in range(900)])
        assert 100 <= await store.get_length(run_id) < 400
        assert 400 < await bare.ttl(key) <= 500
        await store.set_expire(run_id, 7)
        assert await bare.ttl(key) <= 7
        assert await bare.ttl(f"bls_agent:{{{key}}}:books") <= 7
        await store.add(run_id, "llm", "stream")
        assert 400 < await bare.ttl(key) <= 500
        assert 400 < await bare.ttl(f"bls_agent:{{{key}}}:books") <= 500
