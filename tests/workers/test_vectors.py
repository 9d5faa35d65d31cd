"""The vectors of worker heartbeats, by the package's own readers and writers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError
from bls_agent.core.keys import KEYS
from bls_agent.devserver import DevServer
from bls_agent.ops.conformance.vectors import Vector, read_bytes
from bls_agent.workers import (
    BacktestProgress,
    FunctionCache,
    Heartbeat,
    RedisKeyBuilder,
    RedisTTL,
    SyncProgress,
    TaskStatus,
    WorkerRegistry,
    extract_id_from_key,
    parse_heartbeat_data,
)
from bls_agent.workers.caching.cached_function import BrokenEntryError, decode_entry
from bls_agent.workers.heartbeat_fields import KINDS
from bls_agent.workers.progress import read_days
from bls_agent.workers.reading import LARGEST
from bls_agent.workers.schema import ROWS
from bls_agent.workers.tasks import Task
from bls_agent.workers.worker import Worker
from tests.corpus.loader import judge, sound_heartbeats, vectors_of

VECTORS: Final = vectors_of("001")
TIMES: Final = ("timestamp", "started_at", "last_heartbeat")


def check_key(vector: Vector) -> None:
    """A key is built of its parts, or the parts are refused."""
    values = vector.values
    build = getattr(RedisKeyBuilder, values["kind"])
    if values["key"] is None:
        with pytest.raises(ConfigurationError):
            build(**values["parts"])
        return
    row = ROWS[values["kind"]]
    assert build(**values["parts"]) == values["key"]
    assert values["parts"] in row.readings(values["key"])
    assert values.get("type") == (row.type and str(row.type))
    if values.get("ttl") is not None:
        assert getattr(RedisTTL, values["kind"].upper()) == values["ttl"]


def check_id(vector: Vector) -> None:
    values = vector.values
    assert extract_id_from_key(values["key"], values["prefix"]) == values["result"]


def check_value(vector: Vector) -> None:
    """A heartbeat is written with these bytes under this key."""
    beat = KINDS[vector.values["kind"]](**vector.values["given"])
    assert beat.key == vector.values["key"]
    text = beat.to_json()
    assert text == vector.values["value"]
    for form in (text, text.encode(), beat.to_dict()):
        assert type(beat).from_json(form) == beat


def check_heartbeat(vector: Vector) -> None:
    """A heartbeat is read, or the problem is named."""
    values = vector.values
    row = KEYS[values["kind"]]
    key = row.template.partition("{")[0].encode() + b"a"
    payload = read_bytes(values["stored"])[: LARGEST + 1]
    stored = None if "type" in values else payload
    worker = Worker.read(values["kind"], key, stored, values.get("ttl", 20.0))
    result = values["result"]
    assert worker.problem == result["problem"]
    if "type" not in values and "ttl" not in values:
        check_worker(worker)
    if "fields" in result:
        assert worker.heartbeat is not None
        found = worker.heartbeat.to_dict()
        written = {} if vector.name == "stats-deep" else json.loads(payload)
        assert {**found, **written, **result["fields"]} == {**written, **found}


def check_worker(worker: Worker) -> None:
    """What can be read is there, and a heartbeat only where its form is the contract's."""
    assert isinstance(worker.raw, dict)
    assert worker.age == 10.0
    assert len(worker.payload) <= LARGEST
    if worker.row == "generic_heartbeat" and not worker.problem:
        assert (worker.heartbeat is None) == (worker.status is None)
    elif worker.problem or worker.row not in KINDS:
        assert worker.heartbeat is None
        assert worker.problem or worker.raw
    else:
        assert isinstance(worker.heartbeat, KINDS[worker.row])


def check_parse(vector: Vector) -> None:
    stored = vector.values["stored"]
    payload = None if stored is None else read_bytes(stored)
    assert parse_heartbeat_data(payload) == vector.values["result"]


def check_read_days(vector: Vector) -> None:
    days, foreign = read_days([read_bytes(vector.values["stored"])])
    result = vector.values["result"]
    assert ([str(day) for day in days], foreign) == (result["days"], result["foreign"])


def check_cached(vector: Vector) -> None:
    """A stored result is read, or is computed anew for the named reason."""
    values = vector.values
    payload, result = read_bytes(values["stored"]), values["result"]
    if not result["problem"]:
        assert decode_entry(values["func_name"], payload) == result["value"]
        return
    with pytest.raises(BrokenEntryError) as caught:
        decode_entry(values["func_name"], payload)
    assert caught.value.reason == result["problem"]


def check_read_task(vector: Vector) -> None:
    task = Task.decode("t", read_bytes(vector.values["stored"]))
    for name, value in vector.values["result"].items():
        assert getattr(task, name) == value, name


CHECKS: Final[dict[str, Callable[[Vector], None]]] = {
    "key": check_key,
    "id": check_id,
    "value": check_value,
    "heartbeat": check_heartbeat,
    "parse": check_parse,
    "read_days": check_read_days,
    "cached": check_cached,
    "read_task": check_read_task,
}


# --- what a writer leaves on a server


async def write_heartbeat(url: str, given: dict[str, Any], kind: str) -> None:
    """Write the first heartbeat, and leave it by closing the connection."""
    heartbeat = Heartbeat(KINDS[kind](**given), redis=url)
    async with heartbeat:
        await heartbeat.ready(10)
        async with Redis.from_url(url) as client:
            await client.copy(heartbeat.heartbeat.key, "copy")


async def write_value(url: str, vector: Vector) -> str:
    values = vector.values
    await write_heartbeat(url, values["given"], values["kind"])
    return "copy"


async def write_days(url: str, vector: Vector) -> str:
    parts = vector.values["parts"]
    async with SyncProgress(url) as progress:
        await progress.add(parts["type"], parts["code"], vector.values["given"])
    key: str = vector.values["key"]
    return key


async def write_task(url: str, vector: Vector) -> str:
    given = dict(vector.values["given"])
    store: Any = TaskStatus(url)
    if vector.values["kind"] == "backtest_task_progress":
        store = BacktestProgress(url)
    async with store:
        await store.set(given.pop("task_id"), **given)
    key: str = vector.values["key"]
    return key


async def write_cache(url: str, vector: Vector) -> str:
    given = vector.values["given"]
    async with FunctionCache(url) as cache:

        @cache.cached(name=given["func_name"])
        async def function() -> object:
            return given["result"]

        await function()
        async with Redis.from_url(url) as client:
            found: Any = await client.keys("ginkgo_func_cache_*")
    name: str = found[0].decode()
    assert name.startswith(f"ginkgo_func_cache_{given['func_name']}_")
    return name


WRITERS: Final[dict[str, Callable[[str, Vector], Awaitable[str]]]] = {
    "value": write_value,
    "days": write_days,
    "task": write_task,
    "cache": write_cache,
}


def at_the_time_of(vector: Vector, payload: bytes) -> bytes:
    """Replace the times of a written value by those of the vector."""
    wanted = json.loads(vector.values["value"])
    text = payload.decode()
    found = json.loads(text)
    for name in TIMES:
        if name in found:
            text = text.replace(
                f'"{name}":"{found[name]}"', f'"{name}":"{wanted[name]}"'
            )
    return text.encode()


def test_every_check_is_known() -> None:
    checks = {vector.check for vector in VECTORS.values()}
    assert checks == {*CHECKS, *WRITERS}
    keys = vectors_of("001", "key").values()
    assert {vector.values["kind"] for vector in keys} == set(ROWS)
    assert sound_heartbeats().keys() == KINDS.keys()


@pytest.mark.parametrize("check", CHECKS)
def test_vectors(check: str) -> None:
    """Each vector, by the function that the package uses."""
    judge("001", check, CHECKS[check])


async def test_what_is_written(own_server: DevServer, admin: Redis) -> None:
    """Type, TTL and bytes of each value on a server."""
    for id_, vector in vectors_of("001", *WRITERS).items():
        await admin.flushall()
        key = await WRITERS[vector.check](own_server.url, vector)
        values = vector.values
        kind: Any = await admin.type(key)
        assert kind.decode() == values["type"], id_
        assert 0 <= values["ttl"] - await admin.ttl(key) <= 2, id_
        if values["type"] == "set":
            members = {read_bytes(member) for member in values["value"]}
            assert await admin.smembers(key) == members, id_
            continue
        payload: Any = await admin.get(key)
        assert at_the_time_of(vector, payload) == values["value"].encode(), id_


async def test_one_registry_reads_them_all(own_server: DevServer, admin: Redis) -> None:
    """Each value under a key of its own; a broken one hides no other."""
    wanted: dict[str, str] = {}
    for number, vector in enumerate(vectors_of("001", "heartbeat").values()):
        values = vector.values
        row = KEYS[values["kind"]]
        fields = dict.fromkeys(row.fields, f"k{number}")
        key = row.build(**fields)
        payload, ttl = read_bytes(values["stored"]), values.get("ttl", 30)
        if values.get("type") == "list":
            await admin.rpush(key, payload)
        else:
            await admin.set(key, payload)
        if ttl is not None:
            await admin.expire(key, 300)
        wanted[key] = values["result"]["problem"]
    async with WorkerRegistry(own_server.url) as registry:
        found = {worker.key: worker.problem for worker in await registry.alive()}
    assert found == wanted
