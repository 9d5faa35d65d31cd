"""What stands on nothing: errors, settings, JSON, keys, rights, buffers, redaction."""

from __future__ import annotations
