"""The rules about each protocol, one module for each."""

from __future__ import annotations
