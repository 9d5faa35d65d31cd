"""A record of a log as the HTTP interface gives it."""

from __future__ import annotations

from typing import Final

from bls_agent.codec import encode_within
from bls_agent.project.messages import LogEntry

__all__ = ["encode_record"]

LONGEST: Final = 65_536  # bytes; the contract advises as much, foreign writers may not


def encode_record(entry: LogEntry) -> bytes:
    """Write a record; one that is too long is shortened, and says so in ``cut``."""
    fields = {
        "timestamp": entry.timestamp,
        "level": entry.level.value,
        "message": entry.message,
        "metadata": entry.metadata,
        "valid": entry.valid,
    }
    payload, cut = encode_within(fields, LONGEST)
    if cut:
        payload, _ = encode_within({"cut": True, **fields}, LONGEST)
    return payload
