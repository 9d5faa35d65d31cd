"""Connections to Redis and the requests over them; only this package uses redis-py."""

from __future__ import annotations
