"""Integrations with other libraries; each module needs an extra of its own."""

from __future__ import annotations
