"""Whatever lies in Redis, a rule never raises, and no secret gets into a report."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import Any

import anyio
from hypothesis import given, strategies as st
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from bls_agent.core.codec import encode
from bls_agent.core.keys import KEYS
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.doctor.rule import Sample, Unanswered
from bls_agent.ops.doctor.rules.table import KEY_RULES, RULES_OF
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.ops.doctor.plants import command, heartbeat, key_of, record

ODD = [
    b"", b"\xff", b"null", b"[]", b'"x"', b"1" * 5_000, b"-1", b"{}", b"NaN",
    b'{"timestamp": 1, "level": [], "message": {}, "metadata": []}',
    b'{"timestamp": "0001-01-01T00:00:00+14:00", "metadata": {"agent": 7}}',
    b'{"timestamp": "9999-12-31T23:59:59-14:00", "metadata": {"agent": "a#1"}}',
    b'{"id": {}, "command": [], "args": 1, "status": {}, "node_id": [1]}',
    *(text.encode("utf-8", "surrogatepass") for text in HOSTILE_TEXTS.values()),
    record(), command(), heartbeat("scheduler_heartbeat"),
]  # fmt: skip
FIELDS = [
    b"id", b"version", b"category", b"name", b"runtime", b"created_at", b"sync_status",
    b"last_sync_time", b"sequence", b"timestamp", b"data", b"event_category", b"n1",
]  # fmt: skip
values = st.sampled_from(ODD) | st.binary(max_size=40)
names = st.sampled_from(FIELDS) | st.binary(max_size=10)
pairs = st.dictionaries(names, values, max_size=6)
ANSWERS = {
    "EXISTS": st.integers(0, 1),
    "SISMEMBER": st.integers(0, 1),
    "HEXISTS": st.integers(0, 1),
    "GET": st.none() | values,
    "HGET": st.none() | values,
    "ZCOUNT": st.integers(0, 2),
    "ZSCORE": st.none() | st.just(b"1"),
    "HGETALL": st.lists(st.tuples(values, values)).map(
        lambda pairs: [*chain.from_iterable(pairs)]
    ),
    "HMGET": st.lists(st.none() | values, min_size=4, max_size=4),
}


@st.composite
def samples(draw: Any) -> Sample:
    """A key of any kind, holding anything."""
    row = draw(st.sampled_from([*KEYS, ""]))
    kind = KEYS[row].fields if row else ()
    items = draw(st.lists(values, min_size=1, max_size=6))
    numbers = st.integers(0, 2**64 - 1).map(lambda number: f"{number}-0".encode())
    plain = Sample(
        key=key_of(row) if row else draw(st.text(max_size=30)),
        row=row,
        fields={name: draw(st.text(min_size=1, max_size=8)) for name in kind},
        type=str(KEYS[row].type) if row else "",
        ttl=draw(st.none() | st.floats(0, 1e12)),
        size=draw(st.integers(0, 10**9)),
        items=items,
        oldest=draw(st.integers(0, len(items))),
        pairs=draw(pairs),
        entries=draw(st.lists(st.tuples(numbers, pairs), max_size=4)),
        complete=draw(st.booleans()),
        now=draw(st.floats(0, 4e9)),
        connected=draw(st.none() | st.just(frozenset({"a", "b"}))),
    )
    for rule in RULES_OF.get(row, ()):
        with suppress(Unanswered):
            rule.judge(plain)
    answered = [one for one in plain.questions if draw(st.integers(0, 9))]
    plain.answers = {one: draw(ANSWERS[one[0]]) for one in answered}
    return plain


@given(samples())
def test_no_rule_raises(sample: Sample) -> None:
    """What it says can be written as JSON, in a line."""
    for rule in KEY_RULES:
        if rule.row == sample.row:
            finding = rule.judge(sample)
            if finding is not None:
                assert all(isinstance(text, str) for text in finding.values.values())
                encode(finding.values)


async def test_every_kind_of_key_holding_anything(
    own_server: DevServer, admin: AsyncRedis
) -> None:
    """Real keys, real replies."""
    pipeline: Any = admin.pipeline(transaction=False)
    for template in KEYS.values():
        for number, item in enumerate(ODD):
            key = template.locate(**dict.fromkeys(template.fields, f"x{number}"))
            made: dict[str | None, list[object]] = {
                "string": ["SET", key, item],
                "list": ["RPUSH", key, item, item],
                "set": ["SADD", key, item],
                "zset": ["ZADD", key, 1, item],
                "hash": ["HSET", key, item, item, "id", item, "category", item],
                "stream": ["XADD", key, "*", item, item, "sequence", item],
                None: ["SETNX", key, item],
            }
            pipeline.execute_command(*made[template.type and str(template.type)])
    await pipeline.execute()
    report = await examine(own_server.url)
    assert not report.healthy
    assert report.foreign == 0
    encode(report.to_dict())


def test_keys_of_a_megabyte(own_server: DevServer) -> None:
    """They cost what others cost, and are shown cut."""
    with Redis.from_url(own_server.url) as client:
        for long in ("_update_" * 130_000, "订" * 350_000 + "_项目状态"):
            client.set(long, "x")
            client.set(long.encode("gb18030"), "x")
        report = anyio.run(examine, own_server.url)
    assert {group.rule for group in report.groups} >= {"name-broken", "twin-key"}
    assert len(encode(report.to_dict())) < 20_000


def test_no_secret_is_reported(own_server: DevServer) -> None:
    """What looks like one is masked, as everywhere."""
    with Redis.from_url(own_server.url) as client:
        client.rpush("a_控制", '{"command": "", "args": {"password": "kanarie-1"}}')
        client.rpush("a_项目控制台", "connecting to redis://user:kanarie-2@host/0")
        client.set("a_项目状态", "token=kanarie-3")
        report = anyio.run(examine, own_server.url)
    assert len(report.groups) > 2
    assert b"kanarie" not in encode(report.to_dict())
