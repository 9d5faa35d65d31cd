"""What a key is, and what it was meant to be: decided without Redis."""

from __future__ import annotations

import pytest

from bls_agent.core.keys import KEYS, find_templates
from bls_agent.ops.doctor.reading import Look, kind_of, project_of
from bls_agent.ops.doctor.rule import Sample
from bls_agent.ops.doctor.rules.project import (
    find_meant,
    name_fault,
    quote_name,
    tidy_name,
)
from tests.ops.doctor.plants import key_of

CONTROL = "订单系统_控制"


def foreign(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def test_a_list_that_becomes_short_while_it_is_read() -> None:
    """No element is counted twice, as its oldest and as its newest."""
    elements = [b"%d" % number for number in range(24)]
    look = Look(Sample(key="订单系统_控制", row="control"))
    look.record_first([-1, 30, 2_400])
    kinds = [request[0] for request in look.second()]
    assert kinds == ["LLEN", "LRANGE", "LRANGE"]
    look.record_second([24, elements[:20], elements[-5:]])
    assert look.sample.items == elements
    assert look.sample.oldest == 20


def test_every_kind_is_recognised() -> None:
    """As the table of keys does it, only faster."""
    for row in KEYS:
        key = key_of(row)
        assert kind_of(key).row == row
        assert row in find_templates(key)


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("bls_agent:bls_agent:{订单系统_控制}:inflight:a:owner", "owner"),
        ("bls_agent:{订单系统_控制}:inflight:a", "inflight"),
        ("a_update_b_控制", "control"),
        ("user_update_queue", "sync_progress"),
        ("crawlo:p:s:queue:requests:data", "crawl_requests_data"),
        ("crawlo:p:queue", ""),
        ("_控制", ""),
        ("session:1", ""),
        ("", ""),
        (foreign(CONTROL.encode("gbk")), ""),
    ],
)
def test_of_several_forms_the_one_that_says_most(key: str, row: str) -> None:
    """A key may fit several rows of the table."""
    assert kind_of(key).row == row


@pytest.mark.parametrize(
    ("key", "project"),
    [
        ("订单系统_项目状态", "订单系统"),
        ("bls_agent:{订单系统_控制}:inflight:a", "订单系统"),
        ("bls_agent:bls_agent:{订单系统_控制}:inflight:a:owner", "订单系统"),
        ("bls_agent:{订单系统_项目状态}:instances", "订单系统"),
        ("bls_agent:a{b}_控制:dead", "a{b}"),
        ("bls_agent:{something}:owner", ""),
        ("run:1:events", ""),
        ("asset:index", ""),
    ],
)
def test_whose_key_it_is(key: str, project: str) -> None:
    """Our own keys belong to the project of the key beside which they lie."""
    assert project_of(kind_of(key)) == project


TWINS = {
    "gbk": CONTROL.encode("gbk"),
    "gb18030": "订单系统𠮷_控制".encode("gb18030"),
    "full-width underscore": "订单系统\uff3f控制".encode(),
    "trailing newline": f"{CONTROL}\n".encode(),
    "trailing blank": f"{CONTROL} ".encode(),
    "zero width": "订单系统_控\u200b制".encode(),
    "byte order mark behind": f"{CONTROL}\ufeff".encode(),
}


@pytest.mark.parametrize("how", TWINS)
def test_a_twin_is_seen_through(how: str) -> None:
    """Whatever made other bytes of a project's key."""
    key = foreign(TWINS[how])
    assert kind_of(key).row == ""
    meant = find_meant(key)
    assert meant is not None
    assert kind_of(meant).fields["project"].startswith("订单系统")


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        ("订单系统".encode("gbk"), r"\xb6\xa9\xb5\xa5ϵͳ (GBK: 订单系统)"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("订单 ".encode(), "'订单 '"),
    ],
)
def test_a_broken_name_is_quoted(raw: bytes, quoted: str) -> None:
    """A name in GBK before the suffix in UTF-8 is told as what was meant."""
    assert quote_name(foreign(raw)) == quoted


@pytest.mark.parametrize(
    "key",
    ["session:1", "购物车:7", "控制", "订单系统_日志", foreign("订单".encode("gbk")),
     foreign(b"\xff\xfe\xfd"), "x" * 10_000, "é" * 1_000],
)  # fmt: skip
def test_other_keys_are_no_twins(key: str) -> None:
    """Keys of others are none of our business."""
    assert find_meant(key) is None


@pytest.mark.parametrize(
    ("name", "broken", "tidy"),
    [
        ("订单系统", False, "订单系统"),
        ("订单系统 ", True, "订单系统"),
        ("订单\n系统", True, "订单系统"),
        ("Cafe\u0301", True, "Caf\u00e9"),
        ("\uff21\uff22\uff23", False, "ABC"),
        ("订单\u200b系统", False, "订单系统"),
    ],
)
def test_names(name: str, broken: bool, tidy: str) -> None:
    """A name that our agents refuse, and the name that most people would type."""
    assert bool(name_fault(name)) is broken
    assert tidy_name(name) == tidy
