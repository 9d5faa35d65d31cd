"""A record of a log as the HTTP interface gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio.lowlevel

from bls_agent.codec import encode_within
from bls_agent.project.messages import LogEntry

__all__ = ["encode_record", "encode_records"]

SLICE: Final = 50  # records without letting others run
LONGEST: Final = (
    65_600  # bytes: any record of ours, and "valid"; foreign ones may be longer
)


async def encode_records(entries: Sequence[LogEntry]) -> list[bytes]:
    """Write many records, and let others run in between."""
    written: list[bytes] = []
    for number, entry in enumerate(entries, 1):
        written.append(encode_record(entry))
        if number % SLICE == 0:
            await anyio.lowlevel.checkpoint()
    return written


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
