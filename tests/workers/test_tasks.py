"""TaskStatus: what stands in Redis, to the byte; what others wrote; who writes at once."""

from __future__ import annotations

import gc
import secrets
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import (
    ConfigurationError,
    DecodeError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.devserver import DevServer
from bls_agent.workers import BacktestProgress, SyncProgress, Task, TaskStatus
from bls_agent.workers.tasks import change_task, encode_task
from tests.harness import url_with_rights
from tests.kit import Cut, FaultProxy

READ = "GET"  # command that reads the value of a task
NOW = 1768221296.789


@pytest.fixture
async def tasks(redis_url: str) -> AsyncIterator[TaskStatus]:
    async with TaskStatus(redis_url) as opened:
        yield opened


@pytest.fixture
async def task_id(redis: Redis) -> AsyncIterator[str]:
    """A fresh id; its keys are removed."""
    name = f"回测-{secrets.token_hex(4)}"
    yield name
    async for key in redis.scan_iter(f"ginkgo:task_status:{name}*"):
        await redis.delete(key)


def key_of(task_id: str) -> str:
    return f"ginkgo:task_status:{task_id}"


def test_the_layout_to_the_byte() -> None:
    """task_id, status, timestamp, then the caller's fields in their order."""
    payload = encode_task("回测-1", "运行中", {"progress": 12.5, "机器": "a"}, now=NOW)
    assert payload.decode() == (
        '{"task_id":"回测-1","status":"运行中","timestamp":"2026-01-12T12:34:56.789Z",'
        '"progress":12.5,"机器":"a"}'
    )


def test_a_change_keeps_what_it_does_not_name() -> None:
    """Foreign fields, empty arrays and large integers come through unharmed."""
    payload = (
        b'{"status":"running","empty":[],"none":{},"big":123456789012345678901234567890,'
        b'"exact":9007199254740993}'
    )
    changed = orjson.loads(change_task("1", payload, {"progress": 5}, now=NOW))
    assert changed["empty"] == []
    assert changed["none"] == {}
    assert changed["exact"] == 9007199254740993
    assert b'"big":123456789012345678901234567890' in change_task(
        "1", payload, {}, now=NOW
    )
    assert changed["timestamp"] == "2026-01-12T12:34:56.789Z"


CORPUS: dict[str, tuple[bytes, str, str, float | None]] = {
    "object": (b'{"status":"done","progress":7}', "", "done", 7),
    "no-status": (b'{"progress":"7.5"}', "", "", 7.5),
    "odd-fields": (b'{"status":3,"progress":true,"timestamp":5}', "", "", None),
    "no-finite": (b'{"status":"x","progress":"nan"}', "", "x", None),
    "bare": (b"running", "not_json", "running", None),
    "bare-chinese": ("运行中\n".encode(), "not_json", "运行中", None),
    "quoted": (b'"running"', "not_an_object", "running", None),
    "number": (b"7", "not_an_object", "", None),
    "null": (b"null", "not_an_object", "", None),
    "array": (b'["running"]', "not_an_object", "", None),
    "cut": (b'{"status":"run', "not_json", "", None),
    "long": (b"x" * 100, "not_json", "", None),
    "empty": (b"", "not_json", "", None),
    "gbk": ("运行".encode("gbk"), "not_utf8", "", None),
    "pickle": (b"\x80\x04\x95\x0b\x00.", "not_utf8", "", None),
    "deep": (b"[" * 3000, "too_deep", "", None),
}


@pytest.mark.parametrize("name", CORPUS)
def test_whatever_stands_there_is_read(name: str) -> None:
    """An object, a bare word, or raw text with the reason; never an exception."""
    payload, reason, status, progress = CORPUS[name]
    task = Task.decode("1", payload)
    assert (task.reason, task.status, task.progress) == (reason, status, progress)
    assert (task.raw is None) == (not reason)


@pytest.mark.parametrize("name", CORPUS)
def test_a_change_loses_nothing_that_cannot_be_read(name: str) -> None:
    """A word becomes the status of an object; anything else is refused."""
    payload, reason, status, _ = CORPUS[name]
    if reason and not status:
        with pytest.raises(DecodeError):
            change_task("1", payload, {"progress": 1}, now=NOW)
    else:
        task = Task.decode("1", change_task("1", payload, {"progress": 1}, now=NOW))
        assert (task.raw, task.status, task.progress) == (None, status, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"progress": 101}, {"progress": -1}, {"progress": float("nan")},
        {"progress": "5"}, {"progress": True}, {"message": 5}, {"what": {1}},
        {"when": datetime.fromisoformat("2026-01-12")}, {"status": " "}, {"status": 3},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_fields_are_refused(fields: dict[str, object]) -> None:
    """Whoever reads it later would not understand it."""
    with pytest.raises(ConfigurationError):
        change_task("1", b"{}", fields, now=NOW)


async def test_set_and_get(tasks: TaskStatus, task_id: str, redis: Redis) -> None:
    """What is set stands there for a day and is read back."""
    when = datetime(2026, 1, 12, tzinfo=UTC)
    written = await tasks.set(task_id, "running", progress=50, message="半", since=when)
    assert await redis.ttl(key_of(task_id)) == 86400
    found = await tasks.get(task_id)
    assert found == written
    assert found is not None
    assert (found.status, found.progress, found.message) == ("running", 50, "半")
    assert found.timestamp is not None
    assert abs((datetime.now(UTC) - found.timestamp).total_seconds()) < 60
    assert list(found.fields) == [
        "task_id", "status", "timestamp", "progress", "message", "since",
    ]  # fmt: skip
    assert await tasks.get(task_id + "x") is None


async def test_an_update_keeps_the_ttl(
    tasks: TaskStatus, task_id: str, redis: Redis
) -> None:
    """The time a task lives goes on; a key without an end keeps none."""
    key = key_of(task_id)
    await tasks.set(task_id, "running")
    await redis.pexpire(key, 50_000)
    updated = await tasks.update(task_id, progress=10)
    assert updated is not None
    assert (updated.status, updated.progress) == ("running", 10)
    assert 40_000 < await redis.pttl(key) <= 50_000
    await redis.set(key, b"running")
    await tasks.update(task_id, progress=20)
    assert await redis.ttl(key) == -1
    assert orjson.loads(await redis.get(key) or b"")["status"] == "running"


async def test_an_update_of_nothing_writes_nothing(
    tasks: TaskStatus, task_id: str, redis: Redis
) -> None:
    """A task that never was, or is no more, stays away."""
    assert await tasks.update(task_id, progress=10) is None
    assert not await redis.exists(key_of(task_id))


async def test_updates_at_once_lose_nothing(
    tasks: TaskStatus, task_id: str, redis_url: str
) -> None:
    """Many writers of different fields, in several loops, all find themselves there."""
    await tasks.set(task_id, "running")

    async def note(mine: TaskStatus, name: str) -> None:
        await mine.update(task_id, **{name: name})

    async def write(names: list[str]) -> None:
        async with TaskStatus(redis_url) as mine, anyio.create_task_group() as group:
            for name in names:
                group.start_soon(note, mine, name)

    names = [[f"f{thread}_{number}" for number in range(12)] for thread in range(3)]
    threads = [threading.Thread(target=anyio.run, args=(write, mine)) for mine in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    found = await tasks.get(task_id)
    assert found is not None
    assert {name for mine in names for name in mine} <= found.fields.keys()
    assert found.status == "running"


async def test_many_updates_of_one_task_in_one_program(
    tasks: TaskStatus, task_id: str
) -> None:
    """They take turns instead of being in each other's way; nothing is kept of that."""
    await tasks.set(task_id, "running")
    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(partial(tasks.update, task_id, **{f"f{number}": number}))
        await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(partial(tasks.update, task_id, **{f"g{number}": number}))
    found = await tasks.get(task_id)
    assert found is not None
    assert {f"g{number}" for number in range(200)} <= found.fields.keys()
    gc.collect()  # the cancelled updates are in cycles with their errors
    assert [len(turns) for turns in tasks._turns.values()] == [0]


async def test_list_hides_nothing(
    tasks: TaskStatus, task_id: str, redis: Redis
) -> None:
    """Broken values, keys of other types and GBK ids stand beside good ones."""
    await tasks.set(f"{task_id}:好", "running")
    await tasks.set(f"{task_id}*", "done")
    await redis.set(key_of(f"{task_id}-raw"), b"\xff\x00")
    await redis.set(key_of(f"{task_id}-word"), b"running")
    await redis.rpush(key_of(f"{task_id}-list"), b"x")
    gbk = key_of(task_id).encode() + "订单".encode("gbk")
    await redis.set(gbk, b"{}")
    found = {
        task.id.removeprefix(task_id): task
        for task in await tasks.list()
        if task.id.startswith(task_id)
    }
    odd = "订单".encode("gbk").decode("utf-8", "surrogateescape")
    assert found.keys() == {":好", "*", "-raw", "-word", "-list", odd}
    assert found["-raw"].raw == "\ufffd\x00"
    assert found["-list"].reason == "wrong_type"
    running = [task.id for task in await tasks.list("running")]
    assert {f"{task_id}-word", f"{task_id}:好"} <= set(running)
    assert f"{task_id}*" not in running
    assert await tasks.update(task_id + odd, status="ok")
    assert await tasks.get(task_id + odd)
    assert await tasks.delete(task_id + odd)
    assert not await redis.exists(gbk)


async def test_what_may_not_be_read_is_left_out(
    own_server: DevServer, admin: Redis
) -> None:
    """Also if no other task has the status; an error only if there is no other task."""
    await admin.mset({key_of("a"): b'{"status":"done"}', key_of("b"): b"{}"})
    rights = ("+scan", "+get", "+getrange", "+pttl", f"~{key_of('a')}")
    url = await url_with_rights(admin, own_server, *rights)
    async with TaskStatus(url) as tasks:
        assert [task.id for task in await tasks.list()] == ["a"]
        assert await tasks.list("running") == []
        await admin.delete(key_of("a"))
        with pytest.raises(RedisRefusedError, match="no_permission"):
            await tasks.list()


async def test_a_list_that_fails_keeps_no_connection(own_server: DevServer) -> None:
    """The search ends with the list, and not when its generator is collected."""
    async with (
        FaultProxy(own_server.url) as proxy,
        TaskStatus(proxy.url) as tasks,
    ):
        await tasks.set("a", "running")
        proxy.arm(Cut(command=READ, times=None))
        with pytest.raises(RedisUnavailableError) as raised:
            await tasks.list()
        assert raised.traceback  # which keeps the generator
        assert not tasks._access.pool._users.total()


async def test_another_type_is_left_alone(
    tasks: TaskStatus, task_id: str, redis: Redis
) -> None:
    """Nothing reads, overwrites or deletes a key that is no string."""
    await redis.rpush(key_of(task_id), b"x")
    for call in (
        tasks.get(task_id), tasks.set(task_id, "a"), tasks.update(task_id, a=1),
        tasks.delete(task_id),
    ):  # fmt: skip
        with pytest.raises(WrongTypeError) as raised:
            await call
        assert raised.value.key == key_of(task_id)
    assert await redis.lrange(key_of(task_id), 0, -1) == [b"x"]


async def test_delete(tasks: TaskStatus, task_id: str) -> None:
    """It says whether there was anything."""
    await tasks.set(task_id, "done")
    assert await tasks.delete(task_id) is True
    assert await tasks.delete(task_id) is False
    assert await tasks.get(task_id) is None


@pytest.mark.parametrize("task_id", ["", " a", "a\nb", "\ud800"], ids=ascii)
async def test_ids_that_no_peer_could_use(tasks: TaskStatus, task_id: str) -> None:
    """They are refused before anything is written."""
    with pytest.raises(ConfigurationError):
        await tasks.set(task_id, "running")


async def test_an_outage_is_no_answer(own_server: DevServer) -> None:
    """Everything raises while Redis is away, and works again afterwards."""
    async with TaskStatus(own_server.url) as tasks:
        await tasks.set("回测-1", "running")
        own_server.kill()
        for call in (
            tasks.get("回测-1"), tasks.list(), tasks.set("回测-1", "x"),
            tasks.update("回测-1", a=1), tasks.delete("回测-1"),
        ):  # fmt: skip
            with pytest.raises(RedisUnavailableError):
                await call
        own_server.restart()
        assert [task.status for task in await tasks.list()] == ["running"]


def test_wrong_arguments_fail_at_construction() -> None:
    """And a good one opens nothing."""
    with pytest.raises(ConfigurationError):
        TaskStatus(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        TaskStatus("redis://127.0.0.1:1/0", timeout=0)
    assert "secret" not in repr(TaskStatus("redis://u:secret@127.0.0.1:1/0"))


async def test_a_lost_reply_is_no_refusal(
    redis_url: str, task_id: str, redis: Redis
) -> None:
    """It says that the change may have landed; reading is repeated by itself."""
    async with FaultProxy(redis_url) as proxy, TaskStatus(proxy.url) as tasks:
        await tasks.set(task_id, "running")
        await tasks.update(task_id, a=1)  # the server knows the scripts now
        proxy.arm(Cut(command="EVALSHA"))
        with pytest.raises(RedisUnavailableError) as raised:
            await tasks.update(task_id, b=2)
        assert raised.value.ambiguous
        assert orjson.loads(await redis.get(key_of(task_id)) or b"")["b"] == 2
        proxy.arm(Cut(command="GET"))
        again = await tasks.update(task_id, c=3)
        assert again is not None
        assert {"a", "b", "c"} <= again.fields.keys()


async def test_writes_may_fail_without_raising(
    own_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker outlives a restart of Redis: its writes are counted and warned of once."""
    async with (
        TaskStatus(own_server.url, on_error="none") as tasks,
        BacktestProgress(own_server.url, on_error="none") as backtests,
        SyncProgress(own_server.url, on_error="none") as synced,
    ):
        assert await tasks.set("1", "running") is not None
        await anyio.to_thread.run_sync(own_server.kill)
        for _ in range(3):
            assert await tasks.set("1", "running") is None
            assert await tasks.update("1", progress=1) is None
            assert await tasks.delete("1") is False
            assert await backtests.set("1", 5) is None
            assert await synced.add("tick", "1", "2026-01-05") == 0
            assert await synced.remove("tick", "1", "2026-01-05") == 0
            assert await synced.clear("tick", "1") is False
        counts = [store.failed_writes for store in (tasks, backtests, synced)]
        assert counts == [9, 3, 9]
        with pytest.raises(RedisUnavailableError):
            await tasks.get("1")
        with pytest.raises(RedisUnavailableError):
            await synced.dates("tick", "1")
        warned = [one for one in caplog.records if "a write is given up" in one.message]
        assert len(warned) == 3
        await anyio.to_thread.run_sync(own_server.restart)
        assert await tasks.set("1", "running") is not None
        assert tasks.failed_writes == 9


@pytest.mark.parametrize("store", [TaskStatus, BacktestProgress, SyncProgress])
async def test_a_wrong_on_error_is_refused(store: type[TaskStatus]) -> None:
    """At once, with what it may be."""
    wrong: Any = "ignore"
    with pytest.raises(ConfigurationError, match="'raise' or 'none'"):
        store(on_error=wrong)
