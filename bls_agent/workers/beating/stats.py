"""A snapshot of every counter and state of a heartbeat."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HeartbeatStats"]


@dataclass(frozen=True, kw_only=True)
class HeartbeatStats:
    """Every counter and state of a heartbeat at one moment.

    Attributes:
        key: Where it stands.
        open: Whether it is kept alive.
        owned: Whether the key is surely ours.
        standing: ``ours``; ``held``: another process owns it; ``stands``: a value of
            somebody who knows no lease stands there; ``wrong_type``; or ``unknown``.
        writes: Beats that were written.
        refreshes: Beats for which Redis had no memory: the former value was kept alive.
        failures: Beats that could not be written, or perhaps.
        losses: Times somebody else had taken the key over.
        overwritten: Times somebody else had written over the key without owning it.
        loop_stalls: Times the event loop stood still longer than ``stall_after``.
        loop_stalled_seconds: How long it did, the longest of those that are over.
    """

    key: str
    open: bool
    owned: bool
    standing: str
    writes: int
    refreshes: int
    failures: int
    losses: int
    overwritten: int
    loop_stalls: int
    loop_stalled_seconds: float
