"""How an event is taken from its host, and how pieces of a text become one event."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given, strategies as st

from bls_agent import (
    EventStore,
)
from bls_agent.runs.new_events import LONGEST, TEXTS, PendingEvent, capture, merge
from bls_agent.runs.writer_task import HighWaterMarks

MIB = 1024 * 1024
NOBODY = ("", "", "", "")


def taken(
    data: object,
    *,
    at: float = 1.0,
    name: tuple[str, str] = ("llm", "stream"),
    agent: str = "",
    merges: bool = True,
) -> PendingEvent:
    """Take an event as a writer does."""
    source = (agent, "", "", "")
    return capture(*name, data, source, at=at, limit=MIB, merges=merges)


def said(event: PendingEvent) -> Any:
    """What its data say."""
    return json.loads(event.encode(MIB)[0])


def test_marks_are_never_seen_half_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread reads the old or the new values, but not zeros between them."""
    marks = HighWaterMarks()
    marks.raise_to(1, 5, "5-0", 100.0)
    seen: list[tuple[int, str]] = []
    reader = threading.Thread(target=lambda: seen.append(marks.of(1, 1.0)))

    class Marks(OrderedDict[int, tuple[int, str, float]]):
        def __setitem__(self, run_id: int, value: tuple[int, str, float]) -> None:
            reader.start()
            reader.join(0.2)  # with the lock, the reader waits longer
            super().__setitem__(run_id, value)

    slow = Marks()
    OrderedDict.__setitem__(slow, 1, marks._marks[1])
    monkeypatch.setattr(marks, "_marks", slow)
    marks.raise_to(1, 6, "6-0", 100.0)
    reader.join()
    assert seen == [(6, "6-0")]


def test_a_stream_of_tokens_becomes_one_text() -> None:
    """The time is that of the first piece, the other fields stay where they were."""
    events = [
        taken({"model": "深度", "content": piece, "index": 0}, at=float(at))
        for at, piece in enumerate(["你", "好", ", ", "世界"])
    ]
    [one] = merge(events, MIB)
    assert (
        one.encode(MIB)[0]
        == '{"model":"深度","content":"你好, 世界","index":0}'.encode()
    )
    assert one.at == 0.0


@pytest.mark.parametrize(
    "other",
    [
        {"content": "b", "index": 2},
        {"content": "b", "index": True},
        {"content": "b", "index": 1, "more": None},
        {"index": 1, "content": "b"},
        {"content": "b", "index": "1"},
        {"delta": "b", "index": 1},
        {"content": "b", "index": 1.0},
        {"content": None, "index": 1},
        {"content": "b", "delta": "c", "index": 1},
        {"content": "b", "index": 1, "more": []},
        {"content": "b" * 10_001, "index": 1},
        ["b"],
        None,
    ],
    ids=str,
)
def test_pieces_of_another_kind_stay_apart(other: object) -> None:
    """One more or other field, another type or another order: two events."""
    one, two = merge([taken({"content": "a", "index": 1}), taken(other)], MIB)
    assert said(one) == {"content": "a", "index": 1}
    expected = other if isinstance(other, dict) else {"value": other}
    assert said(two) == ({} if other is None else expected)


def test_another_source_or_kind_of_event_stays_apart() -> None:
    data = {"content": "a"}
    for other in (
        taken(data, agent="someone"),
        taken(data, name=("llm", "reasoning")),
        taken(data, name=("agent", "stream")),
        taken(data, merges=False),
    ):
        assert len(merge([taken(data), other], MIB)) == 2


def test_what_stands_in_between_keeps_its_place() -> None:
    events = [
        taken({"content": "a"}),
        taken({"content": "b"}),
        taken({"tool": "x"}, name=("agent", "tool_call")),
        taken({"content": "c"}),
        taken({"content": "d"}),
    ]
    assert [said(one) for one in merge(events, MIB)] == [
        {"content": "ab"},
        {"tool": "x"},
        {"content": "cd"},
    ]


def test_a_batch_may_be_made_twice() -> None:
    """Merging changes nothing in what it is given."""
    events = [taken({"content": "a"}), taken({"content": "b"})]
    assert [said(one) for one in merge(events, MIB)] == [{"content": "ab"}]
    assert [said(one) for one in merge(events, MIB)] == [{"content": "ab"}]
    assert [said(one) for one in events] == [{"content": "a"}, {"content": "b"}]


texts = st.text(st.characters(codec=None), max_size=12)  # lone surrogates, too
pieces = st.lists(
    st.tuples(
        st.sampled_from(sorted(TEXTS)[:2]),
        texts,
        st.sampled_from([{}, {"n": 1}, {"n": True}, {"n": "x"}]),
    ),
    max_size=30,
)


@given(pieces)
def test_no_text_is_lost_and_nothing_is_mixed(
    told: list[tuple[str, str, dict[str, Any]]],
) -> None:
    """All texts together say the same; so do those of each kind, in their order."""
    events = [taken({name: text, **rest}) for name, text, rest in told]
    merged = merge(events, MIB)

    def streams(of: list[PendingEvent]) -> list[tuple[Any, str]]:
        found: list[tuple[Any, str]] = []
        for event in of:
            data = said(event)
            name = next(iter(data))
            text = data.pop(name)
            kind = (name, json.dumps(data))
            if found and found[-1][0] == kind:
                text = found.pop()[1] + text
            found.append((kind, text))
        return found

    assert streams(merged) == streams(events)
    assert all(a.shape != b.shape for a, b in pairwise(merged))


@given(st.lists(st.sampled_from(["a" * 9_000, "字" * 9_000, "\ud800" * 5_000, "b"])))
def test_a_merged_text_is_below_64_kib(long: list[str]) -> None:
    merged = merge([taken({"content": text}) for text in long], MIB)
    for event in merged:
        assert len(event.text.encode("utf-8", "backslashreplace")) <= LONGEST
    assert "".join(one.text for one in merged) == "".join(long)


@pytest.mark.parametrize("limit", [1_024, 4_096, 2 * LONGEST])
@pytest.mark.parametrize(
    "text",
    ["z" * 100, "\x1b\x00" * 10, '"\\"' * 9, "深度求索" * 5, "\ud800", "a\n"],
    ids=["plain", "control", "quotes", "chinese", "surrogate", "lines"],
)
def test_what_is_merged_is_not_cut(text: str, limit: int) -> None:
    """Texts that fit one by one fit together, whatever JSON makes of them."""
    rest = {"name": '"' * 100, "\x00" * 20: 1 << 60}
    events = [taken({"content": f"{at}{text}", **rest}) for at in range(400)]
    merged = merge(events, limit)
    assert len(merged) < 400
    assert not any(event.encode(limit)[1] for event in merged)
    told = "".join(event.text for event in merged)
    assert told == "".join(f"{at}{text}" for at in range(400))


def test_what_is_too_long_alone_is_not_merged() -> None:
    """Each keeps of its own what there is room for."""
    events = [taken({"content": "a", "x" * 2_000: 1}) for _ in range(3)]
    assert len(merge(events, 1_024)) == 3


def test_what_is_taken_does_not_change_with_the_host() -> None:
    """The host may use its data again at once."""
    for data in ({"content": "a"}, {"content": "a", "deep": [1]}):
        event = taken(data)
        data["content"] = "b"
        data["more"] = "c"
        assert said(event)["content"] == "a"
        assert "more" not in said(event)


def test_ranks() -> None:
    """When there is no room pieces of texts go first, the run's own events last."""
    assert taken({"content": "a"}).rank == 0
    assert taken({"content": [1]}).rank == 0
    assert taken({}, name=("llm", "reasoning")).rank == 1
    assert taken({}, name=("lifecycle", "started")).rank == 2
    assert taken({}, name=("system", "close")).rank == 2


class Hostile(dict[str, Any]):
    """Data that raise whatever is asked of them."""

    def keys(self) -> Any:
        raise RuntimeError

    def items(self) -> Any:
        raise RuntimeError

    __iter__ = __len__ = __repr__ = keys


@pytest.mark.parametrize(
    ("data", "too_long"),
    [
        ({"n": float("nan")}, False),
        ({1: {2, 3}}, False),
        ({"content": "\ud800"}, False),
        ({"content": "x" * 3 * MIB}, True),
        (b"bytes", False),
        (Hostile(a=1), False),
        ({"a": Hostile(a=1)}, False),
    ],
    ids=["nan", "sets", "surrogates", "long", "bytes", "hostile", "hostile-inside"],
)
def test_anything_is_taken(data: object, *, too_long: bool) -> None:
    event = capture("llm", "stream", data, NOBODY, at=1.0, limit=MIB, merges=True)
    payload, cut_now = event.encode(MIB)
    assert len(payload) <= MIB
    assert isinstance(json.loads(payload), dict)
    assert cut_now is too_long


async def test_tokens_are_merged_and_nothing_is_lost(
    store: EventStore, run_id: int
) -> None:
    """The first is written at once; all together say what was emitted."""
    async with store.run(run_id) as run:
        await run.flush()
        for n in range(300):
            run.emit("llm", "stream", {"content": f"{n};", "index": 0})
            if n % 50 == 0:
                await anyio.sleep(0.01)
        run.emit("llm", "stream", {"content": "end", "index": 1})
    events = await store.get_events(run_id)
    texts = [event.data["content"] for event in events if event.action == "stream"]
    assert "".join(texts) == "".join(f"{n};" for n in range(300)) + "end"
    assert 2 <= len(texts) < 20
    assert texts[-1] == "end"
    stats = run.stats()
    assert stats.merged == 301 - len(texts)
    assert stats.written == stats.accepted == 304


async def test_nothing_is_merged_where_that_is_not_wanted(
    store: EventStore, run_id: int
) -> None:
    async with store.run(run_id, coalesce=0) as run:
        for n in range(100):
            run.emit("llm", "stream", {"content": str(n)})
    events = await store.get_events(run_id)
    assert [event.data.get("content") for event in events[1:-2]] == [
        str(n) for n in range(100)
    ]
    assert run.stats().merged == 0


async def test_eight_threads(store: EventStore, run_id: int) -> None:
    """Each thread's events are all there, in its order."""
    async with store.run(run_id, coalesce=0, buffer=20_000) as run:

        def write(thread: int) -> None:
            for n in range(500):
                run.emit("agent", "worker", {"thread": thread, "n": n})

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
        assert await run.flush(30)
    events = await store.get_events(run_id)
    assert [event.sequence for event in events] == list(range(1, 4_004))
    for number in range(8):
        theirs = [e.data["n"] for e in events if e.data.get("thread") == number]
        assert theirs == list(range(500))


async def test_what_comes_behind_the_end(store: EventStore, run_id: int) -> None:
    """A thread that has looked before the run was closed comes too late: counted."""
    async with store.run(run_id) as run:
        pass
    sink: Any = run._writing
    late = sink.own_event("agent", "worker", {})
    batch = sink.prepare([late])
    assert list(batch) == []
    stats = run.stats()
    assert stats.dropped == {"closed": 1}


@pytest.mark.parametrize("first", [1, 3])
async def test_nothing_stands_between_the_outcome_and_the_close(
    store: EventStore, run_id: int, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Also where a batch ends between them: what comes behind the outcome is counted."""
    async with store.run(run_id) as run:
        await run.flush()
        sink: Any = run._writing
        ends: list[PendingEvent] = []
        with monkeypatch.context() as patch:
            patch.setattr(run._delivery, "put", ends.append)
            run._put_end(sink, None)
        items = [ends[0], sink.own_event("agent", "worker", {}), ends[1]]
        batches = [sink.prepare(items[:first]), sink.prepare(items[first:])]
        written = [event for batch in batches for event in batch]
        assert written[-2:] == ends
        assert len(written) + run.stats().dropped.get("closed", 0) == 3
        assert [batch.ends for batch in batches] == [first == 3, first == 1]
        sink._has_end = False
