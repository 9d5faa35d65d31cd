"""Every rule finds its fault, exactly that, and every rule has a fault that it finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from bls_agent.core.keys import KEYS
from bls_agent.devserver import DevServer
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.doctor.report import Report, word
from bls_agent.ops.doctor.rule import Finding, Rule, Sample, Unanswered
from bls_agent.ops.doctor.rules.crawl import RULES as CRAWL_RULES
from bls_agent.ops.doctor.rules.table import KEY_RULES
from bls_agent.ops.texts import LANGUAGES, load_texts
from tests.ops.doctor.plants import (
    CLOSE,
    CONTROL,
    INDEX,
    LONG_AGO,
    META,
    PLANTS,
    PROJECT,
    RUN,
    RUN_PLACE,
    STATUS,
    SYNC,
    Plant,
    Words,
    asset,
    at,
    command,
    crawl,
    event,
    good,
    heartbeat,
    key_of,
    run,
)

SAVING = ("--save", "3600", "1")  # nothing to note about the server


@pytest.fixture(scope="module")
def bad_server() -> Iterator[DevServer]:
    with DevServer(options=SAVING) as server:
        yield server


@pytest.fixture
def bad(bad_server: DevServer) -> Iterator[Redis]:
    """An empty Redis, to be spoilt."""
    with Redis.from_url(bad_server.url) as client:
        client.flushdb()  # FLUSHALL would save an empty file first
        yield client


def send(client: Any, request: Words) -> None:
    client.execute_command(*request)


def found(report: Report) -> set[tuple[str, str]]:
    """Return the findings, but not that the machine was too busy to answer soon."""
    findings = {(f.rule, f.key) for f in report.findings}
    return {one for one in findings if one[0] != "server-slow"}


@pytest.mark.parametrize("rule", dict.fromkeys(plant.rule for plant in PLANTS))
async def test_the_planted_faults_of_a_rule_are_found(
    rule: str, bad: Redis, bad_server: DevServer
) -> None:
    """Exactly the one that was planted; and it can be said in both languages."""
    for plant in PLANTS:
        if plant.rule == rule:
            bad.flushdb()
            await check_plant(plant, bad, bad_server)


async def check_plant(plant: Plant, bad: Redis, bad_server: DevServer) -> None:
    for request in plant.requests():
        send(bad, request)
    with ExitStack() as clients:
        for name in plant.clients:
            client = clients.enter_context(Redis.from_url(bad_server.url))
            clients.enter_context(client.client()).client_setname(name)
        report = await examine(bad_server.url)
    key = plant.key
    if isinstance(key, bytes):
        key = key.decode("utf-8", "surrogateescape")
    assert found(report) == {(plant.rule, key), *plant.also}, plant.name
    for finding in report.findings:
        check_words(finding)


def check_words(finding: Finding) -> None:
    for language in LANGUAGES:
        words = word(finding, load_texts("doctor", language))
        assert all(words)
        assert not any(
            "{" in one.replace("{}", "").replace("{id}", "") for one in words[1:]
        )


def test_every_rule_has_a_planted_fault() -> None:
    """Of every kind of key that it holds for."""
    rules = {(rule.code, rule.row) for rule in KEY_RULES}
    assert {(plant.rule, plant.row) for plant in PLANTS} == rules
    assert len(rules) == len(KEY_RULES)
    assert len({plant.rule for plant in PLANTS}) >= 25


@pytest.mark.parametrize("row", KEYS)
async def test_a_key_as_it_should_be(
    row: str, bad: Redis, bad_server: DevServer
) -> None:
    """Nothing is found, whatever kind of key it is."""
    for request in good(row):
        send(bad, request)
    report = await examine(bad_server.url)
    expected = {"dead-letters"} if row == "dead_letters" else set()
    assert {rule for rule, _ in found(report)} == expected
    assert report.keys[row] == 1
    assert not report.foreign


MOVING = [
    rule
    for rule in CRAWL_RULES
    if rule.code in {"crawl-no-body", "crawl-no-request", "crawl-not-taken"}
]


@pytest.mark.parametrize("rule", MOVING, ids=lambda rule: rule.row)
def test_a_request_that_moves_meanwhile_is_no_fault(rule: Rule) -> None:
    """It is one only if both sides were asked at the same time and differ."""
    key = key_of(rule.row)
    fields = KEYS[rule.row].parse(key) or {}
    sample = Sample(
        key=key, row=rule.row, fields=fields, items=[b"r"], pairs={b"r": b"1"}, now=0.0
    )
    absent = {"HEXISTS": 0, "ZSCORE": None}
    with pytest.raises(Unanswered):
        rule.judge(sample)
    gone = {question: absent[question[0]] for question in sample.questions}
    assert len(gone) == 2
    assert rule.judge(replace(sample, answers=gone)) is None
    side = "ZSCORE" if rule.code == "crawl-no-body" else "HEXISTS"
    half = {
        q: (b"1" if side == "ZSCORE" else 1) if q[0] == side else told
        for q, told in gone.items()
    }
    assert rule.judge(replace(sample, answers=half)) is not None


REQUESTS = f"crawlo:{PROJECT}:queue:requests"
LEASE = "bls_agent:{heartbeat:node:n1}:owner"
LIVES = ("SET", f"bls_agent:{RUN_PLACE}:owner", "t", "PX", 60_000)
BOOKS = "bls_agent:{订单系统_控制}:books"
DOUBTS: dict[str, tuple[list[Words], set[tuple[str, str]]]] = {
    "a synchronisation that is alive": (
        [
            ("HSET", SYNC, "sync_status", "syncing"),
            ("SET", "bls_agent:{asset:sync:state}:owner", "t", "PX", 60_000),
        ],
        set(),
    ),
    "a synchronisation that has died a moment ago": (
        [
            ("HSET", SYNC, "sync_status", "syncing", "last_sync_time", str(2**40)),
            ("SET", "bls_agent:{asset:sync:state}:report", "{}"),
        ],
        {("sync-stuck", SYNC)},
    ),
    "an asset in two categories": (
        [*asset(), ("SADD", "asset:category:prompt", "n1")],
        {("category-members", "asset:category:prompt")},
    ),
    "a category of another type": (
        [("SET", "asset:category:tool", "x"), asset()[0], asset()[2]],
        {("wrong-type", "asset:category:tool")},
    ),
    "an index of another type": (
        [("SET", INDEX, "x"), *asset()[:2]],
        {("wrong-type", INDEX)},
    ),
    "metadata of another type": (
        [("SET", META, "x"), *asset()[1:]],
        {("wrong-type", META)},
    ),
    "a queue of another type": (
        [("SET", REQUESTS, "x"), crawl("requests")[1]],
        {("wrong-type", REQUESTS)},
    ),
    "data of another type": (
        [crawl("requests")[0], ("SET", f"{REQUESTS}:data", "x")],
        {("wrong-type", f"{REQUESTS}:data")},
    ),
    "a project that has ended": (
        [("SET", STATUS, "离线"), ("RPUSH", CONTROL, command(timestamp=LONG_AGO))],
        {("commands-unclaimed", CONTROL)},
    ),
    "a status of another type": (
        [("RPUSH", STATUS, "在线"), ("RPUSH", CONTROL, command(timestamp=LONG_AGO))],
        {("wrong-type", STATUS), ("commands-unclaimed", CONTROL)},
    ),
    "a command that does not say when it was sent, to nobody": (
        [("RPUSH", CONTROL, command(timestamp="-"))],
        {("command-timestamp", CONTROL), ("commands-to-nobody", CONTROL)},
    ),
    "a command that was sent before its agent starts": (
        [("RPUSH", CONTROL, command(timestamp=at(600)))],  # this module may wait
        set(),
    ),
    "a lease that a clean stop has left": (
        [("SET", LEASE, "token ended", "EX", 30)],
        set(),
    ),
    "a lease that ends with its heartbeat": (
        [("SET", LEASE, "token 7 digest", "EX", 3)],
        set(),
    ),
    "a run whose writer lives": ([*run("owner", "t"), LIVES], set()),
    "a run whose writer has written nothing": (
        [*run("owner", "t"), LIVES, ("UNLINK", RUN)],
        set(),
    ),
    "a run that somebody else has closed": (
        [*run("owner", "t"), ("XADD", RUN, "*", *event(sequence="2", **CLOSE))],
        set(),
    ),
    "a run of another type": (
        [*run("owner", "t")[2:], ("SET", RUN, "x")],
        {("wrong-type", RUN)},
    ),
    "counters of several processes": (
        [("XADD", RUN, "*", *event(sequence=str(n))) for n in (5, 100, 6, 101)],
        {("run-repeats", RUN)},
    ),
    "books of something else": (
        [("HSET", BOOKS, "owner", "t"), ("EXPIRE", BOOKS, 60)],
        set(),
    ),
    "a lease of whoever computes a result": (
        [("SET", "bls_agent:{ginkgo_func_cache_f_k}:owner", "token", "EX", 30)],
        set(),
    ),
}


@pytest.mark.parametrize("case", DOUBTS)
async def test_what_cannot_be_told_is_no_fault(
    case: str, bad: Redis, bad_server: DevServer
) -> None:
    """Of two keys that belong together the one that is wrong is named, not the other."""
    requests, expected = DOUBTS[case]
    for request in requests:
        send(bad, request)
    assert found(await examine(bad_server.url)) == expected


@pytest.mark.parametrize(("status", "age"), [("running", 0), ("stopped", 20)])
async def test_a_heartbeat_that_only_looks_old(
    status: str, age: float, bad: Redis, bad_server: DevServer
) -> None:
    """Who gives it a shorter TTL says when; who has stopped refreshes no more."""
    row = "execution_node_heartbeat"
    beat = heartbeat(row, status=status, timestamp=at(-age))
    send(bad, ("SET", "heartbeat:node:n1", beat, "EX", 10))
    assert found(await examine(bad_server.url)) == set()
