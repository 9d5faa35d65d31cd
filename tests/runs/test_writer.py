"""A run from its beginning to its end: what is written, who may end it, what is counted."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import (
    ConfigurationError,
    EventStore,
    LeaseHeldError,
    WrongTypeError,
)
from bls_agent.connection.scripts import ADD_EVENTS
from bls_agent.runs import RunWriter, StreamEvent
from bls_agent.runs.new_events import add_arguments
from bls_agent.runs.reading import RunKeys
from tests.harness import eventually, is_gone, is_there
from tests.runs.writing import written


def names(events: list[StreamEvent]) -> list[str]:
    return [event.name for event in events]


async def test_a_run(store: EventStore, bare: Redis, run_id: int) -> None:
    """Begun, written, completed, closed; the lease is given back, the run expires."""
    keys = RunKeys(run_id)
    source = {"agent_id": "主管"}
    async with store.run(run_id, source=source, data={"task": "分析"}) as run:
        run.emit("agent", "tool_call", {"tool": "搜索"})
        run.emit("agent", "tool_result", {"n": 1}, source={"agent_id": "助手"})
        assert await run.flush()
        assert run.is_owner
        owner = await bare.get(keys.owner)
        assert owner is not None
        assert await bare.hget(keys.books, "owner") == owner
        assert 0 < await bare.pttl(keys.owner) <= 15_000
        run.result = {"answer": 42}
    events = await store.get_events(run_id)
    assert names(events) == [
        "lifecycle.started",
        "agent.tool_call",
        "agent.tool_result",
        "lifecycle.completed",
        "system.close",
    ]
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert [(event.source or {})["agent_id"] for event in events] == [
        "主管", "主管", "助手", "主管", "主管",
    ]  # fmt: skip
    assert events[0].data == {"task": "分析"}
    assert events[3].data == {"answer": 42}
    assert await bare.exists(keys.owner) == 0
    assert await bare.hget(keys.books, "owner") is None
    assert 86_300 < await bare.ttl(keys.events) <= 86_400
    assert not run.is_owner


@pytest.mark.parametrize("lifecycle", [True, False])
async def test_a_wrong_url_is_refused_at_the_opening(
    run_id: int, lifecycle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any event is lost, also in a program without an event loop."""
    monkeypatch.setenv("BLS_REDIS_URL", "nonsense")
    with pytest.raises(ConfigurationError, match="BLS_REDIS_URL"):
        async with EventStore().run(run_id, lifecycle=lifecycle):
            pass

    def open_plainly() -> None:
        with EventStore().run(run_id, lifecycle=lifecycle):
            pass

    with pytest.raises(ConfigurationError, match="BLS_REDIS_URL"):
        await anyio.to_thread.run_sync(open_plainly)


async def test_a_short_ttl_is_renewed_in_time(
    redis_url: str, bare: Redis, run_id: int
) -> None:
    """A run that is silent for longer than its TTL keeps its events."""
    keys = RunKeys(run_id)

    async def lives_for(least: int, most: int) -> bool:
        return least < await bare.pttl(keys.events) <= most

    async with EventStore(redis_url, ttl=2) as short, short.run(run_id):
        await eventually(lambda: lives_for(1_000, 1_800))
        await eventually(lambda: lives_for(1_800, 2_000))


async def test_an_exception_leaves_unchanged(store: EventStore, run_id: int) -> None:
    """It is told in the run, without its secrets; nothing wraps it."""
    error = ValueError("redis://user:geheim@there failed")

    async def host() -> None:
        async with store.run(run_id) as run:
            run.complete({"not": "so"})
            raise error

    with pytest.raises(ValueError, match="geheim") as caught:
        await host()
    assert caught.value is error
    assert error.__context__ is None
    events = await store.get_events(run_id)
    assert names(events)[1:] == ["lifecycle.failed", "system.close"]
    assert events[1].data == {
        "error": {"type": "ValueError", "message": "redis://***@there failed"}
    }


async def test_the_error_of_a_task(store: EventStore, run_id: int) -> None:
    """Where a task group has made a group of one error, that one is told."""
    one = ValueError("坏")
    group = ExceptionGroup("a TaskGroup", [ExceptionGroup("another", [one])])
    with pytest.raises(ExceptionGroup) as caught:
        async with store.run(run_id):
            raise group
    assert caught.value is group
    events = await store.get_events(run_id)
    assert events[1].data == {"error": {"type": "ValueError", "message": "坏"}}


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (asyncio.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
        (GeneratorExit(), "cancelled"),
        (SystemExit(0), "cancelled"),
        (SystemExit(3), "failed"),
        (ExceptionGroup("many", [ValueError(), KeyError()]), "failed"),
        (BaseExceptionGroup("one", [KeyboardInterrupt()]), "cancelled"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_how_it_ended(
    store: EventStore, run_id: int, error: BaseException, action: str
) -> None:
    run = await store.run(run_id).__aenter__()
    assert not await run.__aexit__(type(error), error, None)  # type: ignore[func-returns-value]
    assert await written(store, run_id) == [
        "lifecycle.started", f"lifecycle.{action}", "system.close",
    ]  # fmt: skip


async def test_cancelled_by_a_scope(store: EventStore, run_id: int) -> None:
    """Leaving is shielded from the cancellation that causes it; it goes on afterwards."""
    with anyio.CancelScope() as scope:
        async with store.run(run_id) as run:
            run.emit("llm", "stream", {"content": "last"})
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert await written(store, run_id) == [
        "lifecycle.started", "llm.stream", "lifecycle.cancelled", "system.close",
    ]  # fmt: skip


async def test_a_storm_of_cancellations(store: EventStore, run_id: int) -> None:
    """Who is cancelled again and again while he leaves has left in order, and is cancelled."""
    inside = anyio.Event()
    run = store.run(run_id)

    async def host() -> None:
        async with run:
            for n in range(2_000):
                run.emit("agent", "tool_call", {"n": n})
            inside.set()
            await anyio.sleep_forever()

    task = asyncio.create_task(host())
    await inside.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    assert run.stats().written == 2_003
    found = await written(store, run_id)
    assert len(found) == 2_003
    assert found[-2:] == ["lifecycle.cancelled", "system.close"]


async def test_the_host_is_not_cancelled_by_our_faults(
    store: EventStore, run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Our tasks may be cancelled by whoever ends everything: the run is closed all the same."""
    async with store.run(run_id) as run:
        await run.flush()
        ours = [
            task for task in asyncio.all_tasks() if "bls-agent run" in task.get_name()
        ]
        assert len(ours) == 2
        for task in ours:
            task.cancel()
        await asyncio.wait(ours)
        run.emit("agent", "tool_call")
    found = await written(store, run_id)
    assert found[1:] == ["agent.tool_call", "lifecycle.completed", "system.close"]
    assert "Traceback" not in caplog.text


async def test_one_writer_at_a_time(
    store: EventStore, redis_url: str, run_id: int
) -> None:
    """A second one is refused as long as the first lives; nothing is written by it."""
    async with store.run(run_id), EventStore(redis_url) as other:
        for another in (store, other):
            with pytest.raises(LeaseHeldError) as caught:
                async with another.run(run_id, data={"mine": True}):
                    pytest.fail("it was opened")
            assert caught.value.key == RunKeys(run_id).events
            assert 0 < (caught.value.remaining or 0) <= 15
            assert "lifecycle=False" in str(caught.value)
    async with store.run(run_id):
        pass
    assert await written(store, run_id) == [
        "lifecycle.started", "lifecycle.completed", "system.close",
    ] * 2  # fmt: skip


async def test_a_dead_lease_after_a_clock_set_back(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """No more is left of it than it was made for, whoever made it."""
    for holder, ends in (("ab12.400@nobody", 3_600_000), ("poison", None)):
        await bare.set(RunKeys(run_id).owner, holder, px=ends)
        with pytest.raises(LeaseHeldError) as caught:
            await store.run(run_id, lease=0.4).__aenter__()
        assert 0 < (caught.value.remaining or 0) <= 0.4
        await eventually(lambda: _can_be_opened(store, run_id))


async def _can_be_opened(store: EventStore, run_id: int) -> bool:
    try:
        async with store.run(run_id, lease=0.4):
            return True
    except LeaseHeldError:
        return False


async def test_contributors(store: EventStore, bare: Redis, run_id: int) -> None:
    """They begin and end nothing, and need no lease."""
    async with store.run(run_id, lifecycle=False, source={"team_name": "b"}) as early:
        early.emit("agent", "worker")
        assert await early.flush()
        assert not early.is_owner
        assert await bare.exists(RunKeys(run_id).owner) == 0
        async with store.run(run_id) as run:
            early.emit("agent", "worker")
            assert await early.flush()
            run.emit("agent", "team")
    assert await written(store, run_id) == [
        "agent.worker",
        "lifecycle.started",
        "agent.worker",
        "agent.team",
        "lifecycle.completed",
        "system.close",
    ]
    assert await bare.hget(RunKeys(run_id).books, "owner") is None


async def test_another_type(store: EventStore, bare: Redis, run_id: int) -> None:
    await bare.set(RunKeys(run_id).events, "precious")
    with pytest.raises(WrongTypeError):
        async with store.run(run_id):
            pytest.fail("it was opened")
    assert await bare.get(RunKeys(run_id).events) == b"precious"
    assert await bare.exists(RunKeys(run_id).owner, RunKeys(run_id).books) == 0


@pytest.mark.parametrize("name", ["books", "owner"])
async def test_another_type_beside_the_stream(
    store: EventStore, bare: Redis, run_id: int, name: str
) -> None:
    """The key that is wrong is named, not the stream, which nobody should delete."""
    await store.add(run_id, "a", "b")
    key: str = getattr(RunKeys(run_id), name)
    await bare.delete(key)
    await bare.rpush(key, "precious")
    for attempt in (store.run(run_id).__aenter__(), store.add(run_id, "a", "b")):
        with pytest.raises(WrongTypeError) as caught:
            await attempt
        assert caught.value.key == key
        assert caught.value.expected == {"books": "hash", "owner": "string"}[name]
    assert await bare.lrange(key, 0, -1) == [b"precious"]


async def test_a_batch_renews_the_lease(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """Whoever writes all the time needs no renewals, which may be late for that."""
    keys = RunKeys(run_id)
    async with store.run(run_id, lease=60.0) as run:
        lease: Any = run._run_lease
        lease._valid_until, due = float("-inf"), lease.due
        assert await bare.pexpire(keys.owner, 10_000)
        run.emit("a", "b")
        assert await run.flush(20)
        assert await bare.pttl(keys.owner) > 30_000
        assert run.is_owner
        assert lease.due != due
        # A batch that is sent once more finds that it was written, and says it, too.
        again = add_arguments(
            (),
            maxlen=1,
            ttl=600,
            floor=(0, "0-0"),
            token=lease.token,
            number=1,
            lease=90,
        )
        assert await bare.expire(keys.events, 100)
        async with store._access.pool.to(keys.events) as connection:
            reply = await ADD_EVENTS.run(connection, keys.all, again)
        assert reply[2:] == [b"again", 1, b"ours"]
        assert await bare.pttl(keys.owner) > 70_000
        assert 500 < await bare.ttl(keys.events) <= 600
    assert await bare.exists(keys.owner) == 0


async def test_a_batch_renews_no_lease_of_others(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """Taken over meanwhile: what is written on neither keeps nor takes the run."""
    keys = RunKeys(run_id)
    async with store.run(run_id, lease=60.0) as run:
        lease: Any = run._run_lease
        lease._valid_until = float("-inf")
        await bare.set(keys.owner, "another", px=10_000)
        run.emit("a", "b")
        assert await run.flush(20)
        assert 0 < await bare.pttl(keys.owner) <= 10_000
        assert not run.is_owner


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("run_id", {"run_id": -1}),
        ("run_id", {"run_id": "1"}),
        ("source", {"source": {"agent": "x"}}),
        ("source['agent_id']", {"source": {"agent_id": "\n"}}),
        ("lifecycle", {"lifecycle": 1}),
        ("lease", {"lease": 0}),
        ("lease", {"lease": 0.05}),
        ("lease", {"lease": "15"}),
        ("coalesce", {"coalesce": -0.1}),
        ("coalesce", {"coalesce": float("nan")}),
        ("coalesce", {"coalesce": True}),
        ("buffer", {"buffer": 10}),
        ("buffer", {"buffer": 1e4}),
        ("buffer_bytes", {"buffer_bytes": 0}),
        ("buffer_bytes", {"buffer_bytes": 2 * 1024 * 1024}),
        ("shutdown_timeout", {"shutdown_timeout": float("inf")}),
    ],
    ids=repr,
)
def test_arguments_are_checked_at_construction(
    name: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EventStore("redis://nowhere").run(**({"run_id": 1} | wrong))
    assert caught.value.name == name


async def test_it_works_once(store: EventStore, run_id: int) -> None:
    run = store.run(run_id)
    async with run:
        with pytest.raises(ConfigurationError, match="opened once"):
            await run.__aenter__()
    with pytest.raises(ConfigurationError, match="opened once"):
        await run.__aenter__()
    await run.__aexit__(None, None, None)
    assert len(await written(store, run_id)) == 3


async def test_emitting_at_the_wrong_time(
    store: EventStore, run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Never raises; dropped, counted, said once."""
    run = store.run(run_id)
    for _ in range(3):
        run.emit("llm", "stream")
    assert await run.flush(0.1) or True
    async with run:
        pass
    for _ in range(2):
        run.emit("llm", "stream")
    stats = run.stats()
    assert stats.dropped == {"not_open": 3, "closed": 2}
    assert stats.accepted == stats.written + 5 == 8
    assert len([r for r in caplog.records if "was dropped" in r.message]) == 2
    assert len(await written(store, run_id)) == 3


class Sour:
    """Raises at everything."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError

    def __eq__(self, _: object) -> bool:
        raise RuntimeError


async def test_emit_takes_anything(
    store: EventStore, run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is becomes a readable event; what is too long is cut, counted, said."""
    sour: Any = Sour()
    loop: dict[str, Any] = {}
    loop["self"] = loop
    async with store.run(run_id) as run:
        run.emit("\ud800\n", "", {"n": float("nan"), "s": {1}})
        run.emit(sour, sour, sour, source=sour)
        run.emit("a", "b", loop, source={"agent_id": 5, "unknown": sour})  # type: ignore[dict-item]
        run.emit("a", "b", {"text": "x" * 3_000_000})
        run.emit("llm", "stream", {"content": "y" * 3_000_000})
        run.emit(None, None, [1])  # type: ignore[arg-type]
        run.result = sour
        assert await run.flush()
    events = await store.get_events(run_id)
    assert [event.sequence for event in events] == list(range(1, 10))
    assert not any(event.faults for event in events)
    assert events[1].name == "\\ud800.unknown"
    assert events[1].data == {"n": None, "s": [1]}
    assert events[2].name == "Sour.Sour"
    assert events[3].data == {"self": "<cycle>"} or "cycle" in str(events[3].data)
    assert events[3].source is not None
    assert events[3].source["agent_id"] == "5"
    assert all(len(event.json) < 1_100_000 for event in events)
    assert run.stats().cut == 2
    assert caplog.text.count("exceed event_size_limit and are cut") == 1
    assert run.stats().dropped == {}


async def test_stats_and_repr(redis_url: str, run_id: int, bare: Redis) -> None:
    """They tell how it is, and no secrets."""
    url = redis_url.replace("redis://", "redis://:geheim@", 1)
    run = EventStore(url).run(run_id)
    assert "geheim" not in repr(run)
    assert f"RunWriter {run_id} not_open" in repr(run)
    async with EventStore(redis_url) as store, store.run(run_id) as run:
        await run.flush()
        assert "owned" in repr(run)
        stats = run.stats()
        assert stats.run_id == run_id
        assert stats.open
        assert stats.is_owner
        assert (stats.accepted, stats.written, stats.queued) == (1, 1, 0)
        async with store.run(run_id, lifecycle=False) as guest:
            assert "open" in repr(guest)
    assert "closed" in repr(run)
    assert not run.stats().open


async def test_contributors_leave_nothing_in_the_metadata(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """However often a service adds to a long run, its metadata do not grow."""
    async with store.run(run_id):
        for _ in range(3):
            async with store.run(run_id, lifecycle=False) as guest:
                guest.emit("a", "b")
        found = await bare.hkeys(RunKeys(run_id).books)
    assert len([field for field in map(str, found) if "batch:" in field]) <= 1


async def test_a_silent_run_lives_on(redis_url: str, bare: Redis, run_id: int) -> None:
    """Renewals keep its lease and all of its keys, however long nothing is written."""
    keys = RunKeys(run_id)
    async with EventStore(redis_url, ttl=100) as store, store.run(run_id, lease=0.3):
        for key in (keys.events, keys.books):
            await eventually(lambda key=key: is_there(bare, key))  # type: ignore[misc]
            await bare.expire(key, 1)

        async def refreshed() -> bool:
            return min(await bare.ttl(keys.events), await bare.ttl(keys.books)) > 50

        await eventually(refreshed)
        assert await bare.pttl(keys.owner) <= 300


@pytest.mark.parametrize("by", ["the same", "another process"])
async def test_a_run_that_is_deleted_goes_on(
    redis_url: str, store: EventStore, bare: Redis, run_id: int, by: str
) -> None:
    """Its sequence, too: nothing counts as lost, and it is closed by whoever opened it."""
    other = store if by == "the same" else EventStore(redis_url)
    followed = store.follow(run_id)
    async with store.run(run_id, lease=1.0) as run:
        run.emit("a", "b")
        await run.flush()
        assert len(await followed.batch(5)) == 2
        assert await other.delete(run_id)
        assert not await store.exists(run_id)
        run.emit("a", "c")
        await run.flush()
        books = list(map(str, await bare.hkeys(RunKeys(run_id).books)))
        assert "b'owner'" in books
        items = await followed.batch(5)
        assert all(isinstance(item, StreamEvent) for item in items)
    events = await store.get_events(run_id)
    assert names(events) == ["a.c", "lifecycle.completed", "system.close"]
    assert [event.sequence for event in events] == [3, 4, 5]
    assert await other.delete(run_id)  # nobody lives on it now: it begins anew
    await other.add(run_id, "a", "b")
    assert [event.sequence for event in await store.get_events(run_id)] == [1]
    await other.aclose()


async def test_many_runs_share_a_connection(
    store: EventStore, bare: Redis, run_id: int
) -> None:
    """One connection; two tasks for each run, which end with it."""
    runs = [store.run(run_id + n, lease=2.0) for n in range(20)]
    for run in runs:
        await run.__aenter__()
    ours = [task for task in asyncio.all_tasks() if "bls-agent run" in task.get_name()]
    assert len(ours) == 40
    clients = [c for c in await bare.client_list() if c["name"].startswith("bls-runs")]
    assert len(clients) == 1
    for run in runs:
        await run.__aexit__(None, None, None)
    assert not [t for t in asyncio.all_tasks() if "bls-agent run" in t.get_name()]
    for n in range(20):
        assert len(await written(store, run_id + n)) == 3
        await store.delete(run_id + n)


async def test_left_in_another_loop(redis_url: str, run_id: int, bare: Redis) -> None:
    """Flushed and left from another thread's loop: done where it lives."""
    async with EventStore(redis_url) as store:
        run = await store.run(run_id).__aenter__()

        async def leave() -> bool:
            run.emit("a", "b")
            flushed = await run.flush()
            await run.__aexit__(None, None, None)
            return bool(flushed)

        assert await anyio.to_thread.run_sync(lambda: asyncio.run(leave()))
        assert await written(store, run_id) == [
            "lifecycle.started", "a.b", "lifecycle.completed", "system.close",
        ]  # fmt: skip


def test_a_loop_that_was_closed(redis_url: str, run_id: int) -> None:
    """What lived in it is dropped; emitting and leaving harm nobody; the next one works."""
    store = EventStore(redis_url)
    loop = asyncio.new_event_loop()
    run: RunWriter = loop.run_until_complete(store.run(run_id, lease=0.5).__aenter__())
    loop.close()
    run.emit("a", "b")
    assert run.stats().dropped == {"closed": 1}
    asyncio.run(run.flush(0.1))
    asyncio.run(run.__aexit__(None, None, None))

    async def again() -> list[str]:
        async with store:
            await asyncio.sleep(0.6)  # the lease of the one before
            async with store.run(run_id):
                pass
            found = await written(store, run_id)
            await store.delete(run_id)
            return found

    assert asyncio.run(again())[-1] == "system.close"


async def test_never_left(store: EventStore, bare: Redis, run_id: int) -> None:
    """Whoever forgets to leave is told; what was emitted is written, the lease ends."""
    runs = [store.run(run_id, lease=0.3)]
    await runs[0].__aenter__()
    runs[0].emit("a", "b")
    writing: Any = runs[0]._writing
    with pytest.warns(ResourceWarning, match="never left"):
        let_go(runs)
    await eventually(lambda: writing._end is not None and writing._end.done())
    assert await written(store, run_id) == ["lifecycle.started", "a.b"]
    await eventually(lambda: is_gone(bare, RunKeys(run_id).owner))


def let_go(runs: list[RunWriter]) -> None:
    """Forget them, whatever else may still hold them."""
    runs.clear()
    gc.collect()


async def test_an_error_that_has_no_text(store: EventStore, run_id: int) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(MuteError):
        async with store.run(run_id):
            raise MuteError
    events = await store.get_events(run_id)
    assert events[1].data["error"]["type"] == "MuteError"
