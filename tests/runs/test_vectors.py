"""The vectors of run events, by the package's own readers and writers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, EventStore
from bls_agent.core.keys import RUN_EVENTS
from bls_agent.devserver import DevServer
from bls_agent.ops.conformance.vectors import Vector, read_bytes
from bls_agent.runs import StreamEvent
from bls_agent.runs.events import check_id, find_id
from tests.corpus.loader import fields_of, flat, judge, vectors_of
from tests.runs.writing import entries

VECTORS: Final = vectors_of("003")
ENTRY_ID: Final = b"1704067200123-0"


def decode(vector: Vector) -> StreamEvent:
    values = vector.values
    number = values.get("entry_id", ENTRY_ID.decode()).encode()
    return StreamEvent.decode(values.get("run_id", 1), number, fields_of(vector))


def check_key(vector: Vector) -> None:
    values = vector.values
    assert RUN_EVENTS.build(**values["parts"]) == values["key"]
    assert RUN_EVENTS.parse(values["key"]) == values["parts"]
    assert str(RUN_EVENTS.type) == values["type"]
    assert RUN_EVENTS.ttl == values["ttl"]


def check_entry(vector: Vector) -> None:
    """An entry becomes the event that programs see, and its faults are named."""
    event, result = decode(vector), vector.values["result"]
    assert sorted(event.faults) == sorted(result["faults"])
    fields = fields_of(vector)
    whole = dict(zip(fields[::2], fields[1::2], strict=True))
    assert event.raw == (whole if event.faults else None)
    assert "data" not in event.faults or event.data == {}
    assert "sequence" not in event.faults or event.sequence == 0
    assert not set(event.json) & set(b"\r\n\0")
    told = orjson.loads(event.json)
    assert list(told) == list(event.to_dict())
    assert told["event"] == event.event
    found = event.to_dict()
    for name, value in result.get("event", {}).items():
        assert found[name] == value, name


def check_resume(vector: Vector) -> None:
    """A ``Last-Event-ID`` is an id, or is refused."""
    given = read_bytes(vector.values["last_event_id"])
    text = given.decode("utf-8", "surrogateescape")
    result = vector.values["result"]
    assert find_id(text) == result
    if result is None:
        with pytest.raises(ConfigurationError):
            check_id("last_id", text)
    else:
        assert check_id("last_id", text) == result


def check_frame(vector: Vector) -> None:
    assert decode(vector).sse == read_bytes(vector.values["value"])


CHECKS: Final[dict[str, Callable[[Vector], None]]] = {
    "key": check_key,
    "entry": check_entry,
    "resume": check_resume,
    "frame": check_frame,
}


def test_every_check_is_known() -> None:
    assert {vector.check for vector in VECTORS.values()} == {*CHECKS, "event"}


@pytest.mark.parametrize("check", CHECKS)
def test_vectors(check: str) -> None:
    """Each vector, by the function that the package uses."""
    judge("003", check, CHECKS[check])


async def test_what_is_written(own_server: DevServer, admin: Redis) -> None:
    """Key, type, TTL and the nine fields, on a server; each in a run of its own."""
    async with EventStore(own_server.url) as store:
        for run_id, (id_, vector) in enumerate(vectors_of("003", "event").items()):
            values = vector.values
            added = await store.add(run_id, **values["given"])
            assert added is not None
            key = f"run:{run_id}:events"
            assert await admin.keys("run:*") == [key.encode()], id_
            kind: Any = await admin.type(key)
            assert kind.decode() == values["type"], id_
            assert 0 <= values["ttl"] - await admin.ttl(key) <= 2, id_
            ((number, fields),) = await entries(admin, key)
            assert number == added.encode(), id_
            assert tuple(fields) == flat(values["fields"]), id_
            await admin.flushall()


REFUSED: Final = [
    id_
    for id_, vector in vectors_of("003", "resume").items()
    if vector.values["result"] is None
]


@pytest.mark.parametrize("id_", REFUSED)
async def test_a_follower_begins_only_behind_an_id(id_: str) -> None:
    """Another text is refused before Redis is asked; nobody listens at this port."""
    values = VECTORS[id_].values
    text = read_bytes(values["last_event_id"]).decode("utf-8", "surrogateescape")
    store = EventStore("redis://127.0.0.1:1")
    with pytest.raises(ConfigurationError):
        await store.get_events_after(1, text)
    if text != "$":
        with pytest.raises(ConfigurationError):
            store.follow(1, text)
