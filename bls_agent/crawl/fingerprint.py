"""Requests of crawlers, and the fingerprints by which duplicates are told: no I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CrawlRequest"]


@dataclass(frozen=True)
class CrawlRequest:
    """One request of a crawler."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] | None = None
    body: bytes = b""
    meta: Mapping[str, Any] | None = None
    callback: str | None = None

    def encode(self) -> bytes:
        """Write the request as the JSON object that stands in Redis."""
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes) -> CrawlRequest:
        """Read what :meth:`encode` wrote.

        Raises:
            DecodeError: It is no request; it is never unpickled.
        """
        raise NotImplementedError
