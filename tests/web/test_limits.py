"""How much one client may ask for."""

from __future__ import annotations

import pytest

from bls_agent.web.door.limits import Bucket, Buckets, StreamQuota, group_address


def test_a_bucket_empties_and_fills() -> None:
    """So many at once, then one after the other."""
    bucket = Bucket(2, 0.5, 2, 0.0)
    assert [bucket.take(0.0), bucket.take(0.0)] == [0.0, 0.0]
    assert bucket.take(0.0) == 2.0
    assert bucket.take(1.0) == 1.0
    assert bucket.take(2.0) == 0.0
    assert bucket.take(100.0) == 0.0
    bucket.give_back()
    bucket.give_back()
    bucket.give_back()
    assert bucket.level == 2
    assert bucket.is_full(100.0)
    bucket.take(100.0)
    assert bucket.take(50.0) == 0.0  # a clock that went back gives and takes nothing


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
    assert len(buckets) == 2
    assert buckets.take("a", 0.0) > 0
    assert buckets.take("b", 0.0) == 0.0  # it was forgotten


def test_streams_are_counted_for_each_and_for_all() -> None:
    """429 for too many of one, 503 for too many of all, and an end is an end."""
    quota = StreamQuota(each=2, total=3)
    with quota.hold("a"), quota.hold("a"):
        assert quota.refuse("a") == 429
        assert quota.refuse("b") == 0
        with quota.hold("b"):
            assert quota.open == 3
            assert quota.refuse("b") == 503
    assert quota.open == 0
    assert quota.refuse("a") == 0
    assert not quota._open


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_one_customer_is_one_client(address: str, group: str) -> None:
    """Who has a network of addresses has one budget."""
    assert group_address(address) == group
