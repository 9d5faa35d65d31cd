"""The example of contract 004 runs as it stands there, with our import."""

from __future__ import annotations

from typing import Any

from bls_agent.crawl import validate_redis_key_naming

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
