"""Errors, settings, JSON, keys, rights, buffers, redaction: without an event loop."""

from __future__ import annotations
