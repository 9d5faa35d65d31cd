"""Requests as JSON, and fingerprints that are the same everywhere."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections import UserDict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import scrapy
from hypothesis import given, strategies as st

from bls_agent.core.codec import decode, encode
from bls_agent.core.errors import ConfigurationError, DecodeError
from bls_agent.crawl import CrawlRequest, fingerprint, item_fingerprint
from bls_agent.crawl.fingerprint import canonical_url

PAGE = "https://example.org/a?b=1"

# --- fingerprints

CANONICAL = {
    "https://example.org": "https://example.org/",
    "HTTP://User@EXAMPLE.com:80/A": "http://User@example.com/A",
    "https://example.org:443/": "https://example.org/",
    "https://example.org:80/": "https://example.org:80/",
    "https://example.org?&&": "https://example.org/",
    "https://example.org/?b=2&a=1&a=0&c#top": "https://example.org/?a=0&a=1&b=2&c=",
    "https://example.org/?q=a+b&&x=%e9;1": "https://example.org/?q=a+b&x=%E9%3B1",
    "http://bücher.example/ä": "http://xn--bcher-kva.example/%C3%A4",
    "http://xn--bcher-kva.example/%c3%a4": "http://xn--bcher-kva.example/%C3%A4",
    "https://新闻.cn/茶?茶=1": "https://xn--efvy88h.cn/%E8%8C%B6?%E8%8C%B6=1",
    "https://a.b/%7Ex/./c/../d%2fe%2C%25": "https://a.b/~x/d%2Fe,%25",
    "https://a.b/%2e%2e/c/..": "https://a.b/",
    "https://a.b//c//": "https://a.b//c//",
    "http://[::0:1]:8080/a b": "http://[::1]:8080/a%20b",
    "data:text/plain,a": "data:text/plain,a",
    "about:blank": "about:blank",
}


def test_the_canonical_form() -> None:
    """Spellings of one URL have one form, which is its own."""
    for url, form in CANONICAL.items():
        assert canonical_url(url) == form
        assert canonical_url(form) == form
        assert fingerprint(CrawlRequest(url)) == fingerprint(CrawlRequest(form))


@given(st.text("aA%2fFé./:?&=;+#@ []~", max_size=30))
def test_any_url_has_one_form(rest: str) -> None:
    """What is taken as a URL has a form, and the form of that is itself."""
    try:
        request = CrawlRequest(f"https://example.org/{rest}")
    except ConfigurationError:
        return
    form = canonical_url(request.url)
    assert canonical_url(form) == form
    assert fingerprint(request) == fingerprint(CrawlRequest(form))


PAGES = [
    "/a%2Fb",
    "/a/b",
    "/a%3Fb",
    "/a?b",
    "/a%23b",
    "/a;b",
    "/a%253Fb",
    "/A",
    "/A?=",
    "/?a=b%26c",
]


def test_what_differs_stays_different() -> None:
    """Escapes that mean something else, method, body: none is lost."""
    requests = [CrawlRequest("https://example.org" + page) for page in PAGES]
    requests += [
        CrawlRequest("http://example.org/a/b"),
        CrawlRequest("https://example.org/a/b", "POST"),
        CrawlRequest("https://example.org/a/b", body=b"x"),
        CrawlRequest("https://example.org/a/bx"),
    ]
    assert len({fingerprint(request) for request in requests}) == len(requests)


def golden() -> list[str]:
    """Fingerprints of a few requests and items."""
    with_headers = CrawlRequest(
        PAGE, "post", {"Accept": "a", "X": "1"}, "茶".encode(), {"depth": 1}, "parse"
    )
    return [
        fingerprint(CrawlRequest(PAGE)),
        fingerprint(with_headers),
        fingerprint(with_headers, ["accept"]),
        fingerprint(with_headers, {"X", "ACCEPT", "Missing"}),
        fingerprint(CrawlRequest("https://新闻.cn:443/%7Ea?b=2&a=1#x")),
        item_fingerprint({"标题": "茶", "price": 1.5, "tags": ["a", None, True]}),
    ]


GOLDEN = [
    "647600a672ddb7cad8c7b5638898a89996a948f1d851642611ddc921a1d419a7",
    "347550c0ead8d9fd10bf406216746bccf0c7717703993637d2e4e960dcbdda65",
    "b9350e082e479c322b6f78ae5df058d5d7aa9c725578a1ad1a6a9daeeeb81a16",
    "f9dbf8dffe9a0d920d3299d53f7c596827cf90a0e4d3e98ac4d880267042125b",
    "0a589b70439ab50645f3d5112e361c261bf788ec1594d24fccdcec0e706bb0b2",
    "a2729e4673291f154f2229f733abe11198122e89aa51b3e6822c44dd426007b2",
]


def test_golden_values() -> None:
    """They stay what they are: fingerprints are kept in Redis for months."""
    assert golden() == GOLDEN
    page = b"3:GET" + b"%d:%b" % (len(PAGE), PAGE.encode()) + b"0:"
    assert hashlib.sha256(page).hexdigest() == GOLDEN[0]
    assert len(set(GOLDEN)) == len(GOLDEN)


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_another_process_agrees(seed: str) -> None:
    """Whatever its hash seed is."""
    code = "from test_fingerprint import golden; print(*golden(), sep='\\n')"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parent,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.split() == GOLDEN


def test_only_named_headers_count() -> None:
    """Their case does not; a header without a value is another than none."""
    plain, one = CrawlRequest(PAGE), CrawlRequest(PAGE, headers={"ACCEPT": "a"})
    two = CrawlRequest(PAGE, headers={"accept": "b"})
    empty = CrawlRequest(PAGE, headers={"accept": ""})
    assert fingerprint(plain) == fingerprint(one) == fingerprint(two)
    assert len({fingerprint(r, ["Accept"]) for r in (plain, one, two, empty)}) == 4


def test_a_request_of_scrapy() -> None:
    """The same request has the same fingerprint, headers included."""
    theirs = scrapy.Request(PAGE, method="POST", body="茶", headers={"Accept": "a"})
    ours = CrawlRequest(PAGE, "POST", {"Accept": "a"}, "茶".encode())
    assert fingerprint(theirs) == fingerprint(ours)
    assert fingerprint(theirs, ["accept"]) == fingerprint(ours, ["accept"])
    several = scrapy.Request(PAGE, headers={"Accept": ["a", "b"]})
    assert fingerprint(several, ["accept"]) != fingerprint(theirs, ["accept"])


# --- items


@dataclass
class Price:
    title: str
    price: float


class Book(scrapy.Item):
    price = scrapy.Field()
    title = scrapy.Field()


def test_equal_items_agree() -> None:
    """A dict in any order, a dataclass, an item of Scrapy."""
    items: list[object] = [
        {"title": "茶", "price": 3.5},
        {"price": 3.5, "title": "茶"},
        UserDict(title="茶", price=3.5),
        Price("茶", 3.5),
        Book(title="茶", price=3.5),
    ]
    assert len({item_fingerprint(item) for item in items}) == 1
    others: list[object] = [
        {"title": "茶"},
        {"title": "茶", "price": "3.5"},
        ["茶"],
        "茶",
    ]
    assert len({item_fingerprint(item) for item in [*items, *others]}) == 5


@pytest.mark.parametrize(
    "item",
    [{"a": float("nan")}, {1: 2}, {"a": {1}}, object(), "\ud800", {"a": 2**70}, Price],
)
def test_an_item_that_json_cannot_hold(item: object) -> None:
    """It is refused: no stand-in, or different items would become equal."""
    with pytest.raises(ConfigurationError, match=r"^item: .*JSON can hold"):
        item_fingerprint(item)


# --- requests

FULL = CrawlRequest(
    PAGE, "post", {"Accept": "a"}, "茶".encode(), {"depth": 1, "from": ["x"]}, "parse"
)


def test_a_request_as_json() -> None:
    """What has its default is left out, a body is text where it can be."""
    assert CrawlRequest(PAGE).encode() == encode({"url": PAGE})
    assert decode(FULL.encode()) == {
        "url": PAGE,
        "method": "POST",
        "headers": {"Accept": "a"},
        "body": "茶",
        "meta": {"depth": 1, "from": ["x"]},
        "callback": "parse",
    }
    binary = CrawlRequest(PAGE, body=b"\xff")
    assert decode(binary.encode()) == {"url": PAGE, "body_base64": "/w=="}


@pytest.mark.parametrize(
    "request_",
    [
        FULL,
        CrawlRequest(PAGE, headers={}, meta={}),
        CrawlRequest(PAGE, body=b"\xff\x00"),
        CrawlRequest("https://新闻.cn/茶", body="茶"),  # type: ignore[arg-type]
        CrawlRequest(
            PAGE, meta={"at": datetime(2026, 1, 1, tzinfo=UTC), "pair": (1, 2)}
        ),
        CrawlRequest("https://a.b/" + "x" * (65_535 - 12), body=b"x" * 2**20),
    ],
    ids=range(6),
)
def test_a_request_comes_back_equal(request_: CrawlRequest) -> None:
    """Also where meta held what JSON writes in its own way."""
    assert CrawlRequest.decode(request_.encode()) == request_
    assert {request_: 1}[request_] == 1


class Bomb:
    """Pickled, this would write to stdout when it is read."""

    def __reduce__(self) -> Any:
        return print, ("unpickled",)


NO_REQUESTS = [
    pickle.dumps({"url": PAGE}),
    pickle.dumps(Bomb()),
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"https://example.org"',
    encode({"method": "GET"}),
    encode({"url": "example.org"}),
    encode({"url": 5}),
    encode({"url": PAGE, "headers": ["a"]}),
    encode({"url": PAGE, "headers": {"a": 1}}),
    encode({"url": None}),
    encode({"url": PAGE, "body": [1]}),
    encode({"url": PAGE, "body": "a", "body_base64": "YQ=="}),
    encode({"url": PAGE, "body_base64": "a"}),
    encode({"url": PAGE, "body_base64": 5}),
    encode({"url": PAGE, "meta": False}),
    encode({"url": PAGE, "callback": 1}),
    encode({"url": PAGE, "meta": {"x": "x" * 2**21}}),
    b"[" * 5_000,
]


def test_what_is_no_request_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A DecodeError, whatever it is; nothing is unpickled."""
    for payload in NO_REQUESTS:
        try:
            CrawlRequest.decode(payload)
        except DecodeError:
            continue
        raise AssertionError(payload)
    assert capsys.readouterr().out == ""


def test_what_a_peer_writes_beside_it_is_ignored() -> None:
    """Fields that we do not know, and ``null`` in those that we know."""
    names = ("method", "headers", "body", "body_base64", "meta", "callback")
    odd = {"url": PAGE, **dict.fromkeys(names), "priority": 1, "重试": {"次": 2}}
    assert CrawlRequest.decode(encode(odd)) == CrawlRequest(PAGE)
    both = {"url": PAGE, "method": "post", "body": None, "body_base64": "YQ=="}
    request = CrawlRequest(PAGE, method="POST", body=b"a")
    assert CrawlRequest.decode(encode(both)) == request


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "it has no url"),
        ({"url": None}, "it has no url"),
        ({"url": 5}, "url: '5' is not allowed; a URL is text, not int."),
        (
            {"url": PAGE, "body": "a", "body_base64": "YQ=="},
            "it has a body and a body_base64",
        ),
        ({"url": PAGE, "body_base64": "a"}, "its body_base64 is not Base64"),
        ({"url": PAGE, "body_base64": 5}, "its body_base64 is not Base64"),
        ({"url": PAGE, "meta": [1]}, "meta: '[1]' is not allowed; it is a mapping."),
    ],
)
def test_the_reason_is_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    """It names the field and the rule, not a call of ours that has failed."""
    with pytest.raises(DecodeError) as caught:
        CrawlRequest.decode(encode(fields))
    assert caught.value.reason == "bad_request"
    assert caught.value.detail.startswith(sentence)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({"url": b"https://a.b"}, "url: .*a URL is text, not bytes"),
    "no scheme": ({"url": "example.org/a"}, r"url: .*Write https:// before it\."),
    "a port": ({"url": "localhost:8080/a"}, "url: .*begins with its scheme"),
    "a blank before": ({"url": " https://a.b"}, "url: .*begins with its scheme"),
    "a blank behind": ({"url": "https://a.b "}, "url: .*Strip it"),
    "a line": ({"url": "https://a.b/\n"}, "url: .*no control characters"),
    "NUL": ({"url": "https://a.b/\0"}, "url: .*no control characters"),
    "C1": ({"url": "https://a.b/\x85x"}, "url: .*no control characters"),
    "a surrogate": ({"url": "https://a.b/\ud800"}, "url: .*lone surrogates"),
    "100 KB": ({"url": "https://a.b/" + "x" * 100_000}, "url: .*at most 65535 bytes"),
    "100 KB of Chinese": ({"url": "https://a.b/" + "茶" * 33_000}, "url: .*at most 65535"),
    "no host": ({"url": "https:///a"}, "url: .*no host"),
    "an odd port": ({"url": "https://a.b:x/"}, "url: .*no URL"),
    "an odd bracket": ({"url": "https://[::1/"}, "url: .*no URL"),
    "an odd address": ({"url": "https://[::z]/"}, "url: .*no URL"),
    "a method": ({"method": "GET /"}, "method: .*HTTP method"),
    "no method": ({"method": None}, "method: .*HTTP method"),
    "headers": ({"headers": "Accept: a"}, "headers: .*a mapping"),
    "a header": ({"headers": {"A b": "c"}}, "headers: 'A b'"),
    "a header of bytes": ({"headers": {b"A": b"c"}}, "headers: .*no name"),
    "a smuggled header": ({"headers": {"A": "b\r\nC: d"}}, "headers: .*on one line"),
    "a body": ({"body": 5}, "body: .*bytes or text"),
    "an odd body": ({"body": "\ud800"}, "body: .*valid Unicode"),
    "10 MB": ({"body": b"x" * 10**7}, "body: .*at most 1048576 bytes, not 10000000"),
    "meta": ({"meta": ["a"]}, "meta: .*a mapping"),
    "meta of objects": ({"meta": {"a": object()}}, "meta: .*JSON can hold"),
    "meta of NaN": ({"meta": {"a": float("inf")}}, "meta: .*JSON can hold"),
    "large meta": ({"meta": {"a": "x" * 2**21}}, "request: .*2097152 bytes of JSON"),
    "a callback": ({"callback": print}, "callback: .*name of a function"),
    "no callback": ({"callback": ""}, "callback: .*name of a function"),
    "an odd callback": ({"callback": "\ud800"}, "request: .*JSON can hold"),
}  # fmt: skip


def test_a_wrong_request_is_refused() -> None:
    """At construction; the message says what is wrong, and is short."""
    for arguments, message in WRONG.values():
        with pytest.raises(ConfigurationError, match=message) as caught:
            CrawlRequest(**{"url": PAGE, **arguments})
        assert len(str(caught.value)) < 400


def test_a_fingerprint_of_nonsense_is_refused() -> None:
    """A request of somebody else is held to the same rules, but for its size."""
    request = scrapy.Request(PAGE, body="x" * 2**21)
    assert len(fingerprint(request)) == 64
    with pytest.raises(ConfigurationError, match=r"^url: .*at most 65535"):
        fingerprint(request.replace(url=PAGE + "x" * 65_535))
    with pytest.raises(ConfigurationError, match=r"^request: .*Pass a CrawlRequest"):
        fingerprint(PAGE)  # type: ignore[arg-type]
