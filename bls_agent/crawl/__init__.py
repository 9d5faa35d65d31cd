"""Crawl queues: many crawler processes share one queue and one duplicate filter.

The classes for Scrapy, in :mod:`bls_agent.integrations.scrapy`, need the extra
``scrapy``. This package needs no extra.
"""

from __future__ import annotations

from bls_agent.crawl.fingerprint import CrawlRequest, fingerprint, item_fingerprint
from bls_agent.crawl.keys import (
    RedisKeyManager,
    RedisKeyValidator,
    create_redis_key_manager,
    get_redis_key_info,
    get_redis_key_manager_from_settings,
    print_validation_report,
    validate_multiple_redis_keys,
    validate_redis_key_naming,
)
from bls_agent.crawl.overview import (
    CleanupReport,
    FailedRequest,
    Namespace,
    QueueStats,
    cleanup,
    find_queues,
)
from bls_agent.crawl.queue import RequestQueue, TakenRequest
from bls_agent.crawl.seen import DedupPipeline, SeenFilter

__all__ = [
    "CleanupReport",
    "CrawlRequest",
    "DedupPipeline",
    "FailedRequest",
    "Namespace",
    "QueueStats",
    "RedisKeyManager",
    "RedisKeyValidator",
    "RequestQueue",
    "SeenFilter",
    "TakenRequest",
    "cleanup",
    "create_redis_key_manager",
    "find_queues",
    "fingerprint",
    "get_redis_key_info",
    "get_redis_key_manager_from_settings",
    "item_fingerprint",
    "print_validation_report",
    "validate_multiple_redis_keys",
    "validate_redis_key_naming",
]
