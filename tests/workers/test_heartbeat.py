"""A worker's heartbeat: what stands in Redis, who owns it, how it ends."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import secrets
import threading
import time
import warnings
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from bls_agent import (
    ConfigurationError,
    LeaseHeldError,
    ProjectAgent,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.keys import OWNER, place_beside
from bls_agent.devserver import DevServer
from bls_agent.workers import (
    BacktestWorkerHeartbeat,
    DataWorkerHeartbeat,
    ExecutionNodeHeartbeat,
    GenericHeartbeat,
    Heartbeat,
    SchedulerHeartbeat,
    TaskTimerHeartbeat,
    WorkerHeartbeat,
    WorkerStatus,
)
from tests.harness import eventually
from tests.programs import run_python

SHORT: dict[str, Any] = {"interval": 0.2, "ttl": 1.0}


def owner_of(key: str) -> str:
    """Where the owner's token stands."""
    return OWNER.locate(place=place_beside(key))


async def seen(bare: Redis, key: str) -> dict[str, Any]:
    """What a reader sees."""
    value = await bare.get(key)
    return {} if value is None else json.loads(value)


@pytest.mark.parametrize(
    ("heartbeat", "key"),
    [
        (DataWorkerHeartbeat.create("d{n}", stats={"行": 1}), "heartbeat:data_worker:d{n}"),
        (BacktestWorkerHeartbeat.create("回测:{n}*?[a]"), "backtest:worker:回测:{n}*?[a]"),
        (ExecutionNodeHeartbeat.create("e {n}", host="主机", port=9), "heartbeat:node:e {n}"),
        (SchedulerHeartbeat.create("s{n}"), "heartbeat:scheduler:s{n}"),
        (TaskTimerHeartbeat.create("t{n}", jobs_count=2), "heartbeat:task_timer:t{n}"),
        (GenericHeartbeat(kind_name="下载", worker_id="上{n}", own={"页": [3]}), "heartbeat:下载:上{n}"),
    ],
)  # fmt: skip
async def test_byte_for_byte(
    redis_url: str, bare: Redis, heartbeat: WorkerHeartbeat, key: str
) -> None:
    """Key, fields, their order and the TTL of the contract; gone at the end."""
    assert heartbeat.key == key
    fields = list(json.loads(heartbeat.to_json()))
    async with Heartbeat(heartbeat, redis=redis_url) as beat:
        value: Any = await bare.get(key)
        shown = json.loads(value)
        assert list(shown) == fields
        assert value.decode() == beat.heartbeat.changed(
            timestamp=shown["timestamp"]
        ).to_json()  # fmt: skip
        assert 25_000 < await bare.pttl(key) <= 30_000
        assert 25_000 < await bare.pttl(owner_of(key)) <= 30_000
        assert beat.stats().owned
    assert not beat.stats().owned
    assert await bare.exists(key, owner_of(key)) == 0


async def test_kept_alive(redis_url: str, bare: Redis, said: Any) -> None:
    """It outlives its TTL by far, and says each time when it was said."""
    async with Heartbeat(said, redis=redis_url, **SHORT) as beat:
        first, began = await seen(bare, said.key), time.monotonic()
        while time.monotonic() < began + 1.5:
            assert 0 < await bare.pttl(said.key) <= 1_000
            await anyio.sleep(0.02)
        last = await seen(bare, said.key)
        assert 4 <= beat.stats().writes <= 2 + (time.monotonic() - began) / 0.16
        assert beat.owned
    assert last["last_heartbeat"] == last["timestamp"] > first["timestamp"]
    assert last["started_at"] == first["started_at"] == said.started_at
    assert datetime.fromisoformat(last["timestamp"]).tzinfo is not None


async def test_update(redis_url: str, bare: Redis, said: Any) -> None:
    """What changes is written at once; what does not fit is refused and changes nothing."""
    async with Heartbeat(said, redis=redis_url) as beat:
        beat.update(running_tasks=3, status=WorkerStatus.STOPPING, task_uuids=["甲"])
        await eventually(lambda: beat.stats().writes == 2, 5.0)
        shown = await seen(bare, said.key)
        assert shown["running_tasks"] == 3
        assert shown["status"] == "stopping"
        assert shown["task_uuids"] == ["甲"]
        for wrong in (
            {"running_tasks": -1},
            {"status": "asleep"},
            {"worker_id": "other"},
            {"unknown": 1},
        ):
            with pytest.raises(ConfigurationError):
                beat.update(**wrong)
        assert beat.heartbeat.to_dict() | {"timestamp": "", "last_heartbeat": ""} == (
            shown | {"timestamp": "", "last_heartbeat": ""}
        )


async def test_a_kind_of_ones_own(redis_url: str, bare: Redis) -> None:
    """Two texts are enough; what a contract's kind may not hold, this one may."""
    number = secrets.token_hex(4)
    async with Heartbeat("下载", number, redis=redis_url) as beat:
        beat.update(页=[3], status="stopping", message=None)
        await eventually(lambda: beat.stats().writes == 2, 5.0)
        shown = await seen(bare, f"heartbeat:下载:{number}")
        assert [*shown] == ["status", "timestamp", "页", "message"]
        assert (shown["status"], shown["页"]) == ("stopping", [3])
        for wrong in ({"status": "asleep"}, {"页": object()}):
            with pytest.raises(ConfigurationError):
                beat.update(**wrong)
        beat.update(页=4)
        assert isinstance(beat.heartbeat, GenericHeartbeat)
        assert beat.heartbeat.own == {"页": 4, "message": None}
    assert await seen(bare, f"heartbeat:下载:{number}") == {}
    scheduler = Heartbeat("scheduler", number, redis=redis_url)
    assert isinstance(scheduler.heartbeat, SchedulerHeartbeat)
    assert scheduler.heartbeat.key == f"heartbeat:scheduler:{number}"


async def test_what_the_host_changes_is_not_ours(redis_url: str, bare: Redis) -> None:
    """What was given is copied; what is given out is a copy."""
    said = DataWorkerHeartbeat.create(secrets.token_hex(8), stats={"a": [1]})
    async with Heartbeat(said, redis=redis_url) as beat:
        said.stats["a"] = object()
        beat.heartbeat.status = WorkerStatus.ERROR
        stats = {"b": [2]}
        beat.update(stats=stats)
        stats["b"].append(3)
        await eventually(lambda: beat.stats().writes == 2, 5.0)
        shown = await seen(bare, said.key)
        assert (shown["status"], shown["stats"]) == ("running", {"b": [2]})


async def test_many_updates_are_few_writes(redis_url: str, said: Any) -> None:
    """Eight threads, none of whose fields is lost; a few writes for thousands of updates."""
    kind = DataWorkerHeartbeat.create(secrets.token_hex(8))
    async with (
        Heartbeat(kind, redis=redis_url) as one,
        Heartbeat(said, redis=redis_url) as two,
    ):

        def change(number: int) -> None:
            names = ["running_tasks", "max_tasks"]
            for count in range(250):
                one.update(stats={"thread": number})
                two.update(**{names[number % 2]: count})

        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(to_thread.run_sync, change, number)
        elapsed = time.monotonic() - began
        await eventually(lambda: two.stats().writes >= 2)
        assert two.heartbeat.to_dict()["running_tasks"] == 249
        assert two.heartbeat.to_dict()["max_tasks"] == 249
        assert two.stats().writes <= 4 + elapsed / 0.1


async def test_one_connection_and_few_round_trips(redis_url: str, bare: Redis) -> None:
    """All heartbeats of a loop share one connection, and go in one write."""
    names = [f"多-{secrets.token_hex(6)}" for _ in range(200)]
    beats = [
        Heartbeat(BacktestWorkerHeartbeat.create(n), redis=redis_url) for n in names
    ]
    async with anyio.create_task_group() as tasks:
        for beat in beats:
            tasks.start_soon(beat.__aenter__)

    async def connections() -> int:
        clients = await bare.client_list()
        return sum(one["name"] == "bls-agent:heartbeats" for one in clients)

    assert await connections() == 1
    assert all(beat.owned for beat in beats)
    async with anyio.create_task_group() as tasks:
        for beat in beats:
            tasks.start_soon(beat.aclose)
    with anyio.fail_after(5):  # the server hears of it a moment later
        while await connections():
            await anyio.sleep(0.005)
    assert not await bare.exists(*(beat.heartbeat.key for beat in beats))


async def test_refused_while_another_lives(
    redis_url: str, bare: Redis, said: Any
) -> None:
    """The same id again: refused, nothing is touched; free after a clean stop."""
    async with Heartbeat(said, redis=redis_url) as first:
        before = await bare.get(said.key)
        second = Heartbeat(said, redis=redis_url)
        with pytest.raises(LeaseHeldError) as caught:
            async with second:
                pytest.fail("entered")
        assert caught.value.key == said.key
        assert caught.value.remaining is not None
        assert 25 < caught.value.remaining <= 30
        assert await bare.get(said.key) == before
        assert first.owned
        assert not second.owned
        assert not second.stats().open
    async with second:
        assert second.owned


async def test_two_wait(redis_url: str, bare: Redis, said: Any) -> None:
    """The host goes on at once; when the owner goes one of them takes over."""
    steady: dict[str, Any] = {"interval": 0.2, "ttl": 10.0}  # nobody's lease runs out
    waits = {**steady, "conflict": "wait"}
    async with (
        Heartbeat(said, redis=redis_url, **steady) as owner,
        Heartbeat(said, redis=redis_url, **waits) as one,
        Heartbeat(said, redis=redis_url, **waits) as two,
    ):
        assert owner.owned
        assert not one.stats().owned
        assert "waiting" in repr(one)
        assert one.stats().standing == "held"
        with pytest.raises(RedisUnavailableError, match="another process owns"):
            await one.ready(0.05)
        await owner.aclose()
        await eventually(lambda: one.owned or two.owned)
        assert one.owned != two.owned
        winner, loser = (one, two) if one.owned else (two, one)
        await loser.aclose()
        assert await bare.exists(said.key) == 1
        await winner.ready(0.0)
    assert await bare.exists(said.key) == 0


async def test_one_that_waits_is_quick_and_quiet(
    own_server: DevServer, admin: Redis, said: Any
) -> None:
    """It looks once a second, not once for each update; what it says then is the last."""

    async def looks() -> int:
        return int((await admin.info("commandstats"))["cmdstat_evalsha"]["calls"])

    async with (
        Heartbeat(said, redis=own_server.url) as owner,
        Heartbeat(said, redis=own_server.url, conflict="wait") as waiter,
    ):
        before, began = await looks(), anyio.current_time()
        for number in range(40):
            waiter.update(running_tasks=number)
            await anyio.lowlevel.checkpoint()
            await looks()
        assert await looks() - before <= 1 + anyio.current_time() - began
        await owner.aclose()
        await eventually(lambda: waiter.owned, 8.0)  # its interval is 10 s
        assert json.loads(await admin.get(said.key) or b"")["running_tasks"] == 39


@pytest.mark.parametrize(
    "foreign",
    [b"", b"{}", b"[1]", b'{"status":"asleep"}', b"\xff\xfe", "在线".encode(), b"\x80\x04N."],
)  # fmt: skip
async def test_a_foreign_value_is_judged_by_its_ttl(
    redis_url: str, bare: Redis, said: Any, foreign: bytes
) -> None:
    """A peer that knows no lease counts as alive as long as its key is there."""
    await bare.set(said.key, foreign, px=30_000)
    with pytest.raises(LeaseHeldError) as caught:
        async with Heartbeat(said, redis=redis_url, **SHORT):
            pytest.fail("entered")
    assert caught.value.remaining is not None
    assert 20 < caught.value.remaining <= 30
    async with Heartbeat(said, redis=redis_url, conflict="wait", **SHORT) as beat:
        assert await bare.get(said.key) == foreign
        await bare.pexpire(said.key, 50)
        await eventually(lambda: beat.owned)
        assert (await seen(bare, said.key))["status"] == "running"


async def test_a_foreign_value_without_a_ttl(
    redis_url: str, bare: Redis, said: Any
) -> None:
    """It would never become free: refused in both modes, with what to do."""
    await bare.set(said.key, b"{}")
    conflict: Any
    for conflict in ("refuse", "wait"):
        with pytest.raises(LeaseHeldError, match="delete it") as caught:
            async with Heartbeat(said, redis=redis_url, conflict=conflict):
                pytest.fail("entered")
        assert caught.value.remaining is None
    assert await bare.get(said.key) == b"{}"
    await bare.delete(said.key)


@pytest.mark.parametrize("conflict", ["refuse", "wait"])
async def test_another_type(
    redis_url: str, bare: Redis, said: Any, conflict: Any
) -> None:
    """It is left alone, and the error names it: the worker's key, or its owner's."""
    for key in (said.key, owner_of(said.key)):
        await bare.hset(key, "a", "b")
        with pytest.raises(WrongTypeError) as caught:
            async with Heartbeat(said, redis=redis_url, conflict=conflict):
                pytest.fail("entered")
        assert caught.value.key == key
        assert await bare.hgetall(key) == {b"a": b"b"}
        await bare.delete(key)


async def test_a_peer_took_over(
    redis_url: str, bare: Redis, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """We stop writing, say it once, and take over when the peer is silent."""
    async with Heartbeat(said, redis=redis_url, **SHORT) as beat:
        await bare.set(owner_of(said.key), "another", ex=30)
        await bare.set(said.key, b"theirs", ex=30)
        await eventually(lambda: not beat.owned)
        assert await bare.get(said.key) == b"theirs"
        await bare.pexpire(owner_of(said.key), 50)
        await bare.pexpire(said.key, 50)
        assert beat.stats().losses == 1
        await eventually(lambda: beat.owned)
    told = [r for r in caplog.records if "no heartbeat is written" in r.message]
    assert len(told) == 1
    assert said.key in told[0].message


async def test_a_stop_leaves_the_peer_alone(
    redis_url: str, bare: Redis, said: Any
) -> None:
    """A clean stop touches neither its value nor its token."""
    async with Heartbeat(said, redis=redis_url):
        await bare.set(owner_of(said.key), "another")
        await bare.set(said.key, b"theirs")
    assert await bare.get(said.key) == b"theirs"
    assert await bare.get(owner_of(said.key)) == b"another"
    await bare.delete(said.key, owner_of(said.key))


def was_overwritten(beat: Heartbeat, times: int) -> bool:
    """Whether it was noticed so often."""
    return beat.stats().overwritten == times


async def test_a_peer_without_a_lease_writes_too(
    redis_url: str, bare: Redis, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, counted each time, and ours is written again."""
    async with Heartbeat(said, redis=redis_url, **SHORT) as beat:
        for times in (1, 2):
            await bare.set(said.key, b"theirs")
            await eventually(partial(was_overwritten, beat, times))
        assert (await seen(bare, said.key))["status"] == "running"
    told = [r for r in caplog.records if "another process also writes" in r.message]
    assert len(told) == 1


async def test_its_keys_vanish(redis_url: str, bare: Redis, said: Any) -> None:
    """FLUSHALL, or an eviction: it is back with the next beat."""
    async with Heartbeat(said, redis=redis_url, **SHORT) as beat:
        await bare.delete(said.key, owner_of(said.key))
        await eventually(lambda: beat.stats().writes >= 2)
        assert await bare.exists(said.key, owner_of(said.key)) == 2
        await bare.delete(owner_of(said.key))
        writes = beat.stats().writes
        await eventually(lambda: beat.stats().writes > writes)
        assert beat.owned


async def test_the_body_fails(redis_url: str, bare: Redis, said: Any) -> None:
    """Its exception goes on unchanged, and so does a cancellation; the key is gone."""
    error = KeyError("x")
    with pytest.raises(KeyError) as caught:
        async with Heartbeat(said, redis=redis_url):
            raise error
    assert caught.value is error
    with anyio.move_on_after(0.05) as scope:
        async with Heartbeat(said, redis=redis_url):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert await bare.exists(said.key) == 0


async def test_opened_again(redis_url: str, bare: Redis, said: Any) -> None:
    """After its end it may be opened again; while it is open it may not."""
    beat = Heartbeat(said, redis=redis_url)
    for _ in range(2):
        async with beat:
            with pytest.raises(ConfigurationError, match="open already"):
                await beat.__aenter__()
            assert await bare.exists(said.key) == 1
        await beat.aclose()
        with pytest.raises(ConfigurationError, match="must be open"):
            await beat.ready()
    beat.update(running_tasks=7)
    async with beat:
        assert (await seen(bare, said.key))["running_tasks"] == 7


async def test_all_ways_to_say_where(
    redis_url: str, bare: Redis, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL, clients of both kinds, an agent, the environment."""
    monkeypatch.setenv("BLS_REDIS_URL", redis_url)
    blocking = BlockingRedis.from_url(redis_url)
    agent = ProjectAgent("订单系统", redis=redis_url)
    for redis in (redis_url, bare, blocking, agent, None):
        async with Heartbeat(said, redis=redis) as beat:
            assert beat.owned
            assert "owned" in repr(beat)
        assert "closed" in repr(beat)
    blocking.close()
    assert await bare.ping()


def test_without_an_event_loop(redis_url: str, said: Any) -> None:
    """Plain with: one thread for all, which ends with the last."""
    bare = BlockingRedis.from_url(redis_url, protocol=2)
    other = DataWorkerHeartbeat.create(secrets.token_hex(8))

    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.endswith("heartbeats")]

    with Heartbeat(said, redis=redis_url, **SHORT) as one:
        one.wait_ready(2.0)
        with Heartbeat(other, redis=redis_url) as two:
            two.wait_ready(2.0)
            assert len(threads()) == 1
            assert bare.exists(said.key, other.key) == 2
            time.sleep(1.2)  # the program is busy, longer than a TTL
            assert one.owned
            with pytest.raises(LeaseHeldError), Heartbeat(other, redis=redis_url):
                pytest.fail("entered")
        assert bare.exists(said.key, other.key) == 1
        one.update(running_tasks=2)
    assert bare.exists(said.key, owner_of(said.key)) == 0
    assert threads() == []
    bare.close()


async def test_plain_with_is_refused_in_an_event_loop(
    redis_url: str, said: Any
) -> None:
    """It would block the loop."""
    with (
        pytest.raises(ConfigurationError, match="async with"),
        Heartbeat(said, redis=redis_url),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"interval": 11}, "interval"),
        ({"interval": 0}, "interval"),
        ({"interval": 0.01}, "interval"),
        ({"interval": "1"}, "interval"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": float("inf")}, "ttl"),
        ({"ttl": 1e-6}, "ttl"),
        ({"ttl": 0.29}, "ttl"),
        ({"ttl": 6, "interval": 2.5}, "interval"),
        ({"conflict": "steal"}, "conflict"),
        ({"timeout": -1}, "timeout"),
        ({"redis": 7}, "redis"),
        ({"heartbeat": {"worker_id": "1"}}, "kind"),
        ({"heartbeat": "下载"}, "worker_id"),
        ({"heartbeat": "下载", "worker_id": ""}, "worker_id"),
        ({"heartbeat": "component", "worker_id": "1"}, "kind"),
        ({"heartbeat": "process", "worker_id": "1"}, "kind"),
        ({"heartbeat": "scheduler_heartbeat", "worker_id": "1"}, "kind"),
        ({"heartbeat": "下:载", "worker_id": "1"}, "kind"),
        ({"worker_id": "1"}, "worker_id"),
        ({"heartbeat": "redis://127.0.0.1:1", "worker_id": BacktestWorkerHeartbeat.create("1")}, "kind"),
        ({"heartbeat": BacktestWorkerHeartbeat.create("a\nb")}, "worker_id"),
        ({"heartbeat": BacktestWorkerHeartbeat.create("")}, "worker_id"),
        ({"redis": "redis+cluster://127.0.0.1:1", "heartbeat": BacktestWorkerHeartbeat.create("a}b")}, "worker_id"),
    ],
)  # fmt: skip
def test_wrong_arguments(options: dict[str, Any], name: str) -> None:
    """Each is refused at construction, by name."""
    given: dict[str, Any] = {
        "redis": "redis://127.0.0.1:1",
        "heartbeat": BacktestWorkerHeartbeat.create("1"),
        **options,
    }
    with pytest.raises(ConfigurationError) as caught:
        Heartbeat(given.pop("heartbeat"), **given)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("running_tasks", -1), ("status", "busy"), ("task_uuids", [None])],
)
def test_a_field_that_was_set_is_checked_again(name: str, value: object) -> None:
    """Refused at construction, and not by each beat later."""
    heartbeat = BacktestWorkerHeartbeat.create("1")
    setattr(heartbeat, name, value)
    with pytest.raises(ConfigurationError) as caught:
        Heartbeat(heartbeat, redis="redis://127.0.0.1:1")
    assert caught.value.name == name


def test_a_value_in_a_field_is_checked_again() -> None:
    """What JSON cannot hold, put into the counters later."""
    heartbeat = DataWorkerHeartbeat.create("1", stats={"ratio": 0.5})
    heartbeat.stats["ratio"] = float("nan")
    with pytest.raises(ConfigurationError, match="stats"):
        Heartbeat(heartbeat, redis="redis://127.0.0.1:1")


class Mute(DataWorkerHeartbeat):
    """A class of somebody's own whose value cannot be encoded."""

    def to_json(self) -> str:
        raise ValueError("no words")


async def test_one_that_cannot_be_encoded_silences_no_other(
    redis_url: str, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails alone, and is said; the other one is written on and on."""
    mute = Mute.create(f"d-{secrets.token_hex(4)}")
    async with (
        Heartbeat(said, redis=redis_url, **SHORT) as sound,
        Heartbeat(mute, redis=redis_url, **SHORT) as failing,
    ):
        writes = sound.stats().writes
        await eventually(lambda: sound.stats().writes >= writes + 3)
        await eventually(lambda: failing.stats().failures >= 2)
        assert failing.stats().writes == sound.stats().failures == 0
    assert "no words" in caplog.text


async def test_never_closed(redis_url: str, bare: Redis, said: Any) -> None:
    """A ResourceWarning names it; the key stays alive as long as the loop."""
    beat: Any = Heartbeat(said, redis=redis_url)
    await beat.__aenter__()
    writer, state = beat._writer, beat._state
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del beat
        gc.collect()
    assert any(said.key in str(w.message) for w in caught)
    assert await bare.exists(said.key) == 1
    await writer.remove(state)
    await writer.aclose()


def test_a_loop_that_was_closed(redis_url: str, said: Any) -> None:
    """Its heartbeat can be opened again elsewhere, and holds nothing of the old loop."""
    loop = asyncio.new_event_loop()
    beat = Heartbeat(said, redis=redis_url, conflict="wait", **SHORT)
    loop.run_until_complete(beat.__aenter__())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asyncio's: a task was pending
        loop.close()

    async def again() -> None:
        async with beat:
            await beat.ready(5.0)

    anyio.run(again)
    with BlockingRedis.from_url(redis_url) as bare:
        assert bare.exists(said.key, owner_of(said.key)) == 0


async def test_used_from_another_loop(redis_url: str, bare: Redis, said: Any) -> None:
    """ready() and aclose() work from wherever they are called."""
    beat = Heartbeat(said, redis=redis_url)
    async with anyio.create_task_group() as tasks:

        async def look() -> None:
            await beat.ready(5.0)
            await beat.aclose()

        await beat.__aenter__()
        tasks.start_soon(to_thread.run_sync, anyio.run, look)
    assert not beat.stats().open
    assert await bare.exists(said.key) == 0


def test_a_program_that_never_leaves(redis_url: str, said: Any) -> None:
    """The exit of the interpreter removes the key, and does not wait long for it."""
    code = (
        "import sys; from bls_agent.workers import *;"
        "b = Heartbeat(BacktestWorkerHeartbeat.create(sys.argv[2]), redis=sys.argv[1]);"
        "b.__enter__(); b.wait_ready(5.0); print(b.owned)"
    )
    ended = run_python("-c", code, redis_url, said.id)
    assert (ended.code, ended.out) == (0, "True\n")
    with BlockingRedis.from_url(redis_url) as bare:
        assert bare.exists(said.key, owner_of(said.key)) == 0


def test_a_loop_that_ends_with_an_open_heartbeat(
    redis_url: str, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio.run cancels what is left: the key goes with it."""
    kept: list[Heartbeat] = []

    async def forget() -> None:
        kept.append(Heartbeat(said, redis=redis_url))
        await kept[0].__aenter__()

    caplog.set_level(logging.WARNING)
    anyio.run(forget)
    with BlockingRedis.from_url(redis_url) as bare:
        assert bare.exists(said.key, owner_of(said.key)) == 0
    assert "was cancelled" in caplog.text
    assert not kept[0].owned
    anyio.run(kept[0].aclose)
