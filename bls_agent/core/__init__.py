"""Errors, settings, JSON, keys, rights, buffers, redaction; no event loop."""

from __future__ import annotations
