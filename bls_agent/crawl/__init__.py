"""Crawl queues: many crawler processes share one queue and one duplicate filter.

Fingerprints need the extra ``crawl``; the classes for Scrapy, in
:mod:`bls_agent.integrations.scrapy`, need the extra ``scrapy``.
"""

from __future__ import annotations

from bls_agent.crawl.queue import (
    FailedRequest,
    QueueStats,
    RequestQueue,
    TakenRequest,
)

__all__ = [
    "FailedRequest",
    "QueueStats",
    "RequestQueue",
    "TakenRequest",
]
