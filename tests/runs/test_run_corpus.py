"""Hostile entries on a real server: all are read, and so is every good one around them."""

from __future__ import annotations

import anyio
import orjson
from redis.asyncio import Redis

from bls_agent import EventStore
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.runs import StreamEvent
from tests.corpus.loader import entry, load_run_events
from tests.event_source import parse
from tests.harness import execute

RUN, WRITTEN = 7_001, 7_002
KEY = f"run:{RUN}:events"
EVENTS = load_run_events()
GOOD = entry({b"source_team_name": b"good"})


async def fill(redis: Redis) -> None:
    """Each entry of the corpus, and a good one behind it."""
    async with redis.pipeline(transaction=False) as pipe:
        for item in EVENTS.values():
            for fields in (item.fields, GOOD):
                pipe.execute_command("XADD", KEY, "*", *fields)
        await pipe.execute()


def check(events: list[StreamEvent]) -> None:
    """Each of the corpus as it has to be read, and all good ones."""
    assert len(events) == 2 * len(EVENTS)
    pairs = zip(EVENTS.items(), events[::2], events[1::2], strict=True)
    for (name, item), event, good in pairs:
        assert set(event.faults) == item.faults, name
        assert (good.faults, good.data) == ((), {"text": "分析市场数据"}), name
    ids = [event.id for event in events]
    assert len(set(ids)) == len(ids)


async def test_every_reader_reads_them_all(redis: Redis, redis_url: str) -> None:
    """Ranges, pages and followers."""
    await fill(redis)
    async with EventStore(redis_url) as store:
        events = await store.get_events(RUN)
        check(events)
        first = events[0]
        assert await store.get_events_after(RUN, first.id) == events[1:]
        paged: list[StreamEvent] = []
        after: str | None = None
        while True:
            page = await store.page(RUN, after=after, limit=100)
            paged += page.events
            after = page.next
            if after is None:
                break
        check(paged)
        followed: list[StreamEvent] = []
        follower = store.follow(RUN)
        with anyio.fail_after(20):
            while len(followed) < len(events):
                found = await follower.batch()
                followed += [one for one in found if isinstance(one, StreamEvent)]
        await follower.aclose()
        check(followed)


def test_each_is_one_message() -> None:
    """No field forges a frame, a message or an id for a browser."""
    for name, item in EVENTS.items():
        event = StreamEvent.decode(RUN, b"5-1", item.fields)
        (message,) = parse(event.sse)
        assert orjson.loads(message.data) == orjson.loads(event.json), name
        assert message.last_event_id == "5-1", name
        assert "." in message.type, name


async def test_writing_goes_on_behind_each(redis: Redis, redis_url: str) -> None:
    """Whatever others have written last, the next event is counted and added."""
    async with EventStore(redis_url) as store:
        counted = 0
        for name, item in EVENTS.items():
            await execute(redis, "XADD", f"run:{WRITTEN}:events", "*", *item.fields)
            added = await store.add(WRITTEN, "llm", "stream", {"n": name})
            assert added is not None
            (event,) = await store.get_events(WRITTEN, added, added)
            assert event.faults == (), name
            assert event.data == {"n": name}
            assert event.sequence > counted, name
            counted = event.sequence
        assert await store.get_length(WRITTEN) == 2 * len(EVENTS)


async def test_the_doctor_looks_at_each(admin: Redis, own_server: DevServer) -> None:
    """Entries that break the contract are found, the others are none of its business."""
    for number, item in enumerate(EVENTS.values()):
        key = f"run:{number}:events"
        await execute(admin, "XADD", key, "*", *item.fields)
        await admin.expire(key, 60)
    report = await examine(own_server.url)
    assert report.keys["run_events"] == len(EVENTS)
    found = {finding.rule for finding in report.findings}
    assert {"run-fields", "run-sequence", "run-data", "run-timestamp"} <= found
    assert not found & {"run-id", "run-clock", "run-lost", "keys-unread"}
