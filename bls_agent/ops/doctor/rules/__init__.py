"""The rules about each contract, one module for each."""

from __future__ import annotations
