"""Integrations with other libraries. This module itself imports none of them."""

from __future__ import annotations
