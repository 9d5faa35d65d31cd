"""From a URL or a client to replies: the one floor that knows redis-py."""

from __future__ import annotations
