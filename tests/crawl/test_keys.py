"""The key manager and the validator: they agree, whatever the names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from scrapy.settings import Settings

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import KEYS, encode_key
from bls_agent.crawl import (
    RedisKeyManager,
    RedisKeyValidator,
    create_redis_key_manager,
    get_redis_key_info,
    get_redis_key_manager_from_settings,
    print_validation_report,
    validate_multiple_redis_keys,
    validate_redis_key_naming,
)
from bls_agent.crawl.keys import CrawlKey, read_key
from tests.corpus.loader import vectors_of

NO_KEYS: list[Any] = [
    None,
    5,
    [],
    b"\xff",
    *(
        vector.values["key"]
        for vector in vectors_of("004", "parse").values()
        if not vector.values["result"]["valid"]
    ),
]

names = st.text(min_size=1, max_size=20)
optional_names = st.none() | names


def made_by(manager: RedisKeyManager) -> list[str]:
    """Every key of the contract that a manager makes."""
    makers = [name for name in dir(manager) if name.startswith("get_")]
    makers.remove("get_own_key")
    makers.remove("get_failed_retries_key")
    keys = [getattr(manager, name)() for name in makers]
    return [*keys, manager.get_failed_retries_key("0000000000000001")]


@given(names, optional_names)
def test_what_the_manager_makes_is_valid(project: str, spider: str | None) -> None:
    """A pair of names is refused, or each of its keys is read back as that pair."""
    try:
        manager = RedisKeyManager(project, spider)
    except ConfigurationError:
        return
    assert len(set(made_by(manager))) == 8
    for key in made_by(manager):
        assert validate_redis_key_naming(key, project)
        assert not validate_redis_key_naming(key, project + "x")
        assert RedisKeyManager.extract_project_name_from_key(key) == project
        assert RedisKeyManager.extract_spider_name_from_key(key) == spider
        found = read_key(key.encode())
        assert found is not None
        assert found[1:] == (project, spider)


@given(st.binary(max_size=600), optional_names)
def test_the_retries_of_any_member(member: bytes, spider: str | None) -> None:
    """A member is a peer's: long, blank, empty, no UTF-8; its key is valid all the same."""
    try:
        manager = RedisKeyManager("p", spider)
    except ConfigurationError:
        return
    key = manager.get_failed_retries_key(member)
    raw = f"crawlo:{manager.namespace}:queue:failed:retries:".encode() + member
    assert encode_key(key) == raw
    for one in (key, raw):
        assert read_key(one) == CrawlKey("crawl_failed_retries", "p", spider)
        assert validate_redis_key_naming(one, "p")
        assert get_redis_key_info(one)["sub_component"] == "failed"


@given(st.text(":abq*[]{}", max_size=6), st.text(":abq*[]{}", max_size=6))
def test_what_is_valid_the_manager_makes(project: str, rest: str) -> None:
    """No key is valid that no manager makes."""
    key = f"crawlo:{project}:{rest}:queue:requests"
    info = get_redis_key_info(key)
    if info["valid"]:
        manager = RedisKeyManager(info["project"], info.get("spider"))
        assert manager.get_requests_queue_key() == key


def test_no_key_is_no_error() -> None:
    """What is no key is not valid; nothing is raised."""
    for key in NO_KEYS:
        assert not validate_redis_key_naming(key)
        assert get_redis_key_info(key) == {"valid": False, "error": "Key不符合命名规范"}
        assert RedisKeyManager.extract_project_name_from_key(key) is None
        assert RedisKeyManager.extract_spider_name_from_key(key) is None
    assert validate_multiple_redis_keys(NO_KEYS) == (False, NO_KEYS)


@pytest.mark.parametrize(("project", "spider"), [(None, None), ("a", 1.5)])
def test_names_of_another_type_are_refused(project: Any, spider: Any) -> None:
    """The error names the value and the rule, at construction."""
    with pytest.raises(ConfigurationError, match=r"^(project|spider): .*; "):
        RedisKeyManager(project, spider)


def test_a_reserved_name_says_what_to_do() -> None:
    """Value, rule and remedy stand in the message."""
    with pytest.raises(ConfigurationError) as caught:
        RedisKeyManager("p", "queue")
    assert str(caught.value) == (
        "spider: 'queue' is not allowed; no spider is called queue, filter, item: "
        "they are parts of keys. Try 'queue_spider'."
    )


def test_a_project_may_have_any_of_these_names() -> None:
    """Its place in a key is fixed, so it is never taken for something else."""
    for name in ("queue", "item", "filter", "crawlo"):
        keys = made_by(RedisKeyManager(name))
        assert validate_multiple_redis_keys(keys, name) == (True, [])


@pytest.mark.parametrize("none", ["", None])
def test_the_spider_can_be_cleared(none: str | None) -> None:
    """Then the namespace is the project alone."""
    manager = RedisKeyManager("p", "s")
    assert (manager.namespace, manager.spider_name) == ("p:s", "s")
    manager.set_spider_name(none)
    assert manager.spider_name is None
    assert (manager.project_name, manager.namespace) == ("p", "p")
    assert manager.get_item_fingerprint_key() == "crawlo:p:item:fingerprint"
    assert RedisKeyManager("p", none).spider_name is None


def test_a_refused_spider_changes_nothing() -> None:
    """The manager stays what it was."""
    manager = RedisKeyManager("p", "s")
    with pytest.raises(ConfigurationError):
        manager.set_spider_name("a:b")
    assert manager.namespace == "p:s"
    assert repr(manager) == "<RedisKeyManager p:s>"


@pytest.mark.parametrize("kind", [dict, Settings])
def test_settings_are_anything_with_get(kind: Any) -> None:
    """A dict, the settings of Scrapy."""
    manager = get_redis_key_manager_from_settings(
        kind({"PROJECT_NAME": "新闻", "SPIDER_NAME": "头条"})
    )
    assert manager.namespace == "新闻:头条"
    assert RedisKeyManager.from_settings(kind({})).namespace == "default"
    assert create_redis_key_manager().namespace == "default"
    assert create_redis_key_manager("p", "s").namespace == "p:s"


def test_the_parts_of_a_key() -> None:
    """With a spider and without; the component and its part as the document has them."""
    manager = RedisKeyManager("p", "s")
    validator = RedisKeyValidator()
    assert validator.get_key_info(manager.get_processing_data_key()) == {
        "valid": True,
        "framework": "crawlo",
        "project": "p",
        "spider": "s",
        "component": "queue",
        "sub_component": "processing",
    }
    manager.set_spider_name(None)
    assert validator.get_key_info(manager.get_item_fingerprint_key()) == {
        "valid": True,
        "framework": "crawlo",
        "project": "p",
        "component": "item",
        "sub_component": "fingerprint",
    }
    assert validator.validate_multiple_keys(
        [manager.get_failed_queue_key(), "crawlo:q:queue:failed", None], "p"
    ) == (False, ["crawlo:q:queue:failed", None])


def test_own_keys_are_read_back() -> None:
    """They lie beside a key of the contract, and say which namespace is theirs."""
    for spider in (None, "s", "[a*"):
        manager = RedisKeyManager("{新闻}", spider)
        for row in ("crawl_leases", "crawl_delayed", "crawl_counters", "crawl_wake"):
            key = manager.get_own_key(row)
            assert KEYS[row].match(key)
            assert read_key(key) == CrawlKey(row, "{新闻}", spider)
        key = manager.get_own_key("crawl_bloom", "crawl_item_fingerprint")
        assert read_key(key) == CrawlKey("crawl_bloom", "{新闻}", spider)
    assert read_key("bls_agent:{crawlo:p:queue:failed}:leases") is None
    assert read_key("bls_agent:{p_控制}:leases") is None


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a key, and how many of them are valid."""
    print_validation_report(
        ["crawlo:p:s:queue:failed", "crawlo:q:queue:failed", 5], "p"
    )
    assert capsys.readouterr().out == (
        "valid   'crawlo:p:s:queue:failed' framework=crawlo project=p spider=s "
        "component=queue sub_component=failed\n"
        "INVALID 'crawlo:q:queue:failed' framework=crawlo project=q component=queue "
        "sub_component=failed\n"
        "INVALID 5 error=Key不符合命名规范\n"
        "1 of 3 keys are valid\n"
    )


# --- the example of contract 004, as it stands there, with our import

EXAMPLE = """
from bls_agent.crawl import RedisKeyManager

# 创建 Key 管理器（项目级别）
key_manager = RedisKeyManager("my_project")

# 创建 Key 管理器（爬虫级别）
key_manager = RedisKeyManager("my_project", "my_spider")

# 生成各种 Key
requests_queue_key = key_manager.get_requests_queue_key()
processing_queue_key = key_manager.get_processing_queue_key()
failed_queue_key = key_manager.get_failed_queue_key()
filter_fingerprint_key = key_manager.get_filter_fingerprint_key()
item_fingerprint_key = key_manager.get_item_fingerprint_key()

# 设置爬虫名称
key_manager.set_spider_name("another_spider")
"""


def test_the_example_of_the_document() -> None:
    """It gives the keys that the document's naming rule says."""
    names: dict[str, Any] = {}
    exec(EXAMPLE, names)
    keys = {name: key for name, key in names.items() if name.endswith("_key")}
    assert keys == {
        "requests_queue_key": "crawlo:my_project:my_spider:queue:requests",
        "processing_queue_key": "crawlo:my_project:my_spider:queue:processing",
        "failed_queue_key": "crawlo:my_project:my_spider:queue:failed",
        "filter_fingerprint_key": "crawlo:my_project:my_spider:filter:fingerprint",
        "item_fingerprint_key": "crawlo:my_project:my_spider:item:fingerprint",
    }
    assert all(map(validate_redis_key_naming, keys.values()))
    manager = names["key_manager"]
    assert manager.get_failed_queue_key() == (
        "crawlo:my_project:another_spider:queue:failed"
    )
    for key in (
        "crawlo:ofweek_standalone:queue:processing",
        "crawlo:ofweek_standalone:queue:processing:data",
    ):
        assert validate_redis_key_naming(key, "ofweek_standalone")
