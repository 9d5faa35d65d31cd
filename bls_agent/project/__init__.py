"""Contract 002: a service on the BLS Project Console (status, log, commands)."""

from __future__ import annotations
