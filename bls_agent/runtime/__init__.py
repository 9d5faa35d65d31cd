"""Threads, tasks, event loops and leases, and a writer that works in the background."""

from __future__ import annotations
