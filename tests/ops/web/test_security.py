"""Where requests come from, how much one client may ask for, and where a login leads."""

from __future__ import annotations

from collections import Counter

import pytest
from starlette.exceptions import HTTPException

from bls_agent.ops.web.security import (
    Buckets,
    HostRule,
    StreamQuota,
    refuse,
    split_host,
)

OWN = "http://127.0.0.1:8765"


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ("localhost:8765", ("localhost", "8765")),
        ("LOCALHOST", ("localhost", "")),
        ("[::1]:8765", ("[::1]", "8765")),
        ("console.example", ("console.example", "")),
        ("", None),
        ("a b", None),
        ("evil.example/127.0.0.1", None),
        ("127.0.0.1:8765@evil.example", None),
        ("127.0.0.1,evil.example", None),
        ("127.0.0.1:port", None),
        ("localhost.", None),
        ("订单", None),
    ],
)
def test_a_host_header_is_taken_apart(
    header: str, parts: tuple[str, str] | None
) -> None:
    """A name and a port, or nothing that could be mistaken for them."""
    assert split_host(header) == parts


@pytest.mark.parametrize(
    ("bound", "names", "header", "allowed"),
    [
        ("127.0.0.1", (), "127.0.0.1:8765", True),
        ("127.0.0.1", (), "localhost:9000", True),  # through a tunnel
        ("::1", (), "[::1]:8765", True),
        ("127.0.0.1", (), "rebound.example:8765", False),
        ("127.0.0.1", (), "localhost.rebound.example", False),
        ("127.0.0.1", (), "127.0.0.1.rebound.example", False),
        ("127.0.0.1", (), "192.168.1.5:8765", False),
        ("192.168.1.5", (), "192.168.1.5:8765", True),
        ("192.168.1.5", (), "192.168.1.6:8765", False),
        ("0.0.0.0", (), "192.168.1.6:8765", True),  # nobody rebinds an address
        ("0.0.0.0", (), "rebound.example", False),
        ("::", (), "[fe80::1]:8765", True),
        ("127.0.0.1", ("console.example",), "CONSOLE.example", True),
        ("127.0.0.1", ("console.example",), "other.console.example", False),
    ],
)
def test_only_our_names_are_allowed(
    bound: str, names: tuple[str, ...], header: str, allowed: bool
) -> None:
    """A name of somebody else's that points here is not ours (DNS rebinding)."""
    assert HostRule(bound, names).allows(header) is allowed


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({"origin": OWN}, True),
        ({"site": "same-origin"}, True),
        ({"origin": OWN, "site": "same-origin"}, True),
        ({"origin": "http://127.0.0.1:3000"}, False),  # the same site, another origin
        ({"origin": "https://127.0.0.1:8765"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": f"{OWN}/"}, False),
        ({"origin": f"{OWN}.evil.example"}, False),
        ({"origin": OWN, "site": "cross-site"}, False),
        ({"origin": OWN, "site": "same-site"}, False),
        ({"site": "none"}, False),
        ({"site": "cross-site"}, False),
        ({}, False),
        ({"json": True}, True),  # curl; no form can send that
        ({"json": True, "origin": "http://evil.example"}, False),
        ({"json": True, "site": "cross-site"}, False),
    ],
)
def test_what_changes_something_comes_from_our_pages(
    headers: dict[str, str | bool], good: bool
) -> None:
    """Every method but the reading ones needs our own origin, or is no browser's."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "FROB"):
        told = refuse(method, OWN, **headers)  # type: ignore[arg-type]
        assert (told == "") is good, method


def test_a_bucket_empties_and_fills() -> None:
    """So many at once, then one after the other."""
    buckets = Buckets(2, 0.5)
    assert [buckets.take("a", at) for at in (0.0, 0.0, 0.0)] == [0.0, 0.0, 2.0]
    assert [buckets.take("a", at) for at in (1.0, 2.0, 100.0)] == [1.0, 0.0, 0.0]
    for _ in range(3):
        buckets.give_back("a")
    assert [buckets.take("a", 100.0) for _ in range(3)] == [0.0, 0.0, 2.0]
    many = Buckets(500, 100.0)
    assert [many.take("a", 0.1) for _ in range(501)].count(0.0) == 500


def test_clients_do_not_share_and_are_bounded() -> None:
    """Each has its own; of too many, the one seen longest ago is forgotten."""
    buckets = Buckets(1, 1.0, most=2)
    assert buckets.take("a", 0.0) == 0.0
    assert buckets.take("a", 0.0) > 0
    assert buckets.take("b", 0.0) == 0.0
    buckets.give_back("a")
    buckets.give_back("nobody")
    assert buckets.take("a", 0.0) == 0.0
    buckets.take("c", 0.0)
    assert len(buckets._full_at) == 2
    assert buckets.take("a", 0.0) > 0
    assert buckets.take("b", 0.0) == 0.0  # it was forgotten


def test_streams_are_counted_for_each_and_for_all() -> None:
    """429 for too many of one, 503 for too many of all, and an end is an end."""
    counts = Counter[str]()
    quota = StreamQuota(each=2, total=3, counts=counts)

    def refused(user: str) -> int:
        with pytest.raises(HTTPException) as refusal, quota.hold(user):
            pass
        return refusal.value.status_code

    with quota.hold("a"), quota.hold("a"):
        assert refused("a") == 429
        with quota.hold("b"):
            assert quota.open == 3
            assert refused("b") == 503
    assert quota.open == 0
    assert counts["streams_refused"] == 2
    with quota.hold("a"):
        pass
    assert not quota._open
