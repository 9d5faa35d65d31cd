"""From a URL or a client to replies; only this package uses redis-py."""

from __future__ import annotations
