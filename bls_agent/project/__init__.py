"""The console protocol: status, log and commands of one project."""

from __future__ import annotations
