"""Runs as server-sent events: nothing forges a frame, and what is read is what was said."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import example, given, strategies as st

from bls_agent import ConfigurationError, EventStore, WrongTypeError
from bls_agent.devserver import DevServer
from bls_agent.runs import Gap, GapReason, StreamEvent, WriterLost
from bls_agent.runs.events import find_id, write_frame
from bls_agent.runs.sse import (
    EventFrames,
    encode_close,
    encode_followed,
    event_frames,
    read_last_event_id,
    stream_status,
    write_comment,
    write_retry,
)
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.event_source import EventSourceParser, Message, parse

FORGERY = "one\n\nevent: forged\ndata: {}\n\n"
HOSTILE = [
    FORGERY,
    FORGERY.replace("\n", "\r"),
    FORGERY.replace("\n", "\r\n"),
    FORGERY.replace("\n", "\u2028"),
    FORGERY.replace("\n", "\u2029"),
    FORGERY.replace("\n", "\x85"),
    FORGERY.replace("\n", "\x0b"),
    FORGERY.replace("\n", "\x1e"),
    "\ufeffdata: x",
    "id: 9-9",
    ": comment",
    " leading",
    "a\x00b",
    "\ud800",
    "事件",
    "",
    *HOSTILE_TEXTS.values(),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(HOSTILE)


def make_event(
    category: str = "llm",
    action: str = "stream",
    data: Any = None,
    *,
    event_id: str = "1704067200123-0",
) -> StreamEvent:
    """An event as a follower gives it."""
    event = {"category": category, "action": action}
    said = {} if data is None else data
    return StreamEvent(event_id, 1, "2025-01-01T12:00:00.123Z", 7, None, event, said)


def escaped(text: str) -> str:
    """What the documentation says of a name."""
    return "".join(
        f"\\u{ord(sign):04x}"
        if ord(sign) < 32
        or 0x7F <= ord(sign) < 0xA0
        or ord(sign) in {0x2028, 0x2029}
        or 0xD800 <= ord(sign) < 0xE000
        else sign
        for sign in text
    )


def test_a_frame_is_the_contracts() -> None:
    """Three lines and an empty one: id, name, and the application form."""
    event = make_event(data={"文本": "你好"})
    assert encode_followed(event) == (
        b"id: 1704067200123-0\nevent: llm.stream\ndata: " + event.json + b"\n\n"
    )
    assert parse(encode_followed(event)) == [
        Message("llm.stream", event.json.decode(), "1704067200123-0")
    ]


def test_a_frame_is_made_once() -> None:
    """All who follow are sent the same bytes object."""
    event = make_event()
    assert encode_followed(event) is encode_followed(event)


@given(category=NAMES, action=NAMES, data=JSON)
@example(category=FORGERY, action=FORGERY, data=FORGERY)
@example(category="a", action="b", data={"\u2028": ["\u2029", "\x85", "\r\n\0"]})
def test_what_is_read_is_what_was_said(category: str, action: str, data: Any) -> None:
    """Whatever an event holds: one frame, exactly its id, its name and its data."""
    event = make_event(category, action, {"said": data})
    stream = b"".join(
        [encode_followed(event), encode_followed(make_event()), encode_close()]
    )
    first, second, last = parse(stream)
    assert first.last_event_id == second.last_event_id == event.id
    assert first.type == f"{escaped(category)}.{escaped(action)}"
    assert orjson.loads(first.data) == orjson.loads(event.json)
    assert (second.type, last.type, last.data) == (
        "llm.stream",
        "close",
        '{"reason":"closed"}',
    )


@given(category=NAMES, data=JSON, event_id=NAMES)
def test_readers_of_unicode_lines_are_safe_too(
    category: str, data: Any, event_id: str
) -> None:
    """Who splits lines where Python does finds the same lines as a browser."""
    event = make_event(category, data={"said": data}, event_id=event_id)
    text = encode_followed(event).decode()
    assert text.splitlines() == text.split("\n")[:-1]
    assert text.count("\n") == (4 if event_id else 3)


def test_hostile_texts_of_the_corpus() -> None:
    """As category, action, id, key and value: one event with a name that has a dot."""
    for text in HOSTILE:
        event = make_event(text, text, {text: text}, event_id=text)
        [message] = parse(encode_followed(event))
        assert message.type == f"{escaped(text)}.{escaped(text)}"
        assert orjson.loads(message.data) == orjson.loads(event.json)


def test_names_of_ours_are_nobody_elses() -> None:
    """An event of a run always has a dot in its name, even one without a category."""
    [message] = parse(encode_followed(make_event("", "")))
    assert message.type == "."
    gap = Gap(1, GapReason.TRIMMED, "1-0", "5-0", 3)
    lost = WriterLost(1, "5-0")
    stream = (
        encode_followed(make_event()) + encode_followed(gap) + encode_followed(lost)
    )
    _, missing, silent = parse(stream)
    assert (missing.type, orjson.loads(missing.data)) == ("gap", gap.to_dict())
    assert (silent.type, orjson.loads(silent.data)) == ("writer_lost", lost.to_dict())
    assert missing.last_event_id == silent.last_event_id == "1704067200123-0"


def test_a_retry_and_a_comment_are_for_no_page() -> None:
    """They change how the client waits, and nothing else."""
    parser = EventSourceParser()
    assert parser.feed(write_retry(2000) + write_comment() * 2) == []
    assert (parser.retry, parser.comments) == (2000, 2)


def test_the_parser_reads_the_standards_examples() -> None:
    """The one that tests stand on is right: line ends, spaces, fields without a value."""
    assert parse(
        b"\xef\xbb\xbfdata: a\rdata:b\r\n\r\nid: 1\ndata\n\nid\ndata:  c\n\n"
    ) == [
        Message("message", "a\nb", ""),
        Message("message", "", "1"),
        Message("message", " c", ""),
    ]
    assert parse(b"id: 1\0\nevent: x\n\ndata: y\n\n") == [Message("message", "y", "")]
    parser = EventSourceParser()
    pieces = [bytes([byte]) for byte in "event: é\r\ndata: 你\r\n\r\n".encode()]
    assert [found for one in pieces for found in parser.feed(one)] == [
        Message("é", "你", "")
    ]


BAD_IDS = [
    "$",
    "-",
    "+",
    "(",
    "(1-0",
    "1-0\n",
    "1-0\n\nevent: x",
    " 1-0",
    "1-0 ",
    "1-0-0",
    "1-",
    "-1",
    "-1-0",
    "1_0-0",
    "\uff11-0",
    "1.0",
    "0x1-0",
    "null",
    "1-0\x00",
    "18446744073709551616-0",
    "0-18446744073709551616",
    "99999999999999999999-99999999999999999999",
    "1" * 10_240,
    "9" * 10_240 + "-0",
]


@pytest.mark.parametrize("text", BAD_IDS, ids=range(len(BAD_IDS)))
def test_what_is_no_id_is_refused(text: str) -> None:
    """In the header as in the query, with a message that is short."""
    for said in ((text, None), (None, text), (text, "1-0")):
        with pytest.raises(ConfigurationError, match="an id of an event is") as caught:
            read_last_event_id(*said)
        assert len(str(caught.value)) < 400


def test_the_header_wins() -> None:
    """A page's address stays the same when its EventSource comes back."""
    assert read_last_event_id("5-1", "3-0") == "5-1"
    assert read_last_event_id(None, "3-0") == "3-0"
    assert read_last_event_id("", "") is None
    assert read_last_event_id(None) is None
    assert read_last_event_id("0-0") == "0-0"
    assert read_last_event_id("1704067200000") == "1704067200000-0"
    assert read_last_event_id(f"{2**64 - 1}-{2**64 - 1}") == f"{2**64 - 1}-{2**64 - 1}"


@given(st.text())
def test_an_id_is_an_id_or_refused(text: str) -> None:
    """Whatever is sent: an id in its full form, nothing, or our own error."""
    try:
        found = read_last_event_id(text)
    except ConfigurationError:
        assert find_id(text) is None
    else:
        assert found is None if not text else re.fullmatch("[0-9]+-[0-9]+", found or "")


@pytest.mark.parametrize("heartbeat", [0, -1, float("nan"), float("inf")])
def test_a_heartbeat_is_a_time(heartbeat: float) -> None:
    with pytest.raises(ConfigurationError, match="heartbeat"):
        event_frames(EventStore("redis://127.0.0.1:1"), 1, heartbeat=heartbeat)


@pytest.fixture
async def store(own_server: DevServer) -> AsyncIterator[EventStore]:
    """A store on a server of the test's own, so that runs may have any number."""
    async with EventStore(own_server.url) as opened:
        yield opened


async def read_all(frames: EventFrames) -> tuple[list[Message], EventSourceParser]:
    """Read a stream to its end."""
    parser, found = EventSourceParser(), list[Message]()
    with anyio.fail_after(30):
        async with aclosing(frames):
            async for chunk in frames:
                found += parser.feed(chunk)
    return found, parser


async def write_run(store: EventStore, run_id: int, count: int) -> list[str]:
    """Write a run that has ended; give the ids."""
    new = [("llm", "stream", {"n": n}) for n in range(count)]
    return await store.add_many(run_id, [*new, ("system", "close")])


async def test_a_run_is_sent_to_its_end(store: EventStore) -> None:
    """How soon to come back, every event in order, and the last word."""
    ids = await write_run(store, 1, 1_200)
    messages, parser = await read_all(event_frames(store, 1))
    assert [message.last_event_id for message in messages] == [*ids, ids[-1]]
    assert [message.type for message in messages[-3:]] == [
        "llm.stream",
        "system.close",
        "close",
    ]
    assert parser.retry == 2000
    messages, _ = await read_all(event_frames(store, 1, ids[-3]))
    assert [message.last_event_id for message in messages] == [*ids[-2:], ids[-1]]


async def test_many_events_share_a_chunk(store: EventStore) -> None:
    """And none is longer than it has to be."""
    await store.add_many(1, [("a", "b", {"x": "x" * 100_000})] * 8)
    await store.add(1, "system", "close")
    chunks = [chunk async for chunk in event_frames(store, 1)]
    assert 4 <= len(chunks) <= 7
    assert max(map(len, chunks)) <= 256 * 1024
    await write_run(store, 2, 400)
    assert len([chunk async for chunk in event_frames(store, 2)]) <= 6


async def test_a_silent_run_has_a_heart(store: EventStore) -> None:
    """A comment after each time without an event; then what comes is sent."""
    await store.add(1, "a", "b")
    frames = event_frames(store, 1, heartbeat=0.05)
    parser = EventSourceParser()
    with anyio.fail_after(30):
        async with aclosing(frames):
            while parser.comments < 3:
                parser.feed(await anext(frames))
            await store.add(1, "system", "close")
            messages = [found async for one in frames for found in parser.feed(one)]
    assert [message.type for message in messages] == ["system.close", "close"]


async def test_who_had_everything_is_told_the_end(store: EventStore) -> None:
    """Where nobody looked beforehand whether the run has ended at the very place."""
    ids = await write_run(store, 1, 1)
    messages, _ = await read_all(event_frames(store, 1, ids[-1], heartbeat=0.1))
    assert [message.type for message in messages] == ["close"]


async def test_ending_a_stream_is_no_last_word(store: EventStore) -> None:
    """A server that stops ends it at once; the client is to come back."""
    await store.add(1, "a", "b")
    frames = event_frames(store, 1)
    found = list[bytes]()

    async def read() -> None:
        async for chunk in frames:
            found.append(chunk)
            came.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            came = anyio.Event()
            tasks.start_soon(read)
            await came.wait()
            await anyio.sleep(0)
            frames.end()
        frames.end()
    kinds = [message.type for message in parse(b"".join(found))]
    assert kinds in (["a.b"], [])
    assert b"\n: " not in b"".join(found)


async def test_statuses_of_a_stream(store: EventStore) -> None:
    """404 and 410 for what is not there, 204 for who had everything, 200 else."""
    ids = await write_run(store, 1, 2)
    assert await stream_status(store, 9) == 404
    assert await stream_status(store, 9, ids[0]) == 410
    assert await stream_status(store, 1) == 200
    assert await stream_status(store, 1, ids[0]) == 200
    assert await stream_status(store, 1, "0-0") == 200
    assert await stream_status(store, 1, f"{2**64 - 1}-{2**64 - 1}") == 200
    assert await stream_status(store, 1, ids[-1]) == 204
    await store.add(1, "lifecycle", "started")
    assert await stream_status(store, 1, ids[-1]) == 200


async def test_a_run_that_redis_has_lost_goes_on_with_its_writer(
    store: EventStore, admin: Any
) -> None:
    """Its stream is gone, and its next event follows: a browser has to come back."""
    async with store.run(1) as run:
        run.emit("a", "b")
        await run.flush()
        await admin.delete("run:1:events")
        assert await store.has_writer(1)
        assert await stream_status(store, 1) == 200
        assert await stream_status(store, 1, "5-0") == 200
    await admin.delete("run:1:events")
    assert not await store.has_writer(1)
    assert await stream_status(store, 1) == 404
    assert await stream_status(store, 1, "5-0") == 410


async def test_a_client_that_lacks_the_closing_event_is_sent_it(
    store: EventStore,
) -> None:
    """Its own last event is trimmed, and only the closing one stands behind it."""
    last = await store.add(1, "system", "close")
    assert last is not None
    assert await stream_status(store, 1, "1-0") == 200
    assert await stream_status(store, 1, last) == 204


async def test_what_is_no_stream_is_told(store: EventStore, admin: Any) -> None:
    """Following it raises, as asking for its status does."""
    await admin.set("run:5:events", "no stream")
    with pytest.raises(WrongTypeError):
        await stream_status(store, 5, "1-0")
    with pytest.raises(WrongTypeError):
        await read_all(event_frames(store, 5))


def test_frames_of_ours_are_ascii_where_the_data_is() -> None:
    """Nothing is added to what stands in an event."""
    assert write_frame("gap", b"{}") == b"event: gap\ndata: {}\n\n"
    assert encode_close() == b'event: close\ndata: {"reason":"closed"}\n\n'
    assert write_retry(2000) == b"retry: 2000\n\n"
    assert write_comment() == b": \n\n"
