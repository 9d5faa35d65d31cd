"""Every key of the five contracts: built to the byte, read back, matched, described."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from enum import Enum

import pytest
from hypothesis import given, strategies as st

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import (
    CONTROL,
    KEYS,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    KeyTemplate,
    check_name,
    find_templates,
    hash_tag,
    place_beside,
    shares_slot,
)

DAY = 86_400

# Row → an example with literal names, its Redis type and its TTL.
# fmt: off
EXAMPLES: dict[str, tuple[dict[str, str | int], str, str | None, int | None]] = {
    "project_status": ({"project": "订单系统"}, "订单系统_项目状态", "string", 60),
    "project_console": ({"project": "订单系统"}, "订单系统_项目控制台", "list", None),
    "control": ({"project": "订单系统"}, "订单系统_控制", "list", None),
    "inflight": ({"place": "{订单系统_控制}", "instance": "web-1"}, "bls_agent:{订单系统_控制}:inflight:web-1", "list", None),
    "inflight_lists": ({"place": "{订单系统_控制}"}, "bls_agent:{订单系统_控制}:inflight", "hash", None),
    "deliveries": ({"place": "{订单系统_控制}"}, "bls_agent:{订单系统_控制}:deliveries", "hash", 7 * DAY),
    "seen": ({"place": "{订单系统_控制}"}, "bls_agent:{订单系统_控制}:seen", "zset", 600),
    "dead_letters": ({"place": "{订单系统_控制}"}, "bls_agent:{订单系统_控制}:dead", "list", None),
    "broadcast": ({"place": "{订单系统_控制}", "instance": "web-1"}, "bls_agent:{订单系统_控制}:broadcast:web-1", "list", 300),
    "intake": ({"place": "{订单系统_控制}"}, "bls_agent:{订单系统_控制}:intake", "hash", 30),
    "instances": ({"place": "{订单系统_项目状态}"}, "bls_agent:{订单系统_项目状态}:instances", "hash", 60),
    "owner": ({"place": "{订单系统_控制}"}, "bls_agent:{订单系统_控制}:owner", "string", None),
    "run_events": ({"run_id": 123}, "run:123:events", "stream", DAY),
    "asset_report": ({"place": "{asset:sync:state}"}, "bls_agent:{asset:sync:state}:report", "string", None),
    "console_changes": ({}, "bls_agent:console:changes", "stream", None),
    "run_books": ({"place": "{run:123:events}"}, "bls_agent:{run:123:events}:books", "hash", DAY),
    "generic_heartbeat": ({"kind": "下载", "worker_id": "上海:1"}, "heartbeat:下载:上海:1", "string", 30),
    "data_worker_heartbeat": ({"node_id": "node_1"}, "heartbeat:data_worker:node_1", "string", 30),
    "backtest_worker_heartbeat": ({"worker_id": "worker_1"}, "backtest:worker:worker_1", "string", 30),
    "execution_node_heartbeat": ({"node_id": "node_123"}, "heartbeat:node:node_123", "string", 30),
    "scheduler_heartbeat": ({"node_id": "node_1"}, "heartbeat:scheduler:node_1", "string", 30),
    "task_timer_heartbeat": ({"node_id": "node_1"}, "heartbeat:task_timer:node_1", "string", 30),
    "component_heartbeat": ({"component_type": "api", "component_id": "1:a"}, "heartbeat:component:api:1:a", "string", 30),
    "process_heartbeat": ({"pid": 4711}, "ginkgo:heartbeat:4711", "string", 30),
    "main_control": ({}, "ginkgo:maincontrol", None, None),
    "watchdog": ({}, "ginkgo:watchdog", None, None),
    "thread_pool": ({}, "ginkgo:thread_pool", None, None),
    "data_worker_pool": ({}, "ginkgo:dataworker_pool", None, None),
    "worker_status": ({"pid": 4711}, "ginkgo:worker_status:4711", None, None),
    "task_status": ({"task_id": "t1"}, "ginkgo:task_status:t1", "string", DAY),
    "backtest_task_progress": ({"task_id": "t1"}, "backtest:task:t1:progress", "string", 7_200),
    "sync_progress": ({"type": "tick", "code": "000001.SZ"}, "tick_update_000001.SZ", "set", 30 * DAY),
    "func_cache": ({"func": "my_function", "key": "cache_key"}, "ginkgo_func_cache_my_function_cache_key", "string", 3_600),
    "asset_metadata": ({"id": "google_search"}, "asset:metadata:google_search", "hash", None),
    "asset_category": ({"category": "tool"}, "asset:category:tool", "set", None),
    "asset_index": ({}, "asset:index", "hash", None),
    "asset_sync_state": ({}, "asset:sync:state", "hash", None),
    "asset_sync_changed": ({}, "asset:sync:changed", "list", None),
    "asset_search_index": ({}, "asset:search:index", None, None),
    "project_config": ({"project_id": "p1"}, "project:config:p1", "hash", None),
    "pending_tasks": ({}, "task:queue:pending", "list", None),
    "queued_task_status": ({"task_id": "t1"}, "task:status:t1", "hash", None),
    "crawl_requests": ({"project": "project1", "spider": "spider1"}, "crawlo:project1:spider1:queue:requests", "zset", None),
    "crawl_requests_data": ({"project": "project1"}, "crawlo:project1:queue:requests:data", "hash", None),
    "crawl_processing": ({"project": "ofweek_standalone"}, "crawlo:ofweek_standalone:queue:processing", "zset", None),
    "crawl_processing_data": ({"project": "ofweek_standalone"}, "crawlo:ofweek_standalone:queue:processing:data", "hash", None),
    "crawl_failed": ({"project": "p", "spider": "s"}, "crawlo:p:s:queue:failed", "list", None),
    "crawl_failed_retries": ({"project": "p", "key": "a:b"}, "crawlo:p:queue:failed:retries:a:b", "string", None),
    "crawl_filter_fingerprint": ({"project": "p", "spider": "s"}, "crawlo:p:s:filter:fingerprint", "set", None),
    "crawl_item_fingerprint": ({"project": "p"}, "crawlo:p:item:fingerprint", "set", None),
    "crawl_leases": ({"place": "{crawlo:新闻:queue:requests}"}, "bls_agent:{crawlo:新闻:queue:requests}:leases", "hash", None),
    "crawl_delayed": ({"place": "{crawlo:新闻:queue:requests}"}, "bls_agent:{crawlo:新闻:queue:requests}:delayed", "hash", None),
    "crawl_counters": ({"place": "{crawlo:新闻:queue:requests}"}, "bls_agent:{crawlo:新闻:queue:requests}:counters", "hash", None),
    "crawl_wake": ({"place": "{crawlo:新闻:queue:requests}"}, "bls_agent:{crawlo:新闻:queue:requests}:wake", "list", None),
    "crawl_bloom": ({"place": "{crawlo:新闻:item:fingerprint}"}, "bls_agent:{crawlo:新闻:item:fingerprint}:bloom", None, None),
}
# fmt: on
every_row = pytest.mark.parametrize("row", KEYS)
CONSOLE_ROWS = {
    "project_status": PROJECT_STATUS,
    "project_console": PROJECT_CONSOLE,
    "control": CONTROL,
}


def test_every_row_has_an_example() -> None:
    """The examples of this module are those of the table, no more and no fewer."""
    assert set(EXAMPLES) == set(KEYS)


@every_row
def test_a_key_is_the_documented_one(row: str) -> None:
    """Form, type and TTL of a key are what its contract says, to the byte."""
    values, key, kind, ttl = EXAMPLES[row]
    assert KEYS[row].build(**values) == key
    assert (KEYS[row].type, KEYS[row].ttl) == (kind, ttl)


# --- names

NAMES = {
    "one character": "a",
    "as the contract shows": "订单系统",
    "blank inside": "order system",
    "colon": "a:b",
    "glob": r"*?[a]^\\",
    "braces": "{a}",
    "quotes": "'\"",
    "percent": "%s %d",
    "dots": "..",
    "emoji": "📦",
    "full width": "\uff4frder",
    "right to left override": "a\u202eb",
    "zero width space": "a\u200bb",
    "a suffix of a key": "订单_项目状态",
    "512 bytes": "x" * 512,
    "a Windows device": "CON",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_an_unusual_name_is_fine(name: str) -> None:
    """A name may hold whatever every peer would write in the same way."""
    assert check_name("project", name) == name
    assert PROJECT_STATUS.parse(PROJECT_STATUS.build(project=name)) == {"project": name}


NO_NAMES: dict[str, object] = {
    "empty": "",
    "blank": " ",
    "blank in front": " a",
    "ideographic space behind": "a\u3000",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "tab": "a\tb",
    "NUL": "a\0",
    "escape": "\x1b[2J",
    "C1 control": "a\x9bb",
    "lone surrogate": "a\ud800",
    "decomposed": "cafe\u0301",
    "513 bytes": "x" * 513,
    "513 bytes in 171 characters": "订" * 171,
    "bytes": b"a",
    "none": None,
}


@pytest.mark.parametrize("name", NO_NAMES.values(), ids=list(NO_NAMES))
def test_an_unsafe_name_is_refused(name: str) -> None:
    """A name that peers would write differently, or not at all, is refused by field."""
    with pytest.raises(ConfigurationError, match=r"^project: ") as caught:
        PROJECT_STATUS.build(project=name)
    assert caught.value.name == "project"


@given(st.text(max_size=20))
def test_what_is_accepted_keeps_every_rule(name: str) -> None:
    """No name gets through that breaks one of the documented rules."""
    try:
        check_name("project", name)
    except ConfigurationError:
        return
    assert 0 < len(name.encode()) <= 512
    assert name == name.strip() == unicodedata.normalize("NFC", name)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", name)


# --- building and reading


def nasty_names(*, colon: bool) -> st.SearchStrategy[str]:
    """Give names that are legal, among them those that look like parts of keys."""
    parts = "ab{}*?[]\\^_:%'\" 订控制项目状态台\U0001f4e6\u202e"
    words = st.sampled_from(
        [*NAMES.values(), "queue", "data", "_控制", "_update_", "queue:failed:retries"]
    )
    return (words | st.text(st.sampled_from(parts), min_size=1, max_size=12)).filter(
        lambda name: name == name.strip() and (colon or ":" not in name)
    )


@st.composite
def keys(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """Give a row of the table and legal values for its fields."""
    row = draw(st.sampled_from(sorted(KEYS)))
    closed = set(re.findall(r"\{(\w+)[!?]+\}", KEYS[row].template))
    return row, {
        field: draw(nasty_names(colon=field not in closed))
        for field in KEYS[row].fields
        if field not in KEYS[row].optional or draw(st.booleans())
    }


@given(keys())
def test_a_key_is_read_back(sample: tuple[str, dict[str, str]]) -> None:
    """Reading a key gives the values it was built of, from text and from bytes."""
    row, values = sample
    key = KEYS[row].build(**values)
    assert KEYS[row].match(key)
    for written in (key, key.encode()):
        if KEYS[row].ambiguous:
            assert values in KEYS[row].readings(written)
        else:
            assert KEYS[row].readings(written) == [values]
            assert KEYS[row].parse(written) == values


@pytest.mark.parametrize("template", CONSOLE_ROWS.values(), ids=list(CONSOLE_ROWS))
@given(project=nasty_names(colon=True))
def test_the_keys_of_a_project_are_not_confused(
    template: KeyTemplate, project: str
) -> None:
    """No name makes one of the three console keys look like another one."""
    key = template.build(project=project)
    assert [row.match(key) for row in CONSOLE_ROWS.values()] == [
        row is template for row in CONSOLE_ROWS.values()
    ]


def test_an_ambiguous_key_tells_all_its_readings() -> None:
    """A key with two readings is not guessed at: all of them or none are given."""
    row = KEYS["sync_progress"]
    key = "a_update_b_update_c"
    assert row.parse(key) is None
    assert row.readings(key) == [
        {"type": "a", "code": "b_update_c"},
        {"type": "a_update_b", "code": "c"},
    ]


FOREIGN = [
    "", "_项目状态", "订单系统_项目状态 ", "订单系统_项目状态:x", "项目状态", "订单系统_状态"
]  # fmt: skip


@pytest.mark.parametrize("key", FOREIGN, ids=repr)
def test_a_foreign_key_is_not_read(key: str) -> None:
    """A key that is only similar belongs to no row and gives no project."""
    assert PROJECT_STATUS.parse(key) is None
    assert find_templates(key) == []


@pytest.mark.parametrize("fields", [{}, {"name": "a"}, {"project": "a", "x": "b"}])
def test_exactly_the_fields_of_a_key_are_asked_for(fields: dict[str, str]) -> None:
    """A missing or an unknown field is refused, also when nothing is checked."""
    with pytest.raises(ConfigurationError):
        PROJECT_STATUS.build(**fields)
    with pytest.raises(ConfigurationError):
        PROJECT_STATUS.locate(**fields)


@pytest.mark.parametrize("field", ["project", "spider"])
def test_a_closed_part_holds_no_colon(field: str) -> None:
    """("a:b") and ("a", "b") do not give the same key."""
    with pytest.raises(ConfigurationError, match=f"^{field}: 'a:b'"):
        KEYS["crawl_requests"].build(**{"project": "p", "spider": "s", field: "a:b"})


def test_an_optional_part_may_be_none() -> None:
    """Leaving a part out and giving none for it are the same."""
    row = KEYS["crawl_failed"]
    assert row.build(project="p", spider=None) == row.build(project="p")
    assert row.parse("crawlo:p:queue:failed") == {"project": "p"}


@given(st.binary(min_size=1, max_size=12))
def test_a_key_of_other_peers_can_be_addressed(name: bytes) -> None:
    """A key whose name is no legal name, or no UTF-8, is found again byte for byte."""
    key = name + "_控制".encode()
    parsed = CONTROL.parse(key)
    assert parsed is not None
    assert CONTROL.locate(**parsed).encode("utf-8", "surrogateescape") == key


# --- patterns


def glob_matches(pattern: str, text: str) -> bool:
    """Match as Redis does; patterns of ours hold no character classes."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    assert "[" not in parts
    return bool(
        re.fullmatch(
            "".join(
                {"*": ".*", "?": "."}.get(part) or re.escape(part[-1]) for part in parts
            ),
            text,
            re.DOTALL,
        )
    )


@given(keys())
def test_a_pattern_finds_every_key_of_its_kind(
    sample: tuple[str, dict[str, str]],
) -> None:
    """The open pattern of a row matches whatever the row builds."""
    row, values = sample
    assert glob_matches(KEYS[row].pattern(), KEYS[row].build(**values))


@given(nasty_names(colon=True), nasty_names(colon=True))
def test_a_fixed_name_matches_only_itself(name: str, other: str) -> None:
    """A name in a pattern is literal: no character of it reaches another project."""
    pattern = CONTROL.pattern(project=name)
    assert glob_matches(pattern, CONTROL.build(project=name))
    assert glob_matches(pattern, CONTROL.build(project=other)) is (name == other)


class Kind(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    """Kinds of workers, as older programs declare them."""

    DOWNLOAD = "下[载]"


class Number(int, Enum):
    """Ids with names."""

    FIRST = 1


def test_a_member_of_an_enum_is_its_value() -> None:
    """In keys and in patterns; str() would be the names of its class and its own."""
    row = KEYS["generic_heartbeat"]
    key = row.build(kind=Kind.DOWNLOAD, worker_id=Number.FIRST)
    assert key == "heartbeat:下[载]:1"
    assert row.pattern(kind=Kind.DOWNLOAD) == "heartbeat:下\\[载\\]:*"
    assert KEYS["run_events"].pattern(run_id=Number.FIRST) == "run:1:events"


def test_a_pattern_knows_its_fields() -> None:
    """A misspelt field does not silently widen a pattern to every project."""
    with pytest.raises(ConfigurationError):
        CONTROL.pattern(projcet="订单系统")


def test_no_key_is_declared_twice() -> None:
    """There is one line for a key, and no other line with the same form."""
    forms = Counter(re.sub(r"\{.*?\}", "{}", row.template) for row in KEYS.values())
    assert {form: count for form, count in forms.items() if count > 1} == {}


# --- keys beside a key


@pytest.mark.parametrize(
    ("key", "place", "shares"),
    [
        ("订单系统_控制", "{订单系统_控制}", True),
        ("{a}_控制", "{a}_控制", True),
        ("a{b}c{d}_控制", "a{b}c{d}_控制", True),
        ("{}_控制", "{{}_控制}", False),
        ("a}b_控制", "{a}b_控制}", False),
        ("a{b_控制", "{a{b_控制}", True),
        ("{_控制", "{{_控制}", True),
    ],
)
def test_a_key_of_ours_lies_beside_the_one_that_it_serves(
    key: str, place: str, shares: bool
) -> None:
    """What a cluster hashes of our key is what it hashes of the contract's key."""
    assert place_beside(key) == place
    assert shares_slot(key) is shares
    beside = KEYS["owner"].locate(place=place)
    assert (hash_tag(beside) == hash_tag(key)) is shares
