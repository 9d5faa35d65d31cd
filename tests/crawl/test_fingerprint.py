"""Requests as JSON, and fingerprints that are the same everywhere."""

from __future__ import annotations

import hashlib
from collections import Counter, UserDict, defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from threading import Lock
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


def test_each_part_follows_its_length() -> None:
    """So the end of one part is never taken for the beginning of the next."""
    page = b"3:GET" + b"%d:%b" % (len(PAGE), PAGE.encode()) + b"0:"
    assert hashlib.sha256(page).hexdigest() == fingerprint(CrawlRequest(PAGE))


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("::ffff:1.2.3.4", "::ffff:102:304"), ("::FFFF:102:0304", "::ffff:102:304"),
        ("0:0:0:0:0:FFFF:0:1", "::ffff:0:1"), ("::ffff:1.2.3.4%a", "::ffff:102:304%a"),
        ("::1.2.3.4", "::102:304"), ("::ffff:0:1.2.3.4", "::ffff:0:102:304"),
        ("64:ff9b::1.2.3.4", "64:ff9b::102:304"), ("2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
        ("fe80::1%eth0", "fe80::1%eth0"), ("::", "::"),
    ],
)  # fmt: skip
def test_an_ipv6_address(host: str, form: str) -> None:
    """It has one form with every version of Python, which has no decimal part."""
    assert canonical_url(f"http://[{host}]/") == f"http://[{form}]/"
    assert canonical_url(f"http://[{form}]/") == f"http://[{form}]/"


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


@dataclass
class Prepared:
    """A request as the library requests prepares it: a GET has no body."""

    url: str = PAGE
    method: str = "GET"
    headers: Any = None
    body: str | None = None


def test_a_request_of_requests() -> None:
    """A body of ``None`` is an empty one, and a text is its UTF-8."""
    assert fingerprint(Prepared()) == fingerprint(CrawlRequest(PAGE))
    form = Prepared(method="POST", body="a=茶")
    assert fingerprint(form) == fingerprint(
        CrawlRequest(PAGE, "POST", body="a=茶".encode())
    )


# --- items


@dataclass
class Price:
    title: str
    price: float


@dataclass
class Shelf:
    books: list[Price]
    found: Any
    _place: Price
    _note: str = "茶"


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


NESTED: dict[str, Any] = {
    "books": [{"title": "茶", "price": 3.5}],
    "found": {"a": 2, "b": 1},
    "_place": {"title": "左", "price": 0.0},
    "_note": "茶",
}


@pytest.mark.parametrize("make", [dict, Counter, lambda found: defaultdict(int, found)])
def test_a_dataclass_in_a_dataclass(make: Any) -> None:
    """Each counts as a dict of all its fields, and each kind of dict as a dict."""
    shelf = Shelf([Price("茶", 3.5)], make(NESTED["found"]), Price("左", 0.0))
    assert item_fingerprint(shelf) == item_fingerprint(NESTED)
    assert shelf.found == NESTED["found"]
    if make is dict:
        assert asdict(shelf) == NESTED


@dataclass
class Part:
    _sku: str


def test_a_dataclass_anywhere_counts_with_all_its_fields() -> None:
    """Those that begin with an underscore, too: different items are different."""
    for hold in (lambda part: {"part": part}, lambda part: [part], UserDict):
        items = [hold({"a": Part(sku)}) for sku in ("茶", "茶杯")]
        assert len({item_fingerprint(item) for item in items}) == 2
    assert item_fingerprint({"part": Part("茶")}) == item_fingerprint(
        {"part": {"_sku": "茶"}}
    )


def cyclic_item() -> Price:
    """Make a dataclass that holds itself."""
    price = Price("茶", 1.0)
    price.title = [{"a": price}]  # type: ignore[assignment]
    return price


@pytest.mark.parametrize(
    "item",
    [
        {"a": float("nan")}, {1: 2}, {"a": {1}}, object(), "\ud800", {"a": 2**70}, Price,
        Price("茶", Lock()), cyclic_item(), {"a": [cyclic_item()]},  # type: ignore[arg-type]
    ],
    ids=range(10),
)  # fmt: skip
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
