"""The vectors of crawl queues, by the package's own readers and writers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, DecodeError
from bls_agent.core.keys import KEYS
from bls_agent.crawl import (
    CrawlRequest,
    RedisKeyManager,
    RequestQueue,
    fingerprint,
    get_redis_key_info,
    item_fingerprint,
    validate_redis_key_naming,
)
from bls_agent.crawl.fingerprint import canonical_url
from bls_agent.crawl.keys import QueueKeys
from bls_agent.devserver import DevServer
from bls_agent.ops.conformance.vectors import Vector, read_bytes
from tests.corpus.loader import judge, vectors_of
from tests.harness import eventually

VECTORS: Final = vectors_of("004")
REFUSAL: Final = r"^(project|spider): .*; "
GOOD: Final = CrawlRequest("https://example.org/good")


def request_of(given: dict[str, Any]) -> CrawlRequest:
    """Make the request of a vector; its body is a text or base64."""
    parts = dict(given)
    parts.pop("fingerprint_headers", None)
    if "body" in parts:
        parts["body"] = read_bytes(parts["body"])
    return CrawlRequest(**parts)


def check_key(vector: Vector) -> None:
    """A manager makes the key of these names, or refuses the names."""
    values, parts = vector.values, dict(vector.values["parts"])
    member = parts.pop("key", None)
    if values["key"] is None:
        with pytest.raises(ConfigurationError, match=REFUSAL):
            RedisKeyManager(parts["project"], parts.get("spider"))
        return
    manager = RedisKeyManager(parts["project"], parts.get("spider"))
    rows = {row: key for key, row in manager.single_keys().items()}
    if member is not None:
        rows[values["kind"]] = manager.get_failed_retries_key(member)
    assert rows[values["kind"]] == values["key"]
    row = KEYS[values["kind"]]
    assert (str(row.type), row.ttl) == (values["type"], values["ttl"])


def check_parse(vector: Vector) -> None:
    key, result = vector.values["key"], vector.values["result"]
    assert get_redis_key_info(key) == result
    assert validate_redis_key_naming(key) == result["valid"]


def check_request(vector: Vector) -> None:
    values = vector.values
    assert request_of(values["given"]).encode() == read_bytes(values["value"])


def check_stored_request(vector: Vector) -> None:
    """A body is read as a request, or refused; no pickle is executed."""
    result, payload = vector.values["result"], read_bytes(vector.values["stored"])
    if result["problem"]:
        with pytest.raises(DecodeError) as caught:
            CrawlRequest.decode(payload)
        assert caught.value.reason == result["problem"]
        return
    request = CrawlRequest.decode(payload)
    for name, value in result["request"].items():
        wanted = read_bytes(value) if name == "body" else value
        assert getattr(request, name) == wanted, name


def check_canonical_url(vector: Vector) -> None:
    """All spellings of a URL have one form, which is its own form."""
    url, form = vector.values["url"], vector.values["value"]
    assert canonical_url(url) == form
    assert canonical_url(form) == form
    assert fingerprint(CrawlRequest(url)) == fingerprint(CrawlRequest(form))


def check_fingerprint(vector: Vector) -> None:
    given = vector.values["given"]
    headers = given.get("fingerprint_headers", ())
    assert fingerprint(request_of(given), headers) == vector.values["value"]


def check_item_fingerprint(vector: Vector) -> None:
    assert item_fingerprint(vector.values["given"]) == vector.values["value"]


CHECKS: Final[dict[str, Callable[[Vector], None]]] = {
    "key": check_key,
    "parse": check_parse,
    "request": check_request,
    "stored_request": check_stored_request,
    "canonical_url": check_canonical_url,
    "fingerprint": check_fingerprint,
    "item_fingerprint": check_item_fingerprint,
}


def test_every_check_is_known() -> None:
    checks = {vector.check for vector in VECTORS.values()}
    assert checks == {*CHECKS, "push", "member"}


@pytest.mark.parametrize("check", CHECKS)
def test_vectors(check: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each vector, by the function that the package uses."""
    judge("004", check, CHECKS[check])
    assert capsys.readouterr().out == ""


async def test_what_is_written(own_server: DevServer, admin: Redis) -> None:
    """Every key of the protocol after one push; no key expires."""
    keys = QueueKeys.of(RedisKeyManager("新闻")).by_row
    for id_, vector in vectors_of("004", "push").items():
        await admin.flushall()
        given, result = vector.values["given"], vector.values["result"]
        async with RequestQueue(own_server.url, "新闻") as queue:
            request = request_of(given["request"])
            await queue.push(request, given["priority"], unique=given["unique"])
        named = {keys[row.removeprefix("crawl_")]: one for row, one in result.items()}
        found: Any = await admin.keys("crawlo:*")
        assert {key.decode() for key in found} == set(named), id_
        for key, one in named.items():
            kind: Any = await admin.type(key)
            assert (kind.decode(), one["ttl"]) == (one["type"], None), id_
            assert await admin.ttl(key) == -1, id_
        waiting: Any = await admin.zrange(keys["requests"], 0, -1, withscores=True)
        ((member, score),) = waiting
        assert score == result["crawl_requests"]["score"], id_
        body = result["crawl_requests_data"]["value"].encode()
        assert await admin.hgetall(keys["requests_data"]) == {member: body}, id_
        print_ = result["crawl_filter_fingerprint"]["member"].encode()
        assert await admin.smembers(keys["filter_fingerprint"]) == {print_}, id_


async def test_the_queue_reads_them_all(own_server: DevServer, admin: Redis) -> None:
    """A worker gets each good request; a broken body is put into the failed list."""
    keys = QueueKeys.of(RedisKeyManager("新闻")).by_row
    broken = 0
    for number, vector in enumerate(vectors_of("004", "stored_request").values()):
        await admin.zadd(keys["requests"], {str(number): number})
        payload = read_bytes(vector.values["stored"])
        await admin.hset(keys["requests_data"], str(number), payload)
        broken += bool(vector.values["result"]["problem"])
    good = len(vectors_of("004", "stored_request")) - broken
    async with RequestQueue(own_server.url, "新闻") as queue:
        await queue.push(GOOD, 1_000_000)
        taken = [await take(queue) for _ in range(good + 1)]
        assert taken[-1] == GOOD
        assert await take(queue) is None

        async def are_failed() -> bool:
            return await admin.llen(keys["failed"]) == broken

        await eventually(are_failed)
        assert all(one.request is None for one in await queue.failed())


async def take(queue: RequestQueue) -> CrawlRequest | None:
    async with queue.take(timeout=0) as taken:
        return None if taken is None else taken.request


async def test_any_member_is_served(own_server: DevServer, admin: Redis) -> None:
    """A member of another program is any text or any bytes."""
    keys = QueueKeys.of(RedisKeyManager("新闻")).by_row
    async with RequestQueue(own_server.url, "新闻") as queue:
        for id_, vector in vectors_of("004", "member").items():
            member = read_bytes(vector.values["stored"])
            assert vector.values["result"]["problem"] == ""
            await admin.zadd(keys["requests"], {member: 0})
            await admin.hset(keys["requests_data"], member, GOOD.encode())
            assert await take(queue) == GOOD, id_
            assert await admin.keys("crawlo:*") == [], id_
