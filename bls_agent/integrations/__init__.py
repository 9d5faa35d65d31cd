"""Integrations with other libraries. Import each module under its own name."""

from __future__ import annotations
