"""Threads, tasks, event loops, leases, and writing in the background."""

from __future__ import annotations
